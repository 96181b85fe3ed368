"""The faults that can be injected, by name. Each module is one kind; `docs/torture.md` lists them.

Damage to the files of a stopped log needs only a module here (`bits`, with `stopped`). A fault while the broker runs
also needs an action in `core/log/src/faults` (`plan`, `faulty_files`). Either needs a line in `_ALL`, a row in
`docs/torture.md`, a number in `tests/faults/test_torture.py`, and `make reference`, because the command line lists the
names.
"""

from __future__ import annotations

from broker_edge.torture.faults.bits import Bits
from broker_edge.torture.faults.clock import Clock
from broker_edge.torture.faults.copy import Copy
from broker_edge.torture.faults.crash import Kill, Pause, Stop
from broker_edge.torture.faults.disk import Full, Slow
from broker_edge.torture.faults.errors import Errors
from broker_edge.torture.faults.fds import Fds
from broker_edge.torture.faults.index import Index
from broker_edge.torture.faults.points import Failpoints, Tears
from broker_edge.torture.faults.power import Power
from broker_edge.torture.life import Life

_ALL = (Kill, Power, Failpoints, Tears, Errors, Full, Slow, Bits, Index, Clock, Fds, Copy, Stop, Pause)

FAULTS: dict[str, type[Life]] = {one.name: one for one in _ALL}
"""In the order of `headwater torture --help`."""

__all__ = ["FAULTS"]
