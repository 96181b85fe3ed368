//! QoS 1 in both directions, repetition after a reconnect, and the order of acknowledgements.

use std::collections::HashSet;

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect};
use crate::conformance::wire::{BOTH, DISCONNECT, PUBACK, PUBREC, packet};

/// v5: 2.2.1-4 4.3.2-1 4.3.2-2 4.3.2-3
/// v311: 2.3.1-4 4.3.2-1
#[test]
fn unacknowledged_deliveries_have_identifiers_of_their_own() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        let mut publisher = connect(v, &fresh("p"));
        (0..60).for_each(|n: u8| publisher.publish(&topic, &n.to_string()));
        let messages: Vec<_> = (0..60).map(|_| peer.message_unacked()).collect();
        let ids: HashSet<u16> = messages
            .iter()
            .map(|message| message.publish_id())
            .collect();
        assert_eq!(ids.len(), 60);
        assert!(!ids.contains(&0));
        assert!(messages.iter().all(|message| !message.dup()));
        peer.silent();
    }
}

/// v5: 4.4.0-1 3.3.1-1 4.6.0-1
/// v311: 4.4.0-1 3.3.1-1 4.6.0-1 2.3.1-3
#[test]
fn what_was_not_acknowledged_comes_again_in_order_with_dup_and_its_identifier() {
    for v in BOTH {
        let (id, topic) = (fresh("s"), fresh("t"));
        let lasting = Connect::lasting(v, &id);
        let (mut peer, _) = lasting.enter();
        peer.subscribe(&topic, 1);
        let mut publisher = connect(v, &fresh("p"));
        (0..5).for_each(|n: u8| publisher.publish(&topic, &n.to_string()));
        let first: Vec<_> = (0..5).map(|_| peer.message_unacked()).collect();
        // The second and the fourth are done.
        for done in [1, 3] {
            peer.ack(PUBACK, first[done].publish_id());
        }
        peer.silent();
        peer.vanish();
        let (mut peer, present) = lasting.enter();
        assert!(present);
        for at in [0, 2, 4] {
            let again = peer.message();
            assert_eq!(again.publish_id(), first[at].publish_id());
            assert_eq!((again.dup(), again.payload()), (true, first[at].payload()));
        }
        peer.silent();
    }
}

/// v5: 4.4.0-1
/// v311: 4.4.0-1
#[test]
fn nothing_is_sent_again_on_the_same_connection() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish(&topic, "1");
        let message = peer.message_unacked();
        publisher.publish(&topic, "2");
        assert_eq!(peer.message().payload_text(), "2");
        peer.silent();
        peer.ack(PUBACK, message.publish_id());
        peer.silent();
    }
}

/// v5: 4.4.0-2
#[test]
fn a_refused_delivery_counts_as_acknowledged() {
    let (id, topic) = (fresh("s"), fresh("t"));
    let lasting = Connect::lasting(5, &id);
    let (mut peer, _) = lasting.enter();
    peer.subscribe(&topic, 2);
    let mut publisher = connect(5, &fresh("p"));
    publisher.publish(&topic, "one");
    let one = peer.message_unacked();
    peer.send(&packet(0x40, &[&one.publish_id().to_be_bytes(), &[0x83]]));
    publisher.publish_2(&topic, "two");
    let two = peer.message_unacked();
    assert_eq!(two.qos(), 2);
    peer.send(&packet(0x50, &[&two.publish_id().to_be_bytes(), &[0x83]]));
    peer.silent();
    peer.vanish();
    let (mut peer, present) = lasting.enter();
    assert!(present);
    peer.silent();
}

/// v5: 3.4.2-1
#[test]
fn an_acknowledgement_with_a_code_that_is_none_is_refused() {
    for code in [0x01, 0x92, 0x8e, 0xff] {
        let mut peer = connect(5, &fresh("code"));
        peer.send(&packet(0x40, &[&[0, 1], &[code]]));
        let reason = peer.wait_for(DISCONNECT).reason();
        assert!(matches!(reason, 0x81 | 0x82), "{reason:#04x}");
        peer.closed();
    }
}

/// An acknowledgement that matches nothing is not an error: the broker may have been restarted in between.
#[test]
fn an_acknowledgement_of_nothing_is_ignored() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("nothing"));
        peer.ack(PUBACK, 4711);
        peer.silent();
    }
}

/// v5: 4.6.0-5
/// v311: 4.6.0-6
#[test]
fn acknowledgements_leave_in_the_order_of_their_publishes() {
    for v in BOTH {
        let mut peer = connect(v, &fresh("order"));
        let mut wanted = Vec::new();
        for n in 1..=90_u16 {
            let qos = if n % 3 == 0 { 2 } else { 1 };
            // Topics of many partitions, and refusals in between.
            let topic = if n % 7 == 0 {
                "$no".to_owned()
            } else {
                fresh("order/")
            };
            peer.send_publish(qos << 1, n, &topic, &[], b"x");
            wanted.push((if qos == 2 { PUBREC } else { PUBACK }, n));
        }
        let got: Vec<_> = (0..90)
            .map(|_| peer.next().unwrap())
            .map(|packet| (packet.kind(), packet.id()))
            .collect();
        assert_eq!(got, wanted);
    }
}

/// v5: 4.6.0-5
/// v311: 4.6.0-6
#[test]
fn many_small_windows_keep_the_order() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        let mut publisher = connect(v, &fresh("p"));
        for n in 1..=300_u16 {
            publisher.send_publish(2, n, &topic, &[], n.to_string().as_bytes());
        }
        for n in 1..=300_u16 {
            assert_eq!(peer.message().payload_text(), n.to_string());
        }
    }
}
