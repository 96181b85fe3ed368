"""Every error of headwater, by what the caller can do about it: one tree for the client, the Spark source, the sinks,
the action engine and the jobs.

HeadwaterError
├── ConfigError        a setting is wrong: change it where the message points
│   └── OptionError        an option of `format("headwater")` is wrong
├── StartError         the broker cannot start: free the port, the folder or the file that the message names
├── ConnectError       nobody answers at that address: start the broker, or correct the address
├── DeadlineError      no answer in time: ask again, or allow more time
├── UnavailableError   the broker answers but cannot serve this partition now
├── RefusedError       the request is wrong, or not allowed: change it
│   └── NotFoundError      what it names does not exist
├── OutOfRangeError    the offset is gone or not there yet: choose one within the bounds it carries
├── FencedError        a newer reader of the group took over: stop
├── FullError          the disk of the broker is full: free space, then send again
├── DataLossError      offsets that should be readable are damaged: skip the gap, or restore
├── BrokerError        the broker failed inside: look into its log
├── OffsetError        an offset of a Spark checkpoint cannot be understood
├── SinkError          a table, or a row for it, is not as it must be; nothing was written
└── PipelineError      a job cannot do its work
    ├── SetupError         the machine lacks something: install Java or the Delta jars
    ├── SettingsError      the settings file or an option of a job is wrong
    ├── PlanError          the plan of a silver batch cannot be read or written
    ├── NewFieldsError     a payload has fields that its schema refuses
    ├── JobFailedError     a job ended although nobody told it to
    └── TableStoreError    a table of the action engine cannot be read or written
        └── EngineFencedError  a newer engine has claimed the tables: stop this one

Nothing here retries, logs or talks to a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HeadwaterError(Exception):
    """The base of all. `str()` is one sentence: what, where, what to do."""

    detail: Mapping[str, Any] | None = None
    """The broker's own words, where the error is the broker's (docs/protocols.md, section 3, Errors)."""

    @property
    def code(self) -> str | None:
        """The broker's word for the error, where the error is the broker's."""
        return None if self.detail is None else str(self.detail["error"])

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark hands errors from one process to another; the constructors have arguments that must be named.
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
    """A broker inside this process cannot start, or does not run."""


class ConnectError(HeadwaterError):
    """Nobody answers at `server`."""

    def __init__(self, message: str, *, server: str = "") -> None:
        super().__init__(message)
        self.server = server


class DeadlineError(HeadwaterError):
    """No answer within the time that the caller allowed. A write may have happened or not."""


class UnavailableError(HeadwaterError):
    """The broker cannot serve now. `stopped`: the partition takes no more records until the broker is restarted."""

    def __init__(self, message: str, *, partition: int | None = None, stopped: bool = False) -> None:
        super().__init__(message)
        self.partition = partition
        self.stopped = stopped


class RefusedError(HeadwaterError):
    """The request is wrong or not allowed; `field` names the part of it, where one is to blame."""

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
    """The broker failed inside, or answered something that this client does not understand."""


class OffsetError(HeadwaterError):
    """An offset is not in the form of docs: `{"v":1,"logs":{"<log id>":{"<partition>":[next, epoch]}}}`."""


class SinkError(HeadwaterError):
    """A table, or what should be written to it, is not as required; nothing was written."""


class PipelineError(HeadwaterError):
    """Base of every error of the jobs and of the action engine."""


class SetupError(PipelineError):
    """Something that must be installed first is missing."""


class SettingsError(PipelineError):
    """A setting is unknown, of the wrong kind, or out of range."""


class PlanError(PipelineError):
    """The plan of a batch cannot be read or written; nothing of the batch was written."""


class NewFieldsError(PipelineError):
    """A payload has fields that its schema does not name, and the schema says `fail_on_new`."""


class JobFailedError(PipelineError):
    """A job ended by itself, and starting it again did not help."""


class TableStoreError(PipelineError):
    """A table could not be read or written."""


class EngineFencedError(TableStoreError):
    """A newer engine has claimed the tables: this one must not go on, and must not be started again."""
