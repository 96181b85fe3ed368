//! UNSUBSCRIBE and UNSUBACK.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect};
use crate::conformance::wire::{BOTH, PUBREL, packet, properties, text};

/// v5: 3.10.4-1 3.10.4-2 3.10.4-4
/// v311: 3.10.4-1 3.10.4-2 3.10.4-4
#[test]
fn an_unsubscribed_filter_delivers_nothing_more() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        peer.subscribe(&format!("{topic}/#"), 1);
        let mut publisher = connect(v, &fresh("p"));
        peer.unsubscribe(&[&topic]);
        publisher.publish(&topic, "1");
        assert_eq!(
            peer.texts(1),
            ["1"],
            "the other subscription matches as well"
        );
        peer.unsubscribe(&[&format!("{topic}/#")]);
        publisher.publish(&topic, "2");
        peer.silent();
    }
}

/// v5: 3.10.4-1 3.10.4-5 3.11.3-1 3.11.3-2
/// v311: 3.10.4-1 3.10.4-5
#[test]
fn filters_are_compared_character_by_character() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&format!("{topic}/+"), 0);
        let others = [
            format!("{topic}/#"),
            format!("{topic}/a"),
            format!("{topic}/"),
            topic.to_uppercase(),
        ];
        for other in &others {
            let unsuback = peer.unsubscribe(&[other]);
            let wanted: &[u8] = if v == 5 { &[0x11] } else { &[] };
            assert_eq!(unsuback.codes(), wanted);
        }
        connect(v, &fresh("p")).publish(&format!("{topic}/a"), "x");
        assert_eq!(peer.texts(1), ["x"]);
    }
}

/// v5: 3.10.4-6 3.11.3-1 3.11.3-2
/// v311: 3.10.4-6
#[test]
fn many_filters_get_one_answer_with_their_codes_in_order() {
    for v in BOTH {
        let topic = fresh("t");
        let (a, b, c) = (
            format!("{topic}/a"),
            format!("{topic}/b"),
            format!("{topic}/c"),
        );
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&a, 0);
        peer.subscribe(&c, 0);
        let unsuback = peer.unsubscribe(&[&a, &b, &c, &a]);
        if v == 5 {
            assert_eq!(unsuback.codes(), [0, 0x11, 0, 0x11]);
        } else {
            assert_eq!(unsuback.body.len(), 2);
        }
        let mut publisher = connect(v, &fresh("p"));
        for topic in [&a, &b, &c] {
            publisher.publish(topic, "x");
        }
        peer.silent();
    }
}

/// v5: 3.10.4-3
/// v311: 3.10.4-3
#[test]
fn a_delivery_that_has_begun_is_completed() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 2);
        connect(v, &fresh("p")).publish_2(&topic, "x");
        let message = peer.message_unacked();
        assert_eq!(message.qos(), 2);
        peer.unsubscribe(&[&topic]);
        peer.ack(crate::conformance::wire::PUBREC, message.publish_id());
        assert_eq!(peer.wait_for(PUBREL).id(), message.publish_id());
        peer.ack(crate::conformance::wire::PUBCOMP, message.publish_id());
        peer.silent();
    }
}

/// v5: 3.10.4-3 4.4.0-1
/// v311: 3.10.4-3
#[test]
fn a_delivery_that_has_begun_is_sent_again_after_an_unsubscribe() {
    for v in BOTH {
        let (id, topic) = (fresh("s"), fresh("t"));
        let lasting = Connect::lasting(v, &id);
        let (mut peer, _) = lasting.enter();
        peer.subscribe(&topic, 1);
        connect(v, &fresh("p")).publish(&topic, "x");
        let message = peer.message_unacked();
        peer.unsubscribe(&[&topic]);
        peer.vanish();
        let (mut peer, present) = lasting.enter();
        assert!(present);
        let again = peer.message();
        assert_eq!(
            (again.publish_id(), again.dup()),
            (message.publish_id(), true)
        );
    }
}

/// v5: 4.7.1-1
/// v311: 4.7.1-2
#[test]
fn a_filter_that_is_not_one_is_malformed_in_unsubscribe_too() {
    for v in BOTH {
        for filter in ["a/#/b", "a#", "a+", ""] {
            let mut peer = connect(v, &fresh("bad"));
            peer.send(&packet(
                0xa2,
                &[&[0, 1], &properties(v, &[]), &text(filter)],
            ));
            if v == 5 {
                let reason = peer.wait_for(crate::conformance::wire::DISCONNECT).reason();
                assert!(matches!(reason, 0x81 | 0x82), "{filter}: {reason:#04x}");
            }
            peer.closed();
        }
    }
}
