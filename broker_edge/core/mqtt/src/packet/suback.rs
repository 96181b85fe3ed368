//! SUBACK and UNSUBACK, as a client reads them.

use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::reason::ReasonCode;
use crate::version::{PacketId, Version};
use crate::wire::Reader;

/// The answer to a SUBSCRIBE: one code per filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suback<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub codes: Codes<'a>,
}

/// The answer to an UNSUBSCRIBE: one code per filter; no codes before MQTT 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsuback<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub codes: Codes<'a>,
}

/// Reason codes in the order of the filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codes<'a> {
    /// Every byte is a reason code: checked when the packet was decoded.
    bytes: &'a [u8],
}

impl<'a> Codes<'a> {
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = ReasonCode> + use<'a> {
        self.bytes
            .iter()
            .filter_map(|code| ReasonCode::from_u8(*code))
    }

    fn read(reader: &Reader<'a>, may_carry: fn(ReasonCode) -> bool) -> Result<Self, DecodeError> {
        let bytes = reader.rest();
        let known = |code: &u8| ReasonCode::from_u8(*code).is_some_and(may_carry);
        if !bytes.iter().all(known) {
            return Err(DecodeError::protocol(
                "a reason code that is not allowed in this acknowledgement",
            ));
        }
        Ok(Self { bytes })
    }
}

pub(super) fn decode_suback(version: Version, body: &[u8]) -> Result<Suback<'_>, DecodeError> {
    let (packet_id, properties, reader) = read_head(version, body)?;
    let codes = Codes::read(
        &reader,
        if version.is_v5() {
            of_suback
        } else {
            of_suback_v3
        },
    )?;
    if codes.is_empty() {
        return Err(DecodeError::malformed("a SUBACK without a code"));
    }
    Ok(Suback {
        packet_id,
        properties,
        codes,
    })
}

pub(super) fn decode_unsuback(version: Version, body: &[u8]) -> Result<Unsuback<'_>, DecodeError> {
    let (packet_id, properties, reader) = read_head(version, body)?;
    let codes = Codes::read(&reader, of_unsuback)?;
    if codes.is_empty() == version.is_v5() {
        return Err(DecodeError::malformed(
            "an UNSUBACK has codes in MQTT 5 and none in earlier versions",
        ));
    }
    Ok(Unsuback {
        packet_id,
        properties,
        codes,
    })
}

const fn of_suback_v3(code: ReasonCode) -> bool {
    use ReasonCode as Code;
    matches!(
        code,
        Code::Success | Code::GrantedQos1 | Code::GrantedQos2 | Code::UnspecifiedError
    )
}

const fn of_suback(code: ReasonCode) -> bool {
    use ReasonCode as Code;
    of_suback_v3(code)
        || matches!(
            code,
            Code::ImplementationSpecificError
                | Code::NotAuthorized
                | Code::TopicFilterInvalid
                | Code::PacketIdentifierInUse
                | Code::QuotaExceeded
                | Code::SharedSubscriptionsNotSupported
                | Code::SubscriptionIdentifiersNotSupported
                | Code::WildcardSubscriptionsNotSupported
        )
}

const fn of_unsuback(code: ReasonCode) -> bool {
    use ReasonCode as Code;
    matches!(
        code,
        Code::Success
            | Code::NoSubscriptionExisted
            | Code::UnspecifiedError
            | Code::ImplementationSpecificError
            | Code::NotAuthorized
            | Code::TopicFilterInvalid
            | Code::PacketIdentifierInUse
    )
}

fn read_head(
    version: Version,
    body: &[u8],
) -> Result<(PacketId, Properties<'_>, Reader<'_>), DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id =
        PacketId::new(reader.u16()?).ok_or(DecodeError::protocol("packet identifier 0"))?;
    let properties = match version {
        Version::V5 => Properties::read(&mut reader, PacketProperties::Ack)?,
        _ => Properties::EMPTY,
    };
    Ok((packet_id, properties, reader))
}
