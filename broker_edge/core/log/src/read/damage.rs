//! Damage that a reader runs into while the log is open: reported at once, and kept aside.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::ids::Offset;
use crate::index::rebuild::build_index;
use crate::partition::{Gap, GapKind};
use crate::recovery::quarantine::{Kept, Piece, keep, quarantine_bytes_of};
use crate::segment::header::{IndexState, Segment};
use crate::state::core::Core;
use crate::vfs::files::File;

/// Gaps found by reading; more are still refused to readers, only not listed.
const FOUND_GAPS_MAX: usize = 1024;

impl Core {
    /// Offsets `lost` of a segment can not be served: the bytes at `place` are no batch.
    pub(crate) fn note_damage(
        &self,
        segment: &Segment,
        file: &dyn File,
        lost: Range<Offset>,
        place: Range<u64>,
    ) {
        if !self.note_gap(lost.clone()) {
            return;
        }
        let bytes = place.end.saturating_sub(place.start);
        self.damaged_bytes.fetch_add(bytes, Ordering::Relaxed);
        let piece = Piece {
            from: place.start,
            to: place.end,
            first: lost.start,
            kind: "damaged",
        };
        match keep(&self.context, file, piece) {
            Ok(Kept::At(path)) => {
                tracing::warn!(partition = %self.context.name, path = %path.display(), "damaged bytes are kept aside");
            }
            Ok(Kept::NoSpaceFor(_)) => {
                tracing::warn!(partition = %self.context.name, "no space to keep damaged bytes aside");
            }
            Err(error) => {
                tracing::warn!(partition = %self.context.name, %error, "damaged bytes could not be kept aside");
            }
        }
        self.count_quarantine();
        self.remember(segment);
    }

    pub(crate) fn count_quarantine(&self) {
        let bytes = quarantine_bytes_of(&self.context).all;
        self.quarantine_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The offsets that reading has found to be damaged since the start.
    pub(crate) fn found_damage(&self) -> Vec<Range<Offset>> {
        let found = self.found.lock();
        found.iter().map(|gap| gap.range.clone()).collect()
    }

    /// False when it is known or there are too many.
    fn note_gap(&self, range: Range<Offset>) -> bool {
        let mut found = self.found.lock();
        let is_known = found
            .iter()
            .any(|gap| gap.range.start <= range.start && range.end <= gap.range.end);
        if is_known || found.len() >= FOUND_GAPS_MAX {
            return false;
        }
        let reason = "the checksum of a batch does not match";
        tracing::error!(
            partition = %self.context.name, start = range.start.0, end = range.end.0, reason,
            "offsets are damaged on disk"
        );
        found.push(Gap {
            range,
            kind: GapKind::Damage,
            reason: reason.to_owned(),
        });
        true
    }

    /// Writes the index of a sealed segment anew, now with the hole in it, so that the next start reports it too. A
    /// segment that can not be read in places keeps its index: the disk may give the bytes another time.
    fn remember(&self, segment: &Segment) {
        let Some(summary) = segment.sealed.get() else {
            return;
        };
        if !matches!(&*segment.index.lock(), IndexState::Saved) {
            return;
        }
        let _one_at_a_time = self.saving.lock();
        let epoch = self.context.epoch;
        let rebuilt = build_index(
            &self.context,
            &segment.path,
            segment.base,
            summary.next,
            epoch,
        );
        let saved = rebuilt.and_then(|index| self.context.save_index(segment, &index));
        if let Err(error) = saved {
            tracing::warn!(partition = %self.context.name, %error, "an index without the damaged batch is not saved");
        }
        // What is kept of the old file may have pieces that the new one has not.
        self.forget_files(segment.base);
    }
}
