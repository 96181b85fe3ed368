//! Makes the active segment of a recovered partition: the old file, a copy of its valid batches, or a new file.

use std::io;
use std::sync::Arc;

use crate::batch::layout::Identity;
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
    let segment = Segment::active(&context.dir, base, IndexBuilder::new(base));
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
    let range = ValidRange::empty(SEGMENT_HEADER_BYTES, base);
    write_new(context, base, &mut |_, _, _| Ok(range))
}

/// Writes the valid batches of a range into a new segment file and puts it, synced, under its name.
pub(crate) fn copy(context: &Context, old: &dyn File, range: ValidRange) -> io::Result<ActiveFile> {
    let copied = write_new(context, range.base, &mut |file, builder, identity| {
        let mut buffer: Vec<u8> = Vec::new();
        let mut written = SEGMENT_HEADER_BYTES;
        range.for_each(old, identity, &mut |batch, _| {
            let position = written + buffer.len() as u64;
            buffer.extend_from_slice(batch.bytes());
            builder.add(&batch, position);
            if buffer.len() >= SCAN_CHUNK_BYTES {
                file.write_all_at(&buffer, written)?;
                written += buffer.len() as u64;
                buffer.clear();
            }
            Ok(())
        })?;
        file.write_all_at(&buffer, written)?;
        let end = written + buffer.len() as u64;
        failpoint!("recovery-copied");
        Ok(ValidRange { end, ..range })
    })?;
    Ok(copied)
}

type WriteBatches<'a> =
    dyn FnMut(&dyn File, &mut IndexBuilder, Identity) -> io::Result<ValidRange> + 'a;

fn write_new(
    context: &Context,
    base: Offset,
    write: &mut WriteBatches<'_>,
) -> io::Result<ActiveFile> {
    let path = context.dir.join(file_name(base, "seg"));
    let unfinished = path.with_extension("seg.tmp");
    let file = context.open(&unfinished, OpenMode::Create)?;
    file.write_all_at(&header_bytes(context, base, false), 0)?;
    let mut builder = IndexBuilder::new(base);
    let written = write(&*file, &mut builder, context.identity)?;
    replace_segment_file(context, &*file, &unfinished, &path)?;
    Ok(ActiveFile {
        file,
        segment: Arc::new(Segment::active(&context.dir, base, builder)),
        position: written.end,
        filled: written.end,
        next: written.next,
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
        segment: Arc::new(Segment::active(&context.dir, range.base, builder)),
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
