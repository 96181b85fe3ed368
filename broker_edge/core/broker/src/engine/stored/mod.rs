//! The values in the state store: one file per key with its types. A change of the bytes needs a version that still
//! reads the old ones.
//!
//! Partitions are stored by name, because their numbers follow from the configuration.

pub mod cursors;
pub mod received;
pub mod received_mark;
pub mod retained;
pub mod sent;
pub mod session;
pub mod share;
pub mod will;

use std::collections::BTreeMap;

use headwater_log::{Offset, Partition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ids::{PartitionIndex, PartitionOffset};

/// A key with its value; an empty value removes the key.
pub type KeyValue = (String, Vec<u8>);

/// Offsets by partition name.
pub type ByName = BTreeMap<String, u64>;

pub fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a plain structure becomes JSON")
}

pub fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(value)
}

/// The names of the partitions, by index.
#[derive(Clone, Copy)]
pub struct Names<'a>(pub &'a [Partition]);

impl Names<'_> {
    pub fn of(self, partition: PartitionIndex) -> String {
        self.0[partition.index()].name().to_owned()
    }

    /// `None` if the configuration no longer has the partition.
    pub fn partition(self, name: &str) -> Option<PartitionIndex> {
        let found = self.0.iter().find(|partition| partition.name() == name)?;
        Some(PartitionIndex::of(found.id()))
    }

    pub fn offsets(self, offsets: impl Iterator<Item = PartitionOffset>) -> ByName {
        offsets
            .map(|(partition, offset)| (self.of(partition), offset.0))
            .collect()
    }

    /// Stored offsets by partition, for the partitions that still exist.
    pub fn by_partition(self, offsets: &ByName) -> Vec<PartitionOffset> {
        let known = |(name, offset): (&String, &u64)| {
            let partition = self.partition(name)?;
            Some((partition, self.within_log(partition, *offset)))
        };
        offsets.iter().filter_map(known).collect()
    }

    /// Limits a stored offset to the log. If a partition was restored from an older copy, it ends before that offset,
    /// and new records there are new to the reader.
    pub fn within_log(self, partition: PartitionIndex, offset: u64) -> Offset {
        Offset(offset).min(self.0[partition.index()].high_watermark())
    }
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
    use crate::engine::tests::stored_bytes::literals::{
        RETAINED, SHARED_GROUP, SHARED_SESSION, STORED,
    };

    /// The value as it is written after it was read.
    fn again<T: Serialize + DeserializeOwned>(value: &str) -> String {
        let read: T = decode(value.as_bytes()).expect("it was written by a broker");
        String::from_utf8(encode(&read)).expect("JSON")
    }

    #[test]
    fn every_value_has_its_key_and_is_written_as_it_was_read() {
        let mut seen = std::collections::BTreeSet::new();
        let others = [RETAINED, SHARED_GROUP, SHARED_SESSION];
        for (key, value) in STORED.into_iter().chain(others) {
            let (kind, id) = key.split_once('/').expect("a kind and an id");
            let (written, same_key) = match kind {
                "cursor" => (again::<cursors::Cursors>(value), cursors::key(id)),
                "mark" => (
                    again::<received_mark::Mark>(value),
                    received_mark::KEY.to_owned(),
                ),
                "received" => (again::<received::Received>(value), received::key(id)),
                "retained" => (again::<retained::Value>(value), retained::key(id)),
                "sent" => (again::<sent::Sent>(value), sent::key(id)),
                "session" => (again::<session::Session>(value), session::key(id)),
                "share" => {
                    let name = format!("$share/{id}");
                    (again::<share::Group>(value), share::key(&name))
                }
                "will" => (again::<will::Will>(value), will::key(id)),
                _ => panic!("no file has {key}"),
            };
            assert_eq!((written.as_str(), same_key.as_str()), (value, key));
            seen.insert(kind);
        }
        assert_eq!(seen.len(), 8, "{seen:?}");
    }

    #[test]
    fn hexadecimal_reads_back_and_refuses_what_is_none() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 0xff])), Some(vec![0, 1, 0xff]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
    }
}
