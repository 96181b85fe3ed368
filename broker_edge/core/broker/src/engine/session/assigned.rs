//! Which records of a session have been given packet ids for QoS 2.

use headwater_log::Offset;

use crate::engine::ids::PartitionIndex;

use super::Session;
use super::window::Source;

/// The records of one source that have been given packet ids: those in `[from, next)` are not delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub source: Source,
    pub partition: PartitionIndex,
    pub from: Offset,
    pub next: Offset,
}

impl Session {
    /// Whether a record was given a packet id before the last restart: then it is in the window or done.
    #[inline]
    pub fn has_assigned(&self, source: Source, partition: PartitionIndex, at: Offset) -> bool {
        self.extras.assigned.iter().any(|range| {
            range.source == source
                && range.partition == partition
                && (range.from..range.next).contains(&at)
        })
    }

    pub fn note_assigned(&mut self, source: Source, partition: PartitionIndex, at: Offset) {
        if !matches!(source, Source::Cursor | Source::Replay(_)) {
            return;
        }
        let assigned = &mut self.extras.assigned;
        let known = assigned
            .iter_mut()
            .find(|range| range.source == source && range.partition == partition);
        match known {
            Some(range) => range.next = range.next.max(at.plus(1)),
            None => assigned.push(Assigned {
                source,
                partition,
                from: at,
                next: at.plus(1),
            }),
        }
    }

    /// The session gets QoS 2 from here on, after a lower QoS: earlier records may be unacknowledged and have to be
    /// delivered again after a crash.
    pub fn begin_qos2(&mut self, offsets: &[(PartitionIndex, Offset)]) {
        let assigned = self.extras.present_mut().map(|extras| &mut extras.assigned);
        for range in assigned.into_iter().flatten() {
            let found = offsets.iter().find(|(of, _)| *of == range.partition);
            if let (Source::Cursor, Some((_, at))) = (range.source, found) {
                range.from = range.from.max(*at);
            }
        }
    }
}
