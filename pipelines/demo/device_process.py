"""Runs the simulated devices in their own process, so that they do not share an interpreter with Spark's driver.

    python -m pipelines.demo.device_process '<settings as JSON>'

Reads one command per line from stdin (`start`, `pause`, `stop`) and writes its counts as JSON lines to stdout. The end
of stdin means `stop`, so the devices end with the demo that started them. `pipelines.demo.devices` is the other side.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker_edge.device import Fleet, FleetSettings
from broker_edge.errors import HeadwaterError
from broker_edge.mqtt_address import parse_mqtt
from broker_edge.tls import NO_TLS, TlsReferences
from pipelines.demo.series import samples

COUNTS_EVERY_S = 0.5


async def serve(settings: FleetSettings) -> int:
    commands = await _stdin_lines()
    fleet = Fleet(settings, samples())
    _tell("ready", {})
    if (await commands.readline()).strip() != b"start":
        return 0
    try:
        await fleet.start()
    except HeadwaterError as error:
        _tell("failed", {"message": str(error)})
        return 1
    telling = asyncio.create_task(_tell_counts(fleet))
    try:
        while (await commands.readline()).strip() == b"pause":
            await fleet.pause()
            _tell("paused", asdict(fleet.counts()))
    finally:
        await fleet.stop()
        telling.cancel()
    _tell("stopped", asdict(fleet.counts()))
    return 0


async def _tell_counts(fleet: Fleet) -> None:
    while True:
        _tell("counts", asdict(fleet.counts()))
        await asyncio.sleep(COUNTS_EVERY_S)


async def _stdin_lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


def _tell(event: str, fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def main() -> int:
    # Ctrl-C reaches the whole foreground process group; the demo decides when its devices stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # gmqtt warns about each connection that breaks, and the demo breaks some on purpose.
    logging.getLogger("gmqtt").setLevel(logging.ERROR)
    given = json.loads(sys.argv[1])
    ca = given.pop("ca", None)
    paths = {name: Path(given[name]) for name in ("acked_path", "passwords_path") if name in given}
    tls = NO_TLS if ca is None else TlsReferences(ca=f"file:{ca}")
    others = tuple(parse_mqtt(one) for one in given.pop("others", ()))
    return asyncio.run(serve(FleetSettings(**{**given, **paths, "tls": tls, "others": others})))


if __name__ == "__main__":
    sys.exit(main())
