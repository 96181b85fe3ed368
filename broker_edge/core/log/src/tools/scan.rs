//! Checks one segment from its first batch to its last and notes everything that is not a batch.

use std::ops::Range;

use super::folder::PartitionDir;
use super::work::{ToolError, Work};
use crate::batch::record_batch::Batch;
use crate::ids::{Epoch, Offset};
use crate::segment::header::{HeaderFound, SEGMENT_HEADER_BYTES};
use crate::segment::scan::{SegmentScan, leftover_bytes, read_header};
use crate::vfs::files::File;
use crate::vfs::salvage::Salvage;

/// Missing offsets, and the bytes in their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub lost: Range<Offset>,
    pub place: Range<u64>,
}

pub(super) struct SegmentCheck {
    pub base: Offset,
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
}

/// Gives each batch of a segment and its position to `each`. The batches end at or before `limit`, where the next
/// segment begins.
pub(super) fn scan_segment(
    work: Work<'_>,
    place: &PartitionDir,
    base: Offset,
    limit: Option<Offset>,
    mut each: impl FnMut(&Batch, u64) -> Result<(), ToolError>,
) -> Result<SegmentCheck, ToolError> {
    let path = place.segment(base);
    let failed = |error| ToolError::io("read", &path)(error);
    let file = Salvage::new(place.open(work, base)?);
    let header = read_header(&file).map_err(failed)?;
    let length = file.len().map_err(failed)?;
    let end_of_offsets = limit.unwrap_or(Offset(u64::MAX));
    let mut scan = SegmentScan::new(&file, place.identity, SEGMENT_HEADER_BYTES, length, base);
    let (mut records, mut next, mut end) = (0, base, SEGMENT_HEADER_BYTES);
    let mut damage = Vec::new();
    while scan.expected < end_of_offsets {
        work.go_on()?;
        let found = scan.next_below(end_of_offsets, Epoch(u64::MAX));
        let Some((batch, position)) = found.map_err(failed)? else {
            break;
        };
        each(&batch, position)?;
        if batch.base_offset() > next {
            damage.push(Damage {
                lost: next..batch.base_offset(),
                place: end..position,
            });
        }
        records += batch.len() as u64;
        next = batch.next_offset();
        end = scan.position;
    }
    let leftover = leftover_bytes(&file, end).map_err(failed)?;
    if let Some(limit) = limit.filter(|limit| next < *limit) {
        damage.push(Damage {
            lost: next..limit,
            place: end..end + leftover,
        });
    }
    Ok(SegmentCheck {
        base,
        header,
        records,
        next,
        end,
        damage,
        leftover,
        unreadable: file.unreadable().map_or(0, |found| found.pieces),
    })
}
