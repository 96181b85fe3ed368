//! How a running broker reports damage that a reader finds: DATA_LOSS, then the same offsets everywhere.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use crate::support::{Sent, TestBroker, refused};
use headwater_log::Seams;
use headwater_log::tools::{PurgeWhat, Work, purge};
use serde_json::{Value, json};
use tonic::Code;

/// The first sealed segment of a partition of class telemetry.
fn sealed_segment(broker: &TestBroker) -> PathBuf {
    let folder = broker.dir.path().join("log/telemetry-0");
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> = names
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "seg"))
        .collect();
    segments.sort();
    assert!(segments.len() > 1, "there is a sealed segment");
    segments.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_found_by_a_read_is_reported_everywhere_at_once() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    for number in 0..60_u8 {
        let sent = Sent::new("devices/d1/telemetry", vec![number; 50_000]);
        client.produce(&[sent]).await.unwrap();
    }
    // Restarted, so that none of it is in memory.
    broker.restart();
    let mut client = broker.client().await;
    let segment = sealed_segment(&broker);
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4096 + 60_000] ^= 1;
    std::fs::write(&segment, bytes).unwrap();

    let number = client.act("topics", json!({})).await.unwrap()["topics"][0]["partition"].clone();
    let ticket = json!({"partition": number, "start": 0, "end": 60});
    let refusal = refused(&client.read(ticket).await.unwrap_err());
    assert_eq!(refusal.code, Code::DataLoss);
    assert_eq!(refusal.body["reason"], "damage");
    let (start, end) = (&refusal.body["start"], &refusal.body["end"]);
    assert_eq!((start.as_u64(), end.as_u64()), (Some(1), Some(2)));

    let offsets = client.act("offsets", json!({})).await.unwrap();
    let row = &offsets["partitions"][number.to_string()];
    let is_told = |gaps: &Value| {
        let gap = &gaps[0];
        gaps.as_array().is_some_and(|gaps| gaps.len() == 1)
            && (&gap["start"], &gap["end"]) == (start, end)
            && gap["reason"] == "damage"
    };
    assert!(is_told(&row["gaps"]), "{row}");
    let status: Value = serde_json::from_str(&broker.http("/api/v1/status").1).unwrap();
    let partitions = status["partitions"].as_array().unwrap();
    let partition = partitions
        .iter()
        .find(|one| one["name"] == "telemetry-0")
        .unwrap();
    assert!(is_told(&partition["gaps"]), "{status}");
    assert!(partition["damaged_bytes"].as_u64() > Some(50_000));
    let metrics = broker.http("/metrics").1;
    assert!(
        metrics.contains("headwater_log_gap_offsets{partition=\"telemetry-0\"} 1"),
        "{metrics}"
    );

    let around = json!({"partition": number, "start": 2, "end": 60});
    assert_eq!(client.read(around).await.unwrap().len(), 58);
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_records_are_never_served_and_whoever_reads_across_them_is_told() {
    let mut broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let sent: Vec<Sent> = (0..10)
        .map(|n| {
            Sent::new(
                ["devices/a/telemetry", "devices/b/telemetry"][n % 2],
                vec![n as u8; 9],
            )
        })
        .collect();
    client.produce(&sent).await.unwrap();
    let number = client.act("topics", json!({})).await.unwrap()["topics"][0]["partition"].clone();
    broker.stop();
    let (seams, stop) = (Seams::system(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    let folder = broker.dir.path().join("log");
    let report = purge(&folder, PurgeWhat::Device("a"), work).unwrap();
    assert_eq!(report.records, 5);
    broker.restart();
    let mut client = broker.client().await;

    let topics = client.act("topics", json!({})).await.unwrap();
    assert_eq!(topics["topics"].as_array().unwrap().len(), 1);
    assert_eq!(topics["topics"][0]["topic"], "devices/b/telemetry");
    let (mut at, mut rows, mut told) = (0, Vec::new(), Vec::new());
    while at < 10 {
        let ticket =
            json!({"partition": number, "start": at, "end": at + 1, "filters": ["devices/b/#"]});
        match client.read(ticket).await {
            Ok(found) => rows.extend(found),
            Err(status) => {
                let refusal = refused(&status);
                assert_eq!(
                    (refusal.code, &refusal.body["reason"]),
                    (Code::DataLoss, &json!("purge"))
                );
                told.push(refusal.body["start"].as_u64().unwrap());
            }
        }
        at += 1;
    }
    assert_eq!(told, [0, 2, 4, 6, 8]);
    assert_eq!(
        rows.iter().map(|row| row.offset).collect::<Vec<_>>(),
        [1, 3, 5, 7, 9]
    );
    assert!(rows.iter().all(|row| row.topic == "devices/b/telemetry"));
    let plan = client
        .act(
            "plan",
            json!({"from": {number.to_string(): 0}, "filters": ["devices/#"]}),
        )
        .await;
    assert_eq!(
        plan.unwrap()["partitions"][number.to_string()]["records"],
        5
    );
}
