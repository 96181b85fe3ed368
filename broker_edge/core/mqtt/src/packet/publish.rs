//! PUBLISH, from a client or from a server. PUBLISH from a client is the hot path of the broker.
//!
//! The session decides whether a topic alias is known and whether the client may publish to the topic.

use std::num::NonZeroU16;

use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::topic::{TopicError, TopicName};
use crate::version::{PacketId, QoS, Version};
use crate::wire::Reader;

/// Which side sent a packet, where the rules differ by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

/// The fields of a PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only when there is a topic alias.
    pub topic: TopicName<'a>,
    /// Present exactly when `qos` is not 0.
    pub packet_id: Option<PacketId>,
    pub topic_alias: Option<NonZeroU16>,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

/// Decodes a PUBLISH that a client sent. `first_byte` is that of the fixed header.
///
/// # Errors
/// A malformed body (0x81), a broken rule (0x82), or topic alias 0 (0x94).
#[inline]
pub fn decode(version: Version, first_byte: u8, body: &[u8]) -> Result<Publish<'_>, DecodeError> {
    decode_with(
        version,
        first_byte,
        body,
        PacketProperties::PublishFromClient,
    )
}

/// Decodes a PUBLISH that a server sent, which may carry subscription identifiers.
///
/// # Errors
/// As [`decode`].
pub fn decode_from_server(
    version: Version,
    first_byte: u8,
    body: &[u8],
) -> Result<Publish<'_>, DecodeError> {
    decode_with(
        version,
        first_byte,
        body,
        PacketProperties::PublishFromServer,
    )
}

#[inline]
fn decode_with(
    version: Version,
    first_byte: u8,
    body: &[u8],
    allowed: PacketProperties,
) -> Result<Publish<'_>, DecodeError> {
    let dup = first_byte & 0b1000 != 0;
    let qos = QoS::from_u8((first_byte >> 1) & 0b11).ok_or(DecodeError::malformed("QoS 3"))?;
    if dup && qos == QoS::AtMostOnce {
        return Err(DecodeError::malformed("DUP is set on QoS 0"));
    }
    let mut reader = Reader::new(body);
    let topic = reader.binary()?;
    let packet_id = match qos {
        QoS::AtMostOnce => None,
        _ => {
            Some(PacketId::new(reader.u16()?).ok_or(DecodeError::protocol("packet identifier 0"))?)
        }
    };
    let properties = match version {
        Version::V5 => Properties::read(&mut reader, allowed)?,
        _ => Properties::EMPTY,
    };
    let topic_alias = properties.topic_alias().and_then(NonZeroU16::new);
    let topic = match TopicName::parse(topic) {
        Ok(topic) => topic,
        Err(TopicError::Empty) if topic_alias.is_some() => TopicName::EMPTY,
        Err(error) => return Err(bad_topic(version, error)),
    };
    Ok(Publish {
        dup,
        qos,
        retain: first_byte & 1 != 0,
        topic,
        packet_id,
        topic_alias,
        properties,
        payload: reader.rest(),
    })
}

#[cold]
fn bad_topic(version: Version, error: TopicError) -> DecodeError {
    match error {
        TopicError::Empty if version.is_v5() => {
            DecodeError::protocol("neither a topic name nor a topic alias")
        }
        TopicError::Empty => DecodeError::malformed("the topic name is empty"),
        TopicError::Wildcard => DecodeError::malformed("the topic name has a wildcard"),
        TopicError::TooManyLevels => DecodeError::malformed("the topic name has too many levels"),
        _ => DecodeError::malformed("the topic name is not valid UTF-8 text"),
    }
}
