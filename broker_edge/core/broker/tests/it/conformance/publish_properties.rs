//! The properties of a PUBLISH, as forwarded to subscribers.

use crate::conformance::fresh;
use crate::conformance::talk::connect;
use crate::conformance::wire::{DISCONNECT, PUBACK, PUBREC, number, string, user};

/// v5: 3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20
#[test]
fn properties_reach_subscribers_unchanged_and_in_order() {
    let lists = [
        [
            vec![0x01, 1],
            string(0x03, "application/json"),
            string(0x08, "reply/to"),
            [vec![0x09], crate::conformance::wire::text([0, 1, 255])].concat(),
            user("z", "1"),
            user("a", ""),
            user("z", "1"),
            user("", "ä水"),
        ]
        .concat(),
        vec![0x01, 0],
        [user("b", "2"), string(0x03, ""), user("a", "1")].concat(),
    ];
    for list in lists {
        for qos in 0..3 {
            let topic = fresh("t");
            let mut peer = connect(5, &fresh("s"));
            peer.subscribe(&topic, qos);
            peer.send_publish(qos << 1, 9, &topic, &[&list], b"{}");
            let message = peer.message();
            let sent = crate::conformance::wire::Packet::clone(&message);
            for id in [0x01, 0x03, 0x08, 0x09] {
                assert_eq!(message.property(id), property_of(&list, id), "{id:#04x}");
            }
            let users: Vec<_> = sent
                .properties()
                .into_iter()
                .filter(|(id, _)| *id == 0x26)
                .collect();
            let wanted: Vec<_> = all_of(&list)
                .into_iter()
                .filter(|(id, _)| *id == 0x26)
                .collect();
            assert_eq!(users, wanted);
        }
    }
}

fn all_of(list: &[u8]) -> Vec<(u8, Vec<u8>)> {
    crate::conformance::wire::read_properties(list)
}

fn property_of(list: &[u8], id: u8) -> Option<Vec<u8>> {
    all_of(list)
        .into_iter()
        .find(|(of, _)| *of == id)
        .map(|(_, value)| value)
}

/// v5: 3.3.2-17 3.3.2-18 3.3.2-20
#[test]
fn properties_stay_with_a_retained_message() {
    let topic = fresh("t");
    let mut publisher = connect(5, &fresh("p"));
    publisher.publish_with(
        1,
        &topic,
        &[&string(0x03, "text"), &user("k", "1"), &user("k", "2")],
        "kept",
    );
    let mut peer = connect(5, &fresh("s"));
    peer.subscribe(&topic, 1);
    let message = peer.message();
    assert_eq!(message.property_text(0x03).as_deref(), Some("text"));
    assert_eq!(
        message.users(),
        [("k", "1"), ("k", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
}

/// v5: 3.3.2-14
#[test]
fn a_response_topic_has_no_wildcard() {
    for topic in ["#", "a/+", "a/#"] {
        let mut peer = connect(5, &fresh("response"));
        peer.send_publish(2, 1, "t", &[&string(0x08, topic)], b"x");
        let reason = peer.wait_for(DISCONNECT).reason();
        assert!(matches!(reason, 0x81 | 0x82 | 0x90), "{reason:#04x}");
        peer.closed();
    }
}

/// v5: 3.3.2-6
#[test]
fn the_expiry_that_is_left_is_sent() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("s"));
    peer.subscribe(&topic, 0);
    peer.publish_with(0, &topic, &[&number(0x02, 100)], "x");
    let left = peer.message().property(0x02).unwrap();
    let left = u32::from_be_bytes([left[0], left[1], left[2], left[3]]);
    assert!((90..=100).contains(&left), "{left}");
    peer.publish_with(0, &topic, &[], "x");
    assert_eq!(peer.message().property(0x02), None);
}

/// v5: 3.3.2-5
#[test]
fn an_expired_message_is_not_delivered() {
    let (topic, id) = (fresh("t"), fresh("s"));
    let lasting = crate::conformance::talk::Connect::lasting(5, &id);
    let (mut peer, _) = lasting.enter();
    peer.subscribe(&topic, 1);
    peer.goodbye();
    let mut publisher = connect(5, &fresh("p"));
    publisher.publish_with(1, &topic, &[&number(0x02, 1)], "short");
    publisher.publish(&topic, "lasting");
    // A connection that is silent for a second and a half shows that the time has passed.
    let mut clock = crate::conformance::talk::Connect::new(5, &fresh("clock"));
    clock.keep_alive_s = 1;
    clock.enter().0.closed_with(0x8d);
    let (mut peer, _) = lasting.enter();
    assert_eq!(peer.texts(1), ["lasting"]);
    peer.silent();
    let mut late = connect(5, &fresh("late"));
    late.subscribe(&topic, 1);
    late.silent();
}

/// v5: 4.3.3-13
#[test]
fn qos_2_goes_on_for_a_message_that_has_expired() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("p"));
    peer.send_publish(4, 3, &topic, &[&number(0x02, 0)], b"gone at once");
    assert_eq!(peer.wait_for(PUBREC).id(), 3);
    peer.ack(crate::conformance::wire::PUBREL, 3);
    assert_eq!(peer.wait_for(crate::conformance::wire::PUBCOMP).id(), 3);
}

/// v5: 3.3.2-4
#[test]
fn a_payload_that_is_not_the_text_it_claims_to_be_is_refused_or_passed_on_unchanged() {
    let topic = fresh("t");
    let mut peer = connect(5, &fresh("s"));
    peer.subscribe(&topic, 0);
    peer.send_publish(2, 1, &topic, &[&[0x01, 1]], &[0xff, 0xfe]);
    match peer.wait_for(PUBACK).reason() {
        0x99 => peer.silent(),
        _ => {
            let message = peer.message();
            assert_eq!(message.payload(), [0xff, 0xfe]);
            assert_eq!(message.property(0x01), Some(vec![1]));
        }
    }
}
