//! A folder of a cluster names its node: nothing that is not of the cluster changes it, and what can only read may.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::support::*;
use headwater_log::tools::{
    Access, PurgeWhat, ToolError, Work, backup, purge, repair, restore, verify,
};
use headwater_log::{
    Class, ClassConfig, Epoch, Log, LogConfig, LogId, Offset, OpenError, ReplicaConfig, Seams,
    Secret,
};

static STOP: AtomicBool = AtomicBool::new(false);
const ID: LogId = LogId::from_bytes([7; 16]);

fn alone(dir: &Path) -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        tail_bytes: 0,
        maintain_every: None,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new(dir)
    }
}

fn of_node(dir: &Path, node: &str) -> LogConfig {
    LogConfig {
        expected_id: Some(ID),
        replica: Some(ReplicaConfig {
            node: node.to_owned(),
            committed: Vec::new(),
            begin_anew_at: Vec::new(),
            secret: Some(Secret::from_bytes([9; 8])),
            epoch: Epoch(1),
        }),
        ..alone(dir)
    }
}

fn refused(config: LogConfig) -> OpenError {
    match Log::open(config, Seams::system()) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

/// A member's folder with one committed record and one that is not.
fn member_in(dir: &Path) -> Log {
    let log = open_with(of_node(dir, "a"), Seams::system());
    let partition = log.by_name("telemetry-0").expect("it is there");
    partition.lead(Epoch(1)).expect("a first term");
    for payload in ["committed", "not yet"] {
        let range = partition.append(records(1, &[payload])).expect("queued");
        await_that("the sync", || partition.synced() == range.end);
    }
    assert_eq!(partition.commit_to(Offset(1)), Offset(1));
    log
}

#[test]
fn a_folder_of_a_node_keeps_its_disk_id_and_is_opened_as_that_node_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(of_node(dir.path(), "a"), Seams::system());
    let disk_id = log.disk_id().expect("it is a member's");
    drop(log);
    let text = std::fs::read_to_string(dir.path().join("log.meta")).expect("text");
    assert!(text.contains("\"format\":2,"), "{text}");

    let error = refused(alone(dir.path()));
    assert!(matches!(&error, OpenError::OfCluster { node, .. } if node == "a"));
    let told = error.to_string();
    assert!(told.contains("belongs to node a of a cluster"), "{told}");
    let error = refused(of_node(dir.path(), "b")).to_string();
    assert!(error.contains("belongs to node a, not to b"), "{error}");

    let log = open_with(of_node(dir.path(), "a"), Seams::system());
    assert_eq!(log.disk_id(), Some(disk_id));
    let other = tempfile::tempdir().expect("a folder");
    let second = open_with(of_node(other.path(), "a"), Seams::system());
    assert_ne!(second.disk_id(), Some(disk_id), "a new folder, a new disk");
}

#[test]
fn a_log_of_its_own_does_not_become_a_member() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = of_node(dir.path(), "a");
    config.replica = None;
    let log = open_with(config, Seams::system());
    assert_eq!(log.disk_id(), None);
    drop(log);
    let error = refused(of_node(dir.path(), "a"));
    assert!(matches!(error, OpenError::NotOfCluster { .. }), "{error}");
    assert!(error.to_string().contains("join with an empty folder"));
}

#[test]
fn a_meta_whose_format_and_member_differ_is_damaged_and_a_newer_one_is_told() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open_with(of_node(dir.path(), "a"), Seams::system()));
    let path = dir.path().join("log.meta");
    let text = std::fs::read_to_string(&path).expect("text");
    let json = text.lines().next().expect("a line");
    for (to, told) in [("1", "exactly in format 2"), ("3", "reads up to 2")] {
        let json = json.replace("\"format\":2", &format!("\"format\":{to}"));
        let sum = crc32c::crc32c(json.as_bytes());
        std::fs::write(&path, format!("{json}\n{sum:08x}\n")).expect("written");
        let error = refused(of_node(dir.path(), "a")).to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn tools_that_decide_alone_refuse_a_folder_of_a_cluster_also_without_its_meta() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(member_in(dir.path()));
    let seams = Seams::system();
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &STOP,
    };
    let dest = tempfile::tempdir().expect("a folder");
    let tries = || {
        let purged = purge(dir.path(), PurgeWhat::Device("d"), work).map(drop);
        let repaired = repair(dir.path(), &BTreeMap::new(), false, work).map(drop);
        let copied = backup(dir.path(), &dest.path().join("copy"), work).map(drop);
        [purged, repaired, copied]
    };
    let assert_refused = |result: Result<(), ToolError>| {
        let error = result.expect_err("it is a member's").to_string();
        assert!(error.contains("is the copy of a cluster's log"), "{error}");
    };
    tries().into_iter().for_each(assert_refused);
    verify(dir.path(), Access::Alone, work).expect("reading is no harm");

    std::fs::write(dir.path().join("shard-0.replica"), b"").expect("written");
    std::fs::remove_file(dir.path().join("log.meta")).expect("removed");
    tries().into_iter().for_each(assert_refused);
    assert!(!dir.path().join("log.meta").exists());
}

#[test]
fn a_backup_of_a_running_member_becomes_a_log_of_its_own_with_what_is_committed() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = member_in(dir.path());
    let seams = Seams::system();
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &STOP,
    };
    let dest = tempfile::tempdir().expect("a folder");
    let (copy, target) = (dest.path().join("copy"), dest.path().join("log"));
    log.backup(&copy, work).expect("copied");
    restore(&copy, &target, false, work).expect("restored");
    let restored = open_with(alone(&target), Seams::system());
    assert_eq!((restored.disk_id(), restored.id() == ID), (None, false));
    let partition = restored.by_name("telemetry-0").expect("it is there");
    assert_eq!(read_all(partition), [(0, b"committed".to_vec())]);
}

/// `log.meta` counts the starts of this node, and its batches have the terms of all leaders.
#[test]
fn a_term_above_the_starts_of_a_node_is_no_damage() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(of_node(dir.path(), "a"), Seams::system());
    let partition = log.by_name("telemetry-0").expect("it is there");
    partition.lead(Epoch(9)).expect("a term");
    let range = partition.append(records(1, &["x"])).expect("queued");
    await_that("the sync", || partition.synced() == range.end);
    assert_eq!(partition.commit_to(range.end), range.end);
    let work = Work {
        seams: &Seams::system(),
        progress: &|_, _| {},
        stop: &STOP,
    };
    let dest = tempfile::tempdir().expect("a folder");
    let copy = dest.path().join("copy");
    log.backup(&copy, work).expect("copied");
    drop(log);
    let report = verify(dir.path(), Access::Alone, work).expect("it is read");
    assert!(!report.is_damaged(), "{report:?}");

    for same_id in [false, true] {
        let target = dest.path().join(format!("log-{same_id}"));
        restore(&copy, &target, same_id, work).expect("restored");
        let restored = open_with(alone(&target), Seams::system());
        let partition = restored.by_name("telemetry-0").expect("it is there");
        assert_eq!(read_all(partition), [(0, b"x".to_vec())]);
        assert!(partition.epoch() > Epoch(9));
    }
}
