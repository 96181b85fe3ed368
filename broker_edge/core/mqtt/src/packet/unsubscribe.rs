//! UNSUBSCRIBE: filters to remove. Decoding checks them, and iterating reads them again.

use super::subscribe::read_filter;
use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::version::{PacketId, Version};
use crate::wire::Reader;

/// An UNSUBSCRIBE with at least one filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub filters: Filters<'a>,
}

/// The filters of an UNSUBSCRIBE, in packet order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filters<'a> {
    /// Every entry was checked when the packet was decoded.
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Filters<'a> {
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "an UNSUBSCRIBE without filters is refused"
    )]
    pub const fn len(&self) -> usize {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                None
            } else {
                read_filter(&mut reader).ok()
            }
        })
    }
}

pub(super) fn decode(version: Version, body: &[u8]) -> Result<Unsubscribe<'_>, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id =
        PacketId::new(reader.u16()?).ok_or(DecodeError::malformed("packet identifier 0"))?;
    let properties = match version {
        Version::V5 => Properties::read(&mut reader, PacketProperties::Unsubscribe)?,
        _ => Properties::EMPTY,
    };
    let bytes = reader.rest();
    let mut count = 0;
    while !reader.is_empty() {
        read_filter(&mut reader)?;
        count += 1;
    }
    if count == 0 {
        return Err(DecodeError::protocol("an UNSUBSCRIBE without a filter"));
    }
    Ok(Unsubscribe {
        packet_id,
        properties,
        filters: Filters { bytes, count },
    })
}
