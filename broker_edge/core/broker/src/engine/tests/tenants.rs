//! What one user and one tenant may use of shared limits, and that usage is counted correctly whatever happens.

use std::collections::BTreeMap;

use proptest::prelude::*;

use headwater_mqtt::encode::WillFields;

use super::super::quotas::{Counts, Kind};
use super::super::session::Session;
use super::super::session_bytes::UNCOUNTED_BYTES;
use super::guarded::Guarded;
use super::member::V5;
use super::*;

const EXPIRY: &[Property<'static>] = &[Property::SessionExpiryInterval(60)];
const ACL: &str = "user ann\ntopic readwrite #\nuser bob\ntopic readwrite #\n";

fn broker() -> Guarded {
    let mut broker = Guarded::new(|_| {});
    broker.write("acl", ACL);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    broker
}

fn limited(kinds: &[(Kind, u64)]) -> Guarded {
    let mut broker = broker();
    let mut limits = QuotaLimits::default();
    for (kind, limit) in kinds {
        limits.user[*kind as usize] = *limit;
        limits.tenant[*kind as usize] = *limit;
    }
    broker.rig.engine.quotas.limit(limits);
    broker
}

fn fields<'a>(user: &'a str, client_id: &'a str, lasts: bool) -> ConnectFields<'a> {
    let mut fields = ConnectFields::new(V5, client_id);
    fields.username = Some(user);
    fields.password = Some(if user == "ann" { b"pw-a" } else { b"pw-b" });
    fields.clean_start = false;
    fields.keep_alive_s = 0;
    if lasts {
        fields.properties = EXPIRY;
    }
    fields
}

/// The counted bytes that a session holds for its client.
fn bytes_of(engine: &Engine, session: &Session) -> usize {
    let conn = session.conn.and_then(|key| engine.conns.get(key));
    let waiting = session.offline.as_ref().and_then(|away| away.will.as_ref());
    let wills = [
        conn.and_then(|conn| conn.extras.will.as_deref()),
        waiting.map(|(_, will)| &**will),
    ];
    let wills = wills.into_iter().flatten();
    let will: usize = wills
        .map(|will| will.topic.len() + will.payload.len() + will.properties.len())
        .sum();
    let filters: usize = session
        .subscriptions
        .iter()
        .map(|held| held.filter.len())
        .sum();
    (session.client_id.len() + will + filters).saturating_sub(UNCOUNTED_BYTES as usize)
}

/// The usage of all users, recounted from the engine's state.
fn recount(engine: &Engine) -> Vec<(String, Counts)> {
    let mut users: BTreeMap<String, Counts> = BTreeMap::new();
    let mut groups: BTreeMap<String, std::collections::BTreeSet<_>> = BTreeMap::new();
    let quotas = &engine.quotas;
    let mut add = |account, kind: Kind, count: usize| {
        let name = format!("{:?}", quotas.user_of(account));
        users.entry(name).or_default()[kind as usize] += count as u64;
    };
    for (_, session) in engine.sessions.iter() {
        let Some(account) = session.account else {
            continue;
        };
        add(account, Kind::Sessions, usize::from(session.stored));
        add(account, Kind::Subscriptions, session.subscriptions.len());
        add(account, Kind::SharedMembers, session.groups().len());
        add(account, Kind::SessionBytes, bytes_of(engine, session));
        let name = format!("{:?}", quotas.user_of(account));
        groups
            .entry(name)
            .or_default()
            .extend(session.groups().iter().copied());
    }
    for (_, conn) in engine.conns.iter() {
        if let Some(account) = conn.account {
            add(account, Kind::Connections, 1);
        }
    }
    for (account, bytes) in engine.retained.lock().charges() {
        add(account, Kind::Retained, 1);
        add(account, Kind::RetainedBytes, bytes as usize);
    }
    let sessions = engine.sessions.iter();
    let bytes: usize = sessions.map(|(_, session)| bytes_of(engine, session)).sum();
    assert_eq!(engine.session_bytes, bytes as u64, "of all together");
    for (name, groups) in groups {
        users.entry(name).or_default()[Kind::SharedGroups as usize] = groups.len() as u64;
    }
    users.retain(|_, counts| counts.iter().any(|count| *count > 0));
    users.into_iter().collect()
}

/// The usage according to the quotas, without topics.
fn ledger(engine: &Engine) -> Vec<(String, Counts)> {
    let (mut users, _) = engine.quotas.held();
    for (_, counts) in &mut users {
        counts[Kind::Topics as usize] = 0;
    }
    users.retain(|(_, counts)| counts.iter().any(|count| *count > 0));
    users
}

/// Runs turns until nothing is in progress.
fn settle(broker: &mut Guarded) {
    for _ in 0..1000 {
        broker.rig.turn();
        let is_quiet = broker.rig.quiet_at().is_some() && !broker.rig.engine.is_behind_log();
        if is_quiet && !broker.rig.engine.has_more() && broker.rig.engine.quotas.claims() == 0 {
            return;
        }
        if !broker.rig.engine.has_more() {
            broker.rig.wait_for_disk();
        }
    }
    panic!("it does not come to rest");
}

#[test]
fn one_connection_too_many_of_a_user_is_refused_and_a_freed_place_is_taken() {
    let mut broker = limited(&[(Kind::Connections, 2)]);
    let first = broker.connect("ann", "pw-a", "a1");
    broker.connect("ann", "pw-a", "a2");
    assert_eq!(broker.try_connect(&fields("ann", "a3", false)).1, 0x97);
    let mut old = fields("ann", "a3", false);
    (old.version, old.clean_start) = (Version::V311, true);
    assert_eq!(broker.try_connect(&old).1, 3);
    // A client that reconnects uses its own place, and others have theirs.
    broker.connect("ann", "pw-a", "a2");
    broker.connect("bob", "pw-b", "b1");
    broker.rig.engine.remove(first);
    assert_eq!(broker.try_connect(&fields("ann", "a3", false)).1, 0);
    broker.rig.crash();
}

#[test]
fn one_lasting_session_too_many_of_a_user_is_refused_until_one_expires() {
    let mut broker = limited(&[(Kind::Sessions, 1)]);
    let (first, code) = broker.try_connect(&fields("ann", "a1", true));
    assert_eq!(code, 0);
    broker.rig.engine.remove(first);
    assert_eq!(broker.try_connect(&fields("ann", "a2", true)).1, 0x97);
    assert_eq!(broker.try_connect(&fields("ann", "a2", false)).1, 0);
    assert_eq!(broker.try_connect(&fields("bob", "b1", true)).1, 0);
    let (again, code) = broker.try_connect(&fields("ann", "a1", true));
    assert_eq!(code, 0, "it is the same session");
    broker.rig.engine.remove(again);
    broker.rig.pass_time(61_000);
    assert_eq!(broker.try_connect(&fields("ann", "a3", true)).1, 0);
    assert_eq!(broker.rig.engine.metrics.mqtt.sessions_refused.get(), 1);
    broker.rig.crash();
}

#[test]
fn subscriptions_groups_and_members_over_a_quota_are_refused_with_0x97() {
    for (kind, taken, one_more) in [
        (Kind::Subscriptions, "x/1", "x/2"),
        (Kind::SharedGroups, "$share/g/x", "$share/h/x"),
        (Kind::SharedMembers, "$share/g/x", "$share/h/x"),
    ] {
        let mut broker = limited(&[(kind, 1)]);
        let ann = broker.connect("ann", "pw-a", "a1");
        let bob = broker.connect("bob", "pw-b", "b1");
        assert_eq!(broker.subscribe(ann, taken, None), "0x01");
        assert_eq!(broker.subscribe(ann, taken, None), "0x01", "it has that");
        assert_eq!(broker.subscribe(ann, one_more, None), "0x97", "{kind:?}");
        assert_eq!(broker.subscribe(bob, one_more, None), "0x01");
        broker.rig.feed(ann, |out| {
            encode::unsubscribe(out, V5, PacketId::FIRST, &[], &[taken]);
        });
        broker.rig.turn();
        broker.keep_deliveries(ann);
        assert_eq!(broker.subscribe(ann, one_more, None), "0x01", "{kind:?}");
        broker.rig.crash();
    }
}

#[test]
fn retained_messages_count_to_who_set_them_at_once_and_until_somebody_else_does() {
    let mut broker = limited(&[(Kind::Retained, 2), (Kind::RetainedBytes, 100)]);
    let ann = broker.connect("ann", "pw-a", "a1");
    let bob = broker.connect("bob", "pw-b", "b1");
    let publish = |broker: &mut Guarded, key, topic: &str, id, text: &str| {
        broker.rig.publish_to(topic, true, key, V5, id, text);
    };
    // All in one turn: messages in progress count.
    for (id, topic) in (1..).zip(["r/1", "r/2", "r/3"]) {
        publish(&mut broker, ann, topic, id, "x");
    }
    let answers = broker.rig.packets(ann, V5, 3);
    assert_eq!(answers, ["puback 1", "puback 2", "refused QuotaExceeded"]);
    settle(&mut broker);
    publish(&mut broker, ann, "r/1", 4, "changed");
    assert_eq!(broker.rig.packets(ann, V5, 1), ["puback 4"]);
    publish(&mut broker, bob, "r/3", 1, "x");
    publish(&mut broker, bob, "r/1", 2, "mine");
    assert_eq!(broker.rig.packets(bob, V5, 2), ["puback 1", "puback 2"]);
    settle(&mut broker);
    publish(&mut broker, ann, "r/4", 5, "x");
    publish(&mut broker, ann, "r/2", 6, "");
    assert_eq!(broker.rig.packets(ann, V5, 2), ["puback 5", "puback 6"]);
    settle(&mut broker);
    publish(&mut broker, ann, "r/5", 7, &"x".repeat(120));
    assert_eq!(broker.rig.packets(ann, V5, 1), ["refused QuotaExceeded"]);
    assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine));
    broker.rig.crash();
}

#[test]
fn one_topic_too_many_of_all_clients_of_a_user_is_refused() {
    let mut broker = limited(&[(Kind::Topics, 3)]);
    let keys = ["a1", "a2"].map(|id| broker.connect("ann", "pw-a", id));
    let bob = broker.connect("bob", "pw-b", "b1");
    let answers: Vec<String> = (1..=4)
        .map(|id| broker.publish(keys[usize::from(id % 2 == 0)], &format!("t/{id}"), id))
        .collect();
    assert_eq!(answers[3], "refused QuotaExceeded", "{answers:?}");
    assert_eq!(broker.publish(keys[1], "t/1", 9), "puback 9");
    assert_eq!(broker.publish(bob, "t/4", 1), "puback 1");
    broker.rig.crash();
}

#[test]
fn users_of_a_tenant_share_what_it_may_have_and_a_reload_counts_anew() {
    let mut broker = limited(&[(Kind::Connections, 2), (Kind::SharedGroups, 1)]);
    let of_tenant =
        "user ann\ntenant plant\ntopic readwrite #\nuser bob\ntenant plant\ntopic readwrite #\n";
    broker.write("acl", of_tenant);
    broker.auth_service.reload().expect("the file is right");
    let ann = broker.connect("ann", "pw-a", "a1");
    let bob = broker.connect("bob", "pw-b", "b1");
    assert_eq!(broker.try_connect(&fields("bob", "b2", false)).1, 0x97);
    assert_eq!(broker.subscribe(ann, "$share/g/x", None), "0x01");
    assert_eq!(
        broker.subscribe(bob, "$share/g/x", None),
        "0x01",
        "it is the same group"
    );
    assert_eq!(broker.subscribe(bob, "$share/h/x", None), "0x97");
    let (_, tenants) = broker.rig.engine.quotas.held();
    assert_eq!(tenants.len(), 1, "{tenants:?}");
    assert_eq!(tenants[0].1[Kind::SharedGroups as usize], 1);
    assert_eq!(tenants[0].1[Kind::SharedMembers as usize], 2);
    broker.write("acl", ACL);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    let (_, tenants) = broker.rig.engine.quotas.held();
    assert_eq!(tenants.len(), 2, "each is a tenant of its own: {tenants:?}");
    assert!(
        tenants
            .iter()
            .all(|(_, counts)| counts[Kind::SharedGroups as usize] == 1)
    );
    assert_eq!(broker.try_connect(&fields("bob", "b2", false)).1, 0);
    broker.write("acl", of_tenant);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    assert!(
        !broker.is_closed(ann),
        "what is there stays, and no more comes"
    );
    assert_eq!(broker.try_connect(&fields("ann", "a2", false)).1, 0x97);
    let refusals = broker.rig.engine.metrics.audit.refusals();
    let text = format!("{refusals:?}");
    assert!(
        text.contains("quota:connections") && text.contains("quota:shared_groups"),
        "{text}"
    );
    broker.rig.crash();
}

#[test]
fn sessions_of_the_log_count_after_a_restart_on_their_owners() {
    let mut broker = broker();
    let (key, _) = broker.try_connect(&fields("ann", "a1", true));
    broker.rig.feed(key, |out| {
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        let wanted = ["x", "$share/g/x"].map(|filter| Subscription { filter, options });
        encode::subscribe(out, V5, PacketId::FIRST, &[], &wanted);
    });
    assert_eq!(broker.rig.packets(key, V5, 1), ["suback"]);
    let mut broker = broker.restart();
    assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine));
    let (users, _) = broker.rig.engine.quotas.held();
    assert_eq!(users.len(), 1, "{users:?}");
    assert_eq!(users[0].1[..5], [1, 0, 2, 1, 1]);
    let mut limits = QuotaLimits::default();
    limits.user[Kind::Sessions as usize] = 1;
    broker.rig.engine.quotas.limit(limits);
    assert_eq!(broker.try_connect(&fields("ann", "a2", true)).1, 0x97);
    assert_eq!(broker.try_connect(&fields("bob", "b1", true)).1, 0);
    broker.rig.crash();
}

#[test]
fn a_will_over_the_quota_of_retained_messages_is_published_without_the_flag() {
    let mut broker = limited(&[(Kind::Retained, 1)]);
    let watcher = broker.connect("bob", "pw-b", "watcher");
    assert_eq!(broker.subscribe(watcher, "w/#", None), "0x01");
    for n in 1..=2 {
        let (name, topic) = (format!("a{n}"), format!("w/{n}"));
        let mut fields = fields("ann", &name, false);
        fields.will = Some(headwater_mqtt::encode::WillFields {
            topic: &topic,
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: &[],
        });
        let (key, code) = broker.try_connect(&fields);
        assert_eq!(code, 0);
        broker.rig.engine.lost(key);
        broker.rig.engine.remove(key);
        settle(&mut broker);
    }
    assert_eq!(broker.delivered(watcher), ["publish gone", "publish gone"]);
    assert_eq!(broker.rig.engine.retained.lock().held().0, 1);
    assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine));
    broker.rig.crash();
}

#[test]
fn i8_a_subscribe_that_changes_nothing_stores_nothing() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut fields = ConnectFields::new(V5, "c");
    fields.properties = EXPIRY;
    let key = rig.connect(fields);
    rig.subscribe(key, V5);
    let end = rig.engine.state.end();
    for _ in 0..3 {
        rig.subscribe(key, V5);
        rig.feed(key, |out| {
            encode::unsubscribe(out, V5, PacketId::FIRST, &[], &["none"])
        });
        assert_eq!(rig.packets(key, V5, 1).len(), 1);
    }
    assert_eq!(rig.engine.state.end(), end);
    rig.feed(key, |out| {
        encode::unsubscribe(out, V5, PacketId::FIRST, &[], &["t"])
    });
    rig.packets(key, V5, 1);
    assert!(rig.engine.state.end() > end);
    rig.crash();
}

#[test]
fn i8_many_filters_over_values_that_may_not_be_read_are_looked_through_in_many_turns() {
    let mut broker = broker();
    broker.write(
        "acl",
        "user ann\ntopic readwrite #\nuser bob\ntopic read r/mine\n",
    );
    broker.auth_service.reload().expect("the file is right");
    let ann = broker.connect("ann", "pw-a", "a1");
    for id in 0..500 {
        broker
            .rig
            .publish_to(&format!("r/{id}"), true, ann, V5, id + 1, "x");
    }
    broker.rig.packets(ann, V5, 500);
    settle(&mut broker);
    let bob = broker.connect("bob", "pw-b", "b1");
    let options = SubscriptionOptions::new(QoS::AtMostOnce);
    let filters: Vec<String> = (0..100)
        .map(|n| format!("r/{}#", "+/".repeat(n % 2)))
        .collect();
    let mut filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    filters.extend(["r/+", "+/mine", "#", "+/+", "+/#"]);
    filters.sort_unstable();
    filters.dedup();
    let wanted: Vec<_> = filters
        .iter()
        .map(|filter| Subscription { filter, options })
        .collect();
    broker.rig.feed(bob, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &wanted);
    });
    let asked = || super::super::session::RIGHTS_ASKED.with(std::cell::Cell::get);
    let mut turns = 0;
    loop {
        let before = asked();
        broker.rig.turn();
        turns += 1;
        let cost = asked() - before;
        assert!(cost <= 33 * 64, "{cost} questions in a turn");
        if !broker.rig.engine.has_more() {
            break;
        }
    }
    assert!(turns > 1, "{turns}");
    broker.rig.crash();
}

#[test]
fn an_open_broker_has_no_accounts() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.quotas.limit(QuotaLimits {
        tenant: [0; Kind::ALL.len()],
        user: [0; Kind::ALL.len()],
    });
    let key = rig.connect(ConnectFields::new(V5, "c"));
    rig.subscribe(key, V5);
    rig.publish_to("t", true, key, V5, 1, "x");
    rig.packets(key, V5, 2);
    assert!(!rig.engine.quotas.is_used());
    rig.crash();
}

#[test]
fn i8_what_is_due_at_once_of_very_many_sessions_is_spread_over_turns() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let count = 3 * tick::DUE_MAX;
    for n in 0..count {
        let name = format!("c{n}");
        let mut fields = ConnectFields::new(V5, &name);
        fields.properties = EXPIRY;
        let key = rig.connect(fields);
        rig.engine.remove(key);
    }
    rig.engine.take_closed();
    rig.pass_time(70_000);
    let left = rig.engine.sessions.len();
    assert!(
        left >= count - tick::DUE_MAX,
        "{left} are left after one turn"
    );
    assert!(rig.engine.has_more(), "the loop does not sleep");
    for _ in 0..8 {
        rig.turn();
    }
    assert_eq!(rig.engine.sessions.len(), 0);
    rig.crash();
}

#[derive(Debug, Clone)]
enum Event {
    Connect {
        user: bool,
        client: u8,
        lasts: bool,
        clean: bool,
        will: u8,
    },
    Lose(u8),
    /// With the will or without.
    Leave(u8, bool),
    Subscribe(u8, u8),
    Unsubscribe(u8, u8),
    Retain(u8, u8, u8),
    PassTime,
    Reload,
}

const FILTERS: [&str; 6] = [
    "a",
    "b/#",
    "$share/g/a",
    "$share/h/b/#",
    "$share/g/b/+",
    LONG,
];
/// Long enough that sessions with it count.
const LONG: &str = match std::str::from_utf8(&[b'f'; UNCOUNTED_BYTES as usize]) {
    Ok(long) => long,
    Err(_) => "",
};
/// Wills without and with a delay, short and long.
const WILLS: [(usize, u32); 5] = [(0, 0), (10, 0), (300, 0), (300, 20), (2000, 300)];

fn event() -> impl Strategy<Value = Event> {
    let client = 0u8..4;
    prop_oneof![
        4 => (any::<bool>(), client.clone(), any::<bool>(), any::<bool>(), 0u8..5).prop_map(
            |(user, client, lasts, clean, will)| Event::Connect { user, client, lasts, clean, will }
        ),
        2 => client.clone().prop_map(Event::Lose),
        2 => (client.clone(), any::<bool>()).prop_map(|(client, will)| Event::Leave(client, will)),
        4 => (client.clone(), 0u8..6).prop_map(|(client, filter)| Event::Subscribe(client, filter)),
        2 => (client.clone(), 0u8..6).prop_map(|(client, filter)| Event::Unsubscribe(client, filter)),
        4 => (client, 0u8..3, 0u8..4).prop_map(|(client, topic, len)| Event::Retain(client, topic, len)),
        1 => Just(Event::PassTime),
        1 => Just(Event::Reload),
    ]
}

fn apply(broker: &mut Guarded, live: &mut BTreeMap<u8, ConnKey>, event: &Event, id: u16) {
    let packet_id = PacketId::new(id).expect("not zero");
    match event {
        Event::Connect {
            user,
            client,
            lasts,
            clean,
            will,
        } => {
            let name = format!("c{client}");
            let user = if *user { "ann" } else { "bob" };
            let mut fields = fields(user, &name, *lasts);
            fields.clean_start = *clean;
            let (len, delay_s) = WILLS[usize::from(*will)];
            let (text, delay) = (vec![b'w'; len], [Property::WillDelayInterval(delay_s)]);
            fields.will = (len > 0).then_some(WillFields {
                topic: "will",
                payload: &text,
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: &delay,
            });
            let (key, code) = broker.try_connect(&fields);
            if code == 0 {
                live.insert(*client, key);
            }
        }
        Event::Lose(client) => {
            if let Some(key) = live.remove(client) {
                broker.rig.engine.remove(key);
            }
        }
        Event::Leave(client, will) => {
            if let Some(key) = live.remove(client) {
                let reason = if *will {
                    ReasonCode::DisconnectWithWill
                } else {
                    ReasonCode::NORMAL_DISCONNECTION
                };
                broker
                    .rig
                    .feed(key, |out| encode::disconnect(out, V5, reason, &[]));
                broker.rig.turn();
                broker.rig.engine.remove(key);
            }
        }
        Event::Subscribe(client, filter) => {
            if let Some(key) = live.get(client) {
                let options = SubscriptionOptions::new(QoS::AtLeastOnce);
                let filter = FILTERS[usize::from(*filter)];
                let one = [Subscription { filter, options }];
                broker.rig.feed(*key, |out| {
                    encode::subscribe(out, V5, packet_id, &[], &one);
                });
            }
        }
        Event::Unsubscribe(client, filter) => {
            if let Some(key) = live.get(client) {
                let filter = FILTERS[usize::from(*filter)];
                broker.rig.feed(*key, |out| {
                    encode::unsubscribe(out, V5, packet_id, &[], &[filter]);
                });
            }
        }
        Event::Retain(client, topic, len) => {
            if let Some(key) = live.get(client) {
                let text = "x".repeat(usize::from(*len));
                let topic = ["a", "b/1", "b/2"][usize::from(*topic)];
                broker.rig.publish_to(topic, true, *key, V5, id, &text);
            }
        }
        Event::PassTime => broker.rig.pass_time(61_000),
        Event::Reload => {
            broker.auth_service.reload().expect("the files are right");
            broker.rig.turn();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_what_is_counted_is_what_there_is(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut broker = broker();
        let mut live = BTreeMap::new();
        for (id, event) in (1..).zip(&events) {
            apply(&mut broker, &mut live, event, id);
            if id % 4 == 0 {
                settle(&mut broker);
                prop_assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine), "after {:?}", event);
            }
        }
        settle(&mut broker);
        prop_assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine));
        for key in live.into_values() {
            broker.rig.engine.remove(key);
        }
        broker.rig.pass_time(61_000);
        for topic in ["a", "b/1", "b/2"] {
            let key = broker.connect("ann", "pw-a", "last");
            broker.rig.publish_to(topic, true, key, V5, 1, "");
            broker.rig.packets(key, V5, 1);
            broker.rig.engine.remove(key);
        }
        settle(&mut broker);
        let (users, tenants) = broker.rig.engine.quotas.held();
        let zero = |of: &[(String, Counts)]| {
            of.iter().all(|(_, counts)| counts[..Kind::Topics as usize].iter().all(|count| *count == 0))
        };
        prop_assert!(zero(&users) && zero(&tenants), "{:?} {:?}", users, tenants);
        broker.rig.crash();
    }
}

#[test]
fn a_tenant_that_releases_no_packet_ids_leaves_half_of_them_to_others() {
    let mut broker = broker();
    broker.rig.engine.settings.ids_in_use_max = 40;
    let publish = |broker: &mut Guarded, key: ConnKey, id: u16| {
        let fields = PublishFields {
            version: V5,
            dup: false,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: "t",
            packet_id: PacketId::new(id),
            properties: &[],
            extra: &[],
        };
        broker.rig.feed(key, |out| {
            fields.encode(out, b"x").expect("a small packet");
        });
        let answer = broker.rig.packets(key, V5, 1);
        answer.concat().contains("QuotaExceeded")
    };
    let names = ["a1", "a2"].map(|id| fields("ann", id, false));
    let hostile = names.map(|fields| broker.try_connect(&fields).0);
    let bob = broker.connect("bob", "pw-b", "bob");
    let mut taken = 0;
    for id in 1..=30 {
        broker.rig.pass_time(250);
        for key in hostile {
            taken += usize::from(!publish(&mut broker, key, id));
        }
    }
    assert_eq!(taken, 20, "half of all");
    for id in 1..=10 {
        assert!(!publish(&mut broker, bob, id), "{id}");
    }
    let refusals = broker.rig.engine.metrics.audit.refusals();
    let row = refusals
        .users
        .iter()
        .find(|row| row.user.as_deref() == Some("ann"));
    let reasons = row.expect("a row").refused.iter().map(|kind| kind.reason);
    assert_eq!(reasons.collect::<Vec<_>>(), ["quota:packet_ids"]);
    broker.rig.crash();
}
