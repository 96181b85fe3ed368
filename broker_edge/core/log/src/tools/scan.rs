//! Walks one segment from its first batch to its last and notes everything that is not a batch.

use std::io;
use std::ops::Range;

use super::folder::{PartitionDir, open_segment, read_header};
use super::{ToolError, Work};
use crate::batch::decode::Batch;
use crate::ids::{Epoch, Offset};
use crate::index::builder::IndexBuilder;
use crate::index::model::Index;
use crate::index::rebuild::add;
use crate::segment::header::{HeaderFound, Hole, SEGMENT_HEADER_BYTES};
use crate::segment::scan::{SegmentScan, Step};
use crate::vfs::files::{File, read_full};
use crate::vfs::salvage::Salvage;

/// How far behind the last batch bytes are looked for that a start would call a torn tail.
const LEFTOVER_BYTES_MAX: u64 = 4 << 20;

/// Offsets that are not there, and the bytes in their place.
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
    /// Bytes behind the last batch that are not zero; what recycled files leave counts too.
    pub leftover: u64,
    /// Pieces that the disk did not give.
    pub unreadable: u64,
    pub index: Index,
}

/// Each batch of a segment whose batches end at or before `limit`, where the next segment begins.
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
    let mut walk = SegmentScan::new(&file, place.identity, SEGMENT_HEADER_BYTES, length, base);
    let mut growing = IndexBuilder::new(base);
    let (mut records, mut next, mut end) = (0, base, SEGMENT_HEADER_BYTES);
    let mut damage = Vec::new();
    while walk.expected < end_of_offsets {
        work.go_on()?;
        match walk.next().map_err(failed)? {
            Step::Batch { batch, .. } if batch.next_offset() > end_of_offsets => break,
            Step::Batch { batch, position } => {
                each(&batch)?;
                records += batch.len() as u64;
                next = batch.next_offset();
                end = walk.position;
                add(&mut growing, batch, position);
            }
            Step::Bad => {
                let (first, from) = (walk.expected, walk.position);
                let is_found = walk
                    .resync(end_of_offsets, Epoch(u64::MAX))
                    .map_err(failed)?;
                if !is_found {
                    break;
                }
                growing.add_hole(Hole {
                    first,
                    next: walk.expected,
                    resume: walk.position,
                });
                damage.push(Damage {
                    lost: first..walk.expected,
                    place: from..walk.position,
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
        index: growing.finish(),
    })
}

fn leftover_bytes(file: &dyn File, position: u64) -> io::Result<u64> {
    let room = file.len()?.saturating_sub(position).min(LEFTOVER_BYTES_MAX);
    let mut bytes = vec![0; room as usize];
    let read = read_full(file, &mut bytes, position)?;
    let last = bytes[..read].iter().rposition(|byte| *byte != 0);
    Ok(last.map_or(0, |at| at as u64 + 1))
}
