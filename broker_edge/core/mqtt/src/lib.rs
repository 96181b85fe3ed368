//! MQTT 3.1, 3.1.1 and 5: bytes to packets and packets to bytes.
//!
//! Owns the wire format: framing, the packets and their properties, reason codes, topic names and filters. It performs
//! no I/O, reads no clock, keeps no session and decides no policy: it decodes every well-formed packet, and the broker
//! decides which ones to serve. Decoded packets borrow from the input, so no peer can control the size of an
//! allocation.
//!
//! Reading: [`frame::next`] finds a packet, [`packet::connect::decode`] reads the first one and returns the
//! [`Version`], [`packet::decode`] and [`packet::publish::decode`] read the others. Writing: [`encode`].
#![forbid(unsafe_code)]

pub mod encode;
pub mod error;
pub mod frame;
pub mod packet;
pub mod property;
pub mod reason;
pub mod text;
pub mod topic;
pub mod version;
mod wire;

pub use error::DecodeError;
pub use frame::Frame;
pub use packet::Packet;
pub use packet::connect::Connect;
pub use packet::publish::Publish;
pub use property::{Properties, Property, PropertyId};
pub use reason::{ConnectReturnCode, ReasonCode};
pub use topic::{TopicName, filter_matches};
pub use version::{PacketId, QoS, Version};
pub use wire::VARINT_MAX;
