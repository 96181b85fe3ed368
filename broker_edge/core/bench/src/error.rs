//! Why a measurement ended without a report.

use std::io;
use std::net::SocketAddr;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("{0}")]
    Usage(String),
    #[error("{address} cannot be reached: {source}")]
    Unreachable {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the broker refused {what}: {reason}")]
    Refused { what: &'static str, reason: String },
    #[error("the broker closed {count} of {connections} connections, the first {when}: {reason}")]
    Closed {
        count: usize,
        connections: usize,
        when: &'static str,
        reason: String,
    },
    #[error("nothing came for {seconds} s {when}: {done} of {wanted}")]
    Stalled {
        seconds: u64,
        when: &'static str,
        done: u64,
        wanted: u64,
    },
    #[error("the broker sent what is no MQTT: {0}")]
    Protocol(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl BenchError {
    /// As the `headwater` command has them.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Usage(_) => 2,
            Self::Unreachable { .. } => 3,
            Self::Refused { .. } => 4,
            Self::Stalled { .. } => 124,
            Self::Closed { .. } | Self::Protocol(_) | Self::Io(_) => 1,
        }
    }
}
