//! The log's own maintenance: writes marks when idle, stops on a full disk, closes when dropped.

use std::path::Path;
use std::time::Duration;

use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::{
    AppendError, Class, ClassConfig, LogConfig, Offset, Partition, PartitionState, SyncMode,
    Watcher,
};

const TELEMETRY: &str = "/data/telemetry-0/00000000000000000000.seg";

#[test]
fn five_idle_seconds_leave_a_mark_that_tells_damage_from_a_torn_tail() {
    let files = SimFiles::new(1);
    let clock = HandClock::at(1_800_000_000_000_000);
    let seams = || headwater_log::Seams {
        clock: clock.clone(),
        ..files.seams()
    };
    let config = || config(Path::new("/data"));
    let log = open_with(config(), seams());
    append(telemetry(&log), &["marked"]);
    log.maintain();
    assert!(!has(&files, "telemetry-0/mark"), "not idle yet");
    clock.pass(Duration::from_secs(6));
    await_that("the mark", || {
        // The writer may still be busy after its acknowledgement.
        log.maintain();
        has(&files, "telemetry-0/mark")
    });
    let mark = Path::new("/data/telemetry-0/mark");
    assert_eq!(files.bytes(mark)[40], 1, "of an idle moment, not of a stop");
    append(telemetry(&log), &["after the mark"]);
    files.kill();
    drop(log);
    let segment = Path::new(TELEMETRY);
    files.with_bytes(segment, |bytes| bytes[4096..].fill(0));
    let (log, report) = reopen_with(config(), seams());
    assert_eq!(
        report.gaps.len(),
        1,
        "the marked record is lost, and that is said"
    );
    assert_eq!(
        report.high_watermark.0, 1,
        "the one after the mark might never have been written"
    );
    drop(log);
}

#[test]
fn the_last_handle_of_a_log_shuts_it_down_cleanly() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let clone = log.clone();
    let partition = telemetry(&log).clone();
    drop(log);
    append(&partition, &["still open"]);
    partition.append(records(1, &["queued"])).expect("taken");
    drop(clone);
    assert!(dir.path().join("telemetry-0/mark").exists());
    assert_eq!(read_all(telemetry(&open(dir.path()))).len(), 2);
}

/// Batches written one after the other before one sync prove nothing about each other; the mark proves all of them.
#[test]
fn what_lies_before_the_mark_is_kept_also_behind_damage() {
    let files = SimFiles::new(4);
    let config = || LogConfig {
        sync: SyncMode::Interval(Duration::from_secs(3600)),
        ..config(Path::new("/data"))
    };
    let log = open_with(config(), files.seams());
    for n in 0..4 {
        let range = telemetry(&log)
            .append(records(1, &[format!("record {n}")]))
            .expect("queued");
        await_that("the batch to be written", || {
            telemetry(&log).written() >= range.end
        });
    }
    drop(log);
    let segment = Path::new(TELEMETRY);
    files.with_bytes(segment, |bytes| bytes[4096 + 70] ^= 1);
    let log = open_with(config(), files.seams());
    let (found, damaged) = read_from(telemetry(&log), headwater_log::Offset(0));
    assert_eq!(
        found.iter().map(|found| found.0).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(damaged.len(), 1);
}

/// A failed sync leaves bytes only in the page cache. On a full disk there is no room for a copy, so they are written
/// again in place, and the torn part is cleared.
#[test]
fn what_a_start_on_a_full_disk_shows_survives_the_power_cut_after_it() {
    let segment = Path::new(TELEMETRY);
    let mut whole = 0;
    for seed in 0..20 {
        let files = SimFiles::new(seed);
        let log = open_with(config(Path::new("/data")), files.seams());
        append(telemetry(&log), &["durable"]);
        files.fail_syncs(true);
        telemetry(&log)
            .append(records(1, &["in the page cache".repeat(300)]))
            .expect("queued");
        await_that("the partition to stop", || {
            matches!(telemetry(&log).state(), PartitionState::Stopped(_))
        });
        files.kill();
        drop(log);
        // Half a batch after the others.
        let end = files.bytes(segment).iter().rposition(|byte| *byte != 0);
        let end = end.expect("batches") + 1;
        files.write_unsynced(segment, end, b"torn");
        files.set_free(Some(600));
        let log = open_with(config(Path::new("/data")), files.seams());
        let shown = read_all(telemetry(&log));
        files.power_cut();
        drop(log);
        if shown.len() == 2 {
            whole += 1;
            let rest = &files.bytes(segment)[end..];
            assert!(rest.iter().all(|byte| *byte == 0), "seed {seed}");
        }
        files.set_free(None);
        let log = open_with(config(Path::new("/data")), files.seams());
        assert_eq!(read_all(telemetry(&log)), shown, "seed {seed}");
    }
    assert!(whole > 0, "the page cache never held all of it");
}

#[test]
fn a_log_whose_files_are_taken_away_stops_instead_of_acknowledging_what_will_be_gone() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["before"]);
    log.maintain();
    assert_eq!(telemetry(&log).state(), PartitionState::Running);
    let folder = dir.path().join("telemetry-0");
    std::fs::rename(&folder, dir.path().join("elsewhere")).expect("moved");
    log.maintain();
    let PartitionState::Stopped(reason) = telemetry(&log).state() else {
        panic!("it still writes");
    };
    assert!(reason.contains("00000000000000000000.seg"), "{reason}");
    let refused = telemetry(&log).append(records(1, &["after"]));
    assert!(
        matches!(refused, Err(AppendError::ReadOnly { .. })),
        "{refused:?}"
    );
    assert_eq!(read_all(telemetry(&log)).len(), 1, "reads go on");
    assert_eq!(
        log.by_name("control-0").map(Partition::state),
        Some(PartitionState::Running),
        "the others go on"
    );
}

#[test]
fn a_partition_that_is_stopped_while_it_waits_for_space_acknowledges_nothing_afterwards() {
    let files = SimFiles::new(5);
    let log = open_with(with_room(), files.seams());
    let (control, partition) = (&log.partitions()[0], telemetry(&log));
    append(control, &[vec![1; 9 << 20]]);
    append(partition, &["before"]);
    files.set_free(Some(0));
    let waits = partition
        .append(records(1, &[vec![2; 5 << 20]]))
        .expect("queued");
    await_that("the disk to be full", || {
        partition.state() == PartitionState::Full
    });
    files.take_away(Path::new(TELEMETRY));
    log.maintain();
    let is_stopped = || matches!(partition.state(), PartitionState::Stopped(_));
    assert!(is_stopped());
    files.set_free(None);
    // Another partition finds no descriptor for its next segment, waits as long, and continues.
    files.set_no_descriptors(true);
    let other = control
        .append(records(1, &[vec![3; 9 << 20]]))
        .expect("queued");
    await_that("the other to wait", || {
        control.state() == PartitionState::Full
    });
    files.set_no_descriptors(false);
    await_durable(control, other.end);
    assert!(is_stopped());
    assert_eq!(partition.high_watermark(), waits.start);
    assert_eq!(read_all(partition).len(), 1);
}

/// The next start assigns the offsets of records that wait for space, so records queued after them must not be written
/// at these offsets.
#[test]
fn a_stop_on_a_full_disk_writes_neither_what_waits_nor_what_is_queued_behind_it() {
    let files = SimFiles::new(6);
    let log = open_with(with_room(), files.seams());
    let partition = telemetry(&log);
    append(partition, &["before"]);
    files.hold("write_all_at", "telemetry-0/00000000000000000000.seg");
    let waits = partition
        .append(records(1, &[vec![2; 5 << 20]]))
        .expect("queued");
    files.await_held();
    partition
        .append(records(1, &["this would still fit"]))
        .expect("queued");
    files.set_free(Some(1 << 20));
    files.let_go();
    await_that("the disk to be full", || {
        partition.state() == PartitionState::Full
    });
    log.shutdown();
    assert_eq!(partition.high_watermark(), waits.start);
    drop(log);
    files.set_free(None);
    let log = open_with(with_room(), files.seams());
    assert_eq!(read_all(telemetry(&log)), [(0, b"before".to_vec())]);
    assert_eq!(telemetry(&log).next_offset(), waits.start);
}

#[test]
fn a_stop_whose_last_sync_fails_is_not_marked_as_a_clean_one() {
    let files = SimFiles::new(7);
    let config = LogConfig {
        sync: SyncMode::Interval(Duration::from_secs(3600)),
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..with_room()
    };
    let log = open_with(config, files.seams());
    let partition = telemetry(&log);
    let range = partition
        .append(records(1, &["not synced"]))
        .expect("queued");
    await_that("it to be written", || partition.written() >= range.end);
    files.fail_call(1, Fault::LostSync);
    log.shutdown();
    assert_eq!(files.failed(), [format!("sync_data of {TELEMETRY}")]);
    assert!(matches!(partition.state(), PartitionState::Stopped(_)));
    assert_eq!(partition.high_watermark(), range.start);
    assert!(!has(&files, "telemetry-0/mark"));
}

#[test]
fn what_is_not_synced_is_not_marked() {
    for sync in [
        SyncMode::Interval(Duration::from_secs(3600)),
        SyncMode::Never,
    ] {
        let files = SimFiles::new(9);
        let clock = HandClock::at(1_800_000_000_000_000);
        let config = LogConfig {
            sync,
            ..with_room()
        };
        let log = open_with(config, files.seams_with(clock.clone()));
        let range = telemetry(&log)
            .append(records(1, &["not synced"]))
            .expect("queued");
        await_that("it to be written", || {
            telemetry(&log).written() >= range.end
        });
        clock.pass(Duration::from_secs(60));
        // The other partition has nothing to sync.
        await_that("a mark", || {
            log.maintain();
            has(&files, "control-0/mark")
        });
        assert!(!has(&files, "telemetry-0/mark"), "{sync:?}");
    }
}

/// Only a lack of space or of descriptors resolves by itself.
#[test]
fn a_failed_write_or_sync_stops_the_partition_also_when_it_is_for_space_to_come() {
    let mut writes = 0;
    for nth in 1.. {
        let files = SimFiles::new(nth);
        let log = open_with(with_room(), files.seams());
        let partition = telemetry(&log);
        append(partition, &["before"]);
        files.fail_call(nth, Fault::Error);
        let range = partition
            .append(records(1, &[vec![1; 4 << 20]]))
            .expect("queued");
        let is_stopped = || matches!(partition.state(), PartitionState::Stopped(_));
        await_that("an end", || {
            assert_ne!(partition.state(), PartitionState::Full, "call {nth}");
            is_stopped() || partition.high_watermark() == range.end
        });
        let Some(failed) = files.failed().pop() else {
            assert!(!is_stopped());
            break;
        };
        assert!(is_stopped(), "after {failed}");
        writes += usize::from(failed == format!("write_all_at of {TELEMETRY}"));
    }
    assert!(writes >= 2, "of zeros and of the batch");
}

/// The next start finds out what a failed sync left on the disk, together with everything written before.
#[test]
fn a_partition_that_has_stopped_removes_and_marks_nothing_until_the_restart() {
    for stops in [false, true] {
        let files = SimFiles::new(8);
        let clock = HandClock::at(1_800_000_000_000_000);
        let mut config = LogConfig {
            maintain_every: None,
            ..config(Path::new("/data"))
        };
        config.classes[1].retention_bytes = Some(1);
        let log = open_with(config, files.seams_with(clock.clone()));
        let partition = telemetry(&log);
        for _ in 0..3 {
            append(partition, &[vec![1; 40 << 10]]);
        }
        if stops {
            files.fail_syncs(true);
            partition
                .append(records(1, &["not synced"]))
                .expect("queued");
            await_that("the partition to stop", || {
                matches!(partition.state(), PartitionState::Stopped(_))
            });
            files.fail_syncs(false);
        }
        clock.pass(Duration::from_secs(6));
        log.maintain();
        assert_eq!(partition.log_start() == Offset(0), stops);
        assert_eq!(!has(&files, "telemetry-0/mark"), stops);
    }
}

#[test]
fn a_watcher_may_drop_the_last_handle_of_a_log() {
    let files = SimFiles::new(10);
    let log = open_with(with_room(), files.seams());
    let partition = telemetry(&log).clone();
    let last = parking_lot::Mutex::new(Some(log));
    let watcher: Watcher = std::sync::Arc::new(move || {
        let log = last.lock().take();
        drop(log);
    });
    partition.watch(&watcher);
    partition.append(records(1, &["the last"])).expect("queued");
    await_that("the mark of a stop", || has(&files, "telemetry-0/mark"));
    assert_eq!(partition.high_watermark().0, 1);
}

#[test]
fn a_log_without_syncs_makes_none_when_it_changes_segments_and_when_it_stops() {
    let files = SimFiles::new(11);
    let config = LogConfig {
        sync: SyncMode::Never,
        segment_bytes: 16 << 10,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    let partition = telemetry(&log);
    for _ in 0..4 {
        append(partition, &[vec![1; 9000]]);
    }
    assert!(has(&files, "telemetry-0/00000000000000000003.seg"));
    log.shutdown();
    assert_eq!(partition.stats().syncs, 0);
    assert!(!has(&files, "telemetry-0/mark"));
}

/// With a record every few seconds the marks would cost more than the records.
#[test]
fn idle_marks_are_a_minute_apart() {
    for sync in [SyncMode::Always, SyncMode::Interval(Duration::from_secs(1))] {
        let files = SimFiles::new(12);
        let clock = HandClock::at(1_800_000_000_000_000);
        let config = LogConfig {
            sync,
            ..with_room()
        };
        let log = open_with(config, files.seams_with(clock.clone()));
        let partition = telemetry(&log);
        let marked = || partition.stats().checkpoint_bytes;
        let append_and_idle = || {
            // The interval has passed, so it is synced at once.
            clock.pass(Duration::from_secs(2));
            append(partition, &["now and then"]);
            clock.pass(Duration::from_secs(6));
            log.maintain();
        };
        append_and_idle();
        await_that("the first mark", || {
            log.maintain();
            marked() > 0
        });
        let first = marked();
        for _ in 0..4 {
            append_and_idle();
            assert_eq!(marked(), first, "{sync:?}");
        }
        clock.pass(Duration::from_secs(30));
        await_that("the next mark", || {
            log.maintain();
            marked() > first
        });
    }
}

/// Nothing else saves indexes or removes old segments.
#[test]
fn a_log_looks_after_itself_while_it_runs() {
    let files = SimFiles::new(13);
    let config = LogConfig {
        segment_bytes: 16 << 10,
        maintain_every: Some(Duration::from_millis(1)),
        ..with_room()
    };
    let log = open_with(config, files.seams());
    for base in 0..3 {
        append(telemetry(&log), &[vec![1; 9000]]);
        append(telemetry(&log), &[vec![2; 9000]]);
        let saved = format!("telemetry-0/{:020}.idx", 2 * base);
        await_that("the index", || has(&files, &saved));
    }
}
