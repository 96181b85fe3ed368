//! How often the disk is written at low rates, counted at the file system calls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::watched::{Watcher, watched};
use crate::support::*;
use headwater_log::{Class, ClassConfig, Log, LogConfig, Seams, SyncMode};

/// Counts syncs of files and folders.
#[derive(Default)]
struct Syncs(AtomicU64);

impl Watcher for Syncs {
    fn before_sync(&self, _path: &Path) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn with_sync(dir: &Path, sync: SyncMode) -> LogConfig {
    LogConfig {
        sync,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new(dir)
    }
}

/// Appends records to both partitions every few milliseconds; returns the number of syncs, of records, and the time.
fn syncs_at_a_low_rate(sync: SyncMode) -> (u64, u64, Duration) {
    let dir = tempfile::tempdir().expect("a folder");
    let count = Arc::new(Syncs::default());
    let log = open_with(with_sync(dir.path(), sync), watched(&count));
    // The first maintenance run prepares the spare of the internal partition.
    log.maintain();
    let before = count.0.load(Ordering::SeqCst);
    let began = Instant::now();
    let mut appended = 0;
    let mut ends = [headwater_log::Offset(0); 2];
    while began.elapsed() < Duration::from_millis(1500) {
        for (partition, end) in log.partitions().iter().zip(&mut ends) {
            *end = partition
                .append(records(1, &["little"]))
                .expect("taken")
                .end;
        }
        appended += 1;
        if sync == SyncMode::Always {
            // Appends during a sync share the next one, as they would on a slow disk.
            for (partition, end) in log.partitions().iter().zip(ends) {
                await_durable(partition, end);
            }
        }
        // This sleep sets the rate of the load; it does not wait for a result.
        std::thread::sleep(Duration::from_millis(10));
    }
    for (partition, end) in log.partitions().iter().zip(ends) {
        await_durable(partition, end);
    }
    let syncs = count.0.load(Ordering::SeqCst) - before;
    let figures: u64 = log
        .partitions()
        .iter()
        .map(|partition| partition.stats().syncs + partition.stats().folder_syncs)
        .sum();
    assert!(
        figures >= syncs,
        "the log counts its own: {figures} of {syncs}"
    );
    (syncs, appended, began.elapsed())
}

#[test]
fn an_interval_bounds_the_syncs_of_each_partition_its_own_state_included() {
    let interval = Duration::from_millis(250);
    let (syncs, appended, took) = syncs_at_a_low_rate(SyncMode::Interval(interval));
    let bound = 2 * (took.as_millis().div_ceil(interval.as_millis()) as u64 + 1);
    assert!(
        syncs <= bound,
        "{syncs} syncs of two partitions in {took:?}, {appended} appends each"
    );
    assert!(syncs >= 2, "and there are some");
}

#[test]
fn without_an_interval_every_append_at_a_low_rate_is_a_sync() {
    let (syncs, appended, _) = syncs_at_a_low_rate(SyncMode::Always);
    assert!(
        syncs > appended,
        "{syncs} syncs of {appended} appends to two"
    );
}

#[test]
fn nothing_is_shown_before_its_sync_and_both_marks_meet_within_the_interval() {
    let dir = tempfile::tempdir().expect("a folder");
    let interval = Duration::from_secs(2);
    let log = open_with(
        with_sync(dir.path(), SyncMode::Interval(interval)),
        Seams::system(),
    );
    let partition = telemetry(&log);
    let mut appended = 0;
    loop {
        // The sync that begins the interval.
        append(partition, &["first"]);
        let began = Instant::now();
        let range = partition.append(records(1, &["second"])).expect("taken");
        await_that("it to be written", || partition.written() == range.end);
        let seen = (
            partition.high_watermark(),
            partition.read(range.start, 100).expect("empty").len(),
            partition.read_tail(range.start, 100).map(|tail| tail.len()),
        );
        let is_early = began.elapsed() < interval;
        let began = Instant::now();
        await_durable(partition, range.end);
        assert!(began.elapsed() < interval * 5);
        appended += 2;
        assert_eq!(read_all(partition).len(), appended);
        // If the machine stalled for an interval, this run proves nothing.
        if is_early {
            assert_eq!(seen, (range.start, 0, Some(0)), "not yet synced");
            break;
        }
    }
}

/// A log whose maintenance runs when the test says so, at the time it says.
fn with_hand_clock(dir: &Path) -> (Log, Arc<HandClock>) {
    let clock = HandClock::at(1_800_000_000_000_000);
    let config = LogConfig {
        maintain_every: None,
        ..config(dir)
    };
    (open_with(config, with_clock(&clock)), clock)
}

#[test]
fn marks_of_idleness_are_a_minute_apart_at_least() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, clock) = with_hand_clock(dir.path());
    for _ in 0..60 {
        append(telemetry(&log), &["now and then"]);
        clock.pass(Duration::from_secs(10));
        log.maintain();
    }
    let marks = telemetry(&log).stats().checkpoint_bytes / 56;
    assert!((5..=11).contains(&marks), "{marks} marks in ten minutes");
}

#[test]
fn a_partition_that_stays_idle_is_marked_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, clock) = with_hand_clock(dir.path());
    append(telemetry(&log), &["once"]);
    clock.pass(Duration::from_secs(10));
    await_that("the mark", || {
        log.maintain();
        telemetry(&log).stats().checkpoint_bytes > 0
    });
    for _ in 0..10 {
        clock.pass(Duration::from_secs(100));
        log.maintain();
    }
    assert_eq!(telemetry(&log).stats().checkpoint_bytes, 56);
}

/// The writer has nothing else to do then; it must still observe the interval.
#[test]
fn what_a_caller_appends_at_an_interval_is_synced_and_told_when_that_has_passed() {
    let dir = tempfile::tempdir().expect("a folder");
    let sync = SyncMode::Interval(Duration::from_millis(50));
    let log = open_with(with_sync(dir.path(), sync), Seams::system());
    let partition = telemetry(&log);
    let told = Arc::new(AtomicU64::new(0));
    let (heard, watched) = (Arc::clone(&told), partition.clone());
    let watcher: headwater_log::Watcher = Arc::new(move || {
        heard.store(watched.high_watermark().0, Ordering::SeqCst);
    });
    partition.watch(&watcher);
    for n in 1..=5 {
        let range = partition.append_inline(records(1, &["now and then"]));
        assert_eq!(range.expect("taken").end.0, n);
        await_that("the watcher to hear of it", || {
            told.load(Ordering::SeqCst) == n
        });
    }
}

#[test]
fn an_index_is_written_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        maintain_every: None,
        ..config(dir.path())
    };
    let log = open_with(config, Seams::system());
    for _ in 0..20 {
        append(telemetry(&log), &[vec![7; 9000]]);
    }
    log.maintain();
    let written = telemetry(&log).stats().index_bytes;
    assert!(written > 0);
    log.maintain();
    assert_eq!(telemetry(&log).stats().index_bytes, written);
}
