//! Why bytes were refused: the reason code that MQTT 5 asks for, and one sentence for the log.

use crate::reason::ReasonCode;

/// A packet that cannot be accepted. The connection must be closed; MQTT 5 peers are first told [`DecodeError::reason`]
/// in a DISCONNECT, or in a CONNACK while they are connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} (0x{:02x})", *reason as u8)]
pub struct DecodeError {
    pub reason: ReasonCode,
    pub what: &'static str,
}

impl DecodeError {
    /// The bytes are not a packet (0x81).
    #[must_use]
    pub const fn malformed(what: &'static str) -> Self {
        Self {
            reason: ReasonCode::MalformedPacket,
            what,
        }
    }

    /// The bytes are a packet that may not be sent, or not here (0x82).
    #[must_use]
    pub const fn protocol(what: &'static str) -> Self {
        Self {
            reason: ReasonCode::ProtocolError,
            what,
        }
    }

    #[must_use]
    pub const fn new(reason: ReasonCode, what: &'static str) -> Self {
        Self { reason, what }
    }
}
