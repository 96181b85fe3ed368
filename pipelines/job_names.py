"""The jobs by name, and when each runs. Nothing of Spark is loaded here."""

from __future__ import annotations

from collections.abc import Mapping

JOBS: Mapping[str, str] = {
    "telemetry": "copies records of devices into the bronze table",
    "status": "copies what devices report about actions into the tables",
    "silver": "turns bronze rows into typed rows, one table a kind",
    "actions": "sends the actions of the table to devices, and follows them",
    "gaps": "copies into a table which offsets are gone, and why",
    "quality": "checks silver tables by rules",
    "maintenance": "compacts and vacuums the tables",
}
"""What each does, in the order in which they start."""
STAGES = (("telemetry", "status"), ("silver", "actions"), ("gaps", "quality", "maintenance"))
"""Order with `available_now`: silver reads what telemetry has written, quality what silver has written."""
