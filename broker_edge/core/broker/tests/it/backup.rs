//! A backup of a running broker contains every acknowledged record and the state, and a caller can write nowhere else.

use std::sync::atomic::AtomicBool;

use crate::support::{Sent, TestBroker};
use headwater_log::Seams;
use headwater_log::tools::{Work, restore};
use serde_json::json;
use tonic::Code;

fn restored(source: &std::path::Path, dir: &std::path::Path) {
    let (seams, stop) = (Seams::system(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    restore(source, dir, false, work).unwrap();
}

fn value(number: u32) -> Vec<u8> {
    format!("{number} ").repeat(100).into_bytes()
}

fn fifty(from: u32) -> Vec<Sent> {
    (from..from + 50)
        .map(|number| Sent::new("devices/d1/telemetry", value(number)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_restores_records_and_groups() {
    let folder = tempfile::tempdir().unwrap();
    let backups = folder.path().join("backups");
    let set = format!("log.backup_dir={}", backups.display());
    let mut broker = TestBroker::start(&[&set]);
    let mut client = broker.client().await;
    for from in (0..2000).step_by(50) {
        client.produce(&fifty(from)).await.unwrap();
    }
    let commit = json!({"group": "g", "reader_epoch": 3, "initial": {"3": 7}, "offsets": {"3": {"committed": 90}}});
    client.act("commit", commit).await.unwrap();
    let mut other = broker.client().await;
    let load = tokio::spawn(async move {
        for from in (2000..4000).step_by(50) {
            other.produce(&fifty(from)).await.unwrap();
        }
    });
    let report = client
        .act("backup", json!({"name": "daily"}))
        .await
        .unwrap();
    let end = report["partitions"][3]["high_watermark"].as_u64().unwrap();
    assert!((2000..=4000).contains(&end), "{report}");
    load.await.unwrap();
    let again = client
        .act("backup", json!({"name": "daily"}))
        .await
        .unwrap();
    assert!(again["reused"].as_u64() > Some(0), "{again}");
    let end = again["partitions"][3]["high_watermark"].as_u64().unwrap();
    assert_eq!(end, 4000);
    let log_id = client.act("version", json!({})).await.unwrap()["log_id"].clone();
    broker.stop();

    std::fs::remove_dir_all(broker.dir.path().join("log")).unwrap();
    restored(&backups.join("daily"), &broker.dir.path().join("log"));
    broker.restart();
    let mut client = broker.client().await;
    assert_ne!(
        client.act("version", json!({})).await.unwrap()["log_id"],
        log_id
    );
    let rows = client
        .read(json!({"partition": 3, "start": 0, "end": end}))
        .await
        .unwrap();
    assert_eq!(rows.len() as u64, end);
    for (number, row) in rows.iter().enumerate() {
        assert_eq!(
            (row.offset, &row.value),
            (number as u64, &value(number as u32))
        );
    }
    let group = client
        .act("committed", json!({"group": "g"}))
        .await
        .unwrap();
    assert_eq!(group["partitions"]["3"]["committed"], 90, "{group}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_names_a_backup_and_can_write_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let refusal = client.refusal("backup", json!({"name": "daily"})).await;
    assert_eq!(
        refusal.code,
        Code::InvalidArgument,
        "off unless it is set up"
    );
    drop(broker);

    let backups = folder.path().join("backups");
    let broker = TestBroker::start(&[&format!("log.backup_dir={}", backups.display())]);
    let mut client = broker.client().await;
    for name in ["", "..", "../elsewhere", "/tmp/x", "a/b", ".git"] {
        let refusal = client.refusal("backup", json!({"name": name})).await;
        assert_eq!(refusal.code, Code::InvalidArgument, "{name}");
    }
    client
        .refusal("backup", json!({"name": "a", "dir": "/tmp"}))
        .await;
    assert!(!backups.exists());
    // A link in the folder is not followed, and existing files are not overwritten.
    std::fs::create_dir_all(&backups).unwrap();
    std::os::unix::fs::symlink(folder.path(), backups.join("link")).unwrap();
    std::fs::create_dir(backups.join("full")).unwrap();
    std::fs::write(backups.join("full/letter"), b"dear").unwrap();
    client.refusal("backup", json!({"name": "link"})).await;
    client.refusal("backup", json!({"name": "full"})).await;
    for number in 0..14 {
        client
            .act("backup", json!({"name": format!("b{number}")}))
            .await
            .unwrap();
    }
    let refusal = client
        .refusal("backup", json!({"name": "one-too-many"}))
        .await;
    assert!(
        refusal.body["message"]
            .as_str()
            .unwrap()
            .contains("16 backups")
    );
    client.act("backup", json!({"name": "b3"})).await.unwrap();
    drop(broker);

    let inside = TestBroker::start(&[]);
    let data = inside.dir.path().join("log");
    drop(inside);
    let broker = TestBroker::start(&[
        &format!("data_dir={}", data.display()),
        &format!("log.backup_dir={}", data.join("backups").display()),
    ]);
    let mut client = broker.client().await;
    let refusal = client.refusal("backup", json!({"name": "a"})).await;
    assert!(
        refusal.body["message"]
            .as_str()
            .unwrap()
            .contains("contains the other")
    );
}
