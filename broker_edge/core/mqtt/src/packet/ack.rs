//! PUBACK, PUBREC, PUBREL and PUBCOMP: a packet identifier, and in MQTT 5 a reason.

use super::kind;
use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::reason::ReasonCode;
use crate::version::{PacketId, Version};
use crate::wire::Reader;

/// The body that the four acknowledgements of a publish share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub packet_id: PacketId,
    /// Success when the packet carries no reason.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

/// The packet identifier of an acknowledgement that carries nothing else, which means success. Nearly all are like
/// this, and the broker reads one per delivery. `first_byte` is that of the fixed header; its type is not checked.
/// `None`: use [`super::decode`].
#[must_use]
#[inline]
pub fn plain(first_byte: u8, body: &[u8]) -> Option<PacketId> {
    let wanted_flags = if first_byte >> 4 == kind::PUBREL {
        0b0010
    } else {
        0
    };
    match *body {
        [high, low] if first_byte & 0x0f == wanted_flags => {
            PacketId::new(u16::from_be_bytes([high, low]))
        }
        _ => None,
    }
}

/// `kind` is one of the four; anything else gets the reason codes of PUBREL.
#[inline]
pub(super) fn decode(version: Version, kind: u8, body: &[u8]) -> Result<Ack<'_>, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id =
        PacketId::new(reader.u16()?).ok_or(DecodeError::protocol("packet identifier 0"))?;
    let mut ack = Ack {
        packet_id,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    };
    if reader.is_empty() {
        return Ok(ack);
    }
    if !version.is_v5() {
        return Err(DecodeError::malformed(
            "an acknowledgement has bytes after its packet identifier",
        ));
    }
    ack.reason = ReasonCode::from_u8(reader.u8()?)
        .filter(|reason| may_carry(kind, *reason))
        .ok_or(DecodeError::protocol(
            "a reason code that is not allowed in this acknowledgement",
        ))?;
    if reader.is_empty() {
        return Ok(ack);
    }
    ack.properties = Properties::read(&mut reader, PacketProperties::Ack)?;
    if !reader.is_empty() {
        return Err(DecodeError::malformed(
            "an acknowledgement has bytes after its properties",
        ));
    }
    Ok(ack)
}

const fn may_carry(kind: u8, reason: ReasonCode) -> bool {
    use ReasonCode as Code;
    match kind {
        kind::PUBACK | kind::PUBREC => matches!(
            reason,
            Code::Success
                | Code::NoMatchingSubscribers
                | Code::UnspecifiedError
                | Code::ImplementationSpecificError
                | Code::NotAuthorized
                | Code::TopicNameInvalid
                | Code::PacketIdentifierInUse
                | Code::QuotaExceeded
                | Code::PayloadFormatInvalid
        ),
        _ => matches!(reason, Code::Success | Code::PacketIdentifierNotFound),
    }
}
