//! Positions of the batches in blocks from which single records were read, so that the next such read reads one batch.
//!
//! Never authoritative: the reader checks the batch at a position.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::ids::Offset;

/// Memory for the positions of one partition.
const POSITIONS_BYTES_MAX: u64 = 2 << 20;
/// Approximate memory of a block besides its batches.
const BLOCK_POSITION_BYTES: usize = 96;
/// Most blocks hold no more batches than take this much.
const USUAL_BYTES: u64 = 512;

/// A block by the base offset of its segment and its position there.
pub(crate) type BlockKey = (Offset, u64);

/// By the offset of the first batch of a block.
pub(crate) struct BatchPositions(Cache<Offset, Known, ByMemory>);

/// The batches of a block from its first on, by their distance from it.
#[derive(Clone)]
struct Known {
    block: BlockKey,
    /// The batches that begin within 64 KiB of the block: usually all of them.
    batches: Arc<[(u16, u16)]>,
    /// Where the last of them ends.
    end: (Offset, u64),
}

#[derive(Clone)]
struct ByMemory;

impl Weighter<Offset, Known> for ByMemory {
    fn weight(&self, _: &Offset, known: &Known) -> u64 {
        (BLOCK_POSITION_BYTES + size_of_val(&*known.batches)) as u64
    }
}

/// Where a batch stands, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchPosition {
    pub block: BlockKey,
    pub offset: Offset,
    pub position: u64,
    pub bytes: usize,
}

impl BatchPositions {
    pub fn new() -> Self {
        let blocks = (POSITIONS_BYTES_MAX / USUAL_BYTES) as usize;
        Self(Cache::with_weighter(blocks, POSITIONS_BYTES_MAX, ByMemory))
    }

    /// The batch that holds `offset`, in the block whose first batch has offset `first`.
    pub fn find(&self, first: Offset, offset: Offset) -> Option<BatchPosition> {
        let known = self.0.get(&first)?;
        if offset >= known.end.0 {
            return None;
        }
        let distance = offset.0.checked_sub(first.0)?;
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

    /// Notes the batches of a block by offset and position: the block's first batch first, the end of the last one
    /// last.
    pub fn learn(&self, block: BlockKey, batches: &[(Offset, u64)]) {
        let [(first, _), .., last] = *batches else {
            return;
        };
        let batches = &batches[..batches.len() - 1];
        let near = |(offset, position): &(Offset, u64)| {
            let distance = u16::try_from(offset.0 - first.0).ok()?;
            Some((distance, u16::try_from(position - block.1).ok()?))
        };
        let near: Vec<(u16, u16)> = batches.iter().map_while(near).collect();
        let end = batches.get(near.len()).copied().unwrap_or(last);
        let batches = near.into();
        self.0.insert(
            first,
            Known {
                block,
                batches,
                end,
            },
        );
    }

    /// Forgets the block whose first batch has this offset.
    pub fn forget(&self, first: Offset) {
        self.0.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockKey = (Offset(100), 4096);

    #[test]
    fn a_known_batch_is_found_with_its_size() {
        let positions = BatchPositions::new();
        let batches = [(110, 4096), (113, 5000), (114, 6000)].map(|(at, to)| (Offset(at), to));
        positions.learn(BLOCK, &batches);
        let at = |offset| positions.find(Offset(110), Offset(offset));
        let position = |offset, position, bytes| {
            Some(BatchPosition {
                block: BLOCK,
                offset: Offset(offset),
                position,
                bytes,
            })
        };
        assert_eq!(at(109), None);
        assert_eq!(at(112), position(110, 4096, 904));
        assert_eq!(at(113), position(113, 5000, 1000));
        assert_eq!(at(114), None, "the size of the batch there is not known");
        positions.forget(Offset(110));
        assert_eq!(at(112), None);
    }

    #[test]
    fn a_batch_that_ends_far_from_its_block_has_its_size_and_later_ones_are_left_out() {
        let positions = BatchPositions::new();
        let far = 4096 + (3 << 20);
        let batches = [(110, 4096), (113, 4200), (900, far), (901, far + 100)];
        positions.learn(BLOCK, &batches.map(|(at, to)| (Offset(at), to)));
        let at = |offset| positions.find(Offset(110), Offset(offset));
        let found = at(500).expect("it is known");
        assert_eq!((found.offset, found.bytes), (Offset(113), (3 << 20) - 104));
        assert_eq!(at(900), None);
    }

    #[test]
    fn the_positions_of_many_blocks_are_bounded_in_memory() {
        let positions = BatchPositions::new();
        for block in 0..1000 {
            let base = block * 1000;
            let batches: Vec<_> = (0..1000)
                .map(|n| (Offset(base + n), base * 64 + n * 64))
                .collect();
            positions.learn((Offset(0), base * 64), &batches);
            assert!(positions.0.weight() <= POSITIONS_BYTES_MAX);
        }
        let is_known = |block: &u64| {
            let first = Offset(block * 1000);
            positions.find(first, first.plus(1)).is_some()
        };
        assert!((400..1000).contains(&(0..1000).filter(is_known).count()));
    }
}
