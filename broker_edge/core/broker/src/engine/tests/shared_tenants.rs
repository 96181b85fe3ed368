//! Shared groups of different users: which records of one tenant another tenant, or a user who may not replay, gets.

use super::guarded::Guarded;
use super::*;

const V5: Version = Version::V5;
const GROUP: &str = "$share/g/#";
const TENANTS: &str =
    "user ann\ntenant north\ntopic readwrite #\nuser bob\ntenant south\ntopic readwrite #\n";
const NO_TENANTS: &str = "user ann\ntopic readwrite #\nuser bob\ntopic readwrite #\n";

fn broker(acl: &str) -> Guarded {
    let mut broker = Guarded::new(|_| {});
    load(&mut broker, acl);
    broker
}

fn load(broker: &mut Guarded, acl: &str) {
    broker.write("acl", acl);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
}

/// A session that outlives its connection.
fn lasting(broker: &mut Guarded, user: &str, client_id: &str) -> ConnKey {
    let mut fields = ConnectFields::new(V5, client_id);
    fields.clean_start = false;
    fields.properties = &[Property::SessionExpiryInterval(3600)];
    fields.username = Some(user);
    fields.password = Some(if user == "ann" { b"pw-a" } else { b"pw-b" });
    let key = broker.rig.engine.open(crate::peer::Peer::nobody());
    broker.rig.feed(key, |out| encode::connect(out, &fields));
    let told = answer(broker, key);
    assert!(told[0].starts_with("connack"), "{told:?}");
    key
}

fn subscribe(broker: &mut Guarded, key: ConnKey, position: Option<&str>) {
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let one = [Subscription {
        filter: GROUP,
        options,
    }];
    let position = position.map(|value| Property::UserProperty {
        key: "stream-offset",
        value,
    });
    let properties: Vec<_> = position.into_iter().collect();
    broker.rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &properties, &one);
    });
    assert_eq!(answer(broker, key), ["suback"]);
}

/// What a connection is sent besides its deliveries.
fn answer(broker: &mut Guarded, key: ConnKey) -> Vec<String> {
    loop {
        broker.rig.turn();
        let told = broker.keep_deliveries(key);
        if !told.is_empty() {
            return told;
        }
        if !broker.rig.engine.has_more() {
            let moved = broker.rig.moved.recv_timeout(DEADLINE);
            moved.expect("an answer");
        }
    }
}

/// The deliveries to a connection up to this number, and whatever else came with them.
fn received(broker: &mut Guarded, key: ConnKey, count: usize) -> Vec<String> {
    let mut got = broker.delivered(key);
    while got.len() < count {
        if !broker.rig.engine.has_more() {
            let moved = broker.rig.moved.recv_timeout(DEADLINE);
            moved.unwrap_or_else(|_| panic!("only {got:?}"));
        }
        got.extend(broker.delivered(key));
    }
    got
}

fn unsubscribe(broker: &mut Guarded, key: ConnKey) {
    broker.rig.feed(key, |out| {
        encode::unsubscribe(out, V5, PacketId::FIRST, &[], &[GROUP]);
    });
    assert_eq!(answer(broker, key).len(), 1);
}

#[test]
fn a_tenant_takes_nothing_from_the_group_of_another_that_has_its_name_and_filter() {
    let mut broker = broker(TENANTS);
    let ann = lasting(&mut broker, "ann", "a");
    subscribe(&mut broker, ann, None);
    for client_id in ["b1", "b2", "b3"] {
        let bob = lasting(&mut broker, "bob", client_id);
        subscribe(&mut broker, bob, None);
    }
    let sender = broker.connect("ann", "pw-a", "sender");
    for id in 1..=6 {
        assert_eq!(broker.publish(sender, "t", id), format!("puback {id}"));
    }
    assert_eq!(received(&mut broker, ann, 6).len(), 6);
    // After a crash they are still two groups.
    let mut broker = broker.restart();
    let sender = broker.connect("ann", "pw-a", "sender");
    assert_eq!(broker.publish(sender, "t", 7), "puback 7");
    let bob = lasting(&mut broker, "bob", "b1");
    assert!(!received(&mut broker, bob, 1).is_empty());
    let ann = lasting(&mut broker, "ann", "a");
    let got = received(&mut broker, ann, 7);
    assert!(got.contains(&"publish t 7".to_owned()), "{got:?}");
    broker.rig.crash();
}

#[test]
fn users_without_a_tenant_share_a_group_and_one_that_gets_a_tenant_stays_until_it_leaves() {
    let mut broker = broker(NO_TENANTS);
    let ann = lasting(&mut broker, "ann", "a");
    let bob = lasting(&mut broker, "bob", "b");
    for key in [ann, bob] {
        subscribe(&mut broker, key, None);
    }
    assert_eq!(broker.rig.engine.groups.len(), 1);
    load(&mut broker, TENANTS);
    subscribe(&mut broker, ann, None);
    assert_eq!(
        (
            broker.rig.engine.groups.len(),
            broker.rig.engine.groups.members()
        ),
        (1, 2),
        "nothing is lost by a change of the file"
    );
    unsubscribe(&mut broker, ann);
    subscribe(&mut broker, ann, None);
    assert_eq!(broker.rig.engine.groups.len(), 2);
    load(&mut broker, NO_TENANTS);
    for key in [ann, bob] {
        unsubscribe(&mut broker, key);
    }
    assert_eq!(
        (
            broker.rig.engine.groups.len(),
            broker.rig.engine.groups.members()
        ),
        (0, 0)
    );
    broker.rig.crash();
}

#[test]
fn a_group_that_begins_in_the_past_gives_of_it_what_may_be_replayed_and_nothing_else() {
    let mut broker =
        broker("user ann\ntopic read a/#\ntopic replay old/#\nuser bob\ntopic write #\n");
    let bob = broker.connect("bob", "pw-b", "bob");
    for (id, topic) in [(1, "a/secret"), (2, "old/x"), (3, "a/secret")] {
        assert_eq!(broker.publish(bob, topic, id), format!("puback {id}"));
    }
    let ann = lasting(&mut broker, "ann", "a");
    subscribe(&mut broker, ann, Some("earliest"));
    assert_eq!(broker.publish(bob, "a/now", 4), "puback 4");
    let text = |packet: &String| packet.split(" from ").next().map(str::to_owned);
    let got = received(&mut broker, ann, 2);
    let got: Vec<String> = got.iter().filter_map(text).collect();
    assert_eq!(got, ["publish old/x 2", "publish a/now 4"]);
    // Nor after a crash, when unacknowledged records are given again.
    let mut broker = broker.restart();
    let ann = lasting(&mut broker, "ann", "a");
    let got = received(&mut broker, ann, 2);
    assert!(
        got.iter().all(|packet| !packet.contains("secret")),
        "{got:?}"
    );
    broker.rig.crash();
}

#[test]
fn a_record_of_the_history_needs_the_right_to_replay_also_when_the_group_is_live() {
    let acl = "user ann\ntopic read #\ntopic replay #\nuser bob\ntopic readwrite #\n";
    let mut broker = broker(acl);
    let bob = broker.connect("bob", "pw-b", "publisher");
    assert_eq!(broker.publish(bob, "x", 1), "puback 1");
    let ann = lasting(&mut broker, "ann", "a");
    subscribe(&mut broker, ann, Some("earliest"));
    assert_eq!(broker.publish(bob, "x", 2), "puback 2");
    assert_eq!(received(&mut broker, ann, 2).len(), 2);
    // Her unacknowledged records go to the other member, as far as it may have them.
    let other = lasting(&mut broker, "bob", "b");
    subscribe(&mut broker, other, None);
    broker.rig.engine.remove(ann);
    assert_eq!(received(&mut broker, other, 1), ["publish x 2"]);
    assert_eq!(broker.delivered(other), [""; 0]);
    assert!(!broker.rig.engine.has_more());
    let ann = lasting(&mut broker, "ann", "a");
    let got = received(&mut broker, ann, 1);
    assert_eq!(got, ["publish x 1 from telemetry-0:0"]);
    broker.rig.crash();
}
