//! What to measure: plain values, set by the command line or by a test.

use std::net::SocketAddr;
use std::time::Duration;

use headwater_mqtt::{QoS, Version};
use tungstenite::http::Uri;

use crate::BenchError;
use crate::mix::Mix;
use crate::secrets::Credentials;
use crate::tls::Tls;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Publishers only: the time until a publish is acknowledged.
    Pub,
    /// Few publishers, many subscribers of the same topics: the time until a message is delivered.
    Sub,
    /// One subscriber for each publisher; each pair has its own topics.
    Pair,
    /// Clients that connect and disconnect: the time until the CONNACK.
    Connect,
}

impl Scenario {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pub => "pub",
            Self::Sub => "sub",
            Self::Pair => "pair",
            Self::Connect => "connect",
        }
    }

    pub fn delivers(self) -> bool {
        matches!(self, Self::Sub | Self::Pair)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each publisher has at most `window` messages in flight.
    Closed { window: u16 },
    /// Messages per second over all publishers, independent of the answers.
    Open { per_s: f64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Messages(u64),
    Time(Duration),
}

/// The layers between TCP and MQTT; none by default.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    pub(crate) tls: Option<Tls>,
    /// What the WebSocket request asks for.
    pub(crate) websocket: Option<Uri>,
}

impl Layers {
    pub(crate) fn is_none(&self) -> bool {
        self.tls.is_none() && self.websocket.is_none()
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub scenario: Scenario,
    pub address: SocketAddr,
    /// What messages call the address.
    pub place: String,
    pub layers: Layers,
    pub version: Version,
    pub credentials: Credentials,
    /// Publishers of `pub`, subscribers of `sub`, pairs of `pair`, or simultaneous connections of `connect`.
    pub connections: usize,
    /// Publishers of `sub`.
    pub publishers: usize,
    pub pace: Pace,
    pub limit: Limit,
    pub sizes: Mix<usize>,
    pub qos: Mix<QoS>,
    /// Topics of each publisher. In `sub` all publishers share the same topics.
    pub topics: u32,
    /// The prefix of every topic.
    pub prefix: String,
    /// The prefix of every client id.
    pub client_prefix: String,
    /// How long to wait without progress before giving up.
    pub patience: Duration,
    /// A broker on this machine whose CPU time is reported.
    pub broker_pid: Option<u32>,
}

/// Delivered messages begin with their send time, in this many bytes.
pub const TIME_BYTES: usize = 8;
const SIZE_MAX: usize = 16 << 20;
/// A client id has at most 65,535 bytes (MQTT 5 §1.5.4), and a number follows.
const CLIENT_PREFIX_BYTES_MAX: usize = 60_000;

impl Plan {
    /// The plan of a command line without options.
    pub fn new(scenario: Scenario, address: SocketAddr) -> Self {
        Self {
            scenario,
            address,
            place: address.to_string(),
            layers: Layers::default(),
            version: Version::V311,
            credentials: Credentials::default(),
            connections: 50,
            publishers: 1,
            pace: Pace::Closed { window: 100 },
            limit: Limit::Time(Duration::from_secs(10)),
            sizes: Mix::one(64),
            qos: Mix::one(QoS::AtLeastOnce),
            topics: 1,
            prefix: "bench".to_owned(),
            client_prefix: format!("bench-{}-", std::process::id()),
            patience: Duration::from_secs(10),
            broker_pid: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let wrong = |sentence: String| Err(BenchError::Usage(sentence));
        if self.connections == 0 || self.publishers == 0 || self.topics == 0 {
            return wrong("connections, publishers and topics must be at least 1".to_owned());
        }
        if self.client_prefix.len() > CLIENT_PREFIX_BYTES_MAX || self.client_prefix.contains('\0') {
            return wrong(format!(
                "--client-prefix is a text of at most {CLIENT_PREFIX_BYTES_MAX} bytes, without a null character"
            ));
        }
        match self.pace {
            Pace::Closed { window: 0 } => return wrong("--window must be at least 1".to_owned()),
            Pace::Open { per_s } if !(per_s.is_finite() && per_s > 0.0) => {
                return wrong("--rate must be above 0".to_owned());
            }
            _ => {}
        }
        if let Some(size) = self.sizes.values().find(|size| *size > SIZE_MAX) {
            return wrong(format!(
                "a payload size of {size} bytes is over the limit of {SIZE_MAX}"
            ));
        }
        if self.scenario.delivers() && self.sizes.values().any(|size| size < TIME_BYTES) {
            return wrong(format!(
                "payloads of this scenario need at least {TIME_BYTES} bytes, because they carry their send time"
            ));
        }
        Ok(())
    }

    /// Connections that publish.
    pub fn publisher_count(&self) -> usize {
        match self.scenario {
            Scenario::Pub | Scenario::Pair => self.connections,
            Scenario::Sub => self.publishers,
            Scenario::Connect => 0,
        }
    }

    /// Connections that subscribe.
    pub fn subscriber_count(&self) -> usize {
        match self.scenario {
            Scenario::Sub | Scenario::Pair => self.connections,
            Scenario::Pub | Scenario::Connect => 0,
        }
    }

    /// Deliveries per message.
    pub fn fan(&self) -> u64 {
        match self.scenario {
            Scenario::Sub => self.connections as u64,
            Scenario::Pair => 1,
            Scenario::Pub | Scenario::Connect => 0,
        }
    }

    /// The highest QoS of the mix; subscribers request it.
    pub fn qos_max(&self) -> QoS {
        self.qos.values().max().unwrap_or(QoS::AtMostOnce)
    }
}
