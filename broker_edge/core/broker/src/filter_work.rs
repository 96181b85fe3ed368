//! Bounds the time that a call spends on matching topics: a reader chooses the filters, and others the topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The most time that a call may spend on matching topics.
const WORK_MAX: Duration = Duration::from_secs(5);
/// Filters that are matched between two looks at the clock: up to some 200 us of filters with many levels.
pub const FILTERS_A_LOOK: usize = 64;

#[derive(Debug)]
pub struct Work {
    clock: fn() -> Instant,
    spent_ns: AtomicU64,
    /// The length of a topic that was too long for the pattern; zero if there was none.
    too_long: AtomicUsize,
    /// True when the call was cancelled.
    stop: Arc<AtomicBool>,
}

/// Why matching stopped early. From then on no topic matches, so the results must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkOver {
    #[error(
        "a topic of {bytes} bytes is too long for this pattern: begin it with whole levels that leave such topics out, \
         write it with fewer repetitions, or use filters"
    )]
    TooLong { bytes: usize },
    #[error(
        "matching topics took more than {} s: begin the pattern with whole levels, or use fewer and narrower filters",
        WORK_MAX.as_secs()
    )]
    Spent,
    #[error("the call was cancelled")]
    Stopped,
}

impl Work {
    pub fn new(clock: fn() -> Instant, stop: &Arc<AtomicBool>) -> Work {
        Work {
            clock,
            spent_ns: AtomicU64::new(0),
            too_long: AtomicUsize::new(0),
            stop: Arc::clone(stop),
        }
    }

    /// For the next part of a long call.
    pub fn begin_anew(&self) {
        self.spent_ns.store(0, Ordering::Relaxed);
    }

    pub fn note_too_long(&self, bytes: usize) {
        self.too_long.store(bytes, Ordering::Relaxed);
    }

    pub fn over(&self) -> Option<WorkOver> {
        if self.stop.load(Ordering::Relaxed) {
            return Some(WorkOver::Stopped);
        }
        match self.too_long.load(Ordering::Relaxed) {
            0 => {}
            bytes => return Some(WorkOver::TooLong { bytes }),
        }
        let spent = Duration::from_nanos(self.spent_ns.load(Ordering::Relaxed));
        (spent > WORK_MAX).then_some(WorkOver::Spent)
    }

    /// Runs `f` and counts the time that it takes.
    pub fn count<T>(&self, f: impl FnOnce() -> T) -> T {
        let began = (self.clock)();
        let found = f();
        let spent = (self.clock)().saturating_duration_since(began);
        let ns = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.spent_ns.fetch_add(ns, Ordering::Relaxed);
        found
    }
}
