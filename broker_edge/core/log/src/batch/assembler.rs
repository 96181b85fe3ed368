//! Assembles a batch from queued appends: takes parts until the batch is full, then writes its bytes.
//!
//! Sections are copied as they are; only the entries of the second and later parts are rewritten.

use crate::batch::layout::{CODEC_NONE, ENTRY_BYTES, Entry, HEADER_BYTES, Header, Identity};
use crate::batch::records::Records;
use crate::ids::{Epoch, Offset};

/// A batch grows up to this size, unless it is one larger record. The format allows 4 MiB. A smaller batch is still in
/// the processor's cache when it is summed and written, and costs less to read for one record.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
const TABLE_MAX: usize = u16::MAX as usize;

/// Records `[first, last)` of one append that go into one batch.
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

/// Header fields of a batch that do not follow from its records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchStamp {
    pub base_offset: Offset,
    pub epoch: Epoch,
    pub flags: u8,
}

/// Writes the checksum into a batch that is otherwise complete.
pub(crate) fn seal(identity: &Identity, batch: &mut [u8]) {
    let checksum = identity.checksum(batch);
    batch[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Collects parts until a batch is full.
#[derive(Debug, Default)]
pub(crate) struct BatchAssembler<'a> {
    pub parts: Vec<Part<'a>>,
    bytes: usize,
    topics: usize,
    clients: usize,
}

impl<'a> BatchAssembler<'a> {
    /// All of `records` as one batch, however large.
    pub fn whole(records: &'a Records, time_us: i64) -> Self {
        Self {
            bytes: records.bytes(),
            topics: usize::from(records.topic_count),
            clients: usize::from(records.client_count),
            parts: vec![Part {
                records,
                first: 0,
                last: records.len(),
                time_us,
            }],
        }
    }

    /// Takes as many records of `records` from `first` on as fit; returns the index after the last one taken.
    /// Takes at least one record, however large, when there is none yet.
    pub fn take(&mut self, records: &'a Records, first: usize, time_us: i64) -> usize {
        if self.parts.is_empty() {
            self.bytes = HEADER_BYTES;
        }
        // Neighbouring appends often come from the same few clients: equal tables are stored once.
        let last = self.parts.last();
        let same_tables = last.is_some_and(|part| part.records.has_tables_of(records));
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
        let mut room = BATCH_BYTES_MAX.saturating_sub(self.bytes + tables);
        if self.parts.is_empty() {
            // Each batch of a split append repeats all its tables. Beside large tables there is room for as many bytes
            // of records, or most of the written bytes would be names.
            room = room.max(tables);
        }
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

    /// Size of the batch that [`encode`](Self::encode) will make.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn payload_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.variable_bytes().0).sum()
    }

    /// Writes the batch into `out` and uses its capacity. There is at least one part.
    pub fn encode(&self, identity: &Identity, place: &BatchStamp, mut out: Vec<u8>) -> Vec<u8> {
        out.clear();
        out.reserve_exact(self.bytes);
        self.encode_head(place, &mut out);
        for part in &self.parts {
            let start = part.records.ends_before(part.first).0;
            let end = part.records.ends_before(part.last).0;
            out.extend_from_slice(part.records.payloads.get(start..end));
        }
        seal(identity, &mut out);
        out
    }

    /// Writes everything before the payloads to `out`, which is empty. The checksum is left out.
    pub fn encode_head(&self, place: &BatchStamp, out: &mut Vec<u8>) {
        let base_time_us = self.parts[0].time_us;
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
        self.encode_entries(out, base_time_us);
        let records = (out.len() - entries_at) / ENTRY_BYTES;
        let extensions_at = out.len();
        for part in &self.parts {
            let start = part.records.ends_before(part.first).1;
            let end = part.records.ends_before(part.last).1;
            out.extend_from_slice(&part.records.extensions[start..end]);
        }
        let payloads = self.payload_bytes();
        let total = out.len() + payloads;
        let header = Header {
            length: (total - 4) as u32,
            checksum: 0,
            base_offset: place.base_offset,
            epoch: place.epoch,
            base_time_us,
            records: records as u32,
            topics: self.topics as u16,
            clients: self.clients as u16,
            codec: CODEC_NONE,
            flags: place.flags,
            topics_bytes: topics_bytes as u32,
            clients_bytes: clients_bytes as u32,
            extensions_bytes: (out.len() - extensions_at) as u32,
            payloads_bytes: payloads as u32,
            uncompressed_bytes: (total - HEADER_BYTES) as u32,
        };
        out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    }

    /// The parts whose tables are stored: a part with the tables of the one before it shares them.
    fn fresh_tables(&self) -> Vec<&Part<'a>> {
        let mut fresh: Vec<&Part<'a>> = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let last = fresh.last();
            if !last.is_some_and(|last| last.records.has_tables_of(part.records)) {
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
                && !before.has_tables_of(part.records)
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
