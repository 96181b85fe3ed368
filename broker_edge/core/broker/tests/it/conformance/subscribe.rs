//! SUBSCRIBE and SUBACK, and which copies of a message a session gets.

use crate::conformance::fresh;
use crate::conformance::talk::connect;
use crate::conformance::wire::{BOTH, DISCONNECT, SUBACK, packet, properties, text};

/// v5: 3.8.4-1 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2
/// v311: 3.8.4-1 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2
#[test]
fn each_filter_gets_its_code_in_order() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("many"));
        let root = fresh("r");
        let filters: Vec<(String, u8)> = (0..60)
            .map(|n| (format!("{root}/{n}/+"), (n % 3) as u8))
            .collect();
        let filters: Vec<(&str, u8)> = filters
            .iter()
            .map(|(filter, qos)| (filter.as_str(), *qos))
            .collect();
        let suback = peer.subscribe_all(&[], &filters);
        let wanted: Vec<u8> = (0..60).map(|n| n % 3).collect();
        assert_eq!(suback.codes(), wanted);
    }
}

/// v5: 3.8.4-7 3.9.3-2
/// v311: 3.8.4-5 3.9.3-2
#[test]
fn a_filter_that_is_not_granted_does_not_hinder_its_neighbours() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("some"));
        let (a, b) = (fresh("a"), fresh("b"));
        let deep = "x/".repeat(150);
        let suback = peer.subscribe_all(&[], &[(&a, 1), (&deep, 1), (&b, 2)]);
        let codes = suback.codes();
        assert_eq!((codes[0], codes[2]), (1, 2));
        assert!(
            if v == 5 {
                codes[1] > 0x80
            } else {
                codes[1] == 0x80
            },
            "{codes:02x?}"
        );
        peer.publish(&a, "1");
        peer.publish(&b, "2");
        assert_eq!(peer.texts(2).len(), 2);
    }
}

/// v5: 3.8.3-5
/// v311: 3-8.3-4
#[test]
fn reserved_bits_of_the_options_are_zero() {
    for v in BOTH {
        let wrong: &[u8] = if v == 5 {
            &[0x40, 0x80, 0xc1, 0x03]
        } else {
            &[0x03, 0x04, 0x08, 0x10, 0x40, 0x80]
        };
        for options in wrong {
            let mut peer = connect(v, &fresh("options"));
            peer.send(&packet(
                0x82,
                &[&[0, 1], &properties(v, &[]), &text("t"), &[*options]],
            ));
            if v == 5 {
                let reason = peer.wait_for(DISCONNECT).reason();
                assert!(
                    matches!(reason, 0x81 | 0x82),
                    "{options:02x}: {reason:#04x}"
                );
            }
            peer.closed();
        }
    }
    let mut peer = connect(5, &fresh("options"));
    peer.send(&packet(
        0x82,
        &[&[0, 1], &properties(5, &[]), &text("t"), &[0x30]],
    ));
    peer.closed_with(0x82);
}

/// v5: 3.8.4-8 3.2.2-10
/// v311: 3.8.4-6 3.3.5-1
#[test]
fn a_message_has_the_lower_of_both_qos() {
    for v in BOTH {
        for published in 0..3_u8 {
            for granted in 0..3_u8 {
                let topic = fresh("t");
                let mut peer = connect(v, &fresh("s"));
                peer.subscribe(&topic, granted);
                peer.send_publish(published << 1, 1, &topic, &[], b"x");
                assert_eq!(peer.message().qos(), published.min(granted));
            }
        }
    }
}

/// v5: 3.3.4-2
/// v311: 3.3.5-1
#[test]
fn overlapping_subscriptions_deliver_with_the_highest_qos() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&format!("{topic}/#"), 0);
        peer.subscribe(&format!("{topic}/a"), 2);
        peer.subscribe(&format!("{topic}/+"), 1);
        connect(v, &fresh("p")).publish_2(&format!("{topic}/a"), "x");
        assert_eq!(peer.message().qos(), 2);
        while let Some(extra) = next_message(&mut peer) {
            assert!(extra < 2);
        }
    }
}

/// The QoS of one more received message, if any: the standard allows one copy per subscription.
fn next_message(peer: &mut crate::conformance::wire::Peer) -> Option<u8> {
    peer.send(&[0xc0, 0]);
    let packet = peer.next()?;
    (packet.kind() == crate::conformance::wire::PUBLISH).then(|| packet.qos())
}

/// v5: 3.3.4-3 3.3.4-4 3.3.4-5
#[test]
fn deliveries_carry_the_identifiers_of_all_their_subscriptions() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("s"));
    peer.subscribe_all(&[&[0x0b, 7]], &[(&topic, 1)]);
    peer.subscribe_all(&[&[0x0b, 0x80, 0x01]], &[(&format!("{topic}/#"), 0)]);
    peer.subscribe_all(&[], &[(&format!("{topic}/+"), 0)]);
    connect(5, &fresh("p")).publish(&topic, "x");
    let message = peer.message();
    let mut ids: Vec<_> = message
        .properties()
        .into_iter()
        .filter(|(id, _)| *id == 0x0b)
        .map(|(_, v)| v)
        .collect();
    ids.sort();
    assert_eq!(ids, [vec![7], vec![0x80, 0x01]]);
    peer.silent();
}

/// v5: 3.3.4-3 3.8.4-3
#[test]
fn the_identifier_of_a_subscription_can_be_replaced_and_removed() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("s"));
    let mut publisher = connect(5, &fresh("p"));
    for (list, wanted) in [
        (&[0x0b, 1][..], Some(vec![1])),
        (&[0x0b, 2], Some(vec![2])),
        (&[], None),
    ] {
        peer.subscribe_all(&[list], &[(&topic, 0)]);
        publisher.publish(&topic, "x");
        assert_eq!(peer.message().property(0x0b), wanted);
    }
}

/// v5: 3.8.3-3
#[test]
fn no_local_keeps_a_clients_own_messages_from_it() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("s"));
    peer.subscribe(&topic, 1 | 4);
    peer.publish(&topic, "mine");
    connect(5, &fresh("p")).publish(&topic, "theirs");
    assert_eq!(peer.texts(1), ["theirs"]);
}

/// v5: 3.8.4-3 3.8.4-4
/// v311: 3.8.4-3
#[test]
fn the_same_filter_again_replaces_the_subscription_and_loses_nothing() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_with(1, &topic, &[], "kept");
        peer.subscribe(&topic, 0);
        assert_eq!(peer.texts(1), ["kept"]);
        publisher.publish(&topic, "1");
        peer.subscribe(&topic, 1);
        publisher.publish(&topic, "2");
        let mut texts: Vec<(String, u8)> = Vec::new();
        while texts.last().is_none_or(|(text, _)| text != "2") {
            let message = peer.message();
            texts.push((message.payload_text(), message.qos()));
        }
        assert_eq!(
            texts.iter().filter(|(text, _)| text == "1").count(),
            1,
            "{texts:?}"
        );
        assert_eq!(
            texts.iter().filter(|(text, _)| text == "kept").count(),
            1,
            "retained comes again: {texts:?}"
        );
        assert_eq!(
            texts.last(),
            Some(&("2".to_owned(), 1)),
            "the new QoS holds"
        );
        peer.silent();
    }
}

/// v5: 3.8.4-5
/// v311: 3.8.4-4
#[test]
fn the_same_filter_twice_in_a_packet_counts_as_two_packets() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        assert_eq!(
            peer.subscribe_all(&[], &[(&topic, 2), (&topic, 0)]).codes(),
            [2, 0]
        );
        connect(v, &fresh("p")).publish(&topic, "x");
        assert_eq!(peer.message().qos(), 0);
        peer.silent();
    }
}

/// v5: 3.3.2-3
/// v311: 3.3.2-3
#[test]
fn a_delivery_matches_its_filter() {
    for v in BOTH {
        let root = fresh("r");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&format!("{root}/+/x"), 0);
        let mut publisher = connect(v, &fresh("p"));
        for leaf in ["a/x", "a/y", "x", "a/b/x", "b/x"] {
            publisher.publish(&format!("{root}/{leaf}"), leaf);
        }
        let mut got = peer.texts(2);
        got.sort();
        assert_eq!(got, ["a/x", "b/x"]);
        peer.silent();
    }
}

/// v5: 3.1.2-29 3.9.2-1 3.9.2-2
#[test]
fn a_suback_without_problem_information_has_no_reason_string() {
    let connect = crate::conformance::talk::Connect::new(5, &fresh("quiet")).with(&[0x17, 0]);
    let (mut peer, _) = connect.enter();
    let deep = "x/".repeat(150);
    let id = 3_u16.to_be_bytes();
    peer.send(&packet(
        0x82,
        &[&id, &properties(5, &[]), &text(&deep), &[0]],
    ));
    let suback = peer.wait_for(SUBACK);
    assert!(suback.codes()[0] > 0x80);
    assert_eq!(suback.property(0x1f), None);
}
