"""A receiver of webhooks: a real HTTP server that accepts, fails, hangs or redirects as a test says."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WITHIN_S = 20.0


class Receiver:
    """Answers as `mode` says; `got` are the bodies that it accepted, `tries` counts all requests."""

    def __init__(self) -> None:
        self.mode = "accept"
        self.got: list[dict[str, Any]] = []
        self.tries = 0
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.tries += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.mode == "hang":
                    receiver.released.wait(WITHIN_S)
                    return
                codes = {"accept": 204, "fail": 503, "redirect": 302}
                if receiver.mode == "accept":
                    receiver.got.append(json.loads(body))
                self.send_response(codes[receiver.mode])
                if receiver.mode == "redirect":
                    self.send_header("location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=hush"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self) -> list[tuple[str, str]]:
        return [(one["action_id"], one["event"]) for one in self.got]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
