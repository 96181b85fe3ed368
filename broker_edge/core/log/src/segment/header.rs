//! A segment file: its name, its header, and what this process knows about it.
//!
//! Writing batches into one is `writer.rs`, walking them is `walk.rs`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::batch::layout::{Identity, u32_at, u64_at};
use crate::ids::{Class, Epoch, LogId, Offset, PartitionId, Secret};
use crate::index::builder::IndexBuilder;
use crate::index::model::Index;
use crate::state::context::Context;
use crate::vfs::files::OpenMode;

/// Batches begin here.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;
pub(crate) const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"hwatrseg";
const HEADER_USED: usize = 72;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub identity: Identity,
    pub class: Class,
    /// Stale bytes of an earlier life may follow the batches.
    pub recycled: bool,
    pub base: Offset,
    pub epoch: Epoch,
    pub created_us: i64,
}

/// What the first bytes of a segment file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFound {
    Good(SegmentHeader),
    NewerFormat(u32),
    /// Not a header that can be trusted; the batches carry their own checksums.
    Bad,
}

impl SegmentHeader {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(self.identity.log_id.as_bytes());
        bytes[32..36].copy_from_slice(&self.identity.partition.0.to_le_bytes());
        bytes[36] = self.class as u8;
        bytes[37] = u8::from(self.recycled);
        bytes[40..48].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.created_us.to_le_bytes());
        bytes[64..72].copy_from_slice(self.identity.secret.as_bytes());
        let checksum = crc32c::crc32c(&bytes[16..HEADER_USED]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `bytes` are the beginning of the file, up to where its batches begin.
    pub fn parse(bytes: &[u8]) -> HeaderFound {
        if bytes.len() < HEADER_USED || &bytes[0..8] != MAGIC {
            return HeaderFound::Bad;
        }
        let (format, stored) = (u32_at(bytes, 8), u32_at(bytes, 12));
        let checksum = crc32c::crc32c(&bytes[16..HEADER_USED]);
        // Every later format adds its number to what the checksum covers, so that a flipped bit is no newer format.
        if format > FORMAT && crc32c::crc32c_append(checksum, &bytes[8..12]) == stored {
            return HeaderFound::NewerFormat(format);
        }
        let is_padded = bytes[HEADER_USED..].iter().all(|byte| *byte == 0);
        if format != FORMAT || checksum != stored || !is_padded {
            return HeaderFound::Bad;
        }
        let mut log_id = [0; 16];
        log_id.copy_from_slice(&bytes[16..32]);
        let mut secret = [0; 8];
        secret.copy_from_slice(&bytes[64..72]);
        let Some(class) = Class::from_number(bytes[36]) else {
            return HeaderFound::Bad;
        };
        HeaderFound::Good(Self {
            identity: Identity {
                log_id: LogId::from_bytes(log_id),
                partition: PartitionId(u32_at(bytes, 32)),
                secret: Secret::from_bytes(secret),
            },
            class,
            recycled: bytes[37] != 0,
            base: Offset(u64_at(bytes, 40)),
            epoch: Epoch(u64_at(bytes, 48)),
            created_us: u64_at(bytes, 56) as i64,
        })
    }
}

/// `<base offset>.<suffix>`, so that names sort like offsets.
pub(crate) fn file_name(base: Offset, suffix: &str) -> String {
    format!("{:020}.{suffix}", base.0)
}

/// No log has given so many offsets: a larger number in a name is not one of ours, and would leave none to give.
const BASE_MAX: u64 = 1 << 60;

/// The base offset in the name of a segment file.
pub(crate) fn base_of(name: &str) -> Option<Offset> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
        .filter(|base| *base <= BASE_MAX)
        .map(Offset)
}

/// Offsets of a sealed segment that can not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    pub first: Offset,
    pub next: Offset,
    /// Position of the batch with base offset `next`.
    pub resume: u64,
}

/// What is kept in memory of a sealed segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub next: Offset,
    /// Position after the last batch.
    pub data_end: u64,
    pub first_time_us: i64,
    pub max_time_us: i64,
    /// First offset of each epoch, ascending.
    pub epochs: Vec<(Offset, Epoch)>,
    pub holes: Vec<Hole>,
}

/// One segment. Who holds an `Arc` of it may read its file: it is not recycled meanwhile.
pub(crate) struct Segment {
    pub base: Offset,
    pub path: PathBuf,
    /// Set once, when nothing is written to it any more.
    pub sealed: OnceLock<Summary>,
    pub index: Mutex<IndexState>,
    /// Length of the file and its index; 0 while nobody has looked.
    file_bytes: AtomicU64,
    writes: Writes,
}

/// When this process wrote to a segment: microseconds of the steady clock plus one; 0 for not at all.
#[derive(Default)]
struct Writes {
    first: AtomicU64,
    last: AtomicU64,
}

/// Where the index of a segment is.
pub(crate) enum IndexState {
    /// The active segment's, in the making.
    IndexBuilder(Box<IndexBuilder>),
    /// Of a sealed segment, not yet saved.
    Memory(Arc<Index>),
    Saved,
    /// Of a segment that could not be read in places: not saved, so that the next start tries again.
    Provisional(Arc<Index>),
}

impl Segment {
    pub fn growing(dir: &Path, base: Offset, growing: IndexBuilder) -> Self {
        Self {
            base,
            path: dir.join(file_name(base, "seg")),
            sealed: OnceLock::new(),
            index: Mutex::new(IndexState::IndexBuilder(Box::new(growing))),
            file_bytes: AtomicU64::new(0),
            writes: Writes::default(),
        }
    }

    pub fn sealed(dir: &Path, base: Offset, summary: Summary, index: IndexState) -> Self {
        Self {
            base,
            path: dir.join(file_name(base, "seg")),
            sealed: OnceLock::from(summary),
            index: Mutex::new(index),
            file_bytes: AtomicU64::new(0),
            writes: Writes::default(),
        }
    }

    /// A sealed segment of which nothing can be read at present.
    pub fn unread(dir: &Path, base: Offset) -> Self {
        let index = IndexBuilder::new(base).finish();
        let summary = index.summary();
        Self::sealed(dir, base, summary, IndexState::Provisional(Arc::new(index)))
    }

    pub fn index_path(&self) -> PathBuf {
        self.path.with_extension("idx")
    }

    /// Notes a write by this process.
    pub fn note_write(&self, steady: Duration) {
        let at = u64::try_from(steady.as_micros()).unwrap_or(u64::MAX - 1) + 1;
        self.writes.last.store(at, Ordering::Relaxed);
        let _ = self
            .writes
            .first
            .compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// When this process wrote to it first and last, by the steady clock.
    pub fn written_between(&self) -> Option<(Duration, Duration)> {
        let at = |of: &AtomicU64| of.load(Ordering::Relaxed).checked_sub(1);
        let (first, last) = (at(&self.writes.first)?, at(&self.writes.last)?);
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
        self.file_bytes.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// Its files have another length now.
    pub fn set_file_bytes(&self, bytes: u64) {
        self.file_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Its files have another length, to be looked up when it is asked for.
    pub fn forget_file_bytes(&self) {
        self.set_file_bytes(0);
    }

    /// Ends the growth of the active segment: from here on it is read through its index.
    pub fn seal(&self) -> Arc<Index> {
        let mut place = self.index.lock();
        let index = match &mut *place {
            IndexState::IndexBuilder(growing) => Arc::new(growing.finish()),
            IndexState::Memory(index) | IndexState::Provisional(index) => {
                return Arc::clone(index);
            }
            IndexState::Saved => unreachable!("only the active segment is sealed"),
        };
        // Ignored when it is set already: a segment is sealed once.
        let _ = self.sealed.set(index.summary());
        *place = IndexState::Memory(Arc::clone(&index));
        index
    }

    /// Runs `f` on the index in the making, caught up with every batch written; None for a sealed segment.
    pub fn with_builder<T>(&self, f: impl FnOnce(&mut IndexBuilder) -> T) -> Option<T> {
        match &mut *self.index.lock() {
            IndexState::IndexBuilder(growing) => {
                growing.catch_up();
                Some(f(growing))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_back_and_a_flipped_bit_is_noticed() {
        let header = SegmentHeader {
            identity: Identity {
                log_id: LogId::from_bytes([9; 16]),
                partition: PartitionId(3),
                secret: Secret::from_bytes([6; 8]),
            },
            class: Class::Artifacts,
            recycled: true,
            base: Offset(77),
            epoch: Epoch(5),
            created_us: -4,
        };
        let bytes = header.to_bytes();
        assert_eq!(SegmentHeader::parse(&bytes), HeaderFound::Good(header));
        for at in 0..HEADER_USED {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert_eq!(
                SegmentHeader::parse(&flipped),
                HeaderFound::Bad,
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_newer_format_is_told_from_a_flipped_bit() {
        let header = SegmentHeader {
            identity: Identity {
                log_id: LogId::from_bytes([9; 16]),
                partition: PartitionId(3),
                secret: Secret::from_bytes([6; 8]),
            },
            class: Class::Telemetry,
            recycled: false,
            base: Offset(0),
            epoch: Epoch(1),
            created_us: 0,
        };
        let mut bytes = header.to_bytes();
        bytes[8] = 7;
        assert_eq!(SegmentHeader::parse(&bytes), HeaderFound::Bad);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[16..72]), &bytes[8..12]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(SegmentHeader::parse(&bytes), HeaderFound::NewerFormat(7));
    }

    #[test]
    fn only_segment_names_have_a_base() {
        assert_eq!(base_of(&file_name(Offset(12), "seg")), Some(Offset(12)));
        for name in [
            "12.seg",
            "00000000000000000012.idx",
            "0000000000000000001x.seg",
            "18446744073709551615.seg",
            "99999999999999999999.seg",
            "mark",
        ] {
            assert_eq!(base_of(name), None, "{name}");
        }
    }
}
