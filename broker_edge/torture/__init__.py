"""`headwater torture`: drives a broker, hurts it, starts it again, and checks that what was acknowledged is there.

`docs/torture.md` says what is promised and in which words a finding is told. Nothing here runs inside a broker: what
needs the broker's help is asked of a fault build through `HEADWATER_FAULTS`.
"""

from broker_edge.torture.report import Fault, Report

__all__ = ["Fault", "Report"]
