//! The queue of a partition's writer. Bounded in bytes; records get their offsets when they enter.

use std::collections::VecDeque;

use crate::batch::assembler::BATCH_BYTES_MAX;
use crate::batch::buffers::Buffers;
use crate::batch::payloads::Payloads;
use crate::batch::record_batch::Batch;
use crate::batch::records::Records;
use crate::ids::{Epoch, Offset};

/// Cleared `Records` that are kept for their buffers: as many as a loop queues that appends records one by one.
const SPARES_MAX: usize = 4096;
const SPARES_BYTES_MAX: usize = 4 << 20;
/// An append with this many payload bytes becomes a batch of its own: one more write costs less than a copy.
const ALONE_BYTES_MIN: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct QueuedAppend {
    pub records: Records,
    /// Bytes of the records, as they count for the bound of the queue.
    bytes: usize,
    /// Records before this index are written.
    pub done: usize,
    pub time_us: i64,
}

impl QueuedAppend {
    /// Whether it makes one large batch whose head fits in front of its payloads, in a buffer that is not much larger.
    pub fn stands_alone(&self) -> bool {
        let (payloads, head) = (&self.records.payloads, self.records.head_bytes());
        self.done == 0
            && payloads.len() >= ALONE_BYTES_MIN
            && head <= payloads.front()
            && (self.bytes <= BATCH_BYTES_MAX || self.records.len() == 1)
            && payloads.capacity() / 3 <= self.bytes / 2
    }
}

/// The size of a large append; the next one is expected to be of that size too.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
    head: usize,
    payloads: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub items: VecDeque<QueuedAppend>,
    /// Bytes of the items, and of the appends that the writer took and has not yet made durable.
    pub bytes: usize,
    /// Of a follower: batches of the leader, which go on where the last one ended.
    pub taken: VecDeque<Batch>,
    /// The epoch of the last of all batches that were written or taken.
    pub taken_epoch: Epoch,
    /// The offset that the next record gets.
    pub next: Offset,
    /// A thread has taken the items and writes them. The thread that sets it owns the active segment until it clears
    /// it.
    pub busy: bool,
    /// Threads that wait for `busy` to end, to change what is led or written.
    pub turns_wanted: usize,
    /// How often everything queued was dropped: whoever has taken items before drops them as well.
    pub drops: u64,
    /// The active segment is to be sealed, because of its age.
    pub seal: bool,
    /// The writer sleeps until what it has written is committed.
    pub awaits_commit: bool,
    /// No more appends; what is queued is still written.
    pub closing: bool,
    spares: Vec<Records>,
    /// Memory of the spares.
    spares_bytes: usize,
    /// None when the newest append was a small one.
    expected: Option<Expected>,
}

impl Queue {
    pub fn starting_at(next: Offset) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }

    /// Gives the records their offsets. The caller has checked the bound.
    pub fn push(&mut self, records: Records, time_us: i64) -> std::ops::Range<Offset> {
        let start = self.next;
        self.next = start.plus(records.len() as u64);
        let bytes = records.bytes();
        self.bytes += bytes;
        let expected = Expected {
            head: records.head_bytes(),
            payloads: records.payloads.len(),
        };
        let is_large = (ALONE_BYTES_MIN..=BATCH_BYTES_MAX).contains(&expected.payloads);
        self.expected = is_large.then_some(expected);
        self.items.push_back(QueuedAppend {
            records,
            bytes,
            done: 0,
            time_us,
        });
        start..self.next
    }

    /// Empty records with used buffers, and room for as much as the newest append had.
    pub fn take_spare(&mut self, buffers: &Buffers) -> Records {
        let mut spare = self.spares.pop().unwrap_or_default();
        self.spares_bytes -= spare.capacity_bytes();
        if let Some(expected) = self.expected {
            let front = expected.head + expected.head / 8;
            let bytes = front + expected.payloads + expected.payloads / 8;
            let held = std::mem::take(&mut spare.payloads).into_buffer();
            let buffer = if held.capacity() >= bytes {
                held
            } else {
                buffers.take(bytes)
            };
            spare.payloads = Payloads::in_buffer(buffer, front);
        }
        spare
    }

    /// Whether the writer has something to do.
    pub fn has_work(&self) -> bool {
        !self.items.is_empty() || !self.taken.is_empty() || self.seal || self.closing
    }

    /// Takes written appends back, whose records are durable.
    pub fn give_back(&mut self, written: impl Iterator<Item = QueuedAppend>) {
        let bytes = self.recycle(written);
        self.release(bytes);
    }

    /// Gives room back.
    pub fn release(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Takes written appends back for their buffers; returns what they hold of the bound until they are released.
    pub fn recycle(&mut self, written: impl Iterator<Item = QueuedAppend>) -> usize {
        let mut bytes = 0;
        for mut queued in written {
            bytes += queued.bytes;
            let kept_bytes = self.spares_bytes + queued.records.capacity_bytes();
            if self.spares.len() < SPARES_MAX && kept_bytes <= SPARES_BYTES_MAX {
                queued.records.clear();
                self.spares_bytes = kept_bytes;
                self.spares.push(queued.records);
            }
        }
        bytes
    }

    pub fn drop_all(&mut self) {
        self.items.clear();
        self.taken.clear();
        self.bytes = 0;
        self.drops += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::record_batch::tests::fill;

    #[test]
    fn a_large_append_stands_alone_once_its_size_was_seen() {
        let (mut queue, buffers) = (Queue::default(), Buffers::default());
        let mut alone = |count, bytes| {
            let records = fill(queue.take_spare(&buffers), vec![vec![7_u8; bytes]; count]);
            queue.push(records, 0);
            let queued = queue.items.pop_back().expect("just pushed");
            let is_alone = queued.stands_alone();
            queue.give_back(std::iter::once(queued));
            is_alone
        };
        assert!(!alone(64, 1000));
        assert!(alone(64, 1000));
        assert!(alone(66, 1000));
        // More records of that size: their head does not fit in front.
        assert!(!alone(1000, 64));
        assert!(alone(1000, 64));
        // Buffers are not bound to small appends.
        assert!(!alone(10, 64));
        assert!(queue.expected.is_none());
        assert!(queue.take_spare(&buffers).payloads.front() <= 30_000);
    }

    #[test]
    fn a_buffer_much_larger_than_its_payloads_is_not_kept_with_them() {
        let (mut queue, buffers) = (Queue::default(), Buffers::default());
        let large = fill(queue.take_spare(&buffers), vec![[7_u8; 1000]; 900]);
        queue.push(large, 0);
        let records = fill(queue.take_spare(&buffers), vec![[7_u8; 1000]; 40]);
        assert!(records.head_bytes() <= records.payloads.front());
        queue.push(records, 0);
        assert!(!queue.items[1].stands_alone());
    }
}
