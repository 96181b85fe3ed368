//! Idempotency keys of sealed segments: they are looked up in the index files, with filters in memory as far as a
//! budget goes, and no append waits for the look-up of another.

mod rig;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::memory::MemoryFiles;
use crate::support::watched::watched;
use crate::support::*;
use headwater_log::{AppendError, Log, LogConfig, Offset};

use rig::*;

#[test]
fn keys_are_known_while_their_segment_is_written_sealed_saved_and_after_a_start() {
    let files = MemoryFiles::default();
    let log = open_with(settings(Path::new("/data")), files.seams());
    let partition = telemetry(&log);
    fill(partition, 2_000);
    assert!(segments(&files).len() > 3 && files.with_suffix(".idx").is_empty());
    assert_all_known(partition, 2_000);
    log.maintain();
    assert!(!files.with_suffix(".idx").is_empty());
    assert_all_known(partition, 2_000);
    log.shutdown();
    for key_filter_bytes in [0, 1_000, 32 << 20] {
        let config = LogConfig {
            key_filter_bytes,
            ..settings(Path::new("/data"))
        };
        let log = open_with(config, files.copy().seams());
        let partition = telemetry(&log);
        assert_all_known(partition, 2_000);
        log.maintain();
        assert_all_known(partition, 2_000);
        let fresh = again(partition, 2_000).expect("taken");
        assert_eq!((fresh.offset, fresh.duplicate), (Offset(2_000), false));
    }
}

/// More keys than are kept of the newest records whatever happens.
#[test]
fn keys_that_were_dropped_from_memory_are_found_in_the_files() {
    const KEYS: u64 = 200_000;
    let files = MemoryFiles::default();
    let config = LogConfig {
        segment_bytes: 1 << 20,
        ..settings(Path::new("/data"))
    };
    let log = open_with(config, files.seams());
    let partition = telemetry(&log);
    for first in (0..KEYS).step_by(1_000) {
        let range = partition
            .append(rows(TOPIC, first..first + 1_000))
            .expect("taken");
        await_durable(partition, range.end);
        if first % 20_000 == 0 {
            log.maintain();
        }
    }
    log.maintain();
    for first in (0..KEYS).step_by(20_000) {
        let placed = partition
            .append_unique(rows(TOPIC, first..first + 100))
            .expect("taken");
        let offsets = placed.iter().map(|placed| placed.offset.0);
        assert!(offsets.eq(first..first + 100) && placed.iter().all(|placed| placed.duplicate));
    }
}

#[test]
fn new_keys_read_no_index_with_filters_in_memory_and_each_one_without() {
    let dir = tempfile::tempdir().expect("a folder");
    let indexes = Arc::new(Indexes::default());
    {
        let log = open_with(settings(dir.path()), watched(&indexes));
        fill(telemetry(&log), 4_000);
        log.maintain();
    }
    let sealed = files_of(dir.path(), ".idx").len() as u64;
    assert!(sealed > 6);
    let reads_with = |key_filter_bytes| {
        let config = LogConfig {
            key_filter_bytes,
            ..settings(dir.path())
        };
        let (log, at_start) = indexes.reads_of(|| open_with(config, watched(&indexes)));
        assert_eq!(at_start, sealed, "a start reads the heads and no keys");
        log.maintain();
        let number = 9_000 + key_filter_bytes as u64;
        let fresh = || telemetry(&log).append_unique(rows(TOPIC, number..number + 1));
        let (placed, reads) = indexes.reads_of(fresh);
        assert!(!placed.expect("taken")[0].duplicate);
        let (_, without) = indexes.reads_of(|| append(telemetry(&log), &["plain"]));
        assert_eq!(without, 0, "a record without a key asks nobody");
        reads
    };
    // A filter may pass one of some hundred keys: then three reads more.
    assert!(reads_with(32 << 20) <= 3);
    let none = reads_with(0);
    assert!(none >= 2 * sealed, "{none} reads of {sealed} indexes");
    // Room for the filters of the newest segments: the older ones are asked in their files.
    let some = reads_with(3 * 700);
    assert!((2..none - 2).contains(&some), "{some} of {none}");
}

#[test]
fn the_budget_of_the_filters_is_shared_by_the_newest_segments_of_all_partitions() {
    let dir = tempfile::tempdir().expect("a folder");
    let indexes = Arc::new(Indexes::default());
    let config = |key_filter_bytes| LogConfig {
        key_filter_bytes,
        ..LogConfig {
            maintain_every: None,
            ..without_tail(dir.path())
        }
    };
    let clock = HandClock::at(1_800_000_000_000_000);
    {
        let seams = headwater_log::Seams {
            clock: clock.clone(),
            ..watched(&indexes)
        };
        let log = open_with(config(0), seams);
        // The control partition has the older records.
        for name in ["control-0", "telemetry-0"] {
            fill(log.by_name(name).expect("a partition"), 2_000);
            clock.advance(std::time::Duration::from_secs(60));
        }
        log.maintain();
    }
    let reads_of = |log: &Log, name: &str| {
        let partition = log.by_name(name).expect("a partition");
        let fresh = || partition.append_unique(rows("devices/2/telemetry", 9_000..9_001));
        indexes.reads_of(fresh).1
    };
    let segments = files_of(dir.path(), ".idx").len();
    // 12 bits a key of all sealed segments of the telemetry partition, and no more.
    let log = open_with(config(2_000 * 3 / 2 + 32 * segments), watched(&indexes));
    log.maintain();
    assert!(reads_of(&log, "telemetry-0") <= 3);
    let control = reads_of(&log, "control-0");
    assert!(control > segments as u64, "{control}");
}

/// The budget stays what it is while segments are added.
#[test]
fn filters_leave_the_memory_when_those_of_newer_segments_take_their_place() {
    const STORED: u64 = 4_000;
    let dir = tempfile::tempdir().expect("a folder");
    let indexes = Arc::new(Indexes::default());
    {
        let log = open_with(settings(dir.path()), watched(&indexes));
        fill(telemetry(&log), STORED);
        log.maintain();
    }
    let sealed = files_of(dir.path(), ".idx").len() as u64;
    assert!(sealed > 6);
    let config = LogConfig {
        key_filter_bytes: STORED as usize * 3 / 2 + 32 * sealed as usize,
        ..settings(dir.path())
    };
    let log = open_with(config, watched(&indexes));
    let reads = |number| {
        log.maintain();
        let fresh = || again(telemetry(&log), number).expect("taken");
        let (placed, reads) = indexes.reads_of(fresh);
        assert!(!placed.duplicate);
        reads
    };
    assert!(reads(90_000) <= 3, "all filters are in memory");
    for first in (10_000..10_000 + 3 * STORED).step_by(ROWS as usize) {
        let range = telemetry(&log).append(rows(TOPIC, first..first + ROWS));
        await_durable(telemetry(&log), range.expect("taken").end);
    }
    let reads = reads(90_001);
    assert!(reads >= 2 * sealed, "{reads} reads of {sealed} indexes");
}

#[test]
fn a_missing_or_damaged_index_hides_no_key() {
    const KEYS: u64 = 2_000;
    let files = MemoryFiles::default();
    filled(&files, KEYS).shutdown();
    let first = files.with_suffix(".idx").swap_remove(0);
    let length = files.bytes(&first).len();
    let all_known = |change: &dyn Fn(&MemoryFiles), is_before: bool| {
        let files = files.copy();
        if is_before {
            change(&files);
        }
        let log = open_with(settings(Path::new("/data")), files.seams());
        if !is_before {
            change(&files);
        }
        assert_all_known(telemetry(&log), 500);
        // The index was made again, and the next start finds it.
        log.maintain();
        log.shutdown();
        let before = files.segment_bytes_read();
        let log = open_with(settings(Path::new("/data")), files.seams());
        let start_reads = files.segment_bytes_read() - before;
        assert!(
            start_reads < 300_000,
            "{start_reads} bytes of segments read"
        );
        assert_all_known(telemetry(&log), 500);
    };
    for is_before in [true, false] {
        all_known(&|files| files.delete(&first), is_before);
        for at in (0..length).step_by(577) {
            let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 16;
            all_known(&|files| files.change(&first, flip), is_before);
        }
        all_known(
            &|files| files.change(&first, |bytes| bytes.truncate(length / 2)),
            is_before,
        );
    }
}

/// Neither the index nor the segment can be read: nobody can tell, so nothing is appended, and the next try is as good.
#[test]
fn a_key_that_cannot_be_looked_up_is_refused_and_appended_once_when_the_disk_answers() {
    let files = MemoryFiles::default();
    filled(&files, 2_000).shutdown();
    let log = open_with(settings(Path::new("/data")), files.seams());
    let partition = telemetry(&log);
    let first = segments(&files).swap_remove(0);
    files.delete(&first.with_extension("idx"));
    files.fail_open(&first, libc::EIO);
    let refused = again(partition, 9_000).expect_err("unknown");
    let text = refused.to_string();
    let is_clear = matches!(refused, AppendError::Unverified { .. });
    assert!(is_clear && text.contains(".seg: "), "{text}");
    assert_eq!(partition.next_offset(), Offset(2_000));
    // Others go on.
    append(partition, &["plain"]);
    files.mend();
    let placed = [9_000, 9_000, 3].map(|number| again(partition, number).expect("taken"));
    let duplicates = placed.map(|placed| (placed.offset.0, placed.duplicate));
    assert_eq!(duplicates, [(2_001, false), (2_001, true), (3, true)]);
}

#[test]
fn an_index_that_cannot_be_read_is_made_again_from_its_segment() {
    let dir = tempfile::tempdir().expect("a folder");
    let indexes = Arc::new(Indexes::default());
    let log = open_with(settings(dir.path()), watched(&indexes));
    fill(telemetry(&log), 2_000);
    log.maintain();
    drop(log);
    let log = open_with(settings(dir.path()), watched(&indexes));
    indexes.fails.store(true, Ordering::Relaxed);
    assert_all_known(telemetry(&log), 500);
    let fresh = again(telemetry(&log), 9_000).expect("taken");
    assert!(!fresh.duplicate);
}

#[test]
fn removed_keys_are_new_again_and_those_from_the_log_start_on_are_known() {
    let files = MemoryFiles::default();
    let log = filled(&files, 3_000);
    let check = |log: &Log, start: u64| {
        let partition = telemetry(log);
        assert_eq!(partition.log_start(), Offset(start));
        assert!(again(partition, start).expect("an answer").duplicate);
        assert!(again(partition, 2_999).expect("an answer").duplicate);
    };
    telemetry(&log).advance_log_start(Offset(1_500));
    let start = telemetry(&log).log_start().0;
    assert!(start > 1_000);
    check(&log, start);
    log.shutdown();
    let log = open_with(settings(Path::new("/data")), files.seams());
    check(&log, start);
    let fresh = again(telemetry(&log), start - 1).expect("taken");
    assert_eq!((fresh.offset, fresh.duplicate), (Offset(3_000), false));
}

/// The segment goes between the look at the list and the read of its index.
#[test]
fn a_segment_that_is_removed_during_a_look_up_is_no_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let indexes = Arc::new(Indexes::default());
    let config = || LogConfig {
        key_filter_bytes: 0,
        ..settings(dir.path())
    };
    let log = open_with(config(), watched(&indexes));
    fill(telemetry(&log), 2_000);
    log.maintain();
    drop(log);
    let log = open_with(config(), watched(&indexes));
    let partition = telemetry(&log).clone();
    *indexes.at_read.lock() = Some(Box::new(move || partition.advance_log_start(Offset(1_500))));
    let known = again(telemetry(&log), 1_999).expect("an answer");
    assert_eq!((known.offset, known.duplicate), (Offset(1_999), true));
    assert!(telemetry(&log).log_start() > Offset(1_000));
    assert!(!again(telemetry(&log), 3).expect("an answer").duplicate);
}

/// Appends of others go on during the reads of a look-up, and one that gives a record the key looked for is seen.
#[test]
fn a_key_that_is_appended_while_it_is_looked_up_is_appended_once() {
    for is_durable in [false, true] {
        for is_dropped in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let indexes = Arc::new(Indexes::default());
            let config = || LogConfig {
                key_filter_bytes: 0,
                ..settings(dir.path())
            };
            let log = open_with(config(), watched(&indexes));
            fill(telemetry(&log), 2_000);
            log.maintain();
            drop(log);
            let log = open_with(config(), watched(&indexes));
            let (handle, partition) = (log.clone(), telemetry(&log).clone());
            *indexes.at_read.lock() = Some(Box::new(move || {
                let range = partition.append(rows(TOPIC, 9_000..9_001)).expect("taken");
                if is_durable {
                    await_durable(&partition, range.end);
                }
                if is_dropped {
                    // Its key leaves the memory before the look-up is over.
                    for first in (10_000..180_000).step_by(1_000) {
                        let range = partition.append(rows(TOPIC, first..first + 1_000));
                        await_durable(&partition, range.expect("taken").end);
                    }
                    handle.maintain();
                }
            }));
            let placed = again(telemetry(&log), 9_000).expect("taken");
            assert_eq!((placed.offset, placed.duplicate), (Offset(2_000), true));
            assert!(
                indexes.at_read.lock().is_none(),
                "it was looked up in the files"
            );
        }
    }
}

/// Most of the keys are stored already, and those of sealed segments are in no memory after a start.
#[test]
fn callers_that_race_for_keys_in_sealed_segments_append_each_once() {
    const STORED: u64 = 800;
    let dir = tempfile::tempdir().expect("a folder");
    let indexes = Arc::new(Indexes::default());
    let config = || LogConfig {
        key_filter_bytes: 0,
        ..settings(dir.path())
    };
    {
        let log = open_with(config(), watched(&indexes));
        fill(telemetry(&log), STORED);
        log.maintain();
    }
    let log = open_with(config(), watched(&indexes));
    let partition = telemetry(&log);
    let race = |thread: u64| {
        let mut offsets = BTreeSet::new();
        for round in 0..40 {
            let first = round * 25 + thread % 2;
            let placed = partition.append_unique(rows(TOPIC, first..first + 50));
            let fresh = placed
                .expect("taken")
                .into_iter()
                .filter(|placed| !placed.duplicate);
            offsets.extend(fresh.map(|placed| placed.offset.0));
            log.maintain();
        }
        offsets
    };
    let race_all = || -> Vec<u64> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || race(n))).collect();
            let found = threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            found.flatten().collect()
        })
    };
    let (offsets, reads) = indexes.reads_of(race_all);
    assert!(reads > 0, "the files were asked");
    // 40 rounds of 25 keys, and the last 26.
    assert_eq!(offsets.len() as u64, 1_026 - STORED);
    assert_eq!(partition.next_offset(), Offset(1_026));
}

/// Only the keys of a topic count, so nobody can hide a record behind others with its key.
#[test]
fn records_of_other_topics_with_a_key_hide_no_record_of_it() {
    let files = MemoryFiles::default();
    let log = open_with(settings(Path::new("/data")), files.seams());
    let partition = telemetry(&log);
    for number in 0..300 {
        let topic = format!("devices/other-{number}/telemetry");
        let placed = partition.append_unique(rows(&topic, 7..8)).expect("taken");
        await_durable(partition, placed[0].offset.plus(1));
    }
    let own = again(partition, 7).expect("taken");
    assert_eq!((own.offset, own.duplicate), (Offset(300), false));
    await_durable(partition, Offset(301));
    let check = |log: &Log| {
        let known = again(telemetry(log), 7).expect("an answer");
        assert_eq!((known.offset, known.duplicate), (Offset(300), true));
    };
    check(&log);
    append(partition, &vec![vec![7; 30_000]; 8]);
    log.maintain();
    log.shutdown();
    let log = open_with(settings(Path::new("/data")), files.seams());
    assert!(segments(&files).len() > 2, "it is in a sealed segment");
    check(&log);
}
