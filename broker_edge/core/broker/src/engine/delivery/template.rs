//! A run of records, encoded once for every layout that its subscribers need.
//!
//! A layout is what the PUBLISH packets of several subscribers have in common: version (without or with properties),
//! granted QoS, retain as published. Per subscriber only the packet ids are written.

use headwater_log::{Batch, Offset, RecordView};
use headwater_mqtt::encode::PublishFields;
use headwater_mqtt::{QoS, Version};

use crate::engine::ids::PartitionIndex;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::out::SHARED_BYTES_MIN;

use super::encode::{self, Payload};

/// A QoS 0 delivery in a template has no packet id.
pub const NO_PACKET_ID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub packet_id_at: u32,
    pub qos: QoS,
    pub offset: Offset,
}

/// A run in one layout.
#[derive(Debug, Default)]
pub struct Template {
    built: bool,
    /// The packets, without the payloads in `shares`.
    pub bytes: Vec<u8>,
    /// Payloads that stay in the batch: their positions in `bytes`, and their records.
    pub shares: Vec<(usize, usize)>,
    /// Bytes of all packets, payloads included.
    pub total_len: usize,
    pub entries: Vec<Entry>,
    /// Entries with a packet id.
    pub with_id: usize,
    /// Some entries have QoS 2.
    pub has_qos2: bool,
    /// Bytes of the largest packet.
    pub largest: usize,
    pub payload_bytes: u64,
}

/// A layout per version (without or with properties), granted QoS and retain as published.
#[derive(Debug, Default)]
pub struct Templates {
    layouts: [Template; 12],
}

impl Templates {
    /// Begins a new run.
    pub fn clear(&mut self) {
        for template in &mut self.layouts {
            template.built = false;
        }
    }
}

pub fn layout_of(version: Version, effective: &EffectiveOptions) -> usize {
    usize::from(effective.qos.as_u8()) << 2
        | usize::from(version.is_v5()) << 1
        | usize::from(effective.retain_as_published)
}

/// How the payload of a record in a batch is sent.
#[inline]
pub fn payload_of(record: &RecordView<'_>) -> Payload {
    if record.payload.len() >= SHARED_BYTES_MIN {
        Payload::Shared
    } else {
        Payload::Copied
    }
}

/// Consecutive records of one topic in a batch.
#[derive(Clone, Copy)]
pub struct TopicRun<'a> {
    pub batch: &'a Batch,
    pub partition: PartitionIndex,
    pub start: usize,
    pub end: usize,
}

impl TopicRun<'_> {
    /// Ends the run before more than this is copied to one receiver, but not before its second record. Each record
    /// costs `more` beside its payload.
    pub fn limit(&mut self, copied_max: usize, more: usize) {
        let records = self.end - self.start;
        if self.batch.bytes_len() + records.saturating_mul(more) <= copied_max {
            return;
        }
        let mut copied = 0;
        let is_over = |index: &usize| {
            let len = self.batch.payload(*index).len();
            copied += more + if len < SHARED_BYTES_MIN { len } else { 0 };
            copied > copied_max
        };
        let end = (self.start..self.end).find(is_over);
        self.end = end.map_or(self.end, |end| end.max(self.start + 1));
    }
}

impl Templates {
    /// The run in one layout, encoded on first use.
    #[inline]
    pub fn get(&mut self, run: TopicRun<'_>, layout: usize, now_us: i64) -> &Template {
        let template = &mut self.layouts[layout];
        if !template.built {
            template.build(run, layout, now_us);
        }
        template
    }
}

impl Template {
    fn build(&mut self, run: TopicRun<'_>, layout: usize, now_us: i64) {
        self.built = true;
        self.bytes.clear();
        self.shares.clear();
        self.total_len = 0;
        self.entries.clear();
        self.with_id = 0;
        self.has_qos2 = false;
        self.largest = 0;
        self.payload_bytes = 0;
        let version = if layout & 0b010 != 0 {
            Version::V5
        } else {
            Version::V311
        };
        let granted = (layout >> 2) as u8;
        for index in run.start..run.end {
            let record = run.batch.record(index);
            let qos = QoS::from_u8(record.qos.min(granted)).unwrap_or(QoS::ExactlyOnce);
            let retain = layout & 0b001 != 0 && record.retain;
            let fields = PublishFields {
                version,
                qos,
                retain,
                dup: false,
                topic: record.topic,
                packet_id: None,
                properties: &[],
                extra: &[],
            };
            let at = self.bytes.len();
            let payload = payload_of(&record);
            let Some(packet) = encode::record(&mut self.bytes, &record, fields, payload, now_us)
            else {
                continue;
            };
            self.total_len += packet.total_len;
            self.payload_bytes += record.payload.len() as u64;
            if payload == Payload::Shared {
                self.shares.push((self.bytes.len(), index));
            }
            let packet_id_at = packet
                .packet_id_at
                .map_or(NO_PACKET_ID, |place| (at + place) as u32);
            self.with_id += usize::from(packet_id_at != NO_PACKET_ID);
            self.largest = self.largest.max(packet.total_len);
            self.has_qos2 |= qos == QoS::ExactlyOnce;
            self.entries.push(Entry {
                packet_id_at,
                qos,
                offset: record.offset,
            });
        }
    }
}
