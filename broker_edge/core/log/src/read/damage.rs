//! Damage that a reader finds while the log is open: reported at once, and its bytes quarantined.

use std::ops::Range;

use crate::ids::Offset;
use crate::index::segment::Segment;
use crate::read::gap::Gap;
use crate::read::reader::Reader;
use crate::recovery::quarantine::{Kept, Piece, keep, quarantine_bytes_of};
use crate::vfs::files::File;

/// Bound of the gaps found by reading. Further gaps are refused to readers too, but not listed.
const FOUND_GAPS_MAX: usize = 1024;
const BAD_CHECKSUM: &str = "the checksum of a batch does not match";

impl Reader {
    /// Notes that offsets `lost` of a segment cannot be served: the bytes at `place` are not a batch.
    pub(super) fn note_damage(
        &self,
        segment: &Segment,
        file: &dyn File,
        lost: Range<Offset>,
        place: Range<u64>,
    ) {
        if !self.note_gap(lost.clone()) {
            return;
        }
        let partition = &self.context.name;
        self.kept_aside.lock().damaged += place.end.saturating_sub(place.start);
        let piece = Piece {
            bytes: place,
            first: lost.start,
            kind: "damaged",
        };
        match keep(&self.context, file, piece) {
            Ok(Kept::At(path)) => {
                tracing::warn!(%partition, path = %path.display(), "damaged bytes are kept aside");
            }
            Ok(Kept::NoSpaceFor(_)) => {
                tracing::warn!(%partition, "no space to keep damaged bytes aside");
            }
            Err(error) => {
                tracing::warn!(%partition, %error, "damaged bytes could not be kept aside");
            }
        }
        self.count_quarantine();
        self.segments.save_with_damage(segment);
    }

    /// Measures the quarantined files again: people remove them.
    pub fn count_quarantine(&self) {
        let bytes = quarantine_bytes_of(&self.context).all;
        self.kept_aside.lock().all = bytes;
    }

    /// Length of the files that are kept aside, for the disk budget.
    pub fn quarantine_bytes(&self) -> u64 {
        self.kept_aside.lock().all
    }

    /// Bytes that are damaged, as far as a start or a reader has met them.
    pub fn damaged_bytes(&self) -> u64 {
        self.kept_aside.lock().damaged
    }

    /// The offsets that reading has found to be damaged since the start.
    pub(super) fn found_damage(&self) -> Vec<Range<Offset>> {
        let found = self.found.lock();
        found.iter().map(|gap| gap.range.clone()).collect()
    }

    /// False when the gap is known, or when there are too many.
    fn note_gap(&self, range: Range<Offset>) -> bool {
        let mut found = self.found.lock();
        let is_known = found
            .iter()
            .any(|gap| gap.range.start <= range.start && range.end <= gap.range.end);
        if is_known || found.len() >= FOUND_GAPS_MAX {
            return false;
        }
        tracing::error!(
            partition = %self.context.name, start = range.start.0, end = range.end.0, reason = BAD_CHECKSUM,
            "offsets are damaged on disk"
        );
        found.push(Gap::damage(range, BAD_CHECKSUM));
        true
    }

    #[cfg(test)]
    pub fn with_found<T>(&self, f: impl FnOnce(&mut Vec<Gap>) -> T) -> T {
        f(&mut self.found.lock())
    }

    pub fn forget_damage_below(&self, log_start: Offset) {
        self.found.lock().retain(|gap| gap.range.end > log_start);
    }

    /// Damage from the log start on, ascending.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = self.found.lock().clone();
        let segments = self.segments.all();
        for (at, segment) in segments.iter().enumerate() {
            let Some(summary) = segment.sealed.get() else {
                continue;
            };
            let holes = summary.holes.iter();
            gaps.extend(holes.map(|hole| Gap::damage(hole.first..hole.next, BAD_CHECKSUM)));
            let after = segments.get(at + 1).map(|after| after.base);
            if let Some(base) = after.filter(|base| *base > summary.next) {
                let reason = "a segment ends before the next one begins";
                gaps.push(Gap::damage(summary.next..base, reason));
            }
        }
        let log_start = self.status.log_start();
        gaps.retain(|gap| gap.range.end > log_start);
        gaps.sort_by_key(|gap| (gap.range.start, gap.range.end));
        gaps.dedup_by(|later, earlier| {
            // A range found by a reader and again by a scan is one gap.
            let overlaps = later.range.start < earlier.range.end;
            if overlaps {
                earlier.range.end = earlier.range.end.max(later.range.end);
            }
            overlaps
        });
        gaps
    }
}
