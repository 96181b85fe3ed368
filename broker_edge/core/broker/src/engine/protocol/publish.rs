//! PUBLISH from a client: resolves its topic, stages the record in the partition, and queues the acknowledgement.

use headwater_log::RecordsFull;
use headwater_mqtt::{Publish, QoS, ReasonCode};

use crate::engine::delivery::matches::matches;
use crate::engine::delivery::replies::Replies;
use crate::engine::effects::Cause;
use crate::engine::ids::{Commit, PartitionIndex};
use crate::engine::ingest::stage::Staged;
use crate::engine::qos2::Acknowledging;
use crate::engine::routing::topics::TopicId;
use crate::engine::session::ack::{AckKind, Acks, What};
use crate::engine::session::connection::{Alias, Connection};
use crate::engine::session::pauses::Pause;
use crate::engine::{ConnKey, Engine};

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
        let Some(partition) = self.routing.topic(id).map(|topic| topic.partition) else {
            return true;
        };
        let owners = (&self.clients, &self.routing);
        if !self.protocol.may_publish(key, id, owners) {
            self.env.metrics.auth.publishes_denied.inc();
            let what = ("publish", "acl");
            self.clients.refused(key, None, what, &self.env);
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
        // The connection may be closed after this publish; the message remains.
        let account = if publish.retain && !publish.payload.is_empty() {
            self.clients.conn(key).and_then(|conn| conn.account)
        } else {
            None
        };
        if self.stage_publish(key, id, publish).is_err() {
            // A table of this append is full; the following records go into the next append.
            self.append(partition);
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
            retained.claim(&mut self.quotas, account, message, now_ms);
        }
        self.observe.turn_metrics.publishes_received += 1;
        if self.ingest.is_large(partition) {
            self.append(partition);
        }
        self.observe.turn_metrics.publish_received_bytes += publish.payload.len() as u64;
        true
    }

    fn wait_for_queue(&mut self, key: ConnKey, partition: PartitionIndex) {
        if let Some(conn) = self.clients.conn_mut(key) {
            let pause = Pause::Queue(partition);
            self.observe.turn_metrics.pause(conn, pause);
        }
    }

    /// A QoS 2 publish that needs no new record: a repeated one, or one over the limit.
    fn is_answered(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        if lend!(self => Acknowledging).answer_repeated(key, publish) {
            return true;
        }
        let owners = (&self.clients, &self.quotas);
        if self.qos2.holds_too_many(key, owners, &self.env) {
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

    /// Whether this publish exceeds the limit on retained messages, or a quota on them.
    fn refuses_retained(&mut self, key: ConnKey, id: TopicId, publish: &Publish<'_>) -> bool {
        let Some(topic) = self.routing.topic(id) else {
            return false;
        };
        let account = self.clients.conn(key).and_then(|conn| conn.account);
        let message = (&*topic.name, publish.payload.len());
        let retained = self.retained.lock();
        if !retained.is_full_for(message.0, message.1) {
            let Some(kind) = retained.over_quota(&self.quotas, account, message) else {
                return false;
            };
            let what = ("publish", kind.reason());
            self.clients.refused(key, None, what, &self.env);
        }
        drop(retained);
        self.observe.turn_metrics.retained_refused += 1;
        self.refuse_or_close(key, publish, ReasonCode::QuotaExceeded);
        true
    }

    /// The topic of a publish, by name or alias; `None` if it was refused.
    #[inline]
    fn topic_of(&mut self, key: ConnKey, publish: &Publish<'_>) -> Option<TopicId> {
        let conn = self.clients.conn(key)?;
        if publish.topic_alias.is_none()
            && let Some(topic) = self.routing.topic(conn.topic)
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
        if let Some(reason) = self.env.refusal_of_name(name) {
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
                if self.routing.topic(*topic).is_none() {
                    *topic = self.routing.intern(name, &self.env.log);
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

    /// Drops a publish. MQTT 5 gets the reason; older versions get a plain acknowledgement, as from Mosquitto.
    fn refuse_publish(&mut self, key: ConnKey, publish: &Publish<'_>, reason: ReasonCode) {
        self.observe.turn_metrics.publishes_refused += 1;
        self.observe.turn_metrics.refuse("puback", reason);
        if let (Some(packet_id), Some(conn)) = (publish.packet_id, self.clients.conn_mut(key)) {
            let kind = kind_of(publish.qos);
            let ack = Acks::one(kind, packet_id.get(), reason);
            conn.acks.push_ack(Commit::DURABLE, ack);
            conn.publishes_in_flight += 1;
            lend!(self => Replies).send_ready(key);
        }
    }

    #[inline]
    fn stage_publish(
        &mut self,
        key: ConnKey,
        id: TopicId,
        publish: &Publish<'_>,
    ) -> Result<(), RecordsFull> {
        let (Some(conn), Some(topic)) =
            (self.clients.conns.get_mut(key), self.routing.topic_mut(id))
        else {
            return Ok(());
        };
        let staged = self
            .ingest
            .push((key, conn), &self.clients.sessions, topic, publish)?;
        if let Some(packet_id) = publish.packet_id {
            let mut reason = ReasonCode::Success;
            // A PUBREC only says that the message was accepted, as in Mosquitto.
            if conn.version.is_v5() && publish.qos == QoS::AtLeastOnce {
                let matches = matches(&mut self.routing, id, &self.clients.sessions, &self.groups);
                if !matches.any {
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
                self.close(key, Cause::Reason(ReasonCode::ReceiveMaximumExceeded));
            }
            if publish.qos == QoS::ExactlyOnce {
                let publish = (packet_id.get(), publish.payload);
                let owners = (&mut self.clients, &mut self.store);
                self.qos2.hold_id(key, publish, staged.after, owners);
            }
        }
        Ok(())
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
