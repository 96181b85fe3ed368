//! Why a packet was refused: the reason code of MQTT 5, and one sentence for the log.

use crate::reason::ReasonCode;

/// A packet that cannot be accepted. The connection must be closed. MQTT 5 peers get [`DecodeError::reason`] first, in
/// a DISCONNECT, or in a CONNACK while they are connecting.
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

    /// The packet is well formed but not allowed, or not allowed at this point (0x82).
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
