//! Which records holders keep from retention, and that a jumping wall clock removes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::*;
use headwater_log::{
    Cause, Class, Clock, HeldLoss, Hold, Holders, Log, LogConfig, Offset, PartitionId, ReadError,
    Seams, SyncMode,
};
use parking_lot::Mutex;

const HOUR: Duration = Duration::from_secs(3600);
const START_US: i64 = 1_800_000_000_000_000;
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// One holder that can be moved, and the losses reported to it.
#[derive(Default)]
struct Group {
    next: Mutex<Option<Offset>>,
    lost: Mutex<Vec<(std::ops::Range<Offset>, Cause)>>,
}

impl Group {
    fn at(next: u64) -> Arc<Self> {
        let group = Self::default();
        *group.next.lock() = Some(Offset(next));
        Arc::new(group)
    }

    fn commit(&self, next: u64) {
        *self.next.lock() = Some(Offset(next));
    }
}

impl Holders for Group {
    fn holding(&self, _: PartitionId, end: Offset) -> Vec<Hold> {
        let next = self.next.lock().filter(|next| *next < end);
        next.map(|next| Hold {
            holder: "g".to_owned(),
            next,
        })
        .into_iter()
        .collect()
    }

    fn overridden(&self, loss: &HeldLoss<'_>) {
        let start = loss.holds[0].next.max(loss.range.start);
        self.lost.lock().push((start..loss.range.end, loss.cause));
    }
}

fn held(dir: &std::path::Path, bytes: u64, hard_bytes: Option<u64>) -> LogConfig {
    let mut config = LogConfig {
        tail_bytes: 0,
        maintain_every: None,
        sync: SyncMode::Never,
        ..config(dir)
    };
    config.classes[1].retention_bytes = Some(bytes);
    config.classes[1].retention_hard_bytes = hard_bytes;
    config.classes[1].honours_holds = true;
    config
}

fn fill(log: &Log, count: usize) {
    for n in 0..count {
        append(telemetry(log), &[format!("{n}").repeat(300)]);
    }
}

fn hold(log: &Log, group: &Arc<Group>) {
    let holders: Arc<dyn Holders> = Arc::clone(group) as Arc<dyn Holders>;
    log.hold_with(&holders);
}

#[test]
fn a_group_keeps_what_it_has_not_finished_and_no_more() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(held(dir.path(), 70 << 10, None), Seams::system());
    let group = Group::at(0);
    hold(&log, &group);
    fill(&log, 500);
    log.maintain();
    assert_eq!(telemetry(&log).log_start(), Offset(0), "held from 0 on");

    group.commit(200);
    log.maintain();
    let start = telemetry(&log).log_start();
    assert!(start > Offset(0) && start <= Offset(200), "{start}");
    let kept = read_all(telemetry(&log));
    assert!(kept.iter().any(|(offset, _)| *offset == 200));

    group.commit(500);
    log.maintain();
    assert!(telemetry(&log).log_start() > Offset(200));
    assert!(telemetry(&log).size_bytes() <= 70 << 10);
    assert_eq!(*group.lost.lock(), []);
    let removed = telemetry(&log).stats().removed;
    assert!(removed[Cause::Bytes as usize].segments >= 2);
    assert_eq!(removed[Cause::Bytes as usize].held_records, 0);
}

#[test]
fn the_hard_limit_wins_over_a_group_and_names_what_it_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(held(dir.path(), 70 << 10, Some(200 << 10)), Seams::system());
    let group = Group::at(10);
    hold(&log, &group);
    fill(&log, 700);
    log.maintain();
    let partition = telemetry(&log);
    let start = partition.log_start();
    assert!(start > Offset(10));
    assert!(partition.size_bytes() <= 200 << 10);
    assert!(partition.size_bytes() > 70 << 10, "what is left is held");
    let lost = group.lost.lock().clone();
    assert_eq!(lost[0].0.start, Offset(10), "not what it had finished");
    assert_eq!(lost.last().expect("one at least").0.end, start);
    for pair in lost.windows(2) {
        assert_eq!(pair[0].0.end, pair[1].0.start);
    }
    assert!(lost.iter().all(|(_, cause)| *cause == Cause::HardBytes));
    let removed = partition.stats().removed[Cause::HardBytes as usize];
    assert_eq!(removed.segments, lost.len() as u64);
    assert_eq!(removed.records, start.0);
    assert_eq!(removed.held_records, start.0 - 10);
    let error = partition.read(Offset(10), 100).expect_err("gone");
    assert!(matches!(error, ReadError::OutOfRange { log_start, .. } if log_start == start));
}

#[test]
fn age_waits_for_a_group_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let mut config = held(dir.path(), 1 << 40, None);
    config.classes[1].retention_age = Some(HOUR);
    let log = open_with(config, with_clock(&clock));
    let group = Group::at(50);
    hold(&log, &group);
    fill(&log, 300);
    clock.pass(2 * HOUR);
    log.maintain();
    assert!(telemetry(&log).log_start() <= Offset(50));
    group.commit(299);
    log.maintain();
    assert!(telemetry(&log).log_start() > Offset(50));
}

#[test]
fn nothing_goes_before_the_holders_can_be_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = || LogConfig {
        removes_at_once: false,
        ..held(dir.path(), 70 << 10, Some(80 << 10))
    };
    let log = open_with(config(), Seams::system());
    fill(&log, 300);
    log.maintain();
    assert_eq!(telemetry(&log).log_start(), Offset(0));
    hold(&log, &Group::at(300));
    log.maintain();
    assert!(telemetry(&log).log_start() > Offset(0));
}

#[test]
fn a_jump_of_the_wall_clock_neither_removes_nor_reorders() {
    for restart in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let clock = HandClock::at(START_US);
        let mut config = LogConfig {
            tail_bytes: 0,
            maintain_every: None,
            sync: SyncMode::Never,
            ..config(dir.path())
        };
        config.classes[1].retention_age = Some(24 * HOUR);
        let mut log = open_with(config.clone(), with_clock(&clock));
        fill(&log, 300);
        if restart {
            drop(log);
            log = open_with(config, with_clock(&clock));
        }
        log.maintain();
        clock.advance(YEAR);
        log.maintain();
        append(telemetry(&log), &["ahead"]);
        clock.set(START_US - 1_000_000);
        log.maintain();
        append(telemetry(&log), &["back"]);
        log.maintain();
        assert_eq!(telemetry(&log).log_start(), Offset(0), "restart: {restart}");
        let all = read_all(telemetry(&log));
        let offsets: Vec<u64> = all.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (0..302).collect::<Vec<_>>());
        assert_eq!((&*all[300].1, &*all[301].1), (&b"ahead"[..], &b"back"[..]));

        clock.pass(25 * HOUR);
        log.maintain();
        assert!(
            telemetry(&log).log_start() > Offset(0),
            "time that has really passed counts, restart: {restart}"
        );
    }
}

#[test]
fn a_jump_ahead_counts_for_what_a_start_found_once_the_clock_has_stood_for_an_hour() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let mut config = LogConfig {
        tail_bytes: 0,
        maintain_every: None,
        sync: SyncMode::Never,
        ..config(dir.path())
    };
    config.classes[1].retention_age = Some(24 * HOUR);
    fill(&open_with(config.clone(), with_clock(&clock)), 300);
    let log = open_with(config, with_clock(&clock));
    log.maintain();
    clock.advance(YEAR);
    log.maintain();
    clock.pass(HOUR / 2);
    log.maintain();
    assert_eq!(telemetry(&log).log_start(), Offset(0));
    clock.pass(HOUR);
    log.maintain();
    assert!(telemetry(&log).log_start() > Offset(0));
}

/// Signals that `expire` on another thread is about to decide, because it reads the wall clock first.
struct Watched {
    hand: Arc<HandClock>,
    armed: AtomicBool,
    read: AtomicBool,
}

impl Clock for Watched {
    fn now_us(&self) -> i64 {
        if self.armed.load(Ordering::SeqCst) {
            self.read.store(true, Ordering::SeqCst);
        }
        self.hand.now_us()
    }

    fn steady(&self) -> Duration {
        self.hand.steady()
    }
}

#[test]
fn two_that_expire_at_once_remove_no_more_than_one_would() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().expect("a folder");
        let clock = Arc::new(Watched {
            hand: HandClock::at(START_US),
            armed: AtomicBool::new(false),
            read: AtomicBool::new(false),
        });
        let mut config = LogConfig {
            tail_bytes: 0,
            maintain_every: None,
            sync: SyncMode::Never,
            ..config(dir.path())
        };
        config.classes[1].retention_age = Some(YEAR);
        config.classes[1].retention_bytes = Some(150 << 10);
        let seams = Seams {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            ..Seams::system()
        };
        let log = open_with(config, seams);
        let (entered, may_leave) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let removals = Arc::new(Mutex::new(Vec::new()));
        let hook = {
            let (entered, may_leave, removals) = (
                Arc::clone(&entered),
                Arc::clone(&may_leave),
                Arc::clone(&removals),
            );
            move |range: std::ops::Range<Offset>| {
                removals.lock().push(range);
                entered.store(true, Ordering::SeqCst);
                await_that("the other one to come", || may_leave.load(Ordering::SeqCst));
                true
            }
        };
        let _guard = telemetry(&log).before_delete(Arc::new(hook));
        while telemetry(&log).size_bytes() <= 150 << 10 {
            fill(&log, 1);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| log.maintain());
            await_that("the first to decide", || entered.load(Ordering::SeqCst));
            clock.armed.store(true, Ordering::SeqCst);
            scope.spawn(|| log.maintain());
            await_that("the second to look at the clock", || {
                clock.read.load(Ordering::SeqCst)
            });
            may_leave.store(true, Ordering::SeqCst);
        });
        assert_eq!(removals.lock().len(), 1, "one segment was too much");
    }
}

#[test]
fn a_class_that_heeds_no_holder_lets_go() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut config = held(dir.path(), 70 << 10, None);
    assert_eq!(config.classes[1].class, Class::Telemetry);
    config.classes[1].honours_holds = false;
    let log = open_with(config, Seams::system());
    hold(&log, &Group::at(0));
    fill(&log, 300);
    log.maintain();
    assert!(telemetry(&log).size_bytes() <= 70 << 10);
}

/// A holder may have the partitions that ask it.
#[test]
fn a_log_that_is_shut_down_lets_go_of_its_holders() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(held(dir.path(), 1, None), Seams::system());
    let group = Group::at(0);
    let holders: Arc<dyn Holders> = group.clone();
    log.hold_with(&holders);
    drop(holders);
    assert!(Arc::strong_count(&group) > 1);
    log.shutdown();
    assert_eq!(Arc::strong_count(&group), 1);
}

/// Answers every question with its hold.
struct At(u64);

impl Holders for At {
    fn holding(&self, _: PartitionId, _: Offset) -> Vec<Hold> {
        vec![Hold {
            holder: "g".to_owned(),
            next: Offset(self.0),
        }]
    }

    fn overridden(&self, _: &HeldLoss<'_>) {}
}

#[test]
fn who_has_finished_a_segment_to_its_end_does_not_hold_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(held(dir.path(), 1, None), Seams::system());
    fill(&log, 300);
    let base = second_base(dir.path());
    for (next, start) in [(base - 1, 0), (base, base)] {
        log.hold_with(&(Arc::new(At(next)) as Arc<dyn Holders>));
        log.maintain();
        assert_eq!(telemetry(&log).log_start(), Offset(start), "held at {next}");
    }
}

#[test]
fn a_class_without_holders_waits_for_them_where_it_heeds_them_or_removes_nothing_at_once() {
    for (honours_holds, removes_at_once) in [(true, true), (true, false), (false, false)] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut config = held(dir.path(), 70 << 10, None);
        config.classes[1].honours_holds = honours_holds;
        config.removes_at_once = removes_at_once;
        let log = open_with(config, Seams::system());
        fill(&log, 300);
        log.maintain();
        assert_eq!(telemetry(&log).log_start(), Offset(0));
        hold(&log, &Group::at(300));
        log.maintain();
        assert!(telemetry(&log).log_start() > Offset(0));
    }
}
