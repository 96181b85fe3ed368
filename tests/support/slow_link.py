"""A link to a server whose answers take long, as over a satellite."""

from __future__ import annotations

import time

from support.relay import Relay


class SlowLink(Relay):
    """What the server sends arrives `delay_s` late. The chunks of one connection are delayed one after the other."""

    def __init__(self, server: tuple[str, int], delay_s: float) -> None:
        super().__init__(server, on_answer=lambda _: time.sleep(delay_s))
