"""The grammar that the expressions of selectors share: `and`, `or`, `not`, parentheses, quoted words. Compiles text to
a function of a subject; each expression's own module parses its tests.

    either = both {"or" both}          both = one {"and" one}          one = "not" one | "(" either ")" | test

Words with characters other than letters, digits and `_.:/-` must be quoted.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

Subject = TypeVar("Subject")

_LENGTH_MAX = 4_096
_DEPTH_MAX = 32
_WORDS = r"""(?P<word>[\w.:/-]+)|"(?P<double>[^"]*)"|'(?P<single>[^']*)'"""
_KEYWORDS = frozenset({"and", "or", "not", "in"})


class ExpressionError(ValueError):
    """The text is not such an expression; the message says where and why."""


def tokens_with(*marks: str) -> re.Pattern[str]:
    """What a token is, with these marks besides words."""
    return re.compile(rf"\s*(?:(?P<mark>{'|'.join(map(re.escape, marks))})|{_WORDS})")


class ExpressionParser(ABC, Generic[Subject]):
    """Parses one text. A subclass names its tokens and parses its tests."""

    tokens: re.Pattern[str]

    def __init__(self, text: str) -> None:
        if len(text) > _LENGTH_MAX:
            raise ExpressionError(f"has {len(text)} characters; the limit is {_LENGTH_MAX}")
        self._tokens = _tokens(text, self.tokens)
        self._next = 0
        self._depth = 0

    def parsed(self) -> Callable[[Subject], bool]:
        test = self._either()
        if self._next < len(self._tokens):
            raise ExpressionError(f"has {self._said()} where it should end")
        return test

    @abstractmethod
    def _test(self) -> Callable[[Subject], bool]:
        """Parses a test, at whose first word it is called."""

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

    def _either(self) -> Callable[[Subject], bool]:
        parts = [self._both()]
        while self._take("key", "or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda subject: any(part(subject) for part in parts)

    def _both(self) -> Callable[[Subject], bool]:
        parts = [self._one()]
        while self._take("key", "and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda subject: all(part(subject) for part in parts)

    def _one(self) -> Callable[[Subject], bool]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ExpressionError(f"is nested deeper than {_DEPTH_MAX}")
        try:
            if self._take("key", "not"):
                inner = self._one()
                return lambda subject: not inner(subject)
            if self._take("mark", "("):
                inner = self._either()
                self._need(")")
                return inner
            return self._test()
        finally:
            self._depth -= 1

    def _of_text(self, value_of: Callable[[Subject], str | None]) -> Callable[[Subject], bool]:
        """The rest of a test of a text: nothing, `=`, `!=`, `in` or `not in` with their values. None is an absent
        text."""
        if self._take("mark", "="):
            value = self._word("a value")
            return lambda subject: value_of(subject) == value
        if self._take("mark", "!="):
            value = self._word("a value")
            return lambda subject: value_of(subject) != value
        negated = self._take("key", "not")
        if self._take("key", "in"):
            values = self._values()
            return lambda subject: (value_of(subject) in values) is not negated
        if negated:
            raise ExpressionError(f"has {self._said()} where 'in' should be")
        return lambda subject: value_of(subject) is not None

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


def _tokens(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """(kind, text); a quoted word is never a keyword."""
    found = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = pattern.match(text, place)
        if match is None:
            raise ExpressionError(f"has {text[place:].strip()[:1]!r}, which must be quoted")
        kind = match.lastgroup or ""
        word = match.group(kind)
        if kind == "word" and word in _KEYWORDS:
            kind = "key"
        found.append((kind if kind in ("mark", "key") else "word", word))
        place = match.end()
    return found
