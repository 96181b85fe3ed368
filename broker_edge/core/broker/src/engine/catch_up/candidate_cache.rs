//! The offset ranges that may hold records for a reader that is behind, as the indexes reported them. Records outside
//! these ranges are skipped without being read.
//!
//! Only a cache: a lost entry costs another lookup. Bounded for all readers together.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use headwater_log::{Offset, Partition, ReadError, TopicFilter, TopicSelection};
use headwater_mqtt::filter_matches;

use crate::engine::ids::{PartitionIndex, Waiter};
use crate::engine::session::Session;
use crate::engine::session::window::Source;
use crate::engine::shared_groups::is_shared;

/// Ranges asked for at a time.
const RANGES_MAX: usize = 16;
/// Limit for all readers together; the cache is cleared when it is exceeded.
const KNOWN_BYTES: usize = 16 << 20;
/// With more filters, or with a wildcard, topics are matched instead of looked up.
const NAMES_MAX: usize = 256;
/// With more filters to match than this, everything is read: matching all topics of a log with all filters of a session
/// would block the loop longer than any read.
const MATCHED_MAX: usize = 16;
/// Bytes of topics, by the number of filters, that a reader matches at a time: a few milliseconds.
pub(super) const MATCHED_BYTES_MAX: usize = 32 << 20;

/// One read position: that of a session or group in a partition, or of one of the session's replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReaderId {
    pub waiter: Waiter,
    pub partition: PartitionIndex,
    /// Number of the replay, or `None`.
    pub replay: Option<u16>,
}

impl ReaderId {
    pub fn source(&self) -> Source {
        match (self.waiter, self.replay) {
            (Waiter::Group(id), _) => Source::Shared(id),
            (Waiter::Session(_), Some(number)) => Source::Replay(number),
            (Waiter::Session(_), None) => Source::Cursor,
        }
    }
}

/// The topics that a reader wants.
#[derive(Clone, Copy)]
pub enum Wanted<'a> {
    /// Those of all subscriptions.
    All(&'a Session),
    /// Those of one filter: a replay or a group.
    Filter(&'a str),
}

#[derive(Debug, Default)]
struct Candidates {
    selection: TopicSelection,
    ranges: Vec<Range<Offset>>,
    /// Below this offset, nothing outside the ranges is wanted.
    scanned: Offset,
}

impl Candidates {
    fn memory(&self) -> usize {
        size_of::<Self>()
            + self.selection.memory()
            + self.ranges.capacity() * size_of::<Range<Offset>>()
    }
}

#[derive(Debug, Default)]
pub struct CandidateCache {
    known: BTreeMap<ReaderId, Candidates>,
    bytes: usize,
}

impl CandidateCache {
    /// The next range to read between two offsets. An empty range marks the offset below which nothing is wanted.
    pub fn find(
        &mut self,
        reader: ReaderId,
        (from, until): (Offset, Offset),
        partition: &Partition,
        wanted: TopicFilter<'_>,
    ) -> Result<Range<Offset>, ReadError> {
        if let Some(known) = self.known.get(&reader)
            && from < known.scanned
        {
            let mut ranges = known.ranges.iter();
            if let Some(range) = ranges.find(|range| range.end > from) {
                return Ok(range.start.max(from)..range.end.max(from));
            }
            return Ok(known.scanned..known.scanned);
        }
        let mut known = self.known.remove(&reader).unwrap_or_default();
        self.bytes = self.bytes.saturating_sub(known.memory());
        let found =
            partition.candidate_ranges(from, until, RANGES_MAX, &mut known.selection, wanted)?;
        let first = found.ranges.first().cloned();
        known.scanned = found.scanned;
        known.ranges = found.ranges;
        known.ranges.shrink_to_fit();
        if self.bytes > KNOWN_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += known.memory();
        self.known.insert(reader, known);
        Ok(first.unwrap_or(found.scanned..found.scanned))
    }

    #[cfg(test)]
    pub fn knows(&self, waiter: Waiter) -> bool {
        self.known.keys().any(|reader| reader.waiter == waiter)
    }

    /// The session or group has caught up, is gone, or wants other topics.
    pub fn forget(&mut self, waiter: Waiter) {
        let reader = |partition, replay| ReaderId {
            waiter,
            partition: PartitionIndex(partition),
            replay,
        };
        let all = reader(0, None)..=reader(u16::MAX, Some(u16::MAX));
        while let Some((reader, _)) = self.known.range(all.clone()).next() {
            let reader = *reader;
            if let Some(known) = self.known.remove(&reader) {
                self.bytes = self.bytes.saturating_sub(known.memory());
            }
        }
    }
}

impl<'a> Wanted<'a> {
    /// What a session or one of its replays wants.
    pub fn of(session: &'a Session, replay: Option<u16>) -> Option<Self> {
        Some(match replay {
            Some(number) => Self::Filter(&session.replay(number)?.filter),
            None => Self::All(session),
        })
    }

    /// The names of the topics, if no filter has a wildcard.
    pub fn names(self) -> Option<Vec<&'a str>> {
        let is_name = |filter: &&str| !filter.contains(['#', '+']);
        let session = match self {
            Self::Filter(filter) => return is_name(&filter).then(|| vec![filter]),
            Self::All(session) => session,
        };
        if session.subscriptions.len() > NAMES_MAX {
            return None;
        }
        let filters = session.subscriptions.iter().map(|held| &*held.filter);
        let own = filters.filter(|filter| !is_shared(filter));
        own.map(|filter| is_name(&filter).then_some(filter))
            .collect()
    }

    /// Whether a topic may be among them. Takes the bytes that are matched from `left`; once they are used up every topic
    /// may be, and is matched when it is read.
    pub fn may_have(self, topic: &str, left: &Cell<usize>) -> bool {
        let filters = match self {
            Self::Filter(_) => 1,
            Self::All(session) if session.subscriptions.len() > MATCHED_MAX => return true,
            Self::All(session) => session.subscriptions.len(),
        };
        let Some(rest) = left.get().checked_sub(topic.len() * filters) else {
            return true;
        };
        left.set(rest);
        match self {
            Self::Filter(filter) => filter_matches(filter, topic),
            Self::All(session) => session
                .subscriptions
                .iter()
                .any(|held| filter_matches(&held.filter, topic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_time_to_match_may_be_wanted() {
        let (wanted, left) = (Wanted::Filter("a/+"), Cell::new(10));
        let mut found = ["b/1", "a/1", "b/2", "b/3"].map(|topic| wanted.may_have(topic, &left));
        assert_eq!(found, [false, true, false, true]);
        left.set(usize::MAX);
        found = ["b/1", "a/1", "b/2", "b/3"].map(|topic| wanted.may_have(topic, &left));
        assert_eq!(found, [false, true, false, false], "the control");
    }
}
