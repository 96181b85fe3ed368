//! What a start cuts off after the last valid batch, and what of it is quarantined.

use std::path::Path;
use std::time::Duration;

use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::{Class, ClassConfig, Log, LogConfig, Offset, PartitionReport, SyncMode};

const SEGMENT: &str = "/data/telemetry-0/00000000000000000000.seg";

fn settings(sync: SyncMode) -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        sync,
        maintain_every: None,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..LogConfig::new("/data")
    }
}

/// A killed log of `count` batches of one record each; where its batches begin, and where the last one ends.
fn killed_with(count: usize, sync: SyncMode) -> (SimFiles, Vec<usize>) {
    let files = SimFiles::new(1);
    let log = open_with(settings(sync), files.seams());
    let partition = telemetry(&log);
    for n in 0..count {
        let range = partition
            .append(records(1, &[format!("record {n}")]))
            .expect("queued");
        await_that("it to be written", || partition.written() >= range.end);
        if sync == SyncMode::Always {
            await_durable(partition, range.end);
        }
    }
    files.kill();
    drop(log);
    let bytes = files.bytes(Path::new(SEGMENT));
    let (mut at, mut places) = (4096, vec![4096]);
    for _ in 0..count {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
        at += length + 4;
        places.push(at);
    }
    (files, places)
}

fn reopened(files: &SimFiles, sync: SyncMode) -> (Log, PartitionReport) {
    reopen_with(settings(sync), files.seams())
}

fn flip(files: &SimFiles, position: usize) {
    files.with_bytes(Path::new(SEGMENT), |bytes| bytes[position] ^= 1);
}

fn kept(files: &SimFiles, suffix: &str) -> Vec<Vec<u8>> {
    let names = files.names().into_iter();
    names
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .map(|path| files.bytes(&path))
        .collect()
}

#[test]
fn a_crash_that_tore_nothing_leaves_nothing_aside() {
    let (files, _) = killed_with(3, SyncMode::Always);
    for _ in 0..2 {
        let (log, report) = reopened(&files, SyncMode::Always);
        assert_eq!((report.high_watermark, report.torn_bytes), (Offset(3), 0));
        assert_eq!(report.notes, Vec::<String>::new());
        for suffix in [".torn", ".damaged"] {
            assert!(kept(&files, suffix).is_empty(), "{suffix}");
        }
        files.kill();
        drop(log);
    }
}

#[test]
fn after_a_clean_stop_the_segment_is_used_as_it_is() {
    let (files, _) = killed_with(3, SyncMode::Always);
    let (log, _) = reopened(&files, SyncMode::Always);
    append(telemetry(&log), &["space is secured beyond this"]);
    log.shutdown();
    let (log, _) = reopened(&files, SyncMode::Always);
    append(telemetry(&log), &["into that space"]);
    assert_eq!(telemetry(&log).stats().fill_bytes, 0);
    assert_eq!(read_all(telemetry(&log)).len(), 5);
}

/// The stop proves the batches before it, not that nothing was written since.
#[test]
fn what_is_torn_right_behind_a_clean_stop_is_kept_aside() {
    let (files, places) = killed_with(3, SyncMode::Always);
    reopened(&files, SyncMode::Always).0.shutdown();
    files.write_unsynced(Path::new(SEGMENT), places[3], b"torn");
    let (_log, report) = reopened(&files, SyncMode::Always);
    assert_eq!((report.high_watermark, report.torn_bytes), (Offset(3), 4));
    assert!(kept(&files, ".torn") == [b"torn".to_vec()]);
    assert_eq!(files.bytes(Path::new(SEGMENT)).len(), places[3]);
}

#[test]
fn a_copy_that_finds_no_space_leaves_what_it_took() {
    let (files, _) = killed_with(5, SyncMode::Always);
    // Enough for the header of the copy, and without that for log.meta.
    files.set_free(Some(4200));
    let (log, report) = reopened(&files, SyncMode::Always);
    let is_told = |note: &String| note.contains("in place");
    assert!(report.notes.iter().any(is_told), "{:?}", report.notes);
    assert_eq!(read_all(telemetry(&log)).len(), 5);
}

/// The new file is written in pieces.
#[test]
fn a_large_active_segment_is_copied_whole() {
    let files = SimFiles::new(2);
    let config = || LogConfig {
        segment_bytes: 16 << 20,
        tail_bytes: 0,
        ..settings(SyncMode::Always)
    };
    let log = open_with(config(), files.seams());
    for n in 0..5 {
        append(telemetry(&log), &[vec![n; 700 << 10]]);
    }
    let before = read_all(telemetry(&log));
    for _ in 0..2 {
        files.kill();
        let log = open_with(config(), files.seams());
        assert!(read_all(telemetry(&log)) == before);
    }
}

#[test]
fn every_run_between_two_damaged_places_is_served_in_its_place() {
    let (files, places) = killed_with(8, SyncMode::Always);
    for n in [1, 3, 6] {
        flip(&files, places[n] + 70);
    }
    for _ in 0..2 {
        let (log, report) = reopened(&files, SyncMode::Always);
        let gaps: Vec<_> = report.gaps.iter().map(|gap| gap.range.clone()).collect();
        let expected = [1, 3, 6].map(|n| Offset(n)..Offset(n + 1));
        assert_eq!(gaps, expected);
        let (found, damaged) = read_from(telemetry(&log), Offset(0));
        let offsets: Vec<u64> = found.iter().map(|(offset, _)| *offset).collect();
        assert_eq!((offsets, damaged), (vec![0, 2, 4, 5, 7], expected.to_vec()));
        log.shutdown();
    }
}

/// Positions in one file do not apply to another.
#[test]
fn a_mark_of_an_earlier_segment_proves_nothing_of_the_newest() {
    let sync = SyncMode::Interval(Duration::from_secs(3600));
    let files = SimFiles::new(3);
    let log = open_with(settings(sync), files.seams());
    let write = |log: &Log, payload: &[u8]| {
        let range = telemetry(log)
            .append(records(1, &[payload]))
            .expect("queued");
        await_that("it to be written", || telemetry(log).written() >= range.end);
        range.start
    };
    write(&log, &[1; 40 << 10]);
    log.shutdown();
    drop(log);
    let (log, _) = reopened(&files, sync);
    let first = write(&log, &[2; 30 << 10]);
    for _ in 0..2 {
        write(&log, b"never synced");
    }
    files.kill();
    drop(log);
    let newest = format!("/data/telemetry-0/{:020}.seg", first.0);
    files.with_bytes(Path::new(&newest), |bytes| {
        let length = u32::from_le_bytes(bytes[4096..4100].try_into().expect("4 bytes")) as usize;
        bytes[4096 + length + 4 + 70] ^= 1;
    });
    let (_log, report) = reopened(&files, sync);
    assert_eq!(report.high_watermark, Offset(first.0 + 1));
    assert_eq!(report.gaps, []);
    assert!(report.torn_bytes > 0);
}

/// Batches written before the next sync prove nothing about earlier ones, so all of them may be torn.
#[test]
fn all_behind_a_torn_batch_is_cut_and_kept_where_nothing_of_it_was_synced() {
    let sync = SyncMode::Interval(Duration::from_secs(3600));
    let (files, places) = killed_with(6, sync);
    flip(&files, places[1] + 70);
    flip(&files, places[3] + 70);
    files.write_unsynced(Path::new(SEGMENT), places[6], b"half a batch");
    let end = places[6] + b"half a batch".len();
    let expected = files.bytes(Path::new(SEGMENT))[places[1]..end].to_vec();
    let (log, report) = reopened(&files, sync);
    assert_eq!((report.high_watermark, report.gaps.len()), (Offset(1), 0));
    assert_eq!(report.torn_bytes, expected.len() as u64);
    assert!(kept(&files, ".torn") == [expected]);
    assert_eq!(read_all(telemetry(&log)).len(), 1);
}

#[test]
fn damage_with_nothing_torn_behind_it_is_all_that_is_kept() {
    let (files, places) = killed_with(3, SyncMode::Always);
    flip(&files, places[1] + 70);
    let expected = files.bytes(Path::new(SEGMENT))[places[1]..places[2]].to_vec();
    let (_log, report) = reopened(&files, SyncMode::Always);
    assert_eq!((report.high_watermark, report.torn_bytes), (Offset(3), 0));
    assert!(kept(&files, ".damaged") == [expected]);
    assert!(kept(&files, ".torn").is_empty());
}

#[test]
fn a_start_whose_file_changes_under_it_is_refused_and_cuts_nothing() {
    let (files, places) = killed_with(3, SyncMode::Always);
    let seams = files.seams();
    files.hold("open", ".seg.tmp");
    std::thread::scope(|scope| {
        let start = scope.spawn(|| Log::open(settings(SyncMode::Always), seams).map(drop));
        files.await_held();
        flip(&files, places[1] + 70);
        files.let_go();
        start.join().expect("no panic").expect_err("refused");
    });
    flip(&files, places[1] + 70);
    let (log, report) = reopened(&files, SyncMode::Always);
    assert_eq!(report.torn_bytes, 0);
    assert_eq!(read_all(telemetry(&log)).len(), 3);
}

/// A killed log with a large torn batch after a whole one.
fn killed_with_a_large_torn_batch() -> SimFiles {
    let files = SimFiles::new(4);
    let log = open_with(settings(SyncMode::Always), files.seams());
    append(telemetry(&log), &[b"whole".to_vec()]);
    append(telemetry(&log), &[vec![7; 20 << 10]]);
    files.kill();
    drop(log);
    let end = files.bytes(Path::new(SEGMENT));
    let end = end.iter().rposition(|byte| *byte != 0).expect("records");
    flip(&files, end);
    files
}

#[test]
fn what_is_torn_and_finds_no_space_is_told_and_refuses_no_start() {
    let files = killed_with_a_large_torn_batch();
    files.set_free(Some(8 << 10));
    let (log, report) = reopened(&files, SyncMode::Always);
    let is_told = |note: &String| note.contains("no space to keep");
    assert!(report.notes.iter().any(is_told), "{:?}", report.notes);
    assert!(kept(&files, ".torn").is_empty(), "not a part of it either");
    assert_eq!(read_all(telemetry(&log)).len(), 1);
}

/// It is the only copy when the segment has been cut.
#[test]
fn a_start_that_fails_to_keep_what_is_torn_is_refused_and_cuts_nothing() {
    let files = killed_with_a_large_torn_batch();
    files.record();
    drop(reopened(&files, SyncMode::Always));
    let calls = files.recorded();
    let is_write = |call: &str| call.starts_with("write_all_at") && call.ends_with(".torn");
    let nth = calls.iter().position(|moment| is_write(&moment.call));
    let nth = nth.expect("it is kept aside") as u64 + 1;

    let files = killed_with_a_large_torn_batch();
    files.fail_call(nth, Fault::Error);
    let refused = Log::open(settings(SyncMode::Always), files.seams()).map(drop);
    refused.expect_err("refused");
    assert!(files.failed()[0].ends_with(".torn"), "{:?}", files.failed());
    files.kill();
    let (_log, report) = reopened(&files, SyncMode::Always);
    assert!(report.torn_bytes > 20 << 10);
    assert_eq!(kept(&files, ".torn")[0].len() as u64, report.torn_bytes);
}
