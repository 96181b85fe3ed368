"""The number of an engine in the tables that it writes, so that the commit of an engine that was replaced fails.

An engine that starts puts its number into each of these tables: the Delta transaction `headwater-actions:engine`, by a
commit without rows. Each commit of an engine contains this transaction with its own number. Delta refuses a commit if
another one with the same transaction id was made after the version on which it is based, and the fence refuses to base
one on a version that has another number. So there is no gap between looking and writing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from broker_edge.errors import EngineFencedError, TableStoreError
from sinks.probe import require_writable
from sinks.tables import uri_of

ENGINE = "headwater-actions:engine"
"""The Delta transaction that numbers the engines of these tables."""
_CLAIMS_MAX = 10

Current = Callable[[str], DeltaTable]
"""The table of this name at its newest version."""
Claimed = Callable[[str, DeltaTable, int], bool]
"""Puts the number into this version of the table of this name. False after any other commit: its writer may be an
engine."""


class Fence:
    """`names` are the tables that the engine writes. Who claims the first of them last is the engine."""

    def __init__(self, root: Path | str, names: Sequence[str]) -> None:
        self._root, self._names = root, tuple(names)
        self._number: int | None = None
        self._checked: dict[str, int] = {}
        """By table: the newest version that is known to have our number."""

    def claim(self, current: Current, claimed: Claimed | None = None) -> None:
        """Puts a new number into all tables by `claimed` (default: `numbered`). Raises EngineFencedError if another
        engine does so at the same time and wins, TableStoreError if the first table changes all the time."""
        claimed = claimed or numbered
        for name in self._names:
            require_writable(uri_of(self._root, name))
        number = self._claim_first(current, claimed)
        self._number = number
        for name in self._names[1:]:
            for _ in range(_CLAIMS_MAX):
                table = current(name)
                if number_of(table) > number:
                    raise self._fenced()
                if claimed(name, table, number):
                    break
            else:
                raise TableStoreError(f"the table {name} under {self._root} changes all the time: try again later")
        for name in self._names:
            self.require(current(name), name)

    def _claim_first(self, current: Current, claimed: Claimed) -> int:
        for _ in range(_CLAIMS_MAX):
            tables = [current(name) for name in self._names]
            # Above every table, because a kill may have left the numbers apart.
            number = max(map(number_of, tables)) + 1
            if claimed(self._names[0], tables[0], number):
                return number
        raise TableStoreError(f"many engines start at once on the tables under {self._root}: start only one")

    def require(self, table: DeltaTable, name: str) -> None:
        """Raises EngineFencedError if this version of the table has another number than ours."""
        version = table.version()
        if self._number is not None and self._checked.get(name) == version:
            return
        if self._number is None or table.transaction_version(ENGINE) != self._number:
            raise self._fenced()
        self._checked[name] = version

    def note_commit(self, table: DeltaTable, name: str) -> None:
        """The table is at the version of our own commit, which Delta has compared with all commits before it."""
        self._checked[name] = table.version()

    def transaction(self) -> Transaction:
        """For each commit of this engine."""
        if self._number is None:
            raise self._fenced()
        return Transaction(ENGINE, self._number)

    def _fenced(self) -> EngineFencedError:
        return EngineFencedError(f"a newer engine has taken over the tables under {self._root}; this one stops")


def numbered(name: str, table: DeltaTable, number: int) -> bool:
    """`Claimed` by a commit without rows."""
    properties = CommitProperties(app_transactions=[Transaction(ENGINE, number)], max_commit_retries=0)
    try:
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
    except CommitFailedError:
        return False
    return True


def number_of(table: DeltaTable) -> int:
    """The number of the engine that claimed this version of the table; 0 if none has."""
    return int(table.transaction_version(ENGINE) or 0)
