//! Every file system call fails once, in every way: at a start, while writing, sealing, removing, marking, stopping.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::await_that;
use crate::support::machine::{Crash, Machine, Settings};
use crate::support::script::{SCRIPT, spec};
use crate::support::sim::{Fault, SimFiles};
use headwater_log::PartitionState;

/// Some runs wait for the writer to retry, so they run in parallel.
const THREADS: usize = 12;

/// The result of a run in which one call failed.
struct Outcome {
    /// `None` when the run ended before that call.
    failed: Option<String>,
    has_stopped: bool,
}

/// Runs the script with the `nth` call failing, then cuts the power, and compares at every start.
fn run(settings: &Settings, nth: u64, fault: Fault) -> Outcome {
    let files = SimFiles::new(nth);
    let mut machine = Machine::new_faulty(files.clone(), settings.clone());
    files.fail_call_in_any_life(nth, fault);
    machine.start(&[]);
    for act in SCRIPT {
        act(&mut machine);
    }
    machine.maintain();
    for at in 0..3 {
        await_that("the partition to run or to have stopped", || {
            machine.partition(at).state() != PartitionState::Full
        });
    }
    let outcome = Outcome {
        failed: files.failed().pop(),
        has_stopped: machine.has_stopped,
    };
    machine.stop(Some(Crash::Power), &[]);
    (0..3).for_each(|at| machine.append(at, &[spec(1, 100)], true));
    machine.crash(Crash::Power, &[]);
    outcome
}

/// Fails one call after another until the run has no more calls; returns their number.
fn fail_each_call(settings: &Settings, fault: Fault, check: impl Fn(u64, &Outcome) + Sync) -> u64 {
    let (next, tried) = (AtomicU64::new(1), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    eprintln!("call {nth} fails: {fault:?}");
                    let outcome = run(settings, nth, fault);
                    let Some(failed) = &outcome.failed else {
                        // A fault that does not apply to this call was skipped.
                        if fault == Fault::NoDescriptor && nth < 400 {
                            continue;
                        }
                        return;
                    };
                    eprintln!("call {nth} was {failed}");
                    check(nth, &outcome);
                    tried.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    tried.into_inner()
}

#[test]
fn any_call_that_fails_loses_nothing_acknowledged_and_no_failed_sync_is_tried_again() {
    let seen = parking_lot::Mutex::new(BTreeSet::new());
    for fault in [Fault::Error, Fault::LostSync, Fault::Short] {
        let tried = fail_each_call(&Settings::always(), fault, |_, outcome| {
            let failed = outcome.failed.as_deref().unwrap_or_default();
            seen.lock()
                .insert(failed.split(' ').next().unwrap_or_default().to_owned());
            if failed.starts_with("sync_data") && failed.ends_with(".seg") {
                assert!(outcome.has_stopped, "{failed}");
            }
        });
        assert!(tried > 150, "{fault:?}: only {tried} calls");
    }
    for call in [
        "open",
        "read_at",
        "write_all_at",
        "sync_data",
        "sync_dir",
        "rename",
        "remove",
        "list",
        "len",
        "lock",
        "create_dir",
    ] {
        assert!(seen.lock().contains(call), "{call} never failed: {seen:?}");
    }
}

#[test]
fn any_call_that_fails_loses_nothing_synced_at_an_interval() {
    let tried = fail_each_call(&Settings::interval(), Fault::LostSync, |_, _| {});
    assert!(tried > 120, "only {tried} calls");
}

#[test]
fn wherever_the_disk_is_full_once_appends_resume_by_themselves() {
    let tried = fail_each_call(&Settings::always(), Fault::Full, |nth, outcome| {
        // A device without room for preallocated bytes, or for a sync, has failed.
        let failed = outcome.failed.as_deref().unwrap_or_default();
        let is_active = failed.contains(".seg") && !failed.contains(".tmp");
        let may_stop =
            is_active && (failed.starts_with("sync_data") || failed.starts_with("write_all_at"));
        assert!(may_stop || !outcome.has_stopped, "call {nth}, {failed}");
    });
    assert!(tried > 150, "only {tried} calls");
}

#[test]
fn wherever_a_descriptor_is_missing_once_appends_resume_by_themselves() {
    let tried = fail_each_call(&Settings::always(), Fault::NoDescriptor, |nth, outcome| {
        assert!(!outcome.has_stopped, "call {nth}, {:?}", outcome.failed);
    });
    assert!(tried > 40, "only {tried} calls");
}
