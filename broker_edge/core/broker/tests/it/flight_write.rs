//! Flight's promises to producers and consumer groups.

use std::sync::Arc;

use crate::support::{Sent, TestBroker, batch_of, refused};
use arrow_array::builder::{BinaryBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, Int8Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use headwater_mqtt::Version;
use serde_json::json;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_idempotency_key_appends_nothing_and_gets_the_first_place() {
    let mut broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let topic = "devices/d1/actions";
    let first = client
        .produce(&[
            Sent::new(topic, "a").keyed("k1"),
            Sent::new(topic, "b").keyed("k2"),
        ])
        .await
        .unwrap();
    assert!(first.iter().all(|(_, _, duplicate)| !duplicate));
    let again = [
        Sent::new(topic, "x").keyed("k2"),
        Sent::new(topic, "c").keyed("k3"),
        Sent::new(topic, "y").keyed("k3"),
    ];
    let second = client.produce(&again).await.unwrap();
    assert_eq!(second[0], (first[1].0, first[1].1, true));
    assert_eq!((second[1].2, second[2].2), (false, true));
    assert_eq!(second[1].1, second[2].1);
    broker.restart();
    let mut client = broker.client().await;
    let third = client
        .produce(&[Sent::new(topic, "z").keyed("k1"), Sent::new(topic, "plain")])
        .await
        .unwrap();
    assert_eq!(third[0], (first[0].0, first[0].1, true));
    assert!(!third[1].2);
    let rows = client
        .read(json!({"partition": first[0].0, "start": 0, "end": third[1].1 + 1}))
        .await
        .unwrap();
    let values: Vec<&[u8]> = rows.iter().map(|row| row.value.as_slice()).collect();
    assert_eq!(values, [b"a".as_slice(), b"b", b"c", b"plain"]);
    let header = ("headwater.idempotency-key".to_owned(), b"k1".to_vec());
    assert_eq!(rows[0].headers, Some(vec![header]));
    assert_eq!(rows[3].headers, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_is_named_and_nothing_of_its_batch_is_appended() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    for topic in ["", "$gaps", "a/+/b", "a/#"] {
        let sent = [Sent::new("good", "1"), Sent::new(topic, "2")];
        let refused = refused(&client.produce(&sent).await.unwrap_err());
        assert_eq!(
            (refused.code, &refused.body["field"]),
            (Code::InvalidArgument, &json!("topic")),
            "{topic}"
        );
        assert!(refused.body["message"].as_str().unwrap().contains("row 1"));
    }
    let topics: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let missing = RecordBatch::try_from_iter([("topic", Arc::clone(&topics))]).unwrap();
    assert_eq!(
        refused(&client.produce_batch(missing).await.unwrap_err()).body["field"],
        "value"
    );
    let wrong =
        RecordBatch::try_from_iter([("topic", Arc::clone(&topics)), ("value", topics)]).unwrap();
    assert_eq!(
        refused(&client.produce_batch(wrong).await.unwrap_err()).body["field"],
        "value"
    );
    assert!(
        client.high_watermarks().await.is_empty(),
        "nothing was appended"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_of_a_produced_row_comes_back() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let item = StructBuilder::from_fields(
        vec![
            Field::new("key", DataType::Utf8, true),
            Field::new("value", DataType::Binary, true),
        ],
        2,
    );
    let mut headers = ListBuilder::new(item);
    let pair = headers.values();
    pair.field_builder::<StringBuilder>(0)
        .unwrap()
        .append_value("trace");
    pair.field_builder::<BinaryBuilder>(1)
        .unwrap()
        .append_value([0, 255]);
    pair.append(true);
    headers.append(true);
    headers.append(false);
    let columns: [(&str, ArrayRef); 6] = [
        ("topic", Arc::new(StringArray::from(vec!["t", "t"]))),
        ("value", Arc::new(BinaryArray::from_vec(vec![b"1", b""]))),
        (
            "key",
            Arc::new(BinaryArray::from_opt_vec(vec![Some(b"\x00k"), None])),
        ),
        ("headers", Arc::new(headers.finish())),
        ("qos", Arc::new(Int8Array::from(vec![Some(2), None]))),
        (
            "retain",
            Arc::new(BooleanArray::from(vec![Some(true), None])),
        ),
    ];
    let places = client
        .produce_batch(RecordBatch::try_from_iter(columns).unwrap())
        .await
        .unwrap();
    let rows = client
        .read(json!({"partition": places[0].0, "start": 0, "end": 2}))
        .await
        .unwrap();
    assert_eq!(
        (rows[0].key.as_slice(), rows[0].qos, rows[0].retain),
        (b"\x00k".as_slice(), 2, true)
    );
    assert_eq!(
        rows[0].headers,
        Some(vec![("trace".to_owned(), vec![0, 255])])
    );
    assert_eq!(
        (rows[1].key.as_slice(), rows[1].qos, rows[1].retain),
        (b"t".as_slice(), 1, false)
    );
    assert_eq!((rows[1].value.len(), &rows[1].headers), (0, &None));
}

/// The headers of one row.
fn one_row_of_headers(pairs: &[(&str, &[u8])]) -> ArrayRef {
    let fields = vec![
        Field::new("key", DataType::Utf8, true),
        Field::new("value", DataType::Binary, true),
    ];
    let mut headers = ListBuilder::new(StructBuilder::from_fields(fields, pairs.len()));
    for (name, value) in pairs {
        let pair = headers.values();
        let names = pair.field_builder::<StringBuilder>(0).unwrap();
        names.append_value(name);
        let values = pair.field_builder::<BinaryBuilder>(1).unwrap();
        values.append_value(value);
        pair.append(true);
    }
    headers.append(true);
    Arc::new(headers.finish())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_gets_the_headers_that_are_text_of_mqtt_and_no_other() {
    let broker = TestBroker::start(&[]);
    let mqtt = broker.broker().mqtt_address();
    let mut subscriber = crate::common::Client::connect(mqtt, Version::V5, "s");
    subscriber.subscribe("t", 1);
    let long = "é".repeat(40_000);
    let headers = one_row_of_headers(&[
        ("a", b"1"),
        ("n\0", b"x"),
        ("n", b"\0"),
        ("\u{1b}[2J", b"x"),
        ("bytes", b"\xff"),
        ("long", long.as_bytes()),
        ("\u{fffe}", b"x"),
        ("b", "é".as_bytes()),
    ]);
    let topic: ArrayRef = Arc::new(StringArray::from(vec!["t"]));
    let value: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"x"]));
    let columns = [("topic", topic), ("value", value), ("headers", headers)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    broker.client().await.produce_batch(batch).await.unwrap();
    let message = subscriber.message();
    assert_eq!(message.text(), "x");
    let expected = [("a", "1"), ("b", "é")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(message.properties, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn produced_records_are_there_after_a_restart() {
    let mut broker = TestBroker::start(&[]);
    let sent: Vec<Sent> = (0..500)
        .map(|number| {
            Sent::new(
                &format!("devices/d{}/telemetry", number % 9),
                vec![7; number],
            )
        })
        .collect();
    let places = broker.client().await.produce(&sent).await.unwrap();
    broker.restart();
    let mut client = broker.client().await;
    for (partition, end) in client.high_watermarks().await {
        let rows = client
            .read(json!({"partition": partition, "start": 0, "end": end}))
            .await
            .unwrap();
        for row in rows {
            let at = places
                .iter()
                .position(|place| (place.0, place.1) == (u64::from(partition), row.offset))
                .unwrap();
            assert_eq!((&row.topic, &row.value), (&sent[at].topic, &sent[at].value));
        }
    }
    assert_eq!(
        client
            .high_watermarks()
            .await
            .iter()
            .map(|(_, end)| end)
            .sum::<u64>(),
        500
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_reader_fences_the_older_and_initial_is_kept_once() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=2"]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    let unknown = client
        .act("committed", json!({"group": "g"}))
        .await
        .unwrap();
    assert_eq!(
        unknown,
        json!({"group": "g", "reader_epoch": 0, "partitions": {}})
    );
    let commit = json!({"group": "g", "reader_epoch": 5, "initial": {"3": 10}, "offsets": {"3": {"committed": 12, "scanned": 20}}});
    client.act("commit", commit).await.unwrap();
    let again = json!({"group": "g", "reader_epoch": 6, "initial": {"3": 99, "4": 1}, "offsets": {"3": {"committed": 13}}});
    let answer = client.act("commit", again).await.unwrap();
    let expected = json!({"group": "g", "reader_epoch": 6, "partitions": {
        "3": {"initial": 10, "committed": 13, "scanned": 20},
        "4": {"initial": 1, "committed": null, "scanned": null},
    }});
    assert_eq!(answer, expected);
    let old = json!({"group": "g", "reader_epoch": 5, "offsets": {"3": {"committed": 50}}});
    let refused = client.refusal("commit", old).await;
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert_eq!(
        (&refused.body["error"], &refused.body["reader_epoch"]),
        (&json!("fenced"), &json!(6))
    );
    assert_eq!(
        client
            .refusal("committed", json!({"group": "g", "reader_epoch": 5}))
            .await
            .code,
        Code::FailedPrecondition
    );
    broker.restart();
    let mut client = broker.client().await;
    assert_eq!(
        client
            .act("committed", json!({"group": "g"}))
            .await
            .unwrap(),
        expected
    );
    assert_eq!(
        client.act("groups", json!({})).await.unwrap(),
        json!({"groups": [expected], "next": null})
    );
    assert_eq!(
        client
            .refusal("commit", json!({"group": "a/b", "reader_epoch": 1}))
            .await
            .body["field"],
        "group"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_becomes_a_record() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    client
        .produce(&[Sent::new("devices/d1/telemetry", "1")])
        .await
        .unwrap();
    let gap = json!({"group": "g", "partition": 3, "start": 4, "end": 9, "reason": "retention"});
    assert_eq!(client.act("gap", gap).await.unwrap(), json!({}));
    let rows = client
        .read(json!({"partition": 1, "start": 0, "end": 1}))
        .await
        .unwrap();
    assert_eq!(rows[0].topic, "$gaps");
    let value: serde_json::Value = serde_json::from_slice(&rows[0].value).unwrap();
    assert_eq!(
        (&value["partition"], &value["start"], &value["end"]),
        (&json!(3), &json!(4), &json!(9))
    );
    assert_eq!(
        (&value["name"], &value["group"]),
        (&json!("telemetry-0"), &json!("g"))
    );
    assert!(value["time_us"].as_u64().unwrap() > 1_600_000_000_000_000);

    // For another log neither the partition nor the end is known here.
    let elsewhere = json!({"log_id": "gone", "partition": 77, "start": 4, "reason": "retired"});
    assert_eq!(client.act("gap", elsewhere).await.unwrap(), json!({}));
    let rows = client
        .read(json!({"partition": 1, "start": 1, "end": 2}))
        .await
        .unwrap();
    let value: serde_json::Value = serde_json::from_slice(&rows[0].value).unwrap();
    assert_eq!(
        (&value["log_id"], &value["partition"], &value["end"]),
        (&json!("gone"), &json!(77), &json!(null))
    );
    let open_end = json!({"partition": 3, "start": 4, "reason": "retired"});
    assert_eq!(client.refusal("gap", open_end).await.body["field"], "end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_stands_where_filters_may_stand() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let sent = |topic: &str| Sent::new(topic, "1");
    let all = ["devices/a1/x", "devices/b1/x", "devices/a2/x"].map(sent);
    client.produce(&all).await.unwrap();
    let pattern = r"devices/a\d/.*";
    let plan = json!({"from": {"3": 0}, "pattern": pattern});
    assert_eq!(
        client.act("plan", plan).await.unwrap()["partitions"]["3"]["records"],
        2
    );
    let listed = client.act("topics", json!({"pattern": pattern})).await;
    assert_eq!(listed.unwrap()["topics"].as_array().unwrap().len(), 2);
    let ticket = json!({"partition": 3, "start": 0, "end": 3, "pattern": pattern});
    let rows = client.read(ticket).await.unwrap();
    let topics: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
    assert_eq!(topics, ["devices/a1/x", "devices/a2/x"]);
    for wrong in [
        json!({"pattern": "("}),
        json!({"pattern": "a", "filters": ["a"]}),
    ] {
        assert_eq!(
            client.refusal("offsets", wrong).await.body["field"],
            "pattern"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_or_not_known_is_refused_by_name() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    assert_eq!(
        client.refusal("nonsense", json!({})).await.body["error"],
        "not_found"
    );
    assert_eq!(
        client
            .refusal("offsets", json!({"partitions": [77]}))
            .await
            .code,
        Code::NotFound
    );
    assert_eq!(
        client
            .refusal("plan", json!({"from": {}, "max_rows": 3}))
            .await
            .body["field"],
        "max_rows"
    );
    assert_eq!(
        client
            .refusal("topics", json!({"filters": ["a/#/b"]}))
            .await
            .body["field"],
        "filters"
    );
    let both = json!({"partition": 3, "start": 0, "end": 0, "follow": true});
    assert_eq!(
        refused(&client.read(both).await.unwrap_err()).body["field"],
        "end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_is_slowed_by_a_full_queue_and_loses_nothing() {
    let broker = TestBroker::start(&[
        "log.queue_bytes=64KiB",
        "log.classes.telemetry.partitions=1",
    ]);
    let mut client = broker.client().await;
    let sent: Vec<Sent> = (0..2_000)
        .map(|number: u32| Sent::new("t", [number.to_le_bytes().to_vec(), vec![0; 500]].concat()))
        .collect();
    let places = client.produce_batch(batch_of(&sent)).await.unwrap();
    assert!(
        places
            .iter()
            .zip(0..)
            .all(|(place, offset)| place.1 == offset),
        "rows keep their order"
    );
    let rows = client
        .read(json!({"partition": places[0].0, "start": 0, "end": 2_000}))
        .await
        .unwrap();
    assert!(
        rows.iter()
            .zip(&sent)
            .all(|(row, sent)| row.value == sent.value)
    );
}

/// Gives both telemetry partitions at least 100 records.
async fn fill(client: &mut crate::support::Client) {
    let sent: Vec<Sent> = (0..400)
        .map(|number| Sent::new(&format!("devices/d{number}/telemetry"), "1"))
        .collect();
    client.produce(&sent).await.unwrap();
    let marks = client.high_watermarks().await;
    assert!(marks.iter().filter(|(_, mark)| *mark >= 100).count() == 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_keeps_only_offsets_of_the_log() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    fill(&mut client).await;
    let beyond = 1_000_000_000_000_000_000_u64;
    for commit in [
        json!({"offsets": {"3": {"committed": beyond}}}),
        json!({"offsets": {"3": {"committed": 1, "scanned": beyond}}}),
        json!({"initial": {"3": beyond}}),
    ] {
        let mut body = json!({"group": "g", "reader_epoch": 1});
        body.as_object_mut()
            .unwrap()
            .extend(commit.as_object().unwrap().clone());
        let refused = client.refusal("commit", body).await;
        assert_eq!(refused.code, Code::OutOfRange);
        assert_eq!(refused.body["wanted"], json!(beyond));
    }
    let unknown = json!({"group": "g", "reader_epoch": 1, "initial": {"77": 0}});
    assert_eq!(client.refusal("commit", unknown).await.code, Code::NotFound);
    assert_eq!(
        client.act("groups", json!({})).await.unwrap(),
        json!({"groups": [], "next": null})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_limited_and_come_in_pages() {
    let broker = TestBroker::start(&["flight.max_groups=7"]);
    let mut client = broker.client().await;
    for number in 0..7 {
        let commit = json!({"group": format!("g{number}"), "reader_epoch": 1});
        client.act("commit", commit).await.unwrap();
    }
    let refused = client
        .refusal("commit", json!({"group": "g7", "reader_epoch": 1}))
        .await;
    assert_eq!(refused.code, Code::ResourceExhausted);
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("flight.max_groups"), "{message}");

    let (mut names, mut after) = (Vec::new(), json!(null));
    loop {
        let mut body = json!({"limit": 3});
        if !after.is_null() {
            body["after"] = after;
        }
        let page = client.act("groups", body).await.unwrap();
        let groups = page["groups"].as_array().unwrap();
        assert!(groups.len() <= 3);
        names.extend(groups.iter().map(|group| group["group"].clone()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(names, ["g0", "g1", "g2", "g3", "g4", "g5", "g6"]);
    client
        .act("remove_group", json!({"group": "g0"}))
        .await
        .unwrap();
    client
        .act("commit", json!({"group": "g7", "reader_epoch": 1}))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_names_partitions_without_end_is_refused() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let many: serde_json::Map<String, serde_json::Value> = (0..300_000)
        .map(|number| (number.to_string(), json!(0)))
        .collect();
    let commit = json!({"group": "g", "reader_epoch": 1, "initial": many});
    for body in [
        commit,
        json!({"group": "g".repeat(10 << 20), "reader_epoch": 1}),
    ] {
        assert_eq!(
            client.refusal("commit", body).await.code,
            Code::InvalidArgument
        );
    }
    let again = |count: usize| (0..count).map(|zeros| ("0".repeat(zeros) + "3", json!(0)));
    let from: serde_json::Map<String, serde_json::Value> = again(500).collect();
    let plan = json!({"from": from});
    assert_eq!(client.refusal("plan", plan).await.body["field"], "from");
    let listed = json!({"partitions": vec![3; 500]});
    let refused = client.refusal("offsets", listed).await;
    assert_eq!(refused.body["field"], "partitions");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_keep_the_rules_of_a_publish() {
    let broker = TestBroker::start(&["mqtt.max_packet_bytes=64KiB", "mqtt.max_topic_bytes=1000"]);
    let mut client = broker.client().await;
    for topic in [
        "a\u{1b}[31m/b".to_owned(),
        "a\0b".to_owned(),
        "a\n".to_owned(),
        "a/".repeat(100),
        "/".repeat(30_000),
        "t".repeat(1_001),
    ] {
        let sent = [Sent::new("good", "1"), Sent::new(&topic, "2")];
        let refused = refused(&client.produce(&sent).await.unwrap_err());
        assert_eq!(refused.body["field"], json!("topic"), "{topic:.20?}");
        let message = refused.body["message"].as_str().unwrap();
        assert!(!message.contains(char::is_control), "{message:?}");
    }
    let large = [Sent::new("good", vec![0; 64 << 10])];
    let refused = refused(&client.produce(&large).await.unwrap_err());
    assert_eq!(refused.body["field"], json!("value"));
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("flight.max_record_bytes"), "{message}");
    assert!(client.high_watermarks().await.is_empty());
    // A chunk of an artifact is larger than this broker's packet limit and is accepted.
    let chunk = Sent::new("artifacts/pump/1/chunks", vec![0; 960 << 10]);
    client.produce(&[chunk]).await.unwrap();
    client
        .produce(&[Sent::new("good", vec![0; 60 << 10])])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_counts_for_its_topic() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let taken = client
        .produce(&[Sent::new("plants/1/a", "forged").keyed("k")])
        .await
        .unwrap();
    for _ in 0..2 {
        let rows = [
            Sent::new("plants/2/a", "mine").keyed("k"),
            Sent::new("plants/1/a", "again").keyed("k"),
        ];
        let places = client.produce(&rows).await.unwrap();
        assert_ne!(places[0].1, taken[0].1, "another topic's key takes nothing");
        assert_eq!((places[1].1, places[1].2), (taken[0].1, true));
        broker.restart();
        client = broker.client().await;
    }
    let marks = client.high_watermarks().await;
    assert_eq!(marks, [(3, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_stored_of_groups_is_brought_within_the_log() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let rows: Vec<Sent> = (0..10).map(|_| Sent::new("t", "1")).collect();
    client.produce(&rows).await.unwrap();
    let end = client.high_watermarks().await[0].1;
    broker.stop();
    {
        let config = headwater_log::LogConfig::new(broker.dir.path().join("log"));
        let (log, _) = headwater_log::Log::open(config, headwater_log::Seams::system()).unwrap();
        let state = headwater_broker::state::StateStore::open(&log, u64::MAX).unwrap();
        let mut partitions: serde_json::Map<String, serde_json::Value> = (100..50_000)
            .map(|number| (number.to_string(), json!({"committed": 1})))
            .collect();
        let beyond = 1_000_000_000_000_000_000_u64;
        partitions.insert("3".to_owned(), json!({"initial": 7, "committed": beyond}));
        let value = json!({"reader_epoch": 4, "touched_us": 1, "partitions": partitions});
        let written = state
            .put("group/old", value.to_string().as_bytes())
            .unwrap();
        assert!(state.wait_durable(written, crate::support::DEADLINE));
        log.shutdown();
    }
    broker.restart();
    let mut client = broker.client().await;
    let place = json!({"initial": 7, "committed": end, "scanned": null});
    let expected = json!({"group": "old", "reader_epoch": 4, "partitions": {"3": place}});
    assert_eq!(
        client
            .act("committed", json!({"group": "old"}))
            .await
            .unwrap(),
        expected
    );
}

/// A pseudo-random sequence, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutated_arrow_is_answered_without_a_panic() {
    static PANICS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() == Some("service") {
            PANICS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        before(info);
    }));
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let sent: Vec<Sent> = (0..9)
        .map(|number| Sent::new("devices/d1/telemetry", vec![7; number]).keyed("k"))
        .collect();
    let valid = client.messages_of(batch_of(&sent)).await;
    let mut numbers = Numbers(0x5eed_0002);
    let mut refused = 0;
    for _ in 0..3_000 {
        let mut messages = valid.clone();
        let message = &mut messages[numbers.below(valid.len())];
        let is_header = message.data_body.is_empty() || numbers.below(4) > 0;
        let part = if is_header {
            &mut message.data_header
        } else {
            &mut message.data_body
        };
        let mut bytes = part.to_vec();
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(bytes.len());
            bytes[at] = [0xff, 0, bytes[at] ^ 0x40, bytes[at] ^ 1][numbers.below(4)];
        }
        *part = bytes.into();
        if let Err(status) = client.put(messages).await {
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            refused += 1;
        }
    }
    assert!(refused > 500, "{refused} refused");
    assert_eq!(PANICS.load(std::sync::atomic::Ordering::SeqCst), 0);
    client.produce(&sent).await.unwrap();
}
