//! The bytes of a batch: header, entry, checksum and their constants.
//!
//! `docs/format.md` is the authority. Writing whole batches is `assembler.rs`, reading them back is `decode.rs`.

use crate::ids::{Epoch, LogId, Offset, PartitionId, Secret};

/// Why bytes are not a batch of this partition.
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

impl DecodeError {
    pub(crate) const fn malformed(what: &'static str) -> Self {
        Self::Malformed { what }
    }
}

pub(crate) const HEADER_BYTES: usize = 64;
/// Where the base offset stands in a header, 8 bytes.
pub(crate) const BASE_OFFSET_AT: usize = 8;
pub(crate) const ENTRY_BYTES: usize = 20;

pub(crate) const FLAG_QOS: u16 = 0b11;
pub(crate) const FLAG_RETAIN: u16 = 1 << 2;
pub(crate) const FLAG_PURGED: u16 = 1 << 3;
pub(crate) const FLAG_EXTENSION: u16 = 1 << 4;

pub(crate) const TAG_KEY: u8 = 1;
pub(crate) const TAG_IDEMPOTENCY_KEY: u8 = 2;
pub(crate) const TAG_PROPERTIES: u8 = 3;
pub(crate) const TAG_HEADERS: u8 = 4;
pub(crate) const TAG_PUBLISH_ID: u8 = 5;

pub(crate) const CODEC_NONE: u8 = 0;
/// The batch before this one was not synced when this one was written, so a valid batch with this flag does not prove
/// that a bad one before it had been durable.
pub(crate) const BATCH_AFTER_UNSYNCED: u8 = 1;
/// Some of its records were purged: readers look at each record.
pub(crate) const BATCH_HOLDS_PURGED: u8 = 2;

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

    /// Parses a header and checks that the sections add up to the length. The checksum is not checked.
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
            return Err(DecodeError::malformed("section lengths"));
        }
        let next = header.base_offset.0.checked_add(u64::from(header.records));
        next.map(|_| header)
            .ok_or(DecodeError::malformed("base offset"))
    }

    /// Bytes of the whole batch.
    pub fn total(&self) -> usize {
        self.length as usize + 4
    }

    pub fn next_offset(&self) -> Offset {
        self.base_offset.plus(u64::from(self.records))
    }
}

/// The log and partition that a batch belongs to; part of its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub log_id: LogId,
    pub partition: PartitionId,
    pub secret: Secret,
}

impl Identity {
    /// The checksum of a batch: of everything after its checksum field, and of the identity.
    pub fn checksum(&self, batch: &[u8]) -> u32 {
        self.checksum_of(&batch[8..])
    }

    /// CRC-32C over `bytes`, then log id, partition number and secret.
    pub fn checksum_of(&self, bytes: &[u8]) -> u32 {
        let mut identity = [0; 28];
        identity[..16].copy_from_slice(self.log_id.as_bytes());
        identity[16..20].copy_from_slice(&self.partition.0.to_le_bytes());
        identity[20..].copy_from_slice(self.secret.as_bytes());
        crc32c::crc32c_append(crc32c::crc32c(bytes), &identity)
    }
}
