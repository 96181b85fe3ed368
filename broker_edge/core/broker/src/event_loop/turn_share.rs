//! The part of a turn that connections before their CONNECT may use.

use std::time::{Duration, Instant};

/// Steps of connections without TLS in a turn.
const STEPS_MAX: usize = 64;
/// What these steps may cost, as in [`crate::transport::Stream::cost_of_receive`]. At least one is always taken.
const COST_MAX: usize = 1 << 20;
/// CPU time for handshakes in a turn. At least one step is always taken.
const HANDSHAKES_TIME_MAX: Duration = Duration::from_millis(1);

pub struct TurnShare {
    plain_left: usize,
    cost_left: usize,
    costly_left: usize,
    ends: Option<Instant>,
}

impl TurnShare {
    /// With this many connections that wait for a step, without and with TLS.
    pub fn new(plain: usize, costly: usize) -> Self {
        Self {
            plain_left: plain.min(STEPS_MAX),
            cost_left: COST_MAX,
            costly_left: costly,
            // The clock is read only if there are handshakes.
            ends: (costly > 0).then(|| Instant::now() + HANDSHAKES_TIME_MAX),
        }
    }

    pub fn take_plain(&mut self) -> bool {
        let may = self.plain_left > 0 && self.cost_left > 0;
        self.plain_left -= usize::from(may);
        may
    }

    /// Notes what a step cost.
    pub fn spend(&mut self, cost: usize) {
        self.cost_left = self.cost_left.saturating_sub(cost);
    }

    pub fn take_costly(&mut self) -> bool {
        if self.costly_left == 0 || self.ends.is_none_or(|ends| Instant::now() >= ends) {
            self.costly_left = 0;
            return false;
        }
        self.costly_left -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_cost_much_end_the_share_before_all_are_taken() {
        let steps = |cost| {
            let mut share = TurnShare::new(1000, 0);
            let steps = std::iter::repeat_with(|| {
                let may = share.take_plain();
                share.spend(cost);
                may
            });
            steps.take_while(|may| *may).count()
        };
        assert_eq!(steps(0), STEPS_MAX);
        assert_eq!(steps(COST_MAX / 4), 4);
        assert_eq!(steps(2 * COST_MAX), 1);
    }
}
