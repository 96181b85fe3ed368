//! Retained messages: what is kept, what is sent to whom, and which flag it has.

use crate::conformance::fresh;
use crate::conformance::talk::connect;
use crate::conformance::wire::{BOTH, PUBACK, PUBREC};

/// v5: 3.3.1-5 3.3.1-9
/// v311: 3.3.1-5 3.3.1-6 3.3.1-8
#[test]
fn a_new_subscription_gets_the_last_retained_message() {
    for v in BOTH {
        for qos in 0..3_u8 {
            let topic = fresh("kept");
            let mut publisher = connect(v, &fresh("p"));
            publisher.publish_with(1, &topic, &[], "old");
            publisher.send_publish(qos << 1 | 1, 77, &topic, &[], b"new");
            if qos > 0 {
                publisher.wait_for(if qos == 1 { PUBACK } else { PUBREC });
            }
            publisher.publish(&topic, "not kept");
            let mut peer = connect(v, &fresh("s"));
            peer.subscribe(&topic, 2);
            let message = peer.message();
            assert_eq!(
                (
                    message.payload_text().as_str(),
                    message.retain(),
                    message.qos()
                ),
                ("new", true, qos)
            );
            peer.silent();
        }
    }
}

/// v311: 3.3.1-7
#[test]
fn a_retained_qos_0_message_replaces_the_one_before() {
    for v in BOTH {
        let topic = fresh("kept");
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_with(1, &topic, &[], "old");
        publisher.send_publish(1, 0, &topic, &[], b"zero");
        publisher.silent();
        publisher.publish(&topic, "behind it");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        assert_eq!(peer.texts(1), ["zero"]);
    }
}

/// v5: 3.3.1-6 3.3.1-7
/// v311: 3.3.1-10 3.3.1-11
#[test]
fn an_empty_retained_message_removes_and_is_delivered_like_any_other() {
    for v in BOTH {
        let topic = fresh("kept");
        let mut publisher = connect(v, &fresh("p"));
        let mut live = connect(v, &fresh("live"));
        live.subscribe(&topic, 1);
        publisher.publish_with(1, &topic, &[], "old");
        publisher.publish_with(1, &topic, &[], "");
        assert_eq!(live.texts(2), ["old", ""]);
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        peer.silent();
    }
}

/// v5: 3.3.1-8
/// v311: 3.3.1-12
#[test]
fn a_message_that_is_not_retained_leaves_the_retained_one_alone() {
    for v in BOTH {
        let (topic, other) = (fresh("kept"), fresh("other"));
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_with(1, &topic, &[], "kept");
        publisher.publish(&topic, "passing");
        publisher.publish(&topic, "");
        publisher.publish(&other, "passing");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        assert_eq!(peer.texts(1), ["kept"]);
        peer.subscribe(&other, 1);
        peer.silent();
    }
}

/// v5: 3.3.1-12
/// v311: 3.3.1-9
#[test]
fn established_subscriptions_get_messages_without_the_flag() {
    for v in BOTH {
        let topic = fresh("kept");
        let mut peer = connect(v, &fresh("s"));
        peer.subscribe(&topic, 1);
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_with(1, &topic, &[], "x");
        assert!(!peer.message().retain());
    }
}

/// v5: 3.3.1-13 3.3.1-12
#[test]
fn retain_as_published_keeps_the_flag() {
    let topic = fresh("kept");
    let mut as_published = connect(5, &fresh("s"));
    as_published.subscribe(&topic, 1 | 8);
    let mut plain = connect(5, &fresh("s"));
    plain.subscribe(&topic, 1);
    let mut publisher = connect(5, &fresh("p"));
    for flag in [1, 0] {
        publisher.publish_with(flag, &topic, &[], "x");
        assert_eq!(as_published.message().retain(), flag == 1);
        assert!(!plain.message().retain());
    }
    let mut later = connect(5, &fresh("s"));
    later.subscribe(&topic, 1);
    assert!(
        later.message().retain(),
        "a retained message says so whatever the option"
    );
}

/// v5: 3.3.1-9 3.3.1-10 3.3.1-11 3.8.4-4
#[test]
fn retain_handling_says_when_retained_messages_are_sent() {
    let topic = fresh("kept");
    connect(5, &fresh("p")).publish_with(1, &topic, &[], "kept");
    // The retain handling, and whether the first and the second SUBSCRIBE of the filter get the message.
    for (handling, first, second) in [(0, true, true), (1, true, false), (2, false, false)] {
        let mut peer = connect(5, &fresh("s"));
        for wanted in [first, second] {
            peer.subscribe(&topic, 1 | handling << 4);
            if wanted {
                assert_eq!(peer.texts(1), ["kept"], "handling {handling}");
            }
            peer.silent();
        }
    }
}

/// v5: 3.3.1-9
/// v311: 3.3.1-6 3.8.4-3
#[test]
fn wildcards_find_every_retained_message() {
    for v in BOTH {
        let root = fresh("kept");
        let mut publisher = connect(v, &fresh("p"));
        for leaf in ["a", "a/b", "c"] {
            publisher.publish_with(1, &format!("{root}/{leaf}"), &[], leaf);
        }
        for (filter, wanted) in [("#", 3), ("+", 2), ("a/#", 2), ("+/b", 1), ("a/+/c", 0)] {
            let mut peer = connect(v, &fresh("s"));
            peer.subscribe(&format!("{root}/{filter}"), 1);
            assert_eq!(peer.texts(wanted).len(), wanted);
            peer.silent();
        }
    }
}

/// v5: 3.8.4-8
/// v311: 3.8.4-6
#[test]
fn a_retained_message_has_the_lower_qos() {
    for v in BOTH {
        let topic = fresh("kept");
        let mut publisher = connect(v, &fresh("p"));
        publisher.publish_with(1, &topic, &[], "x");
        for (granted, wanted) in [(0, 0), (1, 1), (2, 1)] {
            let mut peer = connect(v, &fresh("s"));
            peer.subscribe(&topic, granted);
            assert_eq!(peer.message().qos(), wanted);
        }
    }
}
