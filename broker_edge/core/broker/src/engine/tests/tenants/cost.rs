//! What the sessions of one client may cost in a turn.

use super::super::*;
use super::{EXPIRY, V5, broker, settle};

#[test]
fn i8_a_subscribe_that_changes_nothing_stores_nothing() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut fields = ConnectFields::new(V5, "c");
    fields.properties = EXPIRY;
    let key = rig.connect(fields);
    rig.subscribe(key, V5);
    let end = rig.state.end();
    for _ in 0..3 {
        rig.subscribe(key, V5);
        rig.feed(key, |out| {
            encode::unsubscribe(out, V5, PacketId::FIRST, &[], &["none"])
        });
        assert_eq!(rig.packets(key, V5, 1).len(), 1);
    }
    assert_eq!(rig.state.end(), end);
    rig.feed(key, |out| {
        encode::unsubscribe(out, V5, PacketId::FIRST, &[], &["t"])
    });
    rig.packets(key, V5, 1);
    assert!(rig.state.end() > end);
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
    let asked = || super::super::super::session::RIGHTS_ASKED.with(std::cell::Cell::get);
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
fn i8_what_is_due_at_once_of_very_many_sessions_is_spread_over_turns() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let count = 3 * DUE_MAX;
    for n in 0..count {
        let name = format!("c{n}");
        let mut fields = ConnectFields::new(V5, &name);
        fields.properties = EXPIRY;
        let key = rig.connect(fields);
        rig.engine.remove(key);
    }
    rig.engine.take_closed();
    rig.pass_time(70_000);
    let left = rig.engine.clients.sessions_len();
    assert!(left >= count - DUE_MAX, "{left} are left after one turn");
    assert!(rig.engine.has_more(), "the loop does not sleep");
    for _ in 0..8 {
        rig.turn();
    }
    assert_eq!(rig.engine.clients.sessions_len(), 0);
    rig.crash();
}
