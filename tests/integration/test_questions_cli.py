"""`headwater access`, `trace`, `log segments` and `clients history` against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import flight
from support.console_users import ACL, DENIED, Signed, start_signed
from support.paho_client import PahoClient
from support.programs import Ended, StartBroker, headwater

from broker_edge import Client, Commit, Credentials, RefusedError, Row
from broker_edge.torture.process import BrokerProcess

TOPIC = "devices/meter-7/telemetry"


def admin_of(broker: BrokerProcess) -> str:
    return "http://{}:{}".format(*broker.admin)


@pytest.fixture
def signed(start_broker: StartBroker, tmp_path: Path) -> Signed:
    return start_signed(start_broker, tmp_path)


def ask_as(signed: Signed, name: str, *words: str) -> Ended:
    environment = {"HEADWATER_USER": name, "HEADWATER_PASSWORD_FROM": "env:PW", "PW": signed.passwords[name]}
    return headwater(*words, "--admin", admin_of(signed.broker), environment=environment)


def test_access_says_which_line_decides_and_denied_has_its_exit_code(signed: Signed) -> None:
    line = ACL.splitlines().index(DENIED) + 1
    denied = ask_as(signed, "viewer", "access", "--access", "publish", "--topic", "secret/plan", "--for-user", "device")
    assert (denied.code, denied.err) == (1, "")
    assert denied.lines[0].startswith("not allowed\t")
    assert denied.lines[1] == f"line {line}\t{DENIED}"
    assert denied.lines[2].startswith("ACL file\t/")
    words = ("--access", "subscribe", "--topic", "devices/+/actions", "--for-user", "device", "--client-id", "-pump")
    allowed = ask_as(signed, "viewer", "access", *words, "--json")
    assert allowed.code == 0
    (document,) = allowed.documents
    assert document["allowed"] is True
    assert document["line"]["rule"] == "topic readwrite #"
    assert Path(document["file"]).read_text() == ACL


def test_what_is_no_question_and_who_may_not_ask_is_said_in_a_sentence(signed: Signed) -> None:
    question = ("access", "--access", "publish")
    wrong = ask_as(signed, "viewer", *question, "--topic", "a/#")
    assert (wrong.code, wrong.out) == (4, "")
    assert "topic" in wrong.err
    refused = ask_as(signed, "device", *question, "--topic", "a")
    assert (refused.code, refused.out) == (4, "")
    assert "viewer" in refused.err
    usage = headwater("access", "--access", "write", "--topic", "a")
    assert usage.code == 2
    away = headwater(*question, "--topic", "a", "--admin", "127.0.0.1:1")
    assert away.code == 3


def test_a_record_is_traced_to_the_session_that_has_passed_it(broker: BrokerProcess) -> None:
    admin = admin_of(broker)
    with PahoClient(broker.mqtt[1], version="5", client_id="watcher") as watcher:
        watcher.subscribe("devices/+/telemetry")
        with PahoClient(broker.mqtt[1], version="5", client_id="meter-7") as meter:
            meter.publish(TOPIC, b"20.5\x1b[2J")
        watcher.receive()
        name = headwater("topics", "--json", "--server", "grpc://{}:{}".format(*broker.flight)).documents[0]["topics"]
        first, number = name[0]["first"], name[0]["partition"]
        at = f"{name[0]['name']}:{first}"
        with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60) as flight:
            flight.commit("early", reader_epoch=1, initial={number: first})
            flight.commit("narrow", reader_epoch=1, initial={number: first}, offsets={number: Commit(first, first + 1)})
        shown = headwater("trace", at, "--admin", admin)
        told = headwater("trace", at, "--admin", admin, "--json").documents[0]
    assert shown.code == 0, shown.err
    lines = shown.lines
    assert lines[0] == f"place\t{at}"
    assert lines[1].startswith("state\there\t")
    assert f"topic\t{TOPIC}" in lines
    assert "\x1b" not in shown.out, "a terminal does not do what a payload says"
    assert any(line.startswith("watcher\t") for line in lines)
    for group in (f"early\tnot yet\t{first}", f"narrow\tpassed, no match\t{first + 1}"):
        assert any(line.startswith(group) for line in lines), lines
    assert told["sessions"][0]["client_id"] == "watcher"
    later = headwater("trace", f"{at}999", "--admin", admin)
    assert later.lines[1].startswith("state\tnot_yet")
    for wrong, code, word in [("telemetry-0", 4, "telemetry-0:4711"), ("nothing-9:1", 4, "nothing-9")]:
        refused = headwater("trace", wrong, "--admin", admin)
        assert (refused.code, refused.out) == (code, "")
        assert word in refused.err


def test_without_the_right_to_replay_a_payload_stays_hidden(signed: Signed) -> None:
    with signed.device("press-1") as device:
        device.publish("devices/press-1/telemetry", b"a secret recipe")
    partitions = ask_as(signed, "viewer", "log", "segments", "--json").documents[0]["partitions"]
    names = [one["name"] for one in partitions if one["class"] == "telemetry" and one["high_watermark"] > 0]
    blind, open_ = (ask_as(signed, name, "trace", f"{names[0]}:0") for name in ("blind", "viewer"))
    assert "for users who may replay the topic" in blind.out
    assert "recipe" not in blind.out
    assert "a secret recipe" in open_.out


def test_segments_are_listed_and_a_limit_ends_the_list(broker: BrokerProcess) -> None:
    admin = admin_of(broker)
    all_ = headwater("log", "segments", "--json", "--admin", admin).documents[0]
    assert [one["name"] for one in all_["segments"]] == [one["name"] for one in all_["partitions"]]
    assert {one["state"] for one in all_["segments"]} == {"active"}
    two = headwater("log", "segments", "-n", "2", "--json", "--admin", admin).documents[0]
    assert two["segments"] == all_["segments"][:2]
    shown = headwater("log", "segments", "--partition", "telemetry-0", "--admin", admin)
    assert shown.code == 0, shown.err
    assert [line.split("\t")[0] for line in shown.lines] == ["partition", "telemetry-0", "partition", "telemetry-0"]
    nothing = headwater("log", "segments", "-p", "nothing-9", "--admin", admin)
    assert nothing.code == 4
    assert "nothing-9" in nothing.err


def test_the_history_of_a_client_is_printed_the_newest_first(broker: BrokerProcess) -> None:
    admin = admin_of(broker)
    with PahoClient(broker.mqtt[1], version="5", client_id="press-1"):
        kicked = headwater("clients", "kick", "press-1", "--admin", admin)
        assert kicked.code == 0, kicked.err
        document = headwater("clients", "history", "press-1", "--admin", admin, "--json").documents[0]
    whats = [one["what"] for one in document["events"]]
    assert whats.index("kicked") < whats.index("disconnected") < whats.index("connected")
    shown = headwater("clients", "history", "-n", "2", "--admin", admin)
    assert shown.lines[0].split("\t")[:4] == ["last", "client", "what", "reason"]
    assert len(shown.lines) == 3
    nothing = headwater("clients", "history", "nobody", "--admin", admin)
    assert (nothing.code, nothing.out) == (0, "")
    assert "no events of nobody" in nothing.err


def test_the_topic_of_a_refusal_is_in_the_history_and_among_the_refusals(signed: Signed) -> None:
    long = "secret/" + "\u00e9" * 30_000
    with signed.device("press-1") as device:
        device.publish("secret/plan", b"no")
        device.publish(long, b"no")
    with signed.device("press-2") as device:
        device.publish("secret/\u202egnp.exe", b"no")
    shown = ask_as(signed, "viewer", "clients", "history", "press-2")
    names, rows = shown.lines[0].split("\t"), [line.split("\t") for line in shown.lines[1:]]
    refused = next(dict(zip(names, row, strict=True)) for row in rows if "refused publish" in row)
    assert (refused["reason"], refused["user"]) == ("acl", "device")
    assert refused["topic"].startswith("secret/")
    assert "\u202e" not in shown.out, "a terminal does not do what a topic says"
    history = ask_as(signed, "viewer", "clients", "history", "press-1", "--json").documents[0]["events"]
    (event,) = [one for one in history if one["what"] == "refused"]
    assert (event["count"], event["is_topic_cut"]) == (2, True)
    assert long.startswith(event["topic"])
    assert len(event["topic"].encode()) in (255, 256)

    row = signed.refusals("device")
    (kind,) = [one for one in row["refused"] if (one["act"], one["reason"]) == ("publish", "acl")]
    assert (kind["count"], kind["client_id"], kind["is_client_id_cut"]) == (3, "press-2", False)
    assert (kind["topic"], kind["is_topic_cut"]) == ("secret/\u202egnp.exe", False)
    assert kind["last_us"] <= row["last_us"]


def test_a_topic_refused_over_flight_and_a_filter_are_kept_too(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", signed.passwords["device"])
    server = "grpc://{}:{}".format(*signed.broker.flight)
    with (
        Client(server, credentials=Credentials(user="device", password="env:PW")) as client,
        pytest.raises(RefusedError, match="may not publish"),
    ):
        client.produce([Row("secret/flight", b"no")])
    with signed.device("press-1") as device:
        device.subscribe("$share/g/secret/#")
    row = signed.refusals("device")
    kept = {(one["door"], one["act"]): (one["topic"], one["client_id"]) for one in row["refused"]}
    assert kept["mqtt", "subscribe"] == ("$share/g/secret/#", "press-1")
    assert kept["flight", "produce"] == ("secret/flight", None)


def test_a_flight_call_that_says_to_be_a_page_is_a_refusal(signed: Signed) -> None:
    """A page of the console may ask without credentials when it is opened; a program may not."""
    with flight.FlightClient("grpc://{}:{}".format(*signed.broker.flight)) as plain:
        options = flight.FlightCallOptions(headers=[(b"x-headwater", b"1")], timeout=30)
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(plain.do_action(flight.Action("topics", b"{}"), options))
    kept = {(one["door"], one["reason"]): one["count"] for one in signed.refusals(None)["refused"]}
    assert kept == {("flight", "no_credentials"): 1}
