//! What waits for the writer of a partition. Bounded in bytes; offsets are given when records enter.

use std::collections::VecDeque;

use crate::ids::Offset;
use crate::records::Records;

/// Cleared `Records` kept for their buffers: as many as a loop queues that appends records one by one, within few bytes.
const SPARES_MAX: usize = 4096;
const SPARES_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct Queued {
    pub records: Records,
    /// Records before this index are written.
    pub done: usize,
    pub time_us: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub items: VecDeque<Queued>,
    /// Bytes of the items, and of what the writer took and has not yet made durable.
    pub bytes: usize,
    /// The offset that the next record gets.
    pub next: Offset,
    /// Somebody has taken the items and writes them. Whoever sets it owns the active segment until it clears it.
    pub busy: bool,
    /// The active segment is to be sealed, because of its age.
    pub seal: bool,
    /// No more appends; what is queued is still written.
    pub closing: bool,
    spares: Vec<Records>,
    /// Memory of the spares.
    spares_bytes: usize,
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
        self.bytes += records.bytes();
        self.items.push_back(Queued {
            records,
            done: 0,
            time_us,
        });
        start..self.next
    }

    pub fn take_spare(&mut self) -> Records {
        let spare = self.spares.pop().unwrap_or_default();
        self.spares_bytes -= spare.capacity_bytes();
        spare
    }

    /// Takes back the records that were written.
    pub fn give_back(&mut self, written: impl Iterator<Item = Records>) {
        for mut records in written {
            self.bytes = self.bytes.saturating_sub(records.bytes());
            let kept_bytes = self.spares_bytes + records.capacity_bytes();
            if self.spares.len() < SPARES_MAX && kept_bytes <= SPARES_BYTES_MAX {
                records.clear();
                self.spares_bytes = kept_bytes;
                self.spares.push(records);
            }
        }
    }

    pub fn drop_all(&mut self) {
        self.items.clear();
        self.bytes = 0;
    }
}
