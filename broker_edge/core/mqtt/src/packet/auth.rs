//! AUTH: one step of enhanced authentication (MQTT 5 only). The exchange itself belongs to the broker.

use super::publish::Sender;
use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties, PropertyId};
use crate::reason::ReasonCode;
use crate::version::Version;
use crate::wire::Reader;

/// One step of enhanced authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    /// They contain an authentication method, unless the packet is empty.
    pub properties: Properties<'a>,
}

pub(super) fn decode(
    version: Version,
    sender: Sender,
    body: &[u8],
) -> Result<Auth<'_>, DecodeError> {
    if !version.is_v5() {
        return Err(DecodeError::protocol("AUTH before MQTT 5"));
    }
    if body.is_empty() {
        // The standard allows an empty body when the reason is success, which only a server may send.
        return match sender {
            Sender::Server => Ok(Auth {
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            }),
            Sender::Client => Err(DecodeError::protocol(
                "a client may not send AUTH with success",
            )),
        };
    }
    let mut reader = Reader::new(body);
    let reason = ReasonCode::from_u8(reader.u8()?)
        .filter(|reason| may_send(sender, *reason))
        .ok_or(DecodeError::protocol(
            "a reason code that is not allowed in this AUTH",
        ))?;
    let properties = Properties::read(&mut reader, PacketProperties::Auth)?;
    if !reader.is_empty() {
        return Err(DecodeError::malformed(
            "an AUTH has bytes after its properties",
        ));
    }
    if !properties.contains(PropertyId::AuthenticationMethod) {
        return Err(DecodeError::protocol(
            "an AUTH without an authentication method",
        ));
    }
    Ok(Auth { reason, properties })
}

const fn may_send(sender: Sender, reason: ReasonCode) -> bool {
    match reason {
        ReasonCode::ContinueAuthentication => true,
        ReasonCode::Success => matches!(sender, Sender::Server),
        ReasonCode::Reauthenticate => matches!(sender, Sender::Client),
        _ => false,
    }
}
