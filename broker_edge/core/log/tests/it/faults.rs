//! Failing calls, full disks and power cuts, on a simulated file system.

use std::path::Path;
use std::time::Duration;

use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::{AppendError, Log, LogConfig, Offset, OpenError, PartitionState, SyncMode};

fn sim_config(sync: SyncMode) -> LogConfig {
    LogConfig {
        sync,
        segment_bytes: 16 << 10,
        ..config(Path::new("/data"))
    }
}

/// Appends until something fails or `count` are durable; returns what was acknowledged: offset and payload.
fn append_many(log: &Log, from: usize, count: usize) -> Vec<(u64, Vec<u8>)> {
    let partition = telemetry(log);
    let mut acknowledged = Vec::new();
    for n in from..from + count {
        let payload = format!("record {n} ").repeat(1 + n % 40).into_bytes();
        let records = records(n as u32 % 5, &[&payload]);
        let result = if n % 3 == 0 {
            partition.append_inline(records)
        } else {
            partition.append(records)
        };
        let Ok(range) = result else { break };
        await_that("durable or stopped", || {
            partition.high_watermark() >= range.end || stopped(log)
        });
        if partition.high_watermark() < range.end {
            break;
        }
        acknowledged.push((range.start.0, payload));
    }
    acknowledged
}

fn stopped(log: &Log) -> bool {
    matches!(telemetry(log).state(), PartitionState::Stopped(_))
}

/// Drops a log whose files are dead: its threads end without being able to write.
fn abandon(log: Log) {
    drop(log);
}

fn holds(log: &Log, acknowledged: &[(u64, Vec<u8>)]) -> bool {
    let (found, damaged) = read_from(telemetry(log), telemetry(log).log_start());
    damaged.is_empty()
        && telemetry(log).gaps().is_empty()
        && acknowledged
            .iter()
            .all(|wanted| found.get(wanted.0 as usize) == Some(wanted))
}

/// Power cuts under load, some in the middle of a start; returns whether nothing acknowledged was lost.
fn survives_power_cuts(seed: u64, sync: SyncMode) -> bool {
    let files = SimFiles::new(seed);
    let mut acknowledged: Vec<(u64, Vec<u8>)> = Vec::new();
    for round in 0..6 {
        let (log, _) = match Log::open(sim_config(sync), files.seams()) {
            Ok(opened) => opened,
            Err(error) if sync == SyncMode::Always => panic!("seed {seed}, round {round}: {error}"),
            Err(_) => return false,
        };
        if !holds(&log, &acknowledged) {
            abandon(log);
            return false;
        }
        // What a start shows must stay from then on, acknowledged or not.
        acknowledged = read_all(telemetry(&log));
        let from = telemetry(&log).next_offset().0 as usize;
        acknowledged.extend(append_many(&log, from, 12));
        for n in 0..round {
            // Queued, perhaps written, not acknowledged when the power fails.
            let _ = telemetry(&log).append(records(9, &[format!("lost or not {n}").repeat(60)]));
        }
        files.power_cut();
        abandon(log);
        if round % 2 == 1 {
            // A start interrupted by a power cut must leave files that the next one can handle.
            files.fail_call(5 + seed % 40, Fault::Error);
            let half = Log::open(sim_config(sync), files.seams());
            files.power_cut();
            drop(half);
        }
    }
    let log = open_with(sim_config(sync), files.seams());
    let survived = holds(&log, &acknowledged);
    abandon(log);
    survived
}

#[test]
fn acknowledged_records_survive_power_cuts() {
    for seed in 0..60 {
        assert!(survives_power_cuts(seed, SyncMode::Always), "seed {seed}");
    }
}

/// Negative control: the same cuts lose records when nothing is synced, so the check above can fail.
#[test]
fn without_syncs_power_cuts_lose_acknowledged_records() {
    let lost = (0..10)
        .filter(|seed| !survives_power_cuts(*seed, SyncMode::Never))
        .count();
    assert!(lost > 0, "no record was lost in 10 runs without a sync");
}

#[test]
fn a_failed_sync_stops_the_partition_and_shows_nothing_of_it() {
    let files = SimFiles::new(1);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    let partition = telemetry(&log).clone();
    let acknowledged = append_many(&log, 0, 5);
    files.fail_syncs(true);
    let range = partition
        .append(records(1, &["never durable"]))
        .expect("queued");
    await_that("the partition to stop", || stopped(&log));
    files.fail_syncs(false);
    assert_eq!(partition.high_watermark(), range.start);
    assert!(
        partition
            .read(range.start, 1000)
            .expect("a read")
            .is_empty()
    );
    assert!(
        partition
            .read_tail(range.start, 1000)
            .expect("the tail")
            .is_empty()
    );
    assert!(matches!(
        partition.append(records(1, &["x"])),
        Err(AppendError::ReadOnly { .. })
    ));
    assert!(matches!(
        partition.append_inline(records(1, &["x"])),
        Err(AppendError::ReadOnly { .. })
    ));
    assert_eq!(read_all(&partition), acknowledged, "reads go on");
    assert_eq!(
        append(
            log.by_name("control-0").expect("there"),
            &["other partitions go on"]
        ),
        Offset(0)
    );
    files.kill();
    abandon(log);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    assert!(holds(&log, &acknowledged));
    assert!(append_many(&log, 9, 1).len() == 1, "a restart recovers");
}

/// The second sync of the same file would succeed and prove nothing: the first has dropped the bytes.
#[test]
fn a_sync_that_failed_at_an_interval_is_not_tried_again_at_the_next() {
    let files = SimFiles::new(2);
    let sync = SyncMode::Interval(Duration::from_millis(20));
    let log = open_with(sim_config(sync), files.seams());
    let acknowledged = append_many(&log, 0, 3);
    files.fail_syncs(true);
    let range = telemetry(&log)
        .append(records(1, &["never durable"]))
        .expect("queued");
    await_that("the partition to stop", || stopped(&log));
    files.fail_syncs(false);
    // Meanwhile the intervals of another partition pass.
    let control = log.by_name("control-0").expect("there");
    for _ in 0..20 {
        append(control, &["goes on"]);
    }
    assert_eq!(telemetry(&log).high_watermark(), range.start);
    assert_eq!(read_all(telemetry(&log)), acknowledged);
    log.shutdown();
    assert_eq!(files.retried_syncs(), Vec::<String>::new());
}

/// After a failed sync the page cache holds bytes that are not on the disk, and they survive a killed process. The next
/// start has room for this many more bytes.
fn what_a_start_shows_survives(seed: u64, free: Option<usize>) -> bool {
    let files = SimFiles::new(seed);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    append_many(&log, 0, 3);
    files.fail_syncs(true);
    telemetry(&log)
        .append(records(1, &["only in the page cache"]))
        .expect("queued");
    await_that("the partition to stop", || stopped(&log));
    files.kill();
    abandon(log);
    files.set_free(free);
    let (log, report) =
        Log::open(sim_config(SyncMode::Always), files.seams()).expect("the log opens");
    let notes = |partition: &headwater_log::PartitionReport| {
        partition.notes.iter().any(|note| note.contains("in place"))
    };
    assert_eq!(report.partitions.iter().any(notes), free.is_some());
    let shown = read_all(telemetry(&log));
    files.power_cut();
    abandon(log);
    files.set_free(None);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    holds(&log, &shown)
}

#[test]
fn what_a_start_shows_survives_the_power_cut_after_it() {
    // On a full disk there is room for log.meta, and none for a copy of the active segment.
    for (disk, free) in [("with space", None), ("full", Some(600))] {
        for seed in 0..20 {
            let survives = what_a_start_shows_survives(seed, free);
            assert!(survives, "seed {seed}, disk {disk}");
        }
    }
}

#[test]
fn a_failed_inline_sync_is_told_to_its_caller() {
    let files = SimFiles::new(2);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    files.fail_syncs(true);
    let error = telemetry(&log)
        .append_inline(records(1, &["x"]))
        .expect_err("not durable");
    assert!(matches!(error, AppendError::ReadOnly { .. }), "{error}");
    assert!(stopped(&log));
    assert_eq!(telemetry(&log).high_watermark(), Offset(0));
}

/// Every file system call fails once: at a start, while writing, while sealing, at a stop.
#[test]
fn any_single_failing_call_loses_no_acknowledged_record() {
    let mut seen = std::collections::BTreeSet::new();
    for fault in [Fault::Error, Fault::LostSync] {
        let mut nth = 1;
        loop {
            let files = SimFiles::new(nth);
            let log = open_with(sim_config(SyncMode::Always), files.seams());
            let mut acknowledged = append_many(&log, 0, 4);
            files.kill();
            abandon(log);
            let before = files.failed().len();
            files.fail_call(nth, fault);
            if let Ok((log, _)) = Log::open(sim_config(SyncMode::Always), files.seams()) {
                let from = telemetry(&log).next_offset().0 as usize;
                assert!(from >= 4, "call {nth}: {from}");
                acknowledged.extend(append_many(&log, from, 30));
                log.maintain();
                log.shutdown();
            }
            let failed = files.failed();
            seen.extend(
                failed
                    .iter()
                    .map(|call| call.split(' ').next().unwrap_or_default().to_owned()),
            );
            files.power_cut();
            let log = open_with(sim_config(SyncMode::Always), files.seams());
            assert!(
                holds(&log, &acknowledged),
                "call {nth}, {fault:?}: {failed:?}"
            );
            assert_eq!(
                append_many(&log, telemetry(&log).next_offset().0 as usize, 1).len(),
                1
            );
            abandon(log);
            if failed.len() == before {
                assert!(nth > 60, "only {nth} calls were made");
                break;
            }
            nth += 1;
        }
    }
    for call in [
        "open",
        "read_at",
        "write_all_at",
        "sync_data",
        "sync_dir",
        "rename",
        "list",
        "len",
        "lock",
    ] {
        assert!(seen.contains(call), "{call} never failed: {seen:?}");
    }
}

#[test]
fn a_full_disk_refuses_appends_and_resumes_by_itself() {
    let files = SimFiles::new(3);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    let partition = telemetry(&log).clone();
    let mut acknowledged = append_many(&log, 0, 3);
    files.set_free(Some(10_000));
    let mut waiting = None;
    let mut n = 3;
    while partition.state() == PartitionState::Running {
        let payload = format!("record {n}").repeat(100).into_bytes();
        match partition.append(records(1, &[&payload])) {
            Ok(range) => {
                await_that("durable or full", || {
                    partition.high_watermark() >= range.end
                        || partition.state() != PartitionState::Running
                });
                acknowledged.push((range.start.0, payload));
                waiting = Some(range);
            }
            Err(error) => assert!(matches!(error, AppendError::Full { .. }), "{error}"),
        }
        n += 1;
    }
    assert_eq!(partition.state(), PartitionState::Full);
    let waiting = waiting.expect("the append that found no space");
    assert!(
        partition.high_watermark() < waiting.end,
        "it is not acknowledged"
    );
    assert!(matches!(
        partition.append(records(1, &["x"])),
        Err(AppendError::Full { .. })
    ));
    let synced = acknowledged.len() - 1;
    assert_eq!(read_all(&partition), acknowledged[..synced], "reads go on");
    files.set_free(None);
    await_durable(&partition, waiting.end);
    await_that("appends to be taken again", || {
        partition.state() == PartitionState::Running
    });
    assert_eq!(read_all(&partition), acknowledged);
    append_many(&log, n, 1);
}

#[test]
fn without_descriptors_for_a_segment_appends_are_refused_and_resume_by_themselves() {
    let files = SimFiles::new(3);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    let partition = telemetry(&log).clone();
    let mut acknowledged = append_many(&log, 0, 3);
    files.set_no_descriptors(true);
    let mut last = None;
    while partition.state() == PartitionState::Running {
        let payload = b"x".repeat(1000);
        if let Ok(range) = partition.append(records(1, &[&payload])) {
            await_that("durable or refusing", || {
                partition.high_watermark() >= range.end
                    || partition.state() != PartitionState::Running
            });
            acknowledged.push((range.start.0, payload));
            last = Some(range);
        }
    }
    assert_eq!(partition.state(), PartitionState::Full);
    let last = last.expect("the append that found no descriptor");
    assert!(partition.high_watermark() < last.end);
    files.set_no_descriptors(false);
    await_durable(&partition, last.end);
    await_that("appends to be taken again", || {
        partition.state() == PartitionState::Running
    });
    assert_eq!(read_all(&partition), acknowledged);
}

#[test]
fn a_log_on_a_full_disk_opens_and_its_records_are_there() {
    let files = SimFiles::new(4);
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    let mut acknowledged = append_many(&log, 0, 20);
    log.shutdown();
    drop(log);
    files.set_free(Some(2_000));
    let log = open_with(sim_config(SyncMode::Always), files.seams());
    assert!(holds(&log, &acknowledged));
    acknowledged.extend(append_many(&log, 20, 1));
    files.kill();
    abandon(log);
    // Room for log.meta, none for a copy of the active segment.
    files.set_free(Some(600));
    let (log, report) =
        Log::open(sim_config(SyncMode::Always), files.seams()).expect("it starts on a full disk");
    assert!(
        report
            .partitions
            .iter()
            .any(|partition| partition.notes.iter().any(|note| note.contains("in place")))
    );
    assert!(holds(&log, &acknowledged));
    files.power_cut();
    abandon(log);
    files.set_free(Some(0));
    let error = Log::open(sim_config(SyncMode::Always), files.seams())
        .err()
        .expect("not even log.meta fits");
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    files.set_free(None);
    assert!(holds(
        &open_with(sim_config(SyncMode::Always), files.seams()),
        &acknowledged
    ));
}

/// A start that finds damage splits the segment. It may fail anywhere, and the next one still reports the same.
#[test]
fn damage_is_told_alike_after_any_interrupted_start() {
    let segment = Path::new("/data/telemetry-0/00000000000000000000.seg");
    let mut nth = 1;
    loop {
        let files = SimFiles::new(nth);
        let log = open_with(sim_config(SyncMode::Always), files.seams());
        let acknowledged = append_many(&log, 0, 12);
        files.kill();
        abandon(log);
        files.with_bytes(segment, |bytes| bytes[4096 + 700] ^= 1);
        files.fail_call(nth, Fault::Error);
        let interrupted = Log::open(sim_config(SyncMode::Always), files.seams()).map(drop);
        let is_done = files.failed().is_empty();
        files.power_cut();
        drop(interrupted);
        let log = open_with(sim_config(SyncMode::Always), files.seams());
        let (found, damaged) = read_from(telemetry(&log), Offset(0));
        assert_eq!(damaged.len(), 1, "call {nth}");
        let is_lost = |(offset, _): &&Found| damaged[0].contains(&Offset(*offset));
        assert_eq!(acknowledged.iter().filter(is_lost).count(), 1);
        let expected: Vec<Found> = acknowledged
            .iter()
            .filter(|found| !is_lost(found))
            .cloned()
            .collect();
        assert_eq!(found, expected, "call {nth}");
        assert_eq!(telemetry(&log).gaps()[0].range, damaged[0]);
        if is_done {
            break;
        }
        nth += 1;
    }
    assert!(nth > 20);
}

#[test]
fn a_new_log_whose_name_may_not_last_is_refused() {
    let mut is_seen = false;
    for nth in 1..12 {
        let files = SimFiles::new(nth);
        files.fail_call(nth, Fault::Error);
        let opened = Log::open(sim_config(SyncMode::Always), files.seams());
        if files.failed() == ["sync_dir of /"] {
            is_seen = true;
            assert!(opened.is_err(), "call {nth}");
        }
    }
    assert!(is_seen, "the folder above was never synced");
}
