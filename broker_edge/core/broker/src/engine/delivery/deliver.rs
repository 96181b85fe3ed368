//! The live stream: batches below the high watermark, read once per loop and sent to the live sessions.
//!
//! Consecutive records of one topic are a *run*. A run is encoded once per layout; each subscriber gets a copy in which
//! only the packet ids differ. Deliveries that differ in more (offsets, identifiers, no local) are encoded one by one,
//! with the function that catch-up uses.

use std::rc::Rc;
use std::sync::Arc;

use headwater_log::{Batch, Class, Offset, ReadError, RecordView};
use headwater_mqtt::{PacketId, Property, QoS};

use crate::engine::catch_up::read_retry::{RETRY_MS, is_passing};
use crate::engine::ids::PartitionIndex;
use crate::engine::ingest::stage::Stage;
use crate::engine::qos2::receipt;
use crate::engine::routing::topics::{EffectiveOptions, Matches, Target};
use crate::engine::session::Command;
use crate::engine::session::aliases::AliasUse;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::{ConnKey, Engine, SessionKey};

use super::encode::{self, Payload, PublishOptions};
use super::template::{NO_PACKET_ID, TopicRun, layout_of, payload_of};

/// Limit on the bytes of batches read from one partition in a turn.
const PULL_BYTES: usize = 4 << 20;

/// The result of one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    Sent,
    /// The window or the out buffer is full.
    NoRoom,
    /// Not for this subscriber: expired, or its own message.
    Skipped,
    /// Larger than the client's Maximum Packet Size.
    TooLarge,
}

/// One record on its way to one session.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    pub record: &'a RecordView<'a>,
    /// The batch that holds the record, if its payload may be sent from there.
    pub batch: Option<&'a Batch>,
    pub partition: PartitionIndex,
    pub effective: &'a EffectiveOptions,
    pub source: Source,
    /// Sets the retain flag regardless of the subscription.
    pub retain: bool,
}

impl Engine {
    /// Sends the records below the new high watermarks to the live sessions.
    pub(in crate::engine) fn dispatch(&mut self) {
        for index in 0..self.ingest.stages.len() {
            let partition = self.env.partitions[index].clone();
            if partition.class() == Class::Internal
                || partition.high_watermark() <= self.delivery.dispatched[index]
                || self.ingest.stages[index].pull_after_ms > self.env.now.mono_ms
            {
                continue;
            }
            let from = self.delivery.dispatched[index];
            let batches = match partition.read_tail(from, PULL_BYTES) {
                Some(batches) => Ok(batches),
                None => partition.read(from, PULL_BYTES),
            };
            match batches {
                Ok(batches) => {
                    for batch in &batches {
                        self.dispatch_batch(PartitionIndex(index as u16), batch);
                        self.delivery.dispatched[index] = batch.next_offset();
                    }
                }
                Err(error) if is_passing(&error) => {
                    tracing::error!(%error, "deliveries wait until records can be read");
                    self.ingest.stages[index].pull_after_ms = self.env.now.mono_ms + RETRY_MS;
                    continue;
                }
                Err(error) => self.skip_unreadable(index, &error),
            }
            self.effects.more |= partition.high_watermark() > self.delivery.dispatched[index];
        }
    }

    /// The newest records cannot be read back: the log reports the gap, and the stream continues after it.
    fn skip_unreadable(&mut self, index: usize, error: &ReadError) {
        tracing::error!(%error, partition = self.env.partitions[index].name(), "records cannot be delivered");
        self.delivery.dispatched[index] = match error {
            ReadError::Damaged { range } => range.end,
            ReadError::OutOfRange { log_start, .. } => {
                (*log_start).max(self.delivery.dispatched[index].plus(1))
            }
            ReadError::Io { .. } => self.env.partitions[index].high_watermark(),
        };
    }

    fn dispatch_batch(&mut self, partition: PartitionIndex, batch: &Batch) {
        let from = self.delivery.dispatched[partition.index()];
        let first = usize::try_from(from.0.saturating_sub(batch.base_offset().0)).unwrap_or(0);
        if batch.has_retained() {
            self.take_retained(partition, batch, first);
        }
        self.clients.payload_holders.note_read(batch.bytes_len());
        if self.routing.router.is_empty() {
            return;
        }
        let mut wanted: Vec<Option<Rc<Matches>>> = Vec::with_capacity(batch.topics().len());
        let mut any = false;
        for topic in batch.topics() {
            let id = self.routing.topics.intern(topic.topic, &self.env.log);
            let matches = self.routing.topics.matches(
                id,
                &self.routing.router,
                &self.clients.sessions,
                &self.groups,
            );
            any |= matches.is_wanted();
            wanted.push(matches.is_wanted().then_some(matches));
        }
        if !any {
            return;
        }
        let mut start = first;
        while start < batch.len() {
            let topic = batch.topic_index(start);
            let end = (start + 1..batch.len())
                .find(|index| batch.topic_index(*index) != topic)
                .unwrap_or(batch.len());
            if let Some(Some(matches)) = wanted.get(usize::from(topic)) {
                let matches = Rc::clone(matches);
                self.deliver_run(
                    TopicRun {
                        batch,
                        partition,
                        start,
                        end,
                    },
                    &matches,
                );
            }
            start = end;
        }
    }

    fn take_retained(&mut self, partition: PartitionIndex, batch: &Batch, first: usize) {
        let shared = Arc::clone(&self.retained);
        let mut retained = shared.lock();
        for record in (first..batch.len())
            .map(|index| batch.record(index))
            .filter(|record| record.retain)
        {
            let replaced = self.apply_retained(&mut retained, &record, partition);
            if replaced.is_some_and(|entry| entry.stored)
                && let Err(error) = self
                    .store
                    .state
                    .delete(&crate::engine::retained::state_key(record.topic))
            {
                tracing::warn!(%error, topic = record.topic, "an old retained message cannot be removed from the state store now");
            }
        }
    }

    fn deliver_run(&mut self, run: TopicRun<'_>, matches: &Matches) {
        self.delivery.templates.clear();
        let is_command = receipt::device_of(run.batch.record(run.start).topic).is_some();
        for target in &matches.targets {
            if is_command || target.effective.is_special() || !self.copy_run(run, target) {
                self.deliver_one_by_one(run, target);
            }
        }
        for group in &matches.groups {
            self.give_run(*group, run);
        }
    }

    /// Copies the encoded run to one subscriber. Returns false if it does not fit as a whole.
    #[inline]
    fn copy_run(&mut self, run: TopicRun<'_>, target: &Target) -> bool {
        let (Some(session), Some(conn)) = (
            self.clients.sessions.get_mut(target.session),
            self.clients.conns.get_mut(target.conn),
        ) else {
            return true;
        };
        if !session.is_live(run.partition) {
            return true;
        }
        if session.has_pending_retained() {
            return false;
        }
        if conn.extras.out_aliases.is_some() {
            return false;
        }
        let layout = layout_of(session.version, &target.effective);
        let template = self
            .delivery
            .templates
            .get(run, layout, self.env.now.wall_us);
        if session.window.room(session.window_max) < template.with_id
            || (template.has_qos2 && session.stored)
            || conn.out_len() + template.total_len
                > self.env.settings.mqtt.out_buffer_bytes.as_usize()
            || template.largest > conn.packet_max as usize
        {
            return false;
        }
        if conn.out.capacity() == 0
            && let Some(buffer) = self.clients.pool.pop()
        {
            conn.out = buffer;
        }
        let base = conn.out.len();
        conn.out.extend_from_slice(&template.bytes);
        for (at, index) in &template.shares {
            conn.shares.push(base + at, run.batch, *index, true);
        }
        let copied = &mut conn.out[base..];
        for entry in &template.entries {
            if entry.packet_id_at != NO_PACKET_ID {
                let sent = Inflight {
                    offset: entry.offset,
                    partition: run.partition,
                    source: Source::Cursor,
                    receipt: false,
                };
                let flight = if entry.is_qos2 {
                    InflightState::AwaitsPubrec
                } else {
                    InflightState::AwaitsPuback
                };
                let packet_id = session.window.push(sent, flight);
                let at = entry.packet_id_at as usize;
                copied[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
            }
        }
        if !conn.touched {
            conn.touched = true;
            self.clients.touched.push(target.conn);
        }
        conn.traffic.sent_messages += template.entries.len() as u64;
        self.observe.turn_metrics.publish_sent_bytes += template.payload_bytes;
        self.observe.turn_metrics.deliveries += template.entries.len() as u64;
        true
    }

    fn deliver_one_by_one(&mut self, run: TopicRun<'_>, target: &Target) {
        for index in run.start..run.end {
            let record = run.batch.record(index);
            let Some(session) = self.clients.session_mut(target.session) else {
                return;
            };
            if !session.is_live(run.partition) {
                return;
            }
            if session.has_pending_retained() {
                session.wait_for_retained(run.partition, record.offset);
                return;
            }
            let delivery = Delivery {
                record: &record,
                batch: Some(run.batch),
                partition: run.partition,
                effective: &target.effective,
                source: Source::Cursor,
                retain: false,
            };
            if self.deliver(target.session, target.conn, &delivery) == Delivered::NoRoom {
                if target.effective.qos == QoS::AtMostOnce || record.qos == 0 {
                    self.observe.turn_metrics.deliveries_dropped += 1;
                } else if let Some(session) = self.clients.session_mut(target.session) {
                    session.fall_behind(run.partition, record.offset, Offset(0));
                    return;
                }
            }
        }
    }

    /// Encodes one record for one session into its connection's out buffer.
    pub(in crate::engine) fn deliver(
        &mut self,
        session_key: SessionKey,
        conn_key: ConnKey,
        delivery: &Delivery<'_>,
    ) -> Delivered {
        let Delivery {
            record,
            partition,
            effective,
            ..
        } = *delivery;
        let now_us = self.env.now.wall_us;
        let out_buffer_bytes = self.env.settings.mqtt.out_buffer_bytes.as_usize();
        let offset_text = format_offset(&self.ingest.stages[partition.index()], record, effective);
        let Some(session) = self.clients.sessions.get_mut(session_key) else {
            return Delivered::Skipped;
        };
        if effective.no_local && *record.client_id == *session.client_id {
            return Delivered::Skipped;
        }
        let qos = QoS::from_u8(record.qos).map_or(effective.qos, |qos| qos.min(effective.qos));
        if qos == QoS::ExactlyOnce
            && session.has_assigned(delivery.source, partition, record.offset)
        {
            return Delivered::Skipped;
        }
        if qos != QoS::AtMostOnce && session.window.room(session.window_max) == 0 {
            return Delivered::NoRoom;
        }
        let receipt = qos != QoS::AtMostOnce && session.is_commanded_by(record.topic);
        let sent = Inflight {
            offset: record.offset,
            partition,
            source: delivery.source,
            receipt,
        };
        if qos == QoS::ExactlyOnce && session.stored {
            let packet_id = self.assign(session_key, sent);
            if receipt && let Some(session) = self.clients.session_mut(session_key) {
                session.extras.commands.push(Command::of(packet_id, record));
            }
            return Delivered::Sent;
        }
        let Some(conn) = self.clients.conns.get_mut(conn_key) else {
            return Delivered::Skipped;
        };
        if conn.out_len() >= out_buffer_bytes {
            conn.wake_when_drained = true;
            return Delivered::NoRoom;
        }
        let mut extra = if conn.version.is_v5() {
            extra_properties(record, effective, &offset_text)
        } else {
            Vec::new()
        };
        let at_topic = offset_topic(record, effective, &offset_text);
        let alias_use = match &conn.extras.out_aliases {
            Some(aliases) if at_topic.is_none() => aliases.alias_use(record.topic),
            _ => AliasUse::Plain,
        };
        if let AliasUse::New(number) | AliasUse::Known(number) = alias_use {
            Property::TopicAlias(number).encode(&mut extra);
        }
        let form = PublishOptions {
            version: conn.version,
            qos,
            retain: delivery.retain || (effective.retain_as_published && record.retain),
            dup: false,
            topic: match alias_use {
                AliasUse::Known(_) => Some(""),
                _ => at_topic.as_deref(),
            },
            extra: &extra,
        };
        let base = conn.out.len();
        let payload = delivery
            .batch
            .map_or(Payload::Copied, |_| payload_of(record));
        let Some(packet) = encode::record(&mut conn.out, record, form, payload, now_us) else {
            return Delivered::Skipped;
        };
        if packet.total_len > conn.packet_max as usize {
            conn.out.truncate(base);
            // A shared group may have another member that accepts it.
            if !matches!(delivery.source, Source::Shared(_)) {
                self.observe.turn_metrics.deliveries_dropped += 1;
            }
            return Delivered::TooLarge;
        }
        if let AliasUse::New(number) = alias_use
            && let Some(aliases) = &mut conn.extras.out_aliases
        {
            aliases.learn(record.topic, number);
        }
        if let (Payload::Shared, Some(batch)) = (payload, delivery.batch) {
            let index = (record.offset.0 - batch.base_offset().0) as usize;
            let may_stay = delivery.source != Source::Retained;
            conn.shares.push(conn.out.len(), batch, index, may_stay);
        }
        if qos != QoS::AtMostOnce {
            let flight = if qos == QoS::ExactlyOnce {
                InflightState::AwaitsPubrec
            } else {
                InflightState::AwaitsPuback
            };
            let packet_id = session.window.push(sent, flight);
            if receipt {
                session.extras.commands.push(Command::of(packet_id, record));
            }
            if let Some(id) = PacketId::new(packet_id) {
                packet.set_packet_id(&mut conn.out[base..], id);
            }
        }
        conn.traffic.sent_messages += 1;
        self.observe.turn_metrics.publish_sent_bytes += record.payload.len() as u64;
        self.observe.turn_metrics.deliveries += 1;
        self.clients.touch(conn_key);
        Delivered::Sent
    }
}

/// `<partition name>:<offset>`, if the subscription wants it.
pub(in crate::engine) fn format_offset(
    stage: &Stage,
    record: &RecordView<'_>,
    effective: &EffectiveOptions,
) -> String {
    if effective.offsets || effective.offset_topics {
        format!("{}:{}", stage.partition.name(), record.offset)
    } else {
        String::new()
    }
}

/// The topic of a delivery that carries its offset.
pub(in crate::engine) fn offset_topic(
    record: &RecordView<'_>,
    effective: &EffectiveOptions,
    offset_text: &str,
) -> Option<String> {
    effective
        .offset_topics
        .then(|| format!("$at/{offset_text}/{}", record.topic))
}

pub(in crate::engine) fn extra_properties(
    record: &RecordView<'_>,
    effective: &EffectiveOptions,
    offset_text: &str,
) -> Vec<u8> {
    let mut extra = Vec::new();
    for id in effective.ids.iter().flatten() {
        Property::SubscriptionIdentifier(*id).encode(&mut extra);
    }
    if effective.offsets {
        Property::UserProperty {
            key: "stream-offset",
            value: offset_text,
        }
        .encode(&mut extra);
        Property::UserProperty {
            key: "ts",
            value: &record.time_us.to_string(),
        }
        .encode(&mut extra);
    }
    extra
}
