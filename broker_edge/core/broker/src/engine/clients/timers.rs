//! The engine's deadlines on the monotonic clock, in milliseconds.
//!
//! Entries are never searched or removed: the handler of a due timer checks whether it still applies, and sets it again
//! if its deadline has moved. So a keep-alive costs nothing per packet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::session::connection::Phase;
use crate::engine::{ConnKey, SessionKey};

use super::Clients;

/// Below this count, skip the removal of stale timers.
const TIMERS_KEPT: usize = 1024;

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A connection has been open too long without a CONNECT, or its client has been silent too long.
    Silence(ConnKey),
    /// The will of a disconnected session may be due.
    Will(SessionKey),
    /// A disconnected session may have expired.
    Expiry(SessionKey),
    /// The credentials of a client may have expired.
    Credentials(ConnKey),
    /// Cursors have to be checkpointed.
    Checkpoint,
    /// The next part of the cursors.
    Cursors,
    /// A client that was over its rate may continue.
    Pace(ConnKey),
    /// Sessions that wait to read from files may continue.
    ScheduleReads,
    /// The values of `$SYS` are due.
    Sys,
}

/// Deadlines of one kind, each with what it concerns.
#[derive(Debug)]
struct Deadlines<T>(BinaryHeap<Reverse<(u64, T)>>);

impl<T: Ord> Default for Deadlines<T> {
    fn default() -> Self {
        Self(BinaryHeap::new())
    }
}

impl<T: Ord + Copy> Deadlines<T> {
    fn set(&mut self, due_ms: u64, what: T) {
        if self.0.len() == self.0.capacity() {
            // Grow by an eighth: every connection has a timer, and doubling would exceed the memory budget of an idle
            // connection.
            self.0.reserve_exact((self.0.len() / 8).max(64));
        }
        self.0.push(Reverse((due_ms, what)));
    }

    fn next_due_ms(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }

    fn pop(&mut self) -> Option<T> {
        self.0.pop().map(|Reverse((_, what))| what)
    }

    fn retain(&mut self, applies: impl Fn(u64, T) -> bool) {
        self.0
            .retain(|Reverse((due_ms, what))| applies(*due_ms, *what));
    }
}

#[derive(Debug, Default)]
pub struct Timers {
    /// Apart from the others, because every connection has one: 16 bytes each, where a [`Timer`] would make it 24.
    silences: Deadlines<ConnKey>,
    others: Deadlines<Timer>,
}

impl Timers {
    fn set(&mut self, due_ms: u64, timer: Timer) {
        match timer {
            Timer::Silence(key) => self.silences.set(due_ms, key),
            _ => self.others.set(due_ms, timer),
        }
    }

    fn len(&self) -> usize {
        self.silences.0.len() + self.others.0.len()
    }

    fn next_due_ms(&self) -> Option<u64> {
        let both = [self.silences.next_due_ms(), self.others.next_due_ms()];
        both.into_iter().flatten().min()
    }

    fn pop_due(&mut self, now_ms: u64) -> Option<Timer> {
        let due_ms = self.next_due_ms().filter(|due_ms| *due_ms <= now_ms)?;
        if self.silences.next_due_ms() == Some(due_ms) {
            return self.silences.pop().map(Timer::Silence);
        }
        self.others.pop()
    }
}

impl Clients {
    pub(in crate::engine) fn set_timer(&mut self, due_ms: u64, timer: Timer) {
        self.timers.set(due_ms, timer);
    }

    pub(in crate::engine) fn next_due_ms(&self) -> Option<u64> {
        self.timers.next_due_ms()
    }

    pub(in crate::engine) fn pop_due(&mut self, now_ms: u64) -> Option<Timer> {
        self.timers.pop_due(now_ms)
    }

    #[cfg(test)]
    pub(in crate::engine) fn timers_len(&self) -> usize {
        self.timers.len()
    }

    /// Clients that connect and disconnect leave timers behind that may not be due for weeks.
    pub(in crate::engine) fn drop_stale_timers(&mut self) {
        let (conns, sessions) = (&self.conns, &self.sessions);
        if self.timers.len() < 4 * (conns.len() + sessions.len()) + TIMERS_KEPT {
            return;
        }
        let applies = |due_ms: u64, timer: Timer| match timer {
            Timer::Credentials(key) => conns.get(key).is_some(),
            Timer::Checkpoint | Timer::Cursors | Timer::Sys | Timer::ScheduleReads => true,
            Timer::Pace(key) => conns.get(key).is_some_and(|conn| conn.pauses.has_timed()),
            Timer::Silence(key) => conns
                .get(key)
                .is_some_and(|conn| conn.phase != Phase::Open || conn.silence_due_ms == due_ms),
            Timer::Will(key) => sessions
                .get(key)
                .and_then(|session| session.offline.as_ref()?.will.as_ref())
                .is_some_and(|(at, _)| *at == due_ms),
            Timer::Expiry(key) => sessions
                .get(key)
                .and_then(|session| session.offline.as_ref())
                .is_some_and(|away| away.expiry_due_ms == due_ms),
        };
        let silences = &mut self.timers.silences;
        silences.retain(|due_ms, key| applies(due_ms, Timer::Silence(key)));
        self.timers.others.retain(applies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_not_before_they_are_due() {
        let mut timers = Timers::default();
        let conn = ConnKey::from_bits(7);
        timers.set(20, Timer::Checkpoint);
        timers.set(10, Timer::Silence(conn));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(30), Some(Timer::Silence(conn)));
        assert_eq!(timers.next_due_ms(), Some(20));
        assert_eq!(timers.pop_due(30), Some(Timer::Checkpoint));
        assert_eq!(timers.pop_due(30), None);
        assert_eq!(size_of::<(u64, ConnKey)>(), 16);
    }
}
