//! The segments of a partition and their indexes: in memory, in files, or made again when a file is not whole.
//!
//! Also keeps the files that are open for readers, because what is cached of a segment goes with it.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::file::IndexFile;
use crate::index::model::{BlockLookup, Index, IndexDamaged, TopicExtent};
use crate::index::rebuild::{index_of_file, open_index, save_index};
use crate::index::segment::{IndexState, Segment};
use crate::index::segment_info::SegmentInfo;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode};

/// Indexes of sealed segments that are kept for lookups; each keeps a descriptor.
const CACHED_INDEXES: usize = 16;
const CACHED_INDEX_BYTES: u64 = 2 << 20;
/// Segment files that stay open for readers.
const CACHED_FILES: usize = 8;

/// Counts an index as a full share of the memory at least, so that the descriptors are bounded too.
#[derive(Clone)]
pub(super) struct ByMemory;

impl Weighter<Offset, Arc<IndexFile>> for ByMemory {
    fn weight(&self, _: &Offset, index: &Arc<IndexFile>) -> u64 {
        let least = CACHED_INDEX_BYTES / CACHED_INDEXES as u64;
        (index.memory() as u64).clamp(least, CACHED_INDEX_BYTES / 2)
    }
}

pub(crate) struct SegmentStore {
    pub(super) context: Arc<Context>,
    /// Ascending in base offset; the last is the active one.
    segments: RwLock<Vec<Arc<Segment>>>,
    /// By base offset and generation.
    files: Cache<(Offset, u32), Arc<dyn File>>,
    pub(super) indexes: Cache<Offset, Arc<IndexFile>, ByMemory>,
    /// Held while index files are written: two writers of one unfinished file would rename each other's half.
    saving: Mutex<()>,
}

impl SegmentStore {
    pub fn new(context: &Arc<Context>, segments: Vec<Arc<Segment>>) -> Self {
        Self {
            context: Arc::clone(context),
            segments: RwLock::new(segments),
            files: Cache::new(CACHED_FILES),
            indexes: Cache::with_weighter(CACHED_INDEXES, CACHED_INDEX_BYTES, ByMemory),
            saving: Mutex::default(),
        }
    }

    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    pub fn sealed(&self) -> Vec<Arc<Segment>> {
        let segments = self.segments.read();
        let sealed = segments.iter().filter(|s| s.sealed.get().is_some());
        sealed.cloned().collect()
    }

    pub fn described(&self, from: Offset, max: usize) -> Vec<SegmentInfo> {
        let segments: Vec<_> = {
            let segments = self.segments.read();
            let begin = segments.partition_point(|segment| segment.base < from);
            segments[begin..].iter().take(max).cloned().collect()
        };
        segments.iter().map(|one| SegmentInfo::of(one)).collect()
    }

    /// The sealed segments with records in `range`.
    pub fn within(&self, range: &Range<Offset>) -> Vec<Arc<Segment>> {
        if range.is_empty() {
            return Vec::new();
        }
        let is_within = |segment: &&Arc<Segment>| {
            let sealed = segment.sealed.get();
            segment.base < range.end && sealed.is_some_and(|head| head.next > range.start)
        };
        let segments = self.segments.read();
        segments.iter().filter(is_within).cloned().collect()
    }

    pub fn active(&self) -> Arc<Segment> {
        let segments = self.segments.read();
        let active = segments.last().expect("a partition has an active segment");
        Arc::clone(active)
    }

    pub fn first(&self) -> Arc<Segment> {
        Arc::clone(&self.segments.read()[0])
    }

    /// The segment in which `offset` lies or would lie, and the base offset of the one after it.
    pub fn find(&self, offset: Offset) -> Option<(Arc<Segment>, Option<Offset>)> {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= offset);
        let segment = Arc::clone(&segments[after.checked_sub(1)?]);
        Some((segment, segments.get(after).map(|next| next.base)))
    }

    pub fn push(&self, segment: Arc<Segment>) {
        self.segments.write().push(segment);
    }

    /// Puts the active segment after a cut in the place of the one before.
    pub fn replace_active(&self, segment: Arc<Segment>) {
        let mut segments = self.segments.write();
        let active = segments.last_mut();
        let old = std::mem::replace(active.expect("a partition has an active segment"), segment);
        drop(segments);
        self.files.remove(&old.file_key());
    }

    /// The first segment, when there is another one after it, and the base offset of that one.
    pub fn oldest(&self) -> Option<(Arc<Segment>, Offset)> {
        match self.segments.read().as_slice() {
            [first, second, ..] => Some((Arc::clone(first), second.base)),
            _ => None,
        }
    }

    /// Takes the first segment out of the list.
    pub fn remove_first(&self) -> Arc<Segment> {
        let segment = self.segments.write().remove(0);
        self.files.remove(&segment.file_key());
        self.indexes.remove(&segment.base);
        segment
    }

    /// Bytes of all segments up to their last batch.
    pub fn size_bytes(&self) -> u64 {
        let segments = self.segments.read();
        segments.iter().map(|segment| segment.data_end()).sum()
    }

    /// Bytes of all their files.
    pub fn file_bytes(&self) -> u64 {
        let bytes = |segment: &Arc<Segment>| segment.file_bytes(&self.context);
        self.all().iter().map(bytes).sum()
    }

    pub fn open(&self, segment: &Segment) -> Result<Arc<dyn File>, ReadError> {
        if let Some(file) = self.files.get(&segment.file_key()) {
            return Ok(file);
        }
        let file = self.context.open(&segment.path, OpenMode::Read);
        let file = file.map_err(|error| io_error(&segment.path, error))?;
        self.files.insert(segment.file_key(), Arc::clone(&file));
        Ok(file)
    }

    #[cfg(test)]
    pub fn has_open(&self, base: Offset) -> bool {
        self.files.contains_key(&(base, 0))
    }

    /// Asks the index of a segment: in the making, in memory, in its file, or made again when that is not whole.
    pub fn with_index<T>(
        &self,
        segment: &Segment,
        f: &dyn Fn(&dyn BlockLookup) -> Result<T, IndexDamaged>,
    ) -> Result<T, ReadError> {
        if segment.sealed.get().is_none()
            && let Some(Ok(answer)) = segment.with_builder(|builder| f(builder))
        {
            return Ok(answer);
        }
        let answer = match segment.index_in_memory() {
            Some(index) => Some(f(&*index)),
            None => self.saved_index(segment).map(|index| f(&*index)),
        };
        if let Some(Ok(answer)) = answer {
            return Ok(answer);
        }
        let index = self.rebuild(segment)?;
        // An index in memory has no pieces that could be damaged.
        f(&*index).map_err(|error| {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            io_error(&segment.path, error)
        })
    }

    fn saved_index(&self, segment: &Segment) -> Option<Arc<IndexFile>> {
        if let Some(index) = self.indexes.get(&segment.base) {
            return Some(index);
        }
        let index = Arc::new(self.open_saved(segment)?.load().ok()?);
        self.indexes.insert(segment.base, Arc::clone(&index));
        Some(index)
    }

    /// The index file of a sealed segment, when it describes the segment as this start found it.
    fn open_saved(&self, segment: &Segment) -> Option<IndexFile> {
        let summary = segment.sealed.get()?;
        open_index(&self.context, segment.base, summary.next).filter(|file| {
            let index = &file.head.index;
            index.next == summary.next && index.data_end == summary.data_end
        })
    }

    /// Makes the index of a sealed segment again; the maintenance thread saves it.
    pub(super) fn rebuild(&self, segment: &Segment) -> Result<Arc<Index>, ReadError> {
        let index = self.build(segment);
        let index = index.map_err(|error| io_error(&segment.path, error))?;
        let index = Arc::new(index);
        self.indexes.remove(&segment.base);
        // It may hash the keys otherwise.
        segment.set_key_filter(None);
        *segment.index.lock() = IndexState::Memory(Arc::clone(&index));
        Ok(index)
    }

    fn build(&self, segment: &Segment) -> io::Result<Index> {
        let summary = segment.sealed.get().expect("it is not the active segment");
        let file = self.context.open(&segment.path, OpenMode::Read)?;
        let (identity, newest) = (self.context.identity, self.context.epoch());
        index_of_file(&*file, identity, segment.base, summary.next, newest)
    }

    /// Gives the topics of a sealed segment, in no order; some may come twice.
    pub fn for_each_topic(
        &self,
        segment: &Segment,
        f: &mut dyn FnMut(&str, TopicExtent),
    ) -> Result<(), ReadError> {
        let index = match segment.index_in_memory() {
            Some(index) => index,
            None => {
                let read = self
                    .open_saved(segment)
                    .map(|file| file.for_each_topic(&mut |topic, extent, _| f(topic, extent)));
                match read {
                    Some(Ok(())) => return Ok(()),
                    // The topics given so far come again below, which changes nothing.
                    Some(Err(_)) | None => self.rebuild(segment)?,
                }
            }
        };
        for topic in &index.topics {
            f(&topic.topic, topic.extent.clone());
        }
        Ok(())
    }

    /// Whether a topic of a sealed segment has a retained record, by the head of its index.
    pub fn may_retain(&self, segment: &Segment) -> bool {
        match segment.index_in_memory() {
            Some(index) => index
                .topics
                .iter()
                .any(|topic| topic.extent.retained.is_some()),
            None => self
                .open_saved(segment)
                .is_none_or(|file| file.head.retained > 0),
        }
    }

    /// While the guard lives nobody else writes files of indexes or topics.
    pub fn lock_saving(&self) -> MutexGuard<'_, ()> {
        self.saving.lock()
    }

    /// Writes the indexes that are in memory alone.
    pub fn save_indexes(&self) {
        let _one_at_a_time = self.lock_saving();
        for segment in self.all() {
            let index = match &*segment.index.lock() {
                IndexState::Memory(index) => Arc::clone(index),
                _ => continue,
            };
            if let Err(error) = save_index(&self.context, &index) {
                tracing::warn!(partition = %self.context.name, %error, "an index could not be saved yet");
                return;
            }
            *segment.index.lock() = IndexState::Saved;
            segment.set_file_bytes(0);
        }
    }

    /// Writes the index of a sealed segment anew, now with the hole in it, so that the next start reports it too. A
    /// segment that cannot be read in places keeps its index: the disk may give the bytes another time.
    pub fn save_with_damage(&self, segment: &Segment) {
        if segment.sealed.get().is_none() || !segment.is_saved() {
            return;
        }
        let _one_at_a_time = self.lock_saving();
        let saved = self
            .build(segment)
            .and_then(|index| save_index(&self.context, &index));
        if let Err(error) = saved {
            tracing::warn!(partition = %self.context.name, %error, "an index without the damaged batch could not be saved");
        }
        // The cached file may have pieces that the new one does not have, which may also hash the keys otherwise.
        self.indexes.remove(&segment.base);
        segment.set_key_filter(None);
    }
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io {
        path: path.to_owned(),
        source,
    }
}
