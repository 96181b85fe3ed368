"""Key lists as such: what is one, how they follow one another, and how they reach a device over its link."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.device_line import Line
from support.flight_server import FlightServer
from support.signing import FOR_EVER, NOW, Maker, key_list, new_keys

from broker_edge import Client, RefusedError
from broker_edge.device import KeyFeed, MemoryHeld
from broker_edge.device.link import LinkClosed, LinkError
from broker_edge.policy import Floor, PolicyError, Root, VersionOrder, chain_bytes, parse_chain, publish_roots
from broker_edge.policy.roots import CHAIN_BYTES_MAX


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_a_key_list_comes_back_from_its_file(maker: Maker) -> None:
    assert Root.parse(maker.root.to_bytes()) == maker.root


def with_field(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            body = body[name]
        body[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_field("type", "targets"), "type, which must be root"),
        (with_field("version", 0), "version: a whole number from 1"),
        (with_field("version", True), "version: a whole number from 1"),
        (with_field("version", 2**63), "version: a whole number from 1"),
        (with_field("expires_us", NOW - 86_400_000_000), "expires_us, later than signed_us"),
        (with_field("keys", {}), "keys, 1 to 64 of them"),
        (with_field("keys.x", "AAAA"), "the key x, 32 bytes in Base64"),
        (with_field("roles.targets.key_ids", ["0" * 16]), "the key 0000000000000000 of the role targets"),
        (with_field("roles.targets.key_ids", []), "key_ids: a list of 1 to 64"),
        (with_field("roles.targets.threshold", 0), "threshold: a whole number from 1"),
        (with_field("roles.targets.threshold", 4), "a threshold of 4 is impossible with 3 keys"),
        (with_field("roles.targets", None), "targets: an object"),
        (lambda body: body["roles"].pop("targets"), "the role targets"),
        (lambda body: body["roles"].update(director={**body["roles"]["root"]}), "the threshold of director"),
    ],
)
def test_what_is_no_key_list_is_refused_in_a_sentence(
    maker: Maker, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    value = json.loads(maker.root.to_bytes())
    change(value["signed"])
    with pytest.raises(PolicyError) as caught:
        Root.of_json(value)
    assert said in str(caught.value)


def test_key_lists_must_be_in_order(maker: Maker) -> None:
    second = maker.next_root()
    for roots in ([second, maker.root], [maker.root, maker.root]):
        with pytest.raises(PolicyError, match="not in the order of their versions"):
            parse_chain(chain_bytes(roots))


def test_a_chain_is_bounded_and_loses_its_oldest_versions_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = new_keys(1)
    roots = [key_list(keys, keys, version=version) for version in range(1, 5)]
    monkeypatch.setattr("broker_edge.policy.roots.CHAIN_MAX", 3)
    assert [one.version for one in parse_chain(chain_bytes(roots))] == [2, 3, 4]
    size = len(chain_bytes(roots[2:]))
    monkeypatch.setattr("broker_edge.policy.roots.CHAIN_BYTES_MAX", size)
    assert [one.version for one in parse_chain(chain_bytes(roots))] == [3, 4]


def test_a_record_that_is_too_large_is_not_read() -> None:
    with pytest.raises(PolicyError, match="more than 983040"):
        parse_chain(b" " * (CHAIN_BYTES_MAX + 1))


def test_of_two_people_who_publish_at_once_the_second_is_told(
    maker: Maker, flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(flight_server.location, timeout_s=60) as client:
        publish_roots(client, [maker.root])
        monkeypatch.setattr(client, "topics", lambda filters: [])  # As it was before the first one published.
        with pytest.raises(RefusedError, match="somebody else has just published a key list"):
            publish_roots(client, [maker.root, maker.next_root()])


def test_a_device_of_another_origin_keeps_what_it_holds(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryHeld()
    maker.guard(store)
    other = key_list(maker.roots, maker.targets, thresholds=(2, 2), expires_us=FOR_EVER - 1)
    assert maker.guard(store, root=other).root == maker.root
    assert "the device holds another version 1 of the key list, which counts" in caplog.text


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "ascending"),
    [
        (
            VersionOrder.SEMVER,
            ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-rc.1", "1.0.0", "1.0.10", "2.0.0"],
        ),
        (VersionOrder.PEP440, ["1.0.dev1", "1.0a1", "1.0rc1", "1.0", "1.0.post1", "1.0.10", "1.1", "2"]),
    ],
)
def test_versions_are_in_the_order_of_their_standard(order: VersionOrder, ascending: list[str]) -> None:
    """SemVer 2.0.0 §11, and PEP 440, "Summary of permitted suffixes and relative ordering"."""
    for index, lower in enumerate(ascending):
        for higher in ascending[index + 1 :]:
            assert order.is_before(lower, higher), (lower, higher)
            assert not order.is_before(higher, lower), (lower, higher)
        Floor(order, lower).check(lower)


def test_equal_versions_in_other_spellings_are_not_below_the_floor() -> None:
    Floor(VersionOrder.PEP440, "1.0").check("1.0.0")


# -- over the link -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [(LinkError("no right"), "gets no key lists and keeps version 1: no right"), (LinkClosed("x"), "")],
)
def test_a_device_that_may_not_read_key_lists_keeps_its_own(
    maker: Maker, error: LinkError, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Deaf(Line):
        async def listen(self, *arguments: Any, **more: Any) -> None:
            raise error

    async def scenario() -> None:
        feed = KeyFeed(maker.guard(), Deaf())  # type: ignore[arg-type]
        await feed.check(maker.manifest())
        assert not await feed.newer()
        with pytest.raises(PolicyError, match="for the product valve"):
            await feed.check(maker.manifest(product="valve"))
        await feed.close()

    asyncio.run(scenario())
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
