//! Checks one segment from its first batch to its last and notes everything that is not a batch.

use std::ops::Range;

use super::folder::{PartitionDir, open_segment, read_header};
use super::work::{ToolError, Work};
use crate::batch::record_batch::Batch;
use crate::ids::{Epoch, Offset};
use crate::index::builder::IndexBuilder;
use crate::index::model::{Hole, Index};
use crate::segment::header::{HeaderFound, SEGMENT_HEADER_BYTES};
use crate::segment::scan::{SegmentScan, Step, leftover_bytes};
use crate::vfs::files::File;
use crate::vfs::salvage::Salvage;

/// Missing offsets, and the bytes in their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub lost: Range<Offset>,
    pub place: Range<u64>,
}

pub(super) struct SegmentCheck {
    pub header: HeaderFound,
    pub records: u64,
    pub next: Offset,
    /// Position after the last batch.
    pub end: u64,
    pub damage: Vec<Damage>,
    /// Bytes behind the last batch that are not zero; stale bytes of recycled files count too.
    pub leftover: u64,
    /// Pieces that could not be read.
    pub unreadable: u64,
    pub index: Index,
}

/// Gives each batch of a segment to `each`. The batches end at or before `limit`, where the next segment begins.
pub(super) fn scan_segment(
    work: Work<'_>,
    place: &PartitionDir,
    base: Offset,
    limit: Option<Offset>,
    mut each: impl FnMut(&Batch) -> Result<(), ToolError>,
) -> Result<SegmentCheck, ToolError> {
    let path = place.segment(base);
    let failed = |error| ToolError::io("read", &path)(error);
    let file = Salvage::new(open_segment(work, place, base)?);
    let header = read_header(&file).map_err(failed)?;
    let length = file.len().map_err(failed)?;
    let end_of_offsets = limit.unwrap_or(Offset(u64::MAX));
    let mut scan = SegmentScan::new(&file, place.identity, SEGMENT_HEADER_BYTES, length, base);
    let mut builder = IndexBuilder::new(base);
    let (mut records, mut next, mut end) = (0, base, SEGMENT_HEADER_BYTES);
    let mut damage = Vec::new();
    while scan.expected < end_of_offsets {
        work.go_on()?;
        match scan.next().map_err(failed)? {
            Step::Batch { batch, .. } if batch.next_offset() > end_of_offsets => break,
            Step::Batch { batch, position } => {
                each(&batch)?;
                records += batch.len() as u64;
                next = batch.next_offset();
                end = scan.position;
                builder.add(&batch, position);
            }
            Step::Bad => {
                let (first, from) = (scan.expected, scan.position);
                let is_found = scan
                    .resync(end_of_offsets, Epoch(u64::MAX))
                    .map_err(failed)?;
                if !is_found {
                    break;
                }
                builder.add_hole(Hole {
                    first,
                    next: scan.expected,
                    resume: scan.position,
                });
                damage.push(Damage {
                    lost: first..scan.expected,
                    place: from..scan.position,
                });
            }
        }
    }
    let leftover = leftover_bytes(&file, end).map_err(failed)?;
    if let Some(limit) = limit.filter(|limit| next < *limit) {
        damage.push(Damage {
            lost: next..limit,
            place: end..end + leftover,
        });
    }
    Ok(SegmentCheck {
        header,
        records,
        next,
        end,
        damage,
        leftover,
        unreadable: file.unreadable().map_or(0, |found| found.pieces),
        index: builder.finish(),
    })
}
