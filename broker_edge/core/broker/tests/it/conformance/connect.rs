//! CONNECT and CONNACK: what is accepted, what is refused, and with which code.

use crate::conformance::talk::{Connect, Will, connect, publish_0, refused};
use crate::conformance::wire::{
    ALL, BOTH, CONNACK, Peer, number, packet, properties, short, string, text,
};
use crate::conformance::{address, fresh};

/// A CONNECT without properties, from its protocol name on.
fn raw(name: &[u8], level: u8, flags: u8, version: u8) -> Vec<u8> {
    packet(
        0x10,
        &[
            &text(name),
            &[level, flags, 0, 60],
            &properties(version, &[]),
            &text(fresh("raw")),
        ],
    )
}

/// v5: 3.1.0-1 3.2.0-1 3.14.0-1
/// v311: 3.1.0-1 3.2.0-1
#[test]
fn whatever_comes_before_a_connect_ends_the_connection_without_an_answer() {
    for first in [
        publish_0(4, "early", "x"),
        vec![0xc0, 0],
        vec![0xe0, 0],
        vec![0x20, 2, 0, 0],
        vec![0x82, 6, 0, 1, 0, 1, b'a', 0],
        vec![0xf0, 0],
        vec![0x00, 0],
    ] {
        let mut peer = Peer::open(address(), 5);
        peer.send(&first);
        peer.closed();
    }
}

/// v5: 3.1.0-2
/// v311: 3.1.0-2
#[test]
fn a_second_connect_is_a_protocol_error() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("twice"));
        peer.send(&Connect::new(v, &fresh("twice")).encode());
        peer.closed_with(0x82);
    }
}

/// v5: 3.2.0-2
/// v311: 3.1.4-4
#[test]
fn a_good_connect_gets_one_connack_with_success() {
    for v in BOTH {
        let (mut peer, connack) = Connect::new(v, &fresh("once")).answer();
        assert_eq!(connack.reason(), 0);
        peer.silent();
        peer.send(&[0xe0, 0]);
        peer.closed();
    }
}

/// v5: 3.1.4-5 3.2.2-1 3.2.2-2 3.2.2-8
/// v311: 3.2.2-1
#[test]
fn the_connack_of_a_clean_start_has_no_flags() {
    for v in BOTH {
        let (_, connack) = Connect::new(v, &fresh("flags")).answer();
        assert_eq!(connack.body[..2], [0, 0]);
    }
}

/// v5: 3.1.2-1 4.13.1-1
/// v311: 3.1.2-1
#[test]
fn a_protocol_that_is_not_mqtt_is_not_served() {
    for name in ["HTTP", "mqtt", "MQTTX", "", "MQIsdp"] {
        let mut peer = Peer::open(address(), 5);
        peer.send(&raw(name.as_bytes(), 5, 2, 5));
        if let Some(answer) = peer.next() {
            assert_eq!((answer.kind(), answer.reason()), (CONNACK, 0x84), "{name}");
            peer.closed();
        }
    }
}

/// v5: 3.1.2-2 3.2.2-7
/// v311: 3.1.2-2 3.2.2-4 3.2.2-5
#[test]
fn an_unknown_level_is_refused_by_name_and_the_connection_closed() {
    for (level, code) in [(0, 0x84), (3, 1), (6, 0x84), (127, 0x84), (255, 0x84)] {
        let mut peer = Peer::open(address(), if code == 1 { 4 } else { 5 });
        peer.send(&raw(b"MQTT", level, 2, 4));
        let connack = peer.next().expect("a CONNACK");
        assert_eq!(
            (connack.kind(), connack.body[0], connack.reason()),
            (CONNACK, 0, code),
            "level {level}"
        );
        peer.closed();
    }
}

/// v5: 3.1.2-3 3.1.4-1
/// v311: 3.1.2-3
#[test]
fn the_reserved_connect_flag_must_be_zero() {
    for v in BOTH {
        refused(v, &raw(b"MQTT", v, 3, v), 0x81);
    }
}

/// v5: 2.1.3-1
/// v311: 2.2.2-1
#[test]
fn the_fixed_header_of_connect_has_no_flags() {
    for v in BOTH {
        for flags in [1, 2, 4, 8, 15] {
            let mut bytes = Connect::new(v, &fresh("header")).encode();
            bytes[0] |= flags;
            let mut peer = Peer::open(address(), v);
            peer.send(&bytes);
            peer.closed();
        }
    }
}

/// v5: 3.1.4-6 3.2.2-6 4.13.2-1
/// v311: 3.1.4-5
#[test]
fn what_follows_a_refused_connect_is_not_looked_at() {
    for v in BOTH {
        let topic = fresh("after");
        let mut watcher = connect(v, &fresh("watcher"));
        watcher.subscribe(&topic, 0);
        let mut peer = Peer::open(address(), v);
        peer.send(&[raw(b"MQTT", v, 3, v), publish_0(v, &topic, "x")].concat());
        while peer.next().is_some() {}
        watcher.silent();
    }
}

/// v5: 3.1.3-6 3.1.3-7 3.2.2-16 3.2.2-3
/// v311: 3.1.3-6
#[test]
fn an_empty_client_id_gets_one_of_its_own() {
    for v in BOTH {
        let mut connect = Connect::new(v, "");
        let (first, a) = connect.answer();
        let (mut second, b) = connect.answer();
        assert_eq!((a.reason(), b.reason()), (0, 0));
        second.silent();
        drop(first);
        if v == 5 {
            let (a, b) = (
                a.property_text(0x12).unwrap(),
                b.property_text(0x12).unwrap(),
            );
            assert!(!a.is_empty() && a != b, "{a} {b}");
            connect.clean = false;
            let (_, c) = connect.with(&number(0x11, 1)).answer();
            assert_eq!(c.body[..2], [0, 0]);
            assert!(c.property_text(0x12).is_some());
        }
    }
}

/// v311: 3.1.3-8 3.1.3-9 3.2.2-5
#[test]
fn an_empty_client_id_without_a_clean_session_is_rejected_by_3_1_1() {
    let mut connect = Connect::new(4, "");
    connect.clean = false;
    let (mut peer, connack) = connect.answer();
    assert_eq!(connack.body, [0, 2]);
    peer.closed();
}

/// v5: 3.1.3-5 3.1.3-2 3.1.3-3
/// v311: 3.1.3-5 3.1.3-2 3.1.3-3
#[test]
fn every_client_id_that_the_standard_names_is_allowed() {
    for v in BOTH {
        for id in [
            "a",
            "0123456789ABCDEFGHIJKLM",
            "NOPQRSTUVWXYZabcdefghij",
            "klmnopqrstuvwxyz",
        ] {
            let (mut peer, connack) = Connect::new(v, id).answer();
            assert_eq!(connack.reason(), 0, "{id}");
            assert_eq!(
                connack.property(0x12),
                None,
                "only an assigned id is returned"
            );
            peer.silent();
            peer.goodbye();
        }
    }
}

/// v5: 3.1.4-3 3.1.4-4 4.13.2-1
/// v311: 3.1.4-2 3.1.4-3
#[test]
fn a_second_connection_takes_the_first_ones_place() {
    for v in BOTH {
        let id = fresh("taken");
        let mut first = connect(v, &id);
        let (mut second, _) = Connect::new(v, &id).enter();
        first.closed_with(0x8e);
        second.silent();
    }
}

/// v5: 3.2.2-22
#[test]
fn the_connack_names_no_limit_that_does_not_hold() {
    let (_, connack) = Connect::new(5, &fresh("limits")).answer();
    let ids: Vec<u8> = connack.properties().iter().map(|(id, _)| *id).collect();
    assert!(
        !ids.contains(&0x24),
        "QoS 2 is served, so there is no maximum QoS"
    );
    assert!(
        !ids.contains(&0x25) || connack.property(0x25) == Some(vec![1]),
        "retain is served"
    );
    assert!(!ids.contains(&0x13), "the keep alive of the client holds");
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), ids.len(), "no property twice");
}

/// v5: 3.1.2-28
#[test]
fn response_information_is_not_sent_unasked() {
    for asked in [None, Some(0)] {
        let mut connect = Connect::new(5, &fresh("response"));
        if let Some(value) = asked {
            connect = connect.with(&[0x19, value]);
        }
        let (_, connack) = connect.answer();
        assert_eq!(connack.property(0x1a), None);
    }
}

/// v5: 3.1.4-1 2.2.2-1
#[test]
fn properties_of_connect_are_those_of_connect_once_and_in_range() {
    let wrong: &[(&[u8], u8)] = &[
        (&[0x21, 0, 0], 0x82),
        (&[0x27, 0, 0, 0, 0], 0x82),
        (&[0x17, 2], 0x82),
        (&[0x19, 2], 0x82),
        (&[0x11, 0, 0, 0, 1, 0x11, 0, 0, 0, 1], 0x82),
        (&[0x21, 0, 1, 0x21, 0, 1], 0x82),
        (&[0x22, 0, 1, 0x22, 0, 1], 0x82),
        (&[0x27, 0, 0, 1, 0, 0x27, 0, 0, 1, 0], 0x82),
        (&[0x17, 1, 0x17, 1], 0x82),
        (&[0x19, 1, 0x19, 1], 0x82),
        (&[0x16, 0, 1, b'x'], 0x82),
        (&[0x7f], 0x81),
        (&[0x00], 0x81),
        (&[0x11, 0, 0, 0], 0x81),
        (&[0x26, 0, 1, b'a'], 0x81),
    ];
    for (bytes, reason) in wrong {
        Connect::new(5, &fresh("wrong"))
            .with(bytes)
            .refused(*reason);
    }
    // A property of another packet: malformed by 2.2.2.2, which like every misuse of a property is also a protocol error.
    for other in [&[0x01, 0][..], &[0x23, 0, 1], &[0x13, 0, 1], &[0x24, 1]] {
        let (mut peer, connack) = Connect::new(5, &fresh("other")).with(other).answer();
        assert!(matches!(connack.reason(), 0x81 | 0x82), "{connack:02x?}");
        peer.closed();
    }
}

/// v5: 3.1.2-29 3.2.2-19 3.2.2-20
#[test]
fn a_connack_fits_the_packet_size_of_its_client() {
    let (_, connack) = Connect::new(5, &fresh("small"))
        .with(&number(0x27, 64))
        .answer();
    assert!(connack.body.len() + 2 <= 64);
    assert_eq!(
        (connack.property(0x1f), connack.users()),
        (None, Vec::new())
    );
}

/// v5: 4.12.0-6
#[test]
fn without_a_method_there_is_no_authentication_exchange() {
    let (mut peer, connack) = Connect::new(5, &fresh("plain")).answer();
    assert_eq!(
        (connack.property(0x15), connack.property(0x16)),
        (None, None)
    );
    peer.silent();
}

/// v5: 4.12.0-1
#[test]
fn an_unknown_authentication_method_is_refused() {
    let (mut peer, connack) = Connect::new(5, &fresh("method"))
        .with(&string(0x15, "no-such-method"))
        .answer();
    assert!(matches!(connack.reason(), 0x8c | 0x87), "{connack:02x?}");
    peer.closed();
}

/// v5: 3.2.2-12 3.2.2-13
#[test]
fn every_qos_and_retain_of_a_will_is_served() {
    for qos in 0..3 {
        for retain in [false, true] {
            let mut connect = Connect::new(5, &fresh("will"));
            connect.will = Some(Will {
                qos,
                retain,
                ..Will::new(&fresh("will/"), "")
            });
            let (peer, _) = connect.enter();
            peer.goodbye();
        }
    }
}

/// v5: 4.2-1
/// v311: 7.0.0-1
#[test]
fn packets_arrive_whole_whatever_the_pieces_they_came_in() {
    for v in ALL {
        let mut peer = Peer::open(address(), v);
        let all = [Connect::new(v, &fresh("bytes")).encode(), vec![0xc0, 0]].concat();
        for byte in &all[..all.len() - 1] {
            peer.send(&[*byte]);
        }
        peer.send(&[0, 0xc0, 0]);
        for kind in [2, 13, 13] {
            assert_eq!(peer.next().map(|packet| packet.kind()), Some(kind));
        }
    }
}

/// v5: 3.2.2-17 3.2.2-18
#[test]
fn the_topic_alias_maximum_of_the_connack_is_the_one_that_holds() {
    let (mut peer, connack) = Connect::new(5, &fresh("alias")).answer();
    let maximum = connack
        .property(0x22)
        .map_or(0, |value| u16::from_be_bytes([value[0], value[1]]));
    peer.send_publish(0, 0, &fresh("t"), &[&short(0x23, maximum + 1)], b"x");
    peer.closed_with(0x94);
}
