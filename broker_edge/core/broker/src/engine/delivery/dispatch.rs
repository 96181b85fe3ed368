//! The live stream: batches below the high watermark, read once per loop and sent to the live sessions.
//!
//! Consecutive records of one topic are a *run*. A run is encoded once per layout; each subscriber gets a copy in which
//! only the packet ids differ. Deliveries that differ in more (offsets, identifiers, no local) are encoded one by one,
//! with the function that catch-up uses.

use std::rc::Rc;
use std::sync::Arc;

use headwater_log::{Batch, ReadError};
use headwater_mqtt::QoS;
use parking_lot::Mutex;

use crate::engine::clients::Clients;
use crate::engine::effects::Effects;
use crate::engine::env::Env;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::observe::{Count, Observe};
use crate::engine::quotas::Quotas;
use crate::engine::retained::Retained;
use crate::engine::routing::Routing;
use crate::engine::routing::topics::{Matches, Target, TopicId};
use crate::engine::session::command::device_of;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::session_store::Store;
use crate::engine::shared_groups::Groups;
use crate::engine::stored;

use super::give::GiveOutcome;
use super::matches::matches;
use super::sender::{Delivered, Packet, Sender};
use super::template::{NO_PACKET_ID, TopicRun, layout_of};
use super::{Delivery, RETRY_MS, is_passing};

/// Limit on the bytes of batches read from one partition in a turn.
const PULL_BYTES: usize = 4 << 20;
/// After a batch of one partition with which a turn has done this much work, its next batches wait for the next turn.
/// The unit is a visited node of the subscription index.
const TURN_WORK_MAX: u64 = 1 << 17;
/// So many deliveries are as much work as a visited node.
const DELIVERIES_PER_WORK: u64 = 4;

/// The live stream at work.
pub struct Dispatching<'a> {
    pub env: &'a Env,
    pub delivery: &'a mut Delivery,
    pub routing: &'a mut Routing,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub quotas: &'a mut Quotas,
    pub clients: &'a mut Clients,
    pub store: &'a mut Store,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Dispatching<'_> {
    /// Sends the records below the new high watermarks to the live sessions.
    pub fn run(&mut self) {
        self.routing.take_work();
        let before = self.observe.counted(Count::Deliveries);
        for (partition, index) in self.env.partitions.iter().zip(0..) {
            let index = PartitionIndex(index);
            if !self.delivery.is_due(partition, index, self.env) {
                continue;
            }
            let from = self.delivery.live_at(index);
            let batches = match partition.read_tail(from, PULL_BYTES) {
                Some(batches) => Ok(batches),
                None => partition.read(from, PULL_BYTES),
            };
            match batches {
                Ok(batches) => {
                    for batch in &batches {
                        self.dispatch_batch(index, batch);
                        self.delivery.live[index.index()] = batch.next_offset();
                        let delivered = self.observe.counted(Count::Deliveries) - before;
                        if self.routing.work() + delivered / DELIVERIES_PER_WORK > TURN_WORK_MAX {
                            break;
                        }
                    }
                }
                Err(error) if is_passing(&error) => {
                    tracing::error!(%error, "deliveries wait until records can be read");
                    self.delivery.retry_at_ms[index.index()] = self.env.now.mono_ms + RETRY_MS;
                    continue;
                }
                Err(error) => self.skip_unreadable(index, &error),
            }
            let live_at = self.delivery.live_at(index);
            self.retained.lock().note_applied(index, live_at);
            self.effects.note_more(partition.high_watermark() > live_at);
        }
    }

    /// The newest records cannot be read back: the log reports the gap, and the stream continues after it.
    fn skip_unreadable(&mut self, index: PartitionIndex, error: &ReadError) {
        let partition = &self.env.partitions[index.index()];
        tracing::error!(%error, partition = partition.name(), "records cannot be delivered");
        let live = &mut self.delivery.live[index.index()];
        *live = match error {
            ReadError::Damaged { range } => range.end,
            ReadError::OutOfRange { log_start, .. } => (*log_start).max(live.plus(1)),
            ReadError::Io { .. } => partition.high_watermark(),
        };
    }

    fn dispatch_batch(&mut self, partition: PartitionIndex, batch: &Batch) {
        let from = self.delivery.live_at(partition);
        let first = usize::try_from(from.0.saturating_sub(batch.base_offset().0)).unwrap_or(0);
        if batch.has_retained() {
            self.take_retained(partition, batch, first);
        }
        self.clients.note_read(batch.bytes_len());
        if self.routing.is_empty() {
            return;
        }
        // The receivers themselves stay in the cache, which is bounded: those of a whole batch may be very many.
        let mut wanted: Vec<Option<TopicId>> = Vec::with_capacity(batch.topics().len());
        let mut any = false;
        for topic in batch.topics() {
            let id = self.routing.intern(topic.topic, &self.env.log);
            let is_wanted = self.matches(id).is_wanted();
            any |= is_wanted;
            wanted.push(is_wanted.then_some(id));
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
            if let Some(Some(id)) = wanted.get(usize::from(topic)) {
                let id = if self.routing.topic(*id).is_some() {
                    *id
                } else {
                    // The table was emptied for later topics of this batch.
                    let topic = batch.record(start).topic;
                    self.routing.intern(topic, &self.env.log)
                };
                let matches = self.matches(id);
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

    fn matches(&mut self, id: TopicId) -> Rc<Matches> {
        let session_of = |key| self.clients.session(key);
        matches(self.routing, id, session_of, self.groups)
    }

    fn take_retained(&mut self, partition: PartitionIndex, batch: &Batch, first: usize) {
        let shared = Arc::clone(self.retained);
        let mut retained = shared.lock();
        for record in (first..batch.len())
            .map(|index| batch.record(index))
            .filter(|record| record.retain)
        {
            let replaced = retained.apply_charged(self.quotas, &record, partition);
            if replaced.is_some_and(|entry| entry.stored)
                && let Err(error) = self.store.delete(stored::retained::key(record.topic))
            {
                tracing::warn!(%error, topic = record.topic, "an old retained message cannot be removed from the state store now");
            }
        }
    }

    fn deliver_run(&mut self, run: TopicRun<'_>, matches: &Matches) {
        self.delivery.templates.clear();
        let is_command = device_of(run.batch.record(run.start).topic).is_some();
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
        let Some((session, writer)) = self.clients.writing_pair(target.session, target.conn) else {
            return true;
        };
        let conn = &*writer.conn;
        if !session.behind.is_live(run.partition) {
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
        let conn = writer.begin();
        let base = conn.out.len();
        conn.out.extend_from_slice(&template.bytes);
        for (at, index) in &template.shares {
            conn.shares.push(base + at, run.batch, *index);
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
                let packet_id = session.window.push(sent, InflightState::sent(entry.qos));
                let at = entry.packet_id_at as usize;
                copied[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
            }
        }
        conn.traffic.sent_messages += template.entries.len() as u64;
        self.observe
            .count(Count::PublishSentBytes, template.payload_bytes);
        self.observe
            .count(Count::Deliveries, template.entries.len() as u64);
        true
    }

    fn deliver_one_by_one(&mut self, run: TopicRun<'_>, target: &Target) {
        for index in run.start..run.end {
            let record = run.batch.record(index);
            let Some(session) = self.clients.session_mut(target.session) else {
                return;
            };
            if !session.behind.is_live(run.partition) {
                return;
            }
            if session.has_pending_retained() {
                session.behind.fall_behind(Cursor {
                    sheds_qos0: true,
                    ..Cursor::new(run.partition, record.offset)
                });
                return;
            }
            let packet = Packet {
                record: &record,
                batch: Some(run.batch),
                partition: run.partition,
                effective: &target.effective,
                source: Source::Cursor,
                retain: false,
            };
            if lend!(self => Sender).deliver(target.session, target.conn, &packet)
                == Delivered::NoRoom
            {
                if target.effective.qos == QoS::AtMostOnce || record.qos == 0 {
                    self.observe.count(Count::DeliveriesDropped, 1);
                } else if let Some(session) = self.clients.session_mut(target.session) {
                    let cursor = Cursor::new(run.partition, record.offset);
                    session.behind.fall_behind(cursor);
                    return;
                }
            }
        }
    }

    /// Gives records of the live stream to a group.
    fn give_run(&mut self, id: GroupId, run: TopicRun<'_>) {
        for index in run.start..run.end {
            let Some(group) = self.groups.get(id) else {
                return;
            };
            if !group.behind.is_live(run.partition) {
                return;
            }
            let waits = group.first_returned().is_some() || group.is_full();
            let record = run.batch.record(index);
            let given = if waits && record.qos > 0 {
                GiveOutcome::NoRoom
            } else {
                lend!(self => Sender).give(id, run.batch, &record, run.partition, None)
            };
            match given {
                GiveOutcome::Taken => {}
                GiveOutcome::Nobody if record.qos == 0 => {}
                GiveOutcome::Aside if self.groups.set_aside(id, run.partition, &record) => {}
                GiveOutcome::NoRoom | GiveOutcome::Aside if record.qos == 0 => {
                    self.observe.count(Count::DeliveriesDropped, 1);
                }
                GiveOutcome::NoRoom
                | GiveOutcome::Nobody
                | GiveOutcome::Aside
                | GiveOutcome::Later => {
                    if let Some(group) = self.groups.get_mut(id) {
                        let cursor = Cursor::new(run.partition, record.offset);
                        group.behind.fall_behind(cursor);
                    }
                    match given {
                        GiveOutcome::Later => self.groups.wake(id),
                        // Until a member connects, records cost the group nothing.
                        GiveOutcome::Nobody => self.routing.advance(),
                        _ => {}
                    }
                    return;
                }
            }
        }
    }
}
