//! A replica that may lack what it had on its disk changes nothing and takes nothing: the others have what is missing.

use std::path::{Path, PathBuf};

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{
    Class, ClassConfig, Epoch, Log, LogConfig, LogId, Offset, Partition, ReplicaConfig,
    ReplicaError, Seams, Secret,
};

const FOUR: [&str; 4] = ["first", "second", "third", "fourth"];

fn settings(dir: &Path, epoch: u64, committed: u64, anew: Option<u64>) -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        tail_bytes: 0,
        maintain_every: None,
        expected_id: Some(LogId::from_bytes([7; 16])),
        replica: Some(ReplicaConfig {
            node: "a".to_owned(),
            committed: vec![Offset(0), Offset(committed)],
            begin_anew_at: vec![None, anew.map(Offset)],
            secret: Some(Secret::from_bytes([9; 8])),
            epoch: Epoch(epoch),
        }),
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new(dir)
    }
}

fn open(dir: &Path, epoch: u64, committed: u64, anew: Option<u64>) -> (Log, Partition) {
    let log = open_with(settings(dir, epoch, committed, anew), Seams::system());
    let partition = log.by_name("telemetry-0").expect("it is there").clone();
    (log, partition)
}

fn append(partition: &Partition, payloads: &[&str]) {
    for payload in payloads {
        let range = partition.append(records(1, &[payload])).expect("queued");
        await_that("the sync", || partition.synced() == range.end);
    }
}

/// A folder with these batches, of which this many are committed.
fn replica_of(payloads: &[&str], committed: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, partition) = open(dir.path(), 4, 0, None);
    partition.lead(Epoch(4)).expect("it leads");
    append(&partition, payloads);
    partition.commit_to(Offset(committed));
    drop((log, partition));
    dir
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(dir.join("telemetry-0")).expect("a folder");
    let paths = folder.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "seg"))
        .collect();
    found.sort();
    found
}

fn place_of(bytes: &[u8], text: &str) -> usize {
    let found = bytes
        .windows(text.len())
        .position(|at| at == text.as_bytes());
    found.expect("it is in the file")
}

/// Damages the record with this payload.
fn spoil(dir: &Path, payload: &str) {
    let path = &segments(dir)[0];
    let mut bytes = std::fs::read(path).expect("readable");
    let at = place_of(&bytes, payload);
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("written");
}

/// Nothing from the record with this payload on is there, as if its writes had never reached the disk.
fn forget_from(dir: &Path, payload: &str) {
    let path = &segments(dir)[0];
    let mut bytes = std::fs::read(path).expect("readable");
    let before = FOUR[FOUR.iter().position(|one| *one == payload).expect("known") - 1];
    let at = place_of(&bytes, before) + before.len();
    bytes[at..].fill(0);
    std::fs::write(path, bytes).expect("written");
}

fn assert_takes_nothing(partition: &Partition) {
    let led = partition.lead(Epoch(9)).map(drop);
    let taken = partition.take(partition.epoch(), Vec::new());
    for refused in [led, taken] {
        let told = refused.expect_err("it is doubtful").to_string();
        assert!(told.contains("may lack records that it had"), "{told}");
    }
}

#[test]
fn what_follows_damage_is_left_alone_until_the_replica_is_cut() {
    let dir = replica_of(&FOUR, 1);
    spoil(dir.path(), "second");
    let before = std::fs::read(&segments(dir.path())[0]).expect("readable");
    for _ in 0..2 {
        let (log, partition) = open(dir.path(), 4, 1, None);
        let doubt = partition
            .doubt()
            .expect("two batches are behind the damage");
        assert!(doubt.contains("ends at offset 1"), "{doubt}");
        assert_eq!((partition.written(), partition.gaps()), (Offset(1), vec![]));
        assert_takes_nothing(&partition);
        drop((log, partition));
        let after = std::fs::read(&segments(dir.path())[0]).expect("readable");
        assert!(before == after, "a start and a stop change nothing");
    }
    let (log, partition) = open(dir.path(), 4, 1, None);
    partition.truncate(Offset(1)).expect("it ends there");
    assert_eq!(partition.doubt(), None);
    partition.lead(Epoch(5)).expect("it has the most of all");
    append(&partition, &["other"]);
    partition.commit_to(Offset(2));
    drop((log, partition));
    let (_log, partition) = open(dir.path(), 5, 2, None);
    assert_eq!((partition.doubt(), partition.written()), (None, Offset(2)));
    let found = [(0, b"first".to_vec()), (1, b"other".to_vec())];
    assert_eq!(read_all(&partition), found, "nothing stale follows");
}

#[test]
fn an_end_that_the_last_stop_or_the_cluster_knows_to_be_higher_is_in_doubt() {
    let dir = replica_of(&FOUR, 4);
    forget_from(dir.path(), "fourth");
    let (log, partition) = open(dir.path(), 4, 0, None);
    let doubt = partition.doubt().expect("the stop has noted four");
    assert!(doubt.contains("may have had those below 4"), "{doubt}");
    assert_takes_nothing(&partition);
    drop((log, partition));
    std::fs::remove_file(dir.path().join("telemetry-0/mark")).expect("it is still there");
    let (log, partition) = open(dir.path(), 5, 4, None);
    let doubt = partition.doubt().expect("the cluster has noted four");
    assert!(doubt.contains("those below 4 were committed"), "{doubt}");
    assert_takes_nothing(&partition);
    drop((log, partition));
    let (_log, partition) = open(dir.path(), 5, 3, None);
    assert_eq!(partition.doubt(), None, "the control");
}

#[test]
fn a_replica_with_a_hole_can_not_be_cut_and_begins_anew() {
    let large = "x".repeat(40 << 10);
    let dir = tempfile::tempdir().expect("a folder");
    let (log, partition) = open(dir.path(), 4, 0, None);
    partition.lead(Epoch(4)).expect("it leads");
    for n in 1..=4 {
        append(&partition, &[&large]);
        partition.commit_to(Offset(n));
    }
    drop((log, partition));
    let files = segments(dir.path());
    assert_eq!(files.len(), 4);
    std::fs::remove_file(&files[1]).expect("removed");

    let (log, partition) = open(dir.path(), 5, 4, None);
    let doubt = partition.doubt().expect("offset 1 is gone");
    assert!(doubt.contains("offsets 1 to 2 are gone"), "{doubt}");
    assert_takes_nothing(&partition);
    let refused = partition
        .truncate(Offset(4))
        .expect_err("it would keep the hole");
    assert!(matches!(&refused, ReplicaError::NoCut { .. }), "{refused}");
    assert!(
        refused.to_string().contains("let it begin anew"),
        "{refused}"
    );
    drop((log, partition));

    for _ in 0..2 {
        let (log, partition) = open(dir.path(), 5, 0, Some(3));
        assert_eq!(partition.doubt(), None);
        assert_eq!(
            (partition.log_start(), partition.written()),
            (Offset(3), Offset(3))
        );
        assert_eq!(partition.topics().expect("readable"), []);
        partition.lead(Epoch(6)).expect("it leads");
        append(&partition, &["again"]);
        partition.commit_to(Offset(4));
        drop((log, partition));
    }
    let (_log, partition) = open(dir.path(), 6, 4, None);
    assert_eq!(read_all(&partition), [(3, b"again".to_vec())]);
}

#[test]
fn a_new_replica_begins_where_the_log_of_its_leader_begins() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(dir.path(), 4, 0, Some(3)));
    let (_log, partition) = open(dir.path(), 4, 0, None);
    let ends = (partition.log_start(), partition.written());
    assert_eq!((partition.doubt(), ends), (None, (Offset(3), Offset(3))));
}

#[test]
fn a_power_failure_while_it_begins_anew_leaves_all_that_was_or_a_doubt() {
    let dir = Path::new("/data");
    let mut calls = 0;
    for nth in 1.. {
        let files = SimFiles::new(300 + nth);
        let log = open_with(settings(dir, 4, 0, None), files.seams());
        let partition = log.by_name("telemetry-0").expect("it is there").clone();
        partition.lead(Epoch(4)).expect("it leads");
        for n in 1..=3 {
            append(&partition, &["x".repeat(40 << 10).as_str()]);
            partition.commit_to(Offset(n));
        }
        drop((log, partition));
        files.cut_before(nth);
        let began = Log::open(settings(dir, 4, 0, Some(2)), files.seams()).map(drop);
        let was_off = files.is_off();
        if !was_off {
            files.cancel_cut();
        }
        files.power_cut();
        let log = open_with(settings(dir, 4, 3, None), files.seams());
        let partition = log.by_name("telemetry-0").expect("it is there");
        let is_as_before = partition.doubt().is_none() && read_all(partition).len() == 3;
        assert!(is_as_before || partition.doubt().is_some(), "call {nth}");
        assert!(began.is_err() || partition.log_start() == Offset(2));
        calls = nth;
        if !was_off {
            break;
        }
    }
    assert!(calls > 8, "the power failed in each of {calls} places");
}
