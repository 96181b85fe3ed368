//! Makes the index of a sealed segment again from its batches, and decides whether one on disk may be used.

use std::io;
use std::path::Path;

use crate::batch::decode::Batch;
use crate::batch::layout::{HEADER_BYTES, Header, Identity};
use crate::ids::{Epoch, Offset};
use crate::index::builder::IndexBuilder;
use crate::index::model::Index;
use crate::index::saved::IndexReader;
use crate::segment::header::{Hole, SEGMENT_HEADER_BYTES, file_name};
use crate::segment::scan::{SegmentScan, Step};
use crate::state::context::Context;
use crate::vfs::files::{File, OpenMode};

/// What a start needs of the index on disk, when that is whole and of this segment: all but its blocks and topics.
pub(crate) fn load_index(context: &Context, base: Offset, limit: Offset) -> Option<Index> {
    let reader = open_index(context, base, limit)?;
    Some(Index {
        keys: reader.keys().ok()?,
        ..reader.head.index
    })
}

/// The index on disk, when its head is whole and of this segment.
pub(crate) fn open_index(context: &Context, base: Offset, limit: Offset) -> Option<IndexReader> {
    let reader = IndexReader::open(context, base)?;
    let index = &reader.head.index;
    if index.next > limit {
        return None;
    }
    let path = context.dir.join(file_name(base, "seg"));
    let segment = context.open(&path, OpenMode::Read).ok()?;
    let is_whole = ends_like(&*segment, index) && ends_there(context, &*segment, index, limit);
    is_whole.then_some(reader)
}

/// False when a batch follows that the index does not know.
fn ends_there(context: &Context, segment: &dyn File, index: &Index, limit: Offset) -> bool {
    if index.next == limit {
        return true;
    }
    let Ok(end) = segment.len() else {
        return false;
    };
    let mut walk = SegmentScan::new(segment, context.identity, index.data_end, end, index.next)
        .with_chunk(HEADER_BYTES);
    !matches!(walk.next(), Ok(Step::Batch { .. }))
}

/// Whether the last batch that an index names is the one that stands there.
fn ends_like(segment: &dyn File, index: &Index) -> bool {
    if index.next == index.base {
        return false; // A scan of an empty segment costs nothing.
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

/// The index of a segment whose batches end at or before `limit`, where the next segment begins.
pub(crate) fn build_index(
    context: &Context,
    path: &Path,
    base: Offset,
    limit: Offset,
    newest: Epoch,
) -> io::Result<Index> {
    let file = context.open(path, OpenMode::Read)?;
    index_of_file(&*file, context.identity, base, limit, newest)
}

/// As [`build_index`], of an open file. Damage becomes holes.
pub(crate) fn index_of_file(
    file: &dyn File,
    identity: Identity,
    base: Offset,
    limit: Offset,
    newest: Epoch,
) -> io::Result<Index> {
    let end = file.len()?;
    let mut growing = IndexBuilder::new(base);
    let mut walk = SegmentScan::new(file, identity, SEGMENT_HEADER_BYTES, end, base);
    while walk.expected < limit {
        match walk.next()? {
            Step::Batch { batch, .. } if batch.next_offset() > limit => break,
            Step::Batch { batch, position } => add(&mut growing, batch, position),
            Step::Bad => {
                let first = walk.expected;
                if !walk.resync(limit, newest)? {
                    break;
                }
                growing.add_hole(Hole {
                    first,
                    next: walk.expected,
                    resume: walk.position,
                });
            }
        }
    }
    Ok(growing.finish())
}

pub(crate) fn add(growing: &mut IndexBuilder, batch: Batch, position: u64) {
    growing.push(batch, position);
    growing.catch_up();
}
