//! QoS 2 in both directions.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect};
use crate::conformance::wire::{BOTH, DISCONNECT, PUBCOMP, PUBREC, PUBREL, Peer, packet};

/// v5: 4.3.3-8 4.3.3-11 3.7.2-1
/// v311: 4.3.3-2
#[test]
fn a_qos_2_publish_goes_through_its_four_steps() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("p"));
        peer.send_publish(4, 0x1234, &fresh("t"), &[], b"x");
        let received = peer.next().unwrap();
        assert_eq!((received.kind(), received.id()), (PUBREC, 0x1234));
        peer.ack(PUBREL, 0x1234);
        let complete = peer.next().unwrap();
        assert_eq!(
            (complete.kind(), complete.id(), complete.reason()),
            (PUBCOMP, 0x1234, 0)
        );
    }
}

/// v5: 4.3.3-10
/// v311: 4.3.3-2
#[test]
fn a_repeated_publish_is_acknowledged_again_and_delivered_once() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 0);
        let mut publisher = connect(v, &fresh("p"));
        // Repeat only once: a client has no reason to repeat it often on one connection (4.4.0-1).
        for flags in [4, 0x0c] {
            publisher.send_publish(flags, 9, &topic, &[], b"once");
            assert_eq!(publisher.wait_for(PUBREC).id(), 9);
        }
        publisher.ack(PUBREL, 9);
        publisher.wait_for(PUBCOMP);
        publisher.publish(&topic, "behind");
        assert_eq!(peer.texts(2), ["once", "behind"]);
    }
}

/// v5: 4.3.3-10 4.4.0-1
/// v311: 4.3.3-2 4.4.0-1
#[test]
fn a_publish_repeated_on_the_next_connection_is_delivered_once() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 0);
        let lasting = Connect::lasting(v, &fresh("p"));
        let (mut publisher, _) = lasting.enter();
        publisher.send_publish(4, 9, &topic, &[], b"once");
        publisher.wait_for(PUBREC);
        publisher.vanish();
        let (mut publisher, present) = lasting.enter();
        assert!(present);
        publisher.send_publish(0x0c, 9, &topic, &[], b"once");
        assert_eq!(publisher.wait_for(PUBREC).id(), 9);
        publisher.ack(PUBREL, 9);
        assert_eq!(publisher.wait_for(PUBCOMP).id(), 9);
        publisher.publish(&topic, "behind");
        assert_eq!(peer.texts(2), ["once", "behind"]);
    }
}

/// v5: 4.3.3-12
/// v311: 4.3.3-2
#[test]
fn after_its_end_the_identifier_stands_for_a_new_message() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 0);
        let mut publisher = connect(v, &fresh("p"));
        for flags in [4, 0x0c, 4] {
            publisher.send_publish(flags, 9, &topic, &[], b"same");
            publisher.wait_for(PUBREC);
            publisher.ack(PUBREL, 9);
            publisher.wait_for(PUBCOMP);
        }
        assert_eq!(peer.texts(3), ["same"; 3]);
    }
}

/// v5: 4.3.3-9
#[test]
fn a_refused_publish_leaves_its_identifier_free() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("p"));
    peer.subscribe(&topic, 0);
    peer.send_publish(4, 9, "$no", &[], b"refused");
    assert!(peer.wait_for(PUBREC).reason() >= 0x80);
    peer.send_publish(4, 9, &topic, &[], b"new");
    assert!(peer.wait_for(PUBREC).reason() < 0x80);
    assert_eq!(peer.texts(1), ["new"]);
}

/// v5: 3.7.2-1 3.6.2-1 4.3.3-11
/// v311: 4.3.3-2
#[test]
fn a_release_of_nothing_is_completed() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("p"));
        peer.ack(PUBREL, 4711);
        let complete = peer.wait_for(PUBCOMP);
        assert_eq!(complete.id(), 4711);
        if v == 5 {
            assert!(matches!(complete.reason(), 0 | 0x92));
        } else {
            assert_eq!(complete.body.len(), 2);
        }
    }
}

/// A subscriber that got one QoS 2 message and has not answered it.
fn with_delivery(v: u8) -> (Connect, Peer, crate::conformance::wire::Packet, String) {
    let (id, topic) = (fresh("s"), fresh("t"));
    let lasting = Connect::lasting(v, &id);
    let (mut peer, _) = lasting.enter();
    peer.subscribe(&topic, 2);
    connect(v, &fresh("p")).publish_2(&topic, "x");
    let message = peer.message_unacked();
    (lasting, peer, message, topic)
}

/// v5: 4.3.3-1 4.3.3-2 4.3.3-4
/// v311: 4.3.3-1
#[test]
fn a_delivery_is_released_once_it_was_received() {
    for v in BOTH {
        let (_, mut peer, message, _) = with_delivery(v);
        assert_eq!((message.qos(), message.dup()), (2, false));
        assert_ne!(message.publish_id(), 0);
        peer.ack(PUBREC, message.publish_id());
        let release = peer.next().unwrap();
        assert_eq!(
            (release.first_byte, release.id()),
            (0x62, message.publish_id())
        );
        peer.ack(PUBCOMP, message.publish_id());
        peer.silent();
    }
}

/// v5: 4.3.3-3 4.4.0-1 3.3.1-1
/// v311: 4.3.3-1 4.4.0-1
#[test]
fn a_delivery_that_was_not_received_comes_again() {
    for v in BOTH {
        let (lasting, peer, message, _) = with_delivery(v);
        peer.vanish();
        let (mut peer, _) = lasting.enter();
        let again = peer.message();
        assert_eq!(
            (again.publish_id(), again.dup(), again.qos()),
            (message.publish_id(), true, 2)
        );
        peer.silent();
    }
}

/// v5: 4.3.3-5 4.3.3-6 4.4.0-1
/// v311: 4.3.3-1 4.4.0-1
#[test]
fn a_delivery_that_was_received_is_only_released_again() {
    for v in BOTH {
        let (lasting, mut peer, message, _) = with_delivery(v);
        peer.ack(PUBREC, message.publish_id());
        peer.wait_for(PUBREL);
        peer.vanish();
        let (mut peer, _) = lasting.enter();
        let release = peer.next().unwrap();
        assert_eq!(
            (release.first_byte, release.id()),
            (0x62, message.publish_id())
        );
        peer.ack(PUBCOMP, message.publish_id());
        peer.silent();
        peer.vanish();
        let (mut peer, _) = lasting.enter();
        peer.silent();
    }
}

/// v5: 4.3.3-7
#[test]
fn a_delivery_that_has_begun_does_not_expire() {
    let (id, topic) = (fresh("s"), fresh("t"));
    let lasting = Connect::lasting(5, &id);
    let (mut peer, _) = lasting.enter();
    peer.subscribe(&topic, 2);
    let mut publisher = connect(5, &fresh("p"));
    publisher.send_publish(
        4,
        1,
        &topic,
        &[&crate::conformance::wire::number(0x02, 1)],
        b"short",
    );
    let message = peer.message_unacked();
    let mut clock = Connect::new(5, &fresh("clock"));
    clock.keep_alive_s = 1;
    clock.enter().0.closed_with(0x8d);
    peer.ack(PUBREC, message.publish_id());
    assert_eq!(peer.wait_for(PUBREL).id(), message.publish_id());
    peer.ack(PUBCOMP, message.publish_id());
    peer.silent();
}

/// v5: 2.2.1-4
/// v311: 2.3.1-4
#[test]
fn identifiers_of_both_directions_do_not_meet() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 2);
        // The client uses the same identifiers that the broker will use.
        for id in 1..=20 {
            peer.send_publish(4, id, &topic, &[], id.to_string().as_bytes());
        }
        let messages: Vec<_> = (0..20).map(|_| peer.message_unacked()).collect();
        for message in &messages {
            peer.ack(PUBREC, message.publish_id());
        }
        for id in 1..=20 {
            assert_eq!(peer.wait_for(PUBREC).id(), id);
            peer.ack(PUBREL, id);
            assert_eq!(peer.wait_for(PUBCOMP).id(), id);
        }
        for message in &messages {
            assert_eq!(peer.wait_for(PUBREL).id(), message.publish_id());
            peer.ack(PUBCOMP, message.publish_id());
        }
        peer.silent();
    }
}

/// v5: 3.5.2-1 3.6.2-1 3.7.2-1
#[test]
fn codes_that_are_none_of_their_packet_are_refused() {
    for (first, code) in [
        (0x50, 0x92),
        (0x62, 0x10),
        (0x62, 0x83),
        (0x70, 0x80),
        (0x70, 0xff),
    ] {
        let mut peer = connect(5, &fresh("code"));
        peer.send(&packet(first, &[&[0, 1], &[code]]));
        let reason = peer.wait_for(DISCONNECT).reason();
        assert!(
            matches!(reason, 0x81 | 0x82),
            "{first:02x} {code:02x}: {reason:#04x}"
        );
        peer.closed();
    }
}

/// v5: 3.6.2-1
#[test]
fn a_pubrec_of_nothing_is_answered_and_harms_nobody() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("s"));
        peer.ack(PUBREC, 4711);
        peer.send(&[0xc0, 0]);
        let answer = peer.next().unwrap();
        if answer.kind() == PUBREL {
            assert_eq!(answer.id(), 4711);
            assert!(matches!(answer.reason(), 0 | 0x92));
        }
    }
}
