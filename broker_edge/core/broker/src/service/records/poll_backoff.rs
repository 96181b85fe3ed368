//! How long a following read pauses between two scans of the log.
//!
//! Every commit moves the high watermark, also when no reader wants its records. A read that scanned after each commit
//! would cost more than the publishes, and one user may have many reads. So after a scan without matches the next one
//! waits a little, twice as long each time up to a limit. A read scans at once after a scan with matches, or after a
//! while without commits.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const SHORTEST: Duration = Duration::from_millis(1);
/// The longest delay of a wanted record behind unwanted ones.
const LONGEST: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub struct PollBackoff {
    pause: Duration,
    /// `None` after a scan that found something.
    until: Option<Instant>,
}

impl PollBackoff {
    /// Notes the end of a scan.
    pub fn looked(&mut self, has_found: bool, now: Instant) {
        if has_found {
            self.until = None;
            return;
        }
        let goes_on = self.until.is_some_and(|until| now < until + LONGEST);
        self.pause = if goes_on {
            (2 * self.pause).min(LONGEST)
        } else {
            SHORTEST
        };
        self.until = Some(now + self.pause);
    }

    /// Waits until the next scan may begin.
    pub async fn over(&self) {
        if let Some(until) = self.until {
            sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The duration of one scan in this test.
    const LOOK: Duration = Duration::from_micros(100);

    /// A read that always has something to scan, and its clock.
    struct Busy {
        rest: PollBackoff,
        now: Instant,
    }

    impl Busy {
        fn new() -> Busy {
            let (rest, now) = (PollBackoff::default(), Instant::now());
            Busy { rest, now }
        }

        /// Scans as soon as allowed; returns how long it had to wait.
        fn look(&mut self, has_found: bool) -> Duration {
            let begun = self
                .rest
                .until
                .map_or(self.now, |until| until.max(self.now));
            let rested = begun - self.now;
            self.now = begun + LOOK;
            self.rest.looked(has_found, self.now);
            rested
        }
    }

    #[test]
    fn looks_that_find_nothing_become_rare() {
        let (mut read, mut looks) = (Busy::new(), 0);
        let end = read.now + Duration::from_secs(1);
        while read.now < end {
            read.look(false);
            looks += 1;
        }
        assert!((40..60).contains(&looks), "{looks} looks in a second");
    }

    #[test]
    fn a_read_that_finds_something_looks_on_at_once() {
        let mut read = Busy::new();
        for _ in 0..10 {
            read.look(false);
        }
        assert_eq!(read.look(true), LONGEST);
        assert_eq!(read.look(true), Duration::ZERO);
        // The first scan without matches causes only a short pause.
        assert_eq!(read.look(false), Duration::ZERO);
        assert_eq!(read.look(false), SHORTEST);
    }

    #[test]
    fn the_first_look_after_quiet_is_at_once_and_rests_begin_anew() {
        let mut read = Busy::new();
        for _ in 0..10 {
            read.look(false);
        }
        read.now += 3 * LONGEST;
        assert_eq!(read.look(false), Duration::ZERO);
        assert_eq!(read.look(false), SHORTEST);
    }
}
