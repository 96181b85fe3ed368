//! Index of a segment: offset and time to position, topics to blocks, retained records, idempotency keys.
//!
//! Built batch by batch while a segment grows (`growing.rs`), kept beside it once it is sealed (`index_file.rs` has the bytes). Never
//! authoritative: everything in it follows from the segment.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{Epoch, Offset};
use crate::segment::header::{Hole, Summary};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub offset: Offset,
    pub position: u64,
    /// Highest time in the segment up to the end of this block.
    pub max_time_us: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    pub hash: u64,
    pub offset: Offset,
}

/// The newest record of a topic with the retain flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetainedOffset {
    pub offset: Offset,
    /// Its payload is empty: the topic has no retained message from there on.
    pub is_cleared: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexTopic {
    pub topic: Box<str>,
    pub first: Offset,
    pub next: Offset,
    pub retained: Option<RetainedOffset>,
    /// Numbers of the blocks that hold it, as differences in 7-bit groups.
    pub blocks: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    pub base: Offset,
    pub next: Offset,
    pub data_end: u64,
    pub last_position: u64,
    pub last_checksum: u32,
    pub first_time_us: i64,
    pub max_time_us: i64,
    pub blocks: Vec<Block>,
    pub epochs: Vec<(Offset, Epoch)>,
    pub holes: Vec<Hole>,
    pub keys: Vec<KeyEntry>,
    /// Ascending in [`topic_hash`], then in name.
    pub topics: Vec<IndexTopic>,
}

/// A run of blocks that stand one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub position: u64,
    pub offset: Offset,
    /// Offset after the run.
    pub until: Offset,
    /// Position after the run.
    pub end: u64,
    /// Size of the first block, 0 where that is not known.
    pub block_bytes: u64,
}

impl Index {
    pub fn summary(&self) -> Summary {
        Summary {
            next: self.next,
            data_end: self.data_end,
            first_time_us: self.first_time_us,
            max_time_us: self.max_time_us,
            epochs: self.epochs.clone(),
            holes: self.holes.clone(),
        }
    }

    pub fn blocks(&self) -> Blocks<'_> {
        Blocks {
            blocks: &self.blocks,
            next: self.next,
            data_end: self.data_end,
        }
    }

    /// Marks the blocks of one topic.
    pub fn mark_topic(&self, topic: &str, held: &mut BlockSet) {
        let key = (topic_hash(topic), topic);
        let found = self
            .topics
            .binary_search_by(|entry| (topic_hash(&entry.topic), &*entry.topic).cmp(&key));
        if let Ok(at) = found {
            held.mark(&self.topics[at].blocks);
        }
    }

    /// Marks the blocks of the topics within `range` that are wanted.
    pub fn mark(&self, range: &Range<Offset>, wanted: &dyn Fn(&str) -> bool, held: &mut BlockSet) {
        for topic in &self.topics {
            if topic.first < range.end && topic.next > range.start && wanted(&topic.topic) {
                held.mark(&topic.blocks);
            }
        }
    }
}

/// The blocks of a sealed segment, with where they end.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub blocks: &'a [Block],
    pub next: Offset,
    pub data_end: u64,
}

impl Blocks<'_> {
    /// The block to begin at in order to find `offset`.
    pub fn block_for(&self, offset: Offset) -> Option<Block> {
        let after = self.blocks.partition_point(|block| block.offset <= offset);
        after.checked_sub(1).map(|at| self.blocks[at])
    }

    /// Position after a block.
    pub fn end_of(&self, block: Option<Block>) -> u64 {
        let position = block.map_or(0, |block| block.position);
        let after = self
            .blocks
            .partition_point(|block| block.position <= position);
        self.blocks
            .get(after)
            .map_or(self.data_end, |next| next.position)
    }

    /// The first block whose running maximum reaches `time_us`.
    pub fn block_for_time(&self, time_us: i64) -> Option<Block> {
        let at = self
            .blocks
            .partition_point(|block| block.max_time_us < time_us);
        self.blocks.get(at).copied()
    }

    /// The runs of blocks within `range` that are held.
    pub fn runs(&self, range: &Range<Offset>, held: &BlockSet) -> Vec<BlockRange> {
        let mut runs: Vec<BlockRange> = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let after = self.blocks.get(number + 1);
            let until = after.map_or(self.next, |next| next.offset);
            let end = after.map_or(self.data_end, |next| next.position);
            if !held.0[number] || until <= range.start || block.offset >= range.end {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.until == block.offset => {
                    run.until = until;
                    run.end = end;
                }
                _ => runs.push(BlockRange {
                    position: block.position,
                    offset: block.offset,
                    until,
                    end,
                    block_bytes: end.saturating_sub(block.position),
                }),
            }
        }
        runs
    }
}

/// Which blocks of a segment hold a topic that is wanted.
pub(crate) struct BlockSet(Vec<bool>);

impl BlockSet {
    pub fn none_of(blocks: usize) -> Self {
        Self(vec![false; blocks])
    }

    /// Marks the blocks of a topic.
    pub fn mark(&mut self, numbers: &[u8]) {
        for number in block_numbers(numbers) {
            if let Some(held) = self.0.get_mut(number) {
                *held = true;
            }
        }
    }
}

/// Block numbers of a topic, ascending.
pub(crate) fn block_numbers(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut bytes = bytes.iter();
    let mut number = 0_u64;
    std::iter::from_fn(move || {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = *bytes.next()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        number = number.saturating_add(value);
        usize::try_from(number).ok()
    })
}

pub(crate) fn push_number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Between which offsets a topic has records, and its newest retained one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicExtent {
    pub range: Range<Offset>,
    pub retained: Option<RetainedOffset>,
}

/// The order of topics in an index: one page of it then answers where a topic is.
pub(crate) fn topic_hash(topic: &str) -> u64 {
    xxh3_64(topic.as_bytes())
}

pub(crate) fn key_hash(key: &str) -> u64 {
    xxh3_64(key.as_bytes())
}
