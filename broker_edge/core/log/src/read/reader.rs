//! The reader of a partition: the state that reads need. It never waits for the writer.
//!
//! Reads by offset are in `range.rs`, by topic in `candidates.rs`, by time, epoch and retained record in `lookup.rs`;
//! damage is in `damage.rs`.

use std::ops::{Deref, Range};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::ReadError;
use crate::ids::{Offset, PartitionId};
use crate::index::segment::Segment;
use crate::index::shared::Shared;
use crate::read::batch_positions::BatchPositions;
use crate::read::gap::Gap;
use crate::read::tail::Tail;
use crate::recovery::quarantine::QuarantineBytes;

pub(crate) struct Reader {
    shared: Shared,
    pub(super) tail: Arc<Tail>,
    pub(super) positions: BatchPositions,
    /// Damage that reading has met since the start.
    pub(super) found: Mutex<Vec<Gap>>,
    pub(super) kept_aside: Mutex<QuarantineBytes>,
}

impl Deref for Reader {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Reader {
    pub fn new(shared: &Shared, tail: &Arc<Tail>, kept_aside: QuarantineBytes) -> Self {
        Self {
            shared: shared.clone(),
            tail: Arc::clone(tail),
            positions: BatchPositions::new(),
            found: Mutex::default(),
            kept_aside: Mutex::new(kept_aside),
        }
    }

    pub(super) fn id(&self) -> PartitionId {
        self.context.identity.partition
    }

    /// The high watermark, when `from` is neither below the log start nor above it.
    pub(super) fn check_range(&self, from: Offset) -> Result<Offset, ReadError> {
        let high_watermark = self.status.high_watermark();
        if from > high_watermark || from < self.status.log_start() {
            return Err(self.out_of_range(from));
        }
        Ok(high_watermark)
    }

    pub(super) fn out_of_range(&self, wanted: Offset) -> ReadError {
        ReadError::OutOfRange {
            wanted,
            log_start: self.status.log_start(),
            high_watermark: self.status.high_watermark(),
        }
    }

    /// The segment in which a range begins, and the part of the range in that segment before any known damage. An error
    /// when the range begins in damage, or in offsets that were lost before the next segment.
    pub(super) fn readable(
        &self,
        range: Range<Offset>,
    ) -> Result<(Arc<Segment>, Range<Offset>), ReadError> {
        let found = self.segments.find(range.start);
        let (segment, next_base) = found.ok_or_else(|| self.out_of_range(range.start))?;
        let Some(summary) = segment.sealed.get() else {
            return Ok((segment, range));
        };
        if range.start >= summary.next {
            let end = next_base.unwrap_or(range.end);
            let range = range.start..end;
            return Err(ReadError::Damaged { range });
        }
        let mut until = range.end.min(summary.next);
        // Checked before the index: an index that was built since has no blocks where the damage is.
        let holes = summary.holes.iter().map(|hole| hole.first..hole.next);
        for hole in holes.chain(self.found_damage()) {
            if hole.contains(&range.start) {
                let range = range.start..hole.end.min(summary.next);
                return Err(ReadError::Damaged { range });
            }
            if hole.start > range.start {
                until = until.min(hole.start);
            }
        }
        Ok((segment, range.start..until))
    }
}
