//! Which clients are admitted, what they may do, and how a reload affects connected clients.

use crate::peer::Peer;

use super::guarded::{Guarded, quick_line};
use super::*;

#[test]
fn a_wrong_password_and_an_unknown_user_get_the_same_answer_of_their_version() {
    let mut broker = Guarded::new(|_| {});
    for (version, code) in [(Version::V5, 0x86), (Version::V311, 5), (Version::V31, 5)] {
        for (user, password) in [("ann", "pw-b"), ("eve", "pw-a"), ("ann", "")] {
            let mut fields = ConnectFields::new(version, "c");
            fields.username = Some(user);
            fields.password = Some(password.as_bytes());
            let (key, answer) = broker.try_connect(&fields);
            assert_eq!(answer, code, "{version:?} {user}");
            assert!(broker.is_closed(key));
        }
    }
    assert_eq!(broker.denied("bad_credentials"), 9);
    for (version, code) in [(Version::V5, 0x87), (Version::V311, 5)] {
        let (_, answer) = broker.try_connect(&ConnectFields::new(version, "c"));
        assert_eq!(answer, code);
    }
    assert_eq!(broker.denied("no_credentials"), 2);
    broker.connect("ann", "pw-a", "c");
    // The second time the verdict is cached, and no thread is asked.
    let mut fields = ConnectFields::new(Version::V5, "d");
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    let key = broker.rig.engine.open(Peer::nobody());
    broker.rig.feed(key, |out| encode::connect(out, &fields));
    assert!(
        !broker.rig.engine.out(key).is_empty(),
        "answered in the same turn"
    );
    broker.rig.crash();
}

#[test]
fn a_connection_that_waits_for_its_check_is_not_read_and_loses_nothing_that_it_sent() {
    let mut broker = Guarded::new(|_| {});
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    let key = broker.rig.engine.open(Peer::nobody());
    broker.rig.feed(key, |out| {
        encode::connect(out, &fields);
        encode::pingreq(out);
    });
    assert_eq!(broker.rig.engine.read_plan(key), ReadPlan::Wait);
    // However long the check takes, it does not count as silence of the client.
    broker.rig.now.mono_ms += 60_000;
    broker.rig.engine.tick();
    let packets = broker.rig.packets(key, Version::V5, 2);
    assert!(
        packets[0].starts_with("connack") && packets[1].contains("Pingresp"),
        "{packets:?}"
    );
    broker.rig.crash();
}

#[test]
fn what_names_are_made_of_lets_nobody_in_and_costs_no_check() {
    let mut broker = Guarded::new(|_| {});
    let long = "x".repeat(65_535);
    for (user, password) in [(long.as_str(), "pw-a"), ("ann", long.as_str()), ("", "")] {
        let mut fields = ConnectFields::new(Version::V5, "c");
        fields.username = Some(user);
        fields.password = Some(password.as_bytes());
        assert_eq!(broker.try_connect(&fields).1, 0x86);
    }
    broker.rig.crash();
}

#[test]
fn anonymous_clients_have_the_rights_in_front_of_the_sections() {
    let mut broker = Guarded::new(|settings| settings.allow_anonymous = true);
    let (key, code) = broker.try_connect(&ConnectFields::new(Version::V5, "c"));
    assert_eq!(code, 0);
    assert_eq!(broker.subscribe(key, "public/x", None), "0x01");
    assert_eq!(broker.subscribe(key, "a/x", None), "0x87");
    assert_eq!(broker.publish(key, "public/x", 1), "refused NotAuthorized");
    assert_eq!(broker.publish(key, "own/c/x", 2), "puback 2");
    broker.rig.crash();
}

#[test]
fn publishes_subscriptions_deliveries_and_replays_follow_the_acl() {
    let mut broker = Guarded::new(|_| {});
    let ann = broker.connect("ann", "pw-a", "ann-1");
    let bob = broker.connect("bob", "pw-b", "bob-1");
    assert_eq!(broker.publish(ann, "a/secret", 1), "refused NotAuthorized");
    assert_eq!(broker.publish(bob, "a/x", 1), "refused NotAuthorized");
    assert_eq!(
        broker.publish(bob, "own/ann-1/x", 2),
        "refused NotAuthorized"
    );
    // The second time the cached verdict is used.
    assert_eq!(broker.publish(bob, "a/x", 3), "refused NotAuthorized");
    assert_eq!(broker.subscribe(ann, "b/#", None), "0x87");
    assert_eq!(broker.subscribe(ann, "a/secret", None), "0x87");
    assert_eq!(
        broker.subscribe(ann, "#", None),
        "0x01",
        "it may match something"
    );
    assert_eq!(broker.publish(ann, "old/x", 4), "puback 4");
    assert_eq!(broker.subscribe(bob, "own/bob-1/#", None), "0x01");
    assert_eq!(broker.publish(bob, "own/bob-1/x", 5), "puback 5");
    assert_eq!(broker.delivered(bob), ["publish own/bob-1/x 5"]);
    assert_eq!(broker.delivered(ann), ["publish old/x 4"]);
    // The right to read does not include the right to replay.
    assert_eq!(broker.subscribe(bob, "old/+", Some("earliest")), "0x87");
    assert_eq!(broker.subscribe(bob, "$at/earliest/old/#", None), "0x87");
    assert_eq!(broker.subscribe(bob, "old/+", Some("latest")), "0x01");
    assert_eq!(broker.subscribe(ann, "old/+", Some("earliest")), "0x01");
    let replayed = broker.delivered(ann);
    assert!(
        replayed[0].starts_with("publish old/x 4 from "),
        "{replayed:?}"
    );
    assert_eq!(broker.rig.engine.env.metrics.auth.publishes_denied.get(), 4);
    assert_eq!(
        broker
            .rig
            .engine
            .env
            .metrics
            .auth
            .subscriptions_denied
            .get(),
        4
    );
    broker.rig.crash();
}

#[test]
fn an_older_client_without_the_right_is_acknowledged_and_its_publish_dropped() {
    let mut broker = Guarded::new(|_| {});
    let mut fields = ConnectFields::new(Version::V311, "c");
    fields.username = Some("bob");
    fields.password = Some(b"pw-b");
    let (key, code) = broker.try_connect(&fields);
    assert_eq!(code, 0);
    broker
        .rig
        .publish_to("a/x", false, key, Version::V311, 1, "x");
    assert_eq!(broker.rig.packets(key, Version::V311, 1), ["puback 1"]);
    assert_eq!(broker.rig.engine.env.metrics.auth.publishes_denied.get(), 1);
    assert!(broker.rig.log.partitions().iter().all(|partition| {
        partition.class() == Class::Internal || partition.high_watermark() == Offset(0)
    }));
    broker.rig.crash();
}

#[test]
fn a_client_id_of_wildcards_or_levels_gets_no_right_of_a_pattern() {
    let mut broker = Guarded::new(|_| {});
    for client_id in ["+", "#", "bob-1/x", "$SYS"] {
        let key = broker.connect("bob", "pw-b", client_id);
        let answer = broker.publish(key, "own/bob-1/x", 1);
        assert_eq!(answer, "refused NotAuthorized", "{client_id}");
    }
    broker.rig.crash();
}

#[test]
fn revocation_ends_connections_deliveries_and_publishes_at_once() {
    let mut broker = Guarded::new(|_| {});
    let ann = broker.connect("ann", "pw-a", "ann-1");
    let bob = broker.connect("bob", "pw-b", "bob-1");
    assert_eq!(broker.subscribe(ann, "a/#", None), "0x01");
    assert_eq!(broker.publish(ann, "a/x", 1), "puback 1");
    assert_eq!(broker.delivered(ann), ["publish a/x 1"]);
    // Bob's password changes, and Ann may only write.
    broker.write(
        "users",
        &(quick_line("ann", "pw-a") + &quick_line("bob", "new")),
    );
    broker.write("acl", "user ann\ntopic write a/#\n");
    broker.auth_service.reload().expect("the files are right");
    broker.rig.turn();
    let told = broker.rig.sent(bob, Version::V5);
    assert_eq!(told, ["disconnect AdministrativeAction"]);
    assert!(broker.is_closed(bob));
    assert_eq!(broker.publish(ann, "a/x", 2), "puback 2");
    assert!(broker.delivered(ann).is_empty(), "not delivered any more");
    broker.write("acl", "user ann\n");
    broker.auth_service.reload().expect("the files are right");
    assert_eq!(broker.publish(ann, "a/x", 3), "refused NotAuthorized");
    // The cached verdict on the old password is gone with the old files.
    let mut fields = ConnectFields::new(Version::V5, "bob-1");
    fields.username = Some("bob");
    fields.password = Some(b"pw-b");
    assert_eq!(broker.try_connect(&fields).1, 0x86);
    broker.connect("bob", "new", "bob-1");
    broker.rig.crash();
}

#[test]
fn a_bad_file_changes_nothing_and_is_named() {
    let mut broker = Guarded::new(|_| {});
    let ann = broker.connect("ann", "pw-a", "ann-1");
    broker.write("users", "nobody is left here\n");
    let error = broker
        .auth_service
        .reload()
        .expect_err("a bad line")
        .to_string();
    assert!(
        error.contains("users, line 1") && error.contains("headwater users add"),
        "{error}"
    );
    broker.write("users", &quick_line("ann", "pw-a"));
    broker.write("acl", "user ann\ntopic raed a/#\n");
    let error = broker
        .auth_service
        .reload()
        .expect_err("a bad line")
        .to_string();
    assert!(error.contains("acl, line 2"), "{error}");
    assert_eq!(broker.publish(ann, "a/x", 1), "puback 1");
    broker.connect("bob", "pw-b", "bob-1");
    broker.rig.crash();
}

#[test]
fn a_will_without_the_right_is_not_kept_and_one_that_lost_it_is_not_published() {
    let mut broker = Guarded::new(|_| {});
    for topic in ["b/will", "a/will"] {
        let mut fields = ConnectFields::new(Version::V311, "w");
        fields.username = Some("ann");
        fields.password = Some(b"pw-a");
        fields.will = Some(encode::WillFields {
            topic,
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: &[],
        });
        let (key, code) = broker.try_connect(&fields);
        assert_eq!(code, 0);
        if topic == "a/will" {
            broker.write("users", &quick_line("bob", "pw-b"));
            broker.auth_service.reload().expect("the files are right");
            broker.rig.turn();
            assert!(broker.is_closed(key));
        }
        broker.rig.engine.remove(key);
        broker.rig.turn();
    }
    assert_eq!(broker.rig.engine.env.metrics.auth.publishes_denied.get(), 2);
    broker.rig.crash();
}

#[test]
fn a_password_that_was_wrong_before_is_refused_without_a_check() {
    let mut broker = Guarded::new(|_| {});
    for user in ["ann", "nobody"] {
        let mut fields = ConnectFields::new(Version::V5, "c");
        fields.username = Some(user);
        fields.password = Some(b"wrong");
        assert_eq!(broker.try_connect(&fields).1, 0x86, "{user}");
        // An answer that needs a check comes with a later turn.
        let key = broker.rig.engine.open(Peer::nobody());
        broker.rig.feed(key, |out| encode::connect(out, &fields));
        let code = broker.rig.engine.out(key).to_vec().get(3).copied();
        assert_eq!(code, Some(0x86), "{user}");
    }
    assert_eq!(broker.denied("bad_credentials"), 4);
    broker.connect("ann", "pw-a", "c");
    // With other files the password may be right.
    broker.write("users", &quick_line("ann", "wrong"));
    broker.auth_service.reload().expect("the files are right");
    broker.rig.turn();
    broker.connect("ann", "wrong", "c");
    broker.rig.crash();
}

#[test]
fn a_full_queue_of_checks_refuses_and_leaves_those_in_it_alone() {
    // No thread takes anything from the queue: two checks wait, and the third is refused.
    let mut broker = Guarded::new(|settings| {
        settings.max_waiting = 2;
        settings.threads = 0;
    });
    let mut keys = Vec::new();
    for n in 0..3 {
        let client_id = format!("c{n}");
        let mut fields = ConnectFields::new(Version::V5, &client_id);
        fields.username = Some("ann");
        fields.password = Some(b"wrong");
        let key = broker.rig.engine.open(Peer::nobody());
        broker.rig.feed(key, |out| encode::connect(out, &fields));
        keys.push(key);
    }
    let codes: Vec<Option<u8>> = keys
        .iter()
        .map(|key| broker.rig.engine.out(*key).to_vec().get(3).copied())
        .collect();
    assert_eq!(codes, [None, None, Some(0x89)]);
    assert_eq!(broker.denied("busy"), 1);
    broker.rig.crash();
}

#[test]
fn i7_what_unknown_clients_have_sent_is_bounded_for_all_of_them_together() {
    let mut broker = Guarded::new(|settings| settings.threads = 0);
    broker.rig.engine.env.settings.mqtt.receive_budget_bytes = ByteSize(100 << 10);
    let payload = vec![b'x'; 60 << 10];
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    fields.will = Some(encode::WillFields {
        topic: "a/will",
        payload: &payload,
        qos: QoS::AtMostOnce,
        retain: false,
        properties: &[],
    });
    let mut codes = Vec::new();
    for _ in 0..2 {
        let key = broker.rig.engine.open(Peer::nobody());
        broker.rig.feed(key, |out| encode::connect(out, &fields));
        codes.push((key, broker.rig.engine.out(key).to_vec().get(3).copied()));
    }
    assert_eq!((codes[0].1, codes[1].1), (None, Some(0x89)));
    // A client that disconnects gives its bytes back.
    broker.rig.engine.remove(codes[0].0);
    broker.rig.engine.remove(codes[1].0);
    assert_eq!(broker.rig.engine.protocol.unknown_bytes(), 0);
    broker.rig.crash();
}
