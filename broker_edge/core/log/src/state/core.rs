//! The state of one open partition, and who may touch which part of it.
//!
//! Appends are `append.rs`, writing is `writer.rs` and `space.rs`, reading is `read.rs` and `lookup.rs`, removal is
//! `retention.rs`. Locks are taken in the order of the fields below and none is held while another thread is waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::ids::{Offset, PartitionId};
use crate::index::catalog::TopicCatalog;
use crate::index::saved::SavedIndex;
use crate::partition::{DeleteHook, Gap, Holders, PartitionState, Watcher};
use crate::read::batch_headers::Heads;
use crate::read::batch_positions::BatchPositions;
use crate::read::tail::Tail;
use crate::recovery::quarantine::QuarantineBytes;
use crate::segment::header::Segment;
use crate::state::context::Context;
use crate::vfs::files::File;
use crate::write::idempotency::IdempotencyKeys;
use crate::write::preallocate::SpareSegment;
use crate::write::queue::Queue;
use crate::write::writer::Active;

const RUNNING: u8 = 0;
const FULL: u8 = 1;
const STOPPED: u8 = 2;

/// Of the indexes of sealed segments, what lookups need is kept up to these bounds; each keeps a descriptor.
const CACHED_INDEXES: usize = 16;
const CACHED_INDEX_BYTES: usize = 2 << 20;
/// Segment files that stay open for readers.
const CACHED_FILES: usize = 8;
pub(crate) struct Core {
    pub context: Context,
    /// Covers giving an offset together with noting the key, so that two callers never both append a key.
    pub keys: Mutex<IdempotencyKeys>,
    pub queue: Mutex<Queue>,
    pub queue_changed: Condvar,
    /// Locked by whoever set `Queue::busy`, and by the maintenance thread to mark idleness.
    pub active: Mutex<Active>,
    /// Ascending in base offset; the last is the active one.
    pub segments: RwLock<Vec<Arc<Segment>>>,
    pub spare: Mutex<Option<SpareSegment>>,
    /// Numbers the names of spares: one that the writer took keeps its name until the writer renames it, so the next
    /// must not get the same, or its file would be replaced under the writer.
    pub spares_made: AtomicU64,
    /// Held while index files are written: two writers of one unfinished file would rename each other's half.
    pub saving: Mutex<()>,
    /// Held while the topics of the sealed segments are read from disk.
    pub topics_reading: Mutex<()>,
    /// Offsets between which sealed segments hold a topic.
    pub topic_catalog: Mutex<TopicCatalog>,
    /// Open segment files; the one used last stands last.
    pub files: Mutex<VecDeque<(Offset, Arc<dyn File>)>>,
    /// The one used last stands last.
    pub indexes: Mutex<VecDeque<(Offset, Arc<SavedIndex>)>>,
    pub places: Mutex<BatchPositions>,
    pub heads: Arc<Heads>,
    pub found: Mutex<Vec<Gap>>,
    /// Bytes that are damaged, as far as a start or a reader has met them.
    pub damaged_bytes: AtomicU64,
    /// Length of the files that are kept aside, for the disk budget; people remove them.
    pub quarantine_bytes: AtomicU64,
    /// Held from the decision to remove a segment until it is gone: two that decide at once would remove two for one excess.
    pub removing: Mutex<()>,
    /// Backups that are being taken: nothing is removed meanwhile. Raised under `removing`.
    pub backups: AtomicUsize,
    pub tail: Arc<Tail>,
    /// Called without the lock: a watcher may add another, and the one that drops the last handle of the log shuts it down.
    pub watchers: RwLock<Arc<Vec<Watcher>>>,
    pub hooks: RwLock<Vec<DeleteHook>>,
    pub holders: RwLock<Option<Arc<dyn Holders>>>,
    /// Everything below is synced. Moved only after the sync of those bytes returned, and after their batches are in
    /// the tail and noted for the index, so that whoever sees it can read up to it.
    high_watermark: AtomicU64,
    /// Everything below is written; equals the high watermark unless `SyncMode::Interval`.
    written: AtomicU64,
    log_start: AtomicU64,
    state: AtomicU8,
    /// The disk budget has no room for this class: appends are refused although the partition could take them.
    refusing: AtomicBool,
    stop_reason: Mutex<String>,
}

/// What recovery hands over.
pub(crate) struct Parts {
    pub active: Active,
    pub segments: Vec<Arc<Segment>>,
    pub keys: IdempotencyKeys,
    pub topics: TopicCatalog,
    pub aside: QuarantineBytes,
}

impl Core {
    pub fn new(context: Context, parts: Parts, tail: Arc<Tail>, heads: Arc<Heads>) -> Self {
        let next = parts.active.next;
        let start = parts.segments.first().map_or(next, |segment| segment.base);
        Self {
            context,
            keys: Mutex::new(parts.keys),
            queue: Mutex::new(Queue::starting_at(next)),
            queue_changed: Condvar::new(),
            active: Mutex::new(parts.active),
            segments: RwLock::new(parts.segments),
            spare: Mutex::new(None),
            spares_made: AtomicU64::new(0),
            saving: Mutex::default(),
            files: Mutex::default(),
            topics_reading: Mutex::default(),
            topic_catalog: Mutex::new(parts.topics),
            indexes: Mutex::default(),
            places: Mutex::default(),
            heads,
            found: Mutex::default(),
            damaged_bytes: AtomicU64::new(parts.aside.damaged),
            quarantine_bytes: AtomicU64::new(parts.aside.all),
            removing: Mutex::default(),
            backups: AtomicUsize::new(0),
            tail,
            watchers: RwLock::default(),
            hooks: RwLock::default(),
            holders: RwLock::default(),
            high_watermark: AtomicU64::new(next.0),
            written: AtomicU64::new(next.0),
            log_start: AtomicU64::new(start.0),
            state: AtomicU8::new(RUNNING),
            refusing: AtomicBool::new(false),
            stop_reason: Mutex::default(),
        }
    }

    pub fn id(&self) -> PartitionId {
        self.context.identity.partition
    }

    pub fn high_watermark(&self) -> Offset {
        Offset(self.high_watermark.load(Ordering::Acquire))
    }

    pub fn written(&self) -> Offset {
        Offset(self.written.load(Ordering::Acquire))
    }

    pub fn log_start(&self) -> Offset {
        Offset(self.log_start.load(Ordering::Acquire))
    }

    pub fn set_log_start(&self, to: Offset) {
        self.log_start.fetch_max(to.0, Ordering::AcqRel);
    }

    pub fn set_written(&self, to: Offset) {
        self.written.store(to.0, Ordering::Release);
    }

    /// Only after the sync of everything below `to` returned.
    pub fn set_high_watermark(&self, to: Offset) {
        debug_assert!(to <= self.written());
        self.high_watermark.store(to.0, Ordering::Release);
    }

    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING && !self.refusing.load(Ordering::Acquire)
    }

    pub fn is_stopped(&self) -> bool {
        self.state.load(Ordering::Acquire) == STOPPED
    }

    pub fn state(&self) -> PartitionState {
        match self.state.load(Ordering::Acquire) {
            RUNNING if self.refusing.load(Ordering::Acquire) => PartitionState::Full,
            RUNNING => PartitionState::Running,
            FULL => PartitionState::Full,
            _ => PartitionState::Stopped(self.stop_reason.lock().clone()),
        }
    }

    /// Moves between running and full; a stopped partition stays stopped.
    pub fn set_full(&self, full: bool) {
        let (from, to) = if full {
            (RUNNING, FULL)
        } else {
            (FULL, RUNNING)
        };
        if self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            if full {
                tracing::warn!(partition = %self.context.name, "no space or no file descriptor left: appends are refused until there is");
            } else {
                tracing::info!(partition = %self.context.name, "space and descriptors are back: appends resume");
            }
            self.tell_watchers();
        }
    }

    /// Whether the disk budget keeps appends out.
    pub fn set_refusing(&self, refusing: bool) {
        if self.refusing.swap(refusing, Ordering::AcqRel) == refusing {
            return;
        }
        if refusing {
            tracing::warn!(partition = %self.context.name, "the disk budget is used up: appends are refused until there is room");
        } else {
            tracing::info!(partition = %self.context.name, "the disk budget has room again: appends resume");
        }
        self.tell_watchers();
    }

    /// Makes the partition read-only until restart and lets go of what was queued: it was never acknowledged.
    pub fn stop(&self, reason: &str) {
        {
            let mut stop_reason = self.stop_reason.lock();
            if stop_reason.is_empty() {
                reason.clone_into(&mut stop_reason);
            }
        }
        self.state.store(STOPPED, Ordering::Release);
        self.queue.lock().drop_all();
        tracing::error!(partition = %self.context.name, reason, "partition is read-only until restart");
        self.tell_watchers();
    }

    pub fn tell_watchers(&self) {
        let watchers = Arc::clone(&self.watchers.read());
        for watcher in watchers.iter() {
            watcher();
        }
    }

    pub fn cached_file(&self, base: Offset) -> Option<Arc<dyn File>> {
        let mut files = self.files.lock();
        let at = files.iter().rposition(|(of, _)| *of == base)?;
        let found = files.remove(at)?;
        let file = Arc::clone(&found.1);
        files.push_back(found);
        Some(file)
    }

    pub fn cache_file(&self, base: Offset, file: &Arc<dyn File>) {
        let mut files = self.files.lock();
        files.retain(|(of, _)| *of != base);
        files.push_back((base, Arc::clone(file)));
        while files.len() > CACHED_FILES {
            files.pop_front();
        }
    }

    /// Lets go of what is kept open or in memory of the files of a segment.
    pub fn forget_files(&self, base: Offset) {
        self.files.lock().retain(|(of, _)| *of != base);
        self.indexes.lock().retain(|(of, _)| *of != base);
    }

    pub fn cached_index(&self, base: Offset) -> Option<Arc<SavedIndex>> {
        let mut indexes = self.indexes.lock();
        let at = indexes.iter().rposition(|(of, _)| *of == base)?;
        let found = indexes.remove(at)?;
        let index = Arc::clone(&found.1);
        indexes.push_back(found);
        Some(index)
    }

    pub fn cache_index(&self, base: Offset, index: &Arc<SavedIndex>) {
        let mut indexes = self.indexes.lock();
        indexes.retain(|(of, _)| *of != base);
        indexes.push_back((base, Arc::clone(index)));
        let mut bytes: usize = indexes.iter().map(|(_, index)| index.memory()).sum();
        while indexes.len() > CACHED_INDEXES || (bytes > CACHED_INDEX_BYTES && indexes.len() > 1) {
            if let Some((_, gone)) = indexes.pop_front() {
                bytes -= gone.memory();
            }
        }
    }
}
