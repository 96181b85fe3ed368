//! Flow control, packet sizes, and information that a client does not want.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect};
use crate::conformance::wire::{
    PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, number, short, string, user,
};

/// v5: 3.3.4-9 4.9.0-1 4.9.0-2
#[test]
fn no_more_deliveries_are_on_their_way_than_the_client_allows() {
    for qos in [1, 2] {
        let topic = fresh("t");
        let (mut peer, _) = Connect::new(5, &fresh("s")).with(&short(0x21, 3)).enter();
        peer.subscribe(&topic, qos);
        let mut publisher = connect(5, &fresh("p"));
        for n in 0..8 {
            publisher.send_publish(qos << 1, n + 1, &topic, &[], n.to_string().as_bytes());
            publisher.wait_for(if qos == 1 { PUBACK } else { PUBREC });
        }
        let mut held = std::collections::VecDeque::new();
        for _ in 0..3 {
            held.push_back(peer.message_unacked());
        }
        peer.silent();
        for n in 0..8 {
            let message = held.pop_front().unwrap();
            assert_eq!(message.payload_text(), n.to_string());
            if qos == 1 {
                peer.ack(PUBACK, message.publish_id());
            } else {
                peer.ack(PUBREC, message.publish_id());
                peer.wait_for(PUBREL);
                peer.silent();
                peer.ack(PUBCOMP, message.publish_id());
            }
            if n < 5 {
                held.push_back(peer.message_unacked());
            }
            peer.silent();
        }
    }
}

/// v5: 3.3.4-10 4.9.0-3
#[test]
fn a_full_window_holds_up_nothing_but_deliveries() {
    let topic = fresh("t");
    let (mut peer, _) = Connect::new(5, &fresh("s")).with(&short(0x21, 1)).enter();
    peer.subscribe(&topic, 1);
    let mut publisher = connect(5, &fresh("p"));
    publisher.publish(&topic, "1");
    publisher.publish(&topic, "2");
    let first = peer.message_unacked();
    peer.send(&[0xc0, 0]);
    peer.wait_for(PINGRESP);
    peer.publish(&fresh("t"), "x");
    peer.publish_2(&fresh("t"), "x");
    peer.subscribe(&fresh("t"), 0);
    peer.unsubscribe(&[&fresh("t")]);
    peer.silent();
    peer.ack(PUBACK, first.publish_id());
    assert_eq!(peer.texts(1), ["2"]);
}

/// v5: 4.9.0-2
#[test]
fn a_full_window_does_not_hold_up_qos_0_of_other_topics_for_good() {
    let topic = fresh("t");
    let (mut peer, _) = Connect::new(5, &fresh("s")).with(&short(0x21, 1)).enter();
    peer.subscribe(&topic, 1);
    let mut publisher = connect(5, &fresh("p"));
    publisher.publish(&topic, "1");
    let first = peer.message_unacked();
    publisher.publish(&topic, "2");
    peer.ack(PUBACK, first.publish_id());
    assert_eq!(peer.texts(1), ["2"]);
    peer.silent();
}

/// v5: 4.9.0-1 4.13.1-1
#[test]
fn a_client_that_sends_more_than_the_receive_maximum_is_told() {
    let (mut peer, connack) = Connect::new(5, &fresh("p")).answer();
    let maximum = connack
        .property(0x21)
        .map_or(u16::MAX, |value| u16::from_be_bytes([value[0], value[1]]));
    // QoS 2 publishes that are never released stay in flight.
    for n in 1..=maximum {
        peer.send_publish(4, n, "flow", &[], b"x");
    }
    for n in 1..=maximum {
        assert_eq!(peer.wait_for(PUBREC).id(), n);
    }
    peer.silent();
    peer.send_publish(4, maximum + 1, "flow", &[], b"x");
    peer.closed_with(0x93);
}

/// v5: 3.1.2-24 3.1.2-25
#[test]
fn a_message_over_the_clients_packet_size_counts_as_delivered() {
    for qos in 0..3 {
        let topic = fresh("t");
        let (mut peer, _) = Connect::new(5, &fresh("s"))
            .with(&number(0x27, 100))
            .enter();
        peer.subscribe(&topic, qos);
        let mut publisher = connect(5, &fresh("p"));
        publisher.send_publish(qos << 1, 1, &topic, &[], &[b'x'; 200]);
        publisher.send_publish(
            qos << 1,
            2,
            &topic,
            &[&user("key", &"v".repeat(100))],
            b"long",
        );
        publisher.send_publish(qos << 1, 3, &topic, &[], b"short");
        assert_eq!(peer.texts(1), ["short"]);
        peer.silent();
    }
}

/// v5: 3.1.2-24
#[test]
fn the_packet_size_of_a_client_is_met_to_the_byte() {
    let topic = fresh("t");
    // First byte, length, topic, packet identifier, no properties, payload.
    let size = 1 + 1 + 2 + topic.len() + 2 + 1 + 10;
    let (mut peer, _) = Connect::new(5, &fresh("s"))
        .with(&number(0x27, size as u32))
        .enter();
    peer.subscribe(&topic, 1);
    let mut publisher = connect(5, &fresh("p"));
    publisher.publish(&topic, "eleven byte");
    publisher.publish(&topic, "just ten b");
    assert_eq!(peer.texts(1), ["just ten b"]);
}

/// v5: 3.1.2-29 3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.6.2-2 3.6.2-3 3.7.2-2 3.7.2-3 3.11.2-1 3.11.2-2
#[test]
fn who_wants_no_problem_information_gets_none_but_in_publishes() {
    let topic = fresh("t");
    let connect = Connect::new(5, &fresh("s"))
        .with(&[0x17, 0])
        .with(&user("stream-ack", "1"));
    let (mut peer, _) = connect.enter();
    let mut packets =
        vec![peer.subscribe_all(&[&user("stream-offset", "no position")], &[(&topic, 2)])];
    packets.push(peer.subscribe_all(&[&user("stream-offset", "earliest")], &[(&topic, 2)]));
    packets.push(peer.unsubscribe(&[&fresh("none")]));
    for (flags, name) in [
        (2, "$no"),
        (4, "$no"),
        (2, topic.as_str()),
        (4, topic.as_str()),
    ] {
        let id = peer.new_id();
        peer.send_publish(flags, id, name, &[&user("k", "v")], b"x");
        packets.push(peer.wait_for(if flags == 2 { PUBACK } else { PUBREC }));
    }
    let id = packets.last().unwrap().id();
    peer.ack(PUBREL, id);
    packets.push(peer.wait_for(PUBCOMP));
    peer.ack(PUBREL, 4711);
    packets.push(peer.wait_for(PUBCOMP));
    for packet in &packets {
        assert_ne!(packet.kind(), PUBLISH);
        assert_eq!(
            (packet.property(0x1f), packet.users()),
            (None, Vec::new()),
            "{packet:02x?}"
        );
    }
    assert!(
        peer.message().users().iter().any(|(key, _)| key == "k"),
        "those of messages pass"
    );
}

/// v5: 3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.9.2-1 3.9.2-2
#[test]
fn answers_leave_out_what_would_make_them_too_large() {
    let topic = fresh("t");
    let connect = Connect::new(5, &fresh("s"))
        .with(&number(0x27, 40))
        .with(&user("stream-ack", "1"));
    let (mut peer, connack) = connect.answer();
    assert!(connack.body.len() + 2 <= 40);
    for (flags, kind) in [(2, PUBACK), (4, PUBREC)] {
        let id = peer.new_id();
        peer.send_publish(flags, id, &topic, &[], b"x");
        let ack = peer.wait_for(kind);
        assert!(ack.body.len() + 2 <= 40, "{ack:02x?}");
    }
    let id = peer.new_id();
    let body = [
        id.to_be_bytes().to_vec(),
        crate::conformance::wire::properties(5, &[&user("stream-offset", "no position")]),
        crate::conformance::wire::text(&topic),
        vec![0],
    ];
    peer.send(&crate::conformance::wire::packet(0x82, &[&body.concat()]));
    let suback = peer.wait_for(SUBACK);
    assert!(suback.body.len() + 2 <= 40, "{suback:02x?}");
}

/// v5: 3.1.2-24
#[test]
fn an_assigned_client_id_and_a_small_packet_size_go_together() {
    let (mut peer, connack) = Connect::new(5, "")
        .with(&number(0x27, 128))
        .with(&string(0x26, "k")[..0])
        .answer();
    assert_eq!(connack.reason(), 0);
    assert!(connack.body.len() + 2 <= 128);
    peer.silent();
}
