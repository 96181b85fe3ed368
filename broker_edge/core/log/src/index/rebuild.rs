//! Builds the index of a sealed segment from its batches, writes it, and decides whether an index file may be used.

use std::io;

use crate::batch::layout::{HEADER_BYTES, Header, Identity};
use crate::failpoint;
use crate::ids::{Epoch, Offset};
use crate::index::builder::IndexBuilder;
use crate::index::file::IndexFile;
use crate::index::model::Index;
use crate::segment::header::{SEGMENT_HEADER_BYTES, file_name};
use crate::segment::scan::SegmentScan;
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode};

/// The index on disk, when its head is whole and of this segment.
pub(crate) fn open_index(context: &Context, base: Offset, limit: Offset) -> Option<IndexFile> {
    let reader = IndexFile::open(context, base)?;
    let index = &reader.head.index;
    if index.next > limit {
        return None;
    }
    let path = context.dir.join(file_name(base, "seg"));
    let segment = context.open(&path, OpenMode::Read).ok()?;
    let is_whole = ends_like(&*segment, index) && ends_there(context, &*segment, index, limit);
    is_whole.then_some(reader)
}

/// False when the segment has another batch behind those that the index knows.
fn ends_there(context: &Context, segment: &dyn File, index: &Index, limit: Offset) -> bool {
    if index.next == limit {
        return true;
    }
    let Ok(end) = segment.len() else {
        return false;
    };
    let mut scan = SegmentScan::new(segment, context.identity, index.data_end, end, index.next)
        .with_chunk(HEADER_BYTES);
    !matches!(scan.next(), Ok(Some(_)))
}

/// Whether the last batch that an index names stands at that position.
fn ends_like(segment: &dyn File, index: &Index) -> bool {
    if index.next == index.base {
        return false; // Reading an empty segment costs nothing.
    }
    let mut bytes = [0; HEADER_BYTES];
    let read = crate::vfs::files::read_full(segment, &mut bytes, index.last_position);
    if !matches!(read, Ok(HEADER_BYTES)) {
        return false;
    }
    Header::parse(&bytes).is_ok_and(|header| {
        header.checksum == index.last_checksum
            && header.next_offset() == index.next
            && index.last_position + header.total() as u64 == index.data_end
    })
}

/// Builds the index of a segment whose batches end at or before `limit`, where the next segment begins. Damage becomes
/// holes.
pub(crate) fn index_of_file(
    file: &dyn File,
    identity: Identity,
    base: Offset,
    limit: Offset,
    newest: Epoch,
) -> io::Result<Index> {
    let end = file.len()?;
    let mut builder = IndexBuilder::new(base);
    let mut scan = SegmentScan::new(file, identity, SEGMENT_HEADER_BYTES, end, base);
    while scan.expected < limit
        && let Some((batch, position)) = scan.next_below(limit, newest)?
    {
        builder.add(&batch, position);
    }
    Ok(builder.finish())
}

/// Saves an index beside its segment. It is never authoritative, so it is not synced.
pub(crate) fn save_index(context: &Context, index: &Index) -> io::Result<()> {
    let path = context.dir.join(file_name(index.base, "idx"));
    let unfinished = path.with_extension("idx.tmp");
    let file = context.open(&unfinished, OpenMode::Create)?;
    file.write_all_at(&index.to_bytes(&context.identity), 0)?;
    failpoint!("index-written");
    context.seams.files.rename(&unfinished, &path)?;
    failpoint!("index-named");
    Ok(())
}
