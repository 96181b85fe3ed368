"""Makes and copies frozen slotted values of many fields at a third of the usual cost. Knows no value in particular.

A tick changes a hundred thousand targets of forty fields at once. `replace` asks for each field in Python, and then
`__init__` of a frozen class sets each one through `object.__setattr__`: 6 µs for a target. Here one call reads all
fields, and a twin of the class with the same slots, which is not frozen, sets them: 2 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

T = TypeVar("T")


def replace(value: T, **changes: Any) -> T:
    """A copy of the value with these fields changed. Like `dataclasses.replace`, it raises TypeError for a name that is
    no field."""
    read, places, twin = _parts(cast(Any, type(value)))
    taken = list(read(value))
    for name, new in changes.items():
        if name not in places:
            raise TypeError(f"{type(value).__name__} has no field {name!r}")
        taken[places[name]] = new
    copy = twin(*taken)
    copy.__class__ = type(value)
    return copy  # type: ignore[no-any-return]


def maker(kind: type[T]) -> Callable[..., T]:
    """Makes values of the class from all its fields, in their order."""
    _, _, twin = _parts(cast(Any, kind))

    def made(*taken: Any) -> T:
        value = twin(*taken)
        value.__class__ = kind
        return value  # type: ignore[no-any-return]

    return made


@cache
def _parts(kind: Any) -> tuple[Callable[[Any], tuple[Any, ...]], Mapping[str, int], Callable[..., Any]]:
    """For a class: all fields of a value, the place of each, and the constructor of the twin."""
    if hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__name__} checks its fields in __post_init__: use dataclasses.replace")
    names = [field.name for field in fields(kind)]
    twin = make_dataclass(f"{kind.__name__}Twin", names, slots=True, eq=False, repr=False)
    return attrgetter(*names), {name: place for place, name in enumerate(names)}, twin
