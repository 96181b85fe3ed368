//! The newest batches of all partitions, kept in memory within one bound and shared by every reader.
//!
//! A read from here is one short lock, a binary search and some reference counts, because loops do it every turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::batch::Batch;
use crate::buffers::Buffers;
use crate::ids::{Offset, PartitionId};

pub(crate) struct Tail {
    limit_bytes: usize,
    /// May pass the limit for the moment between a push and the removal of the oldest.
    bytes: AtomicUsize,
    pushes: AtomicU64,
    shelves: Vec<Shelf>,
    /// What batches that leave the tail give back.
    pub buffers: Arc<Buffers>,
}

struct Shelf {
    /// Dense in offsets, oldest first.
    batches: Mutex<VecDeque<Shelved>>,
    /// Number of the oldest push here, `EMPTY` when there is none: tells which shelf gives way.
    oldest: AtomicU64,
}

struct Shelved {
    /// Number of its push.
    number: u64,
    /// The batch's next offset, here because a search through the batches themselves misses the cache at each step.
    next: Offset,
    batch: Batch,
}

const EMPTY: u64 = u64::MAX;

impl Tail {
    pub fn new(partitions: usize, limit_bytes: usize) -> Self {
        let shelf = || Shelf {
            batches: Mutex::default(),
            oldest: AtomicU64::new(EMPTY),
        };
        Self {
            limit_bytes,
            bytes: AtomicUsize::new(0),
            pushes: AtomicU64::new(0),
            shelves: std::iter::repeat_with(shelf).take(partitions).collect(),
            buffers: Arc::default(),
        }
    }

    /// Adds the newest batch of a partition and lets the oldest of all go while they are too many.
    pub fn push(&self, partition: PartitionId, batch: Batch) {
        let shelf = &self.shelves[partition.0 as usize];
        let number = self.pushes.fetch_add(1, Ordering::Relaxed);
        let mut total = self.bytes.fetch_add(batch.memory(), Ordering::Relaxed) + batch.memory();
        {
            let mut batches = shelf.batches.lock();
            if batches.is_empty() {
                shelf.oldest.store(number, Ordering::Relaxed);
            }
            let next = batch.next_offset();
            batches.push_back(Shelved {
                number,
                next,
                batch,
            });
        }
        while total > self.limit_bytes {
            let Some(freed) = self.drop_oldest() else {
                break;
            };
            total = self
                .bytes
                .fetch_sub(freed, Ordering::Relaxed)
                .saturating_sub(freed);
        }
    }

    fn drop_oldest(&self) -> Option<usize> {
        let shelf = self
            .shelves
            .iter()
            .min_by_key(|shelf| shelf.oldest.load(Ordering::Relaxed))?;
        let mut batches = shelf.batches.lock();
        let batch = batches.pop_front()?.batch;
        let oldest = batches.front().map_or(EMPTY, |shelved| shelved.number);
        shelf.oldest.store(oldest, Ordering::Relaxed);
        Some(batch.memory())
    }

    /// The batch that contains `offset`, when it is kept and ends at or below `until`.
    pub fn find(&self, partition: PartitionId, offset: Offset, until: Offset) -> Option<Batch> {
        let batches = self.shelves[partition.0 as usize].batches.lock();
        let at = batches.partition_point(|shelved| shelved.next <= offset);
        let shelved = batches.get(at)?;
        (shelved.batch.base_offset() <= offset && shelved.next <= until)
            .then(|| shelved.batch.clone())
    }

    /// Appends to `out` the batches from the one that contains `from` on, that end at or below `until`, until they make
    /// `max_bytes` (at least one). False when `from` is older than what is kept.
    pub fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        until: Offset,
        max_bytes: usize,
        out: &mut Vec<Batch>,
    ) -> bool {
        let batches = self.shelves[partition.0 as usize].batches.lock();
        // Readers that have caught up almost always want the newest batch.
        let start = match batches.back() {
            Some(newest) if newest.batch.base_offset() <= from => batches.len() - 1,
            _ => batches.partition_point(|shelved| shelved.next <= from),
        };
        match batches.get(start) {
            Some(shelved) if shelved.batch.base_offset() <= from && from < shelved.next => {}
            _ => return false,
        }
        let mut bytes = 0;
        for Shelved { next, batch, .. } in batches.range(start..) {
            let is_over = bytes > 0 && bytes + batch.bytes_len() > max_bytes;
            if is_over || *next > until {
                break;
            }
            bytes += batch.bytes_len();
            out.push(batch.clone());
        }
        true
    }
}
