//! CONNECT: the first packet of a connection, and the only one that is decoded before the version is known.
//!
//! An error carries the answer to send ([`Refusal`]), which depends on how much of the packet could be read.

use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::reason::{ConnectReturnCode, ReasonCode};
use crate::topic;
use crate::version::{QoS, Version};
use crate::wire::Reader;

use super::kind;

/// The fields of a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    pub version: Version,
    /// Clean session before MQTT 5, clean start in MQTT 5.
    pub clean_start: bool,
    /// Seconds; 0 turns the keep-alive off.
    pub keep_alive_s: u16,
    /// If empty, the broker assigns one. Never empty in 3.1, nor in 3.1.1 without a clean session.
    pub client_id: &'a str,
    pub will: Option<Will<'a>>,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub properties: Properties<'a>,
}

/// The message to publish when the connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Will<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub properties: Properties<'a>,
}

/// A CONNECT that cannot be accepted, and the CONNACK to answer it with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ConnectError {
    pub error: DecodeError,
    pub refusal: Refusal,
}

/// How a refused CONNECT is answered before the connection is closed; `encode::connack::refusal` writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No answer: the packet was not MQTT, or its version has no code for the error.
    Close,
    V3(ConnectReturnCode),
    V5(ReasonCode),
}

mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN_START: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USERNAME: u8 = 0x80;
}

/// Decodes the first packet of a connection, which must be a CONNECT.
///
/// # Errors
/// Another packet, a malformed body, an unknown version, or a client id that its version does not allow.
pub fn decode(first_byte: u8, body: &[u8]) -> Result<Connect<'_>, ConnectError> {
    let close = |error| ConnectError {
        error,
        refusal: Refusal::Close,
    };
    if first_byte >> 4 != kind::CONNECT {
        return Err(close(DecodeError::protocol(
            "the first packet is not a CONNECT",
        )));
    }
    let mut reader = Reader::new(body);
    let name = reader.binary().map_err(close)?;
    let level = reader.u8().map_err(close)?;
    let version = read_version(name, level)?;
    // MQTT 3.1 does not define these bits, and old clients set them.
    if version != Version::V31 && first_byte & 0x0f != 0 {
        return Err(close(DecodeError::malformed(
            "reserved bits of the fixed header are set",
        )));
    }
    read_rest(version, reader).map_err(|error| ConnectError {
        error,
        refusal: refusal(version, error.reason),
    })
}

fn read_version(name: &[u8], level: u8) -> Result<Version, ConnectError> {
    let what = "the protocol name and level match no supported MQTT version (3.1, 3.1.1 or 5)";
    let error = DecodeError::new(ReasonCode::UnsupportedProtocolVersion, what);
    // The top bit marks a Mosquitto bridge, which retries without the bit when it gets its version's refusal code.
    let refusal = match (name, level & 0x7f) {
        (b"MQIsdp", 3) if level == 3 => return Ok(Version::V31),
        (b"MQTT", 4) if level == 4 => return Ok(Version::V311),
        (b"MQTT", 5) if level == 5 => return Ok(Version::V5),
        (b"MQIsdp" | b"MQTT", 3 | 4) => Refusal::V3(ConnectReturnCode::UnacceptableProtocolVersion),
        (b"MQIsdp" | b"MQTT", _) => Refusal::V5(ReasonCode::UnsupportedProtocolVersion),
        _ => Refusal::Close,
    };
    Err(ConnectError { error, refusal })
}

const fn refusal(version: Version, reason: ReasonCode) -> Refusal {
    match (version, reason) {
        (Version::V5, reason) => Refusal::V5(reason),
        (_, ReasonCode::ClientIdentifierNotValid) => {
            Refusal::V3(ConnectReturnCode::IdentifierRejected)
        }
        _ => Refusal::Close,
    }
}

/// Reads everything after the protocol level.
fn read_rest(version: Version, mut reader: Reader<'_>) -> Result<Connect<'_>, DecodeError> {
    let flags = reader.u8()?;
    if version != Version::V31 && flags & flag::RESERVED != 0 {
        return Err(DecodeError::malformed("the reserved CONNECT flag is set"));
    }
    if version == Version::V311 && flags & flag::PASSWORD != 0 && flags & flag::USERNAME == 0 {
        return Err(DecodeError::malformed("a password without a user name"));
    }
    let keep_alive_s = reader.u16()?;
    let properties = match version {
        Version::V5 => Properties::read(&mut reader, PacketProperties::Connect)?,
        _ => Properties::EMPTY,
    };
    let clean_start = flags & flag::CLEAN_START != 0;
    let client_id = read_client_id(&mut reader, version, clean_start)?;
    let will = read_will(&mut reader, version, flags)?;
    // In MQTT 3.1 the length of the packet takes precedence over these two flags.
    let is_given = |flag: u8, reader: &Reader<'_>| {
        flags & flag != 0 && !(version == Version::V31 && reader.is_empty())
    };
    let username = if is_given(flag::USERNAME, &reader) {
        Some(reader.string()?)
    } else {
        None
    };
    let password = if is_given(flag::PASSWORD, &reader) {
        Some(reader.binary()?)
    } else {
        None
    };
    if !reader.is_empty() {
        return Err(DecodeError::malformed(
            "a CONNECT has bytes after its last field",
        ));
    }
    Ok(Connect {
        version,
        clean_start,
        keep_alive_s,
        client_id,
        will,
        username,
        password,
        properties,
    })
}

fn read_client_id<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    clean_start: bool,
) -> Result<&'a str, DecodeError> {
    let refused = |what| DecodeError::new(ReasonCode::ClientIdentifierNotValid, what);
    let client_id = reader.binary()?;
    let Some(client_id) = crate::text::check(client_id) else {
        return Err(match version {
            Version::V5 => refused("the client id is not valid UTF-8 text"),
            _ => DecodeError::malformed("the client id is not valid UTF-8 text"),
        });
    };
    let needs_one = match version {
        Version::V31 => true,
        Version::V311 => !clean_start,
        Version::V5 => false,
    };
    if client_id.is_empty() && needs_one {
        return Err(refused(
            "the client id is empty and the session is not clean",
        ));
    }
    Ok(client_id)
}

fn read_will<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    flags: u8,
) -> Result<Option<Will<'a>>, DecodeError> {
    if flags & flag::WILL == 0 {
        return if flags & (flag::WILL_QOS | flag::WILL_RETAIN) == 0 {
            Ok(None)
        } else {
            Err(DecodeError::malformed(
                "will QoS or will retain is set without a will",
            ))
        };
    }
    let qos = QoS::from_u8((flags & flag::WILL_QOS) >> 3)
        .ok_or(DecodeError::malformed("a will with QoS 3"))?;
    let properties = match version {
        Version::V5 => Properties::read(reader, PacketProperties::Will)?,
        _ => Properties::EMPTY,
    };
    let topic = reader.string()?;
    topic::check_name(topic.as_bytes())
        .map_err(|_| DecodeError::malformed("the will topic is not a topic name"))?;
    let payload = reader.binary()?;
    Ok(Some(Will {
        topic,
        payload,
        qos,
        retain: flags & flag::WILL_RETAIN != 0,
        properties,
    }))
}
