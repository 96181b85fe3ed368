//! One segment: its name, its index wherever that is, and what this process knows about its file.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::batch::record_batch::Batch;
use crate::ids::Offset;
use crate::index::builder::IndexBuilder;
use crate::index::keys::KeyFilter;
use crate::index::model::{Index, TopicExtent};
use crate::segment::header::file_name;
use crate::state::context::Context;
use crate::vfs::files::OpenMode;

/// A holder of an `Arc` of it may read its file: the file is not recycled meanwhile.
pub(crate) struct Segment {
    pub base: Offset,
    /// Grows when another file takes its name, as after a cut: what is cached of a file belongs to one of them.
    pub generation: u32,
    pub path: PathBuf,
    /// The head of its index. Set once, when nothing is written to it any more.
    pub sealed: OnceLock<Index>,
    /// The writer and the event loop wait for it: nothing whose cost others choose runs while it is held.
    pub index: Mutex<IndexState>,
    /// Of its idempotency keys; None while it is not in memory.
    key_filter: Mutex<Option<Arc<KeyFilter>>>,
    /// Position after the last batch.
    data_end: AtomicU64,
    /// Length of the file and its index; 0 while nobody has looked.
    file_bytes: AtomicU64,
    /// When this process wrote to it first: microseconds of the steady clock plus one; 0 for not at all.
    first_write: AtomicU64,
    last_write: AtomicU64,
}

/// Where the index of a segment is.
pub(crate) enum IndexState {
    /// The active segment's, in the making.
    Building(Box<IndexBuilder>),
    /// Of a sealed segment, not yet saved.
    Memory(Arc<Index>),
    Saved,
    /// Of a segment that could not be read in places: not saved, so that the next start tries again.
    Provisional(Arc<Index>),
}

impl Segment {
    fn new(
        dir: &Path,
        (base, data_end): (Offset, u64),
        sealed: OnceLock<Index>,
        index: IndexState,
    ) -> Self {
        Self {
            base,
            generation: 0,
            path: dir.join(file_name(base, "seg")),
            sealed,
            data_end: AtomicU64::new(data_end),
            index: Mutex::new(index),
            key_filter: Mutex::default(),
            file_bytes: AtomicU64::new(0),
            first_write: AtomicU64::new(0),
            last_write: AtomicU64::new(0),
        }
    }

    pub fn active(dir: &Path, mut builder: IndexBuilder) -> Self {
        builder.catch_up();
        let at = (builder.head().base, builder.head().data_end);
        let index = IndexState::Building(Box::new(builder));
        Self::new(dir, at, OnceLock::new(), index)
    }

    /// The active segment after a cut: another file under its name, with the same batches up to the high watermark.
    pub fn after_cut(&self, dir: &Path) -> Self {
        let builder = self.with_builder(|builder| builder.clone());
        let builder = builder.expect("only the active segment is cut");
        let copied = |of: &AtomicU64| AtomicU64::new(of.load(Ordering::Relaxed));
        Self {
            generation: self.generation + 1,
            first_write: copied(&self.first_write),
            last_write: copied(&self.last_write),
            ..Self::active(dir, builder)
        }
    }

    pub fn sealed(dir: &Path, head: Index, index: IndexState) -> Self {
        let at = (head.base, head.data_end);
        Self::new(dir, at, OnceLock::from(head), index)
    }

    /// A sealed segment of which nothing can be read at present.
    pub fn unreadable(dir: &Path, base: Offset) -> Self {
        let index = Arc::new(Index::empty(base));
        Self::sealed(dir, index.head(), IndexState::Provisional(index))
    }

    pub fn index_path(&self) -> PathBuf {
        self.path.with_extension("idx")
    }

    pub fn file_key(&self) -> (Offset, u32) {
        (self.base, self.generation)
    }

    /// Notes a write by this process.
    pub fn note_write(&self, steady: Duration) {
        let at = u64::try_from(steady.as_micros()).unwrap_or(u64::MAX - 1) + 1;
        self.last_write.store(at, Ordering::Relaxed);
        let (unset, order) = (0, Ordering::Relaxed);
        let _ = self.first_write.compare_exchange(unset, at, order, order);
    }

    /// When this process wrote to it first and last, by the steady clock.
    pub fn written_between(&self) -> Option<(Duration, Duration)> {
        let at = |of: &AtomicU64| of.load(Ordering::Relaxed).checked_sub(1);
        let (first, last) = (at(&self.first_write)?, at(&self.last_write)?);
        Some((Duration::from_micros(first), Duration::from_micros(last)))
    }

    /// Length of the file and its index, asked of the file system once after each change.
    pub fn file_bytes(&self, context: &Context) -> u64 {
        let known = self.file_bytes.load(Ordering::Relaxed);
        if known > 0 {
            return known;
        }
        let length = |path: &Path| {
            let file = context.open(path, OpenMode::Read);
            file.and_then(|file| file.len()).unwrap_or(0)
        };
        let bytes = length(&self.path) + length(&self.index_path());
        self.set_file_bytes(bytes);
        bytes
    }

    /// Its files have this length now; 0 has it looked up when it is asked for.
    pub fn set_file_bytes(&self, bytes: u64) {
        self.file_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The whole index of a sealed segment, when it is in memory.
    pub fn index_in_memory(&self) -> Option<Arc<Index>> {
        match &*self.index.lock() {
            IndexState::Memory(index) | IndexState::Provisional(index) => Some(Arc::clone(index)),
            IndexState::Building(_) | IndexState::Saved => None,
        }
    }

    pub fn is_saved(&self) -> bool {
        matches!(&*self.index.lock(), IndexState::Saved)
    }

    /// Whether its index is still to be saved.
    pub fn is_unsaved(&self) -> bool {
        let state = self.index.lock();
        matches!(&*state, IndexState::Building(_) | IndexState::Memory(_))
    }

    pub fn key_filter(&self) -> Option<Arc<KeyFilter>> {
        self.key_filter.lock().clone()
    }

    pub fn set_key_filter(&self, filter: Option<KeyFilter>) {
        *self.key_filter.lock() = filter.map(Arc::new);
    }

    /// Notes batches that were written, each with its position. Readers find them when it returns.
    pub fn push_all(&self, batches: impl Iterator<Item = (Batch, u64)>) {
        let mut state = self.index.lock();
        for (batch, position) in batches {
            let end = position + batch.bytes_len() as u64;
            if let IndexState::Building(builder) = &mut *state {
                builder.push(batch, position);
                self.data_end.store(end, Ordering::Release);
            }
        }
    }

    /// Puts an index in the making in the place of the one before.
    pub fn set_builder(&self, builder: IndexBuilder) {
        let mut state = self.index.lock();
        let data_end = builder.head().data_end;
        self.data_end.store(data_end, Ordering::Release);
        *state = IndexState::Building(Box::new(builder));
    }

    /// Seals the active segment: from here on it is read through its index.
    pub fn seal(&self) -> Arc<Index> {
        let mut state = self.index.lock();
        let index = match &mut *state {
            IndexState::Building(builder) => Arc::new(builder.finish()),
            IndexState::Memory(index) | IndexState::Provisional(index) => {
                return Arc::clone(index);
            }
            IndexState::Saved => unreachable!("only the active segment is sealed"),
        };
        // Ignored when it is set already: a segment is sealed once.
        let _ = self.sealed.set(index.head());
        *state = IndexState::Memory(Arc::clone(&index));
        index
    }

    /// Runs `f` on the index in the making, caught up with every batch written; None for a sealed segment.
    pub fn with_builder<T>(&self, f: impl FnOnce(&mut IndexBuilder) -> T) -> Option<T> {
        match &mut *self.index.lock() {
            IndexState::Building(builder) => {
                builder.catch_up();
                Some(f(builder))
            }
            _ => None,
        }
    }

    /// Gives the topics of the index in the making until `f` returns false. `f` runs without the lock. False when the
    /// segment is sealed: then some were not given, and its index has all of them.
    pub fn for_each_topic(&self, f: &mut dyn FnMut(&str, TopicExtent, &[u8]) -> bool) -> bool {
        let mut given = 0;
        loop {
            let Some(topics) = self.with_builder(|builder| builder.copy_topics(given)) else {
                return false;
            };
            given += topics.len();
            let mut each = topics.iter();
            if topics.len() == 0 || !each.all(|(topic, extent, blocks)| f(topic, extent, blocks)) {
                return true;
            }
        }
    }

    /// Runs `f` on the head of the index; of an active segment it is caught up with every batch written.
    pub fn with_head<T>(&self, f: impl FnOnce(&Index) -> T) -> T {
        if let Some(head) = self.sealed.get() {
            return f(head);
        }
        match &mut *self.index.lock() {
            IndexState::Building(builder) => {
                builder.catch_up();
                f(builder.head())
            }
            _ => f(self
                .sealed
                .get()
                .expect("it was set before the index moved")),
        }
    }

    /// Time of the first record; None while no record can be read.
    pub fn first_time_us(&self) -> Option<i64> {
        Some(self.with_head(|head| head.first_time_us)).filter(|time_us| *time_us != i64::MIN)
    }

    /// Position after the last batch. Waits for nobody: the event loop asks.
    pub fn data_end(&self) -> u64 {
        self.data_end.load(Ordering::Acquire)
    }
}
