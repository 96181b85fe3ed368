"""What a device with a guard accepts: images of its product and hardware, not too old, signed by enough valid keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.signing import DAY, FOR_EVER, NOW, Maker, artifact_of, key_list, manifest_of, new_keys, policy_of

from broker_edge import ConfigError
from broker_edge.artifacts import Manifest
from broker_edge.device import FileHeld, MemoryHeld
from broker_edge.policy import Floor, PolicyError, Root, VersionOrder, chain_bytes


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_a_fitting_image_is_accepted(maker: Maker) -> None:
    """Control of every refusal below."""
    maker.guard().check(maker.manifest())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: manifest_of(artifact_of(), None), "pump 2.0.0 has no policy: sign one with"),
        (lambda m: m.manifest(product="valve"), "pump 2.0.0 is for the product valve, and this device is a pump"),
        (lambda m: m.manifest(hardware=["p3", "p4"]), "pump 2.0.0 is for hardware p3, p4, and this device has p2"),
        (lambda m: m.manifest("0.9.0"), r"version 0.9.0 is below the security floor 1.0.0 \(semver\)"),
        (lambda m: m.manifest("1.0.0-rc.1"), "version 1.0.0-rc.1 is below the security floor"),
        (
            lambda m: m.manifest(signed_us=NOW - 2 * DAY, expires_us=NOW),
            "the policy of pump 2.0.0 expired on 2024-10-04",
        ),
        (lambda m: m.manifest(by=m.targets[:1]), "the policy of pump 2.0.0 has 1 of the 2 valid signatures"),
        (lambda m: m.manifest(by=[m.targets[0], m.targets[0]]), "has 1 of the 2 valid signatures"),
        (lambda m: m.manifest(by=m.roots), "has 0 of the 2 valid signatures"),
        (lambda m: m.manifest(by=new_keys(2)), "has 0 of the 2 valid signatures"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(maker: Maker, make: Callable[[Maker], Manifest], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        maker.guard().check(make(maker))


def test_the_signatures_of_one_image_do_not_fit_another(maker: Maker) -> None:
    good = maker.manifest()
    other = manifest_of(artifact_of(content=b"other bytes"), None)
    with pytest.raises(PolicyError, match="has 0 of the 2 valid signatures"):
        maker.guard().check(replace(other, policy=good.policy))


def test_a_signature_of_version_1_does_not_count_for_a_policy(maker: Maker) -> None:
    artifact = artifact_of()
    policy = policy_of(artifact, ())
    plain = [key.sign(artifact) for key in maker.targets]
    forged = replace(policy, signed=replace(policy.signed, signatures=tuple(plain)))
    with pytest.raises(PolicyError, match="has 0 of the 2 valid signatures"):
        maker.guard().check(manifest_of(artifact, forged))


# -- security floor ----------------------------------------------------------------------------------------------------


def test_a_confirmed_image_raises_the_floor_for_good(maker: Maker, tmp_path: Path) -> None:
    store = FileHeld(tmp_path / "policy.json")
    guard = maker.guard(store)
    image = maker.manifest("2.0.0", floor="2.0.0")
    guard.check(image)
    assert guard.floor == Floor(VersionOrder.SEMVER, "1.0.0"), (
        "an image that is not confirmed must be able to roll back"
    )
    guard.confirmed(image)
    guard.confirmed(image)
    again = maker.guard(store)
    assert again.floor == Floor(VersionOrder.SEMVER, "2.0.0")
    with pytest.raises(PolicyError, match=r"version 1.9.0 is below the security floor 2.0.0"):
        again.check(maker.manifest("1.9.0"))


def test_a_lower_floor_and_a_missing_one_change_nothing(maker: Maker) -> None:
    guard = maker.guard()
    for floor in ("0.5.0", None):
        guard.confirmed(maker.manifest("2.0.0", floor=floor))
        assert guard.floor == Floor(VersionOrder.SEMVER, "1.0.0")


def test_a_change_of_order_opens_no_way_below_the_floor(maker: Maker) -> None:
    guard = maker.guard()
    with pytest.raises(PolicyError, match="below the security floor"):
        guard.check(maker.manifest("0.9.0", order=VersionOrder.PEP440))
    with pytest.raises(PolicyError, match=r"`2.0` is not a version in the order semver"):
        guard.check(maker.manifest("2.0", order=VersionOrder.PEP440))
    guard.confirmed(maker.manifest("2.0.0", order=VersionOrder.PEP440, floor="0.1"))
    assert guard.floor == Floor(VersionOrder.SEMVER, "1.0.0")
    guard.confirmed(maker.manifest("2.0.0", order=VersionOrder.PEP440, floor="1.5.0"))
    assert guard.floor == Floor(VersionOrder.PEP440, "1.5.0")


def test_the_floor_of_the_configuration_only_raises(maker: Maker) -> None:
    store = MemoryHeld()
    maker.guard(store, floor=Floor(VersionOrder.SEMVER, "1.5.0"))
    assert maker.guard(store, floor=Floor(VersionOrder.SEMVER, "1.2.0")).floor == Floor(VersionOrder.SEMVER, "1.5.0")
    assert maker.guard(store, floor=None).floor == Floor(VersionOrder.SEMVER, "1.5.0")


# -- key lists ---------------------------------------------------------------------------------------------------------


def test_keys_are_rotated_one_version_after_the_other(maker: Maker, tmp_path: Path) -> None:
    """A device that was away takes all versions in a row, and keeps the newest across a restart."""
    store = FileHeld(tmp_path / "policy.json")
    guard = maker.guard(store)
    others, targets = new_keys(2), new_keys(3)
    second = maker.next_root(roots=others, by=[*maker.roots, *others])
    third = key_list(others, targets, version=3, thresholds=(2, 2))
    assert guard.learn(chain_bytes([maker.root, second, third]))
    assert maker.guard(store).root.version == 3
    guard.check(maker.manifest(by=targets))
    with pytest.raises(PolicyError, match="has 0 of the 2 valid signatures"):
        guard.check(maker.manifest(by=maker.targets))


def test_a_revoked_key_no_longer_counts(maker: Maker) -> None:
    guard = maker.guard()
    image = maker.manifest(by=maker.targets[:2])
    guard.check(image)
    guard.learn(chain_bytes([maker.next_root(targets=maker.targets[1:])]))
    with pytest.raises(PolicyError, match="has 1 of the 2 valid signatures"):
        guard.check(image)
    guard.check(maker.manifest(by=maker.targets[1:]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: m.next_root(by=m.roots[:1]), "by the root keys of version 1, has 1 of the 2"),
        (lambda m: m.next_root(roots=new_keys(2), by=m.roots), "by the root keys of version 2, has 0 of the 2"),
        (lambda m: (n := new_keys(2)) and m.next_root(roots=n, by=n), "by the root keys of version 1, has 0 of the 2"),
        (lambda m: m.next_root(by=m.targets), "has 0 of the 2"),
        (lambda m: m.next_root(version=3), "version 3 of the key list does not follow version 1"),
    ],
)
def test_a_key_list_that_its_predecessor_did_not_sign_is_ignored(
    maker: Maker, make: Callable[[Maker], Root], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = maker.guard()
    assert not guard.learn(chain_bytes([make(maker)]))
    assert guard.root == maker.root
    assert said in caplog.text


def test_an_older_key_list_is_never_taken_again(maker: Maker, tmp_path: Path) -> None:
    store = FileHeld(tmp_path / "policy.json")
    guard = maker.guard(store)
    second = maker.next_root(targets=maker.targets[1:])
    assert guard.learn(chain_bytes([maker.root, second]))
    for payload in (chain_bytes([maker.root]), chain_bytes([second]), chain_bytes([maker.root, second])):
        assert not guard.learn(payload)
    # Also not from the configuration, which still has version 1.
    assert maker.guard(store).root == second


def test_a_newer_key_list_of_the_configuration_is_taken(maker: Maker) -> None:
    store = MemoryHeld()
    maker.guard(store)
    second = maker.next_root()
    assert maker.guard(store, root=second).root == second
    assert maker.guard(store).root == second


def test_a_key_list_of_the_configuration_must_be_signed(maker: Maker) -> None:
    unsigned = key_list(maker.roots, maker.targets, thresholds=(2, 2), by=maker.roots[:1])
    with pytest.raises(PolicyError, match="version 1 of the key list, by the root keys of version 1, has 1 of the 2"):
        maker.guard(root=unsigned)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"v":1}', b'{"v":1,"roots":[]}', b'{"v":2,"roots":[{}]}'])
def test_a_record_that_is_no_key_list_changes_nothing(maker: Maker, payload: bytes) -> None:
    guard = maker.guard()
    assert not guard.learn(payload)
    assert guard.root == maker.root


def test_a_key_under_two_names_is_not_two_keys(maker: Maker) -> None:
    """Otherwise one person would reach a threshold of two."""
    body = json.loads(maker.root.to_bytes())["signed"]
    first, second = sorted(body["roles"]["targets"]["key_ids"])[:2]
    body["keys"][second] = body["keys"][first]
    with pytest.raises(PolicyError, match=f"this is not a key list: wrong or missing the id of the key {second}"):
        Root.of_json({"signed": body, "signatures": []})


def test_the_good_part_of_a_chain_counts(maker: Maker) -> None:
    guard = maker.guard()
    second = maker.next_root()
    forged = key_list(n := new_keys(1), n, version=3)
    assert guard.learn(chain_bytes([second, forged]))
    assert guard.root == second


# -- time --------------------------------------------------------------------------------------------------------------


def test_an_expired_key_list_stops_updates_until_the_next_one(maker: Maker) -> None:
    maker.root = key_list(maker.roots, maker.targets, thresholds=(2, 2), expires_us=NOW + DAY)
    guard = maker.guard()
    guard.check(maker.manifest())
    maker.now_us = NOW + DAY
    with pytest.raises(PolicyError, match=r"version 1 of the key list expired on 2024-10-05 00:00; it is 2024-10-05"):
        guard.check(maker.manifest())
    guard.learn(chain_bytes([maker.next_root(signed_us=NOW)]))
    guard.check(maker.manifest())


def test_a_clock_that_is_behind_revives_nothing(maker: Maker, tmp_path: Path) -> None:
    store = FileHeld(tmp_path / "policy.json")
    old = maker.manifest(signed_us=NOW, expires_us=NOW + DAY)
    maker.guard(store).check(maker.manifest(signed_us=NOW + 2 * DAY))
    maker.now_us = 0  # Restarted without a battery.
    guard = maker.guard(store)
    with pytest.raises(PolicyError, match="expired on 2024-10-05 00:00; it is 2024-10-06 00:00 by what it has seen"):
        guard.check(old)
    guard.check(maker.manifest(signed_us=NOW + 2 * DAY))


def test_a_time_counts_only_if_it_is_signed(maker: Maker) -> None:
    guard = maker.guard()
    with pytest.raises(PolicyError):
        guard.check(maker.manifest(by=maker.targets[:1], signed_us=FOR_EVER - 1))
    assert guard.now_us() == NOW


def test_a_clock_that_is_ahead_refuses_and_harms_nothing_for_good(maker: Maker) -> None:
    store = MemoryHeld()
    guard = maker.guard(store)
    maker.now_us = 50_000 * DAY
    with pytest.raises(PolicyError, match="by the clock of this device"):
        guard.check(maker.manifest())
    maker.now_us = NOW
    maker.guard(store).check(maker.manifest())


def test_a_new_key_list_repairs_a_time_in_the_future(maker: Maker) -> None:
    """Somebody signed a policy with a wrong clock: for its devices everything else has expired."""
    guard = maker.guard()
    guard.check(maker.manifest(signed_us=39_000 * DAY))
    with pytest.raises(PolicyError, match="expired"):
        guard.check(maker.manifest(expires_us=NOW + DAY))
    guard.learn(chain_bytes([maker.next_root(signed_us=NOW)]))
    guard.check(maker.manifest(expires_us=NOW + DAY))


# -- what survives -----------------------------------------------------------------------------------------------------


def test_a_power_cut_while_writing_leaves_what_was_held(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileHeld(tmp_path / "policy.json")
    guard = maker.guard(store)
    second = maker.next_root()

    def cut(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("broker_edge.device.files.os.fsync", cut)
        with pytest.raises(KeyboardInterrupt):
            guard.learn(chain_bytes([second]))
    assert guard.root == maker.root, "what is not on disk does not count"
    assert maker.guard(store).root == maker.root
    assert maker.guard(store).learn(chain_bytes([second]))


@pytest.mark.parametrize("text", ["", "{}", "[" * 10_000, '{"root": 1, "floor": null, "time_us": 0}'])
def test_a_damaged_file_is_an_error_not_a_fresh_start(maker: Maker, tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"policy.json is damaged .*: put the file of a backup there"):
        maker.guard(FileHeld(path))


def test_what_is_held_is_one_file_of_json(maker: Maker, tmp_path: Path) -> None:
    maker.guard(FileHeld(tmp_path / "policy.json"))
    body = json.loads((tmp_path / "policy.json").read_text())
    assert (sorted(body), body["floor"]) == (["floor", "root", "time_us"], {"order": "semver", "version": "1.0.0"})
