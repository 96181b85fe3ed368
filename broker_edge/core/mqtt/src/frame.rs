//! Finds where a packet ends, from its fixed header alone.
//!
//! It does not read the body. The size limit applies before the body arrives, so a caller never buffers a packet that
//! it is going to refuse.

use crate::error::DecodeError;
use crate::reason::ReasonCode;

/// What the received bytes begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Not a whole packet yet. Once the header is complete, `needed_total` is the packet's size with its header, which
    /// is within the size limit.
    Incomplete { needed_total: Option<usize> },
    /// A whole packet: its body is `bytes[header_len..total_len]`.
    Whole {
        first_byte: u8,
        header_len: usize,
        total_len: usize,
    },
}

/// Finds the packet at the front of `bytes`. `size_max` counts the whole packet, header included, as the Maximum Packet
/// Size of MQTT 5 does.
///
/// A length padded with zeros is accepted: only MQTT 5 forbids it, the version is not known here, and some small
/// clients reserve a fixed number of bytes for the length.
///
/// # Errors
/// 0x81 for a length of more than four bytes, 0x95 for a packet over `size_max`.
#[inline]
pub fn next(bytes: &[u8], size_max: usize) -> Result<Frame, DecodeError> {
    // Nearly every packet has a body under 128 bytes: one byte of length.
    if let [first_byte, len, ..] = *bytes
        && len & 0x80 == 0
    {
        return whole(bytes, first_byte, 2, usize::from(len), size_max);
    }
    next_long(bytes, size_max)
}

fn next_long(bytes: &[u8], size_max: usize) -> Result<Frame, DecodeError> {
    let Some((first_byte, length)) = bytes.split_first() else {
        return Ok(Frame::Incomplete { needed_total: None });
    };
    let mut body_len = 0;
    for index in 0..4 {
        let Some(byte) = length.get(index) else {
            return Ok(Frame::Incomplete { needed_total: None });
        };
        body_len |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return whole(bytes, *first_byte, index + 2, body_len, size_max);
        }
    }
    Err(DecodeError::malformed(
        "the remaining length has more than four bytes",
    ))
}

#[inline]
fn whole(
    bytes: &[u8],
    first_byte: u8,
    header_len: usize,
    body_len: usize,
    size_max: usize,
) -> Result<Frame, DecodeError> {
    let total_len = header_len + body_len;
    if total_len > size_max {
        return Err(DecodeError::new(
            ReasonCode::PacketTooLarge,
            "the packet is over the size limit",
        ));
    }
    if bytes.len() < total_len {
        return Ok(Frame::Incomplete {
            needed_total: Some(total_len),
        });
    }
    Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    })
}
