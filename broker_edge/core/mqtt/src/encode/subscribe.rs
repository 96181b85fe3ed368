//! SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.

use super::{prefixed_len, put_header, put_properties};
use crate::packet::kind;
use crate::packet::subscribe::Subscription;
use crate::property::Property;
use crate::reason::ReasonCode;
use crate::version::{PacketId, Version};
use crate::wire::{binary_len, put_binary};

/// The SUBACK code before MQTT 5 for a refused filter.
const FAILURE_V3: u8 = 0x80;

/// Writes the header, the packet identifier and the properties; `rest_len` bytes must follow.
fn put_head(
    out: &mut Vec<u8>,
    first_byte: u8,
    version: Version,
    packet_id: PacketId,
    properties: &[Property<'_>],
    rest_len: usize,
) {
    let properties_len = if version.is_v5() {
        prefixed_len(properties)
    } else {
        0
    };
    put_header(out, first_byte, 2 + properties_len + rest_len);
    out.extend_from_slice(&packet_id.get().to_be_bytes());
    if version.is_v5() {
        put_properties(out, properties);
    }
}

/// Appends a SUBACK with one code per filter. Before MQTT 5 every error is 0x80.
pub fn suback(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    properties: &[Property<'_>],
    codes: &[ReasonCode],
) {
    put_head(
        out,
        kind::SUBACK << 4,
        version,
        packet_id,
        properties,
        codes.len(),
    );
    out.extend(codes.iter().map(|code| match version {
        Version::V5 => code.as_u8(),
        _ if code.is_error() => FAILURE_V3,
        _ => code.as_u8(),
    }));
}

/// Appends an UNSUBACK with one code per filter. Before MQTT 5 it has no codes.
pub fn unsuback(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    properties: &[Property<'_>],
    codes: &[ReasonCode],
) {
    let codes = if version.is_v5() { codes } else { &[] };
    put_head(
        out,
        kind::UNSUBACK << 4,
        version,
        packet_id,
        properties,
        codes.len(),
    );
    out.extend(codes.iter().map(|code| code.as_u8()));
}

/// Appends a SUBSCRIBE. Before MQTT 5 only the QoS of the options is sent.
pub fn subscribe(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    properties: &[Property<'_>],
    subscriptions: &[Subscription<'_>],
) {
    let len = subscriptions
        .iter()
        .map(|one| binary_len(one.filter.as_bytes()) + 1)
        .sum();
    put_head(
        out,
        kind::SUBSCRIBE << 4 | 0b0010,
        version,
        packet_id,
        properties,
        len,
    );
    for Subscription { filter, options } in subscriptions {
        put_binary(out, filter.as_bytes());
        out.push(if version.is_v5() {
            options.as_u8()
        } else {
            options.qos.as_u8()
        });
    }
}

/// Appends an UNSUBSCRIBE.
pub fn unsubscribe(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    properties: &[Property<'_>],
    filters: &[&str],
) {
    let len = filters
        .iter()
        .map(|filter| binary_len(filter.as_bytes()))
        .sum();
    put_head(
        out,
        kind::UNSUBSCRIBE << 4 | 0b0010,
        version,
        packet_id,
        properties,
        len,
    );
    for filter in filters {
        put_binary(out, filter.as_bytes());
    }
}
