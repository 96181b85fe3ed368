//! Packets, decoded from a frame's body and borrowing from it. One file per packet.
//!
//! [`decode`] is for a server that has accepted a CONNECT; [`decode_from_server`] for a client. [`connect::decode`]
//! reads the first packet of a connection and returns the version that all others need.

pub mod ack;
pub mod auth;
pub mod connack;
pub mod connect;
pub mod disconnect;
pub mod publish;
pub mod suback;
pub mod subscribe;
pub mod unsubscribe;

use crate::error::DecodeError;
use crate::version::Version;
use ack::Ack;
use auth::Auth;
use connack::Connack;
use disconnect::Disconnect;
use publish::{Publish, Sender};
use suback::{Suback, Unsuback};
use subscribe::Subscribe;
use unsubscribe::Unsubscribe;

/// The high four bits of the first byte of a packet.
pub mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
    pub const AUTH: u8 = 15;
}

/// A packet that a connected client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    Publish(Publish<'a>),
    Puback(Ack<'a>),
    Pubrec(Ack<'a>),
    Pubrel(Ack<'a>),
    Pubcomp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    Unsubscribe(Unsubscribe<'a>),
    Pingreq,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// A packet that a server may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPacket<'a> {
    Connack(Connack<'a>),
    Publish(Publish<'a>),
    Puback(Ack<'a>),
    Pubrec(Ack<'a>),
    Pubrel(Ack<'a>),
    Pubcomp(Ack<'a>),
    Suback(Suback<'a>),
    Unsuback(Unsuback<'a>),
    Pingresp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// Decodes a packet from a connected client. A PUBLISH may go to [`publish::decode`] directly.
///
/// # Errors
/// A malformed body, and packets that a connected client may not send: a second CONNECT, and packets that only a server
/// sends.
#[inline]
pub fn decode(version: Version, first_byte: u8, body: &[u8]) -> Result<Packet<'_>, DecodeError> {
    if first_byte >> 4 == kind::PUBLISH {
        return publish::decode(version, first_byte, body).map(Packet::Publish);
    }
    decode_other(version, first_byte, body)
}

fn decode_other(version: Version, first_byte: u8, body: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let kind = first_byte >> 4;
    check_flags(kind, first_byte)?;
    Ok(match kind {
        kind::PUBACK => Packet::Puback(ack::decode(version, kind, body)?),
        kind::PUBREC => Packet::Pubrec(ack::decode(version, kind, body)?),
        kind::PUBREL => Packet::Pubrel(ack::decode(version, kind, body)?),
        kind::PUBCOMP => Packet::Pubcomp(ack::decode(version, kind, body)?),
        kind::SUBSCRIBE => Packet::Subscribe(subscribe::decode(version, body)?),
        kind::UNSUBSCRIBE => Packet::Unsubscribe(unsubscribe::decode(version, body)?),
        kind::PINGREQ => no_body(body).map(|()| Packet::Pingreq)?,
        kind::DISCONNECT => Packet::Disconnect(disconnect::decode(version, Sender::Client, body)?),
        kind::AUTH => Packet::Auth(auth::decode(version, Sender::Client, body)?),
        kind::CONNECT => return Err(DecodeError::protocol("a second CONNECT")),
        _ => {
            return Err(DecodeError::protocol(
                "a packet type that no client may send",
            ));
        }
    })
}

/// Decodes a packet from a server.
///
/// # Errors
/// A malformed body, and packets that only a client sends.
pub fn decode_from_server(
    version: Version,
    first_byte: u8,
    body: &[u8],
) -> Result<ServerPacket<'_>, DecodeError> {
    let kind = first_byte >> 4;
    if kind == kind::PUBLISH {
        return publish::decode_from_server(version, first_byte, body).map(ServerPacket::Publish);
    }
    check_flags(kind, first_byte)?;
    Ok(match kind {
        kind::CONNACK => ServerPacket::Connack(connack::decode(version, body)?),
        kind::PUBACK => ServerPacket::Puback(ack::decode(version, kind, body)?),
        kind::PUBREC => ServerPacket::Pubrec(ack::decode(version, kind, body)?),
        kind::PUBREL => ServerPacket::Pubrel(ack::decode(version, kind, body)?),
        kind::PUBCOMP => ServerPacket::Pubcomp(ack::decode(version, kind, body)?),
        kind::SUBACK => ServerPacket::Suback(suback::decode_suback(version, body)?),
        kind::UNSUBACK => ServerPacket::Unsuback(suback::decode_unsuback(version, body)?),
        kind::PINGRESP => no_body(body).map(|()| ServerPacket::Pingresp)?,
        kind::DISCONNECT if version.is_v5() => {
            ServerPacket::Disconnect(disconnect::decode(version, Sender::Server, body)?)
        }
        kind::AUTH => ServerPacket::Auth(auth::decode(version, Sender::Server, body)?),
        _ => {
            return Err(DecodeError::protocol(
                "a packet type that no server may send",
            ));
        }
    })
}

/// Checks the four reserved bits beside the packet type (2.1.3).
fn check_flags(kind: u8, first_byte: u8) -> Result<(), DecodeError> {
    let wanted = match kind {
        kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE => 0b0010,
        _ => 0,
    };
    if first_byte & 0x0f == wanted {
        return Ok(());
    }
    let what = "reserved bits of the fixed header have the wrong value";
    Err(match kind {
        // These types are refused with any flags.
        0 | kind::CONNACK | kind::AUTH => DecodeError::protocol(what),
        _ => DecodeError::malformed(what),
    })
}

fn no_body(body: &[u8]) -> Result<(), DecodeError> {
    if body.is_empty() {
        Ok(())
    } else {
        Err(DecodeError::malformed(
            "a packet type without a body has a body",
        ))
    }
}
