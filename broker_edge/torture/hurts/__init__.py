"""What can be done to a broker, by name. Each file is one kind of hurt; `docs/torture.md` lists them."""

from __future__ import annotations

from broker_edge.torture.hurts.bits import Bits
from broker_edge.torture.hurts.clock import Clock
from broker_edge.torture.hurts.copy import Copy
from broker_edge.torture.hurts.crash import Kill, Pause, Stop
from broker_edge.torture.hurts.disk import Full, Slow
from broker_edge.torture.hurts.errors import Errors
from broker_edge.torture.hurts.fds import Fds
from broker_edge.torture.hurts.index import Index
from broker_edge.torture.hurts.points import Failpoints, Tears
from broker_edge.torture.hurts.power import Power
from broker_edge.torture.life import Life

_ALL = (Kill, Power, Failpoints, Tears, Errors, Full, Slow, Bits, Index, Clock, Fds, Copy, Stop, Pause)

HURTS: dict[str, type[Life]] = {one.name: one for one in _ALL}
"""In the order of `headwater torture --help`."""

__all__ = ["HURTS"]
