"""What a fleet's console takes from a broker: nonsense of one is that broker's trouble, and nobody else's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from broker_edge.admin import Admin
from broker_edge.errors import BrokerError
from fleet_console.brokers import Fleet, Watcher, alerts, cluster_of, stats_of, status_of, summed
from fleet_console.settings import ConsoleMember

GOOD = {"sample": {"publishes_in": 3, "ack_p99_s": 0.5}, "alerts": []}
GAPS = [{"start": 0, "end": 9, "reason": "retention"}, {"start": 12, "end": 14, "reason": "damage"}]
STATUS = {"version": "1", "log_id": "l", "partitions": [{"gaps": GAPS, "gaps_left_out": 1, "damaged_bytes": 7}]}


class Odd(BaseHTTPRequestHandler):
    """Answers with what a test has put into `answers`: a document by path; an event of the stream as text."""

    answers: dict[str, Any]
    status = 200

    def do_GET(self) -> None:
        found = self.answers.get(self.path)
        self.send_response(404 if found is None else self.status)
        is_stream = self.path == "/api/v1/live" and self.status == 200
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.end_headers()
        text = json.dumps(found if found is not None else {"error": "not_found", "message": "no"})
        self.wfile.write(f"event: stats\ndata: {text}\n\n".encode() if is_stream else text.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def odd() -> Iterator[tuple[Watcher, type[Odd]]]:
    handler = type("Handler", (Odd,), {"answers": {"/api/v1/live": GOOD, "/api/v1/status": STATUS}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        member = ConsoleMember("odd", Admin(f"http://127.0.0.1:{server.server_port}", timeout_s=5))
        yield Watcher(member), handler
        server.shutdown()


def once(watcher: Watcher) -> dict[str, Any]:
    watcher.look()
    return watcher.row()


def test_what_a_broker_says_is_shown(odd: tuple[Watcher, type[Odd]]) -> None:
    watcher, _ = odd
    row = once(watcher)
    assert (row["version"], row["lost_ranges"], row["damaged_bytes"]) == ("1", 2, 7)
    assert (row["sample"]["publishes_in"], row["cluster"]) == (3, None)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/api/v1/live", {"sample": None, "alerts": []}),
        ("/api/v1/live", {"sample": {}, "alerts": "abc"}),
        ("/api/v1/live", {"sample": [1], "alerts": []}),
        ("/api/v1/status", {"partitions": "abc"}),
        ("/api/v1/status", {"partitions": [1]}),
        ("/api/v1/cluster", {}),
        ("/api/v1/cluster", {"role": 7}),
    ],
)
def test_what_is_not_understood_is_the_trouble_of_that_broker(
    odd: tuple[Watcher, type[Odd]], path: str, answer: object
) -> None:
    watcher, handler = odd
    handler.answers[path] = answer
    row = once(watcher)
    assert (row["state"], "does not understand" in row["trouble"]) == ("away", True)
    handler.answers |= {"/api/v1/live": GOOD, "/api/v1/status": STATUS}
    handler.answers.pop("/api/v1/cluster", None)
    assert once(watcher)["sample"]["publishes_in"] == 3
    fleet = Fleet([watcher.member])
    json.dumps([fleet.stats(), fleet.history()], allow_nan=False)


def test_a_broker_that_refuses_the_console_is_not_away(odd: tuple[Watcher, type[Odd]]) -> None:
    watcher, handler = odd
    handler.status = 401
    row = once(watcher)
    assert row["state"] == "refused"
    (alert,) = alerts([row])
    assert (alert["name"], alert["broker"], "viewer" in alert["remedy"]) == ("BrokerRefuses", "odd", True)
    handler.status = 200
    assert once(watcher)["state"] in ("live", "away")


def test_a_node_that_does_not_lead_is_on_standby(odd: tuple[Watcher, type[Odd]]) -> None:
    watcher, handler = odd
    handler.status = 503
    handler.answers["/api/v1/cluster"] = {"role": "follower", "node": "n2", "leader": "n1", "in_sync": ["n1"]}
    # The node says 503 on the stream, and who leads at another path.
    original = handler.do_GET

    def answer(self: Odd) -> None:
        self.status = 200 if self.path == "/api/v1/cluster" else 503
        original(self)

    handler.do_GET = answer  # type: ignore[method-assign]
    row = once(watcher)
    assert (row["state"], row["cluster"]["leader"], row["trouble"]) == ("standby", "n1", None)


def test_numbers_that_json_has_not_are_none_and_texts_are_bounded() -> None:
    found = stats_of({"sample": {"a": float("nan"), "b": float("inf"), "c": "x", "d": True, "e": 2}, "alerts": []})
    assert found.sample == {"a": None, "b": None, "c": None, "d": None, "e": 2}
    many = stats_of({"sample": {}, "alerts": [{"name": "n" * 9_999}] * 500})
    assert (len(many.alerts), len(many.alerts[0]["name"])) == (100, 1_000)
    assert status_of({"partitions": [{}, {"gaps": 3}, {"gaps": [1, {}]}]})["lost_ranges"] == 1
    assert cluster_of({"role": "leader", "lag": {"n": float("nan")}})["lag"] == {"n": None}
    with pytest.raises(BrokerError):
        stats_of({})


@pytest.mark.parametrize(("reason", "lost"), [("retention", 0), ("purge", 0), ("damage", 1), ("of a later version", 1)])
def test_a_gap_that_was_wanted_is_no_loss(reason: str, lost: int) -> None:
    partitions = [{"gaps": [{"start": 0, "end": 9, "reason": reason}]}, {"gaps": []}]
    assert status_of({"partitions": partitions})["lost_ranges"] == lost


def test_sums_are_of_the_brokers_that_answer() -> None:
    live = {"state": "live", "sample": {"publishes_in": 2, "ack_p99_s": 0.1}}
    slow = {"state": "live", "sample": {"publishes_in": 3, "ack_p99_s": 0.4}}
    away = {"state": "away", "sample": {"publishes_in": 100}}
    found = summed([live, slow, away])
    assert (found["publishes_in"], found["ack_p99_s"], found["brokers"], found["brokers_live"]) == (5, 0.4, 3, 2)
    assert found["sessions"] is None
