//! Tests that drive the engine by hand: no sockets, a clock that the test moves, and a disk whose syncs the test holds
//! or fails.

mod auth;
mod behind;
mod certificates;
mod checkpoints;
mod costly;
mod due_turns;
mod edges;
mod enhanced;
mod exactly_once;
mod full_queue;
mod fuzz;
mod gate;
mod gauges;
mod guarded;
mod hostile;
mod in_flight;
mod kept_retained;
mod large;
mod limits;
mod member;
mod neighbours;
mod own_records;
mod ownership;
mod packet_ids;
mod pauses;
mod peer;
mod qos2;
mod queue_room;
mod quotas;
mod receipts;
mod records;
mod refusals;
mod remade;
mod resent;
mod resumed;
mod retained_cursor;
mod revoked_wills;
mod rig;
mod searched;
mod session_bytes;
mod shared;
mod shared_cost;
mod shared_histories;
mod shared_tenants;
mod slow_readers;
mod stage;
mod state_waits;
pub(in crate::engine) mod stored_bytes;
mod stored_once;
mod stored_state;
mod sys;
mod tenants;
mod topic_aliases;
mod turn_order;
mod turn_work;
mod wills;
mod world;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use headwater_log::{
    Class, File, Files, LockError, LockGuard, Log, LogConfig, Offset, OpenMode, Seams, SyncMode,
    SystemFiles, Watcher,
};
use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::packet::{ServerPacket, decode_from_server};
use headwater_mqtt::{Frame, PacketId, Property, QoS, ReasonCode, Version, frame};
use parking_lot::{Condvar, Mutex};

use super::ids::PartitionIndex;
use super::lifecycle::tick;
use super::session::connection;
use super::*;
use crate::config::MqttSettings;
use crate::config::units::{Age, ByteSize};
use gate::{Gate, GatedFiles, Sync};
use rig::{Rig, dir};

/// The longest time that a test waits for the writer's thread.
const DEADLINE: Duration = Duration::from_secs(60);
/// With this many publishers in a turn, the loop does not commit on its own thread.
const MANY: usize = 3;

/// Publishes from many clients while syncs are held; returns them and a subscriber.
fn publish_while_syncs_are_held(rig: &mut Rig) -> (Vec<ConnKey>, ConnKey) {
    let publishers = rig.clients(Version::V311, MANY);
    let subscriber = rig.connect(ConnectFields::new(Version::V311, "subscriber"));
    rig.subscribe(subscriber, Version::V311);
    rig.gate.set(Sync::Hold);
    for key in &publishers {
        rig.publish(*key, Version::V311, 1, "x");
    }
    rig.turn();
    (publishers, subscriber)
}

/// Everything sent to all of them so far.
fn sent_to_all(rig: &mut Rig, publishers: &[ConnKey], subscriber: ConnKey) -> Vec<String> {
    rig.turn();
    let mut sent = rig.sent(subscriber, Version::V311);
    for key in publishers {
        sent.extend(rig.sent(*key, Version::V311));
    }
    sent
}

#[test]
fn i1_i2_nothing_is_acknowledged_or_delivered_before_the_sync_returned() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let (publishers, subscriber) = publish_while_syncs_are_held(&mut rig);
    // The writer has taken the records; if the sync were not held, the mark would move now.
    while rig.moved.recv_timeout(Duration::from_millis(300)).is_ok() {}
    let early = sent_to_all(&mut rig, &publishers, subscriber);
    assert_eq!(early, [""; 0]);
    rig.gate.set(Sync::Pass);
    for key in publishers {
        assert_eq!(rig.packets(key, Version::V311, 1), ["puback 1"]);
    }
    assert_eq!(
        rig.packets(subscriber, Version::V311, MANY),
        ["publish x"; MANY]
    );
}

#[test]
fn negative_control_without_syncs_acknowledgements_do_not_wait() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let (publishers, subscriber) = publish_while_syncs_are_held(&mut rig);
    let mut early = Vec::new();
    while early.len() < 2 * MANY {
        early.extend(sent_to_all(&mut rig, &publishers, subscriber));
        if early.len() < 2 * MANY && !rig.engine.has_more() {
            let moved = rig.moved.recv_timeout(DEADLINE);
            assert!(moved.is_ok(), "only {early:?} without a sync");
        }
    }
    rig.gate.set(Sync::Pass);
}

#[test]
fn a_small_turn_is_durable_and_acknowledged_when_it_ends() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.inline_publishers_max = MANY;
    let publishers = rig.clients(Version::V311, MANY);
    for key in &publishers {
        rig.publish(*key, Version::V311, 1, "x");
    }
    rig.turn();
    for key in publishers {
        assert_eq!(rig.sent(key, Version::V311), ["puback 1"]);
    }
}

#[test]
fn a_commit_that_holds_up_the_loop_is_worth_another_look_only_when_several_wait_for_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.inline_publishers_max = MANY;
    let publishers = rig.clients(Version::V311, MANY + 1);
    assert!(!rig.engine.will_hold_up_several(), "nobody published");
    for (staged, key) in publishers.iter().enumerate() {
        let is_worth_it = (2..=MANY).contains(&staged);
        assert_eq!(rig.engine.will_hold_up_several(), is_worth_it, "{staged}");
        rig.publish(*key, Version::V311, 1, "x");
    }
    assert!(
        !rig.engine.will_hold_up_several(),
        "the writer's thread commits these"
    );
}

#[test]
fn a_failed_sync_closes_who_waits_for_it_and_refuses_who_comes_later() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publishers = rig.clients(Version::V5, MANY);
    let idle = rig.connect(ConnectFields::new(Version::V5, "idle"));
    let older = rig.connect(ConnectFields::new(Version::V311, "older"));
    rig.gate.set(Sync::Fail);
    for key in &publishers {
        rig.publish(*key, Version::V5, 1, "x");
    }
    for key in publishers {
        assert_eq!(
            rig.packets(key, Version::V5, 1),
            ["disconnect UnspecifiedError"]
        );
    }
    rig.publish(idle, Version::V5, 1, "later");
    assert_eq!(
        rig.packets(idle, Version::V5, 1),
        ["refused UnspecifiedError"]
    );
    rig.publish(older, Version::V311, 1, "later");
    rig.turn();
    assert!(
        rig.engine.take_closed().contains(&older),
        "a version without refusals loses its connection"
    );
}

/// Appends to several partitions may be refused in one turn.
#[test]
fn what_was_refused_in_several_partitions_at_once_is_not_acknowledged() {
    let dir = dir();
    let mut config = LogConfig::new(dir.path());
    let mut classes = config.classes.iter_mut();
    let telemetry = classes.find(|class| class.class == Class::Telemetry);
    telemetry.expect("by default").partitions = 2;
    let mut rig = Rig::open_with(config);
    let partition_of = |topic: &str| rig.log.route(topic).partition;
    let mut others = (0..).map(|n| format!("t{n}"));
    let other = others.find(|topic| partition_of(topic) != partition_of("t"));
    let topics = ["t".to_owned(), other.expect("half of the topics")];
    let keys = rig.clients(Version::V5, 2);
    rig.log.shutdown();
    for (key, order) in keys.into_iter().zip([[0, 1], [1, 0]]) {
        for (id, topic) in (1..).zip(order) {
            rig.publish_to(&topics[topic], false, key, Version::V5, id, "x");
        }
        rig.turn();
        let told = rig.sent(key, Version::V5);
        assert_eq!(told, ["refused UnspecifiedError"; 2], "{order:?}");
    }
}

#[test]
fn a_crash_repeats_what_came_after_the_checkpoint_and_skips_nothing() {
    let dir = dir();
    let version = Version::V311;
    let mut fields = ConnectFields::new(version, "lasting");
    fields.clean_start = false;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = rig.connect(fields);
    rig.subscribe(client, version);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    for n in 0..6 {
        rig.publish(publisher, version, n + 1, &n.to_string());
    }
    assert_eq!(rig.packets(client, version, 6).len(), 6);
    let ack = |rig: &mut Rig, id| {
        let id = PacketId::new(id).expect("not zero");
        rig.feed(client, |out| {
            encode::puback(out, version, id, ReasonCode::Success, &[])
        });
    };
    (1..=3).for_each(|id| ack(&mut rig, id));
    rig.pass_time(tick::CHECKPOINT_MS);
    ack(&mut rig, 4);
    rig.crash();

    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    let packets = rig.packets(key, version, 4);
    assert_eq!(
        packets,
        ["connack true", "publish 3", "publish 4", "publish 5"]
    );
    rig.crash();
}

#[test]
fn silence_is_measured_from_the_last_packet_and_ends_the_connection() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.keep_alive_s = 10;
    let key = rig.connect(fields);
    rig.pass_time(14_000);
    rig.feed(key, encode::pingreq);
    rig.pass_time(14_000);
    assert_eq!(rig.sent(key, Version::V5), ["Pingresp"]);
    rig.pass_time(1_000);
    assert_eq!(rig.sent(key, Version::V5), ["disconnect KeepAliveTimeout"]);
    let mute = rig.engine.open(crate::peer::Peer::nobody());
    rig.pass_time(Settings::default().mqtt.connect_timeout.as_ms());
    assert!(rig.engine.take_closed().contains(&mute));
}

#[test]
fn bytes_split_anywhere_are_the_same_packets() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let version = Version::V5;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    let mut bytes = Vec::new();
    encode::connect(&mut bytes, &ConnectFields::new(version, "c"));
    for _ in 0..3 {
        encode::pingreq(&mut bytes);
    }
    for byte in &bytes {
        rig.engine.begin(rig.now);
        let ReadPlan::Shared { mut held, .. } = rig.engine.read_plan(key) else {
            panic!("small packets are read")
        };
        held.push(*byte);
        rig.engine.receive(key, &held, true);
    }
    rig.turn();
    assert_eq!(
        rig.sent(key, version),
        ["connack false", "Pingresp", "Pingresp", "Pingresp"]
    );
}

#[test]
fn a_large_packet_waits_for_the_budget_and_is_received_once_others_are_done() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.receive_budget_bytes = ByteSize(300 << 10);
    let keys = rig.clients(Version::V311, 2);
    let payload = vec![b'x'; 200 << 10];
    let mut packet = vec![0x30];
    packet.extend_from_slice(&[0x83, 0xc0, 0x0c]);
    packet.extend_from_slice(b"\x00\x01t");
    packet.extend_from_slice(&payload);
    rig.engine.begin(rig.now);
    for key in &keys {
        rig.engine.receive(*key, &packet[..1000], true);
    }
    assert!(matches!(
        rig.engine.read_plan(keys[0]),
        ReadPlan::Own { .. }
    ));
    assert_eq!(rig.engine.read_plan(keys[1]), ReadPlan::Wait);
    rig.engine
        .held_mut(keys[0])
        .expect("it is open")
        .extend_from_slice(&packet[1000..]);
    assert!(rig.engine.receive_held(keys[0]));
    rig.engine.commit();
    assert_eq!(rig.engine.take_resumed(), [keys[1]]);
    assert!(matches!(
        rig.engine.read_plan(keys[1]),
        ReadPlan::Own { .. }
    ));
}

#[test]
fn a_retained_message_outlives_the_segment_that_it_was_in() {
    let dir = dir();
    let version = Version::V311;
    let config = || {
        let mut config = LogConfig::new(dir.path());
        config.segment_bytes = 256 << 10;
        for class in &mut config.classes {
            class.retention_bytes = Some(512 << 10);
        }
        config
    };
    let mut rig = Rig::open_with(config());
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    rig.publish_to("t", true, publisher, version, 1, "kept");
    assert_eq!(rig.packets(publisher, version, 1), ["puback 1"]);
    let telemetry = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    let noise = "x".repeat(32 << 10);
    let mut id = 1;
    while telemetry.log_start() == Offset(0) {
        id += 1;
        assert!(id < 1000, "retention never removed a segment");
        rig.publish_to("noise", false, publisher, version, id, &noise);
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
        rig.log.maintain();
    }
    for round in 0..2 {
        let subscriber = rig.connect(ConnectFields::new(version, "s"));
        let one = [Subscription {
            filter: "t",
            options: SubscriptionOptions::new(QoS::AtMostOnce),
        }];
        rig.feed(subscriber, |out| {
            encode::subscribe(out, version, PacketId::FIRST, &[], &one)
        });
        assert_eq!(
            rig.packets(subscriber, version, 2),
            ["suback", "publish kept"],
            "round {round}"
        );
        rig.crash();
        rig = Rig::open_with(config());
    }
}
