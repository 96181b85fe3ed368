"""Listeners for tests of what a stranger finds: those of a broker, and servers that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_edge.torture.process import BrokerProcess
from support.tls_files import Files


def port_of(broker: BrokerProcess, name: str) -> int:
    known = {"mqtt": lambda: broker.mqtt, "flight": lambda: broker.flight, "admin": lambda: broker.admin}
    return known.get(name, lambda: broker.listener(name))()[1]


def with_tls(files: Files, *names: str) -> dict[str, str]:
    """Settings that give these listeners TLS, on free ports."""
    found = {f"listeners.{name}.bind": "127.0.0.1:0" for name in names}
    found |= {f"listeners.{name}.tls.cert": str(files.cert) for name in names}
    return found | {f"listeners.{name}.tls.key": str(files.key) for name in names}


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on loopback that lets `answer` have each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    link, _ = listener.accept()
                except TimeoutError:
                    continue
                with link:
                    link.settimeout(10)
                    try:
                        answer(link)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()
