"""Label expressions: `site = roof and not (fw in (1.2, "1.3") or old)`. Compiles text to a function of a device's
labels. The grammar around a test is that of `expressions`.

    test = name | name "=" value | name "!=" value | name ["not"] "in" "(" value {"," value} ")"

A name alone tests whether the label exists. `!=` and `not in` also hold for a device without the label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from .expressions import ExpressionParser, tokens_with

Test = Callable[[Mapping[str, str]], bool]


@lru_cache(maxsize=256)
def compiled(text: str) -> Test:
    """The compiled expression. Raises ExpressionError."""
    return _Parser(text).parsed()


class _Parser(ExpressionParser[Mapping[str, str]]):
    tokens = tokens_with("!=", "=", "(", ")", ",")

    def _test(self) -> Test:
        name = self._word("a label")
        return self._of_text(lambda labels: labels.get(name))
