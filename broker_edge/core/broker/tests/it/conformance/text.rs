//! Strings: UTF-8 without the null character and surrogates, otherwise unchanged.

use crate::conformance::fresh;
use crate::conformance::talk::connect;
use crate::conformance::wire::{BOTH, PUBACK, packet, properties, text};

/// Bytes that are not text: cut, overlong, surrogates, out of range, null.
const NOT_TEXT: &[&[u8]] = &[
    &[0xff],
    &[0x80],
    &[0xc3],
    &[0xc0, 0x80],
    &[0xe0, 0x80, 0xaf],
    &[0xed, 0xa0, 0x80],
    &[0xed, 0xbf, 0xbf],
    &[0xf4, 0x90, 0x80, 0x80],
    &[0xf8, 0x88, 0x80, 0x80, 0x80],
    &[b'a', 0x00, b'b'],
];

/// v5: 1.5.4-1 1.5.4-2 3.3.2-1 4.7.3-2
/// v311: 1.5.3-1 1.5.3-2 3.3.2-1 4.7.3-2
#[test]
fn a_topic_name_is_text() {
    for v in BOTH {
        for bad in NOT_TEXT {
            let mut peer = connect(v, &fresh("text"));
            peer.send(&packet(0x30, &[&text(bad), &properties(v, &[]), b"x"]));
            peer.closed_with(0x81);
        }
    }
}

/// v5: 1.5.4-1 1.5.4-2 3.8.3-1 3.10.3-1 4.7.3-2
/// v311: 1.5.3-1 1.5.3-2 3.8.3-1 3.10.3-1 4.7.3-2
#[test]
fn a_topic_filter_is_text() {
    for v in BOTH {
        for bad in NOT_TEXT {
            let mut peer = connect(v, &fresh("text"));
            peer.send(&packet(
                0x82,
                &[&[0, 1], &properties(v, &[]), &text(bad), &[0]],
            ));
            peer.closed_with(0x81);
            let mut peer = connect(v, &fresh("text"));
            peer.send(&packet(0xa2, &[&[0, 1], &properties(v, &[]), &text(bad)]));
            peer.closed_with(0x81);
        }
    }
}

/// v5: 1.5.7-1 3.3.2-13 3.3.2-19
#[test]
fn string_properties_are_text() {
    for bad in NOT_TEXT {
        for list in [
            [vec![0x26], text(bad), text("v")].concat(),
            [vec![0x26], text("k"), text(bad)].concat(),
            [vec![0x03], text(bad)].concat(),
            [vec![0x08], text(bad)].concat(),
        ] {
            let mut peer = connect(5, &fresh("text"));
            peer.send_publish(0, 0, "t", &[&list], b"x");
            peer.closed_with(0x81);
        }
    }
}

/// v5: 1.5.4-3 4.7.3-4
/// v311: 1.5.3-3 4.7.3-4
#[test]
fn a_byte_order_mark_is_a_character_like_any_other() {
    for v in BOTH {
        let topic = fresh("bom");
        let marked = format!("\u{feff}{topic}");
        let mut peer = connect(v, &fresh("bom"));
        peer.subscribe(&marked, 1);
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish(&topic, "without");
        publisher.publish(&marked, "with");
        let message = peer.message();
        assert_eq!(
            (message.topic(), message.payload_text().as_str()),
            (marked, "with")
        );
        peer.silent();
    }
}

/// v5: 4.7.3-3
/// v311: 4.7.3-3
#[test]
fn a_long_topic_is_taken_whole() {
    for v in BOTH {
        let topic = format!("{}{}", fresh("long"), "x".repeat(60_000));
        let mut peer = connect(v, &fresh("long"));
        peer.subscribe(&topic, 0);
        peer.send_publish(2, 9, &topic, &[], b"x");
        assert_eq!(peer.wait_for(PUBACK).id(), 9);
        assert_eq!(peer.message().topic(), topic);
    }
}

#[test]
fn a_payload_is_bytes() {
    let payload: Vec<u8> = (0..=255).collect();
    for v in BOTH {
        let topic = fresh("bytes");
        let mut peer = connect(v, &fresh("bytes"));
        peer.subscribe(&topic, 0);
        peer.send_publish(0, 0, &topic, &[], &payload);
        assert_eq!(peer.message().payload(), payload);
        peer.send_publish(0, 0, &topic, &[], &[]);
        assert!(peer.message().payload().is_empty());
    }
}
