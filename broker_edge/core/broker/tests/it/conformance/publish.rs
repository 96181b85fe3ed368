//! PUBLISH from a client: its flags, its topic, and topic aliases.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect, publish_0};
use crate::conformance::wire::{BOTH, DISCONNECT, PUBACK, PUBREC, packet, properties, short, text};

/// v5: 3.3.1-4
/// v311: 3.3.1-4
#[test]
fn qos_3_is_malformed() {
    for v in BOTH {
        for flags in [0x06, 0x07, 0x0e] {
            let mut peer = connect(v, &fresh("qos"));
            peer.send_publish(flags, 1, "t", &[], b"x");
            peer.closed_with(0x81);
        }
    }
}

/// v5: 3.3.1-2 4.3.1-1
/// v311: 3.3.1-2 4.3.1-1
#[test]
fn dup_is_not_set_on_qos_0() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("dup"));
        peer.send_publish(8, 0, "t", &[], b"x");
        peer.closed_with(0x81);
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("dup"));
        peer.subscribe(&topic, 0);
        // The DUP flag of a publish is not forwarded to subscribers.
        peer.send_publish(0x0a, 3, &topic, &[], b"x");
        let message = peer.message();
        assert_eq!((message.qos(), message.dup()), (0, false));
    }
}

/// v5: 3.3.1-3
/// v311: 3.3.1-3
#[test]
fn the_dup_flag_of_a_publisher_is_not_passed_on() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("dup"));
        peer.subscribe(&topic, 2);
        peer.send_publish(0x0a, 3, &topic, &[], b"1");
        peer.send_publish(0x0c, 4, &topic, &[], b"2");
        assert!(!peer.message().dup());
        assert!(!peer.message().dup());
    }
}

/// v5: 3.3.2-2 4.7.0-1
/// v311: 3.3.2-2 4.7.1-1
#[test]
fn a_topic_name_has_no_wildcard() {
    for v in BOTH {
        for topic in ["#", "+", "a/#", "a/+/b", "a+b", "a#", "/+"] {
            for flags in [0, 2, 4] {
                let mut peer = connect(v, &fresh("wild"));
                peer.send_publish(flags, 1, topic, &[], b"x");
                if v == 5 {
                    let reason = peer.wait_for(DISCONNECT).reason();
                    assert!(
                        matches!(reason, 0x81 | 0x82 | 0x90),
                        "{topic}: {reason:#04x}"
                    );
                }
                peer.closed();
            }
        }
    }
}

/// v5: 4.7.3-1 3.3.2-1
/// v311: 4.7.3-1 3.3.2-1
#[test]
fn a_topic_name_is_not_empty() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("empty"));
        peer.send_publish(2, 1, "", &[], b"x");
        peer.closed_with(0x82);
    }
}

/// v5: 3.3.4-1 4.3.2-4 4.3.3-8
/// v311: 3.3.4-1 4.3.2-2 4.3.3-2
#[test]
fn each_qos_gets_its_answer() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("answers"));
        let topic = fresh("t");
        peer.send_publish(0, 0, &topic, &[], b"x");
        peer.send_publish(2, 1, &topic, &[], b"x");
        peer.send_publish(4, 2, &topic, &[], b"x");
        let first = peer.next().unwrap();
        assert_eq!((first.kind(), first.id()), (PUBACK, 1));
        let second = peer.next().unwrap();
        assert_eq!((second.kind(), second.id()), (PUBREC, 2));
        peer.silent();
    }
}

/// v5: 3.4.2-1 3.5.2-1
#[test]
fn a_publish_that_nobody_waits_for_succeeds() {
    let mut peer = connect(5, &fresh("nobody"));
    peer.send_publish(2, 1, &fresh("t"), &[], b"x");
    assert!(matches!(peer.wait_for(PUBACK).reason(), 0x00 | 0x10));
    peer.send_publish(4, 2, &fresh("t"), &[], b"x");
    assert!(matches!(peer.wait_for(PUBREC).reason(), 0x00 | 0x10));
}

/// v5: 3.4.2-1 3.5.2-1 4.13.2-1
/// v311: 3.3.5-2
#[test]
fn a_publish_that_is_not_allowed_is_answered_in_the_words_of_its_version() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("refused"));
        for flags in [2, 4] {
            peer.send_publish(flags, 7, "$SYS/mine", &[], b"x");
            let answer = peer.next().unwrap();
            assert_eq!(answer.id(), 7);
            if v == 5 {
                assert!(matches!(answer.reason(), 0x87 | 0x90), "{answer:02x?}");
            } else {
                assert_eq!(answer.body.len(), 2);
            }
        }
        peer.send_publish(0, 0, "$SYS/mine", &[], b"x");
        peer.silent();
    }
}

/// v5: 3.3.2-12 3.3.2-7
#[test]
fn every_alias_up_to_the_maximum_stands_for_its_topic() {
    let (mut peer, connack) = Connect::new(5, &fresh("alias")).answer();
    let maximum = connack
        .property(0x22)
        .map_or(0, |value| u16::from_be_bytes([value[0], value[1]]));
    assert!(maximum > 0);
    let topic = fresh("alias/");
    peer.subscribe(&format!("{topic}/#"), 0);
    for alias in 1..=maximum {
        peer.send_publish(
            0,
            0,
            &format!("{topic}/{alias}"),
            &[&short(0x23, alias)],
            b"named",
        );
    }
    for alias in 1..=maximum {
        peer.send_publish(2, alias, "", &[&short(0x23, alias)], b"alias");
    }
    let mut topics = Vec::new();
    for _ in 0..2 * maximum {
        let message = peer.message();
        assert_eq!(
            message.property(0x23),
            None,
            "no alias goes to who allows none"
        );
        topics.push(message.topic());
    }
    for alias in 1..=maximum {
        let wanted = format!("{topic}/{alias}");
        assert_eq!(
            topics.iter().filter(|topic| **topic == wanted).count(),
            2,
            "{wanted}"
        );
    }
    // An alias can be assigned to another topic.
    peer.send_publish(0, 0, &format!("{topic}/new"), &[&short(0x23, 1)], b"named");
    peer.send_publish(0, 0, "", &[&short(0x23, 1)], b"alias");
    assert_eq!(peer.message().topic(), format!("{topic}/new"));
    assert_eq!(peer.message().topic(), format!("{topic}/new"));
}

/// v5: 3.3.2-8 3.3.2-9
#[test]
fn an_alias_is_not_zero_and_not_above_the_maximum() {
    for alias in [0, u16::MAX] {
        let mut peer = connect(5, &fresh("alias"));
        peer.send_publish(0, 0, "t", &[&short(0x23, alias)], b"x");
        peer.closed_with(0x94);
    }
}

/// v5: 3.3.2-7 4.13.1-1
#[test]
fn an_alias_that_was_not_given_on_this_connection_is_a_protocol_error() {
    let id = fresh("alias");
    let lasting = Connect::lasting(5, &id);
    let (mut peer, _) = lasting.enter();
    peer.send_publish(2, 1, &fresh("t"), &[&short(0x23, 1)], b"x");
    peer.wait_for(PUBACK);
    peer.goodbye();
    let (mut peer, present) = lasting.enter();
    assert!(present);
    peer.send_publish(2, 1, "", &[&short(0x23, 1)], b"x");
    let reason = peer.wait_for(DISCONNECT).reason();
    assert_eq!(reason, 0x82, "{reason:#04x}");
    peer.closed();
}

/// v5: 3.1.2-26 3.1.2-27 3.3.2-11
#[test]
fn deliveries_have_no_alias_above_what_the_subscriber_allows() {
    for maximum in [0, 2] {
        let topic = fresh("t/");
        let (mut peer, _) = Connect::new(5, &fresh("alias"))
            .with(&short(0x22, maximum))
            .enter();
        peer.subscribe(&format!("{topic}/#"), 0);
        let mut publisher = connect(5, &fresh("p"));
        for round in 0..3 {
            for n in 0..4 {
                publisher.publish(&format!("{topic}/{n}"), &round.to_string());
            }
        }
        for _ in 0..12 {
            if let Some(alias) = peer.message().property(0x23) {
                let alias = u16::from_be_bytes([alias[0], alias[1]]);
                assert!((1..=maximum).contains(&alias), "{alias} of {maximum}");
            }
        }
    }
}

/// v5: 3.3.4-6
#[test]
fn a_publish_has_no_subscription_identifier() {
    let mut peer = connect(5, &fresh("subid"));
    peer.send_publish(0, 0, "t", &[&[0x0b, 1]], b"x");
    peer.closed_with(0x82);
}

/// v5: 4.3.2-5
/// v311: 4.3.2-2
#[test]
fn a_qos_1_packet_identifier_is_free_again_once_it_was_acknowledged() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("again"));
        peer.subscribe(&topic, 0);
        for flags in [0x02, 0x0a, 0x02] {
            peer.send_publish(flags, 5, &topic, &[], b"x");
            assert_eq!(peer.wait_for(PUBACK).id(), 5);
        }
        assert_eq!(peer.texts(3), ["x"; 3]);
    }
}

/// v5: 4.6.0-5 4.6.0-6
/// v311: 4.6.0-5 4.6.0-6
#[test]
fn messages_of_a_topic_arrive_in_their_order() {
    for v in BOTH {
        for qos in 0..3 {
            let topic = fresh("order");
            let mut peer = connect(v, &fresh("s"));
            peer.subscribe(&topic, qos);
            let mut publisher = connect(v, &fresh("p"));
            let wanted: Vec<String> = (0..50).map(|n| n.to_string()).collect();
            for (n, text) in wanted.iter().enumerate() {
                publisher.send_publish(qos << 1, n as u16 + 1, &topic, &[], text.as_bytes());
            }
            assert_eq!(peer.texts(50), wanted);
        }
    }
}

/// v5: 4.1.0-1 3.2.2-15
#[test]
fn a_packet_over_the_limit_of_the_connack_is_too_large() {
    let (mut peer, connack) = Connect::new(5, &fresh("large")).answer();
    let maximum = connack.property(0x27).expect("the broker says its limit");
    let maximum = u32::from_be_bytes([maximum[0], maximum[1], maximum[2], maximum[3]]) as usize;
    let head = [text("t"), properties(5, &[])].concat();
    // The header alone is enough for the refusal.
    let mut start = packet(0x30, &[&head, &vec![0; maximum]]);
    start.truncate(64);
    peer.send(&start);
    peer.closed_with(0x95);
    let mut peer = connect(5, &fresh("fits"));
    let mut whole = publish_0(5, "t", "");
    whole = packet(0x30, &[&whole[2..], &vec![b'x'; maximum - head.len() - 4]]);
    assert_eq!(whole.len(), maximum);
    peer.send(&whole);
    peer.silent();
}
