//! Idempotency keys of a partition's newest records: of those that are queued, and of those of segments whose keys
//! cannot be looked up in an index file yet.
//!
//! Only hashes are kept for records on disk; the caller compares a candidate's own key. Keys of older records are asked
//! of the indexes (`index/key_lookup.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::batch::by_name::ByName;
use crate::ids::Offset;
use crate::index::keys::KeyEntry;

/// Keys are dropped in chunks, so that nobody waits long.
const CHUNK_KEYS: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct IdempotencyKeys {
    /// Oldest first.
    full: VecDeque<Chunk>,
    /// No full chunk has a key of a record from here on.
    newest_start: Offset,
    /// The entries of a hash are neighbours, oldest first.
    newest: BTreeSet<KeyEntry>,
    /// Keys with their topics, of records that may not be below the high watermark yet, so that they need
    /// not be read to be compared.
    queued: ByName<Offset>,
}

/// Keys of neighbouring records, which take half the memory when they are only searched.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// No earlier chunk has a key of a record from here on.
    start: Offset,
    /// Ascending.
    keys: Vec<KeyEntry>,
}

impl IdempotencyKeys {
    /// Of the records from `start` on.
    pub fn new(start: Offset, entries: &[KeyEntry]) -> Self {
        let mut new = Self {
            full: VecDeque::new(),
            newest_start: start,
            newest: BTreeSet::new(),
            queued: ByName::default(),
        };
        new.add(entries);
        new
    }

    /// All keys of records from here on are here.
    pub fn start(&self) -> Offset {
        let first = self.full.front();
        first.map_or(self.newest_start, |chunk| chunk.start)
    }

    /// Notes the key of a record that just got its offset; `name` is the key with its topic.
    pub fn add_queued(&mut self, name: &str, entry: KeyEntry) {
        self.add(&[entry]);
        // The first record with a key counts.
        self.queued.entry(name.into()).or_insert(entry.offset);
    }

    /// Notes the keys of records behind all those before.
    pub fn add(&mut self, entries: &[KeyEntry]) {
        for entry in entries {
            if self.newest.len() >= CHUNK_KEYS {
                let start = std::mem::replace(&mut self.newest_start, entry.offset);
                let keys = std::mem::take(&mut self.newest).into_iter().collect();
                self.full.push_back(Chunk { start, keys });
            }
            self.newest.insert(*entry);
        }
    }

    /// Drops the keys of records that were cut off.
    pub fn forget_from(&mut self, offset: Offset) {
        // Earlier chunks than the last that begins at or below it have no such key.
        let first = self.full.iter().rposition(|chunk| chunk.start <= offset);
        for chunk in self.full.range_mut(first.unwrap_or(0)..) {
            chunk.keys.retain(|entry| entry.offset < offset);
        }
        self.newest.retain(|entry| entry.offset < offset);
        self.queued.retain(|_, at| *at < offset);
    }

    /// Offset of a queued record with this key and topic.
    pub fn queued(&self, name: &str) -> Option<Offset> {
        self.queued.get(name).copied()
    }

    /// Offsets in `range` of records that may have the key with this hash, oldest first.
    pub fn candidates(&self, hash: u64, range: Range<Offset>) -> impl Iterator<Item = Offset> {
        let at = |offset| KeyEntry { hash, offset };
        let (from, to) = (at(range.start), at(range.end));
        let full = self.full.iter().flat_map(move |chunk| {
            let first = chunk.keys.partition_point(|entry| *entry < from);
            let found = chunk.keys[first..].iter();
            found.take_while(move |entry| **entry < to)
        });
        let newest = self.newest.range(from..to);
        full.chain(newest).map(|entry| entry.offset)
    }

    /// Drops the text of keys whose records can be read by now.
    pub fn settle(&mut self, high_watermark: Offset) {
        self.queued.retain(|_, offset| *offset >= high_watermark);
    }

    /// Gives up keys of records below `offset`, which are removed or can be looked up elsewhere: those of whole chunks,
    /// for the caller to drop when it has let go of the lock.
    pub fn take_below(&mut self, offset: Offset) -> Vec<Chunk> {
        let mut taken = Vec::new();
        while !self.full.is_empty() {
            let next = self
                .full
                .get(1)
                .map_or(self.newest_start, |next| next.start);
            if next > offset {
                break;
            }
            taken.extend(self.full.pop_front());
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(offset: u64) -> KeyEntry {
        let hash = offset.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let offset = Offset(offset);
        KeyEntry { hash, offset }
    }

    fn entries(offsets: Range<u64>) -> Vec<KeyEntry> {
        offsets.map(entry).collect()
    }

    fn knows(keys: &IdempotencyKeys, offset: u64) -> bool {
        let all = Offset(0)..Offset(u64::MAX);
        let mut found = keys.candidates(entry(offset).hash, all);
        found.next() == Some(Offset(offset))
    }

    /// The keys of an edge box with 100 GB of small records would take tens of GB.
    #[test]
    fn keys_below_an_offset_are_given_up_in_chunks_and_all_others_stay() {
        let chunk = CHUNK_KEYS as u64;
        let mut keys = IdempotencyKeys::new(Offset(7), &entries(10..3 * chunk));
        assert_eq!(keys.start(), Offset(7));
        let count = |taken: Vec<Chunk>| taken.iter().map(|chunk| chunk.keys.len()).sum::<usize>();
        assert_eq!(count(keys.take_below(Offset(chunk + 9))), 0);
        assert_eq!(count(keys.take_below(Offset(chunk + 10))), CHUNK_KEYS);
        assert_eq!(keys.start(), Offset(chunk + 10));
        assert!(!knows(&keys, chunk + 9) && knows(&keys, chunk + 10));
        assert_eq!(count(keys.take_below(Offset(u64::MAX))), CHUNK_KEYS);
        let start = keys.start().0;
        assert!((start..3 * chunk).all(|offset| knows(&keys, offset)));
        let taken = keys.take_below(Offset(u64::MAX));
        assert!(taken.is_empty(), "the newest stay");
    }

    #[test]
    fn keys_that_are_cut_off_are_gone_from_every_chunk_and_their_offsets_used_again() {
        let chunk = CHUNK_KEYS as u64;
        let mut keys = IdempotencyKeys::new(Offset(0), &entries(0..2 * chunk + 9));
        keys.add_queued("topic\0key", entry(2 * chunk + 9));
        let cut = chunk + 5;
        keys.forget_from(Offset(cut));
        assert_eq!(keys.queued("topic\0key"), None);
        assert!((0..cut).all(|offset| knows(&keys, offset)));
        assert!((cut..2 * chunk + 10).all(|offset| !knows(&keys, offset)));
        keys.add(&entries(cut..4 * chunk));
        assert!((cut..4 * chunk).all(|offset| knows(&keys, offset)));
        // What is given up has only keys below, whatever was cut.
        for below in [cut, 2 * chunk, 3 * chunk] {
            for chunk in keys.take_below(Offset(below)) {
                assert!(chunk.keys.iter().all(|key| key.offset < Offset(below)));
            }
            let start = keys.start().0.max(below);
            assert!((start..4 * chunk).all(|offset| knows(&keys, offset)));
        }
    }

    #[test]
    fn candidates_are_those_of_a_range_and_the_first_queued_record_counts() {
        let at = |offset| KeyEntry {
            hash: 5,
            offset: Offset(offset),
        };
        let mut keys = IdempotencyKeys::new(Offset(0), &[at(1), at(4)]);
        keys.add_queued("topic\0key", at(6));
        keys.add_queued("topic\0key", at(8));
        let found = |range: Range<u64>| {
            let range = Offset(range.start)..Offset(range.end);
            let found = keys.candidates(5, range);
            found.map(|offset| offset.0).collect::<Vec<_>>()
        };
        assert_eq!(found(0..9), [1, 4, 6, 8]);
        assert_eq!(found(4..8), [4, 6]);
        assert_eq!(keys.queued("topic\0key"), Some(Offset(6)));
        keys.settle(Offset(7));
        assert_eq!(keys.queued("topic\0key"), None);
    }
}
