"""headwater's edge broker from Python: run one (`Broker`), talk to one (`Client`).

The base install needs no JVM and imports no Spark, pandas or Delta library; `Client` needs the extra `client`. Names
are imported on first use, so a Spark worker can import `broker_edge.errors` without loading a Flight library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from broker_edge import moved

if TYPE_CHECKING:
    from broker_edge.broker import Broker
    from broker_edge.client import Client
    from broker_edge.credentials import Credentials
    from broker_edge.errors import (
        BrokerError,
        ConfigError,
        ConnectError,
        DataLossError,
        DeadlineError,
        EngineFencedError,
        FencedError,
        FullError,
        HeadwaterError,
        JobFailedError,
        MissingExtraError,
        NewFieldsError,
        NotFoundError,
        NotLeaderError,
        OffsetError,
        OptionError,
        OutOfRangeError,
        PipelineError,
        PlanError,
        RefusedError,
        SettingsError,
        SetupError,
        SinkError,
        StartError,
        StoreError,
        StoreRefusedError,
        TableStoreError,
        UnavailableError,
    )
    from broker_edge.stream import RecordStream
    from broker_edge.values import (
        Commit,
        Gap,
        Group,
        GroupOffsets,
        OffsetRange,
        Offsets,
        PartitionOffsets,
        PartitionPlan,
        Place,
        Plan,
        Row,
        Topic,
        Version,
    )

__all__ = [
    "Broker",
    "BrokerError",
    "Client",
    "Commit",
    "ConfigError",
    "ConnectError",
    "Credentials",
    "DataLossError",
    "DeadlineError",
    "EngineFencedError",
    "FencedError",
    "FullError",
    "Gap",
    "Group",
    "GroupOffsets",
    "HeadwaterError",
    "JobFailedError",
    "MissingExtraError",
    "NewFieldsError",
    "NotFoundError",
    "NotLeaderError",
    "OffsetError",
    "OffsetRange",
    "Offsets",
    "OptionError",
    "OutOfRangeError",
    "PartitionOffsets",
    "PartitionPlan",
    "PipelineError",
    "Place",
    "Plan",
    "PlanError",
    "RecordStream",
    "RefusedError",
    "Row",
    "SettingsError",
    "SetupError",
    "SinkError",
    "StartError",
    "StoreError",
    "StoreRefusedError",
    "TableStoreError",
    "Topic",
    "UnavailableError",
    "Version",
]

_HOMES = {"Broker": "broker", "Client": "client", "Credentials": "credentials", "RecordStream": "stream"}
"""The modules of names that are neither errors nor values."""

_MODULES = ("broker", "client", "credentials", "errors", "stream", "tls", "values")
"""The public modules that `import broker_edge` alone makes available, as `broker_edge.errors`."""

moved.install()

# Not for type checkers, which would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES.get(name) or ("errors" if name.endswith("Error") else "values")
        found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
