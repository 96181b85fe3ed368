//! Idempotency keys of a partition: which stored or queued record may have a key.
//!
//! Only hashes are kept for records on disk; the caller compares a candidate's own key.

use std::collections::BTreeSet;

use crate::batch::by_name::ByName;
use crate::ids::Offset;
use crate::index::model::{KeyEntry, key_hash};

#[derive(Debug, Default)]
pub(crate) struct IdempotencyKeys {
    /// Hash, then offset: the entries of a hash are neighbours, oldest first.
    places: BTreeSet<(u64, Offset)>,
    /// Keys with their topics, of records that may not be below the high watermark yet, so that they need
    /// not be read to be compared.
    queued: ByName<Offset>,
}

impl IdempotencyKeys {
    /// Of the records on disk.
    pub fn new(entries: &[KeyEntry]) -> Self {
        let place = |entry: &KeyEntry| (entry.hash, entry.offset);
        Self {
            places: entries.iter().map(place).collect(),
            queued: ByName::default(),
        }
    }

    /// Notes the key of a record that just got its offset; `name` is the key with its topic.
    pub fn add_queued(&mut self, key: &str, name: &str, offset: Offset) {
        self.places.insert((key_hash(key), offset));
        // The first record with a key counts.
        self.queued.entry(name.into()).or_insert(offset);
    }

    /// Notes the keys of records that another node has appended.
    pub fn add(&mut self, entries: &[KeyEntry]) {
        let places = entries.iter().map(|entry| (entry.hash, entry.offset));
        self.places.extend(places);
    }

    /// Drops the keys of records that were cut off.
    pub fn forget_from(&mut self, offset: Offset) {
        self.places.retain(|(_, at)| *at < offset);
        self.queued.retain(|_, at| *at < offset);
    }

    /// Offset of a queued record with this key and topic.
    pub fn queued(&self, name: &str) -> Option<Offset> {
        self.queued.get(name).copied()
    }

    /// Offsets of the records below `high_watermark` that may have the key, oldest first.
    pub fn candidates(&self, key: &str, high_watermark: Offset) -> Vec<Offset> {
        let hash = key_hash(key);
        let range = (hash, Offset(0))..(hash, high_watermark);
        let places = self.places.range(range);
        places.map(|(_, offset)| *offset).collect()
    }

    /// Drops the text of keys whose records can be read by now.
    pub fn settle(&mut self, high_watermark: Offset) {
        self.queued.retain(|_, offset| *offset >= high_watermark);
    }

    /// Drops the keys of removed records.
    pub fn forget_below(&mut self, log_start: Offset) {
        self.places.retain(|(_, offset)| *offset >= log_start);
    }
}
