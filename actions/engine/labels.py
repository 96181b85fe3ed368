"""Label expressions: `site = roof and not (fw in (1.2, "1.3") or old)`. Compiles text to a function of a device's
labels.

    either = both {"or" both}          both = one {"and" one}          one = "not" one | "(" either ")" | test
    test = name | name "=" value | name "!=" value | name ["not"] "in" "(" value {"," value} ")"

A name alone tests whether the label exists. `!=` and `not in` also hold for a device without the label. Words with
characters other than letters, digits and `_.:/-` must be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

Test = Callable[[Mapping[str, str]], bool]

_LENGTH_MAX = 4_096
_DEPTH_MAX = 32
_TOKEN = re.compile(r"""\s*(?:(?P<mark>!=|[=(),])|(?P<word>[\w.:/-]+)|"(?P<double>[^"]*)"|'(?P<single>[^']*)')""")
_KEYWORDS = frozenset({"and", "or", "not", "in"})


class ExpressionError(ValueError):
    """The text is not a label expression; the message says where and why."""


@lru_cache(maxsize=256)
def compiled(text: str) -> Test:
    """The compiled expression. Raises ExpressionError."""
    return _Parser(text).parsed()


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > _LENGTH_MAX:
            raise ExpressionError(f"has {len(text)} characters; the limit is {_LENGTH_MAX}")
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def parsed(self) -> Test:
        test = self._either()
        if self._next < len(self._tokens):
            raise ExpressionError(f"has {self._said()} where it should end")
        return test

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, kind: str, text: str) -> bool:
        if self._peek() != (kind, text):
            return False
        self._next += 1
        return True

    def _said(self) -> str:
        token = self._peek()
        return "its end" if token is None else repr(token[1])

    def _need(self, mark: str) -> None:
        if not self._take("mark", mark):
            raise ExpressionError(f"has {self._said()} where {mark!r} should be")

    def _either(self) -> Test:
        parts = [self._both()]
        while self._take("key", "or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda labels: any(part(labels) for part in parts)

    def _both(self) -> Test:
        parts = [self._one()]
        while self._take("key", "and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda labels: all(part(labels) for part in parts)

    def _one(self) -> Test:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ExpressionError(f"is nested deeper than {_DEPTH_MAX}")
        try:
            if self._take("key", "not"):
                inner = self._one()
                return lambda labels: not inner(labels)
            if self._take("mark", "("):
                inner = self._either()
                self._need(")")
                return inner
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Test:
        name = self._word("a label")
        if self._take("mark", "="):
            value = self._word("a value")
            return lambda labels: labels.get(name) == value
        if self._take("mark", "!="):
            value = self._word("a value")
            return lambda labels: labels.get(name) != value
        negated = self._take("key", "not")
        if self._take("key", "in"):
            values = self._values()
            return lambda labels: (labels.get(name) in values) is not negated
        if negated:
            raise ExpressionError(f"has {self._said()} where 'in' should be")
        return lambda labels: name in labels

    def _values(self) -> frozenset[str]:
        self._need("(")
        values = [self._word("a value")]
        while self._take("mark", ","):
            values.append(self._word("a value"))
        self._need(")")
        return frozenset(values)

    def _word(self, what: str) -> str:
        token = self._peek()
        if token is None or token[0] != "word":
            raise ExpressionError(f"has {self._said()} where {what} should be")
        self._next += 1
        return token[1]


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text); a quoted word is never a keyword."""
    found = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise ExpressionError(f"has {text[place:].strip()[:1]!r}, which must be quoted")
        kind = match.lastgroup or ""
        word = match.group(kind)
        if kind == "word" and word in _KEYWORDS:
            kind = "key"
        found.append((kind if kind in ("mark", "key") else "word", word))
        place = match.end()
    return found
