//! Packets from hex, so that a test shows the bytes on the wire.

use headwater_mqtt::frame::{self, Frame};
use headwater_mqtt::{DecodeError, Packet, ReasonCode, Version, packet};

pub(crate) const NO_LIMIT: usize = 1 << 30;

/// Bytes from hex digits; spaces are ignored.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .collect();
    digits
        .chunks_exact(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

/// The first byte and the body of `bytes`, which hold one packet.
pub(crate) fn split(bytes: &[u8]) -> (u8, &[u8]) {
    match frame::next(bytes, NO_LIMIT) {
        Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) if total_len == bytes.len() => (first_byte, &bytes[header_len..]),
        other => panic!("{bytes:02x?} is not one packet: {other:?}"),
    }
}

pub(crate) fn decode(version: Version, bytes: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let (first_byte, body) = split(bytes);
    packet::decode(version, first_byte, body)
}

/// The code with which a packet of a connected client is refused; `None` when it is accepted.
pub(crate) fn refused(version: Version, digits: &str) -> Option<ReasonCode> {
    decode(version, &hex(digits))
        .err()
        .map(|error| error.reason)
}
