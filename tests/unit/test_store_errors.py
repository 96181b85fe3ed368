"""Errors of an object store become one sentence; others stay what they are."""

from __future__ import annotations

import pytest

from headwater_cli import main
from sinks.store_errors import store_sentence

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


@pytest.mark.parametrize(
    ("text", "address", "reason"),
    [
        (REFUSED, "http://127.0.0.1:9000/nob", "(NoSuchBucket: The specified bucket does not exist)"),
        (SILENT, "http://h:9009/b/x", "(Connection refused (os error 111))"),
    ],
)
def test_address_cause_and_remedy_are_in_the_sentence(text: str, address: str, reason: str) -> None:
    sentence = store_sentence(OSError(text))
    assert sentence is not None
    assert sentence.startswith(f"the object store refused or did not answer {address} {reason}: check endpoint, bucket")
    assert not set(sentence) & {"\n", "\x1b", "↳", "<"}


def test_other_errors_are_left_alone() -> None:
    assert store_sentence(FileNotFoundError(2, "No such file or directory", "http://x")) is None
    assert store_sentence(ValueError(REFUSED)) is None


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
