//! When the messages of one publisher are due.

use crate::plan::{Limit, Pace};

/// One publisher's part of the load.
#[derive(Debug, Clone)]
pub struct Share {
    /// Messages sent.
    pub sent: u64,
    /// Messages to send; `u64::MAX` when the run is limited by time.
    wanted: u64,
    /// Messages due at or after this time are not sent.
    end_ns: u64,
    /// When the first message is due and the interval between messages; `None` in a closed loop.
    schedule: Option<(f64, f64)>,
}

impl Share {
    /// The share of publisher `number` out of `publishers`. Times count from the start of sending.
    pub fn new(number: usize, publishers: usize, pace: Pace, limit: Limit) -> Self {
        let (number, publishers) = (number as u64, publishers as u64);
        let (wanted, end_ns) = match limit {
            Limit::Messages(count) => {
                let more = u64::from(number < count % publishers);
                (count / publishers + more, u64::MAX)
            }
            Limit::Time(time) => (u64::MAX, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        };
        let schedule = match pace {
            Pace::Closed { .. } => None,
            Pace::Open { per_s } => {
                let step = 1e9 / per_s;
                Some((step * number as f64, step * publishers as f64))
            }
        };
        Self {
            sent: 0,
            wanted,
            end_ns,
            schedule,
        }
    }

    /// The intended time of the next message; in a closed loop, now. `None` when all are sent.
    #[inline]
    pub fn next_due_ns(&self, now_ns: u64) -> Option<u64> {
        let due_ns = match self.schedule {
            None => now_ns,
            Some((first, step)) => (first + step * self.sent as f64) as u64,
        };
        (self.sent < self.wanted && due_ns < self.end_ns).then_some(due_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn publishers_share_the_messages_and_take_turns_in_time() {
        let open = Pace::Open { per_s: 1000.0 };
        let mut shares: Vec<Share> = (0..3)
            .map(|number| Share::new(number, 3, open, Limit::Messages(7)))
            .collect();
        let mut due = Vec::new();
        for share in &mut shares {
            while let Some(at) = share.next_due_ns(0) {
                due.push(at);
                share.sent += 1;
            }
        }
        due.sort_unstable();
        let even: Vec<u64> = (0..7).map(|n| n * 1_000_000).collect();
        assert_eq!(due, even);
    }

    #[test]
    fn an_intended_time_does_not_move_because_the_sender_is_late() {
        let limit = Limit::Time(Duration::from_secs(1));
        let mut share = Share::new(0, 1, Pace::Open { per_s: 10.0 }, limit);
        share.sent = 3;
        assert_eq!(share.next_due_ns(900_000_000), Some(300_000_000));
        share.sent = 10;
        assert_eq!(share.next_due_ns(0), None, "the time is over");
        let closed = Share::new(0, 1, Pace::Closed { window: 1 }, limit);
        assert_eq!(closed.next_due_ns(5), Some(5));
        assert_eq!(closed.next_due_ns(1_000_000_000), None);
    }
}
