//! PUBLISH from a client: resolves its topic, stages the record in the partition, and queues the acknowledgement.
//!
//! For what the broker does not offer, and for what is over a limit, the standard has reason codes. Unused limits cost
//! one comparison per packet.

use std::sync::Arc;

use headwater_log::RecordsFull;
use headwater_mqtt::packet::{self, kind};
use headwater_mqtt::{Frame, Publish, QoS, ReasonCode, Version, frame};
use parking_lot::Mutex;

use crate::engine::ConnKey;
use crate::engine::catch_up::CatchUp;
use crate::engine::clients::Clients;
use crate::engine::delivery::matches::matches;
use crate::engine::delivery::replies::Replies;
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;
use crate::engine::ids::{Commit, PartitionIndex};
use crate::engine::ingest::Ingest;
use crate::engine::ingest::stage::Staged;
use crate::engine::observe::{Count, Observe};
use crate::engine::qos2::{Acknowledging, Qos2};
use crate::engine::quotas::Quotas;
use crate::engine::retained::Retained;
use crate::engine::routing::Routing;
use crate::engine::routing::topics::TopicId;
use crate::engine::routing::work::PacketCost;
use crate::engine::session::ack::{AckKind, Acks, What};
use crate::engine::session::connection::Connection;
use crate::engine::session::pauses::Pause;
use crate::engine::session_store::Store;
use crate::engine::shared_groups::Groups;

use super::Protocol;

/// How long a connection whose packets cost much waits at least.
pub(super) const WORK_PAUSE_MS: u64 = 1;

/// Handles a PUBLISH.
pub struct Publishing<'a> {
    pub env: &'a Env,
    pub protocol: &'a mut Protocol,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub qos2: &'a mut Qos2,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub store: &'a mut Store,
    pub catch_up: &'a mut CatchUp,
    pub quotas: &'a mut Quotas,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

/// How far a run of packets came.
pub struct Run {
    /// The bytes of the packets that were handled.
    pub bytes: usize,
    /// The size of the next packet, if it has to be handled again later.
    pub waits: Option<usize>,
}

impl Publishing<'_> {
    /// Handles the PUBLISH packets at the front of what an open connection has sent, up to one with effects, which come
    /// before the next packet.
    pub fn run(&mut self, key: ConnKey, bytes: &[u8]) -> Run {
        let mut run = Run {
            bytes: 0,
            waits: None,
        };
        let Some(version) = self.clients.conn(key).map(|conn| conn.version) else {
            return run;
        };
        let limits = &self.env.settings.mqtt;
        let (size_max, limits_rate) = (limits.max_packet_bytes.as_usize(), limits.limits_rate());
        while let rest = &bytes[run.bytes..]
            && let Ok(frame) = frame::next(rest, size_max)
            && let Frame::Whole {
                first_byte,
                header_len,
                total_len,
            } = frame
            && first_byte >> 4 == kind::PUBLISH
            && let Some(body) = rest.get(header_len..total_len)
        {
            if self.routing.has_read_enough() {
                self.pause_for_work(key);
                run.waits = Some(total_len);
                break;
            }
            let size = (first_byte, total_len);
            let is_over_rate =
                limits_rate && self.clients.is_over_rate(key, size, self.env, self.observe);
            if is_over_rate || !self.decode(key, version, first_byte, body) {
                run.waits = Some(total_len);
                break;
            }
            self.observe.count(Count::PacketsReceived, 1);
            self.routing.charge_packet(PacketCost::Usual);
            run.bytes += total_len;
            if !self.effects.is_empty() {
                break;
            }
        }
        run
    }

    fn pause_for_work(&mut self, key: ConnKey) {
        let due_ms = self.env.now.mono_ms + WORK_PAUSE_MS;
        self.clients
            .pause_for_work(key, due_ms, self.env, self.observe);
    }

    /// Does a part of the search for the receivers of a topic, if they have to be found again. Returns whether there is
    /// more of it.
    #[inline]
    fn is_searched(&mut self, id: TopicId) -> bool {
        if !self.routing.is_unmatched(id) {
            return false;
        }
        let session_of = |key| self.clients.session(key);
        matches(self.routing, id, session_of, self.groups).is_none()
    }

    /// Handles a packet, or closes the connection if it is malformed. Returns false if it has to be handled again
    /// later.
    #[inline]
    fn decode(&mut self, key: ConnKey, version: Version, first_byte: u8, body: &[u8]) -> bool {
        match packet::publish::decode(version, first_byte, body) {
            Ok(publish) => self.handle(key, &publish),
            Err(error) => {
                let cause = Cause::Protocol(error);
                self.clients.close(key, cause, self.env, self.effects);
                true
            }
        }
    }

    /// Stages the record. Returns false if the partition accepts none now: the packet has to be handled again later.
    #[inline]
    fn handle(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        if self.closes_publish(key, publish) {
            return true;
        }
        let Some(id) = self.topic_of(key, publish) else {
            return true;
        };
        let Some(partition) = self.routing.topic(id).map(|topic| topic.partition) else {
            return true;
        };
        let owners = (&*self.clients, &*self.routing);
        if !self.protocol.may_publish(key, id, owners) {
            self.env.metrics.auth.publishes_denied.inc();
            let topic = self.routing.topic(id).map(|topic| &*topic.name);
            let what = ("publish", "acl");
            self.clients.refused(key, None, what, topic, self.env);
            self.refuse_publish(key, publish, ReasonCode::NotAuthorized);
            return true;
        }
        if publish.qos == QoS::ExactlyOnce && self.is_answered(key, publish) {
            return true;
        }
        if publish.retain && !publish.payload.is_empty() && self.refuses_retained(key, id, publish)
        {
            return true;
        }
        if self.ingest.is_stalled(partition) {
            self.wait_for_queue(key, partition);
            return false;
        }
        // Found now and not only when the record is delivered, so that whoever publishes pays for it.
        if !self.routing.is_empty() && self.is_searched(id) {
            self.pause_for_work(key);
            return false;
        }
        if !self.ingest.admits(partition, key) {
            self.wait_for_queue(key, partition);
            return false;
        }
        // The connection may be closed after this publish; the message remains.
        let account = if publish.retain && !publish.payload.is_empty() {
            self.clients.conn(key).and_then(|conn| conn.account)
        } else {
            None
        };
        if self.stage_publish(key, id, publish).is_err() {
            // A table of this append is full; the following records go into the next append.
            self.ingest.append(partition, false, self.effects);
            if self.ingest.is_stalled(partition) || self.stage_publish(key, id, publish).is_err() {
                self.wait_for_queue(key, partition);
                return false;
            }
        }
        if account.is_some()
            && let Some(topic) = self.routing.topic(id)
        {
            let (message, now_ms) = ((&*topic.name, publish.payload.len()), self.env.now.mono_ms);
            let retained = self.retained.lock();
            retained.claim(self.quotas, account, message, now_ms);
        }
        self.observe.count(Count::PublishesReceived, 1);
        if self.ingest.is_large(partition) {
            self.ingest.append(partition, false, self.effects);
        }
        self.observe
            .count(Count::PublishReceivedBytes, publish.payload.len() as u64);
        true
    }

    /// A publish asks for something the broker does not offer: the connection is closed with the reason code for it.
    #[inline]
    fn closes_publish(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        let limits = &self.env.settings.mqtt;
        if publish.qos <= limits.qos_max() && (!publish.retain || limits.retain_available) {
            return false;
        }
        let reason = if publish.qos > limits.qos_max() {
            ReasonCode::QosNotSupported
        } else {
            ReasonCode::RetainNotSupported
        };
        self.observe.count(Count::PublishesRefused, 1);
        self.close(key, reason);
        true
    }

    fn wait_for_queue(&mut self, key: ConnKey, partition: PartitionIndex) {
        let pause = Pause::Queue(partition);
        if let Some(conn) = self.clients.conn_mut(key)
            && !conn.pauses.has(pause)
        {
            self.observe.pause(conn, pause);
            self.ingest.wait_for_room(partition, key);
        }
    }

    /// A QoS 2 publish that needs no new record: a repeated one, or one over the limit.
    fn is_answered(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        if lend!(self => Acknowledging).answer_repeated(key, publish) {
            return true;
        }
        let owners = (&*self.clients, &*self.quotas);
        if self.qos2.holds_too_many(key, owners, self.env) {
            self.refuse_or_close(key, publish, ReasonCode::QuotaExceeded);
            return true;
        }
        false
    }

    /// Refuses a publish over a limit. MQTT 5 gets a reason code; an older client that waits for an acknowledgement
    /// loses its connection, as on a full disk.
    fn refuse_or_close(&mut self, key: ConnKey, publish: &Publish<'_>, reason: ReasonCode) {
        let is_v5 = self.clients.conn(key).is_some_and(Connection::is_v5);
        if is_v5 || publish.qos == QoS::AtMostOnce {
            self.refuse_publish(key, publish, reason);
        } else {
            self.observe.count(Count::PublishesRefused, 1);
            self.close(key, reason);
        }
    }

    /// Whether this publish exceeds the limit on retained messages, or a quota on them.
    fn refuses_retained(&mut self, key: ConnKey, id: TopicId, publish: &Publish<'_>) -> bool {
        let Some(topic) = self.routing.topic(id) else {
            return false;
        };
        let account = self.clients.conn(key).and_then(|conn| conn.account);
        let message = (&*topic.name, publish.payload.len());
        let retained = self.retained.lock();
        if !retained.is_full_for(message.0, message.1) {
            let Some(kind) = retained.over_quota(self.quotas, account, message) else {
                return false;
            };
            let what = ("publish", kind.reason());
            let name = Some(message.0);
            self.clients.refused(key, None, what, name, self.env);
        }
        drop(retained);
        self.observe.count(Count::RetainedRefused, 1);
        self.refuse_or_close(key, publish, ReasonCode::QuotaExceeded);
        true
    }

    /// An invalid topic name closes an older client's connection; a name that is only forbidden to clients does not.
    pub(super) fn refuse_name(&mut self, key: ConnKey, publish: &Publish<'_>, reason: ReasonCode) {
        if reason == ReasonCode::NotAuthorized {
            self.refuse_publish(key, publish, reason);
        } else {
            self.refuse_or_close(key, publish, reason);
        }
    }

    /// Drops a publish. MQTT 5 gets the reason; older versions get a plain acknowledgement, as from Mosquitto.
    fn refuse_publish(&mut self, key: ConnKey, publish: &Publish<'_>, reason: ReasonCode) {
        self.observe.count(Count::PublishesRefused, 1);
        self.routing.charge_packet(PacketCost::Refused);
        self.observe.refuse("puback", reason);
        if let (Some(packet_id), Some(conn)) = (publish.packet_id, self.clients.conn_mut(key)) {
            let kind = kind_of(publish.qos);
            let ack = Acks::one(kind, packet_id.get(), reason);
            conn.acks.push_ack(Commit::DURABLE, ack);
            conn.publishes_in_flight += 1;
            lend!(self => Replies).send_ready(key);
        }
    }

    /// Stages the record, and queues its acknowledgement.
    ///
    /// # Errors
    /// A table of the append is full.
    #[inline]
    fn stage_publish(
        &mut self,
        key: ConnKey,
        id: TopicId,
        publish: &Publish<'_>,
    ) -> Result<(), RecordsFull> {
        let Some((conn, session_of)) = self.clients.conn_beside_sessions(key) else {
            return Ok(());
        };
        let Some(topic) = self.routing.topic_mut(id) else {
            return Ok(());
        };
        let staged = self.ingest.push((key, conn), session_of, topic, publish)?;
        if !self.routing.is_empty() {
            self.routing.charge_record(id);
        }
        if let Some(packet_id) = publish.packet_id {
            let mut reason = ReasonCode::Success;
            // A PUBREC only says that the message was accepted, as in Mosquitto.
            if conn.version.is_v5() && publish.qos == QoS::AtLeastOnce {
                let matches = matches(self.routing, id, session_of, self.groups);
                if matches.is_some_and(|matches| !matches.any) {
                    reason = ReasonCode::NoMatchingSubscribers;
                }
            }
            let ack = Acks::one(kind_of(publish.qos), packet_id.get(), reason);
            let Staged { after, index } = staged;
            conn.publishes_in_flight = conn.publishes_in_flight.saturating_add(1);
            if conn.stream_ack {
                let base = None;
                conn.acks.push(after, What::Located { ack, index, base });
            } else {
                conn.acks.push_ack(after, ack);
            }
            if conn.version.is_v5()
                && conn.publishes_in_flight > self.env.settings.mqtt.receive_maximum
            {
                self.close(key, ReasonCode::ReceiveMaximumExceeded);
            }
            if publish.qos == QoS::ExactlyOnce {
                let publish = (packet_id.get(), publish.payload);
                let owners = (&mut *self.clients, &mut *self.store);
                self.qos2.hold_id(key, publish, staged.after, owners);
            }
        }
        Ok(())
    }

    pub(super) fn close(&mut self, key: ConnKey, reason: ReasonCode) {
        let cause = Cause::Reason(reason);
        self.clients.close(key, cause, self.env, self.effects);
    }
}

#[inline]
fn kind_of(qos: QoS) -> AckKind {
    if qos == QoS::ExactlyOnce {
        AckKind::Pubrec
    } else {
        AckKind::Puback
    }
}
