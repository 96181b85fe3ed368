//! Flight's promises to readers: the rows of the log, the requested bounds, and the limits.

mod follow;
mod plan;

use crate::support::{DEADLINE, Row, Sent, TestBroker, refused};
use futures::StreamExt;
use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, TestRunner};
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::Code;

/// Records of several devices and sizes, enough for several segments.
fn mixed(count: usize) -> Vec<Sent> {
    (0..count)
        .map(|number| {
            let topic = match number % 7 {
                0 => "devices/d1/status".to_owned(),
                1..=3 => format!("devices/d{}/telemetry", number % 5),
                4 => "plant/line/1".to_owned(),
                _ => format!("devices/d{}/telemetry", number % 11),
            };
            Sent::new(&topic, vec![number.to_le_bytes()[0]; number * 37 % 400])
        })
        .collect()
}

async fn filled(count: usize) -> (TestBroker, crate::support::Client) {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    for part in mixed(count).chunks(97) {
        client.produce(part).await.unwrap();
    }
    (broker, client)
}

/// The whole log as rows, by partition.
async fn whole_log(client: &mut crate::support::Client) -> Vec<(u32, Vec<Row>)> {
    let mut log = Vec::new();
    for (partition, end) in client.high_watermarks().await {
        let rows = client
            .read(json!({"partition": partition, "start": 0, "end": end}))
            .await
            .unwrap();
        log.push((partition, rows));
    }
    log
}

fn matches(filters: Option<&[&str]>, topic: &str) -> bool {
    filters.is_none_or(|filters| {
        filters
            .iter()
            .any(|filter| headwater_mqtt::filter_matches(filter, topic))
    })
}

const FILTERS: [Option<&[&str]>; 6] = [
    None,
    Some(&["#"]),
    Some(&["devices/+/telemetry"]),
    Some(&["devices/d3/telemetry", "plant/#"]),
    Some(&["devices/d1/status"]),
    Some(&["nobody/sends/this"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_was_produced_is_what_is_read() {
    let (broker, mut client) = filled(1_000).await;
    let sent = mixed(1_000);
    let log = whole_log(&mut client).await;
    assert_eq!(
        log.iter().map(|(_, rows)| rows.len()).sum::<usize>(),
        sent.len()
    );
    for (partition, rows) in &log {
        for (offset, row) in rows.iter().enumerate() {
            assert_eq!(
                (row.offset, row.partition),
                (offset as u64, i32::try_from(*partition).unwrap())
            );
            assert_eq!(row.log_id, broker.broker().log_id().to_string());
            assert_eq!(
                (row.qos, row.retain, row.client_id.as_str(), &row.headers),
                (1, false, "", &None)
            );
            assert!(row.timestamp > 1_600_000_000_000_000 && row.epoch >= 0);
            let device = row
                .topic
                .strip_prefix("devices/")
                .and_then(|rest| rest.split('/').next());
            assert_eq!(row.key, device.unwrap_or(&row.topic).as_bytes());
        }
        // Order within a topic is the order of sending.
        let values = |topic: &str| {
            rows.iter()
                .filter(|row| row.topic == topic)
                .map(|row| row.value.clone())
                .collect::<Vec<_>>()
        };
        let topic = &rows[0].topic;
        let expected: Vec<_> = sent
            .iter()
            .filter(|sent| sent.topic == *topic)
            .map(|sent| sent.value.clone())
            .collect();
        assert_eq!(values(topic), expected);
    }
}

#[test]
fn a_bounded_read_equals_the_log_whatever_the_bounds_filters_and_batch_rows() {
    let runtime = Runtime::new().unwrap();
    let (_broker, mut client) = runtime.block_on(filled(3_000));
    let log = runtime.block_on(whole_log(&mut client));
    let strategy = (
        0..log.len(),
        0.0..1.0f64,
        0.0..1.0f64,
        0..FILTERS.len(),
        1..700usize,
    );
    let client = std::cell::RefCell::new(client);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let checked = runner.run(&strategy, |(place, a, b, filters, batch_rows)| {
        let (partition, rows) = &log[place];
        let at = |share: f64| (rows.len() as f64 * share) as u64;
        let (start, end) = (at(a.min(b)), at(a.max(b)));
        let filters = FILTERS[filters];
        let mut ticket =
            json!({"partition": partition, "start": start, "end": end, "batch_rows": batch_rows});
        if let Some(filters) = filters {
            ticket["filters"] = json!(filters);
        }
        let batches: Vec<_> = {
            let client = &mut *client.borrow_mut();
            let stream = runtime.block_on(client.stream(ticket)).unwrap();
            runtime.block_on(stream.map(|batch| batch.unwrap()).collect())
        };
        let mut position = start;
        for (rows, next) in &batches {
            prop_assert!(rows.len() <= batch_rows && *next >= position);
            prop_assert!(
                rows.iter()
                    .all(|row| row.offset >= position && row.offset < *next)
            );
            position = *next;
        }
        prop_assert_eq!(
            position,
            end,
            "the last batch says where the reader goes on"
        );
        let read: Vec<Row> = batches.into_iter().flat_map(|(rows, _)| rows).collect();
        let within =
            |row: &&Row| (start..end).contains(&row.offset) && matches(filters, &row.topic);
        let expected: Vec<Row> = rows.iter().filter(within).cloned().collect();
        prop_assert_eq!(read, expected);
        Ok(())
    });
    checked.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_outside_the_log_is_refused_with_its_bounds() {
    let (_broker, mut client) = filled(50).await;
    let (partition, high_watermark) = client.high_watermarks().await[0];
    let beyond = high_watermark + 1;
    let tickets = [
        json!({"partition": partition, "start": beyond, "end": beyond}),
        json!({"partition": partition, "start": 0, "end": beyond}),
        json!({"partition": partition, "start": beyond, "follow": true}),
    ];
    for ticket in tickets {
        let refused = refused(&client.read(ticket).await.unwrap_err());
        assert_eq!(refused.code, Code::OutOfRange);
        let expected = json!({
            "error": "out_of_range",
            "message": refused.body["message"],
            "partition": partition,
            "log_start": 0,
            "high_watermark": high_watermark,
            "wanted": beyond,
        });
        assert_eq!(refused.body, expected);
    }
    let refused = client
        .refusal("plan", json!({"from": {partition.to_string(): beyond}}))
        .await;
    assert_eq!(
        (refused.code, &refused.body["wanted"]),
        (Code::OutOfRange, &json!(beyond))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_retention_removed_are_refused_with_the_log_start() {
    let settings = [
        "log.segment_bytes=64KiB",
        "log.classes.telemetry.retention.bytes=128KiB",
        "log.classes.telemetry.partitions=1",
    ];
    let broker = TestBroker::start(&settings);
    let mut client = broker.client().await;
    let batch: Vec<Sent> = (0..100)
        .map(|_| Sent::new("plant/line", vec![1; 1_000]))
        .collect();
    let started = std::time::Instant::now();
    let log_start = loop {
        client.produce(&batch).await.unwrap();
        let offsets = client
            .act("offsets", json!({"partitions": [3]}))
            .await
            .unwrap();
        match offsets["partitions"]["3"]["log_start"].as_u64().unwrap() {
            0 => assert!(
                started.elapsed() < DEADLINE,
                "retention never removed a segment"
            ),
            log_start => break log_start,
        }
    };
    let refused = refused(
        &client
            .read(json!({"partition": 3, "start": 0, "end": 1}))
            .await
            .unwrap_err(),
    );
    assert_eq!(refused.code, Code::OutOfRange);
    assert!(refused.body["log_start"].as_u64().unwrap() >= log_start);
    assert_eq!(refused.body["wanted"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_and_offsets_describe_the_log() {
    let (broker, mut client) = filled(700).await;
    let log = whole_log(&mut client).await;
    let mut topics = client
        .results("topics", json!({"filters": ["devices/+/telemetry"]}))
        .await
        .unwrap();
    let listed = topics.remove(0)["topics"].as_array().unwrap().clone();
    assert!(!listed.is_empty());
    for row in &listed {
        let (_, rows) = log
            .iter()
            .find(|(number, _)| row["partition"] == json!(number))
            .unwrap();
        let of_topic: Vec<u64> = rows
            .iter()
            .filter(|found| row["topic"] == found.topic.as_str())
            .map(|row| row.offset)
            .collect();
        assert!(row["first"].as_u64().unwrap() <= of_topic[0]);
        assert!(row["next"].as_u64().unwrap() > *of_topic.last().unwrap());
        assert_eq!(row["class"], "telemetry");
    }
    let (partition, rows) = &log[0];
    let middle = &rows[rows.len() / 2];
    let body = json!({"partitions": [partition], "time_us": middle.timestamp, "epoch_before": {partition.to_string(): 1}});
    let offsets = client.act("offsets", body).await.unwrap();
    let row = &offsets["partitions"][partition.to_string()];
    let first = rows
        .iter()
        .find(|row| row.timestamp >= middle.timestamp)
        .unwrap();
    assert_eq!(row["offset_for_time"], first.offset);
    assert_eq!(row["epoch_before"], rows[0].epoch);
    assert_eq!(offsets["log_id"], broker.broker().log_id().to_string());
    let all = client.act("offsets", json!({})).await.unwrap();
    assert!(
        !all["partitions"].as_object().unwrap().contains_key("0"),
        "the internal partition is left out"
    );
    let version = client.act("version", json!({})).await.unwrap();
    assert_eq!(
        (&version["protocol"], &version["format"]),
        (&json!(1), &json!(1))
    );
}
