//! The parts of every packet: first byte, length, packet identifier, properties.

use crate::conformance::fresh;
use crate::conformance::talk::{connect, publish_0};
use crate::conformance::wire::{
    BOTH, PUBACK, SUBACK, number, packet, properties, short, string, text, user,
};

/// v5: 2.1.3-1 3.6.1-1 3.8.1-1 3.10.1-1
/// v311: 2.2.2-1 2.2.2-2 3.6.1-1 3.8.1-1 3.10.1-1
#[test]
fn reserved_bits_of_the_first_byte_are_as_listed() {
    for v in BOTH {
        for (kind, wanted) in [
            (4, 0),
            (5, 0),
            (6, 2),
            (7, 0),
            (8, 2),
            (10, 2),
            (12, 0),
            (14, 0),
        ] {
            for flags in (0..16).filter(|flags| *flags != wanted) {
                let mut peer = connect(v, &fresh("bits"));
                let body: &[u8] = match kind {
                    8 => &[0, 1, 0, 1, b'a', 0],
                    10 => &[0, 1, 0, 1, b'a'],
                    12 | 14 => &[],
                    _ => &[0, 1],
                };
                peer.send(&packet(kind << 4 | flags, &[body]));
                peer.closed_with(0x81);
            }
        }
    }
}

/// v5: 4.13.1-1
/// v311: 4.8.0-1
#[test]
fn what_only_a_server_sends_is_a_protocol_error() {
    for v in BOTH {
        for bytes in [
            vec![0x00, 0],
            vec![0x20, 2, 0, 0],
            packet(0x90, &[&[0, 1], &properties(v, &[]), &[0]]),
            packet(0xb0, &[&[0, 1], &properties(v, &[]), &[0]]),
            vec![0xd0, 0],
        ] {
            let mut peer = connect(v, &fresh("server"));
            peer.send(&bytes);
            peer.closed_with(0x82);
        }
    }
}

/// v311: 4.8.0-1 2.2.2-2
#[test]
fn the_packet_type_15_does_not_exist_in_3_1_1() {
    let mut peer = connect(4, &fresh("auth"));
    peer.send(&[0xf0, 0]);
    peer.closed();
}

/// v5: 1.5.5-1
/// v311: 4.8.0-1
#[test]
fn a_remaining_length_of_five_bytes_is_malformed() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("length"));
        peer.send(&[0xc0, 0x80, 0x80, 0x80, 0x80, 0x01]);
        peer.closed_with(0x81);
    }
}

/// v5: 1.5.5-1
#[test]
fn a_padded_length_of_properties_is_malformed() {
    let mut peer = connect(5, &fresh("padded"));
    peer.send(&packet(0x82, &[&[0, 1], &[0x80, 0x00], &text("a"), &[0]]));
    peer.closed_with(0x81);
    let mut peer = connect(5, &fresh("padded"));
    peer.send(&packet(
        0x82,
        &[&[0, 1], &[3, 0x0b, 0x81, 0x00], &text("a"), &[0]],
    ));
    peer.closed_with(0x81);
}

/// v5: 2.2.1-3
/// v311: 2.3.1-1
#[test]
fn a_packet_identifier_is_not_zero() {
    for v in BOTH {
        let none = properties(v, &[]);
        for (bytes, reasons) in [
            (
                packet(0x32, &[&text("t"), &[0, 0], &none, b"x"]),
                [0x81, 0x82],
            ),
            (
                packet(0x34, &[&text("t"), &[0, 0], &none, b"x"]),
                [0x81, 0x82],
            ),
            (
                packet(0x82, &[&[0, 0], &none, &text("t"), &[0]]),
                [0x81, 0x82],
            ),
            (packet(0xa2, &[&[0, 0], &none, &text("t")]), [0x81, 0x82]),
            (packet(0x62, &[&[0, 0]]), [0x81, 0x82]),
        ] {
            let mut peer = connect(v, &fresh("zero"));
            peer.send(&bytes);
            if v == 5 {
                let reason = peer.wait_for(crate::conformance::wire::DISCONNECT).reason();
                assert!(reasons.contains(&reason), "{reason:#04x}");
            }
            peer.closed();
        }
    }
}

/// v5: 2.2.1-2
/// v311: 2.3.1-5
#[test]
fn a_qos_0_publish_has_no_packet_identifier_in_either_direction() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("none"));
        peer.subscribe(&topic, 0);
        peer.send(&publish_0(v, &topic, "\u{1}\u{2}payload"));
        assert_eq!(peer.message().payload_text(), "\u{1}\u{2}payload");
    }
}

/// v5: 2.2.1-5 2.2.1-6 3.8.4-2 3.10.4-5
/// v311: 2.3.1-6 2.3.1-7 3.8.4-2 3.10.4-4
#[test]
fn answers_carry_the_identifier_of_what_they_answer() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("ids"));
        for id in [1, 2, 255, 256, 0x7fff, 0xffff] {
            let number = u16::to_be_bytes(id);
            let none = properties(v, &[]);
            peer.send(&packet(0x32, &[&text("ids"), &number, &none, b"x"]));
            assert_eq!(peer.wait_for(PUBACK).id(), id);
            peer.send(&packet(0x34, &[&text("ids"), &number, &none, b"x"]));
            assert_eq!(peer.wait_for(crate::conformance::wire::PUBREC).id(), id);
            peer.send(&packet(0x62, &[&number]));
            assert_eq!(peer.wait_for(crate::conformance::wire::PUBCOMP).id(), id);
            peer.send(&packet(0x82, &[&number, &none, &text("ids/not"), &[0]]));
            assert_eq!(peer.wait_for(SUBACK).id(), id);
            peer.send(&packet(0xa2, &[&number, &none, &text("ids/not")]));
            assert_eq!(peer.wait_for(crate::conformance::wire::UNSUBACK).id(), id);
        }
    }
}

/// v5: 2.2.2-1
#[test]
fn what_the_broker_sends_without_properties_says_so_with_a_length_of_zero() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("empty"));
    let suback = peer.subscribe_all(&[], &[(&topic, 0)]);
    assert_eq!(suback.body[2], 0);
    peer.send(&publish_0(5, &topic, "x"));
    let message = peer.message();
    assert_eq!(message.body.len(), 2 + topic.len() + 1 + 1);
    assert_eq!(peer.unsubscribe(&[&topic]).body[2], 0);
}

/// v5: 4.13.1-1 2.2.2-1
#[test]
fn properties_stand_in_their_packets_only_and_once() {
    let in_publish: &[(&[u8], &[u8])] = &[
        (&number(0x11, 1), &[0x81, 0x82]),
        (&[0x17, 1], &[0x81, 0x82]),
        (&string(0x1f, "why"), &[0x81, 0x82]),
        (&[0x01, 0, 0x01, 0], &[0x82]),
        (&[0x01, 2], &[0x81, 0x82, 0x99]),
        (&[number(0x02, 1), number(0x02, 1)].concat(), &[0x82]),
        (&[string(0x03, "a"), string(0x03, "a")].concat(), &[0x82]),
        (&[string(0x08, "a"), string(0x08, "a")].concat(), &[0x82]),
        (&[string(0x09, "a"), string(0x09, "a")].concat(), &[0x82]),
        (&[short(0x23, 1), short(0x23, 1)].concat(), &[0x82]),
        (&[0x2b, 0], &[0x81]),
        (&[0x02, 0, 0], &[0x81]),
        (&[0x26, 0, 1], &[0x81]),
    ];
    for (list, reasons) in in_publish {
        let mut peer = connect(5, &fresh("publish"));
        peer.send_publish(2, 1, "t", &[list], b"x");
        let reason = peer.wait_for(crate::conformance::wire::DISCONNECT).reason();
        assert!(reasons.contains(&reason), "{list:02x?}: {reason:#04x}");
        peer.closed();
    }
    let in_subscribe: &[(&[u8], &[u8])] = &[
        (&string(0x03, "a"), &[0x81, 0x82]),
        (&[0x0b, 1, 0x0b, 1], &[0x82]),
        (&[0x0b, 0], &[0x82]),
        (&string(0x1f, "why"), &[0x81, 0x82]),
    ];
    for (list, reasons) in in_subscribe {
        let mut peer = connect(5, &fresh("subscribe"));
        peer.send(&packet(
            0x82,
            &[&[0, 1], &properties(5, &[list]), &text("t"), &[0]],
        ));
        let reason = peer.wait_for(crate::conformance::wire::DISCONNECT).reason();
        assert!(reasons.contains(&reason), "{list:02x?}: {reason:#04x}");
        peer.closed();
    }
}

/// v5: 4.13.1-1
#[test]
fn properties_of_acknowledgements_are_checked() {
    for (list, reasons) in [
        (number(0x11, 1), [0x81, 0x82]),
        (
            [string(0x1f, "a"), string(0x1f, "a")].concat(),
            [0x82, 0x82],
        ),
        (vec![0x26, 0, 1, b'a'], [0x81, 0x81]),
    ] {
        for first in [0x40, 0x50, 0x62, 0x70] {
            let mut peer = connect(5, &fresh("ack"));
            peer.send(&packet(first, &[&[0, 1, 0], &properties(5, &[&list])]));
            let reason = peer.wait_for(crate::conformance::wire::DISCONNECT).reason();
            assert!(
                reasons.contains(&reason),
                "{first:02x} {list:02x?}: {reason:#04x}"
            );
            peer.closed();
        }
    }
    // Allowed properties are accepted.
    let mut peer = connect(5, &fresh("ack"));
    peer.send(&packet(
        0x40,
        &[
            &[0, 1, 0],
            &properties(5, &[&string(0x1f, "fine"), &user("a", "b")]),
        ],
    ));
    peer.silent();
}

/// v5: 4.13.1-1 3.8.3-2 3.10.3-2
/// v311: 4.8.0-1 3.8.3-3 3.10.3-2
#[test]
fn a_packet_that_ends_inside_a_field_is_malformed() {
    for v in BOTH {
        let none = properties(v, &[]);
        for bytes in [
            packet(0x30, &[&[0, 5, b't']]),
            packet(0x30, &[&[0]]),
            packet(0x32, &[&text("t"), &[0]]),
            packet(0x40, &[&[0]]),
            packet(0x62, &[]),
            packet(0x82, &[&[0, 1], &none, &text("t")]),
            packet(0x82, &[&[0, 1], &none, &[0, 9, b't', 0]]),
            packet(0xa2, &[&[0, 1], &none, &[0, 9, b't']]),
            packet(0x82, &[&[0]]),
        ] {
            let mut peer = connect(v, &fresh("cut"));
            peer.send(&bytes);
            peer.closed_with(0x81);
        }
        for bytes in [
            packet(0x82, &[&[0, 1], &none]),
            packet(0xa2, &[&[0, 1], &none]),
        ] {
            let mut peer = connect(v, &fresh("none"));
            peer.send(&bytes);
            peer.closed_with(0x82);
        }
        let mut peer = connect(v, &fresh("ping"));
        peer.send(&[0xc0, 1, 0]);
        peer.closed_with(0x81);
    }
}

/// v311: 4.8.0-2
#[test]
fn a_mistake_costs_its_connection_and_no_other() {
    for v in BOTH {
        let mut other = connect(v, &fresh("other"));
        let mut peer = connect(v, &fresh("mistake"));
        peer.send(&[0x36, 0]);
        peer.closed_with(0x81);
        other.silent();
    }
}
