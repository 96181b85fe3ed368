"""A receiver of webhooks that never comes to an end of its answer holds up nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pipelines.jobs.posting import post

WITHIN_S = 20.0


@contextmanager
def receiver(begin: bytes, again: bytes, pause_s: float) -> Iterator[str]:
    """Answers with `begin`, then with `again` for ever. Gives its address."""
    ended = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(begin)
                while not ended.wait(pause_s):
                    connection.sendall(again)

    threading.Thread(target=answer, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook?token=hush"
    finally:
        ended.set()
        server.close()


def posted(url: str) -> BaseException | None:
    """What `post` raises; fails if it does not come back."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            post(url, b"{}", timeout_s=0.5)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    assert not thread.is_alive(), "the post is still waiting for its answer"
    return found[0] if found else None


@pytest.mark.parametrize(
    ("begin", "again", "pause_s"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y", 0.05),
        (b"HTTP/1.1 2", b"0", 0.05),
    ],
)
def test_an_answer_without_end_is_given_up(begin: bytes, again: bytes, pause_s: float) -> None:
    with receiver(begin, again, pause_s) as url:
        error = posted(url)
    assert isinstance(error, OSError)
    assert "hush" not in str(error)


def test_control_an_answer_in_pieces_is_accepted() -> None:
    with receiver(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", 0.01) as url:
        assert posted(url) is None
