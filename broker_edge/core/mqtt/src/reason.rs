//! Reason codes of MQTT 5, and the CONNACK return codes of earlier versions.
//!
//! Each packet's decoder checks which codes the packet may carry.

use std::fmt;

/// Every reason code of MQTT 5. Zero means success, normal disconnection or granted QoS 0, depending on the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReasonCode {
    Success = 0x00,
    GrantedQos1 = 0x01,
    GrantedQos2 = 0x02,
    DisconnectWithWill = 0x04,
    NoMatchingSubscribers = 0x10,
    NoSubscriptionExisted = 0x11,
    ContinueAuthentication = 0x18,
    Reauthenticate = 0x19,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    ImplementationSpecificError = 0x83,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    Banned = 0x8A,
    ServerShuttingDown = 0x8B,
    BadAuthenticationMethod = 0x8C,
    KeepAliveTimeout = 0x8D,
    SessionTakenOver = 0x8E,
    TopicFilterInvalid = 0x8F,
    TopicNameInvalid = 0x90,
    PacketIdentifierInUse = 0x91,
    PacketIdentifierNotFound = 0x92,
    ReceiveMaximumExceeded = 0x93,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    MessageRateTooHigh = 0x96,
    QuotaExceeded = 0x97,
    AdministrativeAction = 0x98,
    PayloadFormatInvalid = 0x99,
    RetainNotSupported = 0x9A,
    QosNotSupported = 0x9B,
    UseAnotherServer = 0x9C,
    ServerMoved = 0x9D,
    SharedSubscriptionsNotSupported = 0x9E,
    ConnectionRateExceeded = 0x9F,
    MaximumConnectTime = 0xA0,
    SubscriptionIdentifiersNotSupported = 0xA1,
    WildcardSubscriptionsNotSupported = 0xA2,
}

impl ReasonCode {
    /// Zero in a DISCONNECT.
    pub const NORMAL_DISCONNECTION: Self = Self::Success;
    /// Zero in a SUBACK.
    pub const GRANTED_QOS0: Self = Self::Success;

    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => Self::Success,
            0x01 => Self::GrantedQos1,
            0x02 => Self::GrantedQos2,
            0x04 => Self::DisconnectWithWill,
            0x10 => Self::NoMatchingSubscribers,
            0x11 => Self::NoSubscriptionExisted,
            0x18 => Self::ContinueAuthentication,
            0x19 => Self::Reauthenticate,
            0x80 => Self::UnspecifiedError,
            0x81 => Self::MalformedPacket,
            0x82 => Self::ProtocolError,
            0x83 => Self::ImplementationSpecificError,
            0x84 => Self::UnsupportedProtocolVersion,
            0x85 => Self::ClientIdentifierNotValid,
            0x86 => Self::BadUserNameOrPassword,
            0x87 => Self::NotAuthorized,
            0x88 => Self::ServerUnavailable,
            0x89 => Self::ServerBusy,
            0x8A => Self::Banned,
            0x8B => Self::ServerShuttingDown,
            0x8C => Self::BadAuthenticationMethod,
            0x8D => Self::KeepAliveTimeout,
            0x8E => Self::SessionTakenOver,
            0x8F => Self::TopicFilterInvalid,
            0x90 => Self::TopicNameInvalid,
            0x91 => Self::PacketIdentifierInUse,
            0x92 => Self::PacketIdentifierNotFound,
            0x93 => Self::ReceiveMaximumExceeded,
            0x94 => Self::TopicAliasInvalid,
            0x95 => Self::PacketTooLarge,
            0x96 => Self::MessageRateTooHigh,
            0x97 => Self::QuotaExceeded,
            0x98 => Self::AdministrativeAction,
            0x99 => Self::PayloadFormatInvalid,
            0x9A => Self::RetainNotSupported,
            0x9B => Self::QosNotSupported,
            0x9C => Self::UseAnotherServer,
            0x9D => Self::ServerMoved,
            0x9E => Self::SharedSubscriptionsNotSupported,
            0x9F => Self::ConnectionRateExceeded,
            0xA0 => Self::MaximumConnectTime,
            0xA1 => Self::SubscriptionIdentifiersNotSupported,
            0xA2 => Self::WildcardSubscriptionsNotSupported,
            _ => return None,
        })
    }

    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// Codes from 0x80 on are errors.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// The name of the code in the standard, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success, normal disconnection or granted QoS 0",
            Self::GrantedQos1 => "granted QoS 1",
            Self::GrantedQos2 => "granted QoS 2",
            Self::DisconnectWithWill => "disconnect with will message",
            Self::NoMatchingSubscribers => "no matching subscribers",
            Self::NoSubscriptionExisted => "no subscription existed",
            Self::ContinueAuthentication => "continue authentication",
            Self::Reauthenticate => "re-authenticate",
            Self::UnspecifiedError => "unspecified error",
            Self::MalformedPacket => "malformed packet",
            Self::ProtocolError => "protocol error",
            Self::ImplementationSpecificError => "implementation specific error",
            Self::UnsupportedProtocolVersion => "unsupported protocol version",
            Self::ClientIdentifierNotValid => "client identifier not valid",
            Self::BadUserNameOrPassword => "bad user name or password",
            Self::NotAuthorized => "not authorized",
            Self::ServerUnavailable => "server unavailable",
            Self::ServerBusy => "server busy",
            Self::Banned => "banned",
            Self::ServerShuttingDown => "server shutting down",
            Self::BadAuthenticationMethod => "bad authentication method",
            Self::KeepAliveTimeout => "keep alive timeout",
            Self::SessionTakenOver => "session taken over",
            Self::TopicFilterInvalid => "topic filter invalid",
            Self::TopicNameInvalid => "topic name invalid",
            Self::PacketIdentifierInUse => "packet identifier in use",
            Self::PacketIdentifierNotFound => "packet identifier not found",
            Self::ReceiveMaximumExceeded => "receive maximum exceeded",
            Self::TopicAliasInvalid => "topic alias invalid",
            Self::PacketTooLarge => "packet too large",
            Self::MessageRateTooHigh => "message rate too high",
            Self::QuotaExceeded => "quota exceeded",
            Self::AdministrativeAction => "administrative action",
            Self::PayloadFormatInvalid => "payload format invalid",
            Self::RetainNotSupported => "retain not supported",
            Self::QosNotSupported => "QoS not supported",
            Self::UseAnotherServer => "use another server",
            Self::ServerMoved => "server moved",
            Self::SharedSubscriptionsNotSupported => "shared subscriptions not supported",
            Self::ConnectionRateExceeded => "connection rate exceeded",
            Self::MaximumConnectTime => "maximum connect time",
            Self::SubscriptionIdentifiersNotSupported => "subscription identifiers not supported",
            Self::WildcardSubscriptionsNotSupported => "wildcard subscriptions not supported",
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02x})", self.name(), self.as_u8())
    }
}

/// The CONNACK return codes of MQTT 3.1 and 3.1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectReturnCode {
    Accepted = 0,
    UnacceptableProtocolVersion = 1,
    IdentifierRejected = 2,
    ServerUnavailable = 3,
    BadUserNameOrPassword = 4,
    NotAuthorized = 5,
}

impl ConnectReturnCode {
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Accepted,
            1 => Self::UnacceptableProtocolVersion,
            2 => Self::IdentifierRejected,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return None,
        })
    }

    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The return code with the meaning of `reason`. An error without one becomes "server unavailable", because 3.1.1
    /// clients retry on that code.
    #[must_use]
    pub const fn for_reason(reason: ReasonCode) -> Self {
        match reason {
            ReasonCode::Success => Self::Accepted,
            ReasonCode::UnsupportedProtocolVersion => Self::UnacceptableProtocolVersion,
            ReasonCode::ClientIdentifierNotValid => Self::IdentifierRejected,
            ReasonCode::BadUserNameOrPassword => Self::BadUserNameOrPassword,
            ReasonCode::NotAuthorized
            | ReasonCode::Banned
            | ReasonCode::BadAuthenticationMethod => Self::NotAuthorized,
            _ => Self::ServerUnavailable,
        }
    }
}
