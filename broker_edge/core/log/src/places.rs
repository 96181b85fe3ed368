//! Where the batches of blocks stand that single records were read from, so that the next such read is one of its batch.
//!
//! Never authoritative: whoever uses a place checks the batch that stands there. Bounded; the oldest blocks give way.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::ids::Offset;

/// Batches whose places are kept, of one partition: about 1 MiB.
const PLACES_MAX: usize = 128 << 10;
/// What a block takes beside its batches, in their measure.
const BLOCK_PLACES: usize = 8;

/// A block by the base offset of its segment and its position there.
pub(crate) type BlockKey = (Offset, u64);

#[derive(Default)]
pub(crate) struct Places {
    blocks: FxHashMap<BlockKey, Known>,
    /// Oldest first; those that were forgotten may still be named.
    order: VecDeque<BlockKey>,
    held: usize,
}

/// The batches of a block from its first on, by their distance from it, and where the last one ends.
struct Known {
    first: Offset,
    batches: Box<[(u32, u32)]>,
}

/// A batch, as its header said when it was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub offset: Offset,
    pub position: u64,
    /// Its size; 0 where nothing is known but that the batches before end there.
    pub bytes: usize,
}

impl Places {
    /// The last batch of the block that is known to begin at or below `offset`.
    pub fn find(&self, block: BlockKey, offset: Offset) -> Option<Place> {
        let known = self.blocks.get(&block)?;
        let distance = offset.0.checked_sub(known.first.0)?;
        let after = known
            .batches
            .partition_point(|(first, _)| u64::from(*first) <= distance);
        let (first, position) = known.batches[after.checked_sub(1)?];
        let next = known.batches.get(after).map(|(_, next)| next - position);
        Some(Place {
            offset: known.first.plus(u64::from(first)),
            position: block.1 + u64::from(position),
            bytes: next.unwrap_or(0) as usize,
        })
    }

    /// Takes the batches of a block in, by offset and position, the block's first one in front and the end behind.
    pub fn learn(&mut self, block: BlockKey, batches: &[(Offset, u64)]) {
        let Some((first, _)) = batches.first().copied() else {
            return;
        };
        self.forget(block);
        let near = |(offset, position): &(Offset, u64)| {
            let distance = u32::try_from(offset.0 - first.0).ok()?;
            Some((distance, u32::try_from(position - block.1).ok()?))
        };
        let batches: Box<[(u32, u32)]> = batches.iter().map_while(near).collect();
        self.held += batches.len() + BLOCK_PLACES;
        self.blocks.insert(block, Known { first, batches });
        self.order.push_back(block);
        while self.held > PLACES_MAX || self.order.len() > PLACES_MAX / BLOCK_PLACES {
            match self.order.pop_front() {
                Some(oldest) => self.forget(oldest),
                None => break,
            }
        }
    }

    pub fn forget(&mut self, block: BlockKey) {
        if let Some(known) = self.blocks.remove(&block) {
            self.held -= known.batches.len() + BLOCK_PLACES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockKey = (Offset(100), 4096);

    #[test]
    fn a_known_batch_is_found_with_its_size() {
        let mut places = Places::default();
        places.learn(
            BLOCK,
            &[
                (Offset(110), 4096),
                (Offset(113), 5000),
                (Offset(114), 6000),
            ],
        );
        let at = |offset| places.find(BLOCK, Offset(offset));
        let place = |offset, position, bytes| {
            Some(Place {
                offset: Offset(offset),
                position,
                bytes,
            })
        };
        assert_eq!(at(109), None);
        assert_eq!(at(112), place(110, 4096, 904));
        assert_eq!(at(113), place(113, 5000, 1000));
        assert_eq!(at(120), place(114, 6000, 0));
        assert_eq!(places.find((Offset(100), 0), Offset(112)), None);
        places.forget(BLOCK);
        assert_eq!(places.find(BLOCK, Offset(112)), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut places = Places::default();
        for block in 0..300 {
            let base = block * 1000;
            let batches: Vec<_> = (0..1000)
                .map(|n| (Offset(base + n), base * 64 + n * 64))
                .collect();
            places.learn((Offset(0), base * 64), &batches);
            assert!(places.held <= PLACES_MAX);
        }
        assert_eq!(places.find((Offset(0), 0), Offset(1)), None);
        assert!(
            places
                .find((Offset(0), 299_000 * 64), Offset(299_001))
                .is_some()
        );
    }
}
