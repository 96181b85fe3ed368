//! Where the batches of blocks stand that single records were read from, so that the next such read is one of its batch.
//!
//! Never authoritative: whoever uses a place checks the batch that stands there. Bounded; the oldest blocks give way.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::Offset;

/// Memory of the places of one partition.
const PLACES_BYTES_MAX: usize = 2 << 20;
/// What a block takes beside its batches, about.
const BLOCK_PLACE_BYTES: usize = 96;

/// A block by the base offset of its segment and its position there.
pub(crate) type BlockKey = (Offset, u64);

#[derive(Default)]
pub(crate) struct BatchPositions {
    /// By the offset of the first batch.
    blocks: BTreeMap<Offset, Known>,
    /// Oldest first; those that were forgotten may still be named.
    order: VecDeque<Offset>,
    bytes: usize,
}

/// The batches of a block from its first on, by their distance from it.
struct Known {
    block: BlockKey,
    /// Those that begin within 64 KiB of the block, which are all of a block of that size.
    batches: Box<[(u16, u16)]>,
    /// Where the last of them ends.
    end: (Offset, u64),
}

/// A batch, as its header said when it was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchPosition {
    pub block: BlockKey,
    pub offset: Offset,
    pub position: u64,
    pub bytes: usize,
}

impl Known {
    fn memory(&self) -> usize {
        BLOCK_PLACE_BYTES + std::mem::size_of_val(&*self.batches)
    }
}

impl BatchPositions {
    /// The batch that is known to hold `offset`.
    pub fn find(&self, offset: Offset) -> Option<BatchPosition> {
        let (first, known) = self.blocks.range(..=offset).next_back()?;
        if offset >= known.end.0 {
            return None;
        }
        let distance = offset.0 - first.0;
        let after = known
            .batches
            .partition_point(|(first, _)| u64::from(*first) <= distance);
        let (offset, position) = known.batches[after.checked_sub(1)?];
        let position = known.block.1 + u64::from(position);
        let end = match known.batches.get(after) {
            Some((_, next)) => known.block.1 + u64::from(*next),
            None => known.end.1,
        };
        Some(BatchPosition {
            block: known.block,
            offset: first.plus(u64::from(offset)),
            position,
            bytes: (end - position) as usize,
        })
    }

    /// Takes the batches of a block in, by offset and position, the block's first one in front and the end behind.
    pub fn learn(&mut self, block: BlockKey, batches: &[(Offset, u64)]) {
        let Some((last, batches)) = batches.split_last() else {
            return;
        };
        let Some((first, _)) = batches.first().copied() else {
            return;
        };
        let near = |(offset, position): &(Offset, u64)| {
            let distance = u16::try_from(offset.0 - first.0).ok()?;
            Some((distance, u16::try_from(position - block.1).ok()?))
        };
        let near: Box<[(u16, u16)]> = batches.iter().map_while(near).collect();
        let end = batches.get(near.len()).copied().unwrap_or(*last);
        let known = Known {
            block,
            batches: near,
            end,
        };
        self.forget(first);
        self.bytes += known.memory();
        self.blocks.insert(first, known);
        self.order.push_back(first);
        let is_named_often = |places: &Self| places.order.len() > 2 * places.blocks.len() + 16;
        while self.bytes > PLACES_BYTES_MAX || is_named_often(self) {
            match self.order.pop_front() {
                Some(oldest) => self.forget(oldest),
                None => break,
            }
        }
    }

    /// Forgets the block whose first batch has this offset.
    pub fn forget(&mut self, first: Offset) {
        if let Some(known) = self.blocks.remove(&first) {
            self.bytes -= known.memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockKey = (Offset(100), 4096);

    #[test]
    fn a_known_batch_is_found_with_its_size() {
        let mut places = BatchPositions::default();
        let batches = [(110, 4096), (113, 5000), (114, 6000)].map(|(at, to)| (Offset(at), to));
        places.learn(BLOCK, &batches);
        let at = |offset| places.find(Offset(offset));
        let place = |offset, position, bytes| {
            Some(BatchPosition {
                block: BLOCK,
                offset: Offset(offset),
                position,
                bytes,
            })
        };
        assert_eq!(at(109), None);
        assert_eq!(at(112), place(110, 4096, 904));
        assert_eq!(at(113), place(113, 5000, 1000));
        assert_eq!(
            at(114),
            None,
            "it is known that a batch begins there, not how long it is"
        );
        places.forget(Offset(110));
        assert_eq!(places.find(Offset(112)), None);
        assert_eq!(places.bytes, 0);
    }

    #[test]
    fn a_batch_that_ends_far_from_its_block_has_its_size_and_what_follows_is_left_out() {
        let mut places = BatchPositions::default();
        let far = 4096 + (3 << 20);
        let batches = [(110, 4096), (113, 4200), (900, far), (901, far + 100)];
        places.learn(BLOCK, &batches.map(|(at, to)| (Offset(at), to)));
        let found = places.find(Offset(500)).expect("it is known");
        assert_eq!((found.offset, found.bytes), (Offset(113), (3 << 20) - 104));
        assert_eq!(places.find(Offset(900)), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut places = BatchPositions::default();
        for block in 0..1000 {
            let base = block * 1000;
            let batches: Vec<_> = (0..1000)
                .map(|n| (Offset(base + n), base * 64 + n * 64))
                .collect();
            places.learn((Offset(0), base * 64), &batches);
            assert!(places.bytes <= PLACES_BYTES_MAX);
        }
        assert_eq!(places.find(Offset(1)), None);
        assert!(places.find(Offset(999_001)).is_some());
        // The same block again and again is named no more often than blocks are kept.
        for _ in 0..10_000 {
            places.learn((Offset(0), 0), &[(Offset(0), 0), (Offset(5), 100)]);
        }
        assert!(places.order.len() <= 2 * places.blocks.len() + 16);
        assert!(places.find(Offset(4)).is_some());
    }
}
