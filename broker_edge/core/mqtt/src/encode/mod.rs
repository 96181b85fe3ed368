//! Packets to bytes: each function appends one whole packet to a buffer.
//!
//! These functions check nothing: the caller chooses codes and properties that the version and the packet allow, and
//! keeps topics within `topic::LEN_MAX`. Before MQTT 5 properties and reasons are left out. Text over 65,535 bytes is
//! cut, so that the peer can still parse the rest of the stream.

mod ack;
mod connack;
mod connect;
mod disconnect;
mod publish;
mod subscribe;

pub use ack::{puback, pubcomp, pubrec, pubrel};
pub use connack::{connack, connack_v3, refusal};
pub use connect::{ConnectFields, WillFields, connect};
pub use disconnect::{auth, disconnect, pingreq, pingresp};
pub use publish::{PublishFields, PublishLayout, TooLarge, set_flags};
pub use subscribe::{suback, subscribe, unsuback, unsubscribe};

use crate::property::Property;
use crate::wire::{put_varint, varint_len};

/// Writes the fixed header of a control packet. The broker's limits keep these bodies far below the limit of the
/// format.
fn put_header(out: &mut Vec<u8>, first_byte: u8, body_len: usize) {
    debug_assert!(body_len <= crate::wire::VARINT_MAX as usize);
    out.reserve(body_len + 5);
    out.push(first_byte);
    put_varint(out, body_len as u32);
}

fn properties_len(properties: &[Property<'_>]) -> usize {
    properties.iter().map(Property::encoded_len).sum()
}

/// Bytes of the properties, length prefix included.
fn prefixed_len(properties: &[Property<'_>]) -> usize {
    let len = properties_len(properties);
    varint_len(len as u32) + len
}

fn put_properties(out: &mut Vec<u8>, properties: &[Property<'_>]) {
    put_varint(out, properties_len(properties) as u32);
    for property in properties {
        property.encode(out);
    }
}
