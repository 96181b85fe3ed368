"""`engine.replacing.replace` is `dataclasses.replace`, only faster."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.engine import DeviceState, Target, TargetState
from actions.engine.replacing import replace

TARGET = Target("a1", "default", "d1", TargetState.QUEUED, 1, 2, 3)
FACT = DeviceState("d1", "default", 1, "log", 2, 3)


@given(st.dictionaries(st.sampled_from([field.name for field in dataclasses.fields(Target)]), st.integers()))
def test_a_copy_equals_that_of_the_standard_library(changes: dict[str, int]) -> None:
    copy = replace(TARGET, **changes)
    assert copy == dataclasses.replace(TARGET, **changes)  # type: ignore[arg-type]
    assert type(copy) is Target
    assert hash(copy) == hash(dataclasses.replace(copy))


def test_the_copy_is_frozen_and_the_original_stays() -> None:
    copy = replace(FACT, offset=9)
    assert (copy.offset, FACT.offset) == (9, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.offset = 1  # type: ignore[misc]


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Target has no field 'stat'"):
        replace(TARGET, stat=1)


def test_a_class_that_checks_its_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        a: int

        def __post_init__(self) -> None:
            assert self.a

    with pytest.raises(TypeError, match="checks its fields"):
        replace(Checked(1), a=0)
