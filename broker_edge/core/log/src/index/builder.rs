//! Builds the index of a segment batch by batch.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use crate::batch::layout::{FLAG_EXTENSION, FLAG_RETAIN};
use crate::batch::record_batch::Batch;
use crate::ids::Offset;
use crate::index::keys::{KeyEntry, KeyHashing};
use crate::index::model::{
    Block, BlockLookup, BlockSet, Blocks, EachTopic, Hole, Index, IndexDamaged, IndexTopic,
    RetainedOffset, TopicExtent, push_number, topic_hash,
};

/// Batches are grouped into blocks of at least this size.
const BLOCK_BYTES: u64 = 64 << 10;

/// Topics, and bytes of their block numbers, that are copied at a time: some 10 us. Names are shared, not copied.
const COPIED_TOPICS: usize = 256;
const COPIED_BYTES: usize = 64 << 10;

#[derive(Debug, Clone)]
struct TopicState {
    name: Arc<str>,
    extent: TopicExtent,
    blocks: Vec<u8>,
    last_block: u64,
}

/// The keys of a batch's records.
pub(crate) fn key_entries(batch: &Batch) -> Vec<KeyEntry> {
    let key = |index: usize| {
        let is_keyed = batch.entry(index).flags & FLAG_EXTENSION != 0;
        let record = is_keyed.then(|| batch.record(index))?;
        Some(KeyEntry {
            hash: KeyHashing::TopicAndKey.hash(record.topic, record.idempotency_key?),
            offset: batch.base_offset().plus(index as u64),
        })
    };
    (0..batch.len()).filter_map(key).collect()
}

/// The records of one topic in a batch, by their numbers.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: u32,
    last: u32,
    /// The last with the retain flag, and whether its payload is empty.
    retained: Option<(u32, bool)>,
}

impl Span {
    const EMPTY: Self = Self {
        first: u32::MAX,
        last: 0,
        retained: None,
    };
}

/// In the order in which they came, so that a number stays with its topic.
#[derive(Debug, Clone, Default)]
struct Topics {
    states: Vec<TopicState>,
    numbers: HashMap<Arc<str>, u32, RandomState>,
}

impl Topics {
    fn get(&self, topic: &str) -> Option<&TopicState> {
        let number = self.numbers.get(topic)?;
        Some(&self.states[*number as usize])
    }

    /// The topic, with this extent taken in.
    fn extend(&mut self, topic: &str, extent: TopicExtent) -> &mut TopicState {
        if let Some(number) = self.numbers.get(topic) {
            let state = &mut self.states[*number as usize];
            state.extent.extend(extent);
            return state;
        }
        let name: Arc<str> = topic.into();
        let number = self.states.len();
        self.numbers.insert(Arc::clone(&name), number as u32);
        self.states.push(TopicState {
            name,
            extent,
            blocks: Vec::new(),
            last_block: 0,
        });
        &mut self.states[number]
    }
}

/// Some topics of a segment that still grows, copied so that nobody waits for those who look at them.
#[derive(Debug, Default)]
pub(crate) struct CopiedTopics {
    /// Each with the end of its block numbers in `blocks`.
    topics: Vec<(Arc<str>, TopicExtent, usize)>,
    blocks: Vec<u8>,
}

impl CopiedTopics {
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// As an index gives them; see [`EachTopic`].
    pub fn iter(&self) -> impl Iterator<Item = (&str, TopicExtent, &[u8])> {
        let mut start = 0;
        self.topics.iter().map(move |(name, extent, end)| {
            let blocks = &self.blocks[start..*end];
            start = *end;
            (&**name, extent.clone(), blocks)
        })
    }
}

/// The index of a segment that still grows.
#[derive(Debug, Clone)]
pub(crate) struct IndexBuilder {
    /// Without its topics.
    index: Index,
    topics: Topics,
    /// Written but not yet indexed: the writer leaves batches here and indexes them after it has woken the readers.
    pending: Vec<(Batch, u64)>,
    /// One per topic of the batch's table.
    spans: Vec<Span>,
}

impl IndexBuilder {
    pub fn new(base: Offset) -> Self {
        Self {
            index: Index::empty(base),
            topics: Topics::default(),
            pending: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Notes a batch that was written at `position`, to be indexed later; cheap.
    pub fn push(&mut self, batch: Batch, position: u64) {
        self.pending.push((batch, position));
    }

    pub fn catch_up(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        for (batch, position) in pending.drain(..) {
            self.add(&batch, position);
        }
        self.pending = pending;
    }

    /// Adds a batch. Offsets between it and the one before it are damage.
    pub fn add(&mut self, batch: &Batch, position: u64) {
        let hole = Hole {
            first: self.index.next,
            next: batch.base_offset(),
            resume: position,
        };
        let is_behind_hole = hole.first != hole.next;
        if is_behind_hole {
            self.index.holes.push(hole);
        }
        let begins_block = self
            .index
            .blocks
            .last()
            .is_none_or(|block| position - block.position >= BLOCK_BYTES || is_behind_hole);
        if self.index.blocks.is_empty() {
            self.index.first_time_us = batch.base_time_us();
        }
        if begins_block {
            self.index.blocks.push(Block {
                offset: batch.base_offset(),
                position,
                max_time_us: self.index.max_time_us,
            });
        }
        let epoch = self.index.epochs.last().map(|(_, epoch)| *epoch);
        if epoch != Some(batch.epoch()) {
            let begin = (batch.base_offset(), batch.epoch());
            self.index.epochs.push(begin);
        }
        let last_delta = self.add_records(batch);
        self.add_topics(batch);
        let index = &mut self.index;
        let newest = batch.base_time_us().saturating_add(i64::from(last_delta));
        index.max_time_us = index.max_time_us.max(newest);
        if let Some(block) = index.blocks.last_mut() {
            block.max_time_us = index.max_time_us;
        }
        index.next = batch.next_offset();
        index.last_position = position;
        index.last_checksum = batch.checksum();
        index.data_end = position + batch.bytes_len() as u64;
    }

    /// Goes through each record once; returns the highest time delta.
    fn add_records(&mut self, batch: &Batch) -> u32 {
        let topics = batch.topics().len();
        self.spans.clear();
        self.spans.resize(topics, Span::EMPTY);
        let mut last_delta = 0;
        let mut payload_start = 0;
        for index in 0..batch.len() {
            let entry = batch.entry(index);
            let record = index as u32;
            let span = &mut self.spans[usize::from(entry.topic)];
            span.first = span.first.min(record);
            span.last = record;
            if entry.flags & (FLAG_RETAIN | FLAG_EXTENSION) != 0 {
                if entry.flags & FLAG_RETAIN != 0 {
                    span.retained = Some((record, entry.payload_end == payload_start));
                }
                let read = batch.record(index);
                if let Some(key) = read.idempotency_key {
                    let hash = KeyHashing::TopicAndKey.hash(read.topic, key);
                    let offset = batch.base_offset().plus(index as u64);
                    self.index.keys.push(KeyEntry { hash, offset });
                }
            }
            last_delta = last_delta.max(entry.time_delta_us);
            payload_start = entry.payload_end;
        }
        last_delta
    }

    fn add_topics(&mut self, batch: &Batch) {
        let base = batch.base_offset();
        let block = self.index.blocks.len() as u64 - 1;
        for (topic, span) in batch.topics().zip(&self.spans) {
            if span.first == u32::MAX {
                continue;
            }
            let retained = span.retained.map(|(record, is_cleared)| RetainedOffset {
                offset: base.plus(u64::from(record)),
                is_cleared,
            });
            let extent = TopicExtent {
                range: base.plus(u64::from(span.first))..base.plus(u64::from(span.last) + 1),
                retained,
            };
            let state = self.topics.extend(topic.topic, extent);
            if state.blocks.is_empty() || state.last_block != block {
                push_number(&mut state.blocks, block - state.last_block);
                state.last_block = block;
            }
        }
    }

    /// The index of the batches so far, without its topics.
    pub fn head(&self) -> &Index {
        &self.index
    }

    /// The topics from this number on, as many as are copied at a time.
    pub fn copy_topics(&self, from: usize) -> CopiedTopics {
        let mut copied = CopiedTopics::default();
        for state in self.topics.states.iter().skip(from).take(COPIED_TOPICS) {
            copied.blocks.extend_from_slice(&state.blocks);
            let (name, end) = (Arc::clone(&state.name), copied.blocks.len());
            copied.topics.push((name, state.extent.clone(), end));
            if end > COPIED_BYTES {
                break;
            }
        }
        copied
    }

    pub fn topic_count(&self) -> usize {
        self.topics.states.len()
    }

    /// The index of the segment as it is now, complete.
    pub fn finish(&mut self) -> Index {
        self.catch_up();
        let mut topics: Vec<IndexTopic> = std::mem::take(&mut self.topics)
            .states
            .into_iter()
            .map(|state| IndexTopic {
                topic: (&*state.name).into(),
                extent: state.extent,
                blocks: state.blocks,
            })
            .collect();
        topics.sort_by_cached_key(|topic| (topic_hash(&topic.topic), topic.topic.clone()));
        let empty = Index::empty(self.index.base);
        Index {
            topics,
            key_count: self.index.keys.len(),
            ..std::mem::replace(&mut self.index, empty)
        }
    }
}

impl BlockLookup for IndexBuilder {
    fn blocks(&self) -> Blocks<'_> {
        self.index.blocks()
    }

    fn mark_topic(&self, topic: &str, marked: &mut BlockSet) -> Result<(), IndexDamaged> {
        if let Some(state) = self.topics.get(topic) {
            marked.mark(&state.blocks);
        }
        Ok(())
    }

    fn for_each_topic(&self, f: &mut EachTopic<'_>) -> Result<(), IndexDamaged> {
        for state in &self.topics.states {
            f(&state.name, state.extent.clone(), &state.blocks);
        }
        Ok(())
    }
}
