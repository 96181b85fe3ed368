//! Wall clock and steady clock as a seam, and the seams of a log together. Nothing else in this crate asks for the
//! time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::vfs::files::Files;

/// The outside world of a log.
#[derive(Clone)]
pub struct Seams {
    pub files: Arc<dyn Files>,
    pub clock: Arc<dyn Clock>,
}

pub trait Clock: Send + Sync {
    /// Unix time in microseconds, UTC. May jump in both directions.
    fn now_us(&self) -> i64;

    /// Time since some fixed moment; never goes back. For intervals only.
    fn steady(&self) -> Duration;
}

#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    #[must_use]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_us(&self) -> i64 {
        // A clock before 1970 is implausible, not fatal: age rules wait for a plausible one.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
            })
    }

    fn steady(&self) -> Duration {
        self.started.elapsed()
    }
}
