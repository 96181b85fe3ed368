//! A batch of records: checked bytes with a parsed header, shared by every reader.
//!
//! `decode.rs` has checked every count and length against the bytes, so that the accessors cannot fail.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::batch::buffers::Chunk;
use crate::batch::by_topic::ByTopic;
use crate::batch::layout::{
    BATCH_HOLDS_PURGED, ENTRY_BYTES, Entry, FLAG_EXTENSION, FLAG_PURGED, FLAG_QOS, FLAG_RETAIN,
    Header, u16_at, u32_at,
};
use crate::batch::name_table::Name;
use crate::batch::view::{Extension, RecordView};
use crate::ids::{Epoch, Offset};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicView<'a> {
    pub topic: &'a str,
    /// The routing level.
    pub key: &'a [u8],
}

#[derive(Clone)]
pub struct Batch(pub(super) Arc<Inner>);

pub(super) struct Inner {
    /// May hold other batches too: one large read gives many.
    pub(super) bytes: Arc<Chunk>,
    /// Position of this batch in `bytes`.
    pub(super) start: usize,
    pub(super) header: Header,
    /// Topics and client ids, one after the other; checked once to be UTF-8.
    pub(super) names: String,
    pub(super) topics: Box<[Name]>,
    pub(super) clients: Box<[Name]>,
    pub(super) entries_at: usize,
    pub(super) extensions_at: usize,
    pub(super) payloads_at: usize,
    /// Built by the first call of `records_of`.
    pub(super) by_topic: OnceLock<ByTopic>,
}

/// The bytes of the batch as stored, as [`Batch::bytes`].
impl AsRef<[u8]> for Batch {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Batch {
    #[must_use]
    pub fn base_offset(&self) -> Offset {
        self.0.header.base_offset
    }

    /// The offset after the last record.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        self.0.header.next_offset()
    }

    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.header.epoch
    }

    #[must_use]
    pub fn base_time_us(&self) -> i64 {
        self.0.header.base_time_us
    }

    /// Number of records; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.header.records as usize
    }

    /// Size of the stored batch.
    #[must_use]
    pub fn bytes_len(&self) -> usize {
        self.0.header.total()
    }

    /// The bytes of the batch as stored. A replica copies these.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes[self.0.start..self.0.start + self.0.header.total()]
    }

    /// Memory that this batch keeps, for bounds, as if no other batch shared its bytes. Constant for the life of the
    /// batch, so it leaves out the table by topic, which is built later: at most 24 bytes a record.
    pub(crate) fn memory(&self) -> usize {
        let names = self.0.topics.len() + self.0.clients.len();
        self.0.bytes.capacity()
            + self.0.names.len()
            + names * size_of::<Name>()
            + size_of::<Inner>()
    }

    /// Memory that these batches keep. A buffer counts once when the batches in it are neighbours.
    #[must_use]
    pub fn kept_bytes<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> usize {
        let (mut kept, mut last) = (0, std::ptr::null());
        for batch in batches {
            let buffer = Arc::as_ptr(&batch.0.bytes);
            if buffer == last {
                kept -= batch.0.bytes.capacity();
            }
            kept += batch.memory();
            last = buffer;
        }
        kept
    }

    pub(crate) fn shares_buffer_with(&self, other: &Batch) -> bool {
        Arc::ptr_eq(&self.0.bytes, &other.0.bytes)
    }

    /// Copies batches into a buffer of their own when they fill less than half of the buffer that they keep alive.
    pub(crate) fn leave_large_buffer(batches: &mut [Batch]) {
        let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
        let is_small = |batch: &Batch| bytes < batch.0.bytes.capacity() / 2;
        if !batches.first().is_some_and(is_small) {
            return;
        }
        let mut own = Vec::with_capacity(bytes);
        for batch in &*batches {
            own.extend_from_slice(batch.bytes());
        }
        let (own, mut start) = (Arc::new(Chunk::from(own)), 0);
        for batch in batches {
            let end = start + batch.bytes_len();
            *batch = batch.moved(&own, start);
            start = end;
        }
    }

    /// The same batch, with its bytes in another buffer.
    fn moved(&self, bytes: &Arc<Chunk>, start: usize) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            bytes: Arc::clone(bytes),
            start,
            header: inner.header,
            names: inner.names.clone(),
            topics: inner.topics.clone(),
            clients: inner.clients.clone(),
            entries_at: inner.entries_at,
            extensions_at: inner.extensions_at,
            payloads_at: inner.payloads_at,
            by_topic: OnceLock::new(),
        }))
    }

    pub(crate) fn flags(&self) -> u8 {
        self.0.header.flags
    }

    pub(crate) fn checksum(&self) -> u32 {
        self.0.header.checksum
    }

    /// Whether any record was purged, without looking at the records.
    #[must_use]
    pub fn holds_purged(&self) -> bool {
        self.0.header.flags & BATCH_HOLDS_PURGED != 0
    }

    /// All bytes before the payloads.
    fn head(&self) -> &[u8] {
        &self.0.bytes[self.0.start..self.0.start + self.0.payloads_at]
    }

    /// The bytes of record `index`'s extension. Panics when there is no such record.
    pub(crate) fn extension(&self, index: usize) -> &[u8] {
        let before = index.checked_sub(1);
        let start = before.map_or(0, |before| self.entry(before).extension_end);
        let extensions = &self.head()[self.0.extensions_at..];
        &extensions[start as usize..self.entry(index).extension_end as usize]
    }

    /// The table of topics; [`topic_index`](Self::topic_index) points into it. A topic may occur twice.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = TopicView<'_>> {
        self.0.topics.iter().map(|name| self.topic_view(*name))
    }

    /// Numbers of the records of a topic, from number `from` on, in offset order unless the topic is in the table more
    /// than once. The first call goes through the whole batch, later calls look the topic up.
    pub fn records_of<'a>(&'a self, topic: &'a str, from: usize) -> impl Iterator<Item = usize> {
        let by_topic = self.0.by_topic.get_or_init(|| self.group_by_topic());
        by_topic
            .find(topic, |index| self.topic(index).topic)
            .flat_map(move |records| {
                let begin = records.partition_point(|record| (*record as usize) < from);
                records[begin..].iter().map(|record| *record as usize)
            })
    }

    fn group_by_topic(&self) -> ByTopic {
        let records = (0..self.len()).map(|index| self.topic_index(index));
        ByTopic::new(self.topics().map(|view| view.topic), records)
    }

    /// The topic at an index of the table. Panics when there is none.
    #[must_use]
    pub fn topic(&self, index: u16) -> TopicView<'_> {
        self.topic_view(self.0.topics[usize::from(index)])
    }

    /// The client id at an index of the table. Panics when there is none.
    #[must_use]
    pub fn client(&self, index: u16) -> &str {
        self.name(self.0.clients[usize::from(index)])
    }

    /// Whether any record has the retain flag. Cheaper than decoding each record.
    #[must_use]
    pub fn has_retained(&self) -> bool {
        let entries = &self.bytes()[self.0.entries_at..self.0.extensions_at];
        entries
            .chunks_exact(ENTRY_BYTES)
            .any(|entry| u16_at(entry, 16) & FLAG_RETAIN != 0)
    }

    /// Index of record `index`'s topic in the table. Panics when there is no such record.
    #[inline]
    #[must_use]
    pub fn topic_index(&self, index: usize) -> u16 {
        u16_at(self.head(), self.0.entries_at + index * ENTRY_BYTES)
    }

    /// All payloads, one after the other.
    #[must_use]
    pub fn payloads(&self) -> &[u8] {
        &self.bytes()[self.0.payloads_at..]
    }

    /// The payload of record `index`, without decoding the rest of the record. Panics when there is none.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        let before = index.checked_sub(1);
        let start = before.map_or(0, |before| self.payload_end(before));
        &self.payloads()[start as usize..self.payload_end(index) as usize]
    }

    /// Where the payload of record `index` ends in [`payloads`](Self::payloads); it begins where the one before ends.
    #[inline]
    #[must_use]
    pub fn payload_end(&self, index: usize) -> u32 {
        u32_at(self.head(), self.0.entries_at + index * ENTRY_BYTES + 8)
    }

    /// Record `index`, counted from the base offset. Panics when there is none.
    #[must_use]
    pub fn record(&self, index: usize) -> RecordView<'_> {
        let (header, entry) = (&self.0.header, self.entry(index));
        let extension = if entry.flags & FLAG_EXTENSION == 0 {
            Extension::default()
        } else {
            Extension::new(self.extension(index))
        };
        let topic = self.topic(entry.topic);
        RecordView {
            offset: header.base_offset.plus(index as u64),
            epoch: header.epoch,
            time_us: header
                .base_time_us
                .saturating_add(i64::from(entry.time_delta_us)),
            topic_index: entry.topic,
            topic: topic.topic,
            key: extension.key.unwrap_or(topic.key),
            client_id: self.client(entry.client),
            qos: (entry.flags & FLAG_QOS) as u8,
            retain: entry.flags & FLAG_RETAIN != 0,
            purged: entry.flags & FLAG_PURGED != 0,
            idempotency_key: extension
                .idempotency_key
                .map(|key| std::str::from_utf8(key).unwrap_or_default()),
            properties: extension.properties,
            headers: extension.headers,
            publish_id: extension.publish_id,
            payload: self.payload(index),
        }
    }

    pub fn records(&self) -> impl ExactSizeIterator<Item = RecordView<'_>> {
        (0..self.len()).map(|index| self.record(index))
    }

    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Entry {
        Entry::from_bytes(&self.head()[self.0.entries_at + index * ENTRY_BYTES..])
    }

    fn name(&self, name: Name) -> &str {
        let start = name.start as usize;
        &self.0.names[start..start + usize::from(name.length)]
    }

    fn topic_view(&self, name: Name) -> TopicView<'_> {
        let topic = self.name(name);
        let key_start = usize::from(name.key_start);
        let key = &topic.as_bytes()[key_start..key_start + usize::from(name.key_length)];
        TopicView { topic, key }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (base, next, epoch) = (self.base_offset(), self.next_offset(), self.epoch());
        write!(f, "Batch[{base}, {next}) epoch {epoch}")
    }
}

#[cfg(test)]
#[path = "record_batch_tests.rs"]
pub(crate) mod tests;
