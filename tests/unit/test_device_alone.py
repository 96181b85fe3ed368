"""One process runs a device: two on one folder would both carry out a command, and forget what the other has done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.ports import free_port

from broker_edge.artifacts import Trust
from broker_edge.device.link import LinkError
from broker_edge.device.ota import UpdatePolicy
from broker_edge.device.standalone import StandaloneSettings, run
from broker_edge.errors import ConfigError


def settings(folder: Path, timeout_s: float) -> StandaloneSettings:
    """Of a device whose broker is not there."""
    policy = UpdatePolicy(trust=Trust(()))
    return StandaloneSettings("d1", folder, "127.0.0.1", free_port(), policy, connect_timeout_s=timeout_s)


def test_a_second_process_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    async def story() -> None:
        first = asyncio.ensure_future(run(settings(tmp_path / "device", 60.0)))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="another process runs the device in "):
            await run(settings(tmp_path / "device", 60.0))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        with pytest.raises(LinkError):
            await run(settings(tmp_path / "device", 0.1))

    asyncio.run(story())


def test_a_folder_that_cannot_be_one_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "device").write_text("a file")
    with pytest.raises(ConfigError, match="cannot use the folder"):
        asyncio.run(run(settings(tmp_path / "device", 0.1)))
