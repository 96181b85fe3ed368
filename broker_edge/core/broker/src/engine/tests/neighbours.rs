//! What the subscriptions of one user cost the records of others: nothing for disconnected sessions, nothing for shared
//! groups that may not have the records; and no session waits for groups that catch up, however many they are.

use super::super::session::RIGHTS_ASKED;
use super::guarded::Guarded;
use super::*;

const V5: Version = Version::V5;
/// Bob may read little and subscribe to everything: `#` includes what he may read.
const ACL: &str = "user ann\ntopic readwrite #\ntopic replay #\nuser bob\ntopic read own/bob/#\n";
const GROUPS: usize = 300;

fn broker() -> Guarded {
    let mut broker = Guarded::new(|_| {});
    broker.write("acl", ACL);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    broker
}

fn subscribe(broker: &mut Guarded, key: ConnKey, filters: &[String], position: Option<&str>) {
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let filters = filters
        .iter()
        .map(|filter| Subscription { filter, options });
    let filters: Vec<Subscription<'_>> = filters.collect();
    let position = position.map(|value| Property::UserProperty {
        key: "stream-offset",
        value,
    });
    let properties: Vec<_> = position.into_iter().collect();
    broker.rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &properties, &filters);
    });
}

fn groups(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("$share/g{n}/#")).collect()
}

/// How many subscriptions have to be examined for a topic.
fn looked_at(broker: &Guarded, topic: &str) -> usize {
    let mut found = 0;
    broker
        .rig
        .engine
        .routing
        .for_each_match(topic, &mut |_| found += 1);
    found
}

fn lasting<'a>(user: &'a str, password: &'a str, client_id: &'a str) -> ConnectFields<'a> {
    let mut fields = ConnectFields::new(V5, client_id);
    fields.clean_start = false;
    fields.username = Some(user);
    fields.password = Some(password.as_bytes());
    fields.properties = &[Property::SessionExpiryInterval(3600)];
    fields
}

#[test]
fn i8_sessions_that_are_away_cost_a_topic_nothing_and_get_their_records_when_they_are_back() {
    let mut broker = broker();
    for n in 0..50 {
        let name = format!("s{n}");
        let (key, code) = broker.try_connect(&lasting("bob", "pw-b", &name));
        assert_eq!(code, 0);
        let filters = ["#", "+/#", "own/bob/x"].map(str::to_owned);
        subscribe(&mut broker, key, &filters, None);
        assert_eq!(broker.rig.packets(key, V5, 1), ["suback"]);
        assert_eq!(looked_at(&broker, "own/bob/x"), 3);
        broker.rig.engine.remove(key);
        broker.rig.turn();
        assert_eq!(looked_at(&broker, "own/bob/x"), 0);
    }
    assert_eq!(broker.rig.engine.routing.subscriptions(), 150);
    let ann = broker.connect("ann", "pw-a", "publisher");
    assert_eq!(broker.publish(ann, "own/bob/x", 1), "puback 1");
    let mut broker = broker.restart();
    assert_eq!(looked_at(&broker, "own/bob/x"), 0);
    assert_eq!(broker.rig.engine.routing.subscriptions(), 150);
    let key = broker.rig.engine.open(crate::peer::Peer::nobody());
    let back = lasting("bob", "pw-b", "s7");
    broker.rig.feed(key, |out| encode::connect(out, &back));
    let told = broker.rig.packets(key, V5, 2);
    assert_eq!(told, ["connack true", "publish own/bob/x 1"]);
    assert_eq!(looked_at(&broker, "own/bob/x"), 3);
    let ann = broker.connect("ann", "pw-a", "publisher");
    broker.publish(ann, "own/bob/x", 2);
    assert_eq!(broker.rig.packets(key, V5, 1), ["publish own/bob/x 2"]);
    // A clean start removes everything of a disconnected session.
    let mut clean = ConnectFields::new(V5, "s9");
    clean.username = Some("bob");
    clean.password = Some(b"pw-b");
    assert_eq!(broker.try_connect(&clean).1, 0);
    assert_eq!(broker.rig.engine.routing.subscriptions(), 147);
    broker.rig.crash();
}

#[test]
fn i8_groups_of_who_may_not_have_a_record_cost_it_nothing() {
    let mut broker = broker();
    let bob = broker.connect("bob", "pw-b", "b");
    subscribe(&mut broker, bob, &groups(GROUPS), None);
    assert_eq!(broker.rig.packets(bob, V5, 1), ["suback"]);
    let ann = broker.connect("ann", "pw-a", "publisher");
    broker.publish(ann, "own/ann", 1);
    let before = RIGHTS_ASKED.with(std::cell::Cell::get);
    for id in 2..=11 {
        assert_eq!(broker.publish(ann, "own/ann", id), format!("puback {id}"));
    }
    let asked = RIGHTS_ASKED.with(std::cell::Cell::get) - before;
    assert!(asked <= 20, "{asked} questions for 10 records");
    // Records that he may have arrive, once for each group.
    broker.publish(ann, "own/bob/x", 12);
    let mut got = 0;
    while got < 100 {
        let due = broker.delivered(bob);
        got += due.len();
        assert!(!due.is_empty() || broker.rig.engine.has_more(), "{got}");
    }
    // One more member, who may read them, and the groups are asked again.
    let worker = broker.connect("ann", "pw-a", "worker");
    subscribe(&mut broker, worker, &groups(1), None);
    assert_eq!(broker.rig.packets(worker, V5, 1), ["suback"]);
    broker.publish(ann, "own/ann", 13);
    assert_eq!(broker.rig.packets(worker, V5, 1), ["publish own/ann 13"]);
    // They are asked again too when the ACL file changes.
    broker.write(
        "acl",
        "user ann\ntopic readwrite #\nuser bob\ntopic read #\n",
    );
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    let held = broker.rig.engine.clients.sessions_len();
    assert_eq!(held, 3);
    broker.rig.engine.groups.forget_audiences();
    let topic = ("own/ann", super::super::ids::PartitionIndex(1));
    let mut verdicts = crate::engine::shared_groups::Verdicts::default();
    let id = broker.rig.engine.groups.by_name("$share/g7/#");
    let id = id.expect("it is there");
    let groups = &broker.rig.engine.groups;
    assert!(groups.is_concerned(id, topic, &mut verdicts));
    broker.rig.crash();
}

#[test]
fn i8_a_session_that_catches_up_does_not_wait_for_all_groups_that_do() {
    let mut broker = broker();
    let mut fields = lasting("ann", "pw-a", "victim");
    let properties = [
        Property::SessionExpiryInterval(3600),
        Property::ReceiveMaximum(1),
    ];
    fields.properties = &properties;
    let (victim, _) = broker.try_connect(&fields);
    subscribe(&mut broker, victim, &["t".to_owned()], None);
    assert_eq!(broker.rig.packets(victim, V5, 1), ["suback"]);
    let ann = broker.connect("ann", "pw-a", "publisher");
    for id in 1..=20 {
        broker.publish(ann, "t", id);
    }
    assert_eq!(broker.rig.packets(victim, V5, 1), ["publish t 1"]);
    let other = broker.connect("ann", "pw-a", "groups");
    subscribe(&mut broker, other, &groups(GROUPS), Some("earliest"));
    for id in 1..=5 {
        broker.rig.feed(victim, |out| {
            let id = PacketId::new(id).expect("not zero");
            encode::puback(out, V5, id, ReasonCode::Success, &[]);
        });
        let mut got = Vec::new();
        for _ in 0..3 {
            broker.rig.turn();
            got.extend(broker.rig.sent(victim, V5));
        }
        assert_eq!(got, [format!("publish t {}", id + 1)]);
        assert!(broker.rig.engine.groups.runnable() > 0, "at {id}");
    }
    broker.rig.crash();
}
