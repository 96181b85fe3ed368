"""The command line for key lists and policies: made, signed by several people, published, pushed, checked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.flight_server import FlightServer

from broker_edge import Client, Row
from broker_edge.artifacts import ArtifactStore
from broker_edge.policy import KEYS_TOPIC, Policy, Root, published_roots
from headwater_cli import main, signing


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys, an image and two signed key lists; the second one replaces the key `t1` by `t3`."""
    folder = tmp_path_factory.mktemp("signing")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["artifacts", "keygen", "r1", "r2", "t1", "t2", "t3", "d1"]) == 0
        keys = ["--root", "r1.pub", "--root", "r2.pub", "--targets", "t1.pub", "--targets", "t2.pub"]
        assert main(["artifacts", "root", "1.json", *keys, "--director", "d1.pub", "--targets-threshold", "2"]) == 0
        changed = ["--after", "1.json", "--targets", "t2.pub", "--targets", "t3.pub"]
        assert main(["artifacts", "root", "2.json", *changed]) == 0
        for file in ("1.json", "2.json"):
            assert main(["artifacts", "sign", file, "--key", "r1", "--key", "r2"]) == 0
    (folder / "image").write_bytes(b"image" * 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        policy = ["artifacts", "policy", "image", "pump", "1.0.0", "p0.json", "--product", "pump", "--hardware", "p2"]
        assert main(policy) == 0
    return folder


@pytest.fixture
def folder(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch, flight_server: FlightServer) -> Path:
    """A copy of these files, the current folder of the commands."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_SERVER", flight_server.location)
    return tmp_path


def made(*more: str) -> int:
    words = ["artifacts", "policy", "image", "pump", "2.0.0", "p.json", "--product", "pump", "--hardware", "p2", *more]
    return main(words)


def client(server: FlightServer) -> Client:
    return Client(server.location, timeout_s=60)


def test_a_policy_goes_from_the_file_of_two_people_to_the_broker(
    folder: Path, flight_server: FlightServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifacts", "publish-root", "1.json"]) == 0
    assert made("--hardware", "p3", "--floor", "1.0.0") == 0
    assert main(["artifacts", "sign", "p.json", "--key", "t1"]) == 0
    push = ["artifacts", "push", "image", "pump", "2.0.0", "--policy", "p.json"]
    capsys.readouterr()
    assert main(push) == 1
    assert "the policy of pump 2.0.0 has 1 of the 2 valid signatures" in capsys.readouterr().err
    assert ArtifactStore(client(flight_server)).find("pump", "2.0.0") is None
    assert main(["artifacts", "sign", "p.json", "--key", "t2"]) == 0
    assert main(push) == 0
    assert capsys.readouterr().err == ""
    assert main(["artifacts", "verify", "pump", "2.0.0", "--root", "1.json"]) == 0
    assert "policy signed by the keys of version 1" in capsys.readouterr().out
    # By the second list, t1 is revoked.
    assert main(["artifacts", "verify", "pump", "2.0.0", "--root", "2.json"]) == 1
    found = Policy.of(ArtifactStore(client(flight_server)).get("pump", "2.0.0"))
    assert (found.product, sorted(found.hardware), str(found.floor)) == ("pump", ["p2", "p3"], "1.0.0 (semver)")


def test_a_better_policy_replaces_the_one_of_a_version_that_is_there(folder: Path, flight_server: FlightServer) -> None:
    push = ["artifacts", "push", "image", "pump", "2.0.0"]
    assert main(push) == 0
    assert made() == 0
    assert main([*push, "--policy", "p.json"]) == 0
    assert main(["artifacts", "sign", "p.json", "--key", "t1", "--key", "t2"]) == 0
    assert main([*push, "--policy", "p.json"]) == 0
    assert main(push) == 0
    found = ArtifactStore(client(flight_server)).get("pump", "2.0.0")
    assert len(Policy.of(found).signed.signatures) == 2


def test_another_file_than_the_signed_one_is_not_pushed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made() == 0
    (folder / "image").write_bytes(b"other")
    assert main(["artifacts", "push", "image", "pump", "2.0.0", "--policy", "p.json"]) == 4
    assert "image as pump 2.0.0 is not what was signed: pump 2.0.0 with sha256" in capsys.readouterr().err


def test_a_policy_for_other_chunks_than_the_stored_ones_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifacts", "push", "image", "pump", "2.0.0", "--chunk-bytes", "1024"]) == 0
    assert made() == 0
    assert main(["artifacts", "push", "image", "pump", "2.0.0", "--policy", "p.json"]) == 4
    assert "stored in chunks of 1024 bytes, and the policy was signed for chunks of 262144" in capsys.readouterr().err


def test_without_a_key_list_at_the_broker_the_signatures_are_not_checked_and_push_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made() == 0
    assert main(["artifacts", "push", "image", "pump", "2.0.0", "--policy", "p.json"]) == 0
    assert "the broker has no key list" in capsys.readouterr().err


def test_key_lists_are_published_one_after_the_other(
    folder: Path, flight_server: FlightServer, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = ["artifacts", "publish-root"]
    assert main([*publish, "1.json"]) == 0
    assert main([*publish, "2.json"]) == 0
    assert main([*publish, "1.json", "2.json"]) == 0
    assert "has version 2 of the key list already" in capsys.readouterr().out
    assert main(["artifacts", "roots"]) == 0
    assert [line.split("\t")[0::2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["1", "director 1 of 1, root 2 of 2, targets 2 of 2"],
        ["2", "director 1 of 1, root 2 of 2, targets 2 of 2"],
    ]
    assert main(["artifacts", "root", "other.json", "--after", "1.json"]) == 0
    assert main(["artifacts", "sign", "other.json", "--key", "r1", "--key", "r2"]) == 0
    assert main([*publish, "other.json"]) == 1
    assert "has another version 2 of the key list: make the version after 2" in capsys.readouterr().err
    assert [one.version for one in published_roots(client(flight_server))] == [1, 2]


def test_a_key_list_that_is_not_signed_enough_is_not_published(
    folder: Path, flight_server: FlightServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifacts", "root", "3.json", "--after", "2.json"]) == 0
    assert main(["artifacts", "sign", "3.json", "--key", "r1"]) == 0
    assert main(["artifacts", "publish-root", "1.json", "2.json", "3.json"]) == 1
    assert "by the root keys of version 2, has 1 of the 2 valid signatures" in capsys.readouterr().err
    assert published_roots(client(flight_server)) == ()
    assert main(["artifacts", "publish-root", "1.json"]) == 0
    assert main(["artifacts", "publish-root", "3.json"]) == 1
    assert "version 3 of the key list does not follow version 1" in capsys.readouterr().err


def test_a_key_list_takes_the_root_keys_of_the_version_before(
    folder: Path, flight_server: FlightServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifacts", "keygen", "r3"]) == 0
    assert main(["artifacts", "root", "3.json", "--after", "2.json", "--root", "r3.pub"]) == 0
    before = (folder / "3.json").read_bytes()
    assert main(["artifacts", "sign", "3.json", "--key", "r3", "--key", "t2"]) == 1
    assert (folder / "3.json").read_bytes() == before, "a wrong key among right ones signs nothing"
    capsys.readouterr()
    assert main(["artifacts", "sign", "3.json", "--key", "r1"]) == 0
    assert "it counts only if it is one of version 2; --after OLD.json checks that" in capsys.readouterr().err
    words = ["artifacts", "sign", "3.json", "--key", "r1", "--key", "r2", "--key", "r3", "--after", "2.json"]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    assert main(["artifacts", "publish-root", "1.json", "2.json", "3.json"]) == 0


def test_a_damaged_chain_at_the_broker_is_replaced_on_request(folder: Path, flight_server: FlightServer) -> None:
    client(flight_server).produce([Row(KEYS_TOPIC, b"rubbish", retain=True)])
    assert main(["artifacts", "publish-root", "1.json", "2.json"]) == 1
    assert main(["artifacts", "publish-root", "1.json", "2.json", "--replace"]) == 0
    assert [one.version for one in published_roots(client(flight_server))] == [1, 2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["root", "x.json", "--targets", "t1.pub"], 2, "give --root FILE.pub, or --after"),
        (
            ["root", "1.json", "--root", "r1.pub", "--targets", "t1.pub"],
            5,
            "1.json already exists: choose",
        ),
        (["root", "x.json", "--root", "r1", "--targets", "t1.pub"], 5, "r1 is not a public key in PEM"),
        (["root", "x.json", "--after", "image"], 1, "image: this is not a key list"),
        (
            ["root", "x.json", "--root", "r1.pub", "--targets", "t1.pub", "--targets-threshold", "2"],
            1,
            "a threshold of 2 is impossible with 1 keys",
        ),
        (
            ["sign", "1.json", "--key", "t1"],
            1,
            "is no root key of version 1 of the key list but one of targets: sign it",
        ),
        (["sign", "1.json", "--key", "t3"], 1, "which has no version before it: sign it with root keys"),
        (
            ["sign", "2.json", "--key", "t1", "--after", "1.json"],
            1,
            "nor of version 1: sign it with root keys of these",
        ),
        (
            ["sign", "p0.json", "--key", "t1", "--after", "1.json"],
            2,
            "--after is for key lists, and p0.json is a policy",
        ),
        (["sign", "1.json", "--key", "r1", "--after", "2.json"], 2, "--after 2.json is version 2 of the key list, and"),
        (["sign", "image", "--key", "t1"], 1, "image is neither a key list nor a policy"),
        (["sign", "missing.json", "--key", "t1"], 5, "cannot read missing.json: No such file"),
        (["push", "image", "pump", "2.0.0", "--policy", "1.json"], 1, "this is not the policy of an artifact"),
        (["push", "image", "pump", "2.0.0", "--policy", "image"], 1, "not the policy of an artifact, which is JSON"),
    ],
)
def test_bad_input_gets_a_sentence(
    folder: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifacts", *words]) == code
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--floor", "3.0.0"], 1, "version 2.0.0 is below the security floor 3.0.0 (semver)"),
        (["--floor", "1.0"], 1, "`1.0` is not a version in the order semver: write for example 1.4.0-rc.1"),
        (["--order", "alphabet"], 2, "--order is pep440 or semver, not alphabet"),
        (["--hardware", ""], 1, "wrong or missing hardware: a text of 1 to 64 characters of ASCII"),
    ],
)
def test_a_policy_that_no_device_would_accept_is_not_made(
    folder: Path, more: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(*more) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (folder / "p.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--product", "pump"], "--product, --hardware and --floor go with --root FILE.json"),
        (["--root", "1.json", "--product", "pump"], "--root needs --product and --hardware"),
        (
            ["--root", "1.json", "--product", "pump", "--hardware", "p2", "--allow-unsigned"],
            "a key list replaces",
        ),
        (
            ["--root", "1.json", "--product", "pump", "--hardware", "p2", "--floor", "1.0"],
            "--floor is ORDER:VERSION such as semver:1.2.0 or pep440:1.2, not 1.0",
        ),
        (
            ["--root", "1.json", "--product", "p", "--hardware", "a", "--hardware", "b"],
            "one device has one",
        ),
    ],
)
def test_options_of_a_device_that_do_not_fit_together_are_usage_errors(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices", "run", "d1", "--state", "state", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_file_keeps_what_was_signed(folder: Path) -> None:
    body = json.loads((folder / "1.json").read_text())
    assert sorted(body) == ["signatures", "signed"]
    assert Root.parse((folder / "1.json").read_bytes()).signed.to_json() == body


@pytest.fixture
def two_days_ago(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sets the clock of the commands back; the second call sets it right."""
    real, ago = signing._now_us, [0]
    monkeypatch.setattr(signing, "_now_us", lambda: real() - ago[0])

    def toggle() -> None:
        ago[0] = 0 if ago[0] else 2 * 86_400 * 1_000_000

    return toggle


def test_an_expired_policy_is_neither_pushed_nor_verified(
    folder: Path, flight_server: FlightServer, two_days_ago: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifacts", "publish-root", "1.json"]) == 0
    two_days_ago()
    assert made("--days", "1") == 0
    assert main(["artifacts", "sign", "p.json", "--key", "t1", "--key", "t2"]) == 0
    push = ["artifacts", "push", "image", "pump", "2.0.0", "--policy", "p.json"]
    verify = ["artifacts", "verify", "pump", "2.0.0", "--root", "1.json"]
    two_days_ago()
    capsys.readouterr()
    assert main(push) == 1
    assert "the policy of pump 2.0.0 expired at 20" in capsys.readouterr().err
    assert ArtifactStore(client(flight_server)).find("pump", "2.0.0") is None
    two_days_ago()
    assert main(push) == 0
    assert main(verify) == 0
    two_days_ago()
    capsys.readouterr()
    assert main(verify) == 1
    assert "devices refuse it: make and sign a new one for the same file" in capsys.readouterr().err


def test_an_expired_key_list_is_published_only_with_one_that_counts(
    folder: Path, flight_server: FlightServer, two_days_ago: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    two_days_ago()
    keys = ["--root", "r1.pub", "--targets", "t1.pub", "--days", "1"]
    assert main(["artifacts", "root", "short.json", *keys]) == 0
    assert main(["artifacts", "sign", "short.json", "--key", "r1"]) == 0
    two_days_ago()
    capsys.readouterr()
    assert main(["artifacts", "publish-root", "short.json"]) == 1
    assert "version 1 of the key list expired at 20" in capsys.readouterr().err
    assert published_roots(client(flight_server)) == ()
    assert main(["artifacts", "root", "long.json", "--after", "short.json"]) == 0
    assert main(["artifacts", "sign", "long.json", "--key", "r1"]) == 0
    assert main(["artifacts", "publish-root", "short.json", "long.json"]) == 0
    assert [root.version for root in published_roots(client(flight_server))] == [1, 2]
