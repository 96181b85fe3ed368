//! The part of a turn that connections before their CONNECT may use.

use std::time::{Duration, Instant};

/// Steps of connections without TLS in a turn.
const STEPS_MAX: usize = 64;
/// CPU time for handshakes in a turn. At least one step is always taken.
const HANDSHAKES_TIME_MAX: Duration = Duration::from_millis(1);

pub struct TurnShare {
    plain_left: usize,
    costly_left: usize,
    ends: Option<Instant>,
}

impl TurnShare {
    /// With this many connections that wait for a step, without and with TLS.
    pub fn new(plain: usize, costly: usize) -> Self {
        Self {
            plain_left: plain.min(STEPS_MAX),
            costly_left: costly,
            // The clock is read only if there are handshakes.
            ends: (costly > 0).then(|| Instant::now() + HANDSHAKES_TIME_MAX),
        }
    }

    pub fn take_plain(&mut self) -> bool {
        let may = self.plain_left > 0;
        self.plain_left -= usize::from(may);
        may
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
