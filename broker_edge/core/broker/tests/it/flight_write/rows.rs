//! Produced rows: what is taken, refused, and comes back.

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
