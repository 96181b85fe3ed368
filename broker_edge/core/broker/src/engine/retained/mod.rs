//! Which record is the retained message of each topic. Only references: the values are read from the log when they are
//! sent. Ordered by topic, and by position in the log, which is the order in which a subscriber of many is served.
//!
//! Derived from the data records. At start it is rebuilt from the log and from the values that the state store took
//! over before their segment was removed.
//! An entry has no time: its record and its stored value have one. A message that goes leaves three places: this index,
//! the account of its user (`charges`), and its key if it is stored (`take_retained` of `delivery/dispatch`).

mod charges;
pub mod guard;
pub mod retained_cursor;

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use headwater_log::{Class, Log, Offset, Partition, ReadError, RecordView, RetainedOffset};
use headwater_mqtt::filter_matches;

use crate::state::StateStore;

use super::ids::PartitionIndex;
use super::quotas::AccountId;
use super::stored::{self, decode};

/// The partition and offset of a record, whether it is still in the log or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RecordRef {
    pub partition: PartitionIndex,
    pub offset: Offset,
}

impl RecordRef {
    pub fn new(partition: PartitionIndex, offset: Offset) -> Self {
        Self { partition, offset }
    }
}

/// The retained message of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedEntry {
    pub at: RecordRef,
    /// The segment is gone, and the state store has the value.
    pub stored: bool,
    /// Bytes of the topic, and of the payload if known.
    pub bytes: u64,
    /// The account of the client that set it; unknown after a restart.
    pub account: Option<AccountId>,
}

/// The retained message of every topic that has one.
#[derive(Debug, Default)]
pub struct Retained {
    by_topic: BTreeMap<Arc<str>, RetainedEntry>,
    /// The topics of `by_topic`, by record.
    by_record: BTreeMap<RecordRef, Arc<str>>,
    bytes: u64,
    topics_max: usize,
    bytes_max: u64,
    /// Per partition, the end of the records that were applied.
    applied: Vec<Offset>,
}

fn bytes_of(topic: &str, payload_bytes: usize) -> u64 {
    (topic.len() + payload_bytes) as u64
}

/// How many topics of usual length one counts as, where it is compared with a filter.
fn look_cost(topic: &str) -> usize {
    1 + topic.len() / 256
}

impl Retained {
    /// # Errors
    /// The log cannot be read.
    pub fn load(
        log: &Log,
        state: &StateStore,
        (topics_max, bytes_max): (usize, u64),
    ) -> Result<Self, ReadError> {
        // Messages accepted earlier stay, even if the limits were lowered since.
        let mut retained = Self {
            topics_max: usize::MAX,
            bytes_max: u64::MAX,
            applied: log
                .partitions()
                .iter()
                .map(Partition::high_watermark)
                .collect(),
            ..Self::default()
        };
        state.for_each_prefix(stored::retained::PREFIX, |key, value| {
            let Some(topic) = key.strip_prefix(stored::retained::PREFIX) else {
                return;
            };
            match decode::<stored::retained::Value>(value) {
                Ok(stored) => {
                    let topic: Arc<str> = topic.into();
                    let partition = PartitionIndex(stored.partition);
                    let entry = RetainedEntry {
                        at: RecordRef::new(partition, Offset(stored.offset)),
                        stored: true,
                        bytes: bytes_of(&topic, stored.payload.len() / 2),
                        account: None,
                    };
                    retained.put(topic, entry);
                }
                Err(error) => {
                    tracing::error!(%error, topic, "a stored retained message cannot be read")
                }
            }
        });
        for partition in log
            .partitions()
            .iter()
            .filter(|partition| partition.class() != Class::Internal)
        {
            let index = PartitionIndex::of(partition.id());
            partition.for_each_retained_offset(&mut |topic, place| {
                // The index does not know the size of the value, which takes no memory before it is copied.
                retained.apply_entry(topic, index, place, 0);
            })?;
        }
        retained.limit(topics_max, bytes_max);
        Ok(retained)
    }

    /// Applies a record with the retain flag. Returns the entry it replaced.
    pub fn apply(
        &mut self,
        record: &RecordView<'_>,
        partition: PartitionIndex,
    ) -> Option<RetainedEntry> {
        let place = RetainedOffset {
            offset: record.offset,
            is_cleared: record.payload.is_empty(),
        };
        // Publishers are refused earlier. Wills are not.
        if !place.is_cleared
            && !self.by_topic.contains_key(record.topic)
            && self.is_full_for(record.topic, record.payload.len())
        {
            tracing::debug!(
                topic = record.topic,
                "a retained message exceeds the limits and is ignored"
            );
            return None;
        }
        self.apply_entry(record.topic, partition, place, record.payload.len())
    }

    pub(super) fn apply_entry(
        &mut self,
        topic: &str,
        partition: PartitionIndex,
        place: RetainedOffset,
        payload_bytes: usize,
    ) -> Option<RetainedEntry> {
        let old = self.by_topic.get_key_value(topic);
        if old.is_some_and(|(_, old)| old.at.partition == partition && old.at.offset > place.offset)
        {
            return None;
        }
        if place.is_cleared {
            let old = self.by_topic.remove(topic)?;
            self.by_record.remove(&old.at);
            self.bytes -= old.bytes;
            return Some(old);
        }
        let bytes = bytes_of(topic, payload_bytes);
        let topic = old.map_or_else(|| topic.into(), |(topic, _)| Arc::clone(topic));
        let entry = RetainedEntry {
            at: RecordRef::new(partition, place.offset),
            stored: false,
            bytes,
            account: None,
        };
        self.put(topic, entry)
    }

    /// Sets the limits.
    pub fn limit(&mut self, topics_max: usize, bytes_max: u64) {
        (self.topics_max, self.bytes_max) = (topics_max, bytes_max);
    }

    fn put(&mut self, topic: Arc<str>, entry: RetainedEntry) -> Option<RetainedEntry> {
        self.bytes += entry.bytes;
        let old = self.by_topic.insert(Arc::clone(&topic), entry);
        if let Some(old) = old {
            self.by_record.remove(&old.at);
        }
        self.by_record.insert(entry.at, topic);
        let old = old?;
        self.bytes -= old.bytes;
        Some(old)
    }

    /// Whether a retained message for one more topic, or a larger one, exceeds the limits.
    pub fn is_full_for(&self, topic: &str, payload_bytes: usize) -> bool {
        let old = self.by_topic.get(topic);
        let freed = old.map_or(0, |old| old.bytes);
        let bytes = bytes_of(topic, payload_bytes);
        (old.is_none() && self.by_topic.len() >= self.topics_max)
            || (bytes > freed && self.bytes - freed + bytes > self.bytes_max)
    }

    #[cfg(test)]
    pub(super) fn charges(&self) -> impl Iterator<Item = (AccountId, u64)> {
        let entries = self.by_topic.values();
        entries.filter_map(|entry| Some((entry.account?, entry.bytes)))
    }

    /// The number of topics with a retained message, and their bytes.
    pub fn held(&self) -> (usize, u64) {
        (self.by_topic.len(), self.bytes)
    }

    /// Whether a filter may match any.
    pub fn may_match(&self, filter: &str) -> bool {
        self.reached(filter).next().is_some()
    }

    /// A superset of the topics that the filter matches.
    fn reached(&self, filter: &str) -> impl Iterator<Item = (&Arc<str>, &RetainedEntry)> {
        let wildcard = filter.find(['+', '#']);
        // `a/#` matches `a` itself.
        let prefix = wildcard.map_or(filter, |at| filter[..at].trim_end_matches('/'));
        let range = (Bound::Included(prefix), Bound::Unbounded);
        self.by_topic
            .range::<str, _>(range)
            .take_while(move |(topic, _)| match wildcard {
                Some(_) => topic.starts_with(prefix),
                None => ***topic == *prefix,
            })
    }

    /// The number of topics examined, of which long ones count as several, and the records that a filter matches, in log
    /// order, so that they are read in one pass through the log; `None` if more than `listed_max` match or more than
    /// `looked_max` topics had to be examined.
    pub fn list(
        &self,
        filter: &str,
        (listed_max, looked_max): (usize, usize),
    ) -> (usize, Option<Vec<RecordRef>>) {
        let mut records = Vec::new();
        let mut looked = 0;
        for (topic, entry) in self.reached(filter) {
            looked += look_cost(topic);
            let matches = filter_matches(filter, topic);
            if looked > looked_max || (matches && records.len() == listed_max) {
                return (looked, None);
            }
            if matches {
                records.push(entry.at);
            }
        }
        records.sort_unstable();
        (looked, Some(records))
    }

    /// The retained message with this record, if it is still retained.
    pub fn at(&self, at: RecordRef) -> Option<(&Arc<str>, RetainedEntry)> {
        let topic = self.by_record.get(&at)?;
        let entry = self.by_topic.get(topic).filter(|entry| entry.at == at)?;
        Some((topic, *entry))
    }

    /// The retained messages between two records, in order.
    pub fn between(
        &self,
        from: RecordRef,
        until: RecordRef,
    ) -> impl Iterator<Item = (RecordRef, &Arc<str>)> {
        let until = until.max(from);
        self.by_record
            .range(from..until)
            .map(|(at, topic)| (*at, topic))
    }

    /// The topic whose value the state store took from this record.
    pub fn stored_at(&self, at: RecordRef) -> Option<Arc<str>> {
        let (topic, entry) = self.at(at)?;
        entry.stored.then(|| Arc::clone(topic))
    }

    /// The records of a partition below this offset were applied, or cannot be read.
    pub fn note_applied(&mut self, partition: PartitionIndex, until: Offset) {
        self.applied[partition.index()] = until;
    }

    /// The retained messages of a partition within a range that are not in the state store yet. None before all of the
    /// range was applied.
    fn within(
        &self,
        partition: PartitionIndex,
        range: &Range<Offset>,
    ) -> Option<Vec<(Arc<str>, RecordRef)>> {
        if self.applied[partition.index()] < range.end {
            return None;
        }
        let (from, until) = (
            RecordRef::new(partition, range.start),
            RecordRef::new(partition, range.end),
        );
        let unstored = self
            .between(from, until)
            .filter(|(at, _)| self.at(*at).is_some_and(|(_, entry)| !entry.stored));
        Some(
            unstored
                .map(|(at, topic)| (Arc::clone(topic), at))
                .collect(),
        )
    }

    /// Returns false if another record has taken its place.
    fn mark_stored(&mut self, topic: &str, at: RecordRef, payload_bytes: usize) -> bool {
        let current = self.by_topic.get_mut(topic);
        let Some(current) = current.filter(|current| current.at == at) else {
            return false;
        };
        current.stored = true;
        // Otherwise the payload size was known from the beginning and is counted.
        if current.account.is_none() {
            let bytes = bytes_of(topic, payload_bytes);
            self.bytes = self.bytes - current.bytes + bytes;
            current.bytes = bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionIndex = PartitionIndex(3);

    fn retained_of(places: &[(&str, u64)]) -> Retained {
        let mut retained = Retained {
            applied: vec![Offset(9); P.index() + 1],
            ..Retained::default()
        };
        for (topic, offset) in places {
            let entry = RetainedEntry {
                at: RecordRef::new(P, Offset(*offset)),
                stored: false,
                bytes: 0,
                account: None,
            };
            retained.put((*topic).into(), entry);
        }
        retained
    }

    #[test]
    fn a_filter_reaches_its_retained_topics_in_order_of_place() {
        let places = [("a", 9), ("a/b", 3), ("a/c", 5), ("ab", 1), ("$SYS/x", 2)];
        let retained = retained_of(&places);
        let topics = |filter: &str| -> Vec<&str> {
            let listed = retained.list(filter, (9, 9)).1.expect("there are few");
            let topics = listed.iter().map(|at| retained.at(*at));
            topics
                .map(|found| &**found.expect("it is there").0)
                .collect()
        };
        assert_eq!(topics("a/#"), ["a/b", "a/c", "a"]);
        assert_eq!(topics("a/+"), ["a/b", "a/c"]);
        assert_eq!(topics("#"), ["ab", "a/b", "a/c", "a"]);
        assert_eq!(topics("+"), ["ab", "a"]);
        assert_eq!(topics("$SYS/#"), ["$SYS/x"]);
        assert_eq!(topics("a/b"), ["a/b"]);
        assert!(topics("b").is_empty() && !retained.may_match("b"));
        assert!(retained.may_match("a/#") && !retained.may_match("b/#"));
        assert_eq!(
            retained.list("#", (4, 9)).1.map(|listed| listed.len()),
            Some(4)
        );
        assert_eq!(retained.list("#", (3, 9)).1, None);
        assert_eq!(retained.list("+/c", (9, 4)), (5, None));
    }

    #[test]
    fn a_place_is_of_one_topic_until_another_record_takes_it() {
        let mut retained = retained_of(&[("a", 1), ("b", 2)]);
        let at = |offset| RecordRef::new(P, Offset(offset));
        let record = |offset, is_cleared| RetainedOffset {
            offset: Offset(offset),
            is_cleared,
        };
        let replaced = retained.apply_entry("a", P, record(7, false), 3);
        assert_eq!(replaced.map(|entry| entry.at), Some(at(1)));
        assert_eq!(retained.at(at(1)), None);
        assert_eq!(retained.at(at(7)).map(|(topic, _)| &**topic), Some("a"));
        retained.apply_entry("b", P, record(8, true), 0);
        assert_eq!(retained.at(at(2)), None);
        assert_eq!(retained.by_record.len(), retained.by_topic.len());
        retained.mark_stored("a", at(1), 3);
        assert_eq!(retained.stored_at(at(7)), None);
        let within = |retained: &Retained| retained.within(P, &(Offset(0)..Offset(9)));
        assert_eq!(within(&retained), Some(vec![("a".into(), at(7))]));
        retained.mark_stored("a", at(7), 3);
        assert_eq!(retained.stored_at(at(7)).as_deref(), Some("a"));
        assert_eq!(within(&retained), Some(Vec::new()));
    }
}
