//! Property identifiers: their value types, the packets that may carry them, and the range of their values.

use super::Property;
use crate::error::DecodeError;
use crate::reason::ReasonCode;

/// The identifier of a property, written before its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PropertyId {
    PayloadFormatIndicator = 0x01,
    MessageExpiryInterval = 0x02,
    ContentType = 0x03,
    ResponseTopic = 0x08,
    CorrelationData = 0x09,
    SubscriptionIdentifier = 0x0b,
    SessionExpiryInterval = 0x11,
    AssignedClientIdentifier = 0x12,
    ServerKeepAlive = 0x13,
    AuthenticationMethod = 0x15,
    AuthenticationData = 0x16,
    RequestProblemInformation = 0x17,
    WillDelayInterval = 0x18,
    RequestResponseInformation = 0x19,
    ResponseInformation = 0x1a,
    ServerReference = 0x1c,
    ReasonString = 0x1f,
    ReceiveMaximum = 0x21,
    TopicAliasMaximum = 0x22,
    TopicAlias = 0x23,
    MaximumQoS = 0x24,
    RetainAvailable = 0x25,
    UserProperty = 0x26,
    MaximumPacketSize = 0x27,
    WildcardSubscriptionAvailable = 0x28,
    SubscriptionIdentifierAvailable = 0x29,
    SharedSubscriptionAvailable = 0x2a,
}

impl PropertyId {
    /// Identifiers go up to 0x2a, so that a set of them fits 64 bits.
    #[inline]
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u8
    }

    #[inline]
    pub(crate) const fn from_u32(id: u32) -> Option<Self> {
        Some(match id {
            0x01 => Self::PayloadFormatIndicator,
            0x02 => Self::MessageExpiryInterval,
            0x03 => Self::ContentType,
            0x08 => Self::ResponseTopic,
            0x09 => Self::CorrelationData,
            0x0b => Self::SubscriptionIdentifier,
            0x11 => Self::SessionExpiryInterval,
            0x12 => Self::AssignedClientIdentifier,
            0x13 => Self::ServerKeepAlive,
            0x15 => Self::AuthenticationMethod,
            0x16 => Self::AuthenticationData,
            0x17 => Self::RequestProblemInformation,
            0x18 => Self::WillDelayInterval,
            0x19 => Self::RequestResponseInformation,
            0x1a => Self::ResponseInformation,
            0x1c => Self::ServerReference,
            0x1f => Self::ReasonString,
            0x21 => Self::ReceiveMaximum,
            0x22 => Self::TopicAliasMaximum,
            0x23 => Self::TopicAlias,
            0x24 => Self::MaximumQoS,
            0x25 => Self::RetainAvailable,
            0x26 => Self::UserProperty,
            0x27 => Self::MaximumPacketSize,
            0x28 => Self::WildcardSubscriptionAvailable,
            0x29 => Self::SubscriptionIdentifierAvailable,
            0x2a => Self::SharedSubscriptionAvailable,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    Byte,
    TwoBytes,
    FourBytes,
    VarInt,
    Text,
    Binary,
    Pair,
}

#[inline]
pub(super) const fn value_type(id: PropertyId) -> ValueType {
    use PropertyId as Id;
    match id {
        Id::PayloadFormatIndicator
        | Id::RequestProblemInformation
        | Id::RequestResponseInformation
        | Id::MaximumQoS
        | Id::RetainAvailable
        | Id::WildcardSubscriptionAvailable
        | Id::SubscriptionIdentifierAvailable
        | Id::SharedSubscriptionAvailable => ValueType::Byte,
        Id::MessageExpiryInterval
        | Id::SessionExpiryInterval
        | Id::WillDelayInterval
        | Id::MaximumPacketSize => ValueType::FourBytes,
        Id::ContentType
        | Id::ResponseTopic
        | Id::AssignedClientIdentifier
        | Id::AuthenticationMethod
        | Id::ResponseInformation
        | Id::ServerReference
        | Id::ReasonString => ValueType::Text,
        Id::CorrelationData | Id::AuthenticationData => ValueType::Binary,
        Id::SubscriptionIdentifier => ValueType::VarInt,
        Id::ServerKeepAlive | Id::ReceiveMaximum | Id::TopicAliasMaximum | Id::TopicAlias => {
            ValueType::TwoBytes
        }
        Id::UserProperty => ValueType::Pair,
    }
}

/// The kinds of packets (and the will) that carry properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketProperties {
    Connect,
    Will,
    Connack,
    PublishFromClient,
    PublishFromServer,
    /// The properties of a message, stored with it.
    Stored,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    Ack,
    Subscribe,
    Unsubscribe,
    DisconnectFromClient,
    DisconnectFromServer,
    Auth,
}

/// The identifiers that a packet may carry, as a set of bits.
pub(crate) const fn allowed(packet: PacketProperties) -> u64 {
    use PropertyId as Id;
    const MESSAGE: u64 = Id::PayloadFormatIndicator.bit()
        | Id::MessageExpiryInterval.bit()
        | Id::ContentType.bit()
        | Id::ResponseTopic.bit()
        | Id::CorrelationData.bit();
    const AUTHENTICATION: u64 = Id::AuthenticationMethod.bit() | Id::AuthenticationData.bit();
    let some = match packet {
        PacketProperties::Connect => {
            AUTHENTICATION
                | Id::SessionExpiryInterval.bit()
                | Id::RequestProblemInformation.bit()
                | Id::RequestResponseInformation.bit()
                | Id::ReceiveMaximum.bit()
                | Id::TopicAliasMaximum.bit()
                | Id::MaximumPacketSize.bit()
        }
        PacketProperties::Will => MESSAGE | Id::WillDelayInterval.bit(),
        PacketProperties::Connack => {
            AUTHENTICATION
                | Id::SessionExpiryInterval.bit()
                | Id::AssignedClientIdentifier.bit()
                | Id::ServerKeepAlive.bit()
                | Id::ResponseInformation.bit()
                | Id::ServerReference.bit()
                | Id::ReasonString.bit()
                | Id::ReceiveMaximum.bit()
                | Id::TopicAliasMaximum.bit()
                | Id::MaximumQoS.bit()
                | Id::RetainAvailable.bit()
                | Id::MaximumPacketSize.bit()
                | Id::WildcardSubscriptionAvailable.bit()
                | Id::SubscriptionIdentifierAvailable.bit()
                | Id::SharedSubscriptionAvailable.bit()
        }
        PacketProperties::PublishFromClient => MESSAGE | Id::TopicAlias.bit(),
        PacketProperties::PublishFromServer => {
            MESSAGE | Id::TopicAlias.bit() | Id::SubscriptionIdentifier.bit()
        }
        PacketProperties::Stored => MESSAGE,
        PacketProperties::Ack => Id::ReasonString.bit(),
        PacketProperties::Subscribe => Id::SubscriptionIdentifier.bit(),
        PacketProperties::Unsubscribe => 0,
        PacketProperties::DisconnectFromClient => {
            Id::SessionExpiryInterval.bit() | Id::ReasonString.bit()
        }
        PacketProperties::DisconnectFromServer => {
            Id::ServerReference.bit() | Id::ReasonString.bit()
        }
        PacketProperties::Auth => AUTHENTICATION | Id::ReasonString.bit(),
    };
    some | Id::UserProperty.bit()
}

/// Refuses well-formed values that are not allowed.
pub(super) fn check_range(property: Property<'_>) -> Result<(), DecodeError> {
    match property {
        Property::SubscriptionIdentifier(0) => {
            Err(DecodeError::protocol("subscription identifier 0"))
        }
        Property::ReceiveMaximum(0) => Err(DecodeError::protocol("receive maximum 0")),
        Property::MaximumPacketSize(0) => Err(DecodeError::protocol("maximum packet size 0")),
        Property::MaximumQoS(2..) => Err(DecodeError::protocol("maximum QoS over 1")),
        Property::TopicAlias(0) => Err(DecodeError::new(
            ReasonCode::TopicAliasInvalid,
            "topic alias 0",
        )),
        Property::ResponseTopic(topic) if topic.contains(['+', '#']) => {
            Err(DecodeError::protocol("the response topic has a wildcard"))
        }
        _ => Ok(()),
    }
}

pub(super) fn byte_property<'a>(id: PropertyId, value: u8) -> Result<Property<'a>, DecodeError> {
    if id == PropertyId::MaximumQoS {
        return Ok(Property::MaximumQoS(value));
    }
    if value > 1 {
        return Err(DecodeError::protocol(
            "the value of a property must be 0 or 1",
        ));
    }
    let flag = value == 1;
    Ok(match id {
        PropertyId::PayloadFormatIndicator => Property::PayloadFormatIndicator(flag),
        PropertyId::RequestProblemInformation => Property::RequestProblemInformation(flag),
        PropertyId::RequestResponseInformation => Property::RequestResponseInformation(flag),
        PropertyId::RetainAvailable => Property::RetainAvailable(flag),
        PropertyId::WildcardSubscriptionAvailable => Property::WildcardSubscriptionAvailable(flag),
        PropertyId::SubscriptionIdentifierAvailable => {
            Property::SubscriptionIdentifierAvailable(flag)
        }
        _ => Property::SharedSubscriptionAvailable(flag),
    })
}

/// Only called for identifiers of this value type, which [`value_type`] establishes.
pub(super) const fn two_byte_property<'a>(id: PropertyId, value: u16) -> Property<'a> {
    match id {
        PropertyId::ServerKeepAlive => Property::ServerKeepAlive(value),
        PropertyId::ReceiveMaximum => Property::ReceiveMaximum(value),
        PropertyId::TopicAliasMaximum => Property::TopicAliasMaximum(value),
        _ => Property::TopicAlias(value),
    }
}

/// Only called for identifiers of this value type, which [`value_type`] establishes.
pub(super) const fn four_byte_property<'a>(id: PropertyId, value: u32) -> Property<'a> {
    match id {
        PropertyId::MessageExpiryInterval => Property::MessageExpiryInterval(value),
        PropertyId::SessionExpiryInterval => Property::SessionExpiryInterval(value),
        PropertyId::WillDelayInterval => Property::WillDelayInterval(value),
        _ => Property::MaximumPacketSize(value),
    }
}

/// Only called for identifiers of this value type, which [`value_type`] establishes.
pub(super) const fn text_property(id: PropertyId, value: &str) -> Property<'_> {
    match id {
        PropertyId::ContentType => Property::ContentType(value),
        PropertyId::ResponseTopic => Property::ResponseTopic(value),
        PropertyId::AssignedClientIdentifier => Property::AssignedClientIdentifier(value),
        PropertyId::AuthenticationMethod => Property::AuthenticationMethod(value),
        PropertyId::ResponseInformation => Property::ResponseInformation(value),
        PropertyId::ServerReference => Property::ServerReference(value),
        _ => Property::ReasonString(value),
    }
}

/// Only called for identifiers of this value type, which [`value_type`] establishes.
pub(super) const fn binary_property(id: PropertyId, value: &[u8]) -> Property<'_> {
    match id {
        PropertyId::CorrelationData => Property::CorrelationData(value),
        _ => Property::AuthenticationData(value),
    }
}

impl Property<'_> {
    #[must_use]
    pub const fn id(&self) -> PropertyId {
        match self {
            Self::PayloadFormatIndicator(_) => PropertyId::PayloadFormatIndicator,
            Self::MessageExpiryInterval(_) => PropertyId::MessageExpiryInterval,
            Self::ContentType(_) => PropertyId::ContentType,
            Self::ResponseTopic(_) => PropertyId::ResponseTopic,
            Self::CorrelationData(_) => PropertyId::CorrelationData,
            Self::SubscriptionIdentifier(_) => PropertyId::SubscriptionIdentifier,
            Self::SessionExpiryInterval(_) => PropertyId::SessionExpiryInterval,
            Self::AssignedClientIdentifier(_) => PropertyId::AssignedClientIdentifier,
            Self::ServerKeepAlive(_) => PropertyId::ServerKeepAlive,
            Self::AuthenticationMethod(_) => PropertyId::AuthenticationMethod,
            Self::AuthenticationData(_) => PropertyId::AuthenticationData,
            Self::RequestProblemInformation(_) => PropertyId::RequestProblemInformation,
            Self::WillDelayInterval(_) => PropertyId::WillDelayInterval,
            Self::RequestResponseInformation(_) => PropertyId::RequestResponseInformation,
            Self::ResponseInformation(_) => PropertyId::ResponseInformation,
            Self::ServerReference(_) => PropertyId::ServerReference,
            Self::ReasonString(_) => PropertyId::ReasonString,
            Self::ReceiveMaximum(_) => PropertyId::ReceiveMaximum,
            Self::TopicAliasMaximum(_) => PropertyId::TopicAliasMaximum,
            Self::TopicAlias(_) => PropertyId::TopicAlias,
            Self::MaximumQoS(_) => PropertyId::MaximumQoS,
            Self::RetainAvailable(_) => PropertyId::RetainAvailable,
            Self::UserProperty { .. } => PropertyId::UserProperty,
            Self::MaximumPacketSize(_) => PropertyId::MaximumPacketSize,
            Self::WildcardSubscriptionAvailable(_) => PropertyId::WildcardSubscriptionAvailable,
            Self::SubscriptionIdentifierAvailable(_) => PropertyId::SubscriptionIdentifierAvailable,
            Self::SharedSubscriptionAvailable(_) => PropertyId::SharedSubscriptionAvailable,
        }
    }
}
