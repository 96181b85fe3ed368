//! The promises of the state store across restarts, crashes and compaction.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use headwater_log::{Class, ClassConfig, Log, LogConfig, Offset, Seams};

use super::compaction::run;
use super::{Change, Compaction, StateError, StateStore};

const DEADLINE: Duration = Duration::from_secs(60);
/// Small enough that a test fills several segments.
const SEGMENT_BYTES: u64 = 64 << 10;

fn open(dir: &Path, compact_after_bytes: u64) -> (Log, Arc<StateStore>) {
    let config = LogConfig {
        segment_bytes: SEGMENT_BYTES,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new(dir)
    };
    let (log, _) = Log::open(config, Seams::system()).unwrap();
    let store = Arc::new(StateStore::open(&log, compact_after_bytes).unwrap());
    (log, store)
}

fn wait_durable(store: &StateStore, end: Offset) {
    let started = Instant::now();
    while store.durable() < end {
        let state = store.partition().state();
        assert!(
            started.elapsed() < DEADLINE,
            "{end} never became durable: {state:?}"
        );
        std::thread::yield_now();
    }
}

fn contents(store: &StateStore) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    store.for_each_prefix("", |key, value| {
        found.insert(key.to_owned(), value.to_vec());
    });
    found
}

#[test]
fn the_latest_value_of_a_key_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (log, store) = open(dir.path(), u64::MAX);
    store.put("group/a", b"1").unwrap();
    store.put("group/b", b"2").unwrap();
    store.put("group/a", b"3").unwrap();
    let changes = [
        Change {
            key: "session/x",
            value: Some(b"4"),
        },
        Change {
            key: "group/b",
            value: None,
        },
    ];
    let end = store.write(&changes).unwrap();
    wait_durable(&store, end);
    assert_eq!(store.end(), end);
    log.shutdown();
    drop((log, store));
    let (_log, store) = open(dir.path(), u64::MAX);
    let expected = [
        ("group/a".to_owned(), b"3".to_vec()),
        ("session/x".to_owned(), b"4".to_vec()),
    ];
    assert_eq!(contents(&store), BTreeMap::from(expected));
    assert_eq!(store.get("group/a").as_deref(), Some(b"3".as_slice()));
    assert_eq!(store.get("group/b"), None);
    let mut groups = Vec::new();
    store.for_each_prefix("group/", |key, _| groups.push(key.to_owned()));
    assert_eq!(groups, ["group/a"]);
}

#[test]
fn a_snapshot_keeps_every_value_and_lets_the_rest_go() {
    let dir = tempfile::tempdir().unwrap();
    let (log, store) = open(dir.path(), u64::MAX);
    for round in 0..60_u32 {
        for key in 0..40 {
            store
                .put(
                    &format!("session/{key}"),
                    &[round.to_le_bytes().as_slice(), &[0; 96]].concat(),
                )
                .unwrap();
        }
        wait_durable(&store, store.end());
    }
    store.delete("session/7").unwrap();
    let before = contents(&store);
    assert_eq!(before.len(), 39);
    store.compact(&AtomicBool::new(false)).unwrap();
    assert!(
        store.partition().log_start() > Offset(0),
        "the records below the snapshot went"
    );
    assert_eq!(contents(&store), before);
    log.shutdown();
    drop((log, store));
    let (_log, store) = open(dir.path(), u64::MAX);
    assert_eq!(contents(&store), before);
}

#[test]
fn a_snapshot_that_was_cut_short_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, store) = open(dir.path(), u64::MAX);
    store.put("group/a", b"old").unwrap();
    store.put("group/b", b"kept").unwrap();
    store.put("group/c", b"gone").unwrap();
    // A `begin` record and some of the values, then a newer value and a removal, but no `end`.
    store.append_snapshot_record("begin", b"{}").unwrap();
    let last = store.append_chunk(None).unwrap();
    assert_eq!(last.as_deref(), Some("group/c"));
    store.put("group/a", b"new").unwrap();
    let end = store.delete("group/c").unwrap();
    wait_durable(&store, end);
    log.shutdown();
    drop((log, store));
    let (_log, store) = open(dir.path(), u64::MAX);
    assert_eq!(store.partition().log_start(), Offset(0));
    let expected = [
        ("group/a".to_owned(), b"new".to_vec()),
        ("group/b".to_owned(), b"kept".to_vec()),
    ];
    assert_eq!(contents(&store), BTreeMap::from(expected));
}

#[test]
fn the_partition_stays_bounded_while_values_change_during_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let compact_after = 2 * SEGMENT_BYTES;
    let (log, store) = open(dir.path(), compact_after);
    let compaction = Compaction::start(&store).unwrap();
    let mut expected = BTreeMap::new();
    let mut written = 0;
    for round in 0..4_000_u64 {
        let (key, value) = (
            format!("session/{}", round % 50),
            [round.to_le_bytes().as_slice(), &[1; 500]].concat(),
        );
        let end = store.put(&key, &value).unwrap();
        written += value.len() as u64;
        expected.insert(key, value);
        if round % 20 == 0 {
            wait_durable(&store, end);
            // Even if the compaction gets its CPU late, the records written so far must be removed eventually.
            let started = Instant::now();
            while store.partition().size_bytes() > 4 * compact_after {
                assert!(started.elapsed() < DEADLINE, "it is not compacted");
                std::thread::yield_now();
            }
        }
    }
    wait_durable(&store, store.end());
    assert!(
        written > 10 * compact_after,
        "the test writes enough for several snapshots"
    );
    assert_eq!(contents(&store), expected);
    drop(compaction);
    log.shutdown();
    drop((log, store));
    let (_log, store) = open(dir.path(), compact_after);
    assert_eq!(contents(&store), expected);
}

#[test]
fn a_stop_ends_the_wait_of_a_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, store) = open(dir.path(), u64::MAX);
    let compaction = Compaction::start(&store).unwrap();
    let stop = AtomicBool::new(false);
    stop.store(true, Ordering::Release);
    store.put("group/a", b"1").unwrap();
    store.compact(&stop).unwrap();
    drop(compaction);
    assert_eq!(store.get("group/a").as_deref(), Some(b"1".as_slice()));
}

#[test]
fn a_stop_while_a_compaction_fails_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, store) = open(dir.path(), 0);
    store.put("group/a", &[1; 1_000]).unwrap();
    store.put("group/a", b"1").unwrap();
    let (ended, end) = channel();
    std::thread::spawn(move || {
        let stop = AtomicBool::new(false);
        run(&store, &stop, |store, stop| {
            stop.store(true, Ordering::Release);
            store.moved.notify();
            Err(StateError::KeyTooLong { bytes: 0 })
        });
        ended.send(()).unwrap();
    });
    assert_eq!(end.recv_timeout(DEADLINE), Ok(()));
}

#[test]
fn a_key_that_no_topic_can_carry_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, store) = open(dir.path(), u64::MAX);
    assert!(store.put(&"k".repeat(super::KEY_BYTES_MAX), b"1").is_ok());
    assert!(
        store
            .put(&"k".repeat(super::KEY_BYTES_MAX + 1), b"1")
            .is_err()
    );
    assert_eq!(store.len(), 1);
}
