//! Limits of one client beyond its queues: rates, topics, and features that the broker does not offer.
//!
//! A client over its rate is not closed: the rest of what it sent stays unparsed and its socket is not read until it
//! may continue. For all other limits the standard has a reason code. Unused limits cost one comparison per packet.

use headwater_mqtt::packet::kind;
use headwater_mqtt::{Connect, Property, Publish, QoS, ReasonCode};

use crate::engine::clients::timers::Timer;
use crate::engine::effects::Cause;
use crate::engine::routing::topics::TopicId;
use crate::engine::session::connection::Phase;
use crate::engine::{ConnKey, Engine};

/// Connections that a drain closes in one turn.
const DRAINED_MAX: usize = 256;

/// The reason code with which clients are disconnected while the broker is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// They may come back: Use another server (0x9C).
    ForNow,
    /// They should not come back: Server moved (0x9D).
    ForGood,
}

impl Engine {
    /// Whether a packet has to wait because its client is over its rate. A packet that may pass is charged.
    pub(super) fn is_over_rate(&mut self, key: ConnKey, first_byte: u8, size: usize) -> bool {
        let Some(conn) = self.clients.conn_mut(key) else {
            return false;
        };
        if conn.phase != Phase::Open {
            return false;
        }
        let is_publish = first_byte >> 4 == kind::PUBLISH;
        let pace = conn.extras.pace.get_or_insert_default();
        let (limits, now_us) = (&self.env.settings.mqtt, self.env.now.mono_ms * 1000);
        let Err((due_us, cause)) = pace.charge(is_publish, size, limits, now_us) else {
            return false;
        };
        self.observe.turn_metrics.pause(conn, cause);
        self.clients
            .set_timer(due_us.div_ceil(1000), Timer::Pace(key));
        true
    }

    /// A publish asks for something the broker does not offer: the connection is closed with the reason code for it.
    #[inline]
    pub(super) fn closes_publish(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        let limits = &self.env.settings.mqtt;
        if publish.qos <= limits.qos_max() && (!publish.retain || limits.retain_available) {
            return false;
        }
        let reason = if publish.qos > limits.qos_max() {
            ReasonCode::QosNotSupported
        } else {
            ReasonCode::RetainNotSupported
        };
        self.observe.turn_metrics.publishes_refused += 1;
        self.close(key, Cause::Reason(reason));
        true
    }

    /// Whether this topic name would exceed its client's limit on topics.
    pub(super) fn is_one_topic_too_many(&self, key: ConnKey, name: &str) -> bool {
        let limit = self.env.settings.mqtt.max_topics;
        let generation = self.routing.generation();
        let session = self.clients.session_of(key);
        session.is_some_and(|session| session.topics_made.in_table(generation) >= limit)
            && !self.routing.holds_topic(name)
    }

    /// Interns a topic, and counts it for the client that added it to the table.
    pub(super) fn intern_for(&mut self, key: ConnKey, name: &str) -> TopicId {
        let before = self.routing.topics_len();
        let id = self.routing.intern(name, &self.env.log);
        if self.routing.topics_len() != before
            && let Some((_, session)) = self.clients.attached(key)
        {
            session.topics_made.add(self.routing.generation());
            self.charge_topic(key);
        }
        id
    }

    /// Why the broker's limits refuse this CONNECT, whoever the client is.
    pub(super) fn refusal_by_limits(&self, connect: &Connect<'_>) -> Option<ReasonCode> {
        let limits = &self.env.settings.mqtt;
        if let Some(drain) = self.protocol.drain {
            return Some(self.reason_of(drain));
        }
        let will = connect.will.as_ref()?;
        if will.qos > limits.qos_max() {
            return Some(ReasonCode::QosNotSupported);
        }
        (will.retain && !limits.retain_available).then_some(ReasonCode::RetainNotSupported)
    }

    /// The effective keep alive in seconds: the client's, or the one that the broker imposes on MQTT 5.
    pub(super) fn keep_alive_of(&self, connect: &Connect<'_>) -> u16 {
        let max = self.env.settings.mqtt.keep_alive_max_s();
        let wanted = connect.keep_alive_s;
        if max > 0 && connect.version.is_v5() && (wanted == 0 || wanted > max) {
            max
        } else {
            wanted
        }
    }

    /// The CONNACK properties for limits that are not the protocol's own.
    pub(super) fn limit_properties<'a>(
        &'a self,
        connect: &Connect<'_>,
        properties: &mut Vec<Property<'a>>,
    ) {
        let limits = &self.env.settings.mqtt;
        if limits.qos_max() < QoS::ExactlyOnce {
            properties.push(Property::MaximumQoS(limits.qos_max().as_u8()));
        }
        if !limits.retain_available {
            properties.push(Property::RetainAvailable(false));
        }
        if !limits.wildcard_available {
            properties.push(Property::WildcardSubscriptionAvailable(false));
        }
        let keep_alive_s = self.keep_alive_of(connect);
        if keep_alive_s != connect.keep_alive_s {
            properties.push(Property::ServerKeepAlive(keep_alive_s));
        }
        if let Some(information) = &limits.response_information
            && connect.properties.request_response_information() == Some(true)
        {
            properties.push(Property::ResponseInformation(information));
        }
    }

    fn reason_of(&self, drain: Drain) -> ReasonCode {
        match (drain, &self.env.settings.mqtt.server_reference) {
            (_, None) => ReasonCode::ServerUnavailable,
            (Drain::ForNow, _) => ReasonCode::UseAnotherServer,
            (Drain::ForGood, _) => ReasonCode::ServerMoved,
        }
    }

    /// Begins or ends maintenance: new clients are refused, and connected ones are closed, some in each turn.
    pub fn set_drain(&mut self, drain: Option<Drain>) {
        if self.protocol.drain != drain {
            tracing::info!(?drain, "maintenance");
        }
        self.protocol.drain = drain;
        self.observe.set_draining(drain.is_some());
    }

    pub(in crate::engine) fn drain_some(&mut self) {
        let Some(drain) = self.protocol.drain else {
            return;
        };
        let reason = match self.reason_of(drain) {
            ReasonCode::ServerUnavailable => ReasonCode::ServerShuttingDown,
            reason => reason,
        };
        let keys: Vec<ConnKey> = self
            .clients
            .conns
            .iter()
            .filter(|(_, conn)| conn.phase == Phase::Open)
            .map(|(key, _)| key)
            .take(DRAINED_MAX)
            .collect();
        self.effects.more |= keys.len() == DRAINED_MAX;
        for key in keys {
            self.close_now(key, Cause::Reason(reason));
        }
    }
}
