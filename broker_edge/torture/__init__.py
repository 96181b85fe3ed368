"""`headwater torture`: loads a broker, injects faults, starts it again, and checks what was acknowledged.

`docs/torture.md` says what is promised and in which words a finding is told. Nothing here runs inside a broker: what
needs the broker's help is asked of a fault build through `HEADWATER_FAULTS`.
"""

from broker_edge.torture.report import Finding, Report

__all__ = ["Finding", "Report"]
