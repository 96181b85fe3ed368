//! Reads the ready sockets and passes their bytes to the engine.

use mio::Events;

use super::EventLoop;
use super::doors::READ_BYTES_MAX;
use crate::engine::{ConnKey, ReadPlan};
use crate::transport::ReceiveResult;

/// The most bytes read from all connections in a turn. It bounds the staged records, and so the size of an append.
const TURN_BYTES_MAX: usize = 4 << 20;
/// What a unit of the engine's work counts as in that limit: with it a turn tries filters for some ten milliseconds.
const WORK_BYTES: u64 = 32;
/// How often a turn polls for more input before a commit that blocks the loop. A poll costs a hundredth of a sync, and
/// input that arrives between polls shares the sync.
const LOOKS_MAX: usize = 4;

impl EventLoop {
    /// Reads ready connections in order, each at most once and all together within the limit of a turn. Returns what is
    /// left of it.
    pub(super) fn read(&mut self) -> usize {
        self.read_within(TURN_BYTES_MAX)
    }

    fn read_within(&mut self, mut left: usize) -> usize {
        let mut resumed = self.engine.take_resumed().into_iter();
        self.engine.share_turn(resumed.len() + self.readable.len());
        // The rest of the turn is for those that were not paused.
        while left > TURN_BYTES_MAX / 2
            && let Some(key) = resumed.next()
        {
            if self.engine.receive_held(key) {
                self.want_read(key);
            }
            left = left.saturating_sub(self.work_bytes());
        }
        self.engine.put_back_resumed(resumed);
        let mut pass = self.readable.pass();
        while left > 0
            && let Some(key) = self.readable.next(&mut pass)
        {
            self.doors.sockets.unmark_readable(key);
            let mut cost = 0;
            let received = match self.engine.read_plan(key) {
                // It stays unread; the engine reports it in `take_resumed` when it may continue.
                ReadPlan::Wait => continue,
                ReadPlan::Shared { held, bytes_max } => {
                    self.read_shared(key, &held, bytes_max, &mut cost)
                }
                ReadPlan::Own { wanted } => {
                    self.read_own(key, wanted.min(READ_BYTES_MAX), &mut cost)
                }
            };
            left = left.saturating_sub(cost);
            match received {
                ReceiveResult::Bytes { count, more } => {
                    left = left.saturating_sub(self.work_bytes());
                    self.engine.count_received(key, count);
                    // Otherwise the socket is empty, and later input causes a new event.
                    if more {
                        self.want_read(key);
                    }
                }
                ReceiveResult::Nothing => {}
                ReceiveResult::Ended => self.engine.lost(key),
            }
        }
        left
    }

    fn work_bytes(&self) -> usize {
        let bytes = self.engine.work_of_receive().saturating_mul(WORK_BYTES);
        usize::try_from(bytes).unwrap_or(usize::MAX >> 1)
    }

    /// Reads input that has arrived since the turn began, if it would otherwise wait for a whole sync: publishers that
    /// were acknowledged together publish again while the first of them are read. Stops at the first poll without
    /// events.
    pub(super) fn look_again(&mut self, events: &mut Events, mut left: usize) {
        for _ in 0..LOOKS_MAX {
            if left == 0 || !self.engine.will_hold_up_several() {
                return;
            }
            // If the poll fails, it fails again at the start of the next turn, which handles the error.
            if self.doors.look(events).is_err() || events.is_empty() {
                return;
            }
            self.take_events(events);
            left = self.read_within(left);
        }
    }

    fn read_shared(
        &mut self,
        key: ConnKey,
        held: &[u8],
        bytes_max: usize,
        cost: &mut usize,
    ) -> ReceiveResult {
        self.doors.buffer[..held.len()].copy_from_slice(held);
        let end = bytes_max.min(self.doors.buffer.len());
        let received =
            self.doors
                .sockets
                .receive(key, &mut self.doors.buffer[held.len()..end], cost);
        let count = received.count();
        if count > 0 || !held.is_empty() {
            self.engine
                .receive(key, &self.doors.buffer[..held.len() + count], count > 0);
        }
        received
    }

    fn read_own(&mut self, key: ConnKey, wanted: usize, cost: &mut usize) -> ReceiveResult {
        let Some(held) = self.engine.held_mut(key) else {
            return ReceiveResult::Nothing;
        };
        let base = held.len();
        held.resize(base + wanted, 0);
        let received = self.doors.sockets.receive(key, &mut held[base..], cost);
        let count = received.count();
        held.truncate(base + count);
        if count > 0 {
            self.engine.receive_held(key);
        }
        received
    }
}
