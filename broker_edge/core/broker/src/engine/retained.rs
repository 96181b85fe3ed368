//! Which record is the retained message of each topic. Places only: the values are read from the log when they are sent.
//!
//! Follows from the data records; it is rebuilt at start from the log and from the values that the state store took over
//! before their segment was removed.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use headwater_log::{Class, Log, Offset, ReadError, RecordView, RetainedPlace};
use headwater_mqtt::filter_matches;
use serde::{Deserialize, Serialize};

use crate::state::StateStore;

use super::Engine;
use super::stage::PartitionIndex;

/// Where the retained message of a topic is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub topic: Arc<str>,
    pub partition: PartitionIndex,
    /// Its offset, be it still in the log or not.
    pub offset: Offset,
    /// The segment is gone, the state store has the value.
    pub stored: bool,
    /// Of the topic, and of the payload where it is known.
    pub bytes: u64,
}

/// A retained message whose segment is gone, as the state store keeps it.
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
    by_topic: BTreeMap<Arc<str>, Place>,
    bytes: u64,
    topics_max: usize,
    bytes_max: u64,
}

fn bytes_of(topic: &str, payload_bytes: usize) -> u64 {
    (topic.len() + payload_bytes) as u64
}

pub fn state_key(topic: &str) -> String {
    format!("retained/{topic}")
}

impl Retained {
    /// # Errors
    /// A log that cannot be read.
    pub fn load(
        log: &Log,
        state: &StateStore,
        (topics_max, bytes_max): (usize, u64),
    ) -> Result<Self, ReadError> {
        // What was taken stays, also when the limits were lowered since.
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
                    let place = Place {
                        topic: Arc::clone(&topic),
                        partition,
                        offset: Offset(stored.offset),
                        stored: true,
                        bytes: bytes_of(&topic, stored.payload.len() / 2),
                    };
                    retained.put(topic, place);
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
            partition.for_each_retained_place(&mut |topic, place| {
                // The index does not say how large the value is, and it takes no memory before it is copied.
                retained.apply_place(topic, index, place, 0);
            })?;
        }
        retained.limit(topics_max, bytes_max);
        Ok(retained)
    }

    /// Takes a record with the retain flag in. Gives the place it replaced.
    pub fn apply(&mut self, record: &RecordView<'_>, partition: PartitionIndex) -> Option<Place> {
        let place = RetainedPlace {
            offset: record.offset,
            is_cleared: record.payload.is_empty(),
        };
        // Publishers are refused before: this is for records that other ways than MQTT brought in.
        if !place.is_cleared
            && !self.by_topic.contains_key(record.topic)
            && self.is_full_for(record.topic, record.payload.len())
        {
            tracing::debug!(topic = record.topic, "one retained message too many");
            return None;
        }
        self.apply_place(record.topic, partition, place, record.payload.len())
    }

    fn apply_place(
        &mut self,
        topic: &str,
        partition: PartitionIndex,
        place: RetainedPlace,
        payload_bytes: usize,
    ) -> Option<Place> {
        let old = self.by_topic.get(topic);
        if old.is_some_and(|old| old.partition == partition && old.offset > place.offset) {
            return None;
        }
        if place.is_cleared {
            let old = self.by_topic.remove(topic)?;
            self.bytes -= old.bytes;
            return Some(old);
        }
        let bytes = bytes_of(topic, payload_bytes);
        let topic = old.map_or_else(|| topic.into(), |old| Arc::clone(&old.topic));
        let place = Place {
            topic: Arc::clone(&topic),
            partition,
            offset: place.offset,
            stored: false,
            bytes,
        };
        self.put(topic, place)
    }

    /// Sets how much there may be.
    pub fn limit(&mut self, topics_max: usize, bytes_max: u64) {
        (self.topics_max, self.bytes_max) = (topics_max, bytes_max);
    }

    fn put(&mut self, topic: Arc<str>, place: Place) -> Option<Place> {
        self.bytes += place.bytes;
        let old = self.by_topic.insert(topic, place)?;
        self.bytes -= old.bytes;
        Some(old)
    }

    /// Whether the retained message of one topic more, or a larger one, is over the limits.
    pub fn is_full_for(&self, topic: &str, payload_bytes: usize) -> bool {
        let old = self.by_topic.get(topic);
        let freed = old.map_or(0, |old| old.bytes);
        let bytes = bytes_of(topic, payload_bytes);
        (old.is_none() && self.by_topic.len() >= self.topics_max)
            || (bytes > freed && self.bytes - freed + bytes > self.bytes_max)
    }

    /// Topics with a retained message, and their bytes.
    pub fn held(&self) -> (usize, u64) {
        (self.by_topic.len(), self.bytes)
    }

    pub fn get(&self, topic: &str) -> Option<&Place> {
        self.by_topic.get(topic)
    }

    /// The places that a filter reaches, in order of partition and offset, so that reading them is one way through the
    /// log.
    pub fn matching(&self, filter: &str) -> Vec<Place> {
        let Some(wildcard) = filter.find(['+', '#']) else {
            return self.get(filter).cloned().into_iter().collect();
        };
        // `a/#` reaches `a` itself.
        let prefix = filter[..wildcard].trim_end_matches('/');
        let from_prefix = self
            .by_topic
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let mut places: Vec<Place> = from_prefix
            .take_while(|(topic, _)| topic.starts_with(prefix))
            .filter(|(topic, _)| filter_matches(filter, topic))
            .map(|(_, place)| place.clone())
            .collect();
        places.sort_unstable_by_key(|place| (place.partition, place.offset));
        places
    }

    /// The topic whose value the state store has from this place.
    pub fn stored_at(&self, partition: PartitionIndex, offset: Offset) -> Option<Arc<str>> {
        let mut places = self.by_topic.values();
        let place = places
            .find(|place| place.stored && place.partition == partition && place.offset == offset)?;
        Some(Arc::clone(&place.topic))
    }

    /// Places of one partition within a range that no state record holds yet.
    fn within(&self, partition: PartitionIndex, range: &Range<Offset>) -> Vec<Place> {
        let wanted = |place: &&Place| {
            !place.stored && place.partition == partition && range.contains(&place.offset)
        };
        self.by_topic.values().filter(wanted).cloned().collect()
    }

    fn mark_stored(&mut self, place: &Place, payload_bytes: usize) {
        if let Some(current) = self.by_topic.get_mut(&place.topic)
            && current.partition == place.partition
            && current.offset == place.offset
        {
            current.stored = true;
            let bytes = bytes_of(&place.topic, payload_bytes);
            self.bytes = self.bytes - current.bytes + bytes;
            current.bytes = bytes;
        }
    }
}

impl Engine {
    /// Has retention wait until the retained values of a segment are in the state store.
    pub(super) fn guard_retained(&self) {
        for partition in self
            .log
            .partitions()
            .iter()
            .filter(|partition| partition.class() != Class::Internal)
        {
            let index = PartitionIndex::of(partition.id());
            let (retained, state, own) = (
                Arc::clone(&self.retained),
                Arc::clone(&self.state),
                partition.clone(),
            );
            partition.before_delete(Arc::new(move |range: Range<Offset>| {
                let places = retained.lock().within(index, &range);
                for place in places {
                    let Some(value) = stored_value(&own, &place) else { return false };
                    let text = serde_json::to_vec(&value).expect("a plain structure becomes JSON");
                    if let Err(error) = state.put(&state_key(&place.topic), &text) {
                        tracing::warn!(%error, topic = &*place.topic, "a retained message cannot be kept, its segment stays");
                        return false;
                    }
                    retained.lock().mark_stored(&place, value.payload.len() / 2);
                }
                // What was just put has to survive a crash before the segment may go.
                state.durable() >= state.end()
            }));
        }
    }
}

fn stored_value(partition: &headwater_log::Partition, place: &Place) -> Option<StoredValue> {
    let batches = partition.read(place.offset, 1).ok()?;
    let batch = batches.first()?;
    let record =
        batch.record(usize::try_from(place.offset.0.checked_sub(batch.base_offset().0)?).ok()?);
    Some(StoredValue {
        partition: place.partition.0,
        offset: place.offset.0,
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

    fn place(topic: &str, offset: u64) -> Place {
        Place {
            topic: topic.into(),
            partition: PartitionIndex(3),
            offset: Offset(offset),
            stored: false,
            bytes: 0,
        }
    }

    #[test]
    fn a_filter_reaches_its_retained_topics_in_order_of_place() {
        let mut retained = Retained::default();
        for (topic, offset) in [("a", 9), ("a/b", 3), ("a/c", 5), ("ab", 1), ("$SYS/x", 2)] {
            retained.by_topic.insert(topic.into(), place(topic, offset));
        }
        let topics = |filter: &str| -> Vec<String> {
            retained
                .matching(filter)
                .iter()
                .map(|place| place.topic.to_string())
                .collect()
        };
        assert_eq!(topics("a/#"), ["a/b", "a/c", "a"]);
        assert_eq!(topics("a/+"), ["a/b", "a/c"]);
        assert_eq!(topics("#"), ["ab", "a/b", "a/c", "a"]);
        assert_eq!(topics("+"), ["ab", "a"]);
        assert_eq!(topics("$SYS/#"), ["$SYS/x"]);
        assert_eq!(topics("a/b"), ["a/b"]);
        assert!(topics("b").is_empty());
    }

    #[test]
    fn hexadecimal_reads_back_and_refuses_what_is_none() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 0xff])), Some(vec![0, 1, 0xff]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
    }
}
