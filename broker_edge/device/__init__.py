"""Devices in Python: a reference agent that carries out commands, and a fleet of simulated devices around it.

Needs the `device` extra (gmqtt). The agent speaks the payloads of docs/protocols.md §5 and knows nothing of Delta or
Spark.
"""

from broker_edge.device.agent import Agent, Call, Rejected
from broker_edge.device.fleet import Acked, Fleet, FleetSettings, RunningFleet
from broker_edge.device.journal import Journal
from broker_edge.device.link import Link, LinkError, PublishRefused

__all__ = [
    "Acked",
    "Agent",
    "Call",
    "Fleet",
    "FleetSettings",
    "Journal",
    "Link",
    "LinkError",
    "PublishRefused",
    "Rejected",
    "RunningFleet",
]
