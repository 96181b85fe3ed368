//! Decides whose socket is read next: live clients first, then a few that are catching up.
//!
//! Ten thousand sessions that return together acknowledge as fast as they receive. If their sockets were read in the
//! same queue as all others, a publisher would wait for thousands of them in each turn.

use std::collections::VecDeque;

use crate::engine::ConnKey;

/// The most connections of catching-up sessions that are read in a turn.
const LATE_READS_MAX: usize = 64;

/// Connections that may have bytes to read, each once, in order of service.
#[derive(Default)]
pub struct ReadQueue {
    live: VecDeque<ConnKey>,
    /// Connections whose session is catching up.
    late: VecDeque<ConnKey>,
    late_left: usize,
}

/// How many connections one pass reads; connections queued during the pass wait for the next.
pub struct ReadPass {
    live: usize,
    late: usize,
}

impl ReadQueue {
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.late.is_empty()
    }

    pub fn len(&self) -> usize {
        self.live.len() + self.late.len()
    }

    pub fn push(&mut self, key: ConnKey, catches_up: bool) {
        let queue = if catches_up {
            &mut self.late
        } else {
            &mut self.live
        };
        queue.push_back(key);
    }

    /// Starts a turn: catching-up connections may be read again.
    pub fn begin_turn(&mut self) {
        self.late_left = LATE_READS_MAX;
    }

    pub fn pass(&self) -> ReadPass {
        ReadPass {
            live: self.live.len(),
            late: self.late.len(),
        }
    }

    /// The next connection, until the pass or the turn has no more.
    pub fn next(&mut self, pass: &mut ReadPass) -> Option<ConnKey> {
        if pass.live > 0 {
            pass.live -= 1;
            return self.live.pop_front();
        }
        if pass.late == 0 || self.late_left == 0 {
            return None;
        }
        pass.late -= 1;
        self.late_left -= 1;
        self.late.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::{LATE_READS_MAX, ReadQueue};
    use crate::engine::ConnKey;

    fn key(number: u64) -> ConnKey {
        ConnKey::from_bits(number)
    }

    fn read(queue: &mut ReadQueue) -> Vec<u64> {
        let mut pass = queue.pass();
        std::iter::from_fn(|| queue.next(&mut pass))
            .map(ConnKey::to_bits)
            .collect()
    }

    #[test]
    fn who_catches_up_is_read_after_the_live_ones_and_a_few_in_a_turn() {
        let late_count = 2 * LATE_READS_MAX as u64 + 1;
        let mut queue = ReadQueue::default();
        for number in 0..late_count {
            queue.push(key(number), true);
        }
        queue.begin_turn();
        queue.push(key(1 << 20), false);
        let first = read(&mut queue);
        assert_eq!(first[0], 1 << 20);
        assert_eq!(first[1..], (0..LATE_READS_MAX as u64).collect::<Vec<_>>());

        // A second pass in the same turn reads only live connections.
        queue.push(key(1 << 21), false);
        assert_eq!(read(&mut queue), [1 << 21]);

        let mut rest = Vec::new();
        while !queue.is_empty() {
            queue.begin_turn();
            rest.extend(read(&mut queue));
        }
        assert_eq!(
            rest,
            (LATE_READS_MAX as u64..late_count).collect::<Vec<_>>()
        );
    }

    #[test]
    fn who_comes_back_while_it_is_read_waits_for_the_next_pass() {
        let mut queue = ReadQueue::default();
        queue.begin_turn();
        queue.push(key(1), false);
        let mut pass = queue.pass();
        assert_eq!(queue.next(&mut pass), Some(key(1)));
        queue.push(key(1), false);
        assert_eq!(queue.next(&mut pass), None);
        assert_eq!(read(&mut queue), [1]);
    }
}
