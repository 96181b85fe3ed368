"""Errors of an object store become one sentence; others stay what they are."""

from __future__ import annotations

import pytest

from broker_edge.errors import StoreError, StoreRefusedError, TableStoreError
from headwater_cli import main
from pipelines.jobs.process import EXIT_UNREACHABLE, run_job
from sinks.store_errors import store_error

REFUSED = (
    "Kernel error -> Generic S3 error\n"
    "          \x1b[31m↳\x1b[0m Error performing GET http://127.0.0.1:9000/nob?list-type=2&prefix=a in 4ms - Server "
    "returned non-2xx status code\n           \x1b[31m↳\x1b[0m 404 Not Found\n            \x1b[31m↳\x1b[0m "
    '<?xml version="1.0"?>\n<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message>'
)
SILENT = (
    "Kernel error -> Generic S3 error\n          \x1b[31m↳\x1b[0m Error performing GET http://h:9009/b/x in 2ms - HTTP "
    "error\n           \x1b[31m↳\x1b[0m tcp connect error\n            \x1b[31m↳\x1b[0m Connection refused (os error "
    "111)\n"
)
BUSY = (
    "Generic S3 error\n ↳ Error performing PUT http://h:9009/b/x in 2s, after 5 retries - Server returned error: ↳ 503 "
    "Service Unavailable ↳ <Error><Code>SlowDown</Code><Message>Reduce your rate</Message>"
)

PASSING = (
    "Generic S3 error\n ↳ Error performing PUT http://h:9009/b/x in 2s - Server returned non-2xx status code: ↳ 4{} ↳ "
    "<Error><Code>{}</Code><Message>Again</Message>"
)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("text", "kind", "address", "reason"),
    [
        (
            REFUSED,
            StoreRefusedError,
            "http://127.0.0.1:9000/nob",
            "(NoSuchBucket: The specified bucket does not exist)",
        ),
        (SILENT, StoreError, "http://h:9009/b/x", "(Connection refused (os error 111))"),
        (BUSY, StoreError, "http://h:9009/b/x", "(SlowDown: Reduce your rate)"),
        *(
            (PASSING.format(status, code), kind, "http://h:9009/b/x", f"({code}: Again)")
            for status, code, kind in (
                ("00 Bad Request", "ExpiredToken", StoreError),
                ("00 Bad Request", "RequestTimeout", StoreError),
                ("03 Forbidden", "RequestTimeTooSkewed", StoreError),
                ("03 Forbidden", "AccessDenied", StoreRefusedError),
            )
        ),
    ],
)
def test_address_cause_and_remedy_are_in_the_sentence(
    text: str, kind: type[StoreError], address: str, reason: str
) -> None:
    for error in (OSError(text), caused(TableStoreError("x"), OSError(text)), RuntimeError(f"in a worker: {text}")):
        found = store_error(error)
        assert type(found) is kind
        said = str(found)
        assert said.startswith(f"the object store refused or did not answer {address} {reason}: check endpoint, bucket")
        assert not set(said) & {"\n", "\x1b", "↳", "<"}


def test_an_error_of_a_store_is_itself() -> None:
    own = StoreRefusedError("no")
    assert store_error(own) is store_error(caused(RuntimeError(), own)) is own


def test_other_errors_are_left_alone() -> None:
    assert store_error(FileNotFoundError(2, "No such file or directory", "http://x")) is None
    assert store_error(OSError(REFUSED.replace("NoSuchBucket", "NoSuchKey"))) is None
    assert store_error(OSError("↳ no address")) is None


def test_a_job_that_runs_alone_says_it_and_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(error: Exception) -> int:
        def work() -> None:
            raise error

        return run_job(work)

    for error in (OSError(SILENT), caused(TableStoreError("x"), OSError(SILENT)), StoreRefusedError("no")):
        assert fails(error) == EXIT_UNREACHABLE
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == second
    assert (first.startswith("error: the object store refused or did not answer"), third) == (True, "error: no")
    with pytest.raises(OSError, match="of something else"):
        fails(OSError("of something else"))


def test_a_command_says_it_and_ends_with_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A real store that does not answer: nobody listens on port 9 of this machine."""
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(name, value)
    code = main(["devices", "list", "--root", "s3://bucket/tables"])
    assert (code, capsys.readouterr().err.partition("(")[0]) == (
        3,
        "headwater: the object store refused or did not answer http://127.0.0.1:9/bucket/tables/devices/_delta_log/"
        "_last_checkpoint ",
    )
