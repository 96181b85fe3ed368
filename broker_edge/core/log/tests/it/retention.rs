//! What is removed, when, and what readers are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{Log, LogConfig, Offset, ReadError, Seams};

const HOUR: Duration = Duration::from_secs(3600);
const START_US: i64 = 1_800_000_000_000_000;

fn fill(log: &Log, count: usize) {
    for n in 0..count {
        append(telemetry(log), &[format!("{n}").repeat(300)]);
    }
}

fn sized(dir: &std::path::Path, bytes: u64) -> LogConfig {
    let mut config = without_tail(dir);
    config.classes[1].retention_bytes = Some(bytes);
    config
}

fn aged(dir: &std::path::Path, age: Duration) -> LogConfig {
    let mut config = without_tail(dir);
    config.classes[1].retention_age = Some(age);
    config
}

#[test]
fn size_removes_the_oldest_segments_and_a_restart_agrees() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(sized(dir.path(), 150 << 10), Seams::system());
    fill(&log, 400);
    log.maintain();
    let start = telemetry(&log).log_start();
    assert!(start > Offset(0) && start < Offset(400));
    assert!(telemetry(&log).size_bytes() <= 150 << 10);
    let error = telemetry(&log).read(Offset(0), 100).expect_err("gone");
    assert!(
        matches!(error, ReadError::OutOfRange { log_start, .. } if log_start == start),
        "{error}"
    );
    let expected = read_all(telemetry(&log));
    assert_eq!(expected[0].0, start.0);
    for index in files_of(dir.path(), ".idx") {
        assert!(index.with_extension("seg").exists(), "{index:?} is left");
    }
    assert_eq!(telemetry(&log).topics().expect("topics")[0].first, start);
    assert_eq!(
        telemetry(&log).epoch_before(start).expect("an answer"),
        None
    );
    drop(log);
    let log = open_with(sized(dir.path(), 150 << 10), Seams::system());
    assert_eq!(telemetry(&log).log_start(), start);
    assert_eq!(read_all(telemetry(&log)), expected);
}

#[test]
fn age_removes_what_is_old_even_when_little_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let log = open_with(aged(dir.path(), 4 * HOUR), with_clock(&clock));
    fill(&log, 5);
    clock.pass(3 * HOUR);
    log.maintain();
    await_that("the active segment to be sealed", || {
        files_of(dir.path(), ".seg").len() == 2
    });
    append(telemetry(&log), &["younger"]);
    assert_eq!(
        telemetry(&log).log_start(),
        Offset(0),
        "nothing is old enough yet"
    );
    clock.pass(2 * HOUR);
    log.maintain();
    assert_eq!(telemetry(&log).log_start(), Offset(5));
    assert_eq!(read_all(telemetry(&log)), [(5, b"younger".to_vec())]);
}

#[test]
fn segments_that_can_not_be_read_are_not_taken_for_old_ones() {
    for damaged in [1, 2] {
        let dir = tempfile::tempdir().expect("a folder");
        let clock = HandClock::at(START_US);
        fill(&open_with(aged(dir.path(), HOUR), with_clock(&clock)), 400);
        let mut segments = files_of(dir.path(), ".seg");
        segments.truncate(damaged);
        for segment in &segments {
            let bytes = std::fs::metadata(segment).expect("a file").len() as usize;
            std::fs::remove_file(segment.with_extension("idx")).ok();
            std::fs::write(segment, vec![0; bytes]).expect("written");
        }

        let log = open_with(aged(dir.path(), HOUR), with_clock(&clock));
        log.maintain();
        let are_there = || segments.iter().map(|segment| segment.exists());
        assert!(are_there().all(|is| is), "they may be readable again later");
        assert_eq!(telemetry(&log).log_start(), Offset(0));
        assert_eq!(telemetry(&log).gaps()[0].range.start, Offset(0));

        clock.pass(2 * HOUR);
        log.maintain();
        assert!(
            !are_there().any(|is| is),
            "what follows is old, so they are older"
        );
        assert!(telemetry(&log).log_start() > Offset(0));
    }
}

#[test]
fn age_waits_for_a_plausible_clock() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let log = open_with(aged(dir.path(), HOUR), with_clock(&clock));
    fill(&log, 300);
    for wrong in [0, START_US - 1] {
        clock.set(wrong);
        log.maintain();
        assert_eq!(
            telemetry(&log).log_start(),
            Offset(0),
            "the clock says {wrong}"
        );
    }
    clock.set(START_US);
    clock.pass(2 * HOUR);
    log.maintain();
    assert!(telemetry(&log).log_start() > Offset(0));
}

#[test]
fn a_hook_is_asked_first_and_can_postpone() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(sized(dir.path(), 100 << 10), Seams::system());
    let partition = telemetry(&log).clone();
    let allowed = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let hook = {
        let (allowed, asked, partition) =
            (Arc::clone(&allowed), Arc::clone(&asked), partition.clone());
        move |range: std::ops::Range<Offset>| {
            assert!(
                partition.read(range.start, 100).is_ok(),
                "it can still be read"
            );
            asked.lock().push(range);
            allowed.load(Ordering::SeqCst)
        }
    };
    let _guard = partition.before_delete(Arc::new(hook));
    fill(&log, 300);
    log.maintain();
    assert_eq!(partition.log_start(), Offset(0));
    let first = asked.lock()[0].clone();
    assert_eq!(first.start, Offset(0));
    allowed.store(true, Ordering::SeqCst);
    log.maintain();
    assert!(partition.log_start() >= first.end);
}

#[test]
fn advancing_the_log_start_removes_whole_segments_only() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(without_tail(dir.path()), Seams::system());
    fill(&log, 300);
    let partition = telemetry(&log);
    partition.advance_log_start(Offset(1));
    assert_eq!(partition.log_start(), Offset(0));
    partition.advance_log_start(Offset(250));
    let start = partition.log_start();
    assert!(start > Offset(0) && start <= Offset(250));
    assert_eq!(read_all(partition)[0].0, start.0);
    partition.advance_log_start(Offset(10_000));
    assert!(
        partition.log_start() < Offset(300),
        "the active segment stays"
    );
    append(partition, &["next"]);
}

#[test]
fn removed_records_are_not_served_from_memory_either() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(
        LogConfig {
            // All of it stays in the tail.
            tail_bytes: 16 << 20,
            ..config(dir.path())
        },
        Seams::system(),
    );
    fill(&log, 300);
    let partition = telemetry(&log);
    let held = partition.read_tail(Offset(0), 100).expect("in the tail");
    assert_eq!(held[0].base_offset(), Offset(0));
    partition.advance_log_start(Offset(250));
    let start = partition.log_start();
    assert!(start > Offset(0));
    for removed in [Offset(0), Offset(start.0 - 1)] {
        let error = partition.read(removed, 100).expect_err("removed");
        assert!(
            matches!(error, ReadError::OutOfRange { log_start, .. } if log_start == start),
            "{error}"
        );
        let matching = partition.read_matching(removed, Offset(300), 100, &|_| true);
        let error = matching.expect_err("removed");
        assert!(
            matches!(error, ReadError::OutOfRange { log_start, .. } if log_start == start),
            "{error}"
        );
        assert!(partition.read_tail(removed, 100).is_none());
    }
    assert_eq!(read_all(partition)[0].0, start.0);
}

#[test]
fn a_key_whose_record_was_removed_is_fresh_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(without_tail(dir.path()), Seams::system());
    let partition = telemetry(&log);
    partition.append_unique(keyed("k", b"x")).expect("taken");
    fill(&log, 300);
    partition.advance_log_start(Offset(200));
    let placed = partition.append_unique(keyed("k", b"x")).expect("taken")[0];
    assert!(!placed.duplicate);
}

#[test]
fn a_key_is_known_from_the_log_start_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let partition = telemetry(&log);
    for n in 0..100 {
        let placed = partition.append_unique(keyed(&format!("{n}"), &[7; 1500]));
        await_durable(partition, Offset(placed.expect("taken")[0].offset.0 + 1));
    }
    partition.advance_log_start(Offset(80));
    let start = partition.log_start();
    assert!(start > Offset(0));
    for (offset, is_known) in [(start.0, true), (start.0 - 1, false)] {
        let again = partition.append_unique(keyed(&format!("{offset}"), b"again"));
        assert_eq!(again.expect("an answer")[0].duplicate, is_known, "{offset}");
    }
}

/// An earlier hook answers for an owner that is about to go.
#[test]
fn the_newest_hook_is_asked_and_can_postpone() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    fill(&log, 300);
    let partition = telemetry(&log);
    let _earlier = partition.before_delete(Arc::new(|_| panic!("it has a successor")));
    let postpones = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&postpones);
    let _newest = partition.before_delete(Arc::new(move |_| !asked.load(Ordering::SeqCst)));
    partition.advance_log_start(Offset(250));
    assert_eq!(partition.log_start(), Offset(0));
    postpones.store(false, Ordering::SeqCst);
    partition.advance_log_start(Offset(250));
    assert!(partition.log_start() > Offset(0));
}

#[test]
fn nothing_is_removed_from_the_end_of_a_hook_to_the_next_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        maintain_every: None,
        ..sized(dir.path(), 100 << 10)
    };
    let log = open_with(config, Seams::system());
    let partition = telemetry(&log);
    fill(&log, 300);
    partition.advance_log_start(Offset(second_base(dir.path())));
    let start = partition.log_start();
    assert!(start > Offset(0), "nobody wants to be asked");
    let held = Arc::new(());
    let kept = Arc::clone(&held);
    drop(partition.before_delete(Arc::new(move |_| Arc::strong_count(&kept) > 0)));
    assert_eq!(Arc::strong_count(&held), 1, "the hook is gone");
    partition.advance_log_start(Offset(250));
    log.maintain();
    assert_eq!(partition.log_start(), start);
    let replaced = partition.before_delete(Arc::new(|_| false));
    let _next = partition.before_delete(Arc::new(|_| true));
    drop(replaced);
    log.maintain();
    assert!(partition.log_start() > start, "it is too large");
}

/// What the hook writes must not come after its owner has gone.
#[test]
fn the_end_of_a_hook_waits_until_it_has_answered() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    fill(&log, 300);
    let partition = telemetry(&log);
    let [asked, may_answer, answered] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let is_ending = AtomicBool::new(false);
    let hook = {
        let (asked, may_answer, answered) = (
            Arc::clone(&asked),
            Arc::clone(&may_answer),
            Arc::clone(&answered),
        );
        move |_| {
            asked.store(true, Ordering::SeqCst);
            await_that("the permission", || may_answer.load(Ordering::SeqCst));
            answered.store(true, Ordering::SeqCst);
            true
        }
    };
    let guard = partition.before_delete(Arc::new(hook));
    std::thread::scope(|scope| {
        scope.spawn(|| partition.advance_log_start(Offset(250)));
        await_that("the call", || asked.load(Ordering::SeqCst));
        let ended = scope.spawn(|| {
            is_ending.store(true, Ordering::SeqCst);
            drop(guard);
            answered.load(Ordering::SeqCst)
        });
        await_that("the end", || is_ending.load(Ordering::SeqCst));
        may_answer.store(true, Ordering::SeqCst);
        assert!(ended.join().expect("no panic"));
    });
}

#[test]
fn a_segment_goes_once_the_log_start_is_advanced_to_its_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    fill(&log, 300);
    let base = second_base(dir.path());
    for (to, start) in [(base - 1, 0), (base, base)] {
        telemetry(&log).advance_log_start(Offset(to));
        assert_eq!(telemetry(&log).log_start(), Offset(start), "to {to}");
    }
}

#[test]
fn readers_meet_only_whole_records_or_an_error_while_segments_go_and_are_used_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(sized(dir.path(), 130 << 10), Seams::system());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let partition = telemetry(&log);
            let mut next = Offset(0);
            while !done.load(Ordering::SeqCst) {
                match partition.read(next, 4000) {
                    Ok(batches) => {
                        for record in batches.iter().flat_map(headwater_log::Batch::records) {
                            assert_eq!(
                                record.payload,
                                record.offset.0.to_string().repeat(200).as_bytes()
                            );
                        }
                        next = batches
                            .last()
                            .map_or(partition.log_start(), headwater_log::Batch::next_offset);
                    }
                    Err(ReadError::OutOfRange { log_start, .. }) => next = log_start,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for n in 0..600 {
            append(telemetry(&log), &[n.to_string().repeat(200)]);
            if n % 20 == 0 {
                log.maintain();
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(telemetry(&log).log_start() > Offset(0));
    assert_eq!(telemetry(&log).gaps(), []);
}

#[test]
fn nothing_is_removed_once_the_log_is_shut_down() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    fill(&log, 300);
    log.shutdown();
    telemetry(&log).advance_log_start(Offset(250));
    assert_eq!(telemetry(&log).log_start(), Offset(0));
    assert_eq!(read_all(telemetry(&log)).len(), 300);
}

/// By the times in the segments, or by the monotonic clock while the wall clock cannot be trusted.
#[test]
fn an_old_active_segment_is_sealed_whether_a_start_found_it_or_the_clock_was_never_set() {
    for is_found in [true, false] {
        let dir = tempfile::tempdir().expect("a folder");
        let clock = HandClock::at(if is_found { START_US } else { 0 });
        let mut log = open_with(aged(dir.path(), 4 * HOUR), with_clock(&clock));
        fill(&log, 5);
        if is_found {
            drop(log);
            log = open_with(aged(dir.path(), 4 * HOUR), with_clock(&clock));
        }
        log.maintain();
        clock.pass(2 * HOUR);
        log.maintain();
        await_that("the active segment to be sealed", || {
            files_of(dir.path(), ".seg").len() == 2
        });
        assert_eq!(read_all(telemetry(&log)).len(), 5);
    }
}

/// What an operator is told about the age of the oldest record.
#[test]
fn the_oldest_time_is_that_of_the_first_record_that_is_left() {
    let files = SimFiles::new(1);
    let clock = HandClock::at(START_US);
    let config = || LogConfig {
        segment_bytes: 16 << 10,
        ..with_room()
    };
    let log = open_with(config(), files.seams_with(clock.clone()));
    let partition = telemetry(&log);
    assert_eq!(partition.oldest_time_us(), None);
    let minute_us = 60_000_000;
    for n in 0..3 {
        append(partition, &[vec![n; 9000]]);
        let told = partition.oldest_time_us();
        assert_eq!(told, Some(START_US), "with {n} segments sealed");
        clock.jump(minute_us);
    }
    partition.advance_log_start(Offset(1));
    assert_eq!(partition.oldest_time_us(), Some(START_US + minute_us));
    log.shutdown();
    drop(log);

    // An unreadable first segment has no time, rather than a very old one.
    let first = std::path::Path::new("/data/telemetry-0/00000000000000000001");
    files.with_bytes(&first.with_extension("seg"), |bytes| bytes.fill(0));
    if has(&files, "00000000000000000001.idx") {
        files.take_away(&first.with_extension("idx"));
    }
    let log = open_with(config(), files.seams_with(clock));
    assert_eq!(telemetry(&log).oldest_time_us(), None);
    assert_eq!(telemetry(&log).gaps()[0].range, Offset(1)..Offset(2));
}
