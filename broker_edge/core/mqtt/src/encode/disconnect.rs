//! DISCONNECT, AUTH, PINGREQ and PINGRESP.

use super::{prefixed_len, put_header, put_properties};
use crate::packet::kind;
use crate::property::Property;
use crate::reason::ReasonCode;
use crate::version::Version;

/// Appends a DISCONNECT. Before MQTT 5 only clients send it, without a reason.
pub fn disconnect(
    out: &mut Vec<u8>,
    version: Version,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    let first_byte = kind::DISCONNECT << 4;
    if !version.is_v5() || (reason == ReasonCode::NORMAL_DISCONNECTION && properties.is_empty()) {
        out.extend_from_slice(&[first_byte, 0]);
    } else if properties.is_empty() {
        out.extend_from_slice(&[first_byte, 1, reason.as_u8()]);
    } else {
        with_properties(out, first_byte, reason, properties);
    }
}

/// Appends an AUTH. It exists in MQTT 5 only.
pub fn auth(out: &mut Vec<u8>, reason: ReasonCode, properties: &[Property<'_>]) {
    with_properties(out, kind::AUTH << 4, reason, properties);
}

fn with_properties(
    out: &mut Vec<u8>,
    first_byte: u8,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    put_header(out, first_byte, 1 + prefixed_len(properties));
    out.push(reason.as_u8());
    put_properties(out, properties);
}

/// Appends a PINGREQ.
pub fn pingreq(out: &mut Vec<u8>) {
    out.extend_from_slice(&[kind::PINGREQ << 4, 0]);
}

/// Appends a PINGRESP.
pub fn pingresp(out: &mut Vec<u8>) {
    out.extend_from_slice(&[kind::PINGRESP << 4, 0]);
}
