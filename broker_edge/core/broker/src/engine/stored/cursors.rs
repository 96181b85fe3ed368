//! `cursor/<client id>`: where a session continues; written once a second while the client acknowledges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ByName;

pub fn key(client_id: &str) -> String {
    format!("cursor/{client_id}")
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cursors {
    pub cursors: ByName,
    /// Those of replaying subscriptions, by filter.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replays: BTreeMap<String, ByName>,
    /// Filters of replays that have caught up: they end where their subscription begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<String>,
}
