//! A filter of a reader may take long. It runs without the locks that the writer and the event loop take.

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;

use crate::support::*;
use headwater_log::{Log, LogConfig, Partition, RecordMeta, Records, Seams, TopicFilter};

/// More than are copied at a time.
const ACTIVE: u32 = 600;
const SEALED: u32 = 20;

fn topic(number: u32) -> String {
    format!("devices/{number}/telemetry")
}

/// Appends a record, large enough to begin a segment, and waits for it.
fn roll(partition: &Partition, number: u32) {
    let range = partition.append(records(number, &[vec![7; 40 << 10]]));
    await_durable(partition, range.expect("taken").end);
}

/// Some topics in sealed segments, and many in the active one.
fn filled(dir: &Path) -> Log {
    let log = open_with(
        LogConfig {
            maintain_every: None,
            ..without_tail(dir)
        },
        Seams::system(),
    );
    let partition = telemetry(&log);
    (0..SEALED).for_each(|number| roll(partition, number));
    roll(partition, SEALED);
    let mut records = Records::new();
    for number in SEALED..SEALED + ACTIVE {
        let topic = records.topic(&topic(number), 0..0).expect("room");
        let client = records.client("client").expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, b"x").expect("room");
    }
    let range = partition.append(records).expect("taken");
    await_durable(partition, range.end);
    assert_eq!(partition.topics().expect("topics").len() as u32, all().end);
    log
}

fn all() -> Range<u32> {
    0..SEALED + ACTIVE
}

/// Asks with a filter that takes every topic and, when it is called for these times, rolls the segment.
fn ask(partition: &Partition, rolls: &[u32], question: impl FnOnce(&dyn Fn(&str) -> bool)) {
    let called = Cell::new(0);
    question(&|_| {
        called.set(called.get() + 1);
        if rolls.contains(&called.get()) {
            let before = partition.size_bytes();
            roll(partition, 5_000 + called.get());
            assert!(partition.size_bytes() > before);
        }
        true
    });
    let last = rolls.iter().max().expect("one");
    assert!(called.get() >= *last, "called {} times", called.get());
}

#[test]
fn topics_are_listed_while_a_filter_waits_for_the_writer() {
    let before: Vec<String> = all().map(topic).collect();
    for rolls in [[1, 2], [255, 257], [ACTIVE, ACTIVE + 1]] {
        let dir = tempfile::tempdir().expect("a folder");
        let log = filled(dir.path());
        ask(telemetry(&log), &rolls, |filter| {
            let topics = telemetry(&log).topics_within(filter, usize::MAX);
            let topics = topics.expect("topics").expect("few");
            let mut names: Vec<String> = topics.into_iter().map(|topic| topic.topic).collect();
            names.retain(|name| before.contains(name));
            assert_eq!(names.len(), before.len(), "{rolls:?}");
        });
    }
}

#[test]
fn every_topic_is_asked_for_while_a_filter_waits_for_the_writer() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = filled(dir.path());
    ask(telemetry(&log), &[1, ACTIVE], |filter| {
        assert!(telemetry(&log).every_topic(filter).expect("an answer"));
    });
    let log = filled(&dir.path().join("another"));
    let last = topic(all().end - 1);
    let every = telemetry(&log).every_topic(&|topic| topic != last);
    assert!(!every.expect("an answer"), "it is copied last");
}

#[test]
fn candidates_are_found_while_a_filter_waits_for_the_writer() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = filled(dir.path());
    let partition = telemetry(&log);
    let until = partition.high_watermark();
    let active = partition.log_start().plus(u64::from(SEALED) + 1)..until;
    for (from, rolls) in [
        (partition.log_start(), vec![1, 2]),
        (active.start, vec![1, 300]),
    ] {
        ask(partition, &rolls, |filter| {
            let mut at = from;
            while at < until {
                let mut selection = Default::default();
                let wanted = TopicFilter::Matching(filter);
                let found = partition
                    .candidate_ranges(at, until, 100, &mut selection, wanted)
                    .expect("an answer");
                assert_eq!(found.ranges.first().map(|range| range.start), Some(at));
                at = found.ranges.last().expect("one").end;
            }
        });
    }
}

#[test]
fn matching_records_are_read_while_a_filter_waits_for_the_writer() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = filled(dir.path());
    let partition = telemetry(&log);
    let (from, until) = (partition.log_start(), partition.high_watermark());
    ask(partition, &[1, 2, 3], |filter| {
        let read = partition.read_matching(from, until, 1 << 20, filter);
        let (batches, next) = read.expect("a read");
        assert_eq!(batches[0].base_offset(), from);
        assert!(next > from);
    });
}
