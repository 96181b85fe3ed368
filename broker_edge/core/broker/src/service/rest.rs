//! How long a following read rests between two looks at the log.
//!
//! Every commit moves the high watermark, whomever its records are for. A read that looked each time would cost more
//! than the publishes do, and one user may have many. So after a look that found nothing the next one waits a little,
//! twice as long each time up to a limit; a read that finds something, and one that nothing has woken for a while,
//! looks at once.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const SHORTEST: Duration = Duration::from_millis(1);
/// The most that a record waits for its reader because others were not for it.
const LONGEST: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Rest {
    pause: Duration,
    /// None after a look that found something.
    until: Option<Instant>,
}

impl Rest {
    /// A look at the log has ended.
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

    /// Waits until the next look may begin.
    pub async fn over(&self) {
        if let Some(until) = self.until {
            sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one look takes here.
    const LOOK: Duration = Duration::from_micros(100);

    /// A read that always has something to look at, and its clock.
    struct Busy {
        rest: Rest,
        now: Instant,
    }

    impl Busy {
        fn new() -> Busy {
            let (rest, now) = (Rest::default(), Instant::now());
            Busy { rest, now }
        }

        /// Looks as soon as it may, and says how long it had to wait.
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
        // The first look in vain after it makes it wait for a moment only.
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
