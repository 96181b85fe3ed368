"""Measures the time from the start of a broker to the first acknowledgement, on a log left by a killed broker.

`python tests/bench/restart.py HEADWATERD DATA_DIR ROUNDS [KEY=VALUE ...]` starts the broker on the folder (the example
`size` of the log crate makes large ones), publishes one message at QoS 1, records time and memory, and kills it with
SIGKILL. Prints one JSON object per round. Set `log.classes.telemetry.retention.bytes` and `.hard_bytes` large enough,
or the log shrinks.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONNECT = b"\x10\x13\x00\x04MQTT\x04\x02\x00\x3c\x00\x07restart"
PUBLISH = b"\x32\x1d\x00\x16devices/bench/restart!\x00\x01now"
ANSWERS_BYTES = 8  # CONNACK and PUBACK


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found.group(1)) if found else 0


def measure(headwaterd: str, data_dir: str, more: list[str]) -> dict[str, float]:
    settings = [
        f"data_dir={data_dir}",
        *more,
        *(f"listeners.{name}.bind=127.0.0.1:0" for name in ("mqtt", "flight", "admin")),
    ]
    command = [headwaterd, *(part for setting in settings for part in ("--set", setting))]
    start = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as broker,
    ):
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            ready_s = time.monotonic() - start
            found = re.search(r"mqtt=([\d.]+):(\d+)", ready)
            if found is None:
                broker.wait()
                said.seek(0)
                raise SystemExit(f"the broker did not start: {ready}{said.read()[-2_000:]}")
            with socket.create_connection((found.group(1), int(found.group(2)))) as client:
                client.sendall(CONNECT + PUBLISH)
                answers = b""
                while len(answers) < ANSWERS_BYTES:
                    answers += client.recv(64)
            acknowledged_s = time.monotonic() - start
            return {
                "ready_ms": round(ready_s * 1e3, 1),
                "first_ack_ms": round(acknowledged_s * 1e3, 1),
                "resident_mib": round(resident_kib(broker.pid) / 1024, 1),
            }
        finally:
            broker.kill()


def main() -> None:
    headwaterd, data_dir, rounds, *more = sys.argv[1:]
    for _ in range(int(rounds)):
        sys.stdout.write(json.dumps(measure(headwaterd, data_dir, more)) + "\n")


if __name__ == "__main__":
    main()
