"""`headwater console` as a process beside real brokers: who gets in, who may act, and what a foreign page gets."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from deltalake import write_deltalake
from support.console_http import Answered, ask, stream
from support.console_users import Signed, start_signed
from support.fleet_console import FleetConsole, fleet_settings
from support.following import until
from support.ports import free_port
from support.programs import StartBroker, headwater
from support.tls_files import new_authority, sign

from actions.fleet_desk import FleetDesk, Order
from broker_edge.torture.process import BrokerProcess
from sinks.rows import arrow_of
from sinks.tables import ACTIONS, DEVICES, uri_of

ACTION = "a1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    desk = FleetDesk(tmp_path / "tables", by="ann", create=True)
    desk.order(Order("echo", device_ids=["d1"]), action_id=ACTION)
    return tmp_path / "tables"


def admin_of(broker: BrokerProcess) -> str:
    return "http://{}:{}".format(*broker.admin)


def settings(root: Path, *brokers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return fleet_settings(root, brokers, **more)


def kept_port() -> dict[str, str]:
    """The console finds the broker there after a restart too."""
    return {"listeners.admin.bind": f"127.0.0.1:{free_port()}"}


@pytest.fixture
def signed(start_broker: StartBroker, tmp_path: Path) -> Signed:
    return start_signed(start_broker, tmp_path / "users", kept_port())


@pytest.fixture
def console(signed: Signed, root: Path, tmp_path: Path) -> Iterator[FleetConsole]:
    """One broker with users, at which the console is a viewer."""
    password = tmp_path / "users" / "viewer.password"
    own = {"admin": admin_of(signed.broker), "name": "north", "user": "viewer", "password": f"file:{password}"}
    with FleetConsole(tmp_path, settings(root, own)) as running:
        yield running


def signed_in(console: FleetConsole, signed: Signed, user: str) -> dict[str, str]:
    """The headers of a browser of this user."""
    proof = {"user": user, "password": signed.passwords[user]}
    answer = asked(console, "POST", "/api/v1/session", document=proof)
    assert (answer.status, answer.document["user"]) == (200, user), answer.body
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def asked(console: FleetConsole, method: str, path: str, **more: Any) -> Answered:
    return ask(console, method, path, **more)  # type: ignore[arg-type]


def said(answer: Answered) -> tuple[int, str]:
    return answer.status, answer.document["error"]


def requests(root: Path) -> list[dict[str, Any]]:
    return FleetDesk(root).query("action_requests", "SELECT * FROM action_requests")


def test_without_a_session_there_is_the_page_and_nothing_else(console: FleetConsole) -> None:
    page = asked(console, "GET", "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert asked(console, "GET", "/ui/app.js", headers={"If-None-Match": ""}).status == 200
    for path in ("/ui/../pyproject.toml", "/ui/vendor/htm-preact.LICENSE.txt", "/ui/nix.js"):
        assert asked(console, "GET", path).status == 404, path
    for path in (
        "console",
        "live",
        "live/history",
        "brokers",
        "rollouts",
        "devices",
        "quality",
        "trace?at=0:0",
        f"rollouts/{ACTION}",
    ):
        answer = asked(console, "GET", f"/api/v1/{path}", headers={"X-Headwater": "1"})
        assert (said(answer), "www-authenticate" in answer.headers) == ((401, "unauthenticated"), False), path
    wanted = {"kind": "pause"}
    assert said(asked(console, "POST", f"/api/v1/rollouts/{ACTION}/requests", document=wanted))[0] == 401


def test_the_rights_are_those_at_the_broker(console: FleetConsole, signed: Signed, root: Path) -> None:
    path, wanted = f"/api/v1/rollouts/{ACTION}/requests", {"kind": "pause", "reason": "lunch"}
    viewer, operator = signed_in(console, signed, "viewer"), signed_in(console, signed, "operator")
    device = signed_in(console, signed, "device")
    assert asked(console, "GET", "/api/v1/rollouts", headers=viewer).status == 200
    assert said(asked(console, "GET", "/api/v1/rollouts", headers=device)) == (403, "permission_denied")
    assert asked(console, "GET", "/api/v1/console", headers=device).document["viewer"] is False
    assert said(asked(console, "GET", "/api/v1/live", headers=device)) == (403, "permission_denied")
    for headers in (viewer, device):
        assert said(asked(console, "POST", path, document=wanted, headers=headers)) == (403, "permission_denied")
    assert requests(root) == []
    answer = asked(console, "POST", path, document=wanted, headers=operator)
    assert answer.status == 202
    (row,) = requests(root)
    log_id = asked(console, "GET", "/api/v1/brokers", headers=viewer).document["brokers"][0]["log_id"]
    assert (row["request_id"], row["kind"], row["by"], row["reason"], row["action_id"]) == (
        answer.document["request_id"],
        "pause",
        "operator",
        "lunch",
        ACTION,
    )
    assert row["confirmed_by"] is not None
    assert log_id in (None, row["confirmed_by"])
    assert "'operator' asked for pause of 'a1'" in console.log.read_text()


def test_a_wrong_password_opens_nothing_and_a_session_ends_with_the_sign_out(
    console: FleetConsole, signed: Signed
) -> None:
    wrong = asked(console, "POST", "/api/v1/session", document={"user": "viewer", "password": "guess"})
    assert (said(wrong), "set-cookie" in wrong.headers) == ((401, "unauthenticated"), False)
    for proof in ({}, {"user": "viewer"}, {"user": "viewer", "password": 1}, {"token": "a", "user": "b"}):
        assert said(asked(console, "POST", "/api/v1/session", document=proof)) == (400, "invalid_argument"), proof
    answer = asked(
        console, "POST", "/api/v1/session", document={"user": "viewer", "password": signed.passwords["viewer"]}
    )
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert cookie.startswith(f"headwater-console-{console.admin[1]}=")
    headers = {"Cookie": cookie.partition(";")[0]}
    assert asked(console, "GET", "/api/v1/brokers", headers=headers).status == 200
    assert asked(console, "DELETE", "/api/v1/session", headers=headers).status == 204
    assert asked(console, "GET", "/api/v1/brokers", headers=headers).status == 401
    long = {"Cookie": cookie.partition("=")[0] + "=" + "x" * 9_000}
    assert asked(console, "GET", "/api/v1/brokers", headers=long).status == 401
    assert "guess" not in console.log.read_text()


def test_the_stream_of_a_session_ends_with_it_and_that_of_another_goes_on(
    console: FleetConsole, signed: Signed
) -> None:
    one, other = signed_in(console, signed, "viewer"), signed_in(console, signed, "viewer")
    path = "/api/v1/live"
    with stream(console, path, headers=one) as ends, stream(console, path, headers=other) as goes_on:
        assert (ends.status, goes_on.status) == (200, 200)
        assert asked(console, "DELETE", "/api/v1/session", headers=one).status == 204
        # Without the sign-out, the look at the rights once a minute would end it after as many events.
        assert ends.read().count(b"event: stats") < 60
        assert goes_on.readline() == b"event: stats\n"
        assert asked(console, "DELETE", "/api/v1/session", headers=other).status == 204
        goes_on.read()


def test_an_approval_of_the_one_who_ordered_it_is_refused(console: FleetConsole, signed: Signed, root: Path) -> None:
    FleetDesk(root, by="operator").order(Order("echo", device_ids=["d1"]), action_id="own")
    operator = signed_in(console, signed, "operator")
    path = "/api/v1/rollouts/own/requests"
    answer = asked(console, "POST", path, document={"kind": "approve"}, headers=operator)
    assert (said(answer), "another person must approve it" in answer.document["message"]) == ((409, "refused"), True)
    assert requests(root) == []
    path = f"/api/v1/rollouts/{ACTION}/requests"
    assert asked(console, "POST", path, document={"kind": "approve", "wave": 2}, headers=operator).status == 202
    assert [(row["kind"], row["wave"]) for row in requests(root)] == [("approve", 2)]


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"kind": "destroy"}, 400),
        ({}, 400),
        ([], 400),
        ({"kind": "pause", "device_id": "d1"}, 400),
        ({"kind": "cancel", "device_id": ""}, 400),
        ({"kind": "cancel", "device_id": 7}, 400),
        ({"kind": "cancel", "wave": 1}, 400),
        ({"kind": "approve", "wave": 0}, 400),
        ({"kind": "approve", "wave": True}, 400),
        ({"kind": "cancel", "reason": "x" * 1_001}, 400),
        ({"kind": "cancel", "reason": 1}, 400),
        ({"kind": "cancel", "more": 1}, 400),
        ({"kind": "cancel", "reason": "\ud800"}, 400),
        ({"kind": "cancel", "reason": False}, 400),
        ({"kind": "cancel", "device_id": "d\0"}, 400),
        ({"kind": "remove", "device_id": "d1"}, 400),
        ({"kind": "cancel", "reason": "x" * 70_000}, 413),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_one_sentence(
    start_broker: StartBroker, root: Path, tmp_path: Path, document: object, status: int
) -> None:
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(start_broker())})) as console:
        answer = asked(console, "POST", f"/api/v1/rollouts/{ACTION}/requests", document=document)
        assert (answer.status, answer.document["message"].count("\n")) == (status, 0)
        assert requests(root) == []


def test_a_broker_without_users_opens_a_console_on_loopback(
    start_broker: StartBroker, root: Path, tmp_path: Path
) -> None:
    broker = start_broker()
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(broker), "name": "edge"})) as console:
        told = asked(console, "GET", "/api/v1/console").document
        assert (told["scope"], told["user"], told["operator"], told["has_users"]) == ("fleet", None, True, False)
        assert told["pages"] == ["brokers", "rollouts", "devices", "quality", "trace"]
        path = f"/api/v1/rollouts/{ACTION}"
        wanted = {"kind": "cancel", "device_id": "d1", "reason": None}
        assert asked(console, "POST", f"{path}/requests", document=wanted).status == 202
        (row,) = requests(root)
        assert (row["kind"], row["device_id"], row["confirmed_by"], bool(row["by"])) == ("cancel", "d1", None, True)
        assert [one["kind"] for one in asked(console, "GET", path).document["asked"]] == ["cancel"]
        assert said(asked(console, "GET", "/api/v1/rollouts/none")) == (404, "not_found")
        assert said(asked(console, "POST", "/api/v1/rollouts/none/requests", document=wanted)) == (404, "not_found")
        for path, error in (
            ("/api/v1/rollouts?nix=1", (400, "invalid_argument")),
            ("/api/v1/rollouts?limit=1001", (400, "invalid_argument")),
            ("/api/v1/rollouts?limit=1&limit=2", (400, "invalid_argument")),
            ("/api/v1/rollouts?after=x", (400, "invalid_argument")),
            ("/api/v1/rollouts?after=--5:a", (400, "invalid_argument")),
            ("/api/v1/rollouts?after=9999999999999999999:a", (400, "invalid_argument")),
            ("/api/v1/devices?after=" + "x" * 20_001, (400, "invalid_argument")),
            ("/api/v1/rollouts?contains=" + "x" * 1_001, (400, "invalid_argument")),
            (f"/api/v1/rollouts/{ACTION}/targets?wave=-1", (400, "invalid_argument")),
            ("/api/v1/nix", (404, "not_found")),
            ("/nix", (404, "not_found")),
        ):
            assert said(asked(console, "GET", path)) == error, path
        assert asked(console, "PUT", "/api/v1/rollouts", document={}).status == 405


def test_every_id_is_found_by_its_parameter(start_broker: StartBroker, root: Path, tmp_path: Path) -> None:
    ids = [".", "..", "a/b", "/", "%2e", "a?b=c&d#e", "\u00fc \u202e"]
    for one in ids:
        rows = {ACTIONS: {"action_id": one}, DEVICES: {"device_id": one}}
        for table, row in rows.items():
            write_deltalake(uri_of(root, table.name), arrow_of([row | {"created_at": 1}], table), mode="append")
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(start_broker())})) as console:
        for one in ids:
            given = quote(one, safe="")
            found = asked(console, "GET", f"/api/v1/rollout?id={given}").document
            assert found["rollout"]["action_id"] == one
            assert asked(console, "GET", f"/api/v1/device?id={given}").document["device"]["device_id"] == one
            assert asked(console, "GET", f"/api/v1/rollout/targets?id={given}&limit=1").document["targets"] == []
            wanted = {"kind": "pause", "reason": "lunch"}
            path = f"/api/v1/rollout/requests?id={given}"
            assert asked(console, "POST", path, document=wanted).status == 202
        assert sorted(row["action_id"] for row in requests(root)) == sorted(ids)
        for path in (
            "rollout",
            "rollout?id=",
            "device",
            "rollout/targets",
            "device?id=a&nix=1",
            "devices?untold=maybe",
        ):
            assert said(asked(console, "GET", f"/api/v1/{path}")) == (400, "invalid_argument"), path
        assert said(asked(console, "GET", "/api/v1/device?id=none")) == (404, "not_found")


def test_the_numbers_of_brokers_come_live_and_one_that_is_away_is_told(
    start_broker: StartBroker, root: Path, tmp_path: Path
) -> None:
    broker = start_broker(settings=kept_port())
    there = {"admin": admin_of(broker), "name": "edge"}
    away = {"admin": f"http://127.0.0.1:{free_port()}", "name": "away"}
    with FleetConsole(tmp_path, settings(root, there, away)) as console:

        def states() -> dict[str, str]:
            rows = asked(console, "GET", "/api/v1/brokers").document["brokers"]
            return {row["name"]: row["state"] for row in rows}

        until("both states are known", lambda: states() == {"edge": "live", "away": "away"} or None)
        rows = {row["name"]: row for row in asked(console, "GET", "/api/v1/brokers").document["brokers"]}
        assert (rows["edge"]["version"], rows["edge"]["lost_ranges"]) == (
            asked(console, "GET", "/api/v1/console").document["version"],
            0,
        )
        assert "cannot connect to" in rows["away"]["trouble"]
        with stream(console, "/api/v1/live") as answer:  # type: ignore[arg-type]
            assert answer.headers["Content-Type"] == "text/event-stream"
            events = _events(answer)
            name, stats = next(events)
            assert (name, stats["sample"]["brokers"], stats["sample"]["brokers_live"]) == ("stats", 2, 1)
            assert [(one["name"], one["broker"]) for one in stats["alerts"]] == [("BrokerAway", "away")]
            versions = next(value for name, value in events if name == "tables")["tables"]
            assert (versions["actions"], versions["dq_results"]) == (1, None)
            FleetDesk(root, by="ben").order(Order("echo", device_ids=["d2"]))
            assert next(value for name, value in events if name == "tables")["tables"]["actions"] == 2

        def sampled() -> float | None:
            series = asked(console, "GET", "/api/v1/live/history").document["series"]
            return series["brokers_live"][-1] or None

        assert until("a sample has the broker", sampled) == 1
        broker.kill()
        until("the broker is away", lambda: states()["edge"] in ("stale", "away") or None)
        broker.start()
        until("the broker is back", lambda: states()["edge"] == "live" or None)


def test_a_browser_with_a_foreign_page_gains_nothing(start_broker: StartBroker, root: Path, tmp_path: Path) -> None:
    given = settings(root, {"admin": admin_of(start_broker())}, hosts=["*.example.com"])
    with FleetConsole(tmp_path, given) as console:
        path, wanted = f"/api/v1/rollouts/{ACTION}/requests", {"kind": "pause"}
        for host in ("127.0.0.1?evil", "evil.test", "example.com.evil.test", "example.com", "", "a@127.0.0.1"):
            answer = asked(console, "GET", "/api/v1/rollouts", headers={"Host": host})
            assert answer.status in (400, 421), host
        for host in ("console.example.com:8090", "LOCALHOST", "127.0.0.1:1", "[::1]"):
            assert asked(console, "GET", "/api/v1/rollouts", headers={"Host": host}).status == 200, host
        for headers in (
            {"Origin": "http://evil.test"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answer = asked(console, "POST", path, document=wanted, headers=headers)
            assert said(answer) == (403, "foreign_origin"), headers
        # A form of another page can send this type without asking.
        plain = {"Content-Type": "text/plain"}
        assert asked(console, "POST", path, document=wanted, headers=plain).status == 415
        seen = asked(console, "GET", "/api/v1/rollouts", headers={"Sec-Fetch-Site": "cross-site"})
        assert said(seen) == (403, "foreign_origin")
        assert asked(console, "GET", "/healthz", headers={"Host": "evil.test"}).status == 200
        assert requests(root) == []
        own = {"Origin": "http://{}:{}".format(*console.admin), "Sec-Fetch-Site": "same-origin"}
        assert asked(console, "POST", path, document=wanted, headers=own).status == 202


def test_a_proxy_names_the_users_and_nobody_else_may_connect(
    start_broker: StartBroker, root: Path, tmp_path: Path
) -> None:
    broker = {"admin": admin_of(start_broker())}
    by = {"header": "X-Forwarded-User", "operators": ["ann@example.com"], "viewers": ["ben"]}
    path, wanted = f"/api/v1/rollouts/{ACTION}/requests", {"kind": "pause"}
    here = settings(root, broker, sign_in={**by, "header_from": ["127.0.0.0/8"]})
    with FleetConsole(tmp_path, here) as console:
        assert said(asked(console, "GET", "/api/v1/rollouts")) == (401, "unauthenticated")
        for user, look, act in (
            ("ann@example.com", 200, 202),
            ("ben", 200, 403),
            ("eve", 403, 403),
            ("\u00e9\u0081", 401, 401),
        ):
            headers = {"X-Forwarded-User": user}
            assert asked(console, "GET", "/api/v1/rollouts", headers=headers).status == look, user
            assert asked(console, "POST", path, document=wanted, headers=headers).status == act, user
        assert asked(console, "POST", "/api/v1/session", document={"user": "a", "password": "b"}).status == 400
        assert [(row["by"], row["confirmed_by"]) for row in requests(root)] == [("ann@example.com", None)]
    elsewhere = settings(root, broker, sign_in={**by, "header_from": ["10.0.0.0/8"]})
    with FleetConsole(tmp_path, elsewhere) as console:
        for path in ("/", "/api/v1/rollouts", "/healthz"):
            answer = asked(console, "GET", path, headers={"X-Forwarded-User": "ann@example.com"})
            assert said(answer) == (403, "permission_denied"), path


def test_with_a_certificate_it_serves_https_and_other_machines_need_users(
    start_broker: StartBroker, root: Path, tmp_path: Path
) -> None:
    files = sign(new_authority(tmp_path, "ca"), "console")
    tls = {"cert": f"file:{files.cert}", "key": f"file:{files.key}"}
    given = settings(root, {"admin": admin_of(start_broker())}, tls=tls, listen="0.0.0.0:0")
    with FleetConsole(tmp_path, given) as console:
        assert console.address.startswith("https://0.0.0.0:")
        trusted = ssl.create_default_context(cafile=files.ca)
        answer = asked(console, "GET", "/api/v1/console", tls=trusted)
        assert (said(answer), "has no users" in answer.document["message"]) == ((403, "permission_denied"), True)


def test_consoles_on_two_ports_of_one_host_leave_the_cookies_of_each_other_alone(
    console: FleetConsole, signed: Signed
) -> None:
    """Browsers send the cookies of a host to all of its ports."""
    proof = {"user": "viewer", "password": signed.passwords["viewer"]}
    jar = {}
    for host, name in (
        ("localhost", "headwater-console"),
        ("localhost:8090", "headwater-console-8090"),
        ("[::1]:8091", "headwater-console-8091"),
    ):
        answer = asked(console, "POST", "/api/v1/session", document=proof, headers={"Host": host})
        jar[host], _, _ = answer.headers["set-cookie"].partition(";")
        assert jar[host].partition("=")[0] == name

    def brokers(host: str, cookies: str) -> int:
        return asked(console, "GET", "/api/v1/brokers", headers={"Host": host, "Cookie": cookies}).status

    every = "; ".join(jar.values())
    assert [(brokers(host, own), brokers(host, every)) for host, own in jar.items()] == [(200, 200)] * 3
    assert brokers("localhost:8090", jar["localhost"]) == 401
    # Signing out at one port, with the cookies of all, ends the session there.
    answer = asked(console, "DELETE", "/api/v1/session", headers={"Host": "localhost:8090", "Cookie": every})
    assert answer.headers["set-cookie"].startswith("headwater-console-8090=; ")
    assert [brokers(host, every) for host in jar] == [200, 401, 200]


def test_with_tls_the_cookie_is_for_this_host_alone(signed: Signed, root: Path, tmp_path: Path) -> None:
    files = sign(new_authority(tmp_path, "ca"), "console")
    tls = {"cert": f"file:{files.cert}", "key": f"file:{files.key}"}
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(signed.broker)}, tls=tls)) as console:
        trusted = ssl.create_default_context(cafile=files.ca)
        proof = {"user": "viewer", "password": signed.passwords["viewer"]}
        answer = asked(console, "POST", "/api/v1/session", document=proof, tls=trusted)
        assert answer.headers["set-cookie"].startswith(f"__Host-headwater-console-{console.admin[1]}=")
        assert "; Secure" in answer.headers["set-cookie"]


def test_a_session_ends_when_the_broker_no_longer_knows_the_user(
    console: FleetConsole, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleet_console import callers
    from fleet_console.callers import Callers, Turned
    from fleet_console.settings import ConsoleSettings

    monkeypatch.setattr(callers, "ASK_AGAIN_S", 0.0)
    given = ConsoleSettings.model_validate({"brokers": [{"admin": admin_of(signed.broker)}]})
    door = Callers(given)
    _, cookie = door.sign_in({}, {"user": "viewer", "password": signed.passwords["viewer"]})
    value = cookie.partition(";")[0].partition("=")[2]
    assert door.who({}, value).user == "viewer"
    signed.broker.kill()
    assert door.who({}, value).user == "viewer", "a broker that does not answer ends no session"
    signed.broker.start()
    with pytest.raises(Turned, match="sign in"):
        door.who({}, value)


def test_of_two_names_from_a_proxy_none_counts_and_a_name_may_have_any_letters(
    start_broker: StartBroker, root: Path, tmp_path: Path
) -> None:
    by = {"header": "X-Forwarded-User", "operators": ["\u00e9va"], "header_from": ["127.0.0.1"]}
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(start_broker())}, sign_in=by)) as console:
        name = "\u00e9va".encode().decode("latin-1")
        assert asked(console, "GET", "/api/v1/rollouts", headers={"X-Forwarded-User": name}).status == 200
        head = "GET /api/v1/rollouts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        both = f"{head}X-Forwarded-User: {name}\r\nX-Forwarded-User: eve\r\n\r\n"
        with socket.create_connection(console.admin, timeout=60) as connection:
            connection.sendall(both.encode("latin-1"))
            assert connection.recv(100).startswith(b"HTTP/1.1 401")


def test_a_connection_without_a_whole_request_is_closed(start_broker: StartBroker, root: Path, tmp_path: Path) -> None:
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(start_broker())})) as console:
        for begun in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(console.admin, timeout=60) as connection:
                connection.sendall(begun)
                assert connection.recv(100) == b""


def test_ctrl_c_ends_it_at_once_also_with_an_open_stream(start_broker: StartBroker, root: Path, tmp_path: Path) -> None:
    with FleetConsole(tmp_path, settings(root, {"admin": admin_of(start_broker())})) as console:
        with stream(console, "/api/v1/live") as answer:  # type: ignore[arg-type]
            next(_events(answer))
            assert console.interrupt() in (0, 130)
        assert "Traceback" not in console.log.read_text()


def test_what_it_cannot_use_is_said_in_one_sentence(root: Path, tmp_path: Path, start_broker: StartBroker) -> None:
    taken = "{}:{}".format(*start_broker().admin)
    for arguments, sentence in (
        (("--listen", taken), f"cannot listen on {taken}"),
        (("--listen", "0.0.0.0:0"), "can be reached from other machines"),
        (("--admin", "ftp://x"), "is not an admin address"),
        (("--config", str(tmp_path / "none.yaml")), "cannot read the settings"),
    ):
        done = headwater("console", "--root", str(root), *arguments)
        assert (done.code > 0, sentence in done.err, done.err.count("\n")) == (True, True, 1), done.err


def _events(answer: Any) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)
