//! The live stream: batches below the high watermark, read once per loop and sent to the live sessions.
//!
//! Consecutive records of one topic are a *run*. A run is encoded once per layout; each subscriber gets a copy in which
//! only the packet ids differ. Deliveries that differ in more (offsets, identifiers, no local) are encoded one by one,
//! with the function that catch-up uses.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use headwater_log::{Batch, Offset, ReadError, TopicView};
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
use super::matches::matches_now;
use super::sender::{Delivered, ID_COST, Packet, Sender};
use super::template::{NO_PACKET_ID, TopicRun, layout_of};
use super::{Delivery, RETRY_MS, is_passing};

/// Limit on the bytes of batches read from one partition in a turn.
const PULL_BYTES: usize = 4 << 20;
/// After this much work in a turn the rest waits for the next turn, also within a batch: some ten milliseconds. The
/// partitions that have records to send share it, and each sends one run at least. The unit is a visited node of the
/// subscription index.
const TURN_WORK_MAX: u64 = 1 << 14;
/// So many deliveries are as much work as a visited node.
const DELIVERIES_PER_WORK: u64 = 32;
/// So many bytes copied to the buffers of connections are as much: a turn copies 64 MiB, for which there must be memory
/// until they are sent.
const COPIED_BYTES_PER_WORK: u64 = 4 << 10;
/// A run that would copy more to all its receivers is sent in parts.
const RUN_BYTES_MAX: usize = 64 << 20;
/// A record that is encoded for each receiver by itself counts this much beside its payload, if its run is so long.
const RUN_RECORD_COST: usize = 512;
const LONG_RUN: usize = 16;

/// What is known of the receivers of a topic in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopicUse {
    /// It was not looked up.
    Unknown,
    Unwanted,
    /// It has receivers, or they have to be found again.
    Wanted(TopicId),
}

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
        self.clients.send_budget.begin_turn();
        let due = self.delivery.due(self.env).count() as u64;
        for (partition, index) in self.env.partitions.iter().zip(0..) {
            let index = PartitionIndex(index);
            if !self.delivery.is_due(partition, index, self.env) {
                continue;
            }
            let ends = self.work() + TURN_WORK_MAX / due.max(1);
            let from = self.delivery.live_at(index);
            let batches = match partition.read_tail(from, PULL_BYTES) {
                Some(batches) => Ok(batches),
                None => partition.read(from, PULL_BYTES),
            };
            match batches {
                Ok(batches) => {
                    for batch in &batches {
                        let until = self.dispatch_batch(index, batch, ends);
                        self.delivery.live[index.index()] = until;
                        if until < batch.next_offset() || self.work() > ends {
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

    /// The work of this turn so far.
    fn work(&self) -> u64 {
        self.routing.work()
            + self.observe.counted(Count::Deliveries) / DELIVERIES_PER_WORK
            + self.clients.send_budget.copied_bytes() / COPIED_BYTES_PER_WORK
    }

    /// Sends the records of a batch from the live offset on, and returns the offset where it stopped: at the end of the
    /// batch, or after the run with which the work reached `ends`.
    fn dispatch_batch(&mut self, partition: PartitionIndex, batch: &Batch, ends: u64) -> Offset {
        let from = self.delivery.live_at(partition);
        let first = usize::try_from(from.0.saturating_sub(batch.base_offset().0)).unwrap_or(0);
        self.clients.note_read(batch.bytes_len());
        let mut stop = batch.len();
        if !self.routing.is_empty() {
            let topics = self.find_wanted(batch, first);
            if topics.iter().any(|topic| *topic != TopicUse::Unwanted) {
                stop = self.deliver_runs((partition, batch), first, topics, ends);
            }
        }
        if batch.has_retained() {
            self.take_retained(partition, batch, first..stop);
        }
        batch.base_offset().plus(stop as u64)
    }

    /// Which topics of a batch may have receivers. The receivers themselves stay in the cache, which is bounded: those of
    /// a whole batch may be very many.
    fn find_wanted(&mut self, batch: &Batch, first: usize) -> Vec<TopicUse> {
        let topics = batch.topics();
        // The first part of the batch took a whole turn, so the others are looked up when their records come.
        if first > 0 {
            return vec![TopicUse::Unknown; topics.len()];
        }
        let find = |topic: TopicView<'_>| {
            let id = self.routing.intern(topic.topic, &self.env.log);
            match self.routing.known_matches(id) {
                Some(known) if !known.is_wanted() => TopicUse::Unwanted,
                _ => TopicUse::Wanted(id),
            }
        };
        topics.map(find).collect()
    }

    /// Delivers the runs of a batch from index `first` on, and returns the index where it stopped. The first run is
    /// always delivered, unless the receivers of its topic are still searched: the others wait, so that the order stays.
    fn deliver_runs(
        &mut self,
        (partition, batch): (PartitionIndex, &Batch),
        first: usize,
        mut topics: Vec<TopicUse>,
        ends: u64,
    ) -> usize {
        let mut start = first;
        while start < batch.len() {
            let topic = batch.topic_index(start);
            let mut end = (start + 1..batch.len())
                .find(|index| batch.topic_index(*index) != topic)
                .unwrap_or(batch.len());
            if let Some(topic) = topics.get_mut(usize::from(topic))
                && *topic != TopicUse::Unwanted
            {
                if start > first && self.work() > ends {
                    return start;
                }
                let id = match *topic {
                    TopicUse::Wanted(id) if self.routing.topic(id).is_some() => id,
                    // Not looked up yet, or the table was emptied for later topics of this batch.
                    _ => {
                        let name = batch.record(start).topic;
                        self.routing.intern(name, &self.env.log)
                    }
                };
                let Some(matches) = self.matches(id) else {
                    return start;
                };
                *topic = if matches.is_wanted() {
                    TopicUse::Wanted(id)
                } else {
                    TopicUse::Unwanted
                };
                let mut run = TopicRun {
                    batch,
                    partition,
                    start,
                    end,
                };
                let receivers = matches.targets.len().max(1);
                let ids = self
                    .routing
                    .topic(id)
                    .map_or(0, |topic| topic.ids(receivers));
                let more = self.record_cost(&run, &matches) + ids * ID_COST / receivers;
                run.limit(RUN_BYTES_MAX / receivers, more);
                end = run.end;
                self.deliver_run(run, &matches);
            }
            start = end;
        }
        batch.len()
    }

    fn matches(&mut self, id: TopicId) -> Option<Rc<Matches>> {
        let session_of = |key| self.clients.session(key);
        matches_now(self.routing, id, session_of, self.groups)
    }

    fn take_retained(&mut self, partition: PartitionIndex, batch: &Batch, indexes: Range<usize>) {
        let shared = Arc::clone(self.retained);
        let mut retained = shared.lock();
        for record in indexes
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

    /// What a record of the run costs beside its payload. Runs that are short need no look at their receivers.
    fn record_cost(&self, run: &TopicRun<'_>, matches: &Matches) -> usize {
        let is_alone = |target: &Target| {
            let conn = self.clients.conn(target.conn);
            target.effective.is_special()
                || conn.is_some_and(|conn| conn.extras.out_aliases.is_some())
        };
        if run.end - run.start > LONG_RUN && matches.targets.iter().any(is_alone) {
            RUN_RECORD_COST
        } else {
            0
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
        let room = self.clients.send_budget.room(self.env);
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
            || conn.out_len() + template.total_len > room
            || template.largest > conn.packet_max as usize
        {
            return false;
        }
        let conn = writer.begin();
        let base = conn.out.len();
        conn.reserve_out(template.bytes.len(), room);
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
        self.clients.send_budget.note_copied(template.bytes.len());
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
                        GiveOutcome::Nobody => self.routing.note_groups(),
                        _ => {}
                    }
                    return;
                }
            }
        }
    }
}
