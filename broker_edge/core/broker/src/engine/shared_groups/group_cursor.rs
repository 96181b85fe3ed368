//! The done records above the cursor of a group in a partition.

use headwater_log::Offset;

use crate::engine::ids::PartitionIndex;

/// Offsets that a group does not read although its cursor has not passed them: done before a restart, or in a member's
/// window.
#[derive(Debug, Default)]
pub struct DoneRanges {
    /// Ascending ranges per partition.
    ranges: Vec<(PartitionIndex, Vec<(u64, u64)>)>,
}

impl DoneRanges {
    pub fn contains(&self, partition: PartitionIndex, offset: Offset) -> bool {
        let ranges = self.of(partition);
        let after = ranges.partition_point(|(_, to)| *to <= offset.0);
        ranges.get(after).is_some_and(|(from, _)| *from <= offset.0)
    }

    pub fn of(&self, partition: PartitionIndex) -> &[(u64, u64)] {
        let mut ranges = self.ranges.iter();
        ranges
            .find(|(of, _)| *of == partition)
            .map_or(&[], |(_, ranges)| ranges)
    }

    pub fn set(&mut self, partition: PartitionIndex, ranges: Vec<(u64, u64)>) {
        self.clear(partition);
        if !ranges.is_empty() {
            self.ranges.push((partition, ranges));
        }
    }

    pub fn add(&mut self, partition: PartitionIndex, offset: Offset) {
        if self.contains(partition, offset) {
            return;
        }
        let of = self.ranges.iter_mut().find(|(of, _)| *of == partition);
        let range = (offset.0, offset.0 + 1);
        match of {
            Some((_, ranges)) => {
                let at = ranges.partition_point(|(from, _)| *from <= offset.0);
                ranges.insert(at, range);
            }
            None => self.ranges.push((partition, vec![range])),
        }
    }

    /// The partition is live: there is nothing above its cursor any more.
    pub fn clear(&mut self, partition: PartitionIndex) {
        self.ranges.retain(|(of, _)| *of != partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stored::share::Cursor;
    use crate::engine::stored::{decode, encode};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const P: PartitionIndex = PartitionIndex(2);

    proptest! {
        #[test]
        fn a_stored_place_names_exactly_what_is_not_done(
            pending in prop::collection::btree_set(0u64..60, 0..20),
            beyond in 0u64..10,
            gaps in prop::collection::vec((1u64..4, 1u64..4), 0..4),
        ) {
            let next = pending.last().map_or(30, |last| last + 1) + beyond;
            let mut skipped = Vec::new();
            let mut at = next;
            for (gap, len) in gaps {
                skipped.push((at + gap, at + gap + len));
                at += gap + len;
            }
            let pending: Vec<u64> = pending.into_iter().collect();
            let stored = Cursor::of(next, &pending, &skipped);
            let back: Cursor = decode(&encode(&stored)).expect("own JSON");
            let mut skips = DoneRanges::default();
            skips.set(P, back.ranges());
            let group_cursor: BTreeSet<u64> = (back.low..at + 5)
                .filter(|offset| !skips.contains(P, Offset(*offset)))
                .collect();
            let expected: BTreeSet<u64> = pending
                .iter()
                .copied()
                .chain((next..at + 5).filter(|offset| {
                    !skipped.iter().any(|(from, to)| (*from..*to).contains(offset))
                }))
                .collect();
            prop_assert_eq!(group_cursor, expected);
        }
    }

    #[test]
    fn an_offset_is_added_once_and_found() {
        let mut skips = DoneRanges::default();
        for offset in [7, 3, 7, 5] {
            skips.add(P, Offset(offset));
        }
        assert_eq!(skips.of(P), [(3, 4), (5, 6), (7, 8)]);
        assert!(skips.contains(P, Offset(5)) && !skips.contains(P, Offset(4)));
        assert!(!skips.contains(PartitionIndex(1), Offset(5)));
        skips.clear(P);
        assert!(!skips.contains(P, Offset(5)));
    }
}
