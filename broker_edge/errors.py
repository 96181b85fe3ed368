"""Every error of headwater, by what the caller can do about it: one tree for the client, the Spark source, the sinks,
the action engine and the jobs.

HeadwaterError
├── ConfigError        a setting is wrong: change it where the message points
│   └── OptionError        an option of `format("headwater")` is wrong
├── StartError         the broker cannot start: free the port, the folder or the file that the message names
├── ConnectError       no broker answers at that address: start it, or correct the address
├── DeadlineError      no answer in time: ask again, or allow more time
├── UnavailableError   the broker answers but cannot serve this partition now
│   └── NotLeaderError     another node of the cluster serves clients: ask the one that the error names
├── RefusedError       the request is wrong, or not allowed: change it
│   └── NotFoundError      the named object does not exist
├── OutOfRangeError    the offset is gone or does not exist yet: choose one within the bounds of the error
├── FencedError        a newer reader of the group took over: stop
├── FullError          the disk of the broker is full: free space, then send again
├── DataLossError      offsets that should be readable are damaged: skip the gap, or restore
├── BrokerError        an internal error of the broker: see its log
├── OffsetError        an offset of a Spark checkpoint cannot be parsed
├── SinkError          a table, or a row for it, is not as required; nothing was written
│   └── StoreError         an object store does not answer: start it, or correct its address
│       └── StoreRefusedError  it refuses: correct bucket and credentials, or use a store that commits safely
└── PipelineError      a job cannot do its work
    ├── SetupError         the machine lacks something: install Java or the Delta jars
    │   └── MissingExtraError  a package of an extra is not installed: the message has the command
    ├── SettingsError      the settings file or an option of a job is wrong
    ├── PlanError          the plan of a silver batch cannot be read or written
    ├── NewFieldsError     a payload has fields that its schema refuses
    ├── JobFailedError     a job ended by itself
    └── TableStoreError    a table of the action engine cannot be read or written
        └── EngineFencedError  a newer engine has claimed the tables: stop this one

Nothing here retries, logs or talks to a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker_edge import moved


class HeadwaterError(Exception):
    """The base class. `str()` is one sentence: what, where, what to do."""

    detail: Mapping[str, Any] | None = None
    """The JSON of the error, if the broker sent it (docs/protocols.md, section 3, Errors)."""

    @property
    def code(self) -> str | None:
        """The broker's code for the error, if the broker sent it."""
        return None if self.detail is None else str(self.detail["error"])

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles errors between processes, and the constructors have keyword-only arguments.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[HeadwaterError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> HeadwaterError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


class ConfigError(HeadwaterError):
    """A setting is wrong."""


class OptionError(ConfigError):
    """An option of `format("headwater")` is wrong; nothing was read."""


class StartError(HeadwaterError):
    """A broker inside this process cannot start, or is not running."""


class ConnectError(HeadwaterError):
    """No broker answers at `server`."""

    def __init__(self, message: str, *, server: str = "") -> None:
        super().__init__(message)
        self.server = server


class DeadlineError(HeadwaterError):
    """No answer within the caller's time limit. A write may have happened or not."""


class UnavailableError(HeadwaterError):
    """The broker cannot serve now. `stopped`: the partition accepts no records until the broker is restarted."""

    server: str = ""
    reason: str = ""
    """Of the Spark source: the address that does not answer, and why."""

    def __init__(self, message: str, *, partition: int | None = None, stopped: bool = False) -> None:
        super().__init__(message)
        self.partition = partition
        self.stopped = stopped


class NotLeaderError(UnavailableError):
    """Another node of the cluster serves clients: `leader` is its Flight address, None if it is not known. A write that
    waited when its node stopped leading may have happened or not."""

    def __init__(self, message: str, *, leader: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class RefusedError(HeadwaterError):
    """The request is wrong or not allowed; `field` names the wrong part of it, if there is one."""

    server: str = ""
    """Of the Spark source: the address of the broker that refused."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NotFoundError(RefusedError):
    """The partition, group or action does not exist."""


class OutOfRangeError(HeadwaterError):
    """Offset `wanted` is outside [`log_start`, `high_watermark`] of `partition`."""

    def __init__(self, message: str, *, partition: int, log_start: int, high_watermark: int, wanted: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.log_start = log_start
        self.high_watermark = high_watermark
        self.wanted = wanted


class FencedError(HeadwaterError):
    """A newer reader of `group` took over; `reader_epoch` is the newest."""

    def __init__(self, message: str, *, group: str, reader_epoch: int) -> None:
        super().__init__(message)
        self.group = group
        self.reader_epoch = reader_epoch


class FullError(HeadwaterError):
    """No space is left for `partition`. Nothing of the batch was appended."""

    def __init__(self, message: str, *, partition: int | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class DataLossError(HeadwaterError):
    """Offsets [`start`, `end`) of `partition` cannot be read and will not come back."""

    def __init__(self, message: str, *, partition: int, start: int, end: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.start = start
        self.end = end


class BrokerError(HeadwaterError):
    """An internal error of the broker, or an answer that this client does not understand."""


class OffsetError(HeadwaterError):
    """An offset does not have the form that docs/spark.md describes."""


class SinkError(HeadwaterError):
    """A table, or what should be written to it, is not as required; nothing was written."""


class StoreError(SinkError):
    """An object store does not answer, or fails."""


class StoreRefusedError(StoreError):
    """An object store refuses what we need, and will until somebody changes something."""


class PipelineError(HeadwaterError):
    """Base of every error of the jobs and of the action engine."""


class SetupError(PipelineError):
    """Something that must be installed first is missing."""


class MissingExtraError(SetupError, ModuleNotFoundError):
    """A package is not installed that belongs to an extra of the wheel (`broker_edge.extras`)."""


class SettingsError(PipelineError):
    """A setting is unknown, has the wrong type, or is out of range."""


class PlanError(PipelineError):
    """The plan of a batch cannot be read or written; nothing of the batch was written."""


class NewFieldsError(PipelineError):
    """A payload has fields that its schema does not name, and the schema has `fail_on_new`."""


class JobFailedError(PipelineError):
    """A job ended by itself, and restarting it did not help."""


class TableStoreError(PipelineError):
    """A table could not be read or written."""


class EngineFencedError(TableStoreError):
    """A newer engine has claimed the tables: this one must stop, and must not be restarted."""


if not TYPE_CHECKING:
    __getattr__ = moved.old_names(__name__)
