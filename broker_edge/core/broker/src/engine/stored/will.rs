//! `will/<client id>`: a will that waits for its delay.

use serde::{Deserialize, Serialize};

pub const PREFIX: &str = "will/";

pub fn key(client_id: &str) -> String {
    format!("{PREFIX}{client_id}")
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Will {
    /// Unix microseconds.
    pub due_us: i64,
    /// Idempotency key of its record.
    pub token: String,
    pub topic: String,
    pub qos: u8,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
    /// Its client showed neither a token nor a certificate, so that a start can tell whether it still has the right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_by_files: bool,
    /// Both in hexadecimal.
    pub properties: String,
    pub payload: String,
}
