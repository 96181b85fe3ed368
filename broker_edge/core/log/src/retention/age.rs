//! The time for rules about age: a wall clock that jumps ahead must not make everything old.
//!
//! It decides nothing about records; it only says which time to believe.

use std::time::Duration;

use parking_lot::Mutex;

use crate::vfs::clock::Clock;

/// 2024-01-01: a wall clock before this has not been set.
const PLAUSIBLE_US: i64 = 1_704_067_200_000_000;
/// A wall clock that runs ahead of the steady one by more than this has jumped.
const JUMP_US: i64 = 300_000_000;
/// A jump ahead is believed once the clock has run on from there for this long.
const SETTLED: Duration = Duration::from_secs(3600);

/// A wall time, and the steady time at which it was seen.
#[derive(Debug, Clone, Copy)]
struct Reading {
    wall_us: i64,
    steady: Duration,
}

impl Reading {
    /// The wall time now, if the clock has not jumped since.
    fn expected_us(self, steady: Duration) -> i64 {
        let passed = steady.saturating_sub(self.steady).as_micros();
        self.wall_us
            .saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }
}

#[derive(Debug, Default)]
struct Belief {
    believed: Option<Reading>,
    /// Where the clock jumped to, while that is not believed yet.
    jumped: Option<Reading>,
}

/// The wall clock as rules about age see it. One per log.
#[derive(Debug, Default)]
pub(crate) struct AgeClock(Mutex<Belief>);

impl AgeClock {
    /// The time to judge ages by; None while the clock has not been set. Errs towards the past: a segment that seems
    /// too young is only kept a little longer.
    pub fn now_us(&self, clock: &dyn Clock) -> Option<i64> {
        let now = Reading {
            wall_us: clock.now_us(),
            steady: clock.steady(),
        };
        if now.wall_us < PLAUSIBLE_US {
            return None;
        }
        let belief = &mut *self.0.lock();
        let expected_us = belief
            .believed
            .map_or(now.wall_us, |believed| believed.expected_us(now.steady));
        if now.wall_us.saturating_sub(expected_us) > JUMP_US {
            let is_same = |jumped: &Reading| {
                (now.wall_us - jumped.expected_us(now.steady)).saturating_abs() <= JUMP_US
            };
            let jumped = belief.jumped.filter(is_same).unwrap_or_else(|| {
                tracing::warn!(
                    ahead_s = (now.wall_us - expected_us) / 1_000_000,
                    "the wall clock has jumped ahead: ages are judged by the old time until the new time has run for an hour"
                );
                now
            });
            belief.jumped = Some(jumped);
            if now.steady.saturating_sub(jumped.steady) < SETTLED {
                return Some(expected_us);
            }
        }
        *belief = Belief {
            believed: Some(now),
            jumped: None,
        };
        Some(now.wall_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    const START_US: i64 = 1_800_000_000_000_000;
    const DAY_US: i64 = 86_400_000_000;

    /// Wall time in µs and steady time in s.
    struct Hand(AtomicI64, AtomicU64);

    impl Hand {
        fn at(wall_us: i64) -> Self {
            Self(AtomicI64::new(wall_us), AtomicU64::new(0))
        }

        fn jump(&self, by_us: i64) {
            self.0.fetch_add(by_us, Ordering::Relaxed);
        }

        fn pass(&self, seconds: u64) {
            self.jump(seconds as i64 * 1_000_000);
            self.1.fetch_add(seconds, Ordering::Relaxed);
        }
    }

    impl Clock for Hand {
        fn now_us(&self) -> i64 {
            self.0.load(Ordering::Relaxed)
        }

        fn steady(&self) -> Duration {
            Duration::from_secs(self.1.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn a_clock_that_was_not_set_tells_no_age() {
        let clock = Hand::at(0);
        let ages = AgeClock::default();
        assert_eq!(ages.now_us(&clock), None);
        clock.jump(START_US);
        assert_eq!(ages.now_us(&clock), Some(START_US), "and once it is set");
    }

    #[test]
    fn a_jump_ahead_is_believed_after_an_hour_only() {
        let clock = Hand::at(START_US);
        let ages = AgeClock::default();
        ages.now_us(&clock);
        clock.jump(DAY_US);
        assert_eq!(ages.now_us(&clock), Some(START_US));
        clock.pass(3000);
        assert_eq!(ages.now_us(&clock), Some(START_US + 3_000_000_000));
        clock.pass(601);
        assert_eq!(ages.now_us(&clock), Some(START_US + DAY_US + 3_601_000_000));
    }

    #[test]
    fn a_second_jump_begins_the_hour_again_and_a_corrected_one_is_forgotten() {
        let clock = Hand::at(START_US);
        let ages = AgeClock::default();
        ages.now_us(&clock);
        clock.jump(DAY_US);
        ages.now_us(&clock);
        clock.pass(3000);
        clock.jump(DAY_US);
        ages.now_us(&clock);
        clock.pass(3000);
        assert_eq!(ages.now_us(&clock), Some(START_US + 6_000_000_000));
        clock.jump(-2 * DAY_US);
        assert_eq!(ages.now_us(&clock), Some(START_US + 6_000_000_000));
        clock.pass(3600);
        assert_eq!(ages.now_us(&clock), Some(START_US + 9_600_000_000));
    }

    #[test]
    fn a_jump_back_is_followed_at_once() {
        let clock = Hand::at(START_US);
        let ages = AgeClock::default();
        ages.now_us(&clock);
        clock.jump(-DAY_US);
        assert_eq!(ages.now_us(&clock), Some(START_US - DAY_US));
    }
}
