"""Where the demo keeps its files: one folder with the broker's log, the tables, the checkpoints and the devices'
lists."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_edge.errors import SettingsError

BRONZE = "bronze_telemetry"


@dataclass(frozen=True, slots=True)
class Layout:
    """`root` is absolute, because Spark, the broker and users in other folders all use it."""

    root: Path

    @property
    def broker(self) -> Path:
        return self.broker_of(0)

    def broker_of(self, number: int) -> Path:
        """The folder of a broker, counted from 0."""
        return self.root / ("broker" if number == 0 else f"broker-{number + 1}")

    @property
    def cluster(self) -> Path:
        """The folder of a cluster."""
        return self.root / "cluster"

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def bronze(self) -> Path:
        return self.tables / BRONZE

    def checkpoint(self, query: str) -> Path:
        return self.root / "checkpoints" / query

    def acked(self, since_us: int, number: int = 0) -> Path:
        """The list of the devices of a broker, of the run that began at `since_us`."""
        return self.root / "acked" / (f"{since_us}.csv" if number == 0 else f"{since_us}-{number + 1}.csv")


@contextmanager
def open_layout(kept: Path | None) -> Iterator[Layout]:
    """The folder `kept`, created if necessary and not removed; without one, a temporary folder that is removed at the
    end."""
    if kept is not None:
        yield _prepared(kept.absolute())
        return
    scratch = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    try:
        yield _prepared(scratch)
    finally:
        # A Spark worker may still be writing; files that it leaves are not an error.
        shutil.rmtree(scratch, ignore_errors=True)


def _prepared(root: Path) -> Layout:
    layout = Layout(root)
    try:
        for folder in (layout.broker, layout.tables, root / "checkpoints", root / "acked"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"cannot use {root} for the demo ({error.strerror}): name another folder with --data"
        ) from error
    return layout
