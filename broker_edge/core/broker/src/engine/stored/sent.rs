//! `sent/<client id>`: the QoS 2 deliveries in flight.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// First offset and the one behind the last, by partition name.
pub type Ranges = BTreeMap<String, (u64, u64)>;

pub fn key(client_id: &str) -> String {
    format!("sent/{client_id}")
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// The QoS 2 records in these ranges have been given packet ids.
    pub assigned: Ranges,
    /// The same for replaying subscriptions, by filter.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replays: BTreeMap<String, Ranges>,
    /// In order of packet ids.
    pub flights: Vec<Flight>,
}

/// Packet id, partition number, offset, the packet awaited (0 PUBREC, 1 PUBCOMP), the source.
#[derive(Debug, Serialize, Deserialize)]
pub struct Flight(pub u16, pub u16, pub u64, pub u8, pub Source);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The session's own cursor.
    C,
    /// A retained message.
    R,
    /// A replay, by its filter.
    Replay(String),
    /// A shared group.
    Share(String),
    /// A shared group that no longer exists.
    U,
}
