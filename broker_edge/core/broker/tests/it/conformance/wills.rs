//! Wills: when they are published, when they are not, and what arrives.

use crate::conformance::talk::{Connect, Will, connect};
use crate::conformance::wire::{BOTH, Peer, number, packet, short, string, user};
use crate::conformance::{address, fresh};

fn with_will(v: u8, client_id: &str, topic: &str) -> Connect {
    let mut connect = Connect::new(v, client_id);
    connect.will = Some(Will::new(topic, "gone"));
    connect
}

fn watcher(v: u8, topic: &str) -> Peer {
    let mut watcher = connect(v, &fresh("watcher"));
    watcher.subscribe(topic, 2);
    watcher
}

/// v5: 3.1.2-7 3.1.2-8
/// v311: 3.1.2-8
#[test]
fn a_will_is_published_when_the_connection_is_lost() {
    for v in BOTH {
        let topic = fresh("will/");
        let mut watcher = watcher(v, &topic);
        let (peer, _) = with_will(v, &fresh("dies"), &topic).enter();
        peer.vanish();
        let message = watcher.message();
        assert_eq!(
            (message.payload_text().as_str(), message.qos()),
            ("gone", 1)
        );
    }
}

/// v5: 3.1.2-8
/// v311: 3.1.2-8 4.8.0-1
#[test]
fn a_will_is_published_when_the_broker_ends_the_connection_for_a_protocol_error() {
    for v in BOTH {
        let topic = fresh("will/");
        let mut watcher = watcher(v, &topic);
        let (mut peer, _) = with_will(v, &fresh("wrong"), &topic).enter();
        peer.send(&[0x36, 0]);
        peer.closed_with(0x81);
        assert_eq!(watcher.message().payload_text(), "gone");
    }
}

/// v5: 3.1.2-8
/// v311: 3.1.2-8
#[test]
fn a_will_is_published_when_another_connection_takes_over() {
    for v in BOTH {
        let (topic, id) = (fresh("will/"), fresh("taken"));
        let mut watcher = watcher(v, &topic);
        let (_first, _) = with_will(v, &id, &topic).enter();
        let (second, _) = Connect::new(v, &id).enter();
        assert_eq!(watcher.message().payload_text(), "gone");
        second.goodbye();
        watcher.silent();
    }
}

/// v5: 3.1.2-10 3.14.4-3
/// v311: 3.1.2-10 3.14.4-3
#[test]
fn a_goodbye_removes_the_will() {
    for v in BOTH {
        let topic = fresh("will/");
        let mut watcher = watcher(v, &topic);
        let (peer, _) = with_will(v, &fresh("polite"), &topic).enter();
        peer.goodbye();
        watcher.silent();
    }
}

/// v5: 3.1.2-10
/// v311: 3.1.2-10 3.1.2-12
#[test]
fn a_will_is_published_once_and_not_for_the_next_connection() {
    for v in BOTH {
        let (topic, id) = (fresh("will/"), fresh("once"));
        let mut watcher = watcher(v, &topic);
        let (peer, _) = with_will(v, &id, &topic).enter();
        peer.vanish();
        watcher.message();
        let (peer, _) = Connect::new(v, &id).enter();
        peer.vanish();
        // The second connection is gone when a third finds the client away.
        let mut third = connect(v, &fresh("third"));
        third.silent();
        watcher.silent();
    }
}

/// v5: 3.1.2-14 3.1.2-15
/// v311: 3.1.2-16 3.1.2-17
#[test]
fn a_will_is_retained_when_it_says_so_and_only_then() {
    for v in BOTH {
        for retain in [false, true] {
            let topic = fresh("will/");
            let mut watcher = watcher(v, &topic);
            let mut connect_it = with_will(v, &fresh("retain"), &topic);
            connect_it.will.as_mut().unwrap().retain = retain;
            connect_it.enter().0.vanish();
            assert!(!watcher.message().retain());
            let mut later = connect(v, &fresh("later"));
            later.subscribe(&topic, 1);
            if retain {
                let message = later.message();
                assert!(message.retain());
                assert_eq!(message.payload_text(), "gone");
            } else {
                later.silent();
            }
        }
    }
}

/// v5: 3.1.2-12
/// v311: 3.1.2-9
#[test]
fn a_will_has_the_qos_it_was_given() {
    for v in BOTH {
        for qos in 0..3 {
            let topic = fresh("will/");
            let mut watcher = watcher(v, &topic);
            let mut connect = with_will(v, &fresh("qos"), &topic);
            connect.will.as_mut().unwrap().qos = qos;
            connect.enter().0.vanish();
            assert_eq!(watcher.message().qos(), qos);
        }
    }
}

/// v5: 3.1.3-10 3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-20
#[test]
fn the_properties_of_a_will_reach_its_subscribers() {
    let topic = fresh("will/");
    let mut watcher = watcher(5, &topic);
    let mut connect = with_will(5, &fresh("rich"), &topic);
    connect.will.as_mut().unwrap().properties = [
        vec![0x01, 1],
        string(0x03, "text/plain"),
        string(0x08, "reply"),
        string(0x09, "42"),
        user("b", "1"),
        user("a", "2"),
        user("b", "1"),
    ]
    .concat();
    connect.enter().0.vanish();
    let message = watcher.message();
    assert_eq!(message.property(0x01), Some(vec![1]));
    assert_eq!(message.property_text(0x03).as_deref(), Some("text/plain"));
    assert_eq!(message.property_text(0x08).as_deref(), Some("reply"));
    assert_eq!(message.property_text(0x09).as_deref(), Some("42"));
    let users: Vec<_> = message.users();
    assert_eq!(
        users,
        [("b", "1"), ("a", "2"), ("b", "1")].map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
    assert_eq!(
        message.property(0x18),
        None,
        "the delay is the broker's business"
    );
}

/// v5: 3.1.3-9 3.1.2-8
#[test]
fn a_delayed_will_is_not_sent_when_the_client_is_back_in_time() {
    let (topic, id) = (fresh("will/"), fresh("back"));
    let mut watcher = watcher(5, &topic);
    let mut connect = Connect::lasting(5, &id);
    connect.will = Some(Will {
        properties: number(0x18, 1),
        ..Will::new(&topic, "gone")
    });
    connect.enter().0.vanish();
    connect.will = None;
    let (peer, _) = connect.enter();
    // Another client's will, due later than that one would have been.
    let mut other = Connect::lasting(5, &fresh("away"));
    other.will = Some(Will {
        properties: number(0x18, 2),
        ..Will::new(&topic, "other")
    });
    other.enter().0.vanish();
    assert_eq!(watcher.message().payload_text(), "other");
    watcher.silent();
    peer.goodbye();
}

/// v5: 3.1.2-8
#[test]
fn a_delayed_will_is_sent_when_the_session_ends_before_its_delay() {
    let topic = fresh("will/");
    let mut watcher = watcher(5, &topic);
    let mut connect = Connect::new(5, &fresh("ends")).with(&number(0x11, 1));
    connect.will = Some(Will {
        properties: number(0x18, 3600),
        ..Will::new(&topic, "gone")
    });
    connect.enter().0.vanish();
    assert_eq!(watcher.message().payload_text(), "gone");
}

/// v5: 3.1.2-10
#[test]
fn a_disconnect_with_will_publishes_it() {
    for reason in [0x04, 0x80, 0x82] {
        let topic = fresh("will/");
        let mut watcher = watcher(5, &topic);
        let (mut peer, _) = with_will(5, &fresh("asks"), &topic).enter();
        peer.send(&packet(0xe0, &[&[reason]]));
        assert_eq!(watcher.message().payload_text(), "gone");
        peer.closed();
    }
}

/// v5: 3.1.4-6
/// v311: 3.1.4-5
#[test]
fn a_refused_connect_leaves_no_will() {
    for v in BOTH {
        let topic = fresh("will/");
        let mut watcher = watcher(v, &topic);
        let mut connect = with_will(v, &fresh("refused"), &topic);
        connect.extra_flags = 1;
        let mut peer = Peer::open(address(), v);
        peer.send(&connect.encode());
        while peer.next().is_some() {}
        watcher.silent();
    }
}

/// v5: 3.3.2-6
#[test]
fn a_will_with_an_expiry_says_what_is_left_of_it() {
    let topic = fresh("will/");
    let mut connect_it = with_will(5, &fresh("expires"), &topic);
    let will = connect_it.will.as_mut().unwrap();
    will.retain = true;
    will.properties = [
        number(0x02, 3600),
        short(0x26, 1),
        b"k".to_vec(),
        vec![0, 1, b'v'],
    ]
    .concat();
    let mut watcher = watcher(5, &topic);
    connect_it.enter().0.vanish();
    let left = watcher.message().property(0x02).unwrap();
    let left = u32::from_be_bytes([left[0], left[1], left[2], left[3]]);
    assert!((3500..=3600).contains(&left), "{left}");
}
