//! Why a connection is not read.

use crate::engine::ids::PartitionIndex;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Too many acknowledgements are pending.
    Acks,
    /// The client has to take the bytes that wait for it.
    Out,
    /// The budget has no room for the packet at the front of the unparsed bytes.
    Budget,
    /// This partition accepts no records.
    Queue(PartitionIndex),
    /// The client is over a rate limit.
    MessageRate,
    ByteRate,
    /// Its packets cost so much that those of others come first.
    Work,
    /// Its credentials are being checked.
    Auth,
    /// The last stored value of its session is not durable yet.
    State,
}

impl Pause {
    /// The names in metrics, by number. Waits for credentials and stored state are not counted.
    pub const CAUSES: [&'static str; 7] = [
        "acks",
        "out",
        "budget",
        "queue",
        "message_rate",
        "byte_rate",
        "work",
    ];

    pub fn number(self) -> usize {
        match self {
            Self::Acks => 0,
            Self::Out => 1,
            Self::Budget => 2,
            Self::Queue(_) => 3,
            Self::MessageRate => 4,
            Self::ByteRate => 5,
            Self::Work => 6,
            Self::Auth => 7,
            Self::State => 8,
        }
    }

    fn bit(self) -> u16 {
        1 << self.number()
    }
}

/// The pauses of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct PauseSet {
    bits: u16,
    /// The partition of [`Pause::Queue`]; a connection waits for one at a time.
    partition: PartitionIndex,
}

impl PauseSet {
    pub fn begin(&mut self, pause: Pause) {
        self.bits |= pause.bit();
        if let Pause::Queue(partition) = pause {
            self.partition = partition;
        }
    }

    pub fn has(self, pause: Pause) -> bool {
        let is_same = |partition| self.partition == partition;
        self.bits & pause.bit() != 0 && !matches!(pause, Pause::Queue(of) if !is_same(of))
    }

    /// Whether there is a pause that a timer ends.
    pub fn has_timed(self) -> bool {
        let timed = [Pause::MessageRate, Pause::ByteRate, Pause::Work];
        timed.into_iter().any(|pause| self.has(pause))
    }

    /// Returns whether there was this pause.
    pub fn end(&mut self, pause: Pause) -> bool {
        let had = self.has(pause);
        if had {
            self.bits &= !pause.bit();
        }
        had
    }

    /// Whether there is any.
    #[inline]
    pub fn is_paused(self) -> bool {
        self.bits != 0
    }

    /// Whether the broker, and not the client, causes a pause.
    pub fn is_held_back(self) -> bool {
        self.bits & !Pause::Out.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_ends_alone_and_a_full_queue_only_with_its_partition() {
        let queue = |partition| Pause::Queue(PartitionIndex(partition));
        let mut pauses = PauseSet::default();
        assert!(!pauses.is_paused() && !pauses.end(Pause::Out));
        pauses.begin(Pause::Out);
        assert!(pauses.is_paused() && !pauses.is_held_back());
        pauses.begin(queue(3));
        assert!(pauses.is_held_back() && !pauses.has(queue(2)) && !pauses.end(queue(2)));
        assert!(pauses.end(Pause::Out) && pauses.has(queue(3)));
        assert!(pauses.end(queue(3)) && !pauses.is_paused());
        pauses.begin(Pause::State);
        assert!(pauses.is_held_back() && !pauses.has_timed() && !pauses.has(Pause::Acks));
        assert!(pauses.end(Pause::State) && !pauses.is_paused());
        assert_eq!(size_of::<PauseSet>(), 4);
    }
}
