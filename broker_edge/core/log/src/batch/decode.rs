//! A batch of records: checked bytes with a parsed header, shared by every reader.
//!
//! Decoding checks the checksum and then every count and length against the bytes at hand, so that the accessors need
//! not fail and nothing is allocated for a number that the bytes do not cover.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::batch::buffers::Chunk;
use crate::batch::by_topic::ByTopic;
use crate::batch::layout::{
    BATCH_HOLDS_PURGED, CODEC_NONE, ENTRY_BYTES, Entry, FLAG_EXTENSION, FLAG_PURGED, FLAG_QOS,
    FLAG_RETAIN, HEADER_BYTES, Header, Identity, u16_at, u32_at,
};
use crate::batch::name_table::{Name, parse_names};
use crate::batch::view::{Extension, RecordView};
use crate::ids::{Epoch, Offset};

/// Why bytes are no batch of this partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{available} bytes where {needed} are needed")]
    Short { needed: usize, available: usize },
    #[error("checksum {stored:08x} does not match {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("{what} do not fit the batch")]
    Malformed { what: &'static str },
    #[error("codec {codec} is unknown to this version")]
    Codec { codec: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicView<'a> {
    pub topic: &'a str,
    /// The routing level.
    pub key: &'a [u8],
}

#[derive(Clone)]
pub struct Batch(Arc<Inner>);

struct Inner {
    /// May hold other batches too: one large read serves many.
    bytes: Arc<Chunk>,
    /// Place of this batch in `bytes`.
    start: usize,
    header: Header,
    /// Topics and client ids, one after the other: checked once to be text.
    names: String,
    topics: Box<[Name]>,
    clients: Box<[Name]>,
    entries_at: usize,
    extensions_at: usize,
    payloads_at: usize,
    /// Made when somebody asks for the records of a topic.
    by_topic: OnceLock<ByTopic>,
}

impl Batch {
    /// The batch at `start` of `bytes`, which may hold more after it.
    pub(crate) fn decode(
        bytes: &Arc<Chunk>,
        start: usize,
        identity: &Identity,
    ) -> Result<Self, DecodeError> {
        let available = bytes.get(start..).unwrap_or_default();
        let header = Header::parse(available)?;
        let batch = available.get(..header.total()).ok_or(DecodeError::Short {
            needed: header.total(),
            available: available.len(),
        })?;
        let computed = identity.checksum(batch);
        if computed != header.checksum && !crate::faults::trusts_checksums() {
            return Err(DecodeError::Checksum {
                stored: header.checksum,
                computed,
            });
        }
        let batch = Self::parse(Arc::clone(bytes), start, header)?;
        batch.check_entries()?;
        Ok(batch)
    }

    /// A batch that this process has just encoded.
    pub(crate) fn from_encoded(bytes: Arc<Chunk>, start: usize) -> Self {
        let header =
            Header::parse(&bytes[start..]).expect("a batch that was just encoded has a header");
        Self::parse(bytes, start, header).expect("the tables come from Records")
    }

    fn parse(bytes: Arc<Chunk>, start: usize, header: Header) -> Result<Self, DecodeError> {
        if header.codec != CODEC_NONE {
            return Err(DecodeError::Codec {
                codec: header.codec,
            });
        }
        let clients_at = HEADER_BYTES + header.topics_bytes as usize;
        let entries_at = clients_at + header.clients_bytes as usize;
        let extensions_at = entries_at + header.records as usize * ENTRY_BYTES;
        let payloads_at = extensions_at + header.extensions_bytes as usize;
        let batch = &bytes[start..start + header.total()];
        let mut names = Vec::new();
        let topics = parse_names(
            &batch[HEADER_BYTES..clients_at],
            header.topics,
            true,
            &mut names,
        )
        .ok_or(DecodeError::Malformed { what: "topics" })?;
        let clients = parse_names(
            &batch[clients_at..entries_at],
            header.clients,
            false,
            &mut names,
        )
        .ok_or(DecodeError::Malformed { what: "client ids" })?;
        let names =
            String::from_utf8(names).map_err(|_| DecodeError::Malformed { what: "names" })?;
        let name_is_text = |name: &Name| names.is_char_boundary(name.start as usize);
        if !topics.iter().chain(&clients).all(name_is_text) {
            return Err(DecodeError::Malformed { what: "names" });
        }
        Ok(Self(Arc::new(Inner {
            topics: topics.into(),
            clients: clients.into(),
            bytes,
            start,
            header,
            names,
            entries_at,
            extensions_at,
            payloads_at,
            by_topic: OnceLock::new(),
        })))
    }

    fn check_entries(&self) -> Result<(), DecodeError> {
        let header = &self.0.header;
        let extensions = &self.bytes()[self.0.extensions_at..self.0.payloads_at];
        let (mut payload_end, mut extension_end) = (0, 0);
        for index in 0..self.len() {
            let entry = self.entry(index);
            if entry.topic >= header.topics || entry.client >= header.clients {
                return Err(DecodeError::Malformed {
                    what: "topic and client indexes",
                });
            }
            let grows = payload_end <= entry.payload_end && extension_end <= entry.extension_end;
            if !grows
                || entry.payload_end > header.payloads_bytes
                || entry.extension_end > header.extensions_bytes
            {
                return Err(DecodeError::Malformed {
                    what: "record ends",
                });
            }
            let extension = &extensions[extension_end as usize..entry.extension_end as usize];
            if extension.is_empty() == (entry.flags & FLAG_EXTENSION != 0)
                || !Extension::is_well_formed(extension)
            {
                return Err(DecodeError::Malformed { what: "extensions" });
            }
            (payload_end, extension_end) = (entry.payload_end, entry.extension_end);
        }
        if payload_end != header.payloads_bytes || extension_end != header.extensions_bytes {
            return Err(DecodeError::Malformed {
                what: "record ends",
            });
        }
        Ok(())
    }

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

    /// The batch as it is stored: what a replica copies.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes[self.0.start..self.0.start + self.0.header.total()]
    }

    /// Memory that this batch keeps, for bounds; it has its bytes for itself. The same all its life, so without the table
    /// by topic, which is made later: at most 24 bytes a record.
    pub(crate) fn memory(&self) -> usize {
        let names = self.0.topics.len() + self.0.clients.len();
        self.0.bytes.capacity()
            + self.0.names.len()
            + names * size_of::<Name>()
            + size_of::<Inner>()
    }

    /// Memory that these batches keep, each buffer counted once when the batches in it follow one another.
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

    /// Gives batches a buffer of their own, when they are less than half of the one that they keep.
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

    /// The same batch with the same bytes elsewhere.
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

    /// Whether any record was purged, in one look.
    #[must_use]
    pub fn holds_purged(&self) -> bool {
        self.0.header.flags & BATCH_HOLDS_PURGED != 0
    }

    /// The batch but for its payloads: whoever has it may ask for anything else.
    pub(crate) fn without_payloads(&self) -> Self {
        self.moved(&Arc::new(Chunk::from(self.head().to_vec())), 0)
    }

    /// All bytes before the payloads.
    fn head(&self) -> &[u8] {
        &self.0.bytes[self.0.start..self.0.start + self.0.payloads_at]
    }

    /// The bytes of record `index`'s extension. Panics when there is no such record.
    pub(crate) fn extension(&self, index: usize) -> &[u8] {
        let start = match index.checked_sub(1) {
            Some(before) => self.entry(before).extension_end,
            None => 0,
        };
        let extensions = &self.head()[self.0.extensions_at..];
        &extensions[start as usize..self.entry(index).extension_end as usize]
    }

    /// The table of topics; [`topic_index`](Self::topic_index) points into it. A topic may be there twice.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = TopicView<'_>> {
        self.0.topics.iter().map(|name| self.topic_view(*name))
    }

    /// Numbers of the records of a topic from number `from` on, in the order of their offsets unless the topic is in the
    /// table more than once. The first call goes through the whole batch, the others look the topic up.
    pub fn records_of<'a>(&'a self, topic: &'a str, from: usize) -> impl Iterator<Item = usize> {
        let by_topic = self.0.by_topic.get_or_init(|| ByTopic::new(self));
        by_topic.find(self, topic).flat_map(move |records| {
            let begin = records.partition_point(|record| (*record as usize) < from);
            records[begin..].iter().map(|record| *record as usize)
        })
    }

    /// The topic at a place of the table. Panics when there is none.
    #[must_use]
    pub fn topic(&self, index: u16) -> TopicView<'_> {
        self.topic_view(self.0.topics[usize::from(index)])
    }

    /// The client id at a place of the table. Panics when there is none.
    #[must_use]
    pub fn client(&self, index: u16) -> &str {
        self.name(self.0.clients[usize::from(index)])
    }

    /// Whether any record has the retain flag: cheaper than looking at each record.
    #[must_use]
    pub fn has_retained(&self) -> bool {
        let entries = &self.bytes()[self.0.entries_at..self.0.extensions_at];
        entries
            .chunks_exact(ENTRY_BYTES)
            .any(|entry| u16_at(entry, 16) & FLAG_RETAIN != 0)
    }

    /// Place of record `index`'s topic in the table. Panics when there is no such record.
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

    /// The payload of record `index`, without looking at anything else of it. Panics when there is none.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        let start = match index.checked_sub(1) {
            Some(before) => self.payload_end(before),
            None => 0,
        };
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
        self.record_with(index, self.payload(index))
    }

    /// As [`record`](Self::record), with a payload that is not here.
    pub(crate) fn record_with<'a>(&'a self, index: usize, payload: &'a [u8]) -> RecordView<'a> {
        let entry = self.entry(index);
        let extension = if entry.flags & FLAG_EXTENSION == 0 {
            Extension::default()
        } else {
            Extension::new(self.extension(index))
        };
        let topic = self.topic(entry.topic);
        RecordView {
            offset: self.0.header.base_offset.plus(index as u64),
            epoch: self.0.header.epoch,
            time_us: self
                .0
                .header
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
            payload,
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
        write!(
            f,
            "Batch[{}, {}) epoch {}",
            self.base_offset(),
            self.next_offset(),
            self.epoch()
        )
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
pub(crate) mod tests;
