"""`headwater torture`: loads a broker, injects faults, restarts it, and checks that acknowledged records survive.

`docs/torture.md` defines the promises and the terms of findings. Nothing here runs inside a broker; faults inside the
broker are requested from a fault build through `HEADWATER_FAULTS`.
"""

from typing import TYPE_CHECKING

from broker_edge.moved import old_names
from broker_edge.torture.report import Finding, Report

__all__ = ["Finding", "Report"]

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
