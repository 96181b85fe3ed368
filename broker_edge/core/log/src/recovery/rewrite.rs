//! Makes the active segment of a recovered partition: the old file, a copy of its valid batches, or a new file.

use std::io;
use std::sync::Arc;

use crate::failpoint;
use crate::ids::Offset;
use crate::index::builder::IndexBuilder;
use crate::index::segment::Segment;
use crate::recovery::look::ValidRange;
use crate::segment::create::{
    FILL_STEP_BYTES, create_segment_file, header_bytes, replace_segment_file,
};
use crate::segment::header::{SEGMENT_HEADER_BYTES, file_name};
use crate::segment::scan::SCAN_CHUNK_BYTES;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode, is_full};

/// The segment that is written next, with its file.
pub(crate) struct ActiveFile {
    pub file: Arc<dyn File>,
    pub segment: Arc<Segment>,
    /// Where the next batch goes.
    pub position: u64,
    /// Bytes up to here need no new space.
    pub filled: u64,
    /// Base offset of the next batch.
    pub next: Offset,
}

/// The first segment of a new partition, in its folder.
pub(crate) fn create_first(context: &Context) -> io::Result<ActiveFile> {
    let files = &*context.seams.files;
    let base = Offset(0);
    let path = context.dir.join(file_name(base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let filled = FILL_STEP_BYTES.min(context.segment_bytes);
    let header = header_bytes(context, base, false);
    let file = create_segment_file(context, &unfinished, &header, filled)?;
    files.rename(&unfinished, &path)?;
    files.sync_dir(&context.dir)?;
    let segment = Segment::active(&context.dir, IndexBuilder::new(base));
    Ok(ActiveFile {
        file,
        segment: Arc::new(segment),
        position: SEGMENT_HEADER_BYTES,
        filled,
        next: base,
    })
}

/// An empty segment that begins at `base`.
pub(crate) fn begin(context: &Context, base: Offset) -> io::Result<ActiveFile> {
    write_new(context, base, None)
}

/// Writes the valid batches of a range into a new segment file and puts it, synced, under its name.
pub(crate) fn copy(context: &Context, old: &dyn File, range: ValidRange) -> io::Result<ActiveFile> {
    write_new(context, range.base, Some((old, range)))
}

fn write_new(
    context: &Context,
    base: Offset,
    batches: Option<(&dyn File, ValidRange)>,
) -> io::Result<ActiveFile> {
    let path = context.dir.join(file_name(base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let file = context.open(&unfinished, OpenMode::Create)?;
    let mut builder = IndexBuilder::new(base);
    let mut buffer = header_bytes(context, base, false);
    let (mut written, mut next) = (0, base);
    if let Some((old, range)) = batches {
        range.for_each(old, context.identity, &mut |batch, _| {
            builder.add(&batch, written + buffer.len() as u64);
            buffer.extend_from_slice(batch.bytes());
            if buffer.len() >= SCAN_CHUNK_BYTES {
                file.write_all_at(&buffer, written)?;
                written += buffer.len() as u64;
                buffer.clear();
            }
            Ok(())
        })?;
        next = range.next;
    }
    file.write_all_at(&buffer, written)?;
    failpoint!("recovery-copied");
    replace_segment_file(context, &*file, &unfinished, &path)?;
    let position = written + buffer.len() as u64;
    Ok(ActiveFile {
        file,
        segment: Arc::new(Segment::active(&context.dir, builder)),
        position,
        filled: position,
        next,
    })
}

/// Goes on with a file that was synced and whole when its last writer stopped.
pub(crate) fn reuse(
    context: &Context,
    file: Arc<dyn File>,
    range: ValidRange,
) -> io::Result<ActiveFile> {
    let mut builder = IndexBuilder::new(range.base);
    range.for_each(&*file, context.identity, &mut |batch, position| {
        builder.add(&batch, position);
        Ok(())
    })?;
    Ok(ActiveFile {
        filled: file.len()?,
        file,
        segment: Arc::new(Segment::active(&context.dir, builder)),
        position: range.end,
        next: range.next,
    })
}

/// Makes sure that a single range is on the disk: in a new file, or, on a full disk, by writing it again in place up to
/// `torn_end`. Returns true when it was written in place.
pub(crate) fn renew(
    context: &Context,
    file: Arc<dyn File>,
    range: ValidRange,
    torn_end: u64,
) -> io::Result<(ActiveFile, bool)> {
    match copy(context, &*file, range) {
        Ok(active) => return Ok((active, false)),
        Err(error) if is_full(&error) => {}
        Err(error) => return Err(error),
    }
    let unfinished = context.dir.join(file_name(range.base, "seg.tmp"));
    context.seams.files.remove(&unfinished)?;
    // Equal bytes over equal bytes need no space and harm nothing if the power fails; the sync then covers them.
    range.for_each(&*file, context.identity, &mut |batch, position| {
        file.write_all_at(batch.bytes(), position)
    })?;
    file.fill_zeros(range.end, torn_end)?;
    file.sync_data()?;
    Ok((reuse(context, file, range)?, true))
}
