//! Which offsets the end of the active segment may have lost, and where the log goes on so that no offset is given
//! twice: `docs/format.md` §7.
//!
//! Only computes; `active.rs` acts on it.

use crate::batch::layout::ENTRY_BYTES;
use crate::ids::Offset;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::look::ValidRange;
use crate::vfs::salvage::Unreadable;

/// A missing segment is assumed to be at least this large: it may have been written under other settings.
const LOST_SEGMENT_BYTES: u64 = 64 << 20;

/// Offsets behind the last accepted batch that may have been durable: they are a gap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LostOffsets {
    /// Position after the bytes in this file that held them.
    pub end: u64,
    /// Where the next append goes: above every offset that can have been given.
    pub next: Offset,
}

impl LostOffsets {
    pub fn behind(
        segment_bytes: u64,
        last: ValidRange,
        checkpoint: Option<Checkpoint>,
        unreadable: Option<Unreadable>,
        is_last: bool,
    ) -> Option<Self> {
        let mut lost = Self {
            end: last.end,
            next: last.next,
        };
        if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.next > last.next) {
            lost.next = checkpoint.next;
            if checkpoint.base <= last.base {
                lost.end = checkpoint.position.max(last.end);
            }
        }
        if let Some(unreadable) = unreadable.filter(|found| found.end > last.end) {
            lost.end = lost.end.max(unreadable.end);
            let most = records_at_most(unreadable.end - last.end);
            lost.next = lost.next.max(last.next.plus(most));
        }
        if !is_last {
            lost.next = lost.next.plus(records_in_a_segment(segment_bytes));
        }
        (lost.next > last.next).then_some(lost)
    }
}

/// How many records this many bytes can hold.
fn records_at_most(bytes: u64) -> u64 {
    bytes / ENTRY_BYTES as u64 + 1
}

/// How many records a missing segment can have held.
pub(crate) fn records_in_a_segment(segment_bytes: u64) -> u64 {
    records_at_most(segment_bytes.max(LOST_SEGMENT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::recovery::checkpoint::CheckpointKind;

    const SEGMENT_BYTES: u64 = 128 << 20;

    fn checkpoint(base: u64, position: u64, next: u64) -> Option<Checkpoint> {
        Some(Checkpoint {
            base: Offset(base),
            position,
            next: Offset(next),
            epoch: Epoch(1),
            kind: CheckpointKind::Idle,
        })
    }

    /// End and next of what is lost behind batches that end at position 9,000 with offset 119.
    fn lost(
        checkpoint: Option<Checkpoint>,
        unreadable_to: Option<u64>,
        is_last: bool,
    ) -> Option<(u64, u64)> {
        let last = ValidRange {
            start: 5000,
            end: 9000,
            base: Offset(100),
            next: Offset(120),
            is_proof: true,
        };
        let unreadable = unreadable_to.map(|end| Unreadable { pieces: 1, end });
        LostOffsets::behind(SEGMENT_BYTES, last, checkpoint, unreadable, is_last)
            .map(|lost| (lost.end, lost.next.0))
    }

    #[test]
    fn nothing_is_lost_where_the_checkpoint_does_not_reach_further_and_all_could_be_read() {
        for checkpoint in [
            None,
            checkpoint(100, 9000, 120),
            checkpoint(100, 7000, 110),
            checkpoint(0, 9999, 100),
        ] {
            assert_eq!(lost(checkpoint, None, true), None);
            assert_eq!(
                lost(checkpoint, Some(8192), true),
                None,
                "before the last batch"
            );
            assert_eq!(
                lost(checkpoint, Some(9000), true),
                None,
                "right before its end"
            );
        }
    }

    #[test]
    fn what_the_checkpoint_knows_and_the_file_has_not_is_lost_up_to_the_checkpoint() {
        assert_eq!(
            lost(checkpoint(100, 9500, 121), None, true),
            Some((9500, 121))
        );
        let earlier_base = checkpoint(0, 9500, 200);
        assert_eq!(lost(earlier_base, None, true), Some((9500, 200)));
        let of_another_file = checkpoint(150, 9500, 200);
        assert_eq!(lost(of_another_file, None, true), Some((9000, 200)));
    }

    #[test]
    fn an_unreadable_end_takes_as_many_offsets_as_it_can_hold_or_as_the_mark_knows() {
        let most = (12_288 - 9000) / 20 + 1;
        assert_eq!(lost(None, Some(12_288), true), Some((12_288, 120 + most)));
        let below = checkpoint(100, 9500, 130);
        assert_eq!(lost(below, Some(12_288), true), Some((12_288, 120 + most)));
        let beyond = checkpoint(100, 20_000, 5000);
        assert_eq!(lost(beyond, Some(12_288), true), Some((20_000, 5000)));
    }

    #[test]
    fn a_later_segment_that_is_gone_takes_as_many_offsets_as_it_can_hold() {
        let most = SEGMENT_BYTES / 20 + 1;
        assert_eq!(lost(None, None, false), Some((9000, 120 + most)));
        let known = checkpoint(150, 9500, 200);
        assert_eq!(lost(known, None, false), Some((9000, 200 + most)));
        let small = records_in_a_segment(16 << 10);
        assert_eq!(
            small,
            LOST_SEGMENT_BYTES / 20 + 1,
            "it may have been larger"
        );
    }
}
