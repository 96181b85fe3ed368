//! Idempotency keys of a partition: which retained or queued record may carry a key.
//!
//! Only hashes are kept for records on disk; whoever finds a candidate compares the record's own key.

use std::collections::BTreeSet;

use crate::batch::by_name::ByName;
use crate::ids::Offset;
use crate::index::model::{KeyEntry, key_hash};

#[derive(Debug, Default)]
pub(crate) struct IdempotencyKeys {
    /// Hash, then offset: the places of a hash are neighbours, oldest first.
    places: BTreeSet<(u64, Offset)>,
    /// IdempotencyKeys with their topics, of records that may not be below the high watermark yet, so that they need not be read to be compared.
    queued: ByName<Offset>,
}

impl IdempotencyKeys {
    pub fn add_entries(&mut self, places: &[KeyEntry]) {
        self.places
            .extend(places.iter().map(|place| (place.hash, place.offset)));
    }

    /// Notes a key that was just given an offset; `name` is the key with its topic.
    pub fn add_queued(&mut self, key: &str, name: &str, offset: Offset) {
        self.places.insert((key_hash(key), offset));
        // The first record with a key is the one that counts.
        self.queued.entry(name.into()).or_insert(offset);
    }

    /// Offset of a queued record with this key and topic.
    pub fn queued(&self, name: &str) -> Option<Offset> {
        self.queued.get(name).copied()
    }

    /// Offsets of the records below `high_watermark` that may carry the key, oldest first.
    pub fn candidates(&self, key: &str, high_watermark: Offset) -> Vec<Offset> {
        let hash = key_hash(key);
        let range = (hash, Offset(0))..(hash, high_watermark);
        self.places
            .range(range)
            .map(|(_, offset)| *offset)
            .collect()
    }

    /// Forgets the text of keys whose records can be read by now.
    pub fn settle(&mut self, high_watermark: Offset) {
        self.queued.retain(|_, offset| *offset >= high_watermark);
    }

    /// Forgets records that are gone.
    pub fn forget_below(&mut self, log_start: Offset) {
        self.places.retain(|(_, offset)| *offset >= log_start);
    }
}
