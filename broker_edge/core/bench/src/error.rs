//! Why a measurement ended without a report.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot connect to {place}: {source}")]
    Unreachable { place: String, source: io::Error },
    #[error("the broker refused {what}: {reason}")]
    Refused { what: &'static str, reason: String },
    #[error("the broker closed {count} of {connections} connections, the first {when}: {reason}")]
    Closed {
        count: usize,
        connections: usize,
        when: &'static str,
        reason: String,
    },
    #[error("nothing arrived for {seconds} s {when}: {done} of {wanted} done")]
    Stalled {
        seconds: u64,
        when: &'static str,
        done: u64,
        wanted: u64,
    },
    #[error("the broker sent invalid MQTT: {0}")]
    Protocol(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl BenchError {
    /// The same codes as the `headwater` command's.
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
