//! Which record is the retained message of each topic. Only references: the values are read from the log when they are
//! sent. Ordered by topic, and by position in the log, which is the order in which a subscriber of many is served.
//!
//! Derived from the data records. At start it is rebuilt from the log and from the values that the state store took
//! over before their segment was removed.

pub mod retained_cursor;

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use headwater_log::{Class, Log, Offset, ReadError, RecordView, RetainedOffset};
use headwater_mqtt::filter_matches;
use serde::{Deserialize, Serialize};

use crate::state::StateStore;

use super::Engine;
use super::ids::PartitionIndex;
use super::quotas::AccountId;

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

/// A retained message whose segment is gone, as stored in the state store.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoredValue {
    pub partition: u16,
    pub offset: u64,
    pub time_us: i64,
    pub client_id: String,
    pub qos: u8,
    /// Hexadecimal.
    pub properties: String,
    /// Hexadecimal.
    pub payload: String,
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
}

pub(super) fn bytes_of(topic: &str, payload_bytes: usize) -> u64 {
    (topic.len() + payload_bytes) as u64
}

pub fn state_key(topic: &str) -> String {
    format!("retained/{topic}")
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
            ..Self::default()
        };
        state.for_each_prefix("retained/", |key, value| {
            let Some(topic) = key.strip_prefix("retained/") else {
                return;
            };
            match serde_json::from_slice::<StoredValue>(value) {
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
        // Publishers are refused earlier: this is for records that did not come over MQTT.
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

    pub(super) fn entry_of(&self, topic: &str) -> Option<RetainedEntry> {
        self.by_topic.get(topic).copied()
    }

    /// Notes the account of a retained message, if it is still this record. Returns its bytes.
    pub(super) fn charge(
        &mut self,
        topic: &str,
        at: RecordRef,
        account: Option<AccountId>,
    ) -> Option<u64> {
        let entry = self.by_topic.get_mut(topic)?;
        (entry.at == at).then(|| {
            entry.account = account;
            entry.bytes
        })
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

    /// The number of topics examined, and the records that a filter matches, in log order, so that they are read in one
    /// pass through the log; `None` if more than `listed_max` match or more than `looked_max` topics had to be
    /// examined.
    pub fn list(
        &self,
        filter: &str,
        (listed_max, looked_max): (usize, usize),
    ) -> (usize, Option<Vec<RecordRef>>) {
        let mut records = Vec::new();
        let mut looked = 0;
        for (topic, entry) in self.reached(filter) {
            looked += 1;
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

    /// The retained messages of a partition within a range that are not in the state store yet.
    fn within(
        &self,
        partition: PartitionIndex,
        range: &Range<Offset>,
    ) -> Vec<(Arc<str>, RecordRef)> {
        let (from, until) = (
            RecordRef::new(partition, range.start),
            RecordRef::new(partition, range.end),
        );
        self.between(from, until)
            .filter(|(at, _)| self.at(*at).is_some_and(|(_, entry)| !entry.stored))
            .map(|(at, topic)| (Arc::clone(topic), at))
            .collect()
    }

    pub(super) fn mark_stored(&mut self, topic: &str, at: RecordRef, payload_bytes: usize) {
        if let Some(current) = self.by_topic.get_mut(topic)
            && current.at == at
        {
            current.stored = true;
            if current.account.is_some() {
                // The payload size was known from the beginning and is counted.
                return;
            }
            let bytes = bytes_of(topic, payload_bytes);
            self.bytes = self.bytes - current.bytes + bytes;
            current.bytes = bytes;
        }
    }
}

impl Engine {
    /// Makes retention wait until the retained values of a segment are in the state store.
    pub(super) fn guard_retained(&self) {
        for partition in self
            .env
            .log
            .partitions()
            .iter()
            .filter(|partition| partition.class() != Class::Internal)
        {
            let index = PartitionIndex::of(partition.id());
            let (retained, state, own) = (
                Arc::clone(&self.retained),
                Arc::clone(&self.store.state),
                partition.clone(),
            );
            partition.before_delete(Arc::new(move |range: Range<Offset>| {
                let records = retained.lock().within(index, &range);
                for (topic, at) in records {
                    let Some(value) = stored_value(&own, at) else { return false };
                    let text = serde_json::to_vec(&value).expect("a plain structure becomes JSON");
                    if let Err(error) = state.put(&state_key(&topic), &text) {
                        tracing::warn!(%error, topic = &*topic, "a retained message cannot be stored, so its segment stays");
                        return false;
                    }
                    retained.lock().mark_stored(&topic, at, value.payload.len() / 2);
                }
                // The values just stored have to survive a crash before the segment may go.
                state.durable() >= state.end()
            }));
        }
    }
}

fn stored_value(partition: &headwater_log::Partition, at: RecordRef) -> Option<StoredValue> {
    let batches = partition.read(at.offset, 1).ok()?;
    let batch = batches.first()?;
    let record =
        batch.record(usize::try_from(at.offset.0.checked_sub(batch.base_offset().0)?).ok()?);
    Some(StoredValue {
        partition: at.partition.0,
        offset: at.offset.0,
        time_us: record.time_us,
        client_id: record.client_id.to_owned(),
        qos: record.qos,
        properties: to_hex(record.properties),
        payload: to_hex(record.payload),
    })
}

pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionIndex = PartitionIndex(3);

    fn retained_of(places: &[(&str, u64)]) -> Retained {
        let mut retained = Retained::default();
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
        assert_eq!(
            retained.within(P, &(Offset(0)..Offset(9))),
            [("a".into(), at(7))]
        );
        retained.mark_stored("a", at(7), 3);
        assert_eq!(retained.stored_at(at(7)).as_deref(), Some("a"));
        assert!(retained.within(P, &(Offset(0)..Offset(9))).is_empty());
    }

    #[test]
    fn hexadecimal_reads_back_and_refuses_what_is_none() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 0xff])), Some(vec![0, 1, 0xff]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
    }
}
