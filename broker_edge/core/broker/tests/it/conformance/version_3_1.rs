//! MQTT 3.1 (`MQIsdp`): there is no list of clauses for it; these tests cover what its clients rely on.

use crate::conformance::talk::{Connect, Will, connect};
use crate::conformance::wire::{Peer, packet, text};
use crate::conformance::{address, fresh};

#[test]
fn a_client_of_3_1_publishes_and_receives_with_every_qos() {
    for qos in 0..3 {
        let topic = fresh("t");
        let mut peer = connect(3, &fresh("old"));
        peer.subscribe(&topic, qos);
        connect(5, &fresh("p")).publish_2(&topic, "from 5");
        assert_eq!(peer.message().qos(), qos);
        let mut other = connect(5, &fresh("new"));
        other.subscribe(&topic, 2);
        match qos {
            0 => peer.send_publish(0, 0, &topic, &[], b"from 3.1"),
            1 => peer.publish(&topic, "from 3.1"),
            _ => peer.publish_2(&topic, "from 3.1"),
        }
        assert_eq!(other.message().payload_text(), "from 3.1");
        peer.unsubscribe(&[&topic]);
        peer.goodbye();
    }
}

#[test]
fn a_session_of_3_1_lasts_and_the_connack_has_no_flag_for_it() {
    let (id, topic) = (fresh("old"), fresh("t"));
    let lasting = Connect::lasting(3, &id);
    let (mut peer, _) = lasting.enter();
    peer.subscribe(&topic, 1);
    peer.goodbye();
    connect(4, &fresh("p")).publish(&topic, "kept");
    let (mut peer, flag) = lasting.enter();
    assert!(!flag);
    assert_eq!(peer.texts(1), ["kept"]);
}

#[test]
fn a_will_of_3_1_is_published() {
    let topic = fresh("will/");
    let mut watcher = connect(3, &fresh("w"));
    watcher.subscribe(&topic, 1);
    let mut connect = Connect::new(3, &fresh("dies"));
    connect.will = Some(Will::new(&topic, "gone"));
    connect.enter().0.vanish();
    assert_eq!(watcher.texts(1), ["gone"]);
}

#[test]
fn an_empty_client_id_is_rejected_in_3_1() {
    let (mut peer, connack) = Connect::new(3, "").answer();
    assert_eq!(connack.body, [0, 2]);
    peer.closed();
}

#[test]
fn the_length_of_the_packet_is_above_the_flags_in_3_1() {
    // User name and password are announced by flags and left out.
    let mut peer = Peer::open(address(), 3);
    peer.send(&packet(
        0x10,
        &[&text("MQIsdp"), &[3, 0xc2, 0, 60], &text(fresh("old"))],
    ));
    let connack = peer.next().unwrap();
    assert!(matches!(connack.body[1], 0 | 4 | 5), "{connack:02x?}");
}

#[test]
fn the_name_and_the_level_go_together() {
    for (name, level) in [("MQIsdp", 4), ("MQTT", 3)] {
        let mut peer = Peer::open(address(), 3);
        peer.send(&packet(
            0x10,
            &[&text(name), &[level, 2, 0, 60], &text(fresh("mixed"))],
        ));
        let connack = peer.next().unwrap();
        assert_eq!(connack.body, [0, 1], "{name} {level}");
        peer.closed();
    }
}
