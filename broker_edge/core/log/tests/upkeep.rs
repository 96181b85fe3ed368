//! What the log does for itself: marks idleness, prepares the spare of the internal partition, closes when let go.

mod support;

use std::time::Duration;

use headwater_log::{
    AppendError, Class, ClassConfig, LogConfig, Partition, PartitionState, SyncMode,
};
use support::sim::SimFiles;
use support::*;

fn has(files: &SimFiles, name: &str) -> bool {
    files.names().iter().any(|path| path.ends_with(name))
}

#[test]
fn five_idle_seconds_leave_a_mark_that_tells_damage_from_a_torn_tail() {
    let files = SimFiles::new(1);
    let clock = HandClock::at(1_800_000_000_000_000);
    let seams = || headwater_log::Seams {
        clock: clock.clone(),
        ..files.seams()
    };
    let config = || config(std::path::Path::new("/data"));
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
    append(telemetry(&log), &["after the mark"]);
    files.kill();
    drop(log);
    let segment = std::path::Path::new("/data/telemetry-0/00000000000000000000.seg");
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
        ..config(std::path::Path::new("/data"))
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
    let segment = std::path::Path::new("/data/telemetry-0/00000000000000000000.seg");
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
    let segment = std::path::Path::new("/data/telemetry-0/00000000000000000000.seg");
    let mut whole = 0;
    for seed in 0..20 {
        let files = SimFiles::new(seed);
        let log = open_with(config(std::path::Path::new("/data")), files.seams());
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
        let log = open_with(config(std::path::Path::new("/data")), files.seams());
        let shown = read_all(telemetry(&log));
        files.power_cut();
        drop(log);
        if shown.len() == 2 {
            whole += 1;
            let rest = &files.bytes(segment)[end..];
            assert!(rest.iter().all(|byte| *byte == 0), "seed {seed}");
        }
        files.set_free(None);
        let log = open_with(config(std::path::Path::new("/data")), files.seams());
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
