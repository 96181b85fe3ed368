//! The cost of a record does not depend on how many members a shared group has that are disconnected, full or without
//! the right to it. The tests count how often rights are checked.

use super::super::session::RIGHTS_ASKED;
use super::guarded::Guarded;
use super::*;

const MEMBERS: usize = 600;
const RECORDS: u64 = 50;
/// The publisher's rights are checked once per topic, those of a few members per record.
const PER_RECORD: u64 = 4;

fn asked() -> u64 {
    RIGHTS_ASKED.with(std::cell::Cell::get)
}

fn lasting(client_id: &str) -> ConnectFields<'_> {
    let mut fields = ConnectFields::new(Version::V5, client_id);
    fields.clean_start = false;
    fields.username = Some("bob");
    fields.password = Some(b"pw-b");
    fields.properties = &[Property::SessionExpiryInterval(3600)];
    fields
}

/// Bob may read his own topics and subscribe to others that he may not read: `own/#` covers both.
fn broker() -> Guarded {
    let broker = Guarded::new(|_| {});
    let acl = "user ann\ntopic readwrite #\nuser bob\ntopic read own/bob/#\n";
    broker.write("acl", acl);
    broker.auth_service.reload().expect("the file is right");
    broker
}

/// Members of one group, by bob; the first `away` of them lose their connections.
fn join(broker: &mut Guarded, filter: &str, away: usize) -> Vec<ConnKey> {
    let mut keys = Vec::new();
    for n in 0..MEMBERS {
        let name = format!("m{n}");
        let (key, code) = broker.try_connect(&lasting(&name));
        assert_eq!(code, 0);
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        let one = [Subscription { filter, options }];
        broker.rig.feed(key, |out| {
            encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &one);
        });
        assert_eq!(broker.rig.packets(key, Version::V5, 1), ["suback"]);
        keys.push(key);
    }
    for key in keys.drain(..away) {
        broker.rig.engine.remove(key);
    }
    broker.rig.turn();
    keys
}

/// Publishes records to one topic and returns how often rights were checked for them.
fn cost_of_publishing(broker: &mut Guarded, topic: &str) -> u64 {
    let publisher = broker.connect("ann", "pw-a", "publisher");
    broker.publish(publisher, topic, 1);
    for _ in 0..8 {
        broker.rig.turn();
    }
    let before = asked();
    for id in 0..RECORDS {
        let answer = broker.publish(publisher, topic, id as u16 + 2);
        assert_eq!(answer, format!("puback {}", id + 2));
    }
    asked() - before
}

#[test]
fn i8_members_that_are_away_cost_a_record_nothing() {
    let mut broker = broker();
    join(&mut broker, "$share/g/own/#", MEMBERS);
    let cost = cost_of_publishing(&mut broker, "own/other");
    assert!(cost <= PER_RECORD * RECORDS, "{cost} questions");
    broker.rig.crash();
}

#[test]
fn i8_members_that_may_not_receive_a_record_cost_it_nothing_after_the_first() {
    let mut broker = broker();
    let present = join(&mut broker, "$share/g/own/#", MEMBERS / 2);
    let cost = cost_of_publishing(&mut broker, "own/other");
    assert!(cost <= PER_RECORD * RECORDS, "{cost} questions");
    // A member of another user in the same group gets what that user may receive.
    let own = broker.connect("ann", "pw-a", "worker");
    assert_eq!(broker.subscribe(own, "$share/g/own/#", None), "0x01");
    broker.publish(own, "own/other", 9);
    let before = asked();
    let mut got = broker.delivered(own);
    for id in 10..40 {
        broker.publish(own, "own/other", id);
        got.extend(broker.delivered(own));
    }
    assert_eq!(got.len(), 31, "{got:?}");
    let cost = asked() - before;
    assert!(cost <= PER_RECORD * 31 + MEMBERS as u64, "{cost} questions");
    drop(present);
    broker.rig.crash();
}

#[test]
fn i8_full_members_cost_a_record_nothing_and_come_back_to_the_line_when_they_acknowledge() {
    let mut broker = broker();
    let acl = "user ann\ntopic readwrite #\nuser bob\ntopic read #\n";
    broker.write("acl", acl);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
    broker.rig.engine.env.settings.mqtt.max_inflight = 1;
    let present = join(&mut broker, "$share/g/own/#", MEMBERS - 3);
    let publisher = broker.connect("ann", "pw-a", "publisher");
    for id in 1..=3 {
        broker.publish(publisher, "own/x", id);
    }
    let before = asked();
    for id in 4..40 {
        broker.publish(publisher, "own/x", id);
    }
    assert!(asked() - before <= PER_RECORD * 36, "nobody has room");
    for key in &present {
        assert_eq!(broker.delivered(*key).len(), 1);
    }
    let first = present[0];
    for round in 1..=5 {
        broker.rig.feed(first, |out| {
            let id = PacketId::new(round).expect("not zero");
            encode::puback(out, Version::V5, id, ReasonCode::Success, &[]);
        });
        broker.rig.turn();
        assert_eq!(broker.delivered(first).len(), 1, "round {round}");
    }
    broker.rig.crash();
}

#[test]
fn i8_a_group_with_many_different_rights_waits_and_a_turn_looks_at_a_bounded_number() {
    let mut broker = broker();
    let present = join(&mut broker, "$share/g/own/#", 0);
    let publisher = broker.connect("ann", "pw-a", "publisher");
    let plain = broker.connect("ann", "pw-a", "plain");
    assert_eq!(broker.subscribe(plain, "own/#", None), "0x01");
    let looks = broker
        .rig
        .engine
        .env
        .metrics
        .mqtt
        .shared_rights_checks
        .get();
    let mut got = 0;
    for id in 1..=20_u16 {
        // Each topic is new, so all members would have to be examined for each.
        let topic = format!("own/{id}");
        broker.publish(publisher, &topic, id);
        got += broker.delivered(plain).len();
    }
    assert_eq!(got, 20, "who is not in the group waits for nothing");
    let looked = broker
        .rig
        .engine
        .env
        .metrics
        .mqtt
        .shared_rights_checks
        .get()
        - looks;
    let turns = broker.rig.engine.env.metrics.mqtt.turns.get();
    assert!(
        looked <= 256 * turns + MEMBERS as u64,
        "{looked} in {turns} turns"
    );
    // Records that some member may receive arrive, after all those that none may.
    broker.publish(publisher, "own/bob/x", 21);
    let mut came = 0;
    for _ in 0..1000 {
        broker.rig.turn();
        if !broker.rig.engine.has_more() {
            break;
        }
    }
    for key in present {
        came += broker.delivered(key).len();
    }
    assert_eq!(came, 1);
    broker.rig.crash();
}

#[test]
fn i8_what_only_a_member_without_room_or_away_may_receive_holds_up_no_other_member() {
    for away in [false, true] {
        let mut broker = broker();
        let acl =
            "user ann\ntopic readwrite work/#\ntopic write bob/x\nuser bob\ntopic read bob/#\n";
        broker.write("acl", acl);
        broker.auth_service.reload().expect("the file is right");
        broker.rig.turn();
        let worker = broker.connect("ann", "pw-a", "worker");
        assert_eq!(broker.subscribe(worker, "$share/g/#", None), "0x01");
        let (bob, _) = broker.try_connect(&lasting("hostile"));
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        let one = [Subscription {
            filter: "$share/g/#",
            options,
        }];
        broker.rig.feed(bob, |out| {
            encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &one);
        });
        assert_eq!(broker.rig.packets(bob, Version::V5, 1), ["suback"]);
        if away {
            broker.rig.engine.remove(bob);
            broker.rig.turn();
        }
        let publisher = broker.connect("ann", "pw-a", "publisher");
        // More than the window of the member that never acknowledges.
        for id in 1..=150 {
            assert_eq!(
                broker.publish(publisher, "bob/x", id),
                format!("puback {id}")
            );
        }
        for id in 1..=5 {
            broker.publish(publisher, "work/x", 200 + id);
        }
        let mut got = broker.delivered(worker);
        for _ in 0..20 {
            got.extend(broker.delivered(worker));
        }
        assert_eq!(got.len(), 5, "away: {away}");
        // No waiting record is lost.
        let mut came = 0;
        let (bob, code) = broker.try_connect(&lasting("hostile"));
        assert_eq!(code, 0);
        for round in 0..400 {
            let packets = broker.delivered(bob);
            came += packets.len();
            broker.rig.feed(bob, |out| {
                // An acknowledgement without a delivery does no harm.
                for id in 1..=400 {
                    let id = PacketId::new(id).expect("not zero");
                    encode::puback(out, Version::V5, id, ReasonCode::Success, &[]);
                }
            });
            if round % 20 == 19 {
                broker.rig.pass_time(tick::CHECKPOINT_MS);
            }
            if came >= 150 {
                break;
            }
        }
        // The worker's unacknowledged deliveries; some of the rest came with the CONNACK.
        let group = broker.rig.engine.groups.by_name("$share/g/#");
        let group = group.and_then(|id| broker.rig.engine.groups.get(id));
        assert_eq!(group.map(|group| group.pending()), Some(5), "away: {away}");
        assert!(came > 100, "away: {away}: {came}");
        broker.rig.crash();
    }
}
