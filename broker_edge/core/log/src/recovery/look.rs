//! Looks at the active segment without changing anything: which batches are valid, which of them count, what follows.

use std::io;

use crate::batch::layout::{BATCH_AFTER_UNSYNCED, Identity};
use crate::batch::record_batch::Batch;
use crate::faults::{Sabotage, is_sabotaged};
use crate::ids::{Epoch, Offset};
use crate::recovery::checkpoint::Checkpoint;
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::segment::scan::{SegmentScan, leftover_bytes};
use crate::vfs::files::File;

/// Behind damage a batch of any epoch is looked for: an epoch that `log.meta` does not know is no reason to cut the
/// batch off. It means that `log.meta` is older than the records, and the start is refused.
pub(crate) const ANY_EPOCH: Epoch = Epoch(u64::MAX);

/// Valid batches one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValidRange {
    pub start: u64,
    pub end: u64,
    pub base: Offset,
    pub next: Offset,
    /// Holds a batch that was written after everything before it had been synced.
    pub is_proof: bool,
}

/// The content of an active segment.
pub(crate) struct ActiveScan {
    /// The first begins where the segment begins and may be empty; the bytes between them are not valid.
    pub ranges: Vec<ValidRange>,
    /// How many of them are accepted.
    pub accepted: usize,
    /// The bytes behind the accepted ranges, up to this position, were never acknowledged.
    pub torn_end: u64,
}

impl ActiveScan {
    /// The last one that is accepted.
    pub fn last(&self) -> ValidRange {
        self.ranges[self.accepted - 1]
    }
}

impl ValidRange {
    /// No batches yet.
    pub fn empty(position: u64, base: Offset) -> Self {
        Self {
            start: position,
            end: position,
            base,
            next: base,
            is_proof: false,
        }
    }

    /// Gives each of its batches with its position.
    pub fn for_each(
        &self,
        file: &dyn File,
        identity: Identity,
        f: &mut dyn FnMut(Batch, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut scan = SegmentScan::new(file, identity, self.start, self.end, self.base);
        while scan.position < self.end {
            let (batch, position) = scan.next()?.ok_or_else(|| {
                let text = "the file changed while it was read";
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            f(batch, position)?;
        }
        Ok(())
    }
}

pub(crate) fn look(
    file: &dyn File,
    identity: Identity,
    base: Offset,
    checkpoint: Option<Checkpoint>,
    is_recycled: bool,
) -> io::Result<ActiveScan> {
    let end = file.len()?;
    let mut scan = SegmentScan::new(file, identity, SEGMENT_HEADER_BYTES, end, base);
    let mut range = ValidRange::empty(scan.position, base);
    let mut ranges = Vec::new();
    let mut last_batch = None;
    loop {
        match scan.next()? {
            Some((batch, position)) => {
                last_batch = Some((position, batch.base_offset()));
                (range.end, range.next) = (scan.position, scan.expected);
                range.is_proof |= batch.flags() & BATCH_AFTER_UNSYNCED == 0;
            }
            None => {
                if !scan.resync(Offset::BELIEVABLE_MAX, ANY_EPOCH)? {
                    break;
                }
                ranges.push(range);
                range = ValidRange::empty(scan.position, scan.expected);
            }
        }
    }
    if let (true, Some((position, base))) = (is_sabotaged(Sabotage::OffsetReused), last_batch)
        && checkpoint.is_none_or(|checkpoint| checkpoint.position < range.end)
    {
        (range.end, range.next) = (position, base);
    }
    ranges.push(range);
    let synced_to = checkpoint
        .filter(|checkpoint| checkpoint.base == base)
        .map_or(0, |checkpoint| checkpoint.position);
    let is_accepted = |range: &ValidRange| range.is_proof || range.start < synced_to;
    let accepted = ranges.iter().rposition(is_accepted).unwrap_or(0) + 1;
    let accepted_end = ranges[accepted - 1].end;
    // The scan stands behind the last batch that was found, accepted or not.
    scan.skip_claimed()?;
    let torn_end = if is_recycled && !scan.is_spoiled_batch()? {
        scan.position // Stale bytes of a removed segment follow: nobody misses them.
    } else {
        let leftover_end = accepted_end + leftover_bytes(file, accepted_end)?;
        scan.position.max(leftover_end)
    };
    Ok(ActiveScan {
        ranges,
        accepted,
        torn_end,
    })
}
