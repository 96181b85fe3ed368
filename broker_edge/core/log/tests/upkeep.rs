//! What the log does for itself: marks idleness, prepares the spare of the internal partition, closes when let go.

mod support;

use std::path::Path;
use std::time::Duration;

use headwater_log::{
    AppendError, Class, ClassConfig, LogConfig, Partition, PartitionState, SyncMode,
};
use support::sim::{Fault, SimFiles};
use support::*;

const TELEMETRY: &str = "/data/telemetry-0/00000000000000000000.seg";

fn has(files: &SimFiles, name: &str) -> bool {
    files.names().iter().any(|path| path.ends_with(name))
}

/// Segments that hold all of a test.
fn with_room() -> LogConfig {
    LogConfig {
        segment_bytes: 16 << 20,
        maintain_every: None,
        ..config(Path::new("/data"))
    }
}

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
        // The writer may still be busy with what it has acknowledged.
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
    let (log, report) = headwater_log::Log::open(config(), seams()).expect("the log opens");
    let report = report
        .partitions
        .into_iter()
        .find(|partition| partition.name == "telemetry-0")
        .expect("reported");
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
fn the_internal_partition_goes_on_when_the_disk_is_full() {
    let files = SimFiles::new(2);
    let config = LogConfig {
        segment_bytes: 32 << 10,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        sync: SyncMode::Always,
        ..LogConfig::new("/data")
    };
    let log = open_with(config, files.seams());
    log.maintain();
    let is_spare = |path: &std::path::PathBuf| {
        let name = path
            .strip_prefix("/data/internal-0")
            .ok()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("spare-") && name.ends_with(".tmp"))
    };
    assert!(files.names().iter().any(is_spare));
    files.set_free(Some(0));
    let internal = log.by_name("internal-0").expect("there");
    let state = "state ".repeat(200);
    // More than the active segment holds: the prepared one takes over without new space.
    for _ in 0..40 {
        append(internal, &[&state]);
    }
    assert_eq!(internal.state(), PartitionState::Running);
    assert_eq!(read_all(internal).len(), 40);
}

/// Each is a whole segment: made once, and not beside the file of a removed segment.
#[test]
fn the_internal_partition_alone_has_a_spare_and_only_one() {
    let files = SimFiles::new(8);
    let config = LogConfig {
        segment_bytes: 32 << 10,
        maintain_every: None,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new("/data")
    };
    let log = open_with(config, files.seams());
    let internal = &log.partitions()[0];
    let spares = || {
        let names = files.names();
        let is_spare = |path: &&std::path::PathBuf| path.to_string_lossy().contains("spare-");
        names.iter().filter(is_spare).count()
    };
    log.maintain();
    let written = internal.figures().fill_bytes;
    log.maintain();
    assert_eq!(internal.figures().fill_bytes, written);
    for _ in 0..12 {
        append(internal, &[vec![1; 9000]]);
        log.maintain();
        assert_eq!(spares(), 1);
    }
    internal.advance_log_start(internal.high_watermark());
    assert!(internal.log_start().0 > 6, "several segments are gone");
    assert_eq!(spares(), 1);
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

/// The writer takes two batches at once, and there is space for one of them.
#[test]
fn what_was_written_is_acknowledged_although_the_next_batch_finds_no_space() {
    let files = SimFiles::new(3);
    let config = || LogConfig {
        segment_bytes: 16 << 20,
        tail_bytes: 0,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..LogConfig::new("/data")
    };
    let log = open_with(config(), files.seams());
    let partition = log.partitions()[0].clone();
    files.hold("sync_data", "telemetry-0");
    partition.append(records(1, &["first"])).expect("queued");
    files.await_held();
    // Too large for one batch together; the second needs more than is filled.
    let large = [vec![1; 3 << 20], vec![2; 3 << 20]];
    let fits = partition.append(records(1, &large[..1])).expect("queued");
    let waits = partition.append(records(1, &large[1..])).expect("queued");
    files.set_free(Some(1 << 20));
    files.let_go();
    await_that("the disk to be full", || {
        partition.state() == PartitionState::Full
    });
    assert_eq!(partition.high_watermark(), fits.end);
    assert_eq!(read_all(&partition).len(), 2);
    files.set_free(None);
    await_durable(&partition, waits.end);
    let expected = [
        (0, b"first".to_vec()),
        (1, large[0].clone()),
        (2, large[1].clone()),
    ];
    assert!(read_all(&partition) == expected);
    files.power_cut();
    drop((log, partition));
    let log = open_with(config(), files.seams());
    assert!(read_all(&log.partitions()[0]) == expected);
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

/// A failed sync leaves bytes in the page cache alone. On a full disk there is no room for a copy of them, so they are
/// written again in place, and what was torn is cleared.
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
        // Half a batch behind the others.
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
    // Another partition finds no descriptor for its next segment, waits as long, and goes on.
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

/// The offsets of what waits for space are the next start's to give: what is queued behind must not be written to them.
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

#[test]
fn a_watcher_may_drop_the_last_handle_of_a_log() {
    let files = SimFiles::new(10);
    let log = open_with(with_room(), files.seams());
    let partition = telemetry(&log).clone();
    let last = parking_lot::Mutex::new(Some(log));
    partition.watch(std::sync::Arc::new(move || {
        let log = last.lock().take();
        drop(log);
    }));
    partition.append(records(1, &["the last"])).expect("queued");
    await_that("the mark of a stop", || has(&files, "telemetry-0/mark"));
    assert_eq!(partition.high_watermark().0, 1);
}

/// It may hold the last free bytes.
#[test]
fn a_segment_that_finds_no_space_leaves_no_unfinished_file() {
    let files = SimFiles::new(11);
    let config = LogConfig {
        segment_bytes: 16 << 10,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    append(telemetry(&log), &[vec![1; 9000]]);
    files.set_free(Some(8 << 10));
    let waits = telemetry(&log)
        .append(records(1, &[vec![2; 9000]]))
        .expect("queued");
    await_that("the disk to be full", || {
        telemetry(&log).state() == PartitionState::Full
    });
    let is_unfinished = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(".seg.tmp");
    await_that("it to be gone", || !files.names().iter().any(is_unfinished));
    files.set_free(None);
    await_durable(telemetry(&log), waits.end);
}

/// The name of a segment is its first offset: one that is sealed empty would share it with the next.
#[test]
fn a_record_larger_than_a_segment_goes_into_the_empty_one() {
    let files = SimFiles::new(12);
    let config = LogConfig {
        segment_bytes: 16 << 10,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    files.record();
    append(telemetry(&log), &[vec![1; 40 << 10]]);
    let calls = files.recorded();
    assert!(!calls.iter().any(|call| call.call.starts_with("rename")));
    append(telemetry(&log), &["in the next"]);
    assert_eq!(read_all(telemetry(&log)).len(), 2);
}
