//! Properties of MQTT 5: checked once when a packet is decoded, then read from the packet's own bytes.
//!
//! [`Properties`] borrows the checked bytes, so reading them cannot fail and allocates nothing. The meaning of a
//! property is not decided here.

mod id;
mod value;

pub use id::PropertyId;
pub(crate) use id::{PacketProperties, allowed};
use id::{ValueType, value_type};
pub use value::Property;

use crate::error::DecodeError;
use crate::wire::Reader;

/// The checked properties of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties<'a> {
    /// Every property was parsed and checked when this value was built.
    bytes: &'a [u8],
    /// Bit n is set when the property with identifier n is in `bytes`.
    seen: u64,
}

/// The properties that are forwarded to subscribers; the others concern one connection only.
const FORWARDABLE: u64 = PropertyId::PayloadFormatIndicator.bit()
    | PropertyId::MessageExpiryInterval.bit()
    | PropertyId::ContentType.bit()
    | PropertyId::ResponseTopic.bit()
    | PropertyId::CorrelationData.bit()
    | PropertyId::UserProperty.bit();

impl<'a> Properties<'a> {
    /// No properties.
    pub const EMPTY: Self = Self {
        bytes: &[],
        seen: 0,
    };

    /// Reads the length and the properties, and checks them for `packet`.
    #[inline]
    pub(crate) fn read(
        reader: &mut Reader<'a>,
        packet: PacketProperties,
    ) -> Result<Self, DecodeError> {
        if reader.rest().first() == Some(&0) {
            reader.u8()?;
            return Ok(Self::EMPTY);
        }
        let len = reader.varint()?;
        Self::check(reader.take(len as usize)?, packet)
    }

    /// Checks the forwardable properties of a stored message, which have no length prefix.
    ///
    /// # Errors
    /// Malformed properties, or properties that a message cannot have.
    pub fn stored(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::check(bytes, PacketProperties::Stored)
    }

    fn check(bytes: &'a [u8], packet: PacketProperties) -> Result<Self, DecodeError> {
        let allowed = allowed(packet);
        let mut reader = Reader::new(bytes);
        let mut seen = 0;
        while !reader.is_empty() {
            let id = read_id(&mut reader)?;
            let property = read_value(&mut reader, id)?;
            if id.bit() & allowed == 0 {
                let what = "a property is not allowed in this packet";
                // The standard says malformed. As in Mosquitto, only SUBSCRIBE and UNSUBSCRIBE get that code.
                return Err(match packet {
                    PacketProperties::Subscribe | PacketProperties::Unsubscribe => {
                        DecodeError::malformed(what)
                    }
                    _ => DecodeError::protocol(what),
                });
            }
            let repeatable = id == PropertyId::UserProperty
                || (id == PropertyId::SubscriptionIdentifier
                    && packet == PacketProperties::PublishFromServer);
            if seen & id.bit() != 0 && !repeatable {
                return Err(DecodeError::protocol("a property appears twice"));
            }
            id::check_range(property)?;
            seen |= id.bit();
        }
        if seen & PropertyId::AuthenticationData.bit() != 0
            && seen & PropertyId::AuthenticationMethod.bit() == 0
        {
            return Err(DecodeError::protocol(
                "authentication data without an authentication method",
            ));
        }
        Ok(Self { bytes, seen })
    }

    /// The encoded properties, without their length.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[must_use]
    #[inline]
    pub const fn contains(&self, id: PropertyId) -> bool {
        self.seen & id.bit() != 0
    }

    #[must_use]
    pub const fn iter(&self) -> Iter<'a> {
        Iter {
            reader: Reader::new(self.bytes),
        }
    }

    /// The first property with this identifier. Cheap when there is none.
    #[must_use]
    #[inline]
    pub fn get(&self, id: PropertyId) -> Option<Property<'a>> {
        if !self.contains(id) {
            return None;
        }
        self.iter().find(|property| property.id() == id)
    }

    /// The user properties, in packet order.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let some = if self.contains(PropertyId::UserProperty) {
            *self
        } else {
            Self::EMPTY
        };
        some.iter().filter_map(|property| match property {
            Property::UserProperty { key, value } => Some((key, value)),
            _ => None,
        })
    }

    /// The value of the first user property with this name.
    #[must_use]
    pub fn user_property(&self, name: &str) -> Option<&'a str> {
        self.user_properties()
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The subscription identifiers, in packet order.
    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + use<'a> {
        let some = if self.contains(PropertyId::SubscriptionIdentifier) {
            *self
        } else {
            Self::EMPTY
        };
        some.iter().filter_map(|property| match property {
            Property::SubscriptionIdentifier(id) => Some(id),
            _ => None,
        })
    }

    /// Appends the encoded properties that subscribers get (payload format, expiry, content type, response topic,
    /// correlation data, user properties), in packet order and without a length. Topic alias, subscription identifiers
    /// and will delay are left out.
    #[inline]
    pub fn copy_forwardable(&self, out: &mut Vec<u8>) {
        if self.seen & !FORWARDABLE == 0 {
            out.extend_from_slice(self.bytes);
            return;
        }
        for property in self.iter() {
            if property.id().bit() & FORWARDABLE != 0 {
                property.encode(out);
            }
        }
    }
}

/// Getters of single properties: `None` when absent.
macro_rules! getters {
    ($($name:ident: $variant:ident -> $type:ty;)*) => {
        impl<'a> Properties<'a> {
            $(
                #[must_use]
                #[inline]
                pub fn $name(&self) -> Option<$type> {
                    match self.get(PropertyId::$variant) {
                        Some(Property::$variant(value)) => Some(value),
                        _ => None,
                    }
                }
            )*
        }
    };
}

getters! {
    payload_format_indicator: PayloadFormatIndicator -> bool;
    message_expiry_interval: MessageExpiryInterval -> u32;
    content_type: ContentType -> &'a str;
    response_topic: ResponseTopic -> &'a str;
    correlation_data: CorrelationData -> &'a [u8];
    subscription_identifier: SubscriptionIdentifier -> u32;
    session_expiry_interval: SessionExpiryInterval -> u32;
    assigned_client_identifier: AssignedClientIdentifier -> &'a str;
    server_keep_alive: ServerKeepAlive -> u16;
    authentication_method: AuthenticationMethod -> &'a str;
    authentication_data: AuthenticationData -> &'a [u8];
    request_problem_information: RequestProblemInformation -> bool;
    will_delay_interval: WillDelayInterval -> u32;
    request_response_information: RequestResponseInformation -> bool;
    response_information: ResponseInformation -> &'a str;
    server_reference: ServerReference -> &'a str;
    reason_string: ReasonString -> &'a str;
    receive_maximum: ReceiveMaximum -> u16;
    topic_alias_maximum: TopicAliasMaximum -> u16;
    topic_alias: TopicAlias -> u16;
    maximum_qos: MaximumQoS -> u8;
    retain_available: RetainAvailable -> bool;
    maximum_packet_size: MaximumPacketSize -> u32;
    wildcard_subscription_available: WildcardSubscriptionAvailable -> bool;
    subscription_identifier_available: SubscriptionIdentifierAvailable -> bool;
    shared_subscription_available: SharedSubscriptionAvailable -> bool;
}

/// The properties of a packet, in packet order.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Property<'a>;

    #[inline]
    fn next(&mut self) -> Option<Property<'a>> {
        if self.reader.is_empty() {
            return None;
        }
        let id = read_id(&mut self.reader).ok()?;
        read_value(&mut self.reader, id).ok()
    }
}

impl<'a> IntoIterator for Properties<'a> {
    type Item = Property<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Overwrites the message expiry interval in encoded properties with the remaining `seconds`. Returns whether there was
/// one.
pub fn set_message_expiry(stored: &mut [u8], seconds: u32) -> bool {
    let mut reader = Reader::new(stored);
    while !reader.is_empty() {
        let Ok(id) = read_id(&mut reader) else {
            return false;
        };
        let at = stored.len() - reader.rest().len();
        if id == PropertyId::MessageExpiryInterval {
            let Some(place) = stored.get_mut(at..at + 4) else {
                return false;
            };
            place.copy_from_slice(&seconds.to_be_bytes());
            return true;
        }
        if read_value(&mut reader, id).is_err() {
            return false;
        }
    }
    false
}

#[inline]
fn read_id(reader: &mut Reader<'_>) -> Result<PropertyId, DecodeError> {
    let id = reader.varint()?;
    PropertyId::from_u32(id).ok_or(DecodeError::malformed("a property identifier is unknown"))
}

fn read_value<'a>(reader: &mut Reader<'a>, id: PropertyId) -> Result<Property<'a>, DecodeError> {
    Ok(match value_type(id) {
        ValueType::Byte => id::byte_property(id, reader.u8()?)?,
        ValueType::TwoBytes => id::two_byte_property(id, reader.u16()?),
        ValueType::FourBytes => id::four_byte_property(id, reader.u32()?),
        ValueType::VarInt => Property::SubscriptionIdentifier(reader.varint()?),
        ValueType::Text => id::text_property(id, reader.string()?),
        ValueType::Binary => id::binary_property(id, reader.binary()?),
        ValueType::Pair => Property::UserProperty {
            key: reader.string()?,
            value: reader.string()?,
        },
    })
}
