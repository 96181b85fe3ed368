//! Index of a segment: offset and time to position, topics to blocks, retained records, idempotency keys.
//!
//! Built batch by batch while a segment grows (`builder.rs`), kept beside it once it is sealed (`format.rs` has the
//! bytes). Never authoritative: everything in it follows from the segment.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{Epoch, Offset};
use crate::index::keys::{KeyEntry, KeyHashing};
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::vfs::files::{File, read_full};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub offset: Offset,
    pub position: u64,
    /// Highest time in the segment up to the end of this block.
    pub max_time_us: i64,
}

/// The newest record of a topic with the retain flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetainedOffset {
    pub offset: Offset,
    /// Its payload is empty: from there on the topic has no retained message.
    pub is_cleared: bool,
}

/// The offsets between which a topic has records, and its newest retained one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicExtent {
    pub range: Range<Offset>,
    pub retained: Option<RetainedOffset>,
}

impl TopicExtent {
    pub fn is_in(&self, range: &Range<Offset>) -> bool {
        self.range.start < range.end && self.range.end > range.start
    }

    /// Takes in another extent of the same topic.
    pub fn extend(&mut self, by: Self) {
        self.range.start = self.range.start.min(by.range.start);
        self.range.end = self.range.end.max(by.range.end);
        self.retained = self.retained.max(by.retained);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexTopic {
    pub topic: Box<str>,
    pub extent: TopicExtent,
    /// Numbers of the blocks that hold it, as differences in 7-bit groups.
    pub blocks: Vec<u8>,
}

/// Takes a topic as an index gives it: its name, its extent, and its block numbers in 7-bit groups.
pub(crate) type EachTopic<'a> = dyn FnMut(&str, TopicExtent, &[u8]) + 'a;

/// Offsets of a sealed segment that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    pub first: Offset,
    pub next: Offset,
    /// Position of the batch with base offset `next`.
    pub resume: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    pub base: Offset,
    pub next: Offset,
    /// Position after the last batch.
    pub data_end: u64,
    pub last_position: u64,
    pub last_checksum: u32,
    pub first_time_us: i64,
    pub max_time_us: i64,
    pub blocks: Vec<Block>,
    /// First offset of each epoch, ascending.
    pub epochs: Vec<(Offset, Epoch)>,
    pub holes: Vec<Hole>,
    /// How the keys are hashed.
    pub key_hashing: KeyHashing,
    /// Also where `keys` are left out.
    pub key_count: usize,
    /// In the order of their records while they are gathered; in the order of a file when they come from one.
    pub keys: Vec<KeyEntry>,
    /// Ascending in [`topic_hash`], then in name.
    pub topics: Vec<IndexTopic>,
}

impl Index {
    /// Of a segment without batches.
    pub fn empty(base: Offset) -> Self {
        Self {
            base,
            next: base,
            data_end: SEGMENT_HEADER_BYTES,
            last_position: 0,
            last_checksum: 0,
            first_time_us: i64::MIN,
            max_time_us: i64::MIN,
            blocks: Vec::new(),
            epochs: Vec::new(),
            holes: Vec::new(),
            key_hashing: KeyHashing::TopicAndKey,
            key_count: 0,
            keys: Vec::new(),
            topics: Vec::new(),
        }
    }

    /// The part that stays in memory for a sealed segment: without blocks, keys and topics.
    pub fn head(&self) -> Self {
        Self {
            blocks: Vec::new(),
            epochs: self.epochs.clone(),
            holes: self.holes.clone(),
            keys: Vec::new(),
            topics: Vec::new(),
            ..*self
        }
    }
}

/// A piece of an index file is not what was written; the index has to be made again.
#[derive(Debug, thiserror::Error)]
#[error("the index is damaged")]
pub(crate) struct IndexDamaged;

/// So many bytes of an index file.
pub(crate) fn read_bytes(
    file: &dyn File,
    position: u64,
    bytes: usize,
) -> Result<Vec<u8>, IndexDamaged> {
    let length = file.len().map_err(|_| IndexDamaged)?;
    // Never more than the file holds, so that a wrong length allocates nothing.
    let end = position.checked_add(bytes as u64);
    if end.is_none_or(|end| end > length) {
        return Err(IndexDamaged);
    }
    let mut buffer = vec![0; bytes];
    match read_full(file, &mut buffer, position) {
        Ok(read) if read == bytes => Ok(buffer),
        _ => Err(IndexDamaged),
    }
}

/// The questions that every index answers: one that is being built, one in memory, or one in a file.
pub(crate) trait BlockLookup {
    fn blocks(&self) -> Blocks<'_>;

    /// Gives every topic.
    fn for_each_topic(&self, f: &mut EachTopic<'_>) -> Result<(), IndexDamaged>;

    /// Marks the blocks of one topic.
    fn mark_topic(&self, topic: &str, marked: &mut BlockSet) -> Result<(), IndexDamaged>;
}

impl BlockLookup for Index {
    fn blocks(&self) -> Blocks<'_> {
        Blocks {
            blocks: &self.blocks,
            next: self.next,
            data_end: self.data_end,
        }
    }

    fn mark_topic(&self, topic: &str, marked: &mut BlockSet) -> Result<(), IndexDamaged> {
        let key = (topic_hash(topic), topic);
        let found = self
            .topics
            .binary_search_by(|entry| (topic_hash(&entry.topic), &*entry.topic).cmp(&key));
        if let Ok(at) = found {
            marked.mark(&self.topics[at].blocks);
        }
        Ok(())
    }

    fn for_each_topic(&self, f: &mut EachTopic<'_>) -> Result<(), IndexDamaged> {
        for topic in &self.topics {
            f(&topic.topic, topic.extent.clone(), &topic.blocks);
        }
        Ok(())
    }
}

/// The blocks of a segment, with where they end.
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
        let is_up_to = |block: &Block| block.position <= position;
        let after = self.blocks.get(self.blocks.partition_point(is_up_to));
        after.map_or(self.data_end, |next| next.position)
    }

    /// The first block whose running maximum reaches `time_us`.
    pub fn block_for_time(&self, time_us: i64) -> Option<Block> {
        let is_before = |block: &Block| block.max_time_us < time_us;
        let at = self.blocks.partition_point(is_before);
        self.blocks.get(at).copied()
    }

    /// The offsets of the marked blocks within `range`, neighbours joined.
    pub fn offsets(&self, range: &Range<Offset>, marked: &BlockSet) -> Vec<Range<Offset>> {
        let mut found: Vec<Range<Offset>> = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let after = self.blocks.get(number + 1);
            let start = block.offset.max(range.start);
            let end = after.map_or(self.next, |next| next.offset).min(range.end);
            if !marked.has(number) || start >= end {
                continue;
            }
            match found.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => found.push(start..end),
            }
        }
        found
    }
}

/// Which blocks of a segment hold a wanted topic.
pub(crate) struct BlockSet(Vec<bool>);

impl BlockSet {
    pub fn none_of(blocks: usize) -> Self {
        Self(vec![false; blocks])
    }

    fn has(&self, number: usize) -> bool {
        self.0.get(number).is_some_and(|is_marked| *is_marked)
    }

    /// Marks the blocks of a topic.
    pub fn mark(&mut self, numbers: &[u8]) {
        for number in block_numbers(numbers) {
            if let Some(marked) = self.0.get_mut(number) {
                *marked = true;
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

/// The order of topics in an index: one page of it then answers where a topic is.
pub(crate) fn topic_hash(topic: &str) -> u64 {
    xxh3_64(topic.as_bytes())
}
