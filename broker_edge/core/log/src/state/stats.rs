//! Counts what a partition has written, synced and removed since it was opened.
//!
//! `Counted` stands between a partition and the file system, so that no write or sync is missed; only batches are
//! counted by the writer. Nothing here decides anything.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::vfs::files::{File, Files, LockError, LockGuard, OpenMode, Padded};

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
        let name = path.file_name().unwrap_or_default().to_string_lossy();
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

/// The totals so far. Until they are read, `fill_bytes` counts all bytes of segment files.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Stats>);

impl Counters {
    pub fn batch(&self, bytes: usize, payload_bytes: usize) {
        let mut stats = self.0.lock();
        stats.batch_bytes += bytes as u64;
        stats.payload_bytes += payload_bytes as u64;
    }

    fn written(&self, kind: Kind, bytes: u64) {
        let mut stats = self.0.lock();
        *match kind {
            Kind::Segment => &mut stats.fill_bytes,
            Kind::Index => &mut stats.index_bytes,
            Kind::Checkpoint => &mut stats.checkpoint_bytes,
            Kind::Aside => &mut stats.quarantine_bytes,
        } += bytes;
    }

    fn synced(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = SYNC_BOUNDS_US.partition_point(|bound| *bound < us);
        let mut stats = self.0.lock();
        stats.syncs += 1;
        stats.sync_counts[bucket] += 1;
        stats.sync_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    }

    pub fn removed(&self, cause: Cause, records: u64, held_records: u64) {
        let removed = &mut self.0.lock().removed[cause as usize];
        removed.segments += 1;
        removed.records += records;
        removed.held_records += held_records;
    }

    pub fn stats(&self) -> Stats {
        let mut stats = self.0.lock().clone();
        // A batch that is being written may be counted on one side only.
        stats.fill_bytes = stats.fill_bytes.saturating_sub(stats.batch_bytes);
        stats
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
        self.counters.0.lock().folder_syncs += 1;
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
        self.counters.written(self.kind, bytes.len() as u64);
        self.file.write_all_at(bytes, position)
    }

    fn write_padded_at(&self, padded: &Padded<'_>, position: u64) -> io::Result<()> {
        let bytes: usize = padded.parts.iter().map(|part| part.len()).sum();
        self.counters.written(self.kind, bytes as u64);
        self.file.write_padded_at(padded, position)
    }

    fn fill_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        self.counters.written(self.kind, to.saturating_sub(from));
        self.file.fill_zeros(from, to)
    }

    fn sync_data(&self) -> io::Result<()> {
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
