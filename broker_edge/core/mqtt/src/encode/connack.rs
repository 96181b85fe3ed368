//! CONNACK.

use super::{prefixed_len, put_header, put_properties};
use crate::packet::connect::Refusal;
use crate::packet::kind;
use crate::property::Property;
use crate::reason::{ConnectReturnCode, ReasonCode};

/// Appends a CONNACK of MQTT 5.
pub fn connack(
    out: &mut Vec<u8>,
    session_present: bool,
    reason: ReasonCode,
    properties: &[Property<'_>],
) {
    put_header(out, kind::CONNACK << 4, 2 + prefixed_len(properties));
    out.extend_from_slice(&[u8::from(session_present), reason.as_u8()]);
    put_properties(out, properties);
}

/// Appends a CONNACK of MQTT 3.1.1. `session_present` is false for 3.1, which has no such flag.
pub fn connack_v3(out: &mut Vec<u8>, session_present: bool, code: ConnectReturnCode) {
    out.extend_from_slice(&[
        kind::CONNACK << 4,
        2,
        u8::from(session_present),
        code.as_u8(),
    ]);
}

/// Appends the CONNACK for a CONNECT that could not be decoded. Appends nothing for [`Refusal::Close`].
pub fn refusal(out: &mut Vec<u8>, refusal: Refusal) {
    match refusal {
        Refusal::Close => {}
        Refusal::V3(code) => connack_v3(out, false, code),
        Refusal::V5(reason) => connack(out, false, reason, &[]),
    }
}
