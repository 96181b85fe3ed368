//! `session/<client id>`: written when subscriptions or attachment change, and waited for.

use serde::{Deserialize, Serialize};

use super::ByName;

pub const PREFIX: &str = "session/";

pub fn key(client_id: &str) -> String {
    format!("{PREFIX}{client_id}")
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Session {
    /// Seconds; `None` means never.
    pub expiry_s: Option<u32>,
    /// Unix microseconds; `None` while connected.
    pub away_since_us: Option<i64>,
    /// Identifies the session in the records of its QoS 2 publishes.
    #[serde(default)]
    pub life: u64,
    /// The user who owns the session: empty for an anonymous client, absent if no owner is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub subscriptions: Vec<Subscription>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Subscription {
    pub filter: String,
    /// The tenant of the shared group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub qos: u8,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_local: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain_as_published: bool,
    #[serde(default)]
    pub retain_handling: u8,
    #[serde(default)]
    pub id: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offsets: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offset_topics: bool,
    /// First offset per partition name.
    pub since: ByName,
}
