"""What Prometheus makes of `/metrics`: both formats, the checks of promtool, and the alerts of deploy/prometheus."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import yaml
from support.programs import StartBroker, program, run

from broker_edge.torture.process import BrokerProcess

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def scraped(broker: BrokerProcess, accept: str | None = None) -> tuple[str, str]:
    """Content type and text."""
    host, port = broker.admin
    request = urllib.request.Request(f"http://{host}:{port}/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["content-type"], answer.read().decode()


def promtool(*words: str, stdin: str = "") -> str:
    """Its output; fails if it finds anything."""
    done = run(program("promtool", "prometheus"), *words, stdin=stdin)
    assert done.code == 0, done.out + done.err
    return done.out + done.err


def names(text: str) -> set[str]:
    """Of samples."""
    return {found[0] for line in text.splitlines() if (found := re.match(r"[a-z_]+", line))}


def test_both_formats_have_the_same_samples_and_promtool_finds_nothing(start_broker: StartBroker) -> None:
    broker = start_broker()
    kind, text = scraped(broker)
    assert kind == TEXT
    assert promtool("check", "metrics", stdin=text) == ""
    kind, open_text = scraped(broker, PROMETHEUS)
    assert (kind, open_text.splitlines()[-1]) == (OPEN_METRICS, "# EOF")
    assert names(text) == names(open_text)
    # Each family has a help in both.
    for given in (text, open_text):
        kinds = re.findall(r"^# TYPE (\S+) ", given, re.MULTILINE)
        assert re.findall(r"^# HELP (\S+) \S", given, re.MULTILINE) == kinds


def test_the_build_the_process_and_counters_are_there_from_the_start(start_broker: StartBroker) -> None:
    _, text = scraped(start_broker())
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    (build,) = [name for name in values if name.startswith("headwater_build_info")]
    assert re.fullmatch(r'headwater_build_info\{version="\d+\.\d+\.\d+"\}', build)
    assert float(values["process_resident_memory_bytes"]) > 1e6
    assert 0 < float(values["process_open_fds"]) < float(values["process_max_fds"])
    assert float(values["process_start_time_seconds"]) > 1.7e9
    counted = {name for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE) if kind == "counter"}
    assert counted <= names(text)
    for name in (
        'headwater_auth_denied_total{reason="bad_token"}',
        'headwater_admin_requests_total{status="5xx"}',
        'headwater_mqtt_refusals_total{packet="connack",reason="not_authorized"}',
    ):
        assert values[name] == "0"


def test_the_alerts_are_right_and_tested() -> None:
    rules = RULES / "headwater.rules.yml"
    assert "SUCCESS" in promtool("check", "rules", str(rules))
    assert "SUCCESS" in promtool("test", "rules", str(RULES / "headwater.test.yml"))
    alerts = [rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    tests = yaml.safe_load((RULES / "headwater.test.yml").read_text())["tests"]
    assert [[case["alertname"] for case in test["alert_rule_test"]] for test in tests] == [alerts, alerts]
