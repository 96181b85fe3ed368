"""What a foreign page, a stranger and one stream too many get from the admin address of the console."""

from __future__ import annotations

import re
import ssl
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.browser import WAIT_S
from support.console_http import Answered, ask, stream
from support.console_users import Signed, start_signed
from support.paho_client import PahoClient
from support.programs import StartBroker
from support.tls_files import new_authority, sign

from broker_edge.torture.process import BrokerProcess

STREAMS = 16
"""`admin.max_streams` unless it is set."""
PATHS = (
    "/", "/api/v1/console", "/api/v1/live", "/api/v1/live/history", "/api/v1/topics", "/api/v1/groups",
    "/api/v1/access?access=publish&topic=a", "/api/v1/trace?at=0:0", "/api/v1/segments",
    "/api/v1/events", "/api/v1/client?id=a",
)  # fmt: skip
POLICY = {
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'",
    "base-uri 'none'", "form-action 'none'",
}  # fmt: skip


@pytest.fixture(scope="module")
def signed(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return start_signed(start_broker, tmp_path_factory.mktemp("users"))


def sign_in(signed: Signed, name: str, password: str | None = None, **headers: str) -> Answered:
    document = {"user": name, "password": password or signed.passwords[name]}
    return ask(signed.broker, "POST", "/api/v1/session", document=document, headers=headers)


def cookie(answer: Answered) -> str:
    """What a browser sends back."""
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize("path", PATHS)
def test_another_host_is_refused(broker: BrokerProcess, path: str) -> None:
    answer = ask(broker, "GET", path, headers={"Host": "console.example"})
    assert (answer.status, answer.document["error"]) == (421, "misdirected_request")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://console.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_foreign_page_cannot_sign_in_or_out(signed: Signed, headers: dict[str, str]) -> None:
    refused = [
        sign_in(signed, "operator", **headers),
        ask(signed.broker, "DELETE", "/api/v1/session", headers=headers),
    ]
    for answer in refused:
        assert (answer.status, answer.document["error"]) == (403, "foreign_origin")
        assert "set-cookie" not in answer.headers


def test_the_policy_of_the_page_is_strict(broker: BrokerProcess) -> None:
    answer = ask(broker, "GET", "/")
    assert answer.status == 200
    policy = {one.strip() for one in answer.headers["content-security-policy"].split(";")}
    assert policy >= POLICY, answer.headers
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_the_page_is_for_everybody_and_data_is_not(signed: Signed) -> None:
    page = ask(signed.broker, "GET", "/")
    assert page.status == 200
    files = re.findall(r'(?:src|href)="(ui/[^"]+)"', page.body.decode())
    assert files
    for file in files:
        assert ask(signed.broker, "GET", f"/{file}").status == 200, file
    for path in PATHS[1:]:
        plain = ask(signed.broker, "GET", path)
        of_the_page = ask(signed.broker, "GET", path, headers={"X-Headwater": "1"})
        assert (plain.status, of_the_page.status) == (401, 401), path
        # A browser would ask for a password by itself.
        assert ("www-authenticate" in plain.headers, "www-authenticate" in of_the_page.headers) == (True, False), path


def test_a_session_is_a_cookie_that_scripts_and_other_sites_cannot_have(signed: Signed) -> None:
    answer = sign_in(signed, "operator")
    assert (answer.status, answer.document["user"], answer.document["operator"]) == (200, "operator", True)
    name, *flags = [part.strip() for part in answer.headers["set-cookie"].split(";")]
    own = f"headwater-session-{signed.broker.admin[1]}="
    assert name.startswith(own)
    assert len(name.partition("=")[2]) >= 43, "fewer than 256 bits"
    assert {"httponly", "samesite=strict", "path=/"} <= {flag.lower() for flag in flags}
    assert not [flag for flag in flags if flag.lower().startswith("domain")]
    assert cookie(sign_in(signed, "operator")) != name
    assert ask(signed.broker, "GET", "/api/v1/console", headers={"Cookie": name}).document["user"] == "operator"
    # Signing out ends the session, and a cookie that somebody made up opens none.
    assert ask(signed.broker, "DELETE", "/api/v1/session", headers={"Cookie": name}).status in (200, 204)
    for gone in (name, own + "A" * 43):
        assert ask(signed.broker, "GET", "/api/v1/console", headers={"Cookie": gone}).status == 401


def test_with_tls_the_cookie_is_bound_to_this_host(start_broker: StartBroker, tmp_path: Path) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", names="DNS:localhost")
    settings = {"listeners.admin.tls.cert": str(files.cert), "listeners.admin.tls.key": str(files.key)}
    signed = start_signed(start_broker, tmp_path / "users", settings, name="tls")
    document = {"user": "viewer", "password": signed.passwords["viewer"]}
    tls = ssl.create_default_context(cafile=str(files.ca))
    answer = ask(signed.broker, "POST", "/api/v1/session", document=document, tls=tls)
    assert answer.status == 200
    name, *flags = [part.strip().lower() for part in answer.headers["set-cookie"].split(";")]
    assert name.startswith(f"__host-headwater-session-{signed.broker.admin[1]}=")
    assert {"httponly", "samesite=strict", "path=/", "secure"} <= set(flags)


def test_a_wrong_password_gets_a_sentence_and_no_cookie(signed: Signed) -> None:
    for name in ("operator", "nobody"):
        answer = sign_in(signed, name, "wrong", **{"X-Headwater": "1"})
        assert answer.status == 401
        assert " " in answer.document["message"]
        assert not {"set-cookie", "www-authenticate"} & set(answer.headers)


def test_one_who_looks_cannot_act_and_payloads_need_the_right(signed: Signed) -> None:
    with signed.device("kept") as device:
        device.publish("devices/kept/telemetry", b"secret")
        viewer = {"Cookie": cookie(sign_in(signed, "viewer"))}
        [kept] = ask(signed.broker, "GET", "/api/v1/topics?contains=kept", headers=viewer).document["topics"]
        for name, is_told in (("viewer", True), ("blind", False)):
            session = {"Cookie": cookie(sign_in(signed, name))}
            traced = ask(signed.broker, "GET", f"/api/v1/trace?at={kept['name']}:{kept['first']}", headers=session)
            record = traced.document["record"]
            assert ("value" in record, record.get("is_hidden", False)) == (is_told, not is_told)
            told = ask(signed.broker, "GET", "/api/v1/console", headers=session).document
            assert (told["operator"], told["viewer"]) == (False, True)
            for path in ("/api/v1/clients/kept", "/api/v1/client?id=kept"):
                assert ask(signed.broker, "DELETE", path, headers=session).status == 403
            found = [
                ask(
                    signed.broker, "GET", f"/api/v1/records?partition={one['partition']}&from=earliest", headers=session
                )
                for one in told["partitions"]
            ]
            assert any(b"c2VjcmV0" in answer.body for answer in found) == is_told, name
        assert device.publish("devices/kept/telemetry", b"still here").code in (0, 16)


def test_one_stream_too_many_is_told_and_devices_go_on(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(stream(broker, "/api/v1/live")) for _ in range(STREAMS)]
        for one in streams:
            assert (one.status, one.getheader("Content-Type", "").partition(";")[0]) == (200, "text/event-stream")
            assert one.readline().strip()
        for path in ("/api/v1/live", "/api/v1/tail?filter=%23"):
            refused = ask(broker, "GET", path)
            assert (refused.status, refused.document["error"]) == (503, "unavailable")
            assert "max_streams" in refused.document["message"]
        with PahoClient(broker.mqtt[1], version="5", client_id="device") as device:
            assert device.publish("devices/device/telemetry", b"1").code in (0, 16)
    # Their places are free again.
    deadline = time.monotonic() + WAIT_S
    while True:
        with stream(broker, "/api/v1/live") as one:
            if one.status == 200:
                break
        assert time.monotonic() < deadline, "the streams have ended, but their places are not free"
