//! What every part of one partition needs to know: who it is, where its files are, and its settings.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::batch::layout::Identity;
use crate::config::{Seams, SyncMode};
use crate::failpoint;
use crate::ids::{Class, Epoch, Offset};
use crate::index::model::Index;
use crate::retention::age::AgeClock;
use crate::segment::header::{SEGMENT_HEADER_BYTES, Segment, SegmentHeader};
use crate::state::disk_budget::Disk;
use crate::state::stats::Counters;
use crate::vfs::files::{File, OpenMode};

/// Zeros are written at most this far ahead of the batches, and at least so far.
pub(crate) const FILL_STEP_BYTES: u64 = 4 << 20;
pub(crate) const FILL_STEP_BYTES_MIN: u64 = 64 << 10;
/// The internal partition is compacted often, and its spare segment is prepared whole.
pub(crate) const INTERNAL_SEGMENT_BYTES: u64 = 8 << 20;

pub(crate) struct Context {
    pub name: String,
    pub class: Class,
    pub identity: Identity,
    /// Of this start; every batch written now carries it.
    pub epoch: Epoch,
    pub dir: PathBuf,
    pub seams: Seams,
    pub sync: SyncMode,
    pub segment_bytes: u64,
    pub queue_bytes: usize,
    pub retention_bytes: Option<u64>,
    pub retention_age: Option<Duration>,
    pub honours_holds: bool,
    pub removes_at_once: bool,
    pub retention_hard_bytes: Option<u64>,
    pub counters: Arc<Counters>,
    /// Of the whole log.
    pub ages: Arc<AgeClock>,
    pub disk: Arc<Disk>,
}

impl Context {
    pub fn header(&self, base: Offset, recycled: bool) -> SegmentHeader {
        SegmentHeader {
            identity: self.identity,
            class: self.class,
            recycled,
            base,
            epoch: self.epoch,
            created_us: self.seams.clock.now_us(),
        }
    }

    pub fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.seams.files.open(path, mode)
    }

    /// Saves an index beside its segment. It is never authoritative, so it is not synced.
    pub fn save_index(&self, segment: &Segment, index: &Index) -> io::Result<()> {
        let path = segment.index_path();
        let unfinished = path.with_extension("idx.tmp");
        let file = self.open(&unfinished, OpenMode::Create)?;
        file.write_all_at(&index.to_bytes(&self.identity), 0)?;
        failpoint!("index-written");
        self.seams.files.rename(&unfinished, &path)?;
        failpoint!("index-named");
        Ok(())
    }
}

/// A new segment file with its header and zeros up to `fill_to`, synced unless nothing is, under an unfinished name.
pub(crate) fn create_segment_file(
    context: &Context,
    path: &Path,
    header: &[u8],
    fill_to: u64,
) -> io::Result<Arc<dyn File>> {
    let file = context.open(path, OpenMode::Create)?;
    file.write_all_at(header, 0)?;
    if context.sync == SyncMode::Never && context.class != Class::Internal {
        return Ok(file); // Its batches are not synced either: zeros would only be written twice.
    }
    file.fill_zeros(SEGMENT_HEADER_BYTES, fill_to)?;
    file.sync_data()?;
    Ok(file)
}
