//! Creates segment files: written and synced under an unfinished name, then renamed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::config::SyncMode;
use crate::failpoint;
use crate::ids::{Class, Offset};
use crate::segment::header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode, existing};

/// Zeros are written at most this far ahead of the batches.
pub(crate) const FILL_STEP_BYTES: u64 = 4 << 20;

/// The header of a segment that this start begins.
pub(crate) fn header_bytes(context: &Context, base: Offset, recycled: bool) -> Vec<u8> {
    let header = SegmentHeader {
        identity: context.identity,
        class: context.class,
        recycled,
        base,
        epoch: context.epoch(),
        created_us: context.seams.clock.now_us(),
    };
    header.to_bytes()
}

/// A new file with its header and zeros up to `fill_to`, synced unless this partition syncs nothing.
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

/// Syncs a file that recovery has written and renames it to its final name, over an older file.
pub(crate) fn replace_segment_file(
    context: &Context,
    file: &dyn File,
    unfinished: &Path,
    path: &Path,
) -> io::Result<()> {
    let files = &*context.seams.files;
    file.sync_data()?;
    failpoint!("recovery-synced");
    files.rename(unfinished, path)?;
    failpoint!("recovery-named");
    // An index beside it describes the old file.
    existing(files.remove(&path.with_extension("idx")))?;
    files.sync_dir(&context.dir)
}
