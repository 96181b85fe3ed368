//! DISCONNECT: empty before MQTT 5; MQTT 5 adds a reason and properties.

use super::publish::Sender;
use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::reason::ReasonCode;
use crate::version::Version;
use crate::wire::Reader;

/// The announced end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Normal disconnection when the packet carries no reason.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

pub(super) fn decode(
    version: Version,
    sender: Sender,
    body: &[u8],
) -> Result<Disconnect<'_>, DecodeError> {
    let mut disconnect = Disconnect {
        reason: ReasonCode::NORMAL_DISCONNECTION,
        properties: Properties::EMPTY,
    };
    let mut reader = Reader::new(body);
    if reader.is_empty() {
        return Ok(disconnect);
    }
    if !version.is_v5() {
        return Err(DecodeError::malformed("a DISCONNECT has a body"));
    }
    disconnect.reason = ReasonCode::from_u8(reader.u8()?)
        .filter(|reason| may_send(sender, *reason))
        .ok_or(DecodeError::protocol(
            "a reason code that is not allowed in this DISCONNECT",
        ))?;
    if reader.is_empty() {
        return Ok(disconnect);
    }
    let allowed = match sender {
        Sender::Client => PacketProperties::DisconnectFromClient,
        Sender::Server => PacketProperties::DisconnectFromServer,
    };
    disconnect.properties = Properties::read(&mut reader, allowed)?;
    if !reader.is_empty() {
        return Err(DecodeError::malformed(
            "a DISCONNECT has bytes after its properties",
        ));
    }
    Ok(disconnect)
}

const fn may_send(sender: Sender, reason: ReasonCode) -> bool {
    use ReasonCode as Code;
    match reason {
        Code::Success
        | Code::UnspecifiedError
        | Code::MalformedPacket
        | Code::ProtocolError
        | Code::ImplementationSpecificError
        | Code::TopicNameInvalid
        | Code::ReceiveMaximumExceeded
        | Code::TopicAliasInvalid
        | Code::PacketTooLarge
        | Code::MessageRateTooHigh
        | Code::QuotaExceeded
        | Code::AdministrativeAction
        | Code::PayloadFormatInvalid => true,
        Code::DisconnectWithWill => matches!(sender, Sender::Client),
        Code::NotAuthorized
        | Code::ServerBusy
        | Code::ServerShuttingDown
        | Code::BadAuthenticationMethod
        | Code::KeepAliveTimeout
        | Code::SessionTakenOver
        | Code::TopicFilterInvalid
        | Code::RetainNotSupported
        | Code::QosNotSupported
        | Code::UseAnotherServer
        | Code::ServerMoved
        | Code::SharedSubscriptionsNotSupported
        | Code::ConnectionRateExceeded
        | Code::MaximumConnectTime
        | Code::SubscriptionIdentifiersNotSupported
        | Code::WildcardSubscriptionsNotSupported => matches!(sender, Sender::Server),
        _ => false,
    }
}
