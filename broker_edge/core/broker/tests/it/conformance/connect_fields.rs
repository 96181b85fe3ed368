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

/// v5: 3.1.2-9 3.1.3-1
/// v311: 3.1.2-9 3.1.3-1
#[test]
fn a_will_flag_needs_topic_and_payload() {
    for v in BOTH {
        let will = properties(v, &[]);
        refused(v, &with_flags(v, 6, &[]), 0x81);
        refused(v, &with_flags(v, 6, &[&will, &text("t")]), 0x81);
        refused(v, &with_flags(v, 6, &[&will, &text("t"), &[0, 9, 1]]), 0x81);
    }
}

/// v5: 3.1.2-11 3.1.2-13
/// v311: 3.1.2-11 3.1.2-13 3.1.2-15
#[test]
fn without_a_will_there_is_no_will_qos_and_no_will_retain() {
    for v in BOTH {
        for flags in [0x0a, 0x12, 0x1a, 0x22] {
            refused(v, &with_flags(v, flags, &[]), 0x81);
        }
        // A will that no flag announces.
        refused(v, &with_flags(v, 2, &[&text("t"), &text("x")]), 0x81);
    }
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

/// v5: 3.1.2-16 3.1.2-18
/// v311: 3.1.2-18 3.1.2-20
#[test]
fn a_name_or_password_that_no_flag_announces_is_refused() {
    for v in BOTH {
        refused(v, &with_flags(v, 2, &[&text("user")]), 0x81);
        refused(
            v,
            &with_flags(v, 0x82, &[&text("user"), &text("secret")]),
            0x81,
        );
    }
}

/// v5: 3.1.2-17 3.1.2-19 3.1.3-12
/// v311: 3.1.2-19 3.1.2-21
#[test]
fn a_name_or_password_that_is_announced_must_be_there() {
    for v in BOTH {
        refused(v, &with_flags(v, 0x82, &[]), 0x81);
        refused(v, &with_flags(v, 0xc2, &[&text("user")]), 0x81);
        refused(
            v,
            &with_flags(v, 0xc2, &[&text("user"), &[0, 3, b'a']]),
            0x81,
        );
    }
}

/// v311: 3.1.2-22
#[test]
fn in_3_1_1_a_password_needs_a_user_name() {
    refused(4, &with_flags(4, 0x42, &[&text("secret")]), 0x81);
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
