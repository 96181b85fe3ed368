"""headwater's edge broker from Python: run one (`Broker`), talk to one (`Client`).

The base install needs no JVM and imports no Spark, pandas or Delta library.
"""

from broker_edge.broker import Broker
from broker_edge.client import Client
from broker_edge.credentials import Credentials
from broker_edge.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    DataLossError,
    DeadlineError,
    FencedError,
    FullError,
    HeadwaterError,
    NotFoundError,
    OutOfRangeError,
    RefusedError,
    StartError,
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
    "FencedError",
    "FullError",
    "Gap",
    "Group",
    "GroupOffsets",
    "HeadwaterError",
    "NotFoundError",
    "OffsetRange",
    "Offsets",
    "OutOfRangeError",
    "PartitionOffsets",
    "PartitionPlan",
    "Place",
    "Plan",
    "RecordStream",
    "RefusedError",
    "Row",
    "StartError",
    "Topic",
    "UnavailableError",
    "Version",
]
