//! The newest batches of all partitions, kept in memory within one bound and shared by every reader.
//!
//! A read from here costs one short lock, a binary search and some reference counts, because loops do it every turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::batch::buffers::Buffers;
use crate::batch::record_batch::Batch;
use crate::ids::{Offset, PartitionId};

pub(crate) struct Tail {
    limit_bytes: usize,
    /// May exceed the limit between a push and the removal of the oldest batch.
    bytes: AtomicUsize,
    pushes: AtomicU64,
    shelves: Vec<Shelf>,
    /// The pool to which the buffers of dropped batches return.
    pub buffers: Arc<Buffers>,
}

struct Shelf {
    /// Dense in offsets, oldest first.
    batches: Mutex<VecDeque<Shelved>>,
    /// Number of the oldest push here, `EMPTY` when there is none: the shelf with the lowest number loses a batch
    /// first.
    oldest: AtomicU64,
}

struct Shelved {
    /// Number of its push.
    number: u64,
    /// The batch's next offset. A search through the batches themselves would miss the processor's cache at each step.
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

    /// Adds the newest batch of a partition and drops the oldest of all while they exceed the limit.
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
        while total > self.limit_bytes
            && let Some(freed) = self.drop_oldest()
        {
            let before = self.bytes.fetch_sub(freed, Ordering::Relaxed);
            total = before.saturating_sub(freed);
        }
    }

    fn drop_oldest(&self) -> Option<usize> {
        let number = |shelf: &&Shelf| shelf.oldest.load(Ordering::Relaxed);
        let shelf = self.shelves.iter().min_by_key(number)?;
        let mut batches = shelf.batches.lock();
        let batch = batches.pop_front()?.batch;
        let oldest = batches.front().map_or(EMPTY, |shelved| shelved.number);
        shelf.oldest.store(oldest, Ordering::Relaxed);
        Some(batch.memory())
    }

    /// Appends to `out` the batches from the one that contains `from` on, up to `until` and up to `max_bytes` (at least
    /// one). False when `from` is older than the oldest batch here.
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
            _ => place_of(&batches, from),
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

/// Number of the first batch that ends above `offset`. Under steady load batches hold equally many records, so a guess
/// from the first and last offset is mostly right, and saves the cache misses of a search.
fn place_of(batches: &VecDeque<Shelved>, offset: Offset) -> usize {
    if let (Some(first), Some(last)) = (batches.front(), batches.back()) {
        let (start, end) = (first.batch.base_offset().0, last.next.0);
        let distance = offset.0.checked_sub(start).filter(|_| offset.0 < end);
        let scaled = distance.and_then(|distance| distance.checked_mul(batches.len() as u64));
        if let Some(scaled) = scaled {
            let guess = (scaled / (end - start)) as usize;
            let begins_there = guess == 0 || batches[guess - 1].next <= offset;
            if begins_there && offset < batches[guess].next {
                return guess;
            }
        }
    }
    batches.partition_point(|shelved| shelved.next <= offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::record_batch::tests::batch_of;

    const ONE: PartitionId = PartitionId(0);

    /// A tail with batches of these numbers of records, the first at offset 7.
    fn tail(sizes: impl Iterator<Item = usize>) -> (Tail, u64) {
        let (tail, mut next) = (Tail::new(1, 1 << 20), 7);
        for size in sizes {
            tail.push(ONE, batch_of(Offset(next), &vec![&b"x"[..]; size]));
            next += size as u64;
        }
        (tail, next)
    }

    #[test]
    fn every_offset_is_found_in_its_batch_whatever_the_sizes_of_batches_are() {
        let uneven = (0..60).map(|n| if n % 20 == 3 { 200 } else { 1 + n % 3 });
        for (tail, end) in [tail(uneven), tail((0..50).map(|_| 4)), tail(0..0)] {
            let until = Offset(end);
            for offset in 0..end + 10 {
                let mut read = Vec::new();
                let is_there = tail.read(ONE, Offset(offset), until, 1, &mut read);
                let holds = |batch: &Batch| {
                    (batch.base_offset()..batch.next_offset()).contains(&Offset(offset))
                };
                assert_eq!(is_there, (7..end).contains(&offset), "at {offset}");
                assert!(read.iter().all(holds) && read.len() == usize::from(is_there));
            }
            let newest = Offset(end.saturating_sub(1));
            let mut read = Vec::new();
            tail.read(ONE, newest, newest, 1, &mut read);
            assert!(read.is_empty(), "not yet durable");
        }
    }
}
