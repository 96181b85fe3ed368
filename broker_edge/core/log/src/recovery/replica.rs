//! What of a recovered replica is committed: everything in sealed segments, and in the active one what an earlier process
//! has noted. The rest waits for the leader.

use std::io;

use crate::batch::record_batch::Batch;
use crate::ids::Offset;
use crate::index::builder::IndexBuilder;
use crate::recovery::look::ValidRange;
use crate::recovery::rewrite::ActiveFile;
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::state::context::Context;

/// The high watermark of a replica, and the batches above it with their positions. Its index is made anew from those
/// below: readers look no further.
pub(crate) fn uncommitted_of(
    context: &Context,
    active: &ActiveFile,
    committed: Offset,
) -> io::Result<(Offset, Vec<(Batch, u64)>)> {
    let base = active.segment.base;
    let mut builder = IndexBuilder::new(base);
    let (mut high_watermark, mut uncommitted) = (base, Vec::new());
    let range = ValidRange {
        end: active.position,
        next: active.next,
        ..ValidRange::empty(SEGMENT_HEADER_BYTES, base)
    };
    range.for_each(&*active.file, context.identity, &mut |batch, position| {
        if uncommitted.is_empty() && batch.next_offset() <= committed {
            builder.add(&batch, position);
            high_watermark = batch.next_offset();
        } else {
            uncommitted.push((batch, position));
        }
        Ok(())
    })?;
    active.segment.set_builder(builder);
    Ok((high_watermark, uncommitted))
}
