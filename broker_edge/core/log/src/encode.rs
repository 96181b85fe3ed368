//! The bytes of a batch: header, entry and their constants, and how queued records become a batch.
//!
//! `docs/format.md` is the authority. Reading whole batches back is `batch.rs`.

use crate::batch::DecodeError;
use crate::ids::{Epoch, LogId, Offset, PartitionId};
use crate::records::Records;

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const ENTRY_BYTES: usize = 20;
/// A batch holds at most this much, or one larger record.
pub(crate) const MAX_BATCH_BYTES: usize = 4 << 20;
const TABLE_MAX: usize = u16::MAX as usize;

pub(crate) const FLAG_QOS: u16 = 0b11;
pub(crate) const FLAG_RETAIN: u16 = 1 << 2;
pub(crate) const FLAG_PURGED: u16 = 1 << 3;
pub(crate) const FLAG_EXTENSION: u16 = 1 << 4;

pub(crate) const TAG_KEY: u8 = 1;
pub(crate) const TAG_IDEMPOTENCY_KEY: u8 = 2;
pub(crate) const TAG_PROPERTIES: u8 = 3;
pub(crate) const TAG_HEADERS: u8 = 4;

pub(crate) const CODEC_NONE: u8 = 0;
/// The batch before this one was not synced when this one was written, so a valid batch with this flag does not prove
/// that a bad one before it had been durable.
pub(crate) const BATCH_AFTER_UNSYNCED: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub topic: u16,
    pub client: u16,
    pub time_delta_us: u32,
    pub payload_end: u32,
    pub extension_end: u32,
    pub flags: u16,
}

impl Entry {
    #[inline]
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0..2].copy_from_slice(&self.topic.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.client.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.time_delta_us.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_end.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.extension_end.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }

    /// The entry at the start of `bytes`, which hold at least one.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let bytes = &bytes[..ENTRY_BYTES];
        Self {
            topic: u16_at(bytes, 0),
            client: u16_at(bytes, 2),
            time_delta_us: u32_at(bytes, 4),
            payload_end: u32_at(bytes, 8),
            extension_end: u32_at(bytes, 12),
            flags: u16_at(bytes, 16),
        }
    }
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The fixed part of a batch, in the order of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes after this field.
    pub length: u32,
    pub checksum: u32,
    pub base_offset: Offset,
    pub epoch: Epoch,
    pub base_time_us: i64,
    pub records: u32,
    pub topics: u16,
    pub clients: u16,
    pub codec: u8,
    pub flags: u8,
    pub topics_bytes: u32,
    pub clients_bytes: u32,
    pub extensions_bytes: u32,
    pub payloads_bytes: u32,
    /// Size of the sections before compression.
    pub uncompressed_bytes: u32,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.base_offset.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.base_time_us.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.records.to_le_bytes());
        bytes[36..38].copy_from_slice(&self.topics.to_le_bytes());
        bytes[38..40].copy_from_slice(&self.clients.to_le_bytes());
        bytes[40] = self.codec;
        bytes[41] = self.flags;
        bytes[44..48].copy_from_slice(&self.topics_bytes.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.clients_bytes.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.extensions_bytes.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.payloads_bytes.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.uncompressed_bytes.to_le_bytes());
        bytes
    }

    /// Parses and checks that the sections add up to the length; says nothing about the checksum.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() < HEADER_BYTES {
            return Err(DecodeError::Short {
                needed: HEADER_BYTES,
                available: bytes.len(),
            });
        }
        let header = Self {
            length: u32_at(bytes, 0),
            checksum: u32_at(bytes, 4),
            base_offset: Offset(u64_at(bytes, 8)),
            epoch: Epoch(u64_at(bytes, 16)),
            base_time_us: u64_at(bytes, 24) as i64,
            records: u32_at(bytes, 32),
            topics: u16_at(bytes, 36),
            clients: u16_at(bytes, 38),
            codec: bytes[40],
            flags: bytes[41],
            topics_bytes: u32_at(bytes, 44),
            clients_bytes: u32_at(bytes, 48),
            extensions_bytes: u32_at(bytes, 52),
            payloads_bytes: u32_at(bytes, 56),
            uncompressed_bytes: u32_at(bytes, 60),
        };
        let sections = u64::from(header.topics_bytes)
            + u64::from(header.clients_bytes)
            + u64::from(header.records) * ENTRY_BYTES as u64
            + u64::from(header.extensions_bytes)
            + u64::from(header.payloads_bytes);
        if sections + HEADER_BYTES as u64 != u64::from(header.length) + 4 || header.records == 0 {
            return Err(DecodeError::Malformed {
                what: "section lengths",
            });
        }
        if header
            .base_offset
            .0
            .checked_add(u64::from(header.records))
            .is_none()
        {
            return Err(DecodeError::Malformed {
                what: "base offset",
            });
        }
        Ok(header)
    }

    /// Bytes of the whole batch.
    pub fn total(&self) -> usize {
        self.length as usize + 4
    }

    pub fn next_offset(&self) -> Offset {
        self.base_offset.plus(u64::from(self.records))
    }
}

/// What a batch is written for; part of its checksum or header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub log_id: LogId,
    pub partition: PartitionId,
}

impl Identity {
    /// CRC-32C over everything after the checksum field, then log id and partition number.
    pub fn checksum(&self, batch: &[u8]) -> u32 {
        let crc = crc32c::crc32c(&batch[8..]);
        let crc = crc32c::crc32c_append(crc, self.log_id.as_bytes());
        crc32c::crc32c_append(crc, &self.partition.0.to_le_bytes())
    }
}

/// Records `[first, last)` of one append, as they go into one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub records: &'a Records,
    pub first: usize,
    pub last: usize,
    pub time_us: i64,
}

impl Part<'_> {
    fn is_whole(&self) -> bool {
        self.first == 0 && self.last == self.records.len()
    }

    fn variable_bytes(&self) -> (usize, usize) {
        let (payload_start, extension_start) = self.records.ends_before(self.first);
        let (payload_end, extension_end) = self.records.ends_before(self.last);
        (payload_end - payload_start, extension_end - extension_start)
    }
}

/// Gathers parts until a batch is full.
#[derive(Debug, Default)]
pub(crate) struct Plan<'a> {
    pub parts: Vec<Part<'a>>,
    bytes: usize,
    topics: usize,
    clients: usize,
}

impl<'a> Plan<'a> {
    /// Takes as many records of `records` from `first` on as fit; returns the index after the last one taken.
    /// An empty plan takes at least one record, however large.
    pub fn take(&mut self, records: &'a Records, first: usize, time_us: i64) -> usize {
        if self.parts.is_empty() {
            self.bytes = HEADER_BYTES;
        }
        let same_tables = self.same_tables(records);
        let (topics, clients, tables) = if same_tables {
            (0, 0, 0)
        } else {
            (
                usize::from(records.topic_count),
                usize::from(records.client_count),
                records.topics.len() + records.clients.len(),
            )
        };
        let base_time = self.parts.first().map_or(time_us, |part| part.time_us);
        if self.topics + topics > TABLE_MAX
            || self.clients + clients > TABLE_MAX
            || time_us.saturating_sub(base_time) > i64::from(u32::MAX)
        {
            return first;
        }
        let room = MAX_BATCH_BYTES.saturating_sub(self.bytes + tables);
        let mut last = fitting(records, first, room);
        if last == first {
            if !self.parts.is_empty() {
                return first;
            }
            last = first + 1;
        }
        let part = Part {
            records,
            first,
            last,
            time_us,
        };
        let (payloads, extensions) = part.variable_bytes();
        self.bytes += tables + (last - first) * ENTRY_BYTES + payloads + extensions;
        self.topics += topics;
        self.clients += clients;
        self.parts.push(part);
        last
    }

    /// Neighbouring appends often come from the same few clients: equal tables are stored once.
    fn same_tables(&self, records: &Records) -> bool {
        self.parts.last().is_some_and(|part| {
            part.records.topics == records.topics && part.records.clients == records.clients
        })
    }

    /// Size of the batch that [`encode`](Self::encode) will make.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the batch. The plan is not empty.
    pub fn encode(
        &self,
        identity: &Identity,
        base_offset: Offset,
        epoch: Epoch,
        flags: u8,
    ) -> Vec<u8> {
        let base_time_us = self.parts[0].time_us;
        let mut out = Vec::with_capacity(self.bytes);
        out.resize(HEADER_BYTES, 0);
        let fresh = self.fresh_tables();
        for part in fresh.iter().map(|part| part.records) {
            out.extend_from_slice(&part.topics);
        }
        let topics_bytes = out.len() - HEADER_BYTES;
        for part in fresh.iter().map(|part| part.records) {
            out.extend_from_slice(&part.clients);
        }
        let clients_bytes = out.len() - HEADER_BYTES - topics_bytes;
        let entries_at = out.len();
        self.encode_entries(&mut out, base_time_us);
        let records = (out.len() - entries_at) / ENTRY_BYTES;
        let extensions_at = out.len();
        for part in &self.parts {
            let start = part.records.ends_before(part.first).1;
            let end = part.records.ends_before(part.last).1;
            out.extend_from_slice(&part.records.extensions[start..end]);
        }
        let payloads_at = out.len();
        for part in &self.parts {
            let start = part.records.ends_before(part.first).0;
            let end = part.records.ends_before(part.last).0;
            out.extend_from_slice(&part.records.payloads[start..end]);
        }
        let header = Header {
            length: (out.len() - 4) as u32,
            checksum: 0,
            base_offset,
            epoch,
            base_time_us,
            records: records as u32,
            topics: self.topics as u16,
            clients: self.clients as u16,
            codec: CODEC_NONE,
            flags,
            topics_bytes: topics_bytes as u32,
            clients_bytes: clients_bytes as u32,
            extensions_bytes: (payloads_at - extensions_at) as u32,
            payloads_bytes: (out.len() - payloads_at) as u32,
            uncompressed_bytes: (out.len() - HEADER_BYTES) as u32,
        };
        out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        let checksum = identity.checksum(&out);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// The parts whose tables are stored: all but those whose tables equal their predecessor's.
    fn fresh_tables(&self) -> Vec<&Part<'a>> {
        let mut fresh: Vec<&Part<'a>> = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let same = fresh.last().is_some_and(|before| {
                before.records.topics == part.records.topics
                    && before.records.clients == part.records.clients
            });
            if !same {
                fresh.push(part);
            }
        }
        fresh
    }

    fn encode_entries(&self, out: &mut Vec<u8>, base_time_us: i64) {
        let (mut topic_shift, mut client_shift) = (0_u16, 0_u16);
        let (mut payload_base, mut extension_base) = (0_usize, 0_usize);
        let mut before: Option<&Records> = None;
        for part in &self.parts {
            if let Some(before) = before
                && (before.topics != part.records.topics || before.clients != part.records.clients)
            {
                topic_shift += before.topic_count;
                client_shift += before.client_count;
            }
            before = Some(part.records);
            let (payload_start, extension_start) = part.records.ends_before(part.first);
            let delta = u32::try_from(part.time_us.saturating_sub(base_time_us)).unwrap_or(0);
            let bytes = &part.records.entries[part.first * ENTRY_BYTES..part.last * ENTRY_BYTES];
            if part.is_whole()
                && payload_base == 0
                && topic_shift == 0
                && delta == 0
                && extension_base == 0
                && client_shift == 0
            {
                out.extend_from_slice(bytes);
            } else {
                let payload_move = (payload_base as u32).wrapping_sub(payload_start as u32);
                let extension_move = (extension_base as u32).wrapping_sub(extension_start as u32);
                for bytes in bytes.chunks_exact(ENTRY_BYTES) {
                    let mut entry = Entry::from_bytes(bytes);
                    entry.topic += topic_shift;
                    entry.client += client_shift;
                    entry.time_delta_us = delta;
                    entry.payload_end = entry.payload_end.wrapping_add(payload_move);
                    entry.extension_end = entry.extension_end.wrapping_add(extension_move);
                    out.extend_from_slice(&entry.to_bytes());
                }
            }
            let (payloads, extensions) = part.variable_bytes();
            payload_base += payloads;
            extension_base += extensions;
        }
    }
}

/// Index after the last record from `first` on whose entries, extensions and payloads fit in `room` together.
fn fitting(records: &Records, first: usize, room: usize) -> usize {
    let (payload_start, extension_start) = records.ends_before(first);
    let size = |last: usize| {
        let (payload_end, extension_end) = records.ends_before(last);
        (last - first) * ENTRY_BYTES + payload_end - payload_start + extension_end - extension_start
    };
    let len = records.len();
    if size(len) <= room {
        return len;
    }
    // Sizes grow with the index, so the answer can be bisected: `low` fits, `high` does not.
    let (mut low, mut high) = (first, len);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if size(middle) <= room {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
