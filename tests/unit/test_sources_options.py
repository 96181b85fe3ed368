"""Options of the source: accepted values, and that everything else is refused by name."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from broker_edge.access import BrokerAccess
from broker_edge.credentials import Credentials
from broker_edge.errors import OptionError
from broker_edge.tls import TlsReferences
from sources.access import access_options
from sources.offsets import Place
from sources.options import ONLY_STREAM, SourceOptions, parse_options

BASE = {"servers": "grpc://edge-1:8815", "subscribe": "devices/+/telemetry"}


def parsed(**more: str) -> SourceOptions:
    return parse_options({**BASE, **more})


def refused(**more: str) -> str:
    with pytest.raises(OptionError) as error:
        parsed(**more)
    return str(error.value)


def test_defaults_lose_nothing() -> None:
    options = parsed()
    assert options.starting.kind == "earliest"
    assert options.fail_on_data_loss
    assert options.max_offsets_per_trigger is None
    assert not options.include_headers


def test_names_are_taken_in_any_case_as_spark_gives_them() -> None:
    assert parsed(MAXOFFSETSPERTRIGGER="5", failondataloss="FALSE").max_offsets_per_trigger == 5


def test_lists_are_trimmed_sorted_and_free_of_repeats() -> None:
    options = parsed(servers="grpc://a:1, grpc://b:2", subscribe="b, a/#,b")
    assert options.servers == ("grpc://a:1", "grpc://b:2")
    assert options.filters == ("a/#", "b")


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("server", "servers"),
        ("topics", "token"),
        ("group.id", "consumerGroup"),
        ("kafka.bootstrap.servers", "servers"),
    ],
)
def test_an_unknown_option_is_refused_and_the_nearest_named(given: str, near: str) -> None:
    message = refused(**{given: "x"})
    assert f"unknown option {given} " in message
    assert "did you mean" in message
    if given in ("startingOffset", "server"):
        assert near in message


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ("", "missing"),
        ("edge-1:8815", "grpc://host:port"),
        ("http://edge-1:8815", "grpc://host:port"),
        ("grpc://edge-1", "grpc://host:port"),
        ("grpc://edge-1:99999", "grpc://host:port"),
        ("grpc://a:1,grpc://a:1", "twice"),
    ],
)
def test_a_bad_server_is_refused(servers: str, says: str) -> None:
    assert says in refused(servers=servers)


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a#", "a+/b", "#/a"])
def test_a_bad_filter_is_refused(topic_filter: str) -> None:
    assert topic_filter in refused(subscribe=topic_filter)


def test_one_of_subscribe_and_assign_is_needed_and_only_one() -> None:
    with pytest.raises(OptionError, match="subscribe is missing"):
        parse_options({"servers": "grpc://a:1"})
    assert "exclude each other" in refused(assign='{"x":[3]}')
    options = parse_options({"servers": "grpc://a:1", "assign": '{"x":[4,3,3]}'})
    assert options.assign == {"x": (3, 4)}
    assert options.filters is None


@pytest.mark.parametrize("text", ["[3]", "{}", '{"x":3}', '{"x":["3"]}', "x"])
def test_a_bad_assignment_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="option assign is JSON"):
        parse_options({"servers": "grpc://a:1", "assign": text})


def test_starting_offsets_take_numbers_pairs_and_whole_offsets() -> None:
    whole = ('{"v":1,"logs":{"x":{"3":[17,null]}}}', '{"v":2,"logs":{"x":{"3":[17,null]}},"owners":{"x":"north"}}')
    for text in ('{"x":{"3":17}}', '{"x":{"3":[17,null]}}', *whole):
        assert parsed(startingOffsets=text).starting.places == {"x": {3: Place(17)}}
    assert parsed(startingOffsets='{"x":{"3":[17,2]}}').starting.places == {"x": {3: Place(17, 2)}}


def test_kafka_s_numbers_for_earliest_and_latest_are_what_unnamed_partitions_are() -> None:
    assert parsed(startingOffsets='{"x":{"3":-2,"4":7}}').starting.places == {"x": {4: Place(7)}}
    assert parsed(endingOffsets='{"x":{"3":-1,"4":7}}').ending.places == {"x": {4: Place(7)}}
    assert "latest (-1) is not possible for single partitions" in refused(startingOffsets='{"x":{"3":-1}}')
    assert "earliest (-2) is not possible for single partitions" in refused(endingOffsets='{"x":{"3":-2}}')


@pytest.mark.parametrize("text", ["newest", "[]", '{"x":17}', '{"x":{"3":"17"}}', '{"x":{"3":-5}}', '{"x":{"a":1}}'])
def test_bad_starting_offsets_are_refused(text: str) -> None:
    assert "option startingOffsets is earliest, latest or JSON" in refused(startingOffsets=text)


def test_a_time_is_milliseconds_or_iso_with_a_zone() -> None:
    assert parsed(startingTimestamp="1500").starting.time_us == 1_500_000
    assert parsed(startingTimestamp="1970-01-01T00:00:01.5+00:00").starting.time_us == 1_500_000
    assert "after the year 2200" in refused(startingTimestamp="1795268807660016")
    assert "time zone" in refused(startingTimestamp="2026-11-21T13:00:00")
    assert "not soon" in refused(startingTimestamp="soon")
    assert "exclude each other" in refused(startingTimestamp="1", startingOffsets="earliest")


@pytest.mark.parametrize(
    "name",
    [
        "minOffsetsPerTrigger",
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "pollTimeoutMs",
        "requestTimeoutMs",
    ],
)
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_count_is_a_positive_whole_number(name: str, text: str) -> None:
    assert f"option {name} is a positive whole number" in refused(**{name: text})


def test_a_flag_is_true_or_false() -> None:
    assert "option failOnDataLoss is true or false, not no" in refused(failOnDataLoss="no")


@pytest.mark.parametrize("moving", [{"startingOffsets": "latest"}, {"startingTimestamp": "1500"}])
def test_a_start_that_moves_needs_a_consumer_group_in_a_stream(moving: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="needs option consumerGroup"):
        parsed(**moving).require_stream()
    parsed(**moving, consumerGroup="g").require_stream()


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    for name in ONLY_STREAM:
        more = {"maxTriggerDelay": {"minOffsetsPerTrigger": "1"}}.get(name, {})
        with pytest.raises(OptionError, match="is for streams"):
            parsed(**{name: "5"}, **more).require_batch()
    for name, value in {"endingOffsets": "latest", "maxClockSetBack": "1m"}.items():
        with pytest.raises(OptionError, match=f"{name} is for batch reads"):
            parsed(**{name: value}).require_stream()


@pytest.mark.parametrize("name", ["token", "password", "tls.ca", "tls.cert", "tls.key"])
def test_a_secret_is_a_reference_and_is_never_repeated(name: str) -> None:
    for text in ("s3cret", "s3cret:x", "env:", "-----BEGIN s3cret"):
        message = refused(**{name: text})
        assert f"option {name} is a reference" in message
        assert "s3cret" not in message


def test_credentials_are_those_of_the_client() -> None:
    access = parsed(user="ann", password="env:PW").access
    assert (access.credentials.user, access.credentials.password) == ("ann", "env:PW")
    assert "env:PW" not in repr(access.credentials)
    assert "not both" in refused(user="ann", password="env:PW", token="env:T")
    assert "belong together" in refused(password="env:PW")


def test_tls_files_are_for_servers_with_tls() -> None:
    tls = {"tls.ca": "file:ca.pem", "tls.cert": "file:c.pem", "tls.key": "secret:scope/key"}
    options = parsed(servers="grpc+tls://edge-1:8815", **tls)
    assert options.access.tls.key == "secret:scope/key"
    assert "grpc+tls://" in refused(**tls)
    assert "belong together" in refused(servers="grpc+tls://edge-1:8815", **{"tls.cert": "file:c.pem"})


def test_one_way_of_naming_topics_is_needed() -> None:
    assert parse_options({"servers": "grpc://a:1", "subscribePattern": "devices/.*"}).pattern == "devices/.*"
    assert "subscribe and subscribePattern exclude" in refused(subscribePattern="devices/.*")
    with pytest.raises(OptionError, match="subscribePattern is empty"):
        parse_options({"servers": "grpc://a:1", "subscribePattern": ""})


def test_a_minimum_waits_a_quarter_of_an_hour_unless_told() -> None:
    assert parsed(minOffsetsPerTrigger="5").max_trigger_delay_ms == 900_000
    for text, milliseconds in (("30s", 30_000), ("2 min", 120_000), ("500", 500), ("1h", 3_600_000)):
        assert parsed(minOffsetsPerTrigger="5", maxTriggerDelay=text).max_trigger_delay_ms == milliseconds
    assert "is a time such as" in refused(minOffsetsPerTrigger="5", maxTriggerDelay="soon")
    assert "is above maxOffsetsPerTrigger" in refused(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")
    assert "give both" in refused(maxTriggerDelay="1s")


def test_what_a_catalog_adds_to_a_table_is_not_taken_for_options() -> None:
    stored = {f"option.{name}": value for name, value in BASE.items()}
    added = {"provider": "headwater", "owner": "root", "path": "file:/warehouse/t"}
    for raw in ({**stored, **added}, {**BASE, **added}, {**BASE, **stored, **added}, {**stored, "path": "file:/t"}):
        assert parse_options(raw) == replace(parsed(), given=frozenset(BASE))
    assert "has no path" in refused(path="file:/t")


def test_words_and_retries_are_checked() -> None:
    assert parsed().must_find_time
    assert not parsed(startingOffsetsByTimestampStrategy="LATEST").must_find_time
    assert "is error or latest, not earliest" in refused(startingOffsetsByTimestampStrategy="earliest")
    assert parsed(**{"fetchOffset.numRetries": "0"}).access.num_retries == 0
    assert "whole number" in refused(**{"fetchOffset.retryIntervalMs": "-1"})
    assert parsed(retireLogs="b, a,b").retire_logs == ("a", "b")
    assert "retireLogs drops log x" in refused(retireLogs="x", startingOffsets='{"x":{"3":1}}')
    assert not parsed().yields_splits
    assert parsed(**{"yield": "splits"}).yields_splits


def test_options_travel_to_the_workers() -> None:
    options = parsed(startingOffsets='{"x":{"3":17}}')
    assert pickle.loads(pickle.dumps(options)) == options


DIGITS = "9" * 5_000


@pytest.mark.parametrize(
    "given",
    [
        {"maxOffsetsPerTrigger": DIGITS},
        {"minPartitions": DIGITS},
        {"maxTriggerDelay": f"{DIGITS}s", "minOffsetsPerTrigger": "1"},
        {"pollTimeoutMs": DIGITS},
        {"startingTimestamp": DIGITS},
        {"startingTimestamp": "0001-01-01T00:00:00+14:00"},
        {"startingTimestamp": "9999-12-31T23:59:59-14:00"},
        {"startingOffsets": f'{{"l":{{"{DIGITS}":1}}}}'},
        {"startingOffsets": f'{{"l":{{"1":{DIGITS}}}}}'},
        {"startingOffsets": "[" * 60_000},
        {"startingOffsets": '{"l":{"1":' + "[" * 900 + "]" * 900 + "}}"},
        {"startingOffsets": '{"l":{"1":NaN}}'},
        {"startingOffsets": '{"l":{"1":1e999}}'},
        {"assign": "[" * 60_000, "subscribe": ""},
    ],
    ids=lambda given: " ".join(f"{name}={value[:20]}" for name, value in given.items()),
)
def test_numbers_and_times_of_any_size_are_refused_by_the_name_of_their_option(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        parse_options({"servers": "grpc://127.0.0.1:1", "subscribe": "a", **given})


TWO = "grpc+tls://a:1,grpc+tls://b:2"


def test_access_overrides_what_holds_for_all_servers() -> None:
    access = '{"grpc+tls://b:2": {"token": "env:T"}, "grpc+tls://a:1": {"tls.ca": "file:a.pem"}}'
    options = parsed(servers=TWO, user="ann", password="env:PW", access=access, **{"tls.ca": "file:ca.pem"})
    one, two = options.access_of("grpc+tls://a:1"), options.access_of("grpc+tls://b:2")
    assert (one.credentials.user, one.tls.ca) == ("ann", "file:a.pem")
    assert (two.credentials.user, two.credentials.token, two.tls.ca) == (None, "env:T", "file:ca.pem")
    assert two.request_timeout_ms == one.request_timeout_ms


@pytest.mark.parametrize(
    ("access", "says"),
    [
        ("{", "option access is JSON of the form"),
        ("[1]", "option access is JSON of the form"),
        ('{"grpc+tls://a:1": 3}', "option access is JSON of the form"),
        ('{"grpc+tls://a:1": {"user": 3}}', "option access is JSON of the form"),
        ('{"grpc+tls://c:3": {}}', "option access names grpc+tls://c:3, which is not one of the servers"),
        ('{"grpc+tls://a:1": {"pasword": "env:P"}}', "unknown key pasword: did you mean password?"),
        ('{"grpc+tls://a:1": {"token": "hunter2"}}', "option access, grpc+tls://a:1: option token is a reference"),
        ('{"grpc+tls://a:1": {"user": "ann"}}', "option access, grpc+tls://a:1: a user and a password belong together"),
        ('{"hunter2', "option access is JSON of the form"),
    ],
)
def test_a_wrong_access_is_one_sentence_without_the_secret(access: str, says: str) -> None:
    message = refused(servers=TWO, access=access)
    assert says in message
    assert "hunter2" not in message


def test_certificates_for_all_leave_out_a_server_without_tls_that_access_names() -> None:
    servers, tls = "grpc+tls://a:1,grpc://b:2", {"tls.ca": "file:ca.pem"}
    assert "grpc://b:2 is another one" in refused(servers=servers, **tls)
    options = parsed(servers=servers, access='{"grpc://b:2": {}}', **tls)
    assert options.access_of("grpc+tls://a:1").tls.is_given
    assert not options.access_of("grpc://b:2").tls.is_given
    assert "certificates are for servers" in refused(servers=servers, access='{"grpc://b:2": {"tls.ca": "file:x"}}')


def test_brokers_become_options_that_mean_the_same() -> None:
    ann = BrokerAccess("grpc+tls://a:1", Credentials(user="ann", password="env:PW"), TlsReferences(ca="file:ca.pem"))
    bob = BrokerAccess("grpc+tls://b", Credentials(token="secret:x/y"))
    anonymous = BrokerAccess("grpc://c:3")
    alike = access_options([ann, replace(ann, server="grpc+tls://d:4")])
    assert alike == {
        "servers": "grpc+tls://a:1,grpc+tls://d:4",
        "user": "ann",
        "password": "env:PW",
        "tls.ca": "file:ca.pem",
    }
    of_logs = access_options([replace(anonymous, log_id="l1")])
    assert parse_options({**of_logs, "subscribe": "t"}).access_of("grpc://c:3").log_id == "l1"
    called = access_options([replace(ann, name="north"), replace(ann, server="grpc+tls://d:4", name="south")])
    assert called == {**alike, "access": '{"grpc+tls://a:1": {"name": "north"}, "grpc+tls://d:4": {"name": "south"}}'}
    named = parse_options({**called, "subscribe": "t"})
    assert [named.access_of(one).name for one in named.servers] == ["north", "south"]
    assert [named.access_of(one).credentials for one in named.servers] == [ann.credentials, ann.credentials]
    options = parse_options({**access_options([ann, bob, anonymous]), "subscribe": "t"})
    for broker, server in ((ann, "grpc+tls://a:1"), (bob, "grpc+tls://b:8815"), (anonymous, "grpc://c:3")):
        assert options.access_of(server).credentials == broker.credentials
        assert options.access_of(server).tls == broker.tls
