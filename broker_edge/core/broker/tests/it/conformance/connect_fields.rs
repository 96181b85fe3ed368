//! The flags of CONNECT against the fields of its payload.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, Will, refused};
use crate::conformance::wire::{BOTH, packet, properties, text};

/// A CONNECT with these flags, and exactly these fields after its client id.
fn with_flags(v: u8, flags: u8, fields: &[&[u8]]) -> Vec<u8> {
    let head = [
        text("MQTT"),
        vec![v, flags, 0, 60],
        properties(v, &[]),
        text(fresh("f")),
    ]
    .concat();
    packet(0x10, &[&head, &fields.concat()])
}

/// v5: 3.1.2-9 3.1.3-1 3.1.2-11 3.1.2-13 3.1.2-16 3.1.2-18 3.1.2-17 3.1.2-19 3.1.3-12
/// v311: 3.1.2-9 3.1.3-1 3.1.2-11 3.1.2-13 3.1.2-15 3.1.2-18 3.1.2-20 3.1.2-19 3.1.2-21 3.1.2-22
#[test]
fn the_fields_are_those_that_the_flags_announce() {
    for v in BOTH {
        let will = properties(v, &[]);
        let (topic, user, secret) = (text("t"), text("user"), text("secret"));
        let cases: &[(&str, u8, &[&[u8]])] = &[
            ("a will without topic and payload", 0x06, &[]),
            ("a will without a payload", 0x06, &[&will, &topic]),
            (
                "a will with a cut payload",
                0x06,
                &[&will, &topic, &[0, 9, 1]],
            ),
            ("a will QoS 1 without a will", 0x0a, &[]),
            ("a will QoS 2 without a will", 0x12, &[]),
            ("a will QoS 3 without a will", 0x1a, &[]),
            ("a will retain without a will", 0x22, &[]),
            ("a will that no flag announces", 0x02, &[&topic, &text("x")]),
            ("a name that no flag announces", 0x02, &[&user]),
            ("a password that no flag announces", 0x82, &[&user, &secret]),
            ("no name", 0x82, &[]),
            ("no password", 0xc2, &[&user]),
            ("a cut password", 0xc2, &[&user, &[0, 3, b'a']]),
        ];
        for (case, flags, fields) in cases {
            eprintln!("MQTT {v}: {case}");
            refused(v, &with_flags(v, *flags, fields), 0x81);
        }
    }
    eprintln!("MQTT 4: a password without a name");
    refused(4, &with_flags(4, 0x42, &[&text("secret")]), 0x81);
}

/// v5: 3.1.2-12
/// v311: 3.1.2-14
#[test]
fn a_will_has_qos_0_1_or_2() {
    for v in BOTH {
        let mut connect = Connect::new(v, &fresh("qos"));
        connect.will = Some(Will::new("t", "x"));
        connect.extra_flags = 0x18;
        connect.refused(0x81);
    }
}

/// v5: 3.1.2-19
#[test]
fn in_5_a_password_may_stand_alone() {
    let mut connect = Connect::new(5, &fresh("alone"));
    connect.password = Some(vec![0, 1, 255]);
    let (_, connack) = connect.answer();
    // Accepted without authentication, and with it refused for its contents, never for its form.
    assert!(
        matches!(connack.reason(), 0 | 0x86 | 0x87),
        "{connack:02x?}"
    );
}

/// v5: 3.1.4-1
/// v311: 3.1.4-1 3.2.2-6
#[test]
fn a_connect_that_ends_early_or_late_is_refused() {
    for v in BOTH {
        let whole = Connect::new(v, &fresh("whole")).encode();
        let body = &whole[2..];
        for cut in [9, 10, body.len() - 1] {
            refused(v, &packet(0x10, &[&body[..cut]]), 0x81);
        }
        refused(v, &packet(0x10, &[body, &[0]]), 0x81);
    }
}

/// v5: 3.1.3-4 3.1.3-8
/// v311: 3.1.3-4
#[test]
fn a_client_id_is_text() {
    for v in BOTH {
        for id in [&[b'a', 0xff][..], &[b'a', 0], &[0xed, 0xa0, 0x80]] {
            let body = [
                text("MQTT"),
                vec![v, 2, 0, 60],
                properties(v, &[]),
                text(id),
            ]
            .concat();
            refused(v, &packet(0x10, &[&body]), 0x85);
        }
    }
}

/// v5: 3.1.3-11 3.1.3-12
/// v311: 3.1.3-10 3.1.3-11
#[test]
fn a_will_topic_and_a_user_name_are_text() {
    for v in BOTH {
        let mut connect = Connect::new(v, &fresh("text"));
        connect.username = Some(vec![0xc0, 0x80]);
        connect.refused(0x81);
        connect.username = None;
        connect.will = Some(Will {
            topic: vec![b'a', 0xff],
            ..Will::new("", "")
        });
        connect.refused(0x81);
    }
}

/// v5: 4.7.0-1 4.7.3-1
/// v311: 4.7.1-1 4.7.3-1
#[test]
fn a_will_topic_is_a_topic_name() {
    for v in BOTH {
        for topic in ["", "a/#", "+/b", "#"] {
            let mut connect = Connect::new(v, &fresh("name"));
            connect.will = Some(Will::new(topic, "x"));
            let (peer, connack) = if v == 5 {
                let (peer, connack) = connect.answer();
                (peer, Some(connack))
            } else {
                let mut peer =
                    crate::conformance::wire::Peer::open(crate::conformance::address(), v);
                peer.send(&connect.encode());
                (peer, None)
            };
            if let Some(connack) = connack {
                assert!(
                    matches!(connack.reason(), 0x81 | 0x82 | 0x90),
                    "{topic}: {connack:02x?}"
                );
            }
            let mut peer = peer;
            peer.closed();
        }
    }
}

/// v5: 3.1.4-1
#[test]
fn properties_of_a_will_are_those_of_a_will_once_and_in_range() {
    let wrong: &[(&[u8], u8)] = &[
        (&[0x01, 2], 0x82),
        (&[0x01, 0, 0x01, 0], 0x82),
        (&[0x18, 0, 0, 0, 1, 0x18, 0, 0, 0, 1], 0x82),
        (&[0x02, 0, 0, 0, 1, 0x02, 0, 0, 0, 1], 0x82),
        (&[0x03, 0, 0, 0x03, 0, 0], 0x82),
        (&[0x08, 0, 1, b'r', 0x08, 0, 1, b'r'], 0x82),
        (&[0x09, 0, 0, 0x09, 0, 0], 0x82),
        (&[0x18, 0, 0, 0], 0x81),
    ];
    for (bytes, reason) in wrong {
        let mut connect = Connect::new(5, &fresh("will"));
        connect.will = Some(Will {
            properties: bytes.to_vec(),
            ..Will::new("t", "x")
        });
        connect.refused(*reason);
    }
}
