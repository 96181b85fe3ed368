"""docs/reference/metrics.md is what a running broker answers. `make reference` writes it."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from support import doc_reference
from support.programs import StartBroker
from support.tls_files import new_authority, sign


def test_metrics_of_the_page_are_those_of_a_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    """With a certificate, because some metrics exist only then."""
    files = sign(new_authority(tmp_path, "docs-ca"), "docs")
    tls = {
        "listeners.mqtts.bind": "127.0.0.1:0",
        "listeners.mqtts.tls.cert": str(files.cert),
        "listeners.mqtts.tls.key": str(files.key),
    }
    broker = start_broker(settings=tls)
    host, port = broker.admin
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
        doc_reference.check("metrics.md", doc_reference.metrics(answer.read().decode()))
