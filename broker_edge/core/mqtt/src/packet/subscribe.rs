//! SUBSCRIBE: filters with their options. Decoding checks them all, and iterating reads them again, so their number
//! costs no memory.
//!
//! The broker decides which filters, and how many, a client may subscribe to.

use crate::error::DecodeError;
use crate::property::{PacketProperties, Properties};
use crate::topic;
use crate::version::{PacketId, QoS, Version};
use crate::wire::Reader;

/// When a new subscription gets the retained messages that match it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum RetainHandling {
    #[default]
    Send = 0,
    SendIfNew = 1,
    DoNotSend = 2,
}

/// The options beside the filter. Before MQTT 5 only the QoS is sent; the others have their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

impl SubscriptionOptions {
    /// The options of a subscription that gives only a QoS.
    #[must_use]
    pub const fn new(qos: QoS) -> Self {
        Self {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }
    }

    /// The options byte of MQTT 5.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.qos as u8
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | (self.retain_handling as u8) << 4
    }

    fn read(version: Version, byte: u8) -> Result<Self, DecodeError> {
        let qos = QoS::from_u8(byte & 0b11)
            .ok_or(DecodeError::malformed("a subscription asks for QoS 3"))?;
        let reserved = if version.is_v5() {
            0b1100_0000
        } else {
            0b1111_1100
        };
        if byte & reserved != 0 {
            return Err(DecodeError::malformed(
                "reserved bits of the subscription options are set",
            ));
        }
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::protocol("retain handling 3")),
        };
        Ok(Self {
            qos,
            no_local: byte & 0b100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }
}

/// One filter of a SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscription<'a> {
    /// A well-formed filter, with its `$share/…` if it has one (`topic::parse_shared` splits it).
    pub filter: &'a str,
    pub options: SubscriptionOptions,
}

/// A SUBSCRIBE with at least one filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub subscriptions: Subscriptions<'a>,
}

/// The filters of a SUBSCRIBE, in packet order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscriptions<'a> {
    /// Every entry was checked when the packet was decoded.
    bytes: &'a [u8],
    version: Version,
    count: usize,
}

impl<'a> Subscriptions<'a> {
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a SUBSCRIBE without filters is refused"
    )]
    pub const fn len(&self) -> usize {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = Subscription<'a>> + use<'a> {
        let version = self.version;
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                None
            } else {
                read_subscription(&mut reader, version).ok()
            }
        })
    }
}

pub(super) fn decode(version: Version, body: &[u8]) -> Result<Subscribe<'_>, DecodeError> {
    let mut reader = Reader::new(body);
    let packet_id =
        PacketId::new(reader.u16()?).ok_or(DecodeError::malformed("packet identifier 0"))?;
    let properties = match version {
        Version::V5 => Properties::read(&mut reader, PacketProperties::Subscribe)?,
        _ => Properties::EMPTY,
    };
    let bytes = reader.rest();
    let mut count = 0;
    while !reader.is_empty() {
        read_subscription(&mut reader, version)?;
        count += 1;
    }
    if count == 0 {
        return Err(DecodeError::protocol("a SUBSCRIBE without a filter"));
    }
    Ok(Subscribe {
        packet_id,
        properties,
        subscriptions: Subscriptions {
            bytes,
            version,
            count,
        },
    })
}

fn read_subscription<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<Subscription<'a>, DecodeError> {
    let filter = read_filter(reader)?;
    let options = SubscriptionOptions::read(version, reader.u8()?)?;
    if options.no_local && filter.starts_with("$share/") {
        return Err(DecodeError::protocol("no local on a shared subscription"));
    }
    Ok(Subscription { filter, options })
}

/// A level before a filter with which a subscriber names an offset in the log. It is not a well-formed filter level, so
/// the check here removes it first; filters are checked only here.
const AT_WITH_OFFSETS: &str = "$at+/";

/// Reads a filter, shared or not, and checks that it is well formed.
pub(super) fn read_filter<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    let filter = reader.string()?;
    let checked = filter.strip_prefix(AT_WITH_OFFSETS).unwrap_or(filter);
    topic::check_filter(checked.as_bytes())
        .and_then(|()| topic::parse_shared(filter))
        .map_err(|_| DecodeError::malformed("a topic filter is not well formed"))?;
    Ok(filter)
}
