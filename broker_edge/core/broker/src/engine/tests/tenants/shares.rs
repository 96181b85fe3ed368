//! What one user and one tenant may use of shared limits.

use headwater_log::PartitionState;

use super::super::super::quotas::Kind;
use super::super::full_queue::put;
use super::super::*;
use super::{ACL, Guarded, V5, broker, fields, ledger, limited, recount, settle};

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
    assert_eq!(broker.rig.engine.env.metrics.mqtt.sessions_refused.get(), 1);
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
    let refusals = broker.rig.engine.env.metrics.audit.refusals();
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
fn a_tenant_that_releases_no_packet_ids_leaves_half_of_them_to_others() {
    let mut broker = broker();
    broker.rig.engine.env.settings.ids_in_use_max = 40;
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
    let refusals = broker.rig.engine.env.metrics.audit.refusals();
    let row = refusals
        .users
        .iter()
        .find(|row| row.user.as_deref() == Some("ann"));
    let reasons = row.expect("a row").refused.iter().map(|kind| kind.reason);
    assert_eq!(reasons.collect::<Vec<_>>(), ["quota:packet_ids"]);
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
fn a_retained_message_that_the_log_refused_counts_for_a_minute_and_no_longer() {
    let mut broker = limited(&[(Kind::Retained, 1)]);
    let (ann, _) = broker.try_connect(&fields("ann", "a1", false));
    let telemetry = broker.rig.log.by_name("telemetry-0").expect("there");
    let telemetry = telemetry.clone();
    broker.rig.gate.is_full.store(true, Ordering::Relaxed);
    while telemetry.state() != PartitionState::Full {
        let _ = telemetry.append(put(&[7; 150 << 10]));
        broker.rig.wait_for_disk();
    }
    let retain = |broker: &mut Guarded, topic: &str| {
        broker.rig.publish_to(topic, true, ann, V5, 1, "x");
        broker.rig.packets(ann, V5, 1).remove(0)
    };
    assert_eq!(retain(&mut broker, "refused"), "refused QuotaExceeded");
    broker.rig.gate.is_full.store(false, Ordering::Relaxed);
    while telemetry.state() == PartitionState::Full {
        let moved = broker.rig.moved.recv_timeout(DEADLINE);
        moved.expect("there is space");
    }
    assert_eq!(broker.publish(ann, "not/retained", 1), "puback 1");
    assert_eq!(retain(&mut broker, "other"), "refused QuotaExceeded");
    broker.rig.pass_time(59_000);
    assert_eq!(retain(&mut broker, "other"), "refused QuotaExceeded");
    broker.rig.pass_time(1_000);
    assert_eq!(retain(&mut broker, "other"), "puback 1");
    settle(&mut broker);
    assert_eq!(retain(&mut broker, "third"), "refused QuotaExceeded");
    assert_eq!(recount(&broker.rig.engine), ledger(&broker.rig.engine));
    broker.rig.crash();
}
