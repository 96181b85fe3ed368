//! Counts what a partition has written, synced and removed since it was opened.
//!
//! `Counted` stands between a partition and the file system, so that no write or sync is missed; only batches are
//! counted by the writer. Nothing here decides anything.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::vfs::files::{File, Files, LockError, LockGuard, OpenMode};

/// Why a segment was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Older than its class keeps records.
    Age,
    /// The partition is larger than its class allows.
    Bytes,
    /// The same, beyond what a holder may keep.
    HardBytes,
    /// The disk budget is used up.
    Disk,
    /// The owner of the partition no longer needs it: compaction of the internal partition.
    Advance,
}

impl Cause {
    pub const ALL: [Self; 5] = [
        Self::Age,
        Self::Bytes,
        Self::HardBytes,
        Self::Disk,
        Self::Advance,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Bytes => "bytes",
            Self::HardBytes => "hard_bytes",
            Self::Disk => "disk",
            Self::Advance => "advance",
        }
    }
}

/// Upper bounds of the buckets in which syncs are counted by duration.
pub const SYNC_BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];

/// Segments and records removed for one cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    pub segments: u64,
    pub records: u64,
    /// Of these, records that a holder still needed.
    pub held_records: u64,
}

/// Totals of one partition since the log was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    pub payload_bytes: u64,
    /// Batches, payloads included.
    pub batch_bytes: u64,
    /// Other bytes of segment files: zeros ahead of batches, headers, batches that a start copied.
    pub fill_bytes: u64,
    pub index_bytes: u64,
    pub checkpoint_bytes: u64,
    /// Bytes that a start kept aside.
    pub quarantine_bytes: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// How long they took: how many took up to each of [`SYNC_BOUNDS_US`], and more than the last.
    pub sync_counts: [u64; SYNC_BOUNDS_US.len() + 1],
    pub sync_ns: u64,
    pub folder_syncs: u64,
    /// In the order of [`Cause::ALL`].
    pub removed: [Removed; 5],
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Segment,
    Index,
    Checkpoint,
    Aside,
}

impl Kind {
    fn of(path: &Path) -> Self {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy())
            .unwrap_or_default();
        if name.starts_with("mark") {
            Self::Checkpoint
        } else if name.contains(".idx") {
            Self::Index
        } else if name.contains(".torn") || name.contains(".damaged") {
            Self::Aside
        } else {
            Self::Segment
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    payload: AtomicU64,
    batch: AtomicU64,
    /// By [`Kind`].
    files: [AtomicU64; 4],
    syncs: AtomicU64,
    sync_counts: [AtomicU64; SYNC_BOUNDS_US.len() + 1],
    sync_ns: AtomicU64,
    folder_syncs: AtomicU64,
    removed: [[AtomicU64; 3]; 5],
}

impl Counters {
    pub fn batch(&self, bytes: usize, payload_bytes: usize) {
        self.batch.fetch_add(bytes as u64, Relaxed);
        self.payload.fetch_add(payload_bytes as u64, Relaxed);
    }

    fn synced(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = SYNC_BOUNDS_US.partition_point(|bound| *bound < us);
        self.sync_counts[bucket].fetch_add(1, Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sync_ns.fetch_add(ns, Relaxed);
    }

    pub fn removed(&self, cause: Cause, records: u64, held_records: u64) {
        let counts = &self.removed[cause as usize];
        for (count, by) in counts.iter().zip([1, records, held_records]) {
            count.fetch_add(by, Relaxed);
        }
    }

    pub fn stats(&self) -> Stats {
        let file = |kind: Kind| self.files[kind as usize].load(Relaxed);
        let batch_bytes = self.batch.load(Relaxed);
        Stats {
            payload_bytes: self.payload.load(Relaxed),
            batch_bytes,
            // A batch that is being written may be counted on one side only.
            fill_bytes: file(Kind::Segment).saturating_sub(batch_bytes),
            index_bytes: file(Kind::Index),
            checkpoint_bytes: file(Kind::Checkpoint),
            quarantine_bytes: file(Kind::Aside),
            syncs: self.syncs.load(Relaxed),
            sync_counts: std::array::from_fn(|bucket| self.sync_counts[bucket].load(Relaxed)),
            sync_ns: self.sync_ns.load(Relaxed),
            folder_syncs: self.folder_syncs.load(Relaxed),
            removed: Cause::ALL.map(|cause| {
                let [segments, records, held_records] = &self.removed[cause as usize];
                Removed {
                    segments: segments.load(Relaxed),
                    records: records.load(Relaxed),
                    held_records: held_records.load(Relaxed),
                }
            }),
        }
    }
}

/// The file system of one partition.
pub(crate) struct Counted {
    pub files: Arc<dyn Files>,
    pub counters: Arc<Counters>,
}

struct CountedFile {
    file: Arc<dyn File>,
    kind: Kind,
    counters: Arc<Counters>,
}

impl Files for Counted {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.files.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.files.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.files.open(path, mode)?;
        if mode == OpenMode::Read {
            return Ok(file);
        }
        Ok(Arc::new(CountedFile {
            file,
            kind: Kind::of(path),
            counters: Arc::clone(&self.counters),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.counters.folder_syncs.fetch_add(1, Relaxed);
        self.files.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        self.files.lock(path)
    }

    fn available_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        self.files.available_bytes(dir)
    }
}

impl File for CountedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn will_read(&self, position: u64, bytes: u64) {
        self.file.will_read(position, bytes);
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.counters.files[self.kind as usize].fetch_add(bytes.len() as u64, Relaxed);
        self.file.write_all_at(bytes, position)
    }

    fn write_padded_at(&self, bytes: &[u8], position: u64, pad: usize) -> io::Result<()> {
        self.counters.files[self.kind as usize].fetch_add(bytes.len() as u64, Relaxed);
        self.file.write_padded_at(bytes, position, pad)
    }

    fn fill_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        self.counters.files[self.kind as usize].fetch_add(to.saturating_sub(from), Relaxed);
        self.file.fill_zeros(from, to)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.counters.syncs.fetch_add(1, Relaxed);
        let began = Instant::now();
        let result = self.file.sync_data();
        self.counters.synced(began.elapsed());
        result
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}
