//! What the broker does not offer, and its maintenance: clients are told by the properties and reason codes that the
//! standard has for it.

use headwater_mqtt::{Connect, Property, QoS, ReasonCode};

use crate::engine::clients::Clients;
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;
use crate::engine::observe::Observe;
use crate::engine::session::connection::Phase;
use crate::engine::{ConnKey, Settings};

use super::Protocol;

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

impl Drain {
    /// What a client that connects is told.
    fn reason(self, settings: &Settings) -> ReasonCode {
        match (self, &settings.mqtt.server_reference) {
            (_, None) => ReasonCode::ServerUnavailable,
            (Self::ForNow, _) => ReasonCode::UseAnotherServer,
            (Self::ForGood, _) => ReasonCode::ServerMoved,
        }
    }
}

impl Protocol {
    /// Why the broker's limits refuse this CONNECT, whoever the client is.
    pub(super) fn refusal_by_limits(&self, connect: &Connect<'_>, env: &Env) -> Option<ReasonCode> {
        let limits = &env.settings.mqtt;
        if let Some(drain) = self.drain {
            return Some(drain.reason(&env.settings));
        }
        let will = connect.will.as_ref()?;
        if will.qos > limits.qos_max() {
            return Some(ReasonCode::QosNotSupported);
        }
        (will.retain && !limits.retain_available).then_some(ReasonCode::RetainNotSupported)
    }

    /// Whether no client is admitted.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Begins or ends maintenance: new clients are refused, and connected ones are closed, some in each turn.
    pub fn set_drain(&mut self, drain: Option<Drain>, observe: &mut Observe) {
        if self.drain != drain {
            tracing::info!(?drain, "maintenance");
        }
        self.drain = drain;
        observe.set_draining(drain.is_some());
    }

    /// Closes some of the connected clients, if the broker is drained.
    pub fn drain_some(&self, clients: &mut Clients, env: &Env, effects: &mut Effects) {
        let Some(drain) = self.drain else {
            return;
        };
        let reason = match drain.reason(&env.settings) {
            ReasonCode::ServerUnavailable => ReasonCode::ServerShuttingDown,
            reason => reason,
        };
        let open = clients
            .connections()
            .filter(|(_, conn)| conn.phase == Phase::Open);
        let keys: Vec<ConnKey> = open.map(|(key, _)| key).take(DRAINED_MAX).collect();
        effects.note_more(keys.len() == DRAINED_MAX);
        for key in keys {
            clients.close(key, Cause::Reason(reason), env, effects);
        }
    }
}

/// Adds the CONNACK properties for limits that are not the protocol's own.
pub fn limit_properties<'a>(
    settings: &'a Settings,
    connect: &Connect<'_>,
    properties: &mut Vec<Property<'a>>,
) {
    let limits = &settings.mqtt;
    if limits.qos_max() < QoS::ExactlyOnce {
        properties.push(Property::MaximumQoS(limits.qos_max().as_u8()));
    }
    if !limits.retain_available {
        properties.push(Property::RetainAvailable(false));
    }
    if !limits.wildcard_available {
        properties.push(Property::WildcardSubscriptionAvailable(false));
    }
    let keep_alive_s = settings.keep_alive_of(connect);
    if keep_alive_s != connect.keep_alive_s {
        properties.push(Property::ServerKeepAlive(keep_alive_s));
    }
    if let Some(information) = &limits.response_information
        && connect.properties.request_response_information() == Some(true)
    {
        properties.push(Property::ResponseInformation(information));
    }
}
