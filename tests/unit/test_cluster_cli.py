"""`headwater cluster status` and `elect` against three admin listeners in memory: what they put together and ask for,
and their exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headwater_cli import main

PARTITIONS = ("control-0", "telemetry-0")


class Site:
    """Reports by node, each served at its own port. A node without a report refuses connections."""

    def __init__(self) -> None:
        self.reports: dict[str, dict[str, Any]] = {}
        self.at: dict[str, str] = {}
        self.elects: list[tuple[str, str]] = []
        self.obeys = True
        self.clock_ahead_ms: dict[str, int | None] = {}

    def report(self, node: str, *, leader: str | None = "n1", epoch: int = 7, synced: int = 10) -> None:
        role = "leader" if node == leader else "follower"
        marks = {"log_start": 0, "end": synced, "synced": synced, "high_watermark": 10}
        self.reports[node] = {
            "cluster": "c",
            "node": node,
            "role": role,
            "leader": leader,
            "epoch": epoch,
            "in_sync": ["n1", "n2", "n3"],
            "replicas": ["n1", "n2", "n3"],
            "trust": "sound",
            "partitions": [{"name": name, "number": at, **marks} for at, name in enumerate(PARTITIONS)],
        }

    def answer(self, node: str) -> dict[str, Any] | None:
        report = self.reports.get(node)
        if report is None:
            return None
        places = {
            name: {
                "admin": address,
                "mqtt": f"{name}:1883",
                "flight": f"grpc://{name}:8815",
                "clock_ahead_ms": self.clock_ahead_ms.get(name),
            }
            for name, address in self.at.items()
        }
        return {"nodes": places, **report}

    @contextmanager
    def serve(self, node: str) -> Iterator[None]:
        site = self

        class Listener(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = site.answer(node) if self.path == "/api/v1/cluster" else None
                body = json.dumps(found or {"error": "not_found", "message": "this broker is alone"}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                site.elects.append((node, self.path))
                to = self.path.partition("?node=")[2]
                if site.obeys:
                    for name in site.reports:
                        site.report(name, leader=to, epoch=8)
                body = json.dumps({"from": node, "to": to, "epoch": 7}).encode()
                self.send_response(202)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on stderr."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.at[node] = f"http://127.0.0.1:{server.server_port}"
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with ExitStack() as stack:
        for node in ("n1", "n2", "n3"):
            stack.enter_context(made.serve(node))
            made.report(node)
        yield made


def _status(site: Site, capsys: pytest.CaptureFixture[str], *more: str, ask: str = "n2") -> tuple[int, str, str]:
    code = main(["cluster", "status", "--admin", site.at[ask], *more])
    out, err = capsys.readouterr()
    return code, out, err


def test_one_node_names_the_others(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.report("n3", synced=8)
    code, out, err = _status(site, capsys)
    assert code == 0
    assert out.splitlines()[1:] == [
        "n1\tleader\t7\tyes\tsound\t20\t20\t20\t0\tn1:1883\tgrpc://n1:8815",
        "n2\tfollower\t7\tyes\tsound\t20\t20\t20\t0\tn2:1883\tgrpc://n2:8815",
        "n3\tfollower\t7\tyes\tsound\t16\t16\t20\t4\tn3:1883\tgrpc://n3:8815",
    ]
    assert err == "n1 leads in epoch 7; in sync: n1, n2, n3\n"


def test_the_answer_of_the_highest_epoch_counts(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.report("n3", leader="n3", epoch=8)
    code, out, _ = _status(site, capsys, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["leader"], found["epoch"], found["whole"]) == ("n3", 8, True)
    assert found["nodes"]["n1"]["epoch"] == 7


@pytest.mark.parametrize(
    ("ahead_ms", "says"),
    [
        (3_600_000, "n2: its clock is 3600 s ahead of that of n1; set both by NTP"),
        (-3_600_000, "n2: its clock is 3600 s behind that of n1; set both by NTP"),
        (10_000, None),
        (None, None),
    ],
)
def test_a_clock_that_is_far_off_is_said_and_fails_nothing(
    site: Site, capsys: pytest.CaptureFixture[str], ahead_ms: int | None, says: str | None
) -> None:
    site.clock_ahead_ms["n2"] = ahead_ms
    code, _, err = _status(site, capsys)
    said = [line for line in err.splitlines() if "clock" in line]
    assert (code, said) == (0, [says] if says else [])


def test_a_node_that_does_not_answer_is_named_and_fails_the_command(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    del site.at["n3"]
    code, out, err = _status(site, capsys)
    assert code == 1
    assert "n3\tsilent\t-\tyes" in out
    assert "n3: it does not run" in err
    site.at["n3"] = "http://127.0.0.1:9"
    assert "n3: cannot connect to http://127.0.0.1:9" in _status(site, capsys)[2]


def test_a_set_that_lacks_a_node_and_a_cluster_without_a_leader_fail_the_command(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.reports["n1"]["in_sync"] = ["n1", "n2"]
    assert _status(site, capsys)[0] == 1
    for node in ("n1", "n2", "n3"):
        site.report(node, leader=None)
    code, out, err = _status(site, capsys)
    assert code == 1
    assert err == "nobody leads in epoch 7; in sync: n1, n2, n3\n"
    assert out.splitlines()[1].split("\t")[8] == "-", "without a leader no lag is known"


def test_the_next_address_is_asked_when_one_does_not_answer(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["cluster", "status", "--admin", "http://127.0.0.1:9", "--admin", site.at["n1"]])
    assert code == 0
    assert "n1 leads" in capsys.readouterr().err


def test_a_broker_alone_says_so(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    del site.reports["n2"]
    code, _, err = _status(site, capsys)
    assert code == 4
    assert "this broker is alone" in err


def test_an_answer_of_something_else_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.reports["n2"]["epoch"] = "seven"
    code, _, err = _status(site, capsys)
    assert code == 1
    assert "does not say what a node of a cluster says" in err


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_USER", "operator")
    monkeypatch.setenv("HEADWATER_PASSWORD_FROM", "env:SECRET_OF_TEST")
    monkeypatch.setenv("SECRET_OF_TEST", "x")


def test_a_password_does_not_go_in_clear_to_an_address_that_a_node_tells(
    site: Site, password: None, capsys: pytest.CaptureFixture[str]
) -> None:
    # An address for documentation (RFC 5737): nothing is there.
    site.at["n3"] = "http://192.0.2.3:8080"
    code, out, err = _status(site, capsys)
    assert code == 1
    assert out.splitlines()[3].startswith("n3\tsilent")
    assert "n3: it is not asked, because http://192.0.2.3:8080 has no TLS" in err
    # This machine is no network, and the user may say that the way is safe.
    assert "n1:" not in err
    _, _, err = _status(site, capsys, "--admin", "http://192.0.2.3:8080", "--timeout", "0.2")
    assert "it is not asked" not in err


def test_without_a_password_every_address_is_asked(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.at["n3"] = "http://192.0.2.3:8080"
    _, _, err = _status(site, capsys, "--timeout", "0.2")
    assert "n3:" in err
    assert "it is not asked" not in err


def _elect(site: Site, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["cluster", "elect", "--admin", site.at["n2"], *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_leader_is_asked_and_the_new_one_awaited(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert _elect(site, capsys, "n3") == (0, "", "n3 leads in epoch 8; in sync: n1, n2, n3\n")
    assert site.elects == [("n1", "/api/v1/cluster/leader?node=n3")]
    code, out, _ = _elect(site, capsys, "n3", "--json")
    assert (code, json.loads(out)["leader"]) == (0, "n3")
    assert len(site.elects) == 1, "it leads already"


def test_a_node_that_does_not_take_over_in_time_is_told(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.obeys = False
    code, _, err = _elect(site, capsys, "n3", "--timeout", "0.3")
    assert code == 124
    assert "n3 does not lead after 0.3 s" in err


def test_who_cannot_be_elected_is_told_before_anybody_is_asked(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _elect(site, capsys, "n9")
    assert code == 4
    assert "n9 is no node of this cluster; its nodes are n1, n2, n3" in err
    for node in ("n1", "n2", "n3"):
        site.report(node, leader=None)
    code, _, err = _elect(site, capsys, "n3")
    assert code != 0
    assert "nobody leads" in err
    for node in ("n1", "n2", "n3"):
        site.report(node)
    site.at["n1"] = "http://127.0.0.1:9"
    assert "cannot connect to http://127.0.0.1:9" in _elect(site, capsys, "n3")[2]
    assert site.elects == []
