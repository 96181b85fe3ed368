//! The index of a segment that still grows, made batch by batch.

use crate::batch::by_name::ByName;
use crate::batch::decode::Batch;
use crate::batch::layout::{FLAG_EXTENSION, FLAG_RETAIN};
use crate::ids::{Epoch, Offset};
use crate::index::model::{
    Block, BlockSet, Blocks, Index, IndexTopic, KeyEntry, RetainedOffset, TopicExtent, key_hash,
    push_number, topic_hash,
};
use crate::segment::header::{Hole, SEGMENT_HEADER_BYTES};

/// Batches are gathered into blocks of at least this size.
const BLOCK_BYTES: u64 = 64 << 10;

#[derive(Debug)]
struct TopicState {
    first: Offset,
    next: Offset,
    retained: Option<RetainedOffset>,
    blocks: Vec<u8>,
    last_block: u64,
}

/// The records of one topic in a batch, by their places there.
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

/// The index of a segment that still grows.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    base: Offset,
    next: Offset,
    data_end: u64,
    last_position: u64,
    last_checksum: u32,
    first_time_us: i64,
    blocks: Vec<Block>,
    epochs: Vec<(Offset, Epoch)>,
    holes: Vec<Hole>,
    keys: Vec<KeyEntry>,
    topics: ByName<TopicState>,
    /// Written, not yet looked at: the writer hands batches over here and indexes them after it has told the readers.
    pending: Vec<(Batch, u64)>,
    /// Per place in the batch's topic table.
    spans: Vec<Span>,
}

impl IndexBuilder {
    pub fn new(base: Offset) -> Self {
        Self {
            base,
            next: base,
            data_end: SEGMENT_HEADER_BYTES,
            last_position: 0,
            last_checksum: 0,
            first_time_us: i64::MIN,
            blocks: Vec::new(),
            epochs: Vec::new(),
            holes: Vec::new(),
            keys: Vec::new(),
            topics: ByName::default(),
            pending: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Notes a batch that was written at `position`; cheap.
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

    /// Damage up to `next`, where the batch at `resume` goes on.
    pub fn add_hole(&mut self, hole: Hole) {
        self.holes.push(hole);
    }

    fn add(&mut self, batch: &Batch, position: u64) {
        let begins_block = match self.blocks.last() {
            None => true,
            Some(block) => {
                position - block.position >= BLOCK_BYTES || batch.base_offset() != self.next
            }
        };
        let max_time = self.max_time_us();
        if begins_block {
            let offset = batch.base_offset();
            self.blocks.push(Block {
                offset,
                position,
                max_time_us: max_time,
            });
        }
        if self
            .epochs
            .last()
            .is_none_or(|(_, epoch)| *epoch != batch.epoch())
        {
            self.epochs.push((batch.base_offset(), batch.epoch()));
        }
        if self.first_time_us == i64::MIN {
            self.first_time_us = batch.base_time_us();
        }
        let last_delta = self.add_records(batch);
        self.add_topics(batch);
        let newest = batch.base_time_us().saturating_add(i64::from(last_delta));
        if let Some(block) = self.blocks.last_mut() {
            block.max_time_us = block.max_time_us.max(newest);
        }
        self.next = batch.next_offset();
        self.last_position = position;
        self.last_checksum = batch.checksum();
        self.data_end = position + batch.bytes_len() as u64;
    }

    /// Looks at each record once; returns the highest time delta.
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
                if let Some(key) = batch.record(index).idempotency_key {
                    let offset = batch.base_offset().plus(index as u64);
                    self.keys.push(KeyEntry {
                        hash: key_hash(key),
                        offset,
                    });
                }
            }
            last_delta = last_delta.max(entry.time_delta_us);
            payload_start = entry.payload_end;
        }
        last_delta
    }

    fn add_topics(&mut self, batch: &Batch) {
        let base = batch.base_offset();
        let block = self.blocks.len() as u64 - 1;
        for (topic, span) in batch.topics().zip(&self.spans) {
            if span.first == u32::MAX {
                continue;
            }
            let first = base.plus(u64::from(span.first));
            let next = base.plus(u64::from(span.last) + 1);
            let state = match self.topics.get_mut(topic.topic) {
                Some(state) => state,
                None => self.topics.entry(topic.topic.into()).or_insert(TopicState {
                    first,
                    next,
                    retained: None,
                    blocks: Vec::new(),
                    last_block: 0,
                }),
            };
            state.first = state.first.min(first);
            state.next = state.next.max(next);
            if let Some((record, is_cleared)) = span.retained {
                let offset = base.plus(u64::from(record));
                state.retained = state
                    .retained
                    .max(Some(RetainedOffset { offset, is_cleared }));
            }
            if state.blocks.is_empty() || state.last_block != block {
                push_number(&mut state.blocks, block - state.last_block);
                state.last_block = block;
            }
        }
    }

    pub fn data_end(&self) -> u64 {
        self.data_end
    }

    /// Time of the first record; None while there is none.
    pub fn first_time_us(&self) -> Option<i64> {
        (!self.blocks.is_empty()).then_some(self.first_time_us)
    }

    pub fn max_time_us(&self) -> i64 {
        self.blocks
            .last()
            .map_or(i64::MIN, |block| block.max_time_us)
    }

    /// The first block whose running maximum reaches `time_us`.
    pub fn block_for_time(&self, time_us: i64) -> Option<Block> {
        let at = self
            .blocks
            .partition_point(|block| block.max_time_us < time_us);
        self.blocks.get(at).copied()
    }

    pub fn epochs(&self) -> &[(Offset, Epoch)] {
        &self.epochs
    }

    pub fn keys(&self) -> &[KeyEntry] {
        &self.keys
    }

    pub fn topics(&self) -> impl Iterator<Item = (&str, TopicExtent)> {
        self.topics.iter().map(|(topic, state)| {
            let places = TopicExtent {
                range: state.first..state.next,
                retained: state.retained,
            };
            (&**topic, places)
        })
    }

    pub fn topic_count(&self) -> usize {
        self.topics.len()
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
        if let Some(state) = self.topics.get(topic) {
            held.mark(&state.blocks);
        }
    }

    /// Marks the blocks of the topics that are wanted.
    pub fn mark(&self, wanted: &dyn Fn(&str) -> bool, held: &mut BlockSet) {
        for (topic, state) in &self.topics {
            if wanted(topic) {
                held.mark(&state.blocks);
            }
        }
    }

    /// The index of the segment as it is now, complete.
    pub fn finish(&mut self) -> Index {
        self.catch_up();
        let mut topics: Vec<IndexTopic> = std::mem::take(&mut self.topics)
            .into_iter()
            .map(|(topic, state)| IndexTopic {
                topic,
                first: state.first,
                next: state.next,
                retained: state.retained,
                blocks: state.blocks,
            })
            .collect();
        topics.sort_by_cached_key(|topic| (topic_hash(&topic.topic), topic.topic.clone()));
        let max_time_us = self.max_time_us();
        Index {
            base: self.base,
            next: self.next,
            data_end: self.data_end,
            last_position: self.last_position,
            last_checksum: self.last_checksum,
            first_time_us: self.first_time_us,
            max_time_us,
            blocks: std::mem::take(&mut self.blocks),
            epochs: std::mem::take(&mut self.epochs),
            holes: std::mem::take(&mut self.holes),
            keys: std::mem::take(&mut self.keys),
            topics,
        }
    }
}
