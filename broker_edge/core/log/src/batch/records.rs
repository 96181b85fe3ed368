//! Builder for the records that one caller appends to one partition at once, for example in one turn of a loop.
//!
//! It already holds the sections of a batch (`docs/format.md`), so that building a batch is copying them. Offsets and
//! times are given by the partition when it takes the records.

use std::ops::Range;

use crate::batch::layout::{
    ENTRY_BYTES, Entry, FLAG_EXTENSION, FLAG_RETAIN, HEADER_BYTES, TAG_HEADERS,
    TAG_IDEMPOTENCY_KEY, TAG_KEY, TAG_PROPERTIES, TAG_PUBLISH_ID,
};
use crate::batch::payloads::Payloads;
use crate::batch::view::PublishId;

/// Bound of payloads and extensions of one `Records` together; callers append much earlier.
pub const MAX_RECORDS_BYTES: usize = 1 << 30;

/// Index of a topic in the table of its `Records`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopicIndex(pub u16);

/// Index of a client id in the table of its `Records`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientIndex(pub u16);

/// A table or the builder is full: append what it holds, clear it and begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the records of one append are full: at most 65,535 topics, 65,535 clients and 1 GiB")]
pub struct RecordsFull;

/// A record without its payload.
#[derive(Debug, Clone, Copy)]
pub struct RecordMeta<'a> {
    pub topic: TopicIndex,
    pub client: ClientIndex,
    pub qos: u8,
    pub retain: bool,
    /// Replaces the routing level of the topic as the record's key.
    pub key: Option<&'a [u8]>,
    pub idempotency_key: Option<&'a str>,
    /// Forwardable MQTT 5 properties in MQTT's encoding, without the length in front.
    pub properties: &'a [u8],
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The QoS 2 publish that this record came from, so that a start finds the packet ids in use.
    pub publish_id: Option<PublishId>,
}

impl RecordMeta<'_> {
    /// A plain record: no key of its own, no properties, no headers.
    #[must_use]
    pub const fn new(topic: TopicIndex, client: ClientIndex, qos: u8) -> Self {
        Self {
            topic,
            client,
            qos,
            retain: false,
            key: None,
            idempotency_key: None,
            properties: &[],
            headers: &[],
            publish_id: None,
        }
    }

    const fn has_extension(&self) -> bool {
        self.key.is_some()
            || self.idempotency_key.is_some()
            || !self.properties.is_empty()
            || !self.headers.is_empty()
            || self.publish_id.is_some()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Records {
    pub(crate) topics: Vec<u8>,
    pub(crate) topic_count: u16,
    pub(crate) clients: Vec<u8>,
    pub(crate) client_count: u16,
    pub(crate) entries: Vec<u8>,
    pub(crate) extensions: Vec<u8>,
    pub(crate) payloads: Payloads,
    /// Indexes of the records with an idempotency key, ascending.
    pub(crate) keyed: Vec<u32>,
}

impl Records {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all records and keeps the buffers. Earlier topic and client indexes become invalid.
    pub fn clear(&mut self) {
        self.topics.clear();
        self.topic_count = 0;
        self.clients.clear();
        self.client_count = 0;
        self.entries.clear();
        self.extensions.clear();
        self.payloads.clear();
        self.keyed.clear();
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// Size of the batch that these records would make alone.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.head_bytes() + self.payloads.len()
    }

    /// The part of [`bytes`](Self::bytes) before the payloads.
    pub(crate) fn head_bytes(&self) -> usize {
        HEADER_BYTES
            + self.topics.len()
            + self.clients.len()
            + self.entries.len()
            + self.extensions.len()
    }

    pub(crate) fn has_tables_of(&self, other: &Self) -> bool {
        self.topics == other.topics && self.clients == other.clients
    }

    /// Memory that it still holds after [`clear`](Self::clear).
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.topics.capacity()
            + self.clients.capacity()
            + self.entries.capacity()
            + self.extensions.capacity()
            + self.payloads.capacity()
            + self.keyed.capacity() * size_of::<u32>()
    }

    /// Adds a topic to the table; `key` is the range of its routing level. Callers keep the index for further records.
    pub fn topic(&mut self, topic: &str, key: Range<u16>) -> Result<TopicIndex, RecordsFull> {
        let length = u16::try_from(topic.len()).map_err(|_| RecordsFull)?;
        let index = self.topic_count;
        self.topic_count = index.checked_add(1).ok_or(RecordsFull)?;
        let key = if key.start <= key.end && key.end <= length {
            key
        } else {
            0..length
        };
        self.topics.extend_from_slice(&length.to_le_bytes());
        self.topics.extend_from_slice(&key.start.to_le_bytes());
        self.topics
            .extend_from_slice(&(key.end - key.start).to_le_bytes());
        self.topics.extend_from_slice(topic.as_bytes());
        Ok(TopicIndex(index))
    }

    /// Adds a client id to the table. Callers keep the index for further records.
    pub fn client(&mut self, id: &str) -> Result<ClientIndex, RecordsFull> {
        let length = u16::try_from(id.len()).map_err(|_| RecordsFull)?;
        let index = self.client_count;
        self.client_count = index.checked_add(1).ok_or(RecordsFull)?;
        self.clients.extend_from_slice(&length.to_le_bytes());
        self.clients.extend_from_slice(id.as_bytes());
        Ok(ClientIndex(index))
    }

    /// Adds a record. Its topic and client must come from this builder since it was last cleared.
    pub fn push(&mut self, meta: RecordMeta<'_>, payload: &[u8]) -> Result<(), RecordsFull> {
        assert!(
            meta.topic.0 < self.topic_count && meta.client.0 < self.client_count,
            "topic and client indexes belong to another Records"
        );
        if self.payloads.len() + self.extensions.len() + payload.len() > MAX_RECORDS_BYTES {
            return Err(RecordsFull);
        }
        let mut flags = u16::from(meta.qos & 0b11);
        if meta.retain {
            flags |= FLAG_RETAIN;
        }
        if meta.has_extension() {
            flags |= FLAG_EXTENSION;
            self.push_extension(&meta)?;
        }
        self.payloads.push(payload);
        let entry = Entry {
            topic: meta.topic.0,
            client: meta.client.0,
            time_delta_us: 0,
            // Both fit: the sum is bounded by MAX_RECORDS_BYTES above.
            payload_end: self.payloads.len() as u32,
            extension_end: self.extensions.len() as u32,
            flags,
        };
        self.entries.extend_from_slice(&entry.to_bytes());
        Ok(())
    }

    fn push_extension(&mut self, meta: &RecordMeta<'_>) -> Result<(), RecordsFull> {
        let headers: usize = meta
            .headers
            .iter()
            .map(|(key, value)| 6 + key.len() + value.len())
            .sum();
        let size = meta.key.map_or(0, <[u8]>::len)
            + meta.idempotency_key.map_or(0, str::len)
            + meta.properties.len()
            + headers;
        let names_fit = meta
            .headers
            .iter()
            .all(|(key, _)| key.len() <= usize::from(u16::MAX));
        if self.payloads.len() + self.extensions.len() + size + 48 > MAX_RECORDS_BYTES || !names_fit
        {
            return Err(RecordsFull);
        }
        let out = &mut self.extensions;
        if let Some(key) = meta.key {
            push_field(out, TAG_KEY, key);
        }
        if let Some(key) = meta.idempotency_key {
            push_field(out, TAG_IDEMPOTENCY_KEY, key.as_bytes());
            self.keyed.push((self.entries.len() / ENTRY_BYTES) as u32);
        }
        if !meta.properties.is_empty() {
            push_field(out, TAG_PROPERTIES, meta.properties);
        }
        if !meta.headers.is_empty() {
            begin_field(out, TAG_HEADERS, headers);
            for (key, value) in meta.headers {
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(value);
            }
        }
        if let Some(id) = meta.publish_id {
            push_field(out, TAG_PUBLISH_ID, &id.to_bytes());
        }
        Ok(())
    }

    pub(crate) fn entry(&self, index: usize) -> Entry {
        Entry::from_bytes(&self.entries[index * ENTRY_BYTES..])
    }

    /// Ends of payloads and extensions before record `index`, which may be the length.
    pub(crate) fn ends_before(&self, index: usize) -> (usize, usize) {
        if index == 0 {
            return (0, 0);
        }
        let entry = self.entry(index - 1);
        (entry.payload_end as usize, entry.extension_end as usize)
    }

    /// The table of topics.
    pub(crate) fn topic_names(&self) -> Vec<&str> {
        let mut names = Vec::with_capacity(usize::from(self.topic_count));
        let mut bytes = &self.topics[..];
        while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length));
            // The length is followed by the position of the key.
            let Some((name, rest)) = rest.get(4..).and_then(|rest| rest.split_at_checked(length))
            else {
                break;
            };
            names.push(std::str::from_utf8(name).unwrap_or_default());
            bytes = rest;
        }
        names
    }

    /// The idempotency key of record `index`, when it has one.
    pub(crate) fn idempotency_key(&self, index: usize) -> Option<&str> {
        let (_, start) = self.ends_before(index);
        let end = self.entry(index).extension_end as usize;
        let bytes =
            crate::batch::view::Extension::new(&self.extensions[start..end]).idempotency_key?;
        std::str::from_utf8(bytes).ok()
    }

    /// A copy without the records for which `drop` is true.
    pub(crate) fn without(&self, drop: &[bool]) -> Self {
        let mut kept = Self {
            topics: self.topics.clone(),
            topic_count: self.topic_count,
            clients: self.clients.clone(),
            client_count: self.client_count,
            ..Self::default()
        };
        for index in (0..self.len()).filter(|index| !drop[*index]) {
            let (payload_start, extension_start) = self.ends_before(index);
            let mut entry = self.entry(index);
            kept.payloads
                .push(self.payloads.get(payload_start..entry.payload_end as usize));
            kept.extensions
                .extend_from_slice(&self.extensions[extension_start..entry.extension_end as usize]);
            entry.payload_end = kept.payloads.len() as u32;
            entry.extension_end = kept.extensions.len() as u32;
            if self.keyed.binary_search(&(index as u32)).is_ok() {
                kept.keyed.push(kept.len() as u32);
            }
            kept.entries.extend_from_slice(&entry.to_bytes());
        }
        kept
    }
}

fn begin_field(out: &mut Vec<u8>, tag: u8, length: usize) {
    out.push(tag);
    out.extend_from_slice(&(length as u32).to_le_bytes());
}

fn push_field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    begin_field(out, tag, bytes.len());
    out.extend_from_slice(bytes);
}
