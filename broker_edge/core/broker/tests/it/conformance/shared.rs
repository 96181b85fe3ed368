//! Shared subscriptions, as far as the standard has rules for them. The engine's tests cover how a group shares its
//! work.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect};
use crate::conformance::wire::{Peer, packet};

/// A member of a group, with the filter of the group and its topic.
fn member(connect: &Connect, group: &str, topic: &str, qos: u8) -> Peer {
    let (mut peer, _) = connect.enter();
    peer.subscribe(&format!("$share/{group}/{topic}"), qos);
    peer
}

/// v5: 4.8.2-3
#[test]
fn a_shared_delivery_has_the_lower_of_both_qos() {
    for granted in 0..3 {
        for published in 0..3_u8 {
            let (topic, group) = (fresh("t"), fresh("g"));
            let mut peer = member(&Connect::new(5, &fresh("m")), &group, &topic, granted);
            let mut publisher = connect(5, &fresh("p"));
            publisher.send_publish(published << 1, 1, &topic, &[], b"x");
            assert_eq!(peer.message().qos(), granted.min(published));
        }
    }
}

/// v5: 4.8.2-4
#[test]
fn a_shared_qos_2_delivery_is_completed_when_its_member_is_back() {
    let (topic, group) = (fresh("t"), fresh("g"));
    let lasting = Connect::lasting(5, &fresh("m"));
    let mut first = member(&lasting, &group, &topic, 2);
    connect(5, &fresh("p")).publish_2(&topic, "x");
    let message = first.message_unacked();
    let mut second = member(&Connect::new(5, &fresh("m")), &group, &topic, 2);
    first.vanish();
    let (mut first, present) = lasting.enter();
    assert!(present);
    let again = first.message();
    assert_eq!(
        (again.publish_id(), again.dup()),
        (message.publish_id(), true)
    );
    second.silent();
}

/// v5: 4.8.2-5
#[test]
fn a_shared_qos_2_delivery_ends_with_the_session_it_was_sent_to() {
    let (topic, group) = (fresh("t"), fresh("g"));
    let mut first = member(&Connect::new(5, &fresh("m")), &group, &topic, 2);
    connect(5, &fresh("p")).publish_2(&topic, "x");
    first.message_unacked();
    let mut second = member(&Connect::new(5, &fresh("m")), &group, &topic, 2);
    first.goodbye();
    connect(5, &fresh("p")).publish_2(&topic, "next");
    assert_eq!(second.message().payload_text(), "next");
    second.silent();
}

/// v5: 4.8.2-6
#[test]
fn a_shared_delivery_that_its_member_refuses_goes_to_nobody_else() {
    for (qos, first_byte) in [(1, 0x40), (2, 0x50)] {
        let (topic, group) = (fresh("t"), fresh("g"));
        let mut first = member(&Connect::new(5, &fresh("m")), &group, &topic, qos);
        connect(5, &fresh("p")).publish_2(&topic, "refused");
        let message = first.message_unacked();
        let mut second = member(&Connect::new(5, &fresh("m")), &group, &topic, qos);
        first.send(&packet(
            first_byte,
            &[&message.publish_id().to_be_bytes(), &[0x83]],
        ));
        first.silent();
        first.goodbye();
        connect(5, &fresh("p")).publish_2(&topic, "next");
        assert_eq!(second.message().payload_text(), "next");
        second.silent();
    }
}
