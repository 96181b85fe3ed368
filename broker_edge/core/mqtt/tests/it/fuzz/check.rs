//! Invariants for every input: a frame never reaches past the bytes; a decoded packet encodes to bytes that decode to
//! an equal packet; decoding allocates nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;

use headwater_mqtt::encode::{self, ConnectFields, PublishFields, WillFields};
use headwater_mqtt::packet::connack::ConnackCode;
use headwater_mqtt::packet::{self, Packet, ServerPacket, connect};
use headwater_mqtt::{
    Connect, DecodeError, Frame, PacketId, Properties, Property, Publish, ReasonCode, Version,
    frame,
};

use crate::counting::allocations;

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];
/// Larger packets are refused when their header is read.
const SIZE_MAX: usize = 1 << 20;

/// Checks one input and returns a hash of the codec's outcome.
pub(crate) fn check(input: &[u8], cut: usize) -> u64 {
    check_with(input, cut, |_| {})
}

/// As [`check`], with `spoil` applied to the encoded bytes.
pub(crate) fn check_with(input: &[u8], cut: usize, spoil: fn(&mut Vec<u8>)) -> u64 {
    let mut outcome = DefaultHasher::new();
    let (first_byte, body) = match frame::next(input, SIZE_MAX) {
        Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) => {
            assert!(header_len <= total_len && total_len <= input.len() && total_len <= SIZE_MAX);
            check_prefix(&input[..cut.min(total_len)], total_len);
            (first_byte, &input[header_len..total_len])
        }
        Ok(Frame::Incomplete { needed_total }) => {
            assert!(needed_total.is_none_or(|needed| needed > input.len() && needed <= SIZE_MAX));
            return 1;
        }
        Err(error) => {
            error.what.hash(&mut outcome);
            return outcome.finish();
        }
    };
    // Matching must not panic even on text that is not a topic.
    (first_byte >> 4).hash(&mut outcome);
    for version in VERSIONS {
        let before = allocations();
        let client = black_box(packet::decode(version, first_byte, body));
        let server = black_box(packet::decode_from_server(version, first_byte, body));
        let seen = client
            .as_ref()
            .map_or(0, |packet| walk(properties_of(packet)));
        black_box(headwater_mqtt::packet::ack::plain(first_byte, body));
        assert_eq!(allocations(), before, "decoding allocates");
        note(&mut outcome, &client);
        note(&mut outcome, &server);
        seen.hash(&mut outcome);
        if let Ok(packet) = client {
            let mut out = Vec::new();
            encode_client(&mut out, version, &packet);
            spoil(&mut out);
            let (first_byte, body) = split(&out);
            assert_eq!(packet::decode(version, first_byte, body), Ok(packet));
        }
        if let Ok(packet) = server {
            let mut out = Vec::new();
            encode_server(&mut out, version, &packet);
            let (first_byte, body) = split(&out);
            assert_eq!(
                packet::decode_from_server(version, first_byte, body),
                Ok(packet)
            );
        }
    }
    let before = allocations();
    let connect = black_box(connect::decode(first_byte, body));
    assert_eq!(allocations(), before, "decoding a CONNECT allocates");
    match connect {
        Ok(connect) => {
            walk(connect.properties).hash(&mut outcome);
            let mut out = Vec::new();
            encode_connect(&mut out, &connect);
            spoil(&mut out);
            let (first_byte, body) = split(&out);
            assert_eq!(connect::decode(first_byte, body), Ok(connect));
        }
        Err(error) => {
            error.error.what.hash(&mut outcome);
            let mut out = Vec::new();
            encode::refusal(&mut out, error.refusal);
        }
    }
    outcome.finish()
}

/// A strict prefix is never a whole packet, and the size is known as soon as the header is complete.
fn check_prefix(prefix: &[u8], total_len: usize) {
    if prefix.len() == total_len {
        return;
    }
    match frame::next(prefix, SIZE_MAX) {
        Ok(Frame::Incomplete { needed_total }) => {
            assert!(needed_total.is_none_or(|needed| needed == total_len));
        }
        other => panic!("a part of a packet of {total_len} bytes is {other:?}"),
    }
}

fn note<T>(outcome: &mut DefaultHasher, result: &Result<T, DecodeError>) {
    match result {
        Ok(_) => 0_u8.hash(outcome),
        Err(error) => error.what.hash(outcome),
    }
}

/// Reads all properties and returns the set of their identifiers.
fn walk(properties: Properties<'_>) -> u64 {
    let mut seen = 0;
    for property in properties {
        assert!(properties.contains(property.id()));
        seen |= 1 << property.id() as u64;
    }
    black_box(properties.message_expiry_interval());
    black_box(properties.user_property("stream-offset"));
    black_box(properties.subscription_identifiers().count());
    seen
}

fn split(packet: &[u8]) -> (u8, &[u8]) {
    match frame::next(packet, usize::MAX) {
        Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) => {
            assert_eq!(total_len, packet.len(), "an encoded packet is one packet");
            (first_byte, &packet[header_len..])
        }
        other => panic!("an encoded packet is {other:?}: {packet:02x?}"),
    }
}

fn properties_of<'a>(packet: &Packet<'a>) -> Properties<'a> {
    match packet {
        Packet::Publish(packet) => packet.properties,
        Packet::Puback(ack) | Packet::Pubrec(ack) | Packet::Pubrel(ack) | Packet::Pubcomp(ack) => {
            ack.properties
        }
        Packet::Subscribe(packet) => packet.properties,
        Packet::Unsubscribe(packet) => packet.properties,
        Packet::Disconnect(packet) => packet.properties,
        Packet::Auth(packet) => packet.properties,
        Packet::Pingreq => Properties::EMPTY,
    }
}

fn list(properties: Properties<'_>) -> Vec<Property<'_>> {
    properties.iter().collect()
}

fn encode_publish(out: &mut Vec<u8>, version: Version, publish: &Publish<'_>) {
    let fields = PublishFields {
        version,
        dup: publish.dup,
        qos: publish.qos,
        retain: publish.retain,
        topic: publish.topic.as_str(),
        packet_id: publish.packet_id,
        properties: publish.properties.as_bytes(),
        extra: &[],
    };
    let layout = fields
        .encode(out, publish.payload)
        .expect("what was received fits");
    assert_eq!(layout.total_len, out.len());
}

fn encode_client(out: &mut Vec<u8>, version: Version, packet: &Packet<'_>) {
    type Encode = fn(&mut Vec<u8>, Version, PacketId, ReasonCode, &[Property<'_>]);
    let (encode, ack): (Encode, _) = match packet {
        Packet::Publish(publish) => return encode_publish(out, version, publish),
        Packet::Subscribe(packet) => {
            let subscriptions: Vec<_> = packet.subscriptions.iter().collect();
            assert_eq!(subscriptions.len(), packet.subscriptions.len());
            return encode::subscribe(
                out,
                version,
                packet.packet_id,
                &list(packet.properties),
                &subscriptions,
            );
        }
        Packet::Unsubscribe(packet) => {
            let filters: Vec<_> = packet.filters.iter().collect();
            assert_eq!(filters.len(), packet.filters.len());
            return encode::unsubscribe(
                out,
                version,
                packet.packet_id,
                &list(packet.properties),
                &filters,
            );
        }
        Packet::Disconnect(packet) => {
            return encode::disconnect(out, version, packet.reason, &list(packet.properties));
        }
        Packet::Auth(packet) => return encode::auth(out, packet.reason, &list(packet.properties)),
        Packet::Pingreq => return encode::pingreq(out),
        Packet::Puback(ack) => (encode::puback, ack),
        Packet::Pubrec(ack) => (encode::pubrec, ack),
        Packet::Pubrel(ack) => (encode::pubrel, ack),
        Packet::Pubcomp(ack) => (encode::pubcomp, ack),
    };
    encode(
        out,
        version,
        ack.packet_id,
        ack.reason,
        &list(ack.properties),
    );
}

fn encode_server(out: &mut Vec<u8>, version: Version, packet: &ServerPacket<'_>) {
    match packet {
        ServerPacket::Connack(packet) => match packet.code {
            ConnackCode::V3(code) => encode::connack_v3(out, packet.session_present, code),
            ConnackCode::V5(code) => {
                encode::connack(out, packet.session_present, code, &list(packet.properties));
            }
        },
        ServerPacket::Publish(publish) => encode_publish(out, version, publish),
        ServerPacket::Suback(packet) => {
            let codes: Vec<_> = packet.codes.iter().collect();
            encode::suback(
                out,
                version,
                packet.packet_id,
                &list(packet.properties),
                &codes,
            );
        }
        ServerPacket::Unsuback(packet) => {
            let codes: Vec<_> = packet.codes.iter().collect();
            encode::unsuback(
                out,
                version,
                packet.packet_id,
                &list(packet.properties),
                &codes,
            );
        }
        ServerPacket::Pingresp => encode::pingresp(out),
        ServerPacket::Puback(ack) => encode_client(out, version, &Packet::Puback(*ack)),
        ServerPacket::Pubrec(ack) => encode_client(out, version, &Packet::Pubrec(*ack)),
        ServerPacket::Pubrel(ack) => encode_client(out, version, &Packet::Pubrel(*ack)),
        ServerPacket::Pubcomp(ack) => encode_client(out, version, &Packet::Pubcomp(*ack)),
        ServerPacket::Disconnect(packet) => {
            encode::disconnect(out, version, packet.reason, &list(packet.properties));
        }
        // An AUTH without a body means success, and is also written without one.
        ServerPacket::Auth(packet) if packet.properties.is_empty() => {
            out.extend_from_slice(&[0xf0, 0])
        }
        ServerPacket::Auth(packet) => encode::auth(out, packet.reason, &list(packet.properties)),
    }
}

fn encode_connect(out: &mut Vec<u8>, connect: &Connect<'_>) {
    let of_will = connect
        .will
        .map(|will| list(will.properties))
        .unwrap_or_default();
    let of_connect = list(connect.properties);
    let fields = ConnectFields {
        version: connect.version,
        clean_start: connect.clean_start,
        keep_alive_s: connect.keep_alive_s,
        client_id: connect.client_id,
        will: connect.will.map(|will| WillFields {
            topic: will.topic,
            payload: will.payload,
            qos: will.qos,
            retain: will.retain,
            properties: &of_will,
        }),
        username: connect.username,
        password: connect.password,
        properties: &of_connect,
    };
    encode::connect(out, &fields);
}
