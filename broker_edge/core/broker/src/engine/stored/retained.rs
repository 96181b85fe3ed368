//! `retained/<topic>`: a retained message whose segment is gone.

use serde::{Deserialize, Serialize};

pub const PREFIX: &str = "retained/";

pub fn key(topic: &str) -> String {
    format!("{PREFIX}{topic}")
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Value {
    pub partition: u16,
    pub offset: u64,
    pub time_us: i64,
    pub client_id: String,
    pub qos: u8,
    /// Both in hexadecimal.
    pub properties: String,
    pub payload: String,
}
