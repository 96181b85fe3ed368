"""A named pipe in the place of a file is refused by its reader: waiting for its other end could take for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from actions.inventory_csv import read_inventory
from actions.rollout_file import read_rollout
from broker_edge.artifacts.keys import SigningKey, load_public
from broker_edge.artifacts.upload import describe
from broker_edge.regular_file import open_regular
from broker_edge.secured_folder import SecuredFolder
from broker_edge.security.reading import read_bytes
from broker_edge.tls import TlsFiles
from headwater_cli import signing
from pipelines.settings import load_settings

DEADLINE_S = 60


def beside(path: Path) -> object:
    """The folder of a second broker, with a pipe where its authority is to be compared with that of the first."""
    first, second = path.parent / "first", path.parent / "second"
    SecuredFolder(first).write()
    (second / "tls").mkdir(parents=True)
    path.rename(second / "tls/ca.pem")
    return SecuredFolder(second, beside=first).write()


READERS: list[Callable[[Path], object]] = [
    open_regular,
    read_inventory,
    read_rollout,
    load_settings,
    read_bytes,
    SigningKey.load,
    load_public,
    signing._root_or_policy,
    lambda path: TlsFiles(ca=path).read(),
    lambda path: describe(path, "pump", "1"),
    beside,
]


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told: list[str] = []

    def call() -> None:
        try:
            read(pipe)
        except Exception as error:
            told.append(str(error))

    # As a daemon, so that one that waits for the pipe ends with the tests.
    reader = threading.Thread(target=call, daemon=True)
    reader.start()
    reader.join(DEADLINE_S)
    assert told, "it reads, or waits"
    assert "no regular file" in told[0]


def test_a_folder_is_refused_and_a_file_and_a_link_to_it_are_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it is no regular file"):
        open_regular(tmp_path)
    (tmp_path / "plain").write_bytes(b"text")
    (tmp_path / "link").symlink_to("plain")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"text"
