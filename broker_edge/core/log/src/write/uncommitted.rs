//! The batches of a replica that are written and not committed: shown to no reader, sent to followers, cut when another
//! leader has others in their place. All of them lie in the active segment.

use std::collections::VecDeque;

use crate::batch::record_batch::Batch;
use crate::ids::{Epoch, Offset};

pub(crate) struct UncommittedBatch {
    pub batch: Batch,
    /// Where it lies in the active segment.
    pub position: u64,
    /// What it holds of the queue's bound until it is committed.
    pub queue_bytes: usize,
    /// Made by another node, or found by a start: the keys of its records are not known yet.
    pub has_new_keys: bool,
}

/// Dense in offsets, oldest first; the first begins at the high watermark, the last ends at `written`.
#[derive(Default)]
pub(crate) struct Uncommitted(VecDeque<UncommittedBatch>);

impl Uncommitted {
    pub fn new(found: Vec<(Batch, u64)>) -> Self {
        let uncommitted = |(batch, position)| UncommittedBatch {
            batch,
            position,
            queue_bytes: 0,
            has_new_keys: true,
        };
        Self(found.into_iter().map(uncommitted).collect())
    }

    pub fn push(&mut self, batch: UncommittedBatch) {
        let expected = self.0.back().map(|last| last.batch.next_offset());
        debug_assert!(expected.is_none_or(|expected| expected == batch.batch.base_offset()));
        self.0.push_back(batch);
    }

    /// Takes the first batch, if it ends at or before `offset`.
    pub fn pop_below(&mut self, offset: Offset) -> Option<UncommittedBatch> {
        let first = self.0.front()?;
        if first.batch.next_offset() > offset {
            return None;
        }
        self.0.pop_front()
    }

    /// The position of the batch that begins at `offset`.
    pub fn position_of(&self, offset: Offset) -> Option<u64> {
        let at = self.place_of(offset)?;
        Some(self.0[at].position)
    }

    fn place_of(&self, offset: Offset) -> Option<usize> {
        self.0
            .binary_search_by_key(&offset, |one| one.batch.base_offset())
            .ok()
    }

    /// They hold nothing of the queue's bound any more.
    pub fn release_all(&mut self) {
        self.0.iter_mut().for_each(|one| one.queue_bytes = 0);
    }

    /// Drops the batches from the one that begins at `offset` on, and returns what they held of the queue's bound.
    pub fn cut(&mut self, offset: Offset) -> usize {
        let at = self.place_of(offset).unwrap_or(self.0.len());
        let dropped = self.0.drain(at..);
        dropped.map(|one| one.queue_bytes).sum()
    }

    /// The batches from the one that begins at `from` on, up to `max_bytes` (at least one). None when no batch begins
    /// there.
    pub fn read(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        let at = self.place_of(from)?;
        let mut bytes = 0;
        let fits = |one: &&UncommittedBatch| {
            let is_first = bytes == 0;
            bytes += one.batch.bytes_len();
            is_first || bytes <= max_bytes
        };
        let batches = self.0.range(at..).take_while(fits);
        Some(batches.map(|one| one.batch.clone()).collect())
    }

    /// Where each epoch begins, as far as it begins here.
    pub fn epochs(&self) -> impl Iterator<Item = (Epoch, Offset)> {
        self.0
            .iter()
            .map(|one| (one.batch.epoch(), one.batch.base_offset()))
    }
}
