//! Hostile input is refused or decoded, and never causes a panic.

use headwater_mqtt::frame::{self, Frame};
use headwater_mqtt::{Packet, Version, packet};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::codec::bytes::{NO_LIMIT, hex};
use crate::codec::strategies;

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

/// Decodes the packet in every way and reads all its fields. Returns whether a connected client may send it.
fn read_all(first_byte: u8, body: &[u8]) -> bool {
    let mut accepted = false;
    if let Ok(connect) = packet::connect::decode(first_byte, body) {
        connect.properties.iter().for_each(drop);
    }
    for version in VERSIONS {
        let _ = packet::decode_from_server(version, first_byte, body);
        let Ok(packet) = packet::decode(version, first_byte, body) else {
            continue;
        };
        accepted = true;
        match packet {
            Packet::Publish(publish) => {
                assert!(publish.properties.iter().count() <= body.len());
                assert_eq!(publish.topic.as_str().as_bytes(), publish.topic.as_bytes());
                publish.properties.copy_forwardable(&mut Vec::new());
            }
            Packet::Subscribe(packet) => assert_eq!(
                packet.subscriptions.iter().count(),
                packet.subscriptions.len()
            ),
            Packet::Unsubscribe(packet) => {
                assert_eq!(packet.filters.iter().count(), packet.filters.len())
            }
            _ => {}
        }
    }
    accepted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..80)) {
        if let Ok(Frame::Whole { first_byte, header_len, total_len }) = frame::next(&bytes, NO_LIMIT) {
            read_all(first_byte, &bytes[header_len..total_len]);
        }
        if let Some((first_byte, body)) = bytes.split_first() {
            read_all(*first_byte, body);
        }
    }

    #[test]
    fn a_changed_byte_never_panics(packet in prop::sample::select(PACKETS), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = hex(packet);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        read_all(bytes[0], &bytes[2..]);
    }

    #[test]
    fn arbitrary_properties_never_panic(version in strategies::version(), properties in vec(any::<u8>(), 0..60)) {
        let mut body = vec![0, 1, b'a', properties.len() as u8];
        body.extend(&properties);
        let _ = packet::publish::decode(version, 0x30, &body);
        let _ = headwater_mqtt::Properties::stored(&properties);
    }
}

/// One well-formed packet of each kind, all with a header of two bytes.
const PACKETS: &[&str] = &[
    "10 27 0004 4d515454 05 ee 000a 05 11 00000e10 0001 70 05 18 00000005 0001 77 0002 6869 0001 75 0002 7077",
    "32 15 0003 612f62 0102 0c 02 0000003c 26 0001 6b 0001 76 68",
    "40 08 0001 10 04 1f 0001 61",
    "50 08 0001 10 04 1f 0001 61",
    "62 08 0001 92 04 1f 0001 61",
    "70 08 0001 92 04 1f 0001 61",
    "82 0d 0001 02 0b 05 0001 61 01 0001 62 2e",
    "a2 09 0001 00 0001 61 0001 62",
    "c0 00",
    "e0 07 04 05 11 00000000",
    "f0 06 19 04 15 0001 61",
];

#[test]
fn a_packet_cut_at_any_length_never_panics_and_the_header_notices() {
    for packet in PACKETS {
        let bytes = hex(packet);
        for len in 0..bytes.len() {
            let seen = frame::next(&bytes[..len], NO_LIMIT);
            assert!(
                matches!(seen, Ok(Frame::Incomplete { .. })),
                "{packet} cut to {len}: {seen:?}"
            );
            if len >= 2 {
                read_all(bytes[0], &bytes[2..len]);
            }
        }
    }
}

#[test]
fn the_packets_that_are_cut_and_changed_are_well_formed() {
    for packet in PACKETS {
        let bytes = hex(packet);
        assert_eq!(usize::from(bytes[1]), bytes.len() - 2, "{packet}");
        let is_connect = packet::connect::decode(bytes[0], &bytes[2..]).is_ok();
        assert!(is_connect || read_all(bytes[0], &bytes[2..]), "{packet}");
    }
}

/// A body may end early after the identifier or reason of an acknowledgement or DISCONNECT, after any filter, and
/// anywhere in a payload.
#[test]
fn a_body_that_ends_inside_a_field_is_refused() {
    for (packet, first_valid) in [(1, 20), (2, 2), (6, 9), (7, 6), (9, 0)] {
        let bytes = hex(PACKETS[packet]);
        let body = &bytes[2..];
        for len in 0..first_valid {
            let seen = packet::decode(Version::V5, bytes[0], &body[..len]);
            assert!(seen.is_err(), "{} cut to {len}: {seen:?}", PACKETS[packet]);
        }
        assert!(
            packet::decode(Version::V5, bytes[0], &body[..first_valid]).is_ok(),
            "{}",
            PACKETS[packet]
        );
    }
}
