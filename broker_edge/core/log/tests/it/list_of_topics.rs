//! The list of topics beside the segments: a start does not wait for a lost list, answers are correct meanwhile, and
//! every rebuild of a log writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::watched::{Watcher, watched};
use crate::support::*;
use headwater_log::tools::{PurgeWhat, Work, purge, restore};
use headwater_log::{File, Log, LogConfig, Offset, RecordMeta, Records, Seams};
use parking_lot::{Condvar, Mutex};

/// Real files. While the gate is closed, reads of indexes beyond their heads wait.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    waited: AtomicBool,
    /// Indexes that were read beyond their heads.
    read: Mutex<BTreeSet<PathBuf>>,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        *self.is_closed.lock() = is_closed;
        self.opened.notify_all();
    }

    fn pass(&self, path: &Path) {
        self.read.lock().insert(path.to_owned());
        let mut is_closed = self.is_closed.lock();
        while *is_closed {
            self.waited.store(true, Ordering::SeqCst);
            self.opened.wait(&mut is_closed);
        }
    }
}

impl Watcher for Gate {
    fn before_read(&self, path: &Path, file: &dyn File, position: u64) -> io::Result<()> {
        let is_index = path.extension().is_some_and(|suffix| suffix == "idx");
        // Beyond the head, not just to find the end of the file.
        if is_index && position > 0 && position < file.len()? {
            self.pass(path);
        }
        Ok(())
    }
}

fn settings(dir: &Path) -> LogConfig {
    LogConfig {
        segment_bytes: 16 << 10,
        tail_bytes: 0,
        ..config(dir)
    }
}

/// Each round writes about one segment with its own topic; round `n` retains a value if it is in `retaining`.
fn fill(log: &Log, rounds: u32, retaining: std::ops::Range<u32>) {
    for round in 0..rounds {
        let mut records = Records::new();
        let name = format!("devices/{}/telemetry", round % 10);
        let topic = records.topic(&name, 8..9).expect("room");
        let client = records.client("client").expect("room");
        let meta = RecordMeta {
            retain: retaining.contains(&round),
            ..RecordMeta::new(topic, client, 1)
        };
        records.push(meta, &[round as u8; 12 << 10]).expect("room");
        let range = telemetry(log).append(records).expect("taken");
        await_durable(telemetry(log), range.end);
    }
    log.maintain();
    // Asked once, so that the list exists.
    telemetry(log).topics().expect("topics");
}

fn retained(log: &Log) -> BTreeMap<String, Offset> {
    let mut found = BTreeMap::new();
    telemetry(log)
        .for_each_retained_offset(&mut |topic, place| {
            found.insert(topic.to_owned(), place.offset);
        })
        .expect("they are read");
    found
}

#[test]
fn a_start_without_the_list_waits_for_no_index_and_answers_right_meanwhile() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 60, 0..0);
    let topics = telemetry(&log).topics().expect("topics");
    assert_eq!(topics.len(), 10);
    drop(log);
    let list = dir.path().join("telemetry-0/topics");
    std::fs::remove_file(&list).expect("there is a list");
    let gate = Arc::new(Gate::default());
    gate.set(true);
    // Hangs here, or below, if the start or the query for retained values waits.
    let log = open_with(settings(dir.path()), watched(&gate));
    assert_eq!(retained(&log), BTreeMap::new());
    let every = telemetry(&log).every_topic(&|_| true).expect("an answer");
    assert!(!every, "not all topics are known yet");
    await_that("the indexes are being read", || {
        gate.waited.load(Ordering::SeqCst)
    });
    let asker = {
        let log = log.clone();
        thread::spawn(move || telemetry(&log).topics().expect("topics"))
    };
    gate.set(false);
    assert_eq!(asker.join().expect("no panic"), topics);
    assert!(telemetry(&log).every_topic(&|_| true).expect("an answer"));
    await_that("the list is written again", || list.exists());
}

#[test]
fn a_log_can_be_closed_while_its_topics_are_still_being_read() {
    let dir = tempfile::tempdir().expect("a folder");
    fill(&open_with(settings(dir.path()), Seams::system()), 40, 0..0);
    std::fs::remove_file(dir.path().join("telemetry-0/topics")).expect("there is a list");
    let gate = Arc::new(Gate::default());
    gate.set(true);
    let log = open_with(settings(dir.path()), watched(&gate));
    await_that("the indexes are being read", || {
        gate.waited.load(Ordering::SeqCst)
    });
    let closer = thread::spawn(move || log.shutdown());
    gate.set(false);
    closer.join().expect("no panic");
}

#[test]
fn retained_values_are_the_same_with_and_without_the_list() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 60, 15..38);
    let expected = retained(&log);
    assert_eq!(expected.len(), 10);
    drop(log);
    let list = dir.path().join("telemetry-0/topics");
    for _ in 0..5 {
        std::fs::remove_file(&list).expect("there is a list");
        let log = open_with(settings(dir.path()), Seams::system());
        assert_eq!(retained(&log), expected);
        let topics = telemetry(&log).topics().expect("topics");
        assert_eq!(topics.len(), 10);
        assert_eq!(retained(&log), expected);
        await_that("the list is written again", || list.exists());
    }
}

#[test]
fn purge_and_restore_leave_a_list_that_the_next_start_uses() {
    let dir = tempfile::tempdir().expect("a folder");
    let (data, copy, made) = (
        dir.path().join("data"),
        dir.path().join("copy"),
        dir.path().join("made"),
    );
    let log = open_with(settings(&data), Seams::system());
    fill(&log, 60, 0..20);
    let (stop, seams) = (AtomicBool::new(false), Seams::system());
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    log.backup(&copy, work).expect("a backup");
    drop(log);
    restore(&copy, &made, false, work).expect("restored");
    purge(&data, PurgeWhat::Device("3"), work).expect("purged");
    for (dir, topics) in [(&made, 10), (&data, 9)] {
        let gate = Arc::new(Gate::default());
        let log = open_with(settings(dir), watched(&gate));
        let found = telemetry(&log).topics().expect("topics").len();
        assert_eq!(found, topics, "{}", dir.display());
        // The few segments that are newer than the list.
        let read = gate.read.lock().len();
        assert!(read <= 8, "{read} indexes in {}", dir.display());
    }
}

#[test]
fn a_topic_that_is_sealed_after_the_topics_were_read_is_among_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        maintain_every: None,
        ..settings(dir.path())
    };
    let log = open_with(config, Seams::system());
    fill(&log, 3, 0..0);
    let topics = || telemetry(&log).topics().expect("topics");
    assert_eq!(topics().len(), 3);
    for device in [77, 78, 79] {
        let range = telemetry(&log).append(records(device, &[vec![7; 12 << 10]]));
        await_durable(telemetry(&log), range.expect("taken").end);
    }
    let names: Vec<String> = topics().into_iter().map(|topic| topic.topic).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names.contains(&"devices/77/telemetry".to_owned()));
}

#[test]
fn long_names_are_held_up_to_a_number_of_bytes_and_listed_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        maintain_every: None,
        segment_bytes: 1 << 20,
        ..settings(dir.path())
    };
    let log = open_with(config, Seams::system());
    let append = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let name = format!("{number}/{}", "n".repeat(60 << 10));
            let mut records = Records::new();
            let topic = records.topic(&name, 0..1).expect("room");
            let client = records.client("client").expect("room");
            let meta = RecordMeta::new(topic, client, 0);
            records.push(meta, b"x").expect("room");
            let range = telemetry(&log).append(records).expect("taken");
            await_durable(telemetry(&log), range.end);
        }
    };
    // Whether all names are wanted is known without reading indexes only while they are held.
    let are_held = || telemetry(&log).every_topic(&|_| true).expect("it is read");
    let listed = || telemetry(&log).topics().expect("topics").len();
    append(0..100);
    assert!(are_held(), "6 MB");
    append(100..600);
    assert!(!are_held(), "36 MB");
    assert_eq!(listed(), 600);
    // A list that would be too long is not made.
    let within = |wanted: &dyn Fn(&str) -> bool, bytes_max| {
        let topics = telemetry(&log).topics_within(wanted, bytes_max);
        topics.expect("topics").map(|topics| topics.len())
    };
    assert_eq!(within(&|_| true, 30 << 20), None);
    assert_eq!(within(&|topic| topic.starts_with("7/"), 1 << 20), Some(1));
    assert_eq!(within(&|_| true, 40 << 20), Some(600));
}

#[test]
fn a_list_of_many_short_names_counts_more_than_their_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let mut records = Records::new();
    let client = records.client("client").expect("room");
    for number in 0..1000 {
        let topic = records.topic(&number.to_string(), 0..1).expect("room");
        let meta = RecordMeta::new(topic, client, 0);
        records.push(meta, b"x").expect("room");
    }
    let range = telemetry(&log).append(records).expect("taken");
    await_durable(telemetry(&log), range.end);
    let within = |bytes_max| {
        let topics = telemetry(&log).topics_within(&|_| true, bytes_max);
        topics.expect("topics").map(|topics| topics.len())
    };
    assert_eq!(within(64 << 10), None);
    assert_eq!(within(1 << 20), Some(1000));
}
