"""The whole pipeline on one machine: broker, simulated devices, Spark into Delta, an action back to the devices.

`headwater demo` calls `run`. Needs the extras `spark`, `device` and `notebooks`, Java, and the Delta jars.
"""

from pipelines.demo.account import Account, take_account
from pipelines.demo.stage import run

__all__ = ["Account", "run", "take_account"]
