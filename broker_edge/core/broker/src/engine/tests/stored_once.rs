//! What is written to the internal partition: the necessary changes, once each, and nothing of a session that has
//! ended.

use crate::engine::stored::{received, sent};

use super::member::{Member, Publisher, settle_disk};
use super::qos2::{LASTS, answer, lasting, publish};
use super::stored_state::{assert_next, idle, subscribe};
use super::*;

const VERSION: Version = Version::V5;
/// Properties of a subscription that begins at the earliest record.
const EARLIEST: [Property<'static>; 1] = [Property::UserProperty {
    key: "stream-offset",
    value: "earliest",
}];

/// The number of records written to the internal partition meanwhile.
fn stored_in(rig: &mut Rig, mut does: impl FnMut(&mut Rig)) -> u64 {
    let internal = rig.log.partitions()[0].clone();
    let before = internal.next_offset();
    does(rig);
    internal.next_offset().0 - before.0
}

/// A client with a persistent session that has a QoS 2 delivery.
fn delivered_to(rig: &mut Rig, client_id: &str) -> ConnKey {
    let key = idle(rig, client_id);
    subscribe(rig, key, "t");
    assert_next(rig, key, "suback");
    let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
    publish(rig, publisher, VERSION, 1, "t", "x");
    assert_next(rig, publisher, "Pubrec");
    assert_next(rig, key, "publish x");
    key
}

#[test]
fn packet_ids_that_are_released_in_one_turn_are_stored_as_one_value() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = idle(&mut rig, "p");
    for id in 2..=5 {
        publish(&mut rig, key, VERSION, id, "t", "x");
        assert_next(&mut rig, key, "Pubrec");
    }
    let stored = stored_in(&mut rig, |rig| {
        (1..=5).for_each(|id| answer(rig, key, VERSION, id, encode::pubrel));
        assert_eq!(rig.packets(key, VERSION, 5).len(), 5);
    });
    assert_eq!(stored, 1);
}

#[test]
fn what_a_client_sent_and_what_it_is_sent_are_stored_each_when_it_changes() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = idle(&mut rig, "c");
    subscribe(&mut rig, key, "t");
    assert_next(&mut rig, key, "suback");
    let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
    let releases = stored_in(&mut rig, |rig| {
        answer(rig, key, VERSION, 1, encode::pubrel);
        assert_next(rig, key, "Pubcomp");
    });
    assert_eq!(releases, 1);
    // Neither the cursors nor the packet ids that are stored already.
    for text in ["one", "two"] {
        let delivers = stored_in(&mut rig, |rig| {
            publish(rig, publisher, VERSION, 1, "t", text);
            assert_next(rig, publisher, "Pubrec");
            assert_next(rig, key, &format!("publish {text}"));
            answer(rig, publisher, VERSION, 1, encode::pubrel);
            assert_next(rig, publisher, "Pubcomp");
        });
        assert_eq!(delivers, 1, "{text}");
    }
}

#[test]
fn a_checkpoint_stores_the_cursors_of_a_session_once_however_much_it_has_acknowledged() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(lasting(VERSION, "c", &LASTS));
    rig.subscribe(key, VERSION);
    let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
    for id in 1..=3 {
        rig.publish(publisher, VERSION, id, "x");
    }
    assert_eq!(rig.packets(key, VERSION, 3), ["publish x"; 3]);
    rig.pass_time(tick::CHECKPOINT_MS);
    for acknowledged in [3, 0] {
        (1..=acknowledged).for_each(|id| answer(&mut rig, key, VERSION, id, encode::puback));
        let stored = stored_in(&mut rig, |rig| rig.pass_time(tick::CHECKPOINT_MS));
        assert_eq!(stored, u64::from(acknowledged > 0), "{acknowledged}");
    }
}

#[test]
fn nothing_of_qos_2_stays_stored_of_a_session_that_has_ended() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = delivered_to(&mut rig, "c");
    publish(&mut rig, key, VERSION, 2, "u", "x");
    assert_next(&mut rig, key, "Pubrec");
    answer(&mut rig, key, VERSION, 1, encode::pubrel);
    assert_next(&mut rig, key, "Pubcomp");
    let keys = [received::key("c"), sent::key("c")];
    let is_stored = |rig: &Rig| keys.each_ref().map(|key| rig.state.get(key).is_some());
    assert_eq!(is_stored(&rig), [true; 2]);
    rig.connect(ConnectFields::new(VERSION, "c"));
    assert_eq!(is_stored(&rig), [false; 2]);
}

#[test]
fn an_answer_that_waits_for_what_others_store_comes_once_that_is_durable() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let other = idle(&mut rig, "other");
    // A session that has ended, and whose removal is durable.
    rig.connect(lasting(VERSION, "c", &LASTS));
    let ends = rig.connect(ConnectFields::new(VERSION, "c"));
    rig.engine.remove(ends);
    rig.state_gate.set(Sync::Hold);
    answer(&mut rig, other, VERSION, 1, encode::pubrel);
    rig.turn();
    let newcomer = rig.engine.open(crate::peer::Peer::nobody());
    let fields = ConnectFields::new(VERSION, "c");
    rig.feed(newcomer, |out| encode::connect(out, &fields));
    rig.turn();
    rig.state_gate.set(Sync::Pass);
    assert_next(&mut rig, newcomer, "connack");
    assert_next(&mut rig, other, "Pubcomp");
}

#[test]
fn a_replay_is_over_with_the_acknowledgement_of_the_last_that_it_delivered() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
    for id in 1..=2 {
        rig.publish(publisher, VERSION, id, "x");
    }
    assert_eq!(rig.packets(publisher, VERSION, 2).len(), 2);
    let key = rig.connect(lasting(VERSION, "c", &LASTS));
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    rig.feed(key, |out| {
        encode::subscribe(out, VERSION, PacketId::FIRST, &EARLIEST, &one);
    });
    assert_eq!(rig.packets(key, VERSION, 3)[0], "suback");
    rig.turn();
    for (id, replays) in [(1, 1), (2, 0)] {
        answer(&mut rig, key, VERSION, id, encode::puback);
        let conn = rig.engine.clients.conn(key).expect("connected");
        let session = conn.session.and_then(|key| rig.engine.clients.session(key));
        assert_eq!(
            session.expect("it is there").extras.replays.len(),
            replays,
            "{id}"
        );
    }
}

#[test]
fn a_replay_of_qos_2_that_is_over_is_not_repeated_after_a_crash_whatever_else_was_stored() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 2, QoS::ExactlyOnce);
    let mut member = Member::new("c", VERSION);
    member.connect(&mut rig, true, 10);
    member.subscribe_with(&mut rig, "t", QoS::ExactlyOnce, &EARLIEST);
    settle_disk(&mut rig, &mut [&mut member]);
    member.ack(&mut rig, 2);
    settle_disk(&mut rig, &mut [&mut member]);
    // First the inbound state changes, then the outbound state.
    publish(&mut rig, member.key(), VERSION, 1, "u", "own");
    settle_disk(&mut rig, &mut [&mut member]);
    answer(&mut rig, member.key(), VERSION, 1, encode::pubrel);
    settle_disk(&mut rig, &mut [&mut member]);
    publisher.publish(&mut rig, 1, QoS::ExactlyOnce);
    settle_disk(&mut rig, &mut [&mut member]);
    assert_eq!(member.got, ["0", "1", "2"]);
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("c", VERSION);
    back.connect(&mut rig, true, 10);
    settle_disk(&mut rig, &mut [&mut back]);
    assert_eq!(back.got, ["2"]);
    rig.crash();
}
