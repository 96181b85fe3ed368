//! How long a refused password check takes, as the client sees it: the same for every name and every kind of hash.
//!
//! A file may hold hashes that cost tens of milliseconds beside hashes that cost microseconds. If each refusal came as
//! soon as its check ended, the time would tell which names exist. So every refusal waits until the slowest check of the
//! file would have ended, too. On a busy machine all checks take longer, and the time follows the longest of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::password::StoredPassword;

/// Room for a machine that is busier than it was at the measurement.
const HEADROOM: u32 = 2;
/// One check that took very long, because the machine stood still, must not delay all refusals for as long.
const RISE_MAX: u32 = 4;
const RISE_LEAST_MAX: Duration = Duration::from_secs(3);
/// The part of a rise that is taken back with each shorter check.
const DECAY: u64 = 64;

/// Belongs to one snapshot of the password file.
#[derive(Debug, Default)]
pub struct RefusalTime {
    /// What the slowest check is expected to take; measured by the first check.
    expected: OnceLock<Duration>,
    /// How much longer checks have taken recently.
    risen_us: AtomicU64,
}

impl RefusalTime {
    /// When a refused check that began at `started` is answered. `slowest` is the hash of the file that costs the most.
    pub fn answer_at(&self, started: Instant, slowest: &StoredPassword) -> Instant {
        let took = started.elapsed();
        let expected = *self.expected.get_or_init(|| {
            let before = cpu_time();
            slowest.is(b"");
            cpu_time().saturating_sub(before) * HEADROOM
        });
        let risen_us = self.risen_us.load(Ordering::Relaxed);
        let over = took
            .saturating_sub(expected)
            .min((expected * RISE_MAX).max(RISE_LEAST_MAX));
        let over_us = u64::try_from(over.as_micros()).unwrap_or(u64::MAX);
        // Checks on two threads may overwrite each other's value; the next check corrects it.
        let next_us = over_us.max(risen_us - risen_us.div_ceil(DECAY));
        self.risen_us.store(next_us, Ordering::Relaxed);
        started + expected + Duration::from_micros(risen_us.max(over_us))
    }
}

/// The processor time of this thread: what other processes take meanwhile does not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_rises_with_a_slow_check_up_to_a_bound_and_falls_again() {
        let time = RefusalTime::default();
        let expected = Duration::from_millis(10);
        time.expected.set(expected).unwrap();
        let slowest = StoredPassword::default();
        let answer_after = |took_ms: u64| {
            let started = Instant::now() - Duration::from_millis(took_ms);
            time.answer_at(started, &slowest) - started
        };
        assert_eq!(answer_after(0), expected);
        let slow = answer_after(30);
        assert!(slow >= Duration::from_millis(30), "{slow:?}");
        assert!(
            answer_after(0) >= slow - slow / 16,
            "the next ones wait as long"
        );
        assert!(answer_after(60_000) <= expected + RISE_LEAST_MAX);
        for _ in 0..1000 {
            answer_after(0);
        }
        assert!(answer_after(0) < expected * 2);
    }
}
