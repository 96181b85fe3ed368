//! PUBLISH from a client: resolves its topic, stages the record in the partition, and queues the acknowledgement.

use headwater_log::{PublishId, RecordMeta, RecordsFull};
use headwater_mqtt::{PacketId, Publish, QoS, ReasonCode};

use crate::engine::containers::slab::Slab;
use crate::engine::effects::Cause;
use crate::engine::ids::{PartitionIndex, Ticket};
use crate::engine::observe::turn_metrics::PauseCause;
use crate::engine::routing::topics::TopicId;
use crate::engine::session::Session;
use crate::engine::session::ack::{AckKind, Reply};
use crate::engine::session::connection::{Alias, Connection};
use crate::engine::{ConnKey, Engine};

/// A partition's staged records are appended when they reach this size, not only at the end of the turn: they are
/// written while still in the processor's cache, and the buffer has a size that can be reused.
const APPEND_BYTES: usize = 256 << 10;

/// A record that the broker itself publishes: a will or a receipt.
#[derive(Debug, Clone, Copy)]
pub struct OwnRecord<'a> {
    pub topic: &'a str,
    pub client_id: &'a str,
    pub key: Option<&'a [u8]>,
    pub qos: u8,
    pub retain: bool,
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

impl Engine {
    /// Stages the record. Returns false if the partition accepts none now: the packet has to be handled again later.
    #[inline]
    pub(super) fn handle_publish(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        if self.closes_publish(key, publish) {
            return true;
        }
        let Some(id) = self.topic_of(key, publish) else {
            return true;
        };
        let Some(partition) = self.routing.topics.get(id).map(|topic| topic.partition) else {
            return true;
        };
        if !self.may_publish(key, id) {
            self.env.metrics.auth.publishes_denied.inc();
            self.audit(key, "publish", "acl");
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
        if self.ingest.stages[partition.index()].stalled {
            if let Some(conn) = self.clients.conn_mut(key) {
                conn.paused_on = Some(partition);
                self.observe.turn_metrics.paused(PauseCause::Queue);
            }
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
            self.append(partition, false);
            self.drain();
            if self.ingest.stages[partition.index()].stalled
                || self.stage_publish(key, id, publish).is_err()
            {
                if let Some(conn) = self.clients.conn_mut(key) {
                    conn.paused_on = Some(partition);
                    self.observe.turn_metrics.paused(PauseCause::Queue);
                }
                return false;
            }
        }
        if let Some(account) = account {
            self.claim_retained(account, id, publish.payload.len());
        }
        self.observe.turn_metrics.publishes_received += 1;
        if self.ingest.stages[partition.index()].records.bytes() >= APPEND_BYTES {
            self.append(partition, false);
        }
        self.observe.turn_metrics.publish_received_bytes += publish.payload.len() as u64;
        true
    }

    /// A QoS 2 publish that needs no new record: a repeated one, or one over the limit.
    fn is_answered(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        if self.answer_repeated(key, publish) {
            return true;
        }
        if self.holds_too_many(key) {
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
            self.observe.turn_metrics.publishes_refused += 1;
            self.close(key, Cause::Reason(reason));
        }
    }

    /// Whether this publish exceeds the limit on retained messages.
    fn refuses_retained(&mut self, key: ConnKey, id: TopicId, publish: &Publish<'_>) -> bool {
        let Some(topic) = self.routing.topics.get(id) else {
            return false;
        };
        let retained = self.retained.lock();
        let is_full = retained.is_full_for(&topic.name, publish.payload.len());
        drop(retained);
        if !is_full && !self.is_retained_over_quota(key, id, publish.payload.len()) {
            return false;
        }
        self.observe.turn_metrics.retained_refused += 1;
        self.refuse_or_close(key, publish, ReasonCode::QuotaExceeded);
        true
    }

    /// The topic of a publish, by name or alias; `None` if it was refused.
    #[inline]
    fn topic_of(&mut self, key: ConnKey, publish: &Publish<'_>) -> Option<TopicId> {
        let conn = self.clients.conn(key)?;
        if publish.topic_alias.is_none()
            && let Some(topic) = self.routing.topics.get(conn.topic)
            && topic.name.as_bytes() == publish.topic.as_bytes()
        {
            return Some(conn.topic);
        }
        self.find_topic(key, publish)
    }

    fn find_topic(&mut self, key: ConnKey, publish: &Publish<'_>) -> Option<TopicId> {
        let alias = publish.topic_alias.map(|alias| usize::from(alias.get()));
        if alias
            .is_some_and(|alias| alias > usize::from(self.env.settings.mqtt.topic_alias_maximum))
        {
            self.close(key, Cause::Reason(ReasonCode::TopicAliasInvalid));
            return None;
        }
        if let (Some(alias), true) = (alias, publish.topic.is_empty()) {
            return self.aliased_topic(key, alias, publish);
        }
        let name = publish.topic.as_str();
        let found = self.named_topic(key, name);
        if let Err(reason) = found {
            self.refuse_name(key, publish, reason);
        }
        let conn = self.clients.conn_mut(key)?;
        if let Some(alias) = alias {
            let aliases = &mut conn.extras.aliases;
            if aliases.len() < alias {
                aliases.resize_with(alias, || None);
            }
            aliases[alias - 1] = Some(match found {
                Ok(topic) => {
                    let name = name.into();
                    Alias::Topic { name, topic }
                }
                Err(reason) => Alias::Refused(reason),
            });
        } else if let Ok(topic) = found {
            conn.topic = topic;
        }
        found.ok()
    }

    /// The topic of a name, or the reason why the client may not publish to it.
    fn named_topic(&mut self, key: ConnKey, name: &str) -> Result<TopicId, ReasonCode> {
        if let Some(reason) = self.refusal_of_name(name) {
            return Err(reason);
        }
        if self.is_one_topic_too_many(key, name) || self.is_topic_over_quota(key, name) {
            self.observe.turn_metrics.topics_refused += 1;
            return Err(ReasonCode::QuotaExceeded);
        }
        Ok(self.intern_for(key, name))
    }

    fn aliased_topic(
        &mut self,
        key: ConnKey,
        number: usize,
        publish: &Publish<'_>,
    ) -> Option<TopicId> {
        let conn = self.clients.conn_mut(key)?;
        let aliases = conn.extras.present_mut().map(|extras| &mut extras.aliases);
        match aliases.and_then(|aliases| aliases.get_mut(number - 1)?.as_mut()) {
            Some(Alias::Topic { name, topic }) => {
                if self.routing.topics.get(*topic).is_none() {
                    *topic = self.routing.topics.intern(name, &self.env.log);
                }
                Some(*topic)
            }
            Some(Alias::Refused(reason)) => {
                let reason = *reason;
                self.refuse_name(key, publish, reason);
                None
            }
            None => {
                // The alias is within the limit but not set: this has another reason code than an alias over the limit.
                self.close(key, Cause::Reason(ReasonCode::ProtocolError));
                None
            }
        }
    }

    /// An invalid topic name closes an older client's connection; a name that is only forbidden to clients does not.
    fn refuse_name(&mut self, key: ConnKey, publish: &Publish<'_>, reason: ReasonCode) {
        if reason == ReasonCode::NotAuthorized {
            self.refuse_publish(key, publish, reason);
        } else {
            self.refuse_or_close(key, publish, reason);
        }
    }

    /// Why no client may publish to this name, if so.
    pub(in crate::engine) fn refusal_of_name(&self, name: &str) -> Option<ReasonCode> {
        if name.starts_with('$') {
            return Some(ReasonCode::NotAuthorized);
        }
        let levels = 1 + name.bytes().filter(|byte| *byte == b'/').count();
        let is_long = name.len() > self.env.settings.mqtt.max_topic_bytes as usize;
        (is_long || levels > usize::from(self.env.settings.mqtt.max_topic_levels))
            .then_some(ReasonCode::TopicNameInvalid)
    }

    /// Drops a publish. MQTT 5 gets the reason; older versions get a plain acknowledgement, as from Mosquitto.
    fn refuse_publish(&mut self, key: ConnKey, publish: &Publish<'_>, reason: ReasonCode) {
        self.observe.turn_metrics.publishes_refused += 1;
        self.observe.turn_metrics.refuse("puback", reason);
        if let (Some(packet_id), Some(conn)) = (publish.packet_id, self.clients.conn_mut(key)) {
            conn.acks.push(Reply::Ack {
                kind: kind_of(publish.qos),
                packet_id: packet_id.get(),
                reason,
            });
            conn.publishes_in_flight += 1;
            self.send_ready(key);
        }
    }

    #[inline]
    fn stage_publish(
        &mut self,
        key: ConnKey,
        id: TopicId,
        publish: &Publish<'_>,
    ) -> Result<(), RecordsFull> {
        let (Some(conn), Some(topic)) = (
            self.clients.conns.get_mut(key),
            self.routing.topics.get_mut(id),
        ) else {
            return Ok(());
        };
        let stage = &mut self.ingest.stages[topic.partition.index()];
        if topic.staged.0 != stage.stamp {
            topic.staged = (
                stage.stamp,
                stage.records.topic(&topic.name, topic.key.clone())?,
            );
        }
        if conn.client.0 != stage.stamp {
            let session = conn
                .session
                .and_then(|session| self.clients.sessions.get(session));
            let client_id = session.map_or("", |session| &*session.client_id);
            conn.client = (stage.stamp, stage.client(key, client_id)?);
        }
        let mut meta = RecordMeta::new(topic.staged.1, conn.client.1, publish.qos.as_u8());
        meta.retain = publish.retain;
        if publish.qos == QoS::ExactlyOnce {
            meta.publish_id = publish_id(conn, &self.clients.sessions, publish.packet_id);
        }
        if publish.properties.is_empty() {
            stage.records.push(meta, publish.payload)?;
        } else {
            let mut properties = Vec::with_capacity(publish.properties.as_bytes().len());
            publish.properties.copy_forwardable(&mut properties);
            meta.properties = &properties;
            stage.records.push(meta, publish.payload)?;
        }
        let partition = topic.partition;
        let ticket = stage.ticket(Some(key));
        if let Some(packet_id) = publish.packet_id {
            let mut reason = ReasonCode::Success;
            // A PUBREC only says that the message was accepted, as in Mosquitto.
            if conn.version.is_v5() && publish.qos == QoS::AtLeastOnce {
                let matches = self.routing.topics.matches(
                    id,
                    &self.routing.router,
                    &self.clients.sessions,
                    &self.groups,
                );
                if !matches.any {
                    reason = ReasonCode::NoMatchingSubscribers;
                }
            }
            owe_ack(
                conn,
                kind_of(publish.qos),
                partition,
                ticket,
                packet_id.get(),
                reason,
            );
            if conn.version.is_v5()
                && conn.publishes_in_flight > self.env.settings.mqtt.receive_maximum
            {
                self.close(key, Cause::Reason(ReasonCode::ReceiveMaximumExceeded));
            }
            if publish.qos == QoS::ExactlyOnce
                && let Some(session) = self.clients.session_key(key)
            {
                let publish = (packet_id.get(), publish.payload);
                self.hold_id(session, key, publish, partition, ticket);
            }
        }
        Ok(())
    }

    /// Stages a record of the broker's own, even if the queue is full: there are few, and each has a bounded cause (a
    /// connection that ended, a command that was acknowledged).
    pub(in crate::engine) fn stage_own(
        &mut self,
        record: &OwnRecord<'_>,
    ) -> Option<(PartitionIndex, Ticket)> {
        let id = self.routing.topics.intern(record.topic, &self.env.log);
        let partition = self.routing.topics.get(id)?.partition;
        let mut staged = self.push_own(id, record);
        if staged.is_err() {
            // A table of this append is full; the following records go into the next append.
            self.append(partition, false);
            staged = self.push_own(id, record);
        }
        if staged.is_err() {
            tracing::warn!(
                topic = record.topic,
                "the append is full, so a record of the broker itself is lost"
            );
            return None;
        }
        Some((
            partition,
            self.ingest.stages[partition.index()].ticket(None),
        ))
    }

    fn push_own(&mut self, id: TopicId, record: &OwnRecord<'_>) -> Result<(), RecordsFull> {
        let topic = self.routing.topics.get(id).ok_or(RecordsFull)?;
        let stage = &mut self.ingest.stages[topic.partition.index()];
        let index = stage.records.topic(&topic.name, topic.key.clone())?;
        let client = stage.records.client(record.client_id)?;
        let mut meta = RecordMeta::new(index, client, record.qos);
        meta.retain = record.retain;
        meta.key = record.key;
        meta.properties = record.properties;
        stage.records.push(meta, record.payload)
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

/// The id by which a restart recognizes a QoS 2 publish; `None` for a session that does not outlive its connection.
fn publish_id(
    conn: &Connection,
    sessions: &Slab<Session>,
    packet_id: Option<PacketId>,
) -> Option<PublishId> {
    let session = sessions.get(conn.session?)?;
    let packet_id = packet_id?.get();
    session.stored.then_some(PublishId {
        session: session.life,
        packet_id,
    })
}

#[inline]
fn owe_ack(
    conn: &mut Connection,
    kind: AckKind,
    partition: PartitionIndex,
    ticket: Ticket,
    packet_id: u16,
    reason: ReasonCode,
) {
    conn.publishes_in_flight = conn.publishes_in_flight.saturating_add(1);
    if conn.stream_ack {
        conn.acks.push(Reply::Located {
            kind,
            ticket,
            partition,
            packet_id,
            reason,
            offset: None,
        });
    } else {
        conn.acks
            .push_ack(kind, partition, ticket, packet_id, reason);
    }
}
