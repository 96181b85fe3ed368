//! Which records of sealed segments may have an idempotency key, and which segments have the filter of their keys in
//! memory.
//!
//! The keys themselves stay in the index files. A filter in memory spares reads; one that is not there costs a short
//! read of its file.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::file::IndexFile;
use crate::index::keys::{WantedKeys, filter_memory};
use crate::index::segment::Segment;
use crate::index::store::SegmentStore;

/// Filters that are read at a time, so that nothing else of the upkeep waits long.
const LOADED_BYTES_MAX: usize = 16 << 20;

impl SegmentStore {
    /// Gives the offsets of records in a sealed segment that may have the wanted keys, with the numbers of those. Some
    /// may come twice.
    pub fn find_keys(
        &self,
        segment: &Segment,
        wanted: &WantedKeys<'_>,
        found: &mut dyn FnMut(u32, Offset),
    ) -> Result<(), ReadError> {
        let sealed = segment.sealed.get();
        if sealed.is_none_or(|head| head.key_count == 0) {
            return Ok(());
        }
        if let Some(index) = segment.index_in_memory() {
            wanted.find_in(index.key_hashing, &index.keys, found);
            return Ok(());
        }
        let passed = segment.key_filter().map(|filter| filter.pass(wanted));
        if passed.as_ref().is_some_and(|passed| passed.keys.is_empty()) {
            return Ok(());
        }
        if let Some(file) = self.index_with_keys(segment)
            && file.find_keys(wanted, passed, found).is_ok()
        {
            return Ok(());
        }
        let index = self.rebuild(segment)?;
        wanted.find_in(index.key_hashing, &index.keys, found);
        Ok(())
    }

    /// The index file of a sealed segment, for its keys. It is not kept: a search asks every segment.
    fn index_with_keys(&self, segment: &Segment) -> Option<Arc<IndexFile>> {
        if let Some(index) = self.indexes.peek(&segment.base) {
            return Some(index);
        }
        let sealed = segment.sealed.get()?;
        let file = IndexFile::open(&self.context, segment.base)?;
        // Damage found since the start may have made it shorter.
        let index = &file.head.index;
        let is_within = index.next <= sealed.next && index.data_end <= sealed.data_end;
        is_within.then(|| Arc::new(file))
    }

    /// Reads the filter of a segment into memory. Returns false when its index file is not whole: whoever asks for a
    /// key then makes the index again.
    fn load_key_filter(&self, segment: &Segment) -> bool {
        let filter = self.index_with_keys(segment).map(|file| file.key_filter());
        let Some(Ok(filter)) = filter else {
            return false;
        };
        segment.set_key_filter(Some(filter));
        true
    }

    /// Base offset of the first segment whose index is still to be saved.
    pub fn saved_below(&self) -> Offset {
        let segments = self.all();
        let unsaved = segments.iter().find(|segment| segment.is_unsaved());
        unsaved.map_or(Offset(0), |segment| segment.base)
    }
}

/// Keeps the filters of the newest segments in memory, up to `bytes_max` for all partitions together, and drops the
/// others.
pub(crate) fn keep_key_filters(stores: &[&SegmentStore], bytes_max: usize) {
    let mut segments: Vec<(&SegmentStore, Arc<Segment>)> = Vec::new();
    for store in stores {
        segments.extend(store.sealed().into_iter().map(|segment| (*store, segment)));
    }
    let head = |segment: &Segment| {
        let head = segment.sealed.get();
        head.map_or((i64::MIN, 0), |head| (head.max_time_us, head.key_count))
    };
    segments.retain(|(_, segment)| head(segment).1 > 0);
    segments.sort_by_key(|(_, segment)| Reverse(head(segment).0));
    let mut left = bytes_max;
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for (store, segment) in segments {
        let bytes = filter_memory(head(&segment).1);
        match left.checked_sub(bytes) {
            Some(rest) => {
                left = rest;
                kept.push((store, segment, bytes));
            }
            None => {
                // Those behind it are older: none of them takes its place.
                left = 0;
                dropped.push(segment);
            }
        }
    }
    for segment in dropped {
        segment.set_key_filter(None);
    }
    let mut loaded = 0;
    let is_missing = |segment: &Segment| segment.is_saved() && segment.key_filter().is_none();
    for (store, segment, bytes) in kept {
        if loaded < LOADED_BYTES_MAX && is_missing(&segment) && store.load_key_filter(&segment) {
            loaded += bytes;
        }
    }
}
