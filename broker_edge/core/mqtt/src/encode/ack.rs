//! PUBACK, PUBREC, PUBREL, PUBCOMP.

use super::{prefixed_len, put_header, put_properties};
use crate::packet::kind;
use crate::property::Property;
use crate::reason::ReasonCode;
use crate::version::{PacketId, Version};

/// Appends a PUBACK.
#[inline]
pub fn puback(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    ack(
        out,
        kind::PUBACK << 4,
        version,
        packet_id,
        reason,
        properties,
    );
}

/// Appends a PUBREC.
#[inline]
pub fn pubrec(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    ack(
        out,
        kind::PUBREC << 4,
        version,
        packet_id,
        reason,
        properties,
    );
}

/// Appends a PUBREL.
#[inline]
pub fn pubrel(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    ack(
        out,
        kind::PUBREL << 4 | 0b0010,
        version,
        packet_id,
        reason,
        properties,
    );
}

/// Appends a PUBCOMP.
#[inline]
pub fn pubcomp(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    ack(
        out,
        kind::PUBCOMP << 4,
        version,
        packet_id,
        reason,
        properties,
    );
}

#[inline]
fn ack(
    out: &mut Vec<u8>,
    first_byte: u8,
    version: Version,
    packet_id: PacketId,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    let [high, low] = packet_id.get().to_be_bytes();
    if !version.is_v5() || (reason == ReasonCode::Success && properties.is_empty()) {
        out.extend_from_slice(&[first_byte, 2, high, low]);
    } else if properties.is_empty() {
        out.extend_from_slice(&[first_byte, 3, high, low, reason.as_u8()]);
    } else {
        put_header(out, first_byte, 3 + prefixed_len(properties));
        out.extend_from_slice(&[high, low, reason.as_u8()]);
        put_properties(out, properties);
    }
}
