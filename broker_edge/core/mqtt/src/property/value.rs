//! One property and its bytes.

use crate::wire::{binary_len, put_binary, put_varint, varint_len};

/// One property with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property<'a> {
    PayloadFormatIndicator(bool),
    MessageExpiryInterval(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(u32),
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    WillDelayInterval(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(u16),
    TopicAliasMaximum(u16),
    TopicAlias(u16),
    MaximumQoS(u8),
    RetainAvailable(bool),
    UserProperty { key: &'a str, value: &'a str },
    MaximumPacketSize(u32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifierAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

impl Property<'_> {
    /// Appends the property as a packet carries it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.id() as u8);
        match *self {
            Self::PayloadFormatIndicator(value)
            | Self::RequestProblemInformation(value)
            | Self::RequestResponseInformation(value)
            | Self::RetainAvailable(value)
            | Self::WildcardSubscriptionAvailable(value)
            | Self::SubscriptionIdentifierAvailable(value)
            | Self::SharedSubscriptionAvailable(value) => out.push(u8::from(value)),
            Self::MaximumQoS(value) => out.push(value),
            Self::ServerKeepAlive(value)
            | Self::ReceiveMaximum(value)
            | Self::TopicAliasMaximum(value)
            | Self::TopicAlias(value) => out.extend_from_slice(&value.to_be_bytes()),
            Self::MessageExpiryInterval(value)
            | Self::SessionExpiryInterval(value)
            | Self::WillDelayInterval(value)
            | Self::MaximumPacketSize(value) => out.extend_from_slice(&value.to_be_bytes()),
            Self::SubscriptionIdentifier(value) => put_varint(out, value),
            Self::ContentType(text)
            | Self::ResponseTopic(text)
            | Self::AssignedClientIdentifier(text)
            | Self::AuthenticationMethod(text)
            | Self::ResponseInformation(text)
            | Self::ServerReference(text)
            | Self::ReasonString(text) => put_binary(out, text.as_bytes()),
            Self::CorrelationData(bytes) | Self::AuthenticationData(bytes) => {
                put_binary(out, bytes)
            }
            Self::UserProperty { key, value } => {
                put_binary(out, key.as_bytes());
                put_binary(out, value.as_bytes());
            }
        }
    }

    /// Bytes that [`Property::encode`] appends.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        1 + match *self {
            Self::PayloadFormatIndicator(_)
            | Self::RequestProblemInformation(_)
            | Self::RequestResponseInformation(_)
            | Self::RetainAvailable(_)
            | Self::WildcardSubscriptionAvailable(_)
            | Self::SubscriptionIdentifierAvailable(_)
            | Self::SharedSubscriptionAvailable(_)
            | Self::MaximumQoS(_) => 1,
            Self::ServerKeepAlive(_)
            | Self::ReceiveMaximum(_)
            | Self::TopicAliasMaximum(_)
            | Self::TopicAlias(_) => 2,
            Self::MessageExpiryInterval(_)
            | Self::SessionExpiryInterval(_)
            | Self::WillDelayInterval(_)
            | Self::MaximumPacketSize(_) => 4,
            Self::SubscriptionIdentifier(value) => varint_len(value),
            Self::ContentType(text)
            | Self::ResponseTopic(text)
            | Self::AssignedClientIdentifier(text)
            | Self::AuthenticationMethod(text)
            | Self::ResponseInformation(text)
            | Self::ServerReference(text)
            | Self::ReasonString(text) => binary_len(text.as_bytes()),
            Self::CorrelationData(bytes) | Self::AuthenticationData(bytes) => binary_len(bytes),
            Self::UserProperty { key, value } => {
                binary_len(key.as_bytes()) + binary_len(value.as_bytes())
            }
        }
    }
}
