//! Heads of large batches that single records were read from: everything but the payloads, and a checksum of each payload.
//!
//! The next record of such a batch then costs a read of its payload alone, which is checked against bytes that the batch's
//! own checksum covered. Shared by all partitions within one bound; a head that was not used since its last turn gives way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::decode::Batch;
use crate::ids::{Offset, PartitionId};

/// What a head takes beside its bytes, about: its places in the tables here.
const HEAD_BYTES: usize = 160;

/// A batch without its payloads.
pub(crate) struct Head {
    /// Base offset of its segment.
    pub segment: Offset,
    /// Where its payloads begin in the file.
    payloads_at: u64,
    batch: Batch,
    /// CRC-32C of each payload.
    checksums: Box<[u32]>,
}

type Key = (PartitionId, Offset);

struct Kept {
    head: Arc<Head>,
    is_used: bool,
}

#[derive(Default)]
struct Held {
    heads: BTreeMap<Key, Kept>,
    /// In the order of their turns; those that were forgotten may still be named.
    turns: VecDeque<Key>,
    bytes: usize,
}

pub(crate) struct Heads {
    limit_bytes: usize,
    held: Mutex<Held>,
}

impl Head {
    /// Of a batch whose checksum was verified, at a position of a segment's file.
    pub fn of(batch: &Batch, segment: Offset, position: u64) -> Self {
        let checksum = |index| crc32c::crc32c(batch.payload(index));
        Self {
            segment,
            payloads_at: position + (batch.bytes_len() - batch.payloads().len()) as u64,
            checksums: (0..batch.len()).map(checksum).collect(),
            batch: batch.without_payloads(),
        }
    }

    /// The batch, of which every part but the payloads is there.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Where the payload of a record stands in the file, and its size.
    pub fn payload_place(&self, index: usize) -> (u64, usize) {
        let start = match index.checked_sub(1) {
            Some(before) => self.batch.payload_end(before),
            None => 0,
        };
        let bytes = self.batch.payload_end(index) - start;
        (self.payloads_at + u64::from(start), bytes as usize)
    }

    pub fn is_payload(&self, index: usize, bytes: &[u8]) -> bool {
        crc32c::crc32c(bytes) == self.checksums[index] || crate::faults::trusts_checksums()
    }

    fn memory(&self) -> usize {
        HEAD_BYTES + self.batch.memory() + std::mem::size_of_val(&*self.checksums)
    }
}

impl Heads {
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            held: Mutex::default(),
        }
    }

    /// The head of the batch that holds `offset`.
    pub fn find(&self, partition: PartitionId, offset: Offset) -> Option<Arc<Head>> {
        let mut held = self.held.lock();
        let first = (partition, Offset(0));
        let (_, kept) = held
            .heads
            .range_mut(first..=(partition, offset))
            .next_back()?;
        if offset >= kept.head.batch.next_offset() {
            return None;
        }
        kept.is_used = true;
        Some(Arc::clone(&kept.head))
    }

    pub fn keep(&self, partition: PartitionId, head: Head) {
        let (key, memory) = ((partition, head.batch.base_offset()), head.memory());
        if memory > self.limit_bytes {
            return;
        }
        let mut held = self.held.lock();
        held.forget(key);
        held.bytes += memory;
        let head = Arc::new(head);
        let is_used = false;
        held.heads.insert(key, Kept { head, is_used });
        held.turns.push_back(key);
        while held.bytes > self.limit_bytes || held.turns.len() > 2 * held.heads.len() + 16 {
            let Some(next) = held.turns.pop_front() else {
                break;
            };
            match held.heads.get_mut(&next) {
                Some(kept) if kept.is_used => {
                    kept.is_used = false;
                    held.turns.push_back(next);
                }
                _ => held.forget(next),
            }
        }
    }

    pub fn forget(&self, partition: PartitionId, base: Offset) {
        self.held.lock().forget((partition, base));
    }
}

impl Held {
    fn forget(&mut self, key: Key) {
        if let Some(kept) = self.heads.remove(&key) {
            self.bytes -= kept.head.memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::decode::tests::batch_of;

    const ONE: PartitionId = PartitionId(1);

    fn head(base: u64) -> Head {
        Head::of(
            &batch_of(Offset(base), &[b"first", b"", b"third"]),
            Offset(0),
            5000,
        )
    }

    #[test]
    fn a_head_is_found_by_each_of_its_offsets_and_no_other() {
        let heads = Heads::new(1 << 20);
        heads.keep(ONE, head(10));
        let found = |partition, offset| heads.find(PartitionId(partition), Offset(offset));
        for (partition, offset, is_there) in [
            (1, 9, false),
            (1, 10, true),
            (1, 12, true),
            (1, 13, false),
            (2, 11, false),
        ] {
            assert_eq!(
                found(partition, offset).is_some(),
                is_there,
                "{partition}:{offset}"
            );
        }
        heads.forget(ONE, Offset(10));
        assert!(found(1, 10).is_none());
        assert_eq!(heads.held.lock().bytes, 0);
    }

    #[test]
    fn a_head_knows_its_payloads_and_refuses_others() {
        let batch = batch_of(Offset(10), &[b"first", b"", b"third"]);
        let head = Head::of(&batch, Offset(0), 5000);
        let end = 5000 + batch.bytes_len() as u64;
        assert_eq!(head.payload_place(0), (end - 10, 5));
        assert_eq!(head.payload_place(1), (end - 5, 0));
        assert_eq!(head.payload_place(2), (end - 5, 5));
        assert!(head.is_payload(2, b"third") && head.is_payload(1, b""));
        assert!(!head.is_payload(2, b"thirf") && !head.is_payload(0, b"third"));
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays_longest() {
        let limit_bytes = 20 * head(0).memory();
        let heads = Heads::new(limit_bytes);
        heads.keep(ONE, head(0));
        for base in 1..1000 {
            assert!(heads.find(ONE, Offset(0)).is_some(), "after {base}");
            heads.keep(ONE, head(base * 10));
            let held = heads.held.lock();
            assert!(held.bytes <= limit_bytes);
            assert!(held.turns.len() <= 2 * held.heads.len() + 16);
        }
        assert!(heads.find(ONE, Offset(10)).is_none());
        assert!(heads.find(ONE, Offset(9990)).is_some());
        Heads::new(10).keep(ONE, head(0));
    }
}
