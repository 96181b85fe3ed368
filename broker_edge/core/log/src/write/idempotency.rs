//! Idempotency keys of a partition's newest records: of those that are queued, and of those of segments whose keys
//! cannot be looked up in an index file yet.
//!
//! Only hashes are kept for records on disk; the caller compares a candidate's own key. Keys of older records are asked
//! of the indexes (`index/key_lookup.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::batch::by_name::ByName;
use crate::ids::Offset;
use crate::index::keys::{KeyEntry, WantedKey};

/// Keys are dropped in chunks, so that nobody waits long.
const CHUNK_KEYS: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct IdempotencyKeys {
    /// Oldest first.
    full: VecDeque<Chunk>,
    /// No full chunk has a key of a record from here on; all keys of such records are in `newest`.
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
    /// This one has none of an earlier record.
    first: Offset,
    /// Ascending.
    keys: Vec<KeyEntry>,
}

impl Chunk {
    fn find(
        &self,
        wanted: &[WantedKey],
        range: &Range<Offset>,
        found: &mut dyn FnMut(u32, Offset),
    ) {
        let mut rest = self.keys.as_slice();
        for (hash, number) in wanted {
            let hash = *hash;
            let offset = range.start;
            rest = from(rest, KeyEntry { hash, offset });
            let equal = rest.iter().take_while(|entry| entry.hash == hash);
            for entry in equal.take_while(|entry| entry.offset < range.end) {
                found(*number, entry.offset);
            }
        }
    }
}

/// The entries from this one on. Keys that are wanted are near to each other when they are many: looks near the begin
/// first.
fn from(entries: &[KeyEntry], wanted: KeyEntry) -> &[KeyEntry] {
    let mut end = 1;
    while end < entries.len() && entries[end - 1] < wanted {
        end *= 2;
    }
    let (begin, end) = (end / 2, end.min(entries.len()));
    let among = &entries[begin..end];
    &entries[begin + among.partition_point(|entry| *entry < wanted)..]
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

    /// Notes the keys of records, which may come in any order.
    pub fn add(&mut self, entries: &[KeyEntry]) {
        for entry in entries {
            if self.newest.len() >= CHUNK_KEYS {
                self.begin_chunk();
            }
            self.newest.insert(*entry);
        }
    }

    fn begin_chunk(&mut self) {
        let keys: Vec<KeyEntry> = std::mem::take(&mut self.newest).into_iter().collect();
        let offsets = || keys.iter().map(|entry| entry.offset);
        let start = self.newest_start;
        let first = offsets().min().unwrap_or(start);
        let end = offsets().max().map_or(start, |last| last.plus(1));
        self.newest_start = start.max(end);
        self.full.push_back(Chunk { start, first, keys });
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

    /// Gives the offsets in `range` of records that may have the wanted keys, which are ascending, with the numbers of
    /// those.
    pub fn find(
        &self,
        wanted: &[WantedKey],
        range: &Range<Offset>,
        found: &mut dyn FnMut(u32, Offset),
    ) {
        if range.is_empty() {
            return;
        }
        for (at, chunk) in self.full.iter().enumerate() {
            let end = self.start_after(at);
            if chunk.first < range.end && range.start < end {
                chunk.find(wanted, range, found);
            }
        }
        for (hash, number) in wanted {
            let at = |offset| KeyEntry {
                hash: *hash,
                offset,
            };
            for entry in self.newest.range(at(range.start)..at(range.end)) {
                found(*number, entry.offset);
            }
        }
    }

    /// Where what is behind a full chunk begins.
    fn start_after(&self, at: usize) -> Offset {
        let next = self.full.get(at + 1);
        next.map_or(self.newest_start, |next| next.start)
    }

    /// Drops the text of keys whose records can be read by now.
    pub fn settle(&mut self, high_watermark: Offset) {
        self.queued.retain(|_, offset| *offset >= high_watermark);
    }

    /// Gives up keys of records below `offset`, which are removed or can be looked up elsewhere: those of whole chunks,
    /// for the caller to drop when it has let go of the lock.
    pub fn take_below(&mut self, offset: Offset) -> Vec<Chunk> {
        let mut taken = Vec::new();
        while !self.full.is_empty() && self.start_after(0) <= offset {
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
        let wanted = [(entry(offset).hash, 7)];
        let mut found = Vec::new();
        let all = Offset(0)..Offset(u64::MAX);
        keys.find(&wanted, &all, &mut |number, offset| {
            found.push((number, offset))
        });
        found == [(7, Offset(offset))]
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
            let mut found = Vec::new();
            keys.find(&[(5, 1)], &range, &mut |_, offset| found.push(offset.0));
            found
        };
        assert_eq!(found(0..9), [1, 4, 6, 8]);
        assert_eq!(found(4..8), [4, 6]);
        assert_eq!(keys.queued("topic\0key"), Some(Offset(6)));
        keys.settle(Offset(7));
        assert_eq!(keys.queued("topic\0key"), None);
    }

    /// As where several threads append, or where a follower takes what it had cut.
    #[test]
    fn keys_that_come_out_of_order_are_given_up_with_their_offsets_and_no_others() {
        let chunk = CHUNK_KEYS as u64;
        let mut keys = IdempotencyKeys::new(Offset(0), &[]);
        let all = 3 * chunk;
        // Neighbours change places, also at the ends of chunks; and one comes much later than its neighbours.
        let late = chunk / 2;
        for offset in (0..all).map(|offset| offset ^ 1).filter(|at| *at != late) {
            keys.add(&[entry(offset)]);
        }
        keys.add(&[entry(late)]);
        for below in [late, chunk - 1, chunk, chunk + 1, 2 * chunk, all] {
            for chunk in keys.take_below(Offset(below)) {
                assert!(chunk.keys.iter().all(|key| key.offset < Offset(below)));
            }
            let start = keys.start().0.max(below);
            assert!((start..all).all(|offset| knows(&keys, offset)), "{below}");
        }
        assert!(knows(&keys, late));
    }

    /// Many at a time, as an append of many records asks.
    #[test]
    fn keys_are_found_together_as_they_are_one_by_one() {
        let chunk = CHUNK_KEYS as u64;
        let mut twice = entries(0..2 * chunk + 100);
        // Hashes that two records have.
        twice.extend((0..100).map(|number| KeyEntry {
            offset: Offset(2 * chunk + 100 + number),
            ..entry(number * 999)
        }));
        let keys = IdempotencyKeys::new(Offset(0), &twice);
        let check = |step: usize, range: Range<Offset>| {
            // Half of them are nowhere.
            let numbers = (0..2 * (2 * chunk + 100)).step_by(step);
            let mut wanted: Vec<WantedKey> =
                numbers.map(|at| (entry(at).hash, at as u32)).collect();
            wanted.sort_unstable();
            let mut found = BTreeSet::new();
            keys.find(&wanted, &range, &mut |number, offset| {
                assert!(found.insert((number, offset)), "it is found once");
            });
            let is_wanted = |entry: &KeyEntry| {
                let at = wanted.binary_search_by_key(&entry.hash, |(hash, _)| *hash);
                let (_, number) = wanted[at.ok()?];
                range
                    .contains(&entry.offset)
                    .then_some((number, entry.offset))
            };
            let expected: BTreeSet<_> = twice.iter().filter_map(is_wanted).collect();
            assert_eq!(found, expected, "every {step} in {range:?}");
        };
        for step in [1, 7, 64, 4_001] {
            check(step, Offset(0)..Offset(u64::MAX));
            check(step, Offset(5)..Offset(chunk));
            check(step, Offset(chunk)..Offset(chunk + 9));
            check(step, Offset(chunk + 9)..Offset(3 * chunk));
            check(step, Offset(8)..Offset(8));
        }
    }
}
