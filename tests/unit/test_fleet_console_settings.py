"""Settings of the fleet's console: the file repeats the defaults, and each mistake is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_edge.errors import SettingsError
from fleet_console.settings import BROKERS_MAX, ConsoleSettings, checked, load_settings

FILE = Path(__file__).parents[2] / "conf" / "console.yaml"


def settings(tmp_path: Path, text: str) -> ConsoleSettings:
    path = tmp_path / "console.yaml"
    path.write_text(text)
    return load_settings(path)


def test_the_file_has_every_setting_with_its_default() -> None:
    assert load_settings(FILE) == ConsoleSettings() == load_settings(None)
    text = FILE.read_text()

    def names(model: type) -> set[str]:
        return set(model.model_fields)  # type: ignore[attr-defined]

    for model in (ConsoleSettings, *(type(getattr(ConsoleSettings(), name)) for name in ("sign_in", "tables", "tls"))):
        assert [name for name in names(model) if f"{name}:" not in text] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listn: 1", "unknown key listn: did you mean listen?"),
        ("listen: 127.0.0.1", "listen is not HOST:PORT"),
        ("listen: '127.0.0.1:99999'", "listen is not HOST:PORT"),
        ("listen: 0.0.0.0:8090", "can be reached from other machines: give tls.cert and tls.key"),
        ("brokers: []", "brokers is empty, so nobody verifies names"),
        ("brokers: [{admin: 'ftp://x'}]", "is not an admin address"),
        ("brokers: [{admin: a}, {admin: 'http://a:8080'}]", "brokers has http://a:8080 twice"),
        ("brokers: [{admin: a, user: u, password: hunter2}]", "never the secret itself"),
        ("tls: {cert: 'file:/x'}", "give cert and key, or neither"),
        ("sign_in: {broker: nowhere}", "there is no nowhere in brokers"),
        ("sign_in: {operators: [ann]}", "count with a header only"),
        ("sign_in: {header: X-User}", "header_from must list the addresses of the proxy"),
        ("sign_in: {header: 'X User', header_from: [10.0.0.1]}", "not the name of an HTTP header"),
        ("sign_in: {header: X-User, header_from: [10.0.0.1/8]}", "header_from: 10.0.0.1/8 has host bits set"),
        ("sign_in: {header: X-User, header_from: [10.0.0.1], broker: a}", "give broker or header, not both"),
        ("tables: {options: {nix: 1}}", "tables.options"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file_and_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, text)
    message = str(caught.value)
    assert (said in message, "console.yaml:" in message, "\n" in message) == (True, True, False), message
    assert "hunter2" not in message


def test_more_brokers_than_the_limit_are_refused(tmp_path: Path) -> None:
    brokers = "\n".join(f"  - {{admin: b{number}}}" for number in range(BROKERS_MAX + 1))
    with pytest.raises(SettingsError, match=str(BROKERS_MAX)):
        settings(tmp_path, f"brokers:\n{brokers}")


def test_the_verifier_is_the_first_broker_or_the_named_one(tmp_path: Path) -> None:
    two = "brokers: [{admin: a, name: north}, {admin: b, name: south}]\n"
    names = []
    for more in ("", "sign_in: {broker: south}", "sign_in: {broker: 'http://b:8080'}"):
        verifier = settings(tmp_path, two + more).verifier()
        names.append(verifier and verifier.name)
    assert names == ["north", "south", "south"]
    by_header = settings(tmp_path, f"{two}sign_in: {{header: X-User, header_from: [10.0.0.0/8]}}\nlisten: 0.0.0.0:80")
    assert by_header.verifier() is None


def test_a_broker_has_its_own_credentials_or_those_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWATER_USER", "HEADWATER_PASSWORD_FROM", "HEADWATER_TOKEN_FROM", "HEADWATER_ADMIN_AUTH"):
        monkeypatch.delenv(name, raising=False)
    found = settings(
        tmp_path,
        "access: {token: 'env:ALL'}\nbrokers: [{admin: a}, {admin: b, user: ann, password: 'env:ONE'}]",
    ).fleet()
    assert [one.admin._credentials and one.admin._credentials.token for one in found] == ["env:ALL", None]
    assert [one.admin._credentials and one.admin._credentials.user for one in found] == [None, "ann"]


def test_what_the_command_line_changes_is_checked_too() -> None:
    assert checked(ConsoleSettings(), {"listen": "[::1]:0"}).place() == ("::1", 0)
    with pytest.raises(SettingsError, match="can be reached from other machines"):
        checked(ConsoleSettings(), {"listen": "0.0.0.0:1"})
