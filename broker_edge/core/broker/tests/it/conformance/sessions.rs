//! Sessions: what is kept, for how long, and what the client is told.

use crate::conformance::fresh;
use crate::conformance::talk::{Connect, connect};
use crate::conformance::wire::{BOTH, number, packet, properties};

/// v5: 3.1.2-5 3.1.2-23 3.2.2-3 4.5.0-1
/// v311: 3.1.2-4 3.1.2-5 3.2.2-2 4.5.0-1 4.1.0-1
#[test]
fn a_session_is_resumed_with_what_came_meanwhile() {
    for v in BOTH {
        let (id, topic) = (fresh("resumed"), fresh("t"));
        let lasting = Connect::lasting(v, &id);
        let (mut peer, present) = lasting.enter();
        assert!(!present);
        peer.subscribe(&topic, 1);
        peer.goodbye();
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish(&topic, "one");
        publisher.publish_2(&topic, "two");
        let (mut peer, present) = lasting.enter();
        assert!(present);
        assert_eq!(peer.texts(2), ["one", "two"]);
        publisher.publish(&topic, "three");
        assert_eq!(peer.texts(1), ["three"]);
    }
}

/// v5: 3.1.2-4 3.1.4-4 3.2.2-2
/// v311: 3.1.2-6 3.1.4-3 3.2.2-1
#[test]
fn a_clean_start_forgets_the_session_for_good() {
    for v in BOTH {
        let (id, topic) = (fresh("clean"), fresh("t"));
        let lasting = Connect::lasting(v, &id);
        let (mut peer, _) = lasting.enter();
        peer.subscribe(&topic, 1);
        peer.goodbye();
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish(&topic, "for the old one");
        let (mut peer, present) = Connect::new(v, &id).enter();
        assert!(!present);
        publisher.publish(&topic, "for nobody");
        peer.silent();
        peer.goodbye();
        let (mut peer, present) = lasting.enter();
        assert!(!present, "a clean session is not resumed");
        peer.silent();
    }
}

/// v5: 3.1.2-6 3.2.2-3
/// v311: 3.1.2-4 3.2.2-3
#[test]
fn without_a_session_one_is_created() {
    for v in BOTH {
        let (mut peer, present) = Connect::lasting(v, &fresh("new")).enter();
        assert!(!present);
        peer.subscribe(&fresh("t"), 0);
    }
}

/// v5: 4.1.0-2
#[test]
fn a_session_without_an_expiry_ends_with_its_connection() {
    let id = fresh("short");
    let mut connect = Connect::new(5, &id);
    connect.clean = false;
    let (mut peer, _) = connect.enter();
    peer.subscribe(&fresh("t"), 1);
    peer.goodbye();
    assert!(!connect.enter().1);
}

/// v5: 4.1.0-2
#[test]
fn a_session_ends_when_its_expiry_has_passed() {
    let id = fresh("expires");
    let mut connect = Connect::new(5, &id).with(&number(0x11, 1));
    connect.clean = false;
    connect.enter().0.goodbye();
    assert!(connect.enter().1, "it is there before");
    let topic = fresh("will/");
    let mut watcher = crate::conformance::talk::connect(5, &fresh("w"));
    watcher.subscribe(&topic, 0);
    connect.will = Some(crate::conformance::talk::Will {
        // Published when the session ends, which is how the test notices it.
        properties: number(0x18, 3600),
        ..crate::conformance::talk::Will::new(&topic, "ended")
    });
    connect.enter().0.vanish();
    watcher.message();
    assert!(!connect.enter().1);
}

/// v5: 4.1.0-1
/// v311: 4.1.0-1 4.1.0-2
#[test]
fn a_session_lives_as_long_as_its_connection_whatever_its_expiry() {
    for v in BOTH {
        let topic = fresh("t");
        let mut peer = connect(v, &fresh("zero"));
        peer.subscribe(&topic, 1);
        for round in 0..3 {
            let text = format!("{round}");
            connect(v, &fresh("p")).publish(&topic, &text);
            assert_eq!(peer.texts(1), [text]);
        }
    }
}

/// v5: 3.1.2-23
#[test]
fn a_disconnect_may_shorten_or_prolong_a_session_but_not_begin_one() {
    let id = fresh("changes");
    let lasting = Connect::lasting(5, &id);
    let (mut peer, _) = lasting.enter();
    peer.send(&packet(0xe0, &[&[0], &properties(5, &[&number(0x11, 0)])]));
    peer.closed();
    assert!(!lasting.enter().1, "shortened to nothing");
    let (mut peer, _) = Connect::new(5, &fresh("zero")).enter();
    peer.send(&packet(0xe0, &[&[0], &properties(5, &[&number(0x11, 60)])]));
    peer.closed_with(0x82);
}

/// v311: 3.1.2.7
#[test]
fn retained_messages_outlive_sessions() {
    for v in BOTH {
        let topic = fresh("kept");
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_with(1, &topic, &[], "still here");
        publisher.goodbye();
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        assert_eq!(peer.texts(1), ["still here"]);
    }
}

/// v5: 3.1.2-5
/// v311: 3.1.2-4
#[test]
fn a_session_keeps_its_subscriptions_and_their_options() {
    for v in BOTH {
        let (id, topic) = (fresh("options"), fresh("t"));
        let lasting = Connect::lasting(v, &id);
        let (mut peer, _) = lasting.enter();
        peer.subscribe(&topic, 2);
        peer.subscribe(&format!("{topic}/low"), 0);
        peer.goodbye();
        let (mut peer, present) = lasting.enter();
        assert!(present);
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_2(&topic, "high");
        assert_eq!(peer.message().qos(), 2);
        publisher.publish_2(&format!("{topic}/low"), "low");
        assert_eq!(peer.message().qos(), 0);
    }
}
