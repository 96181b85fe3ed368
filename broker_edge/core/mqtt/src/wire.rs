//! Reads and writes the wire's data types: integers, variable byte integers, strings and binary data.
//!
//! Knows nothing of packets. A reader never reads past its slice; a writer never writes a length that differs from the
//! bytes that follow.

use crate::error::DecodeError;
use crate::text;

/// The largest value of a variable byte integer, and therefore the longest body of a packet.
pub const VARINT_MAX: u32 = 268_435_455;

const TRUNCATED: DecodeError = DecodeError::malformed("the packet ends inside a field");

/// Reads the fields of a packet's body in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        let (value, rest) = self.rest.split_first().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(*value)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        let (value, rest) = self.rest.split_first_chunk::<2>().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(u16::from_be_bytes(*value))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        let (value, rest) = self.rest.split_first_chunk::<4>().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*value))
    }

    /// Reads a variable byte integer. Only its shortest form is allowed.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(DecodeError::malformed(
                        "a variable byte integer is longer than it needs to be",
                    ));
                }
                return Ok(value);
            }
        }
        Err(DecodeError::malformed(
            "a variable byte integer has more than four bytes",
        ))
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (value, rest) = self.rest.split_at_checked(len).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(value)
    }

    /// Reads bytes with a two-byte length prefix.
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Reads a string: UTF-8 that [`text::check`] accepts.
    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        text::check(self.binary()?)
            .ok_or(DecodeError::malformed("a string is not valid UTF-8 text"))
    }
}

/// The encoded length of the variable byte integer `value`.
#[inline]
pub(crate) const fn varint_len(value: u32) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        _ => 4,
    }
}

/// Writes `value` in its shortest form. Values over [`VARINT_MAX`] cannot be encoded; callers bound them first.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u32) {
    debug_assert!(value <= VARINT_MAX);
    let mut rest = value;
    while rest > 0x7f {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Writes bytes with a two-byte length prefix. More than 65,535 bytes are cut, because a wrong length would make the
/// rest of the stream unreadable. Everything that came over MQTT or passed `topic::check_*` fits.
#[inline]
pub(crate) fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    let len = bytes.len().min(usize::from(u16::MAX));
    out.extend_from_slice(&(len as u16).to_be_bytes());
    out.extend_from_slice(&bytes[..len]);
}

/// The number of bytes that [`put_binary`] appends.
#[inline]
pub(crate) const fn binary_len(bytes: &[u8]) -> usize {
    let max = u16::MAX as usize;
    2 + if bytes.len() < max { bytes.len() } else { max }
}
