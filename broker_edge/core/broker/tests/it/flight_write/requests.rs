//! Requests: gaps, patterns, and what is refused whoever sends it.

use crate::common::numbers::Numbers;
use crate::support::{Sent, TestBroker, batch_of, refused};
use serde_json::json;
use tonic::Code;

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
