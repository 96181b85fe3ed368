//! `received/<client id>`: the packet ids of QoS 2 publishes that a client has not released.

use serde::{Deserialize, Serialize};

use super::ByName;

pub fn key(client_id: &str) -> String {
    format!("received/{client_id}")
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Per partition name: the session's records below are covered.
    pub applied: ByName,
    pub held: Vec<u16>,
}
