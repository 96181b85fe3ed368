//! What Flight promises to producers and consumer groups.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, Int8Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use serde_json::json;
use support::{Sent, TestBroker, batch_of, refused};
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
    let mut broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
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
        json!({"groups": [expected]})
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

    // Of another log neither the partition nor the end is known here.
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
