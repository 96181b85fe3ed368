"""What is asked of the admin listener ends, whatever a broker answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from broker_edge import admin
from broker_edge.admin import Admin
from broker_edge.errors import BrokerError, DeadlineError


def test_a_broker_that_gives_the_same_page_of_clients_again_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Mapping[str, str]] = []

    def ask(_: Admin, method: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        assert len(asked) < 10, "the paging does not end"
        asked.append(dict(query))
        return {"clients": [{"client_id": "b"}], "next": "b"}

    monkeypatch.setattr(Admin, "ask", ask)
    with pytest.raises(BrokerError, match="the same page of clients again"):
        list(Admin("127.0.0.1").clients())
    assert [query.get("after") for query in asked] == [None, "b"]


def test_an_answer_without_end_is_an_error_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    monkeypatch.setattr(admin, "_ANSWER_BYTES_MAX", limit)

    class Endless(BaseHTTPRequestHandler):
        sent = 0

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while Endless.sent < 256 * limit:
                    self.wfile.write(b" " * limit)
                    Endless.sent += limit
            except OSError:  # The reader has had enough.
                return

        def log_message(self, *_: object) -> None:
            return None

    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(BrokerError, match="answers with more than 1,048,576 bytes: is it a broker"):
            Admin(f"http://127.0.0.1:{server.server_port}").whoami()
        thread.join()
    assert Endless.sent < 256 * limit


@pytest.mark.parametrize("drips", ["the head", "the body"])
def test_an_answer_that_comes_byte_by_byte_is_given_up(drips: str) -> None:
    sent, gone = [0], threading.Event()

    def drip(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65_536)
            if drips == "the body":
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not gone.wait(0.05):
                try:
                    peer.sendall(b"H")
                except OSError:
                    return
                sent[0] += 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(DeadlineError, match="did not answer in time: ask again or allow more time"):
            Admin(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5).whoami()
        assert sent[0] < 1_000, "long before the answer would have been complete"
        gone.set()
        thread.join()
