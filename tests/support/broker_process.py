"""`headwaterd` as a process of a test: the class that `headwater torture` uses."""

from broker_edge.torture.process import BrokerError, BrokerProcess, binary

__all__ = ["BrokerError", "BrokerProcess", "binary"]
