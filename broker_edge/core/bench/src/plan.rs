//! What is to be measured: plain values, made from the command line or by a test.

use std::net::SocketAddr;
use std::time::Duration;

use headwater_mqtt::{QoS, Version};

use crate::BenchError;
use crate::mix::Mix;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Publishers alone: how long until a publish is acknowledged.
    Pub,
    /// Few publishers, many subscribers of the same topics: how long until a message is delivered.
    Sub,
    /// A subscriber to each publisher, on a topic of their own.
    Pair,
    /// Connections that come and go: how long until a client is let in.
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
    /// Each publisher has at most this many messages on their way.
    Closed { window: u16 },
    /// Messages a second, all publishers together, whatever comes back.
    Open { per_s: f64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Messages(u64),
    Time(Duration),
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub scenario: Scenario,
    pub address: SocketAddr,
    pub version: Version,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    /// Publishers of `pub`, subscribers of `sub`, pairs of `pair`, and connections of `connect` at a time.
    pub connections: usize,
    /// Of `sub`.
    pub publishers: usize,
    pub pace: Pace,
    pub limit: Limit,
    pub sizes: Mix<usize>,
    pub qos: Mix<QoS>,
    /// Topics of each publisher; all publishers of `sub` share theirs.
    pub topics: u32,
    /// The beginning of every topic.
    pub prefix: String,
    /// The beginning of every client id.
    pub client_prefix: String,
    /// How long to wait for what does not come.
    pub patience: Duration,
    /// A broker on this machine, whose processor time is reported.
    pub broker_pid: Option<u32>,
}

/// A message that is delivered carries its time.
pub const TIME_BYTES: usize = 8;
const SIZE_MAX: usize = 16 << 20;

impl Plan {
    /// As the command has it without options.
    pub fn new(scenario: Scenario, address: SocketAddr) -> Self {
        Self {
            scenario,
            address,
            version: Version::V311,
            username: None,
            password: None,
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
            return wrong("there must be a connection, a publisher and a topic".to_owned());
        }
        match self.pace {
            Pace::Closed { window: 0 } => return wrong("a window is at least 1".to_owned()),
            Pace::Open { per_s } if !(per_s.is_finite() && per_s > 0.0) => {
                return wrong("a rate is above 0".to_owned());
            }
            _ => {}
        }
        if let Some(size) = self.sizes.values().find(|size| *size > SIZE_MAX) {
            return wrong(format!("{size} bytes are over the limit of {SIZE_MAX}"));
        }
        if self.scenario.delivers() && self.sizes.values().any(|size| size < TIME_BYTES) {
            return wrong(format!(
                "a message that is delivered has at least {TIME_BYTES} bytes, for its time"
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

    /// Deliveries that a message causes.
    pub fn fan(&self) -> u64 {
        match self.scenario {
            Scenario::Sub => self.connections as u64,
            Scenario::Pair => 1,
            Scenario::Pub | Scenario::Connect => 0,
        }
    }

    /// The highest QoS of the mix, which subscribers ask for.
    pub fn qos_max(&self) -> QoS {
        self.qos.values().max().unwrap_or(QoS::AtMostOnce)
    }
}
