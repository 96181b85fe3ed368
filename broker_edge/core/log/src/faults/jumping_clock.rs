//! A wall clock that jumps in both directions, like a clock that is set by hand, by GPS or not at all.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::plan::Plan;
use crate::vfs::clock::Clock;

/// Reads of the clock between two jumps.
const STEADY_FOR: u64 = 50;

pub(super) struct JumpingClock<C> {
    inner: C,
    plan: &'static Plan,
    asked: AtomicU64,
    error_us: AtomicI64,
}

impl<C: Clock> JumpingClock<C> {
    pub(super) fn new(inner: C, plan: &'static Plan) -> Self {
        let error_us = AtomicI64::new(plan.clock_error_us());
        Self {
            inner,
            plan,
            asked: AtomicU64::new(0),
            error_us,
        }
    }
}

impl<C: Clock> Clock for JumpingClock<C> {
    fn now_us(&self) -> i64 {
        if self.asked.fetch_add(1, Ordering::Relaxed) % STEADY_FOR == STEADY_FOR - 1 {
            self.error_us
                .store(self.plan.clock_error_us(), Ordering::Relaxed);
        }
        let error_us = self.error_us.load(Ordering::Relaxed);
        self.inner.now_us().saturating_add(error_us).max(0)
    }

    fn steady(&self) -> Duration {
        self.inner.steady()
    }
}
