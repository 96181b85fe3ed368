"""Devices in Python: a reference agent that carries out commands and updates, and a fleet of simulated devices.

Needs the `device` extra (gmqtt, websockets). The agent implements the payloads of docs/protocols.md §5 and does not
depend on Delta or Spark.
"""

from broker_edge.device.agent import Agent
from broker_edge.device.calls import Call, Handler, Rejected
from broker_edge.device.flash import FileFlash, Firmware, Flash, MemoryFlash
from broker_edge.device.fleet import Acked, Fleet, FleetSettings, RunningFleet
from broker_edge.device.guard import FileHeld, Guard, GuardSettings, MemoryHeld
from broker_edge.device.journal import Journal
from broker_edge.device.key_feed import KeyFeed
from broker_edge.device.link import ConnectRefused, Link, LinkError, PublishRefused, SubscribeRefused
from broker_edge.device.ota import Platform, UpdatePolicy, Updater
from broker_edge.device.wording import OwnWords, UplinkWords

__all__ = [
    "Acked",
    "Agent",
    "Call",
    "ConnectRefused",
    "FileFlash",
    "FileHeld",
    "Firmware",
    "Flash",
    "Fleet",
    "FleetSettings",
    "Guard",
    "GuardSettings",
    "Handler",
    "Journal",
    "KeyFeed",
    "Link",
    "LinkError",
    "MemoryFlash",
    "MemoryHeld",
    "OwnWords",
    "Platform",
    "PublishRefused",
    "Rejected",
    "RunningFleet",
    "SubscribeRefused",
    "UpdatePolicy",
    "Updater",
    "UplinkWords",
]
