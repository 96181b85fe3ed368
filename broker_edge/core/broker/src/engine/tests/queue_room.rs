//! Small records of many connections in the queue of a partition: how many of them are before the record of a connection
//! that publishes little, who goes on when, and that large appends of others always find room.

use headwater_log::{Partition, RecordMeta, Records};

use super::*;

const V311: Version = Version::V311;
/// Records of clients that may be queued.
const RECORDS_MAX: u64 = 2048;
const HOSTILE: usize = 10;
/// What each of them sends at once: far more than there is room for.
const FLOOD: usize = 4096;

fn rig(dir: &Path) -> Rig {
    let settings = Settings {
        inline_publishers_max: 0,
        queued_records_max: RECORDS_MAX,
        ..Settings::default()
    };
    Rig::open_with_settings(LogConfig::new(dir), 1 << 20, settings)
}

/// Publishes of QoS 0 with little in them, to the topic of [`Rig::publish`].
fn small_publishes(count: usize) -> Vec<u8> {
    let fields = PublishFields {
        version: V311,
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: &[],
        extra: &[],
    };
    let mut one = Vec::new();
    fields.encode(&mut one, b"tiny!").expect("a small packet");
    one.repeat(count)
}

fn partition(rig: &Rig) -> Partition {
    rig.log.partitions()[rig.log.route("t").partition.0 as usize].clone()
}

fn left(rig: &Rig, key: ConnKey) -> usize {
    let conn = rig.engine.clients.conn(key).expect("it is open");
    conn.unparsed.bytes.len() / small_publishes(1).len()
}

/// Connections that have sent more than there is room for, while nothing is written.
fn flooded(rig: &mut Rig) -> Vec<ConnKey> {
    let keys = rig.clients(V311, HOSTILE);
    rig.gate.set(Sync::Hold);
    let flood = small_publishes(FLOOD);
    for key in &keys {
        assert_eq!(rig.receive(*key, &flood), flood.len());
    }
    rig.turn();
    keys
}

#[test]
fn i8_who_publishes_little_waits_for_few_records_of_those_who_publish_as_fast_as_they_can() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let polite = rig.connect(ConnectFields::new(V311, "polite"));
    let partition = partition(&rig);
    let begin = partition.next_offset().0;
    let hostile = flooded(&mut rig);
    rig.publish(polite, V311, 1, "x");
    rig.turn();
    let plan = rig.engine.read_plan(polite);
    assert_ne!(plan, ReadPlan::Wait, "it has its share of the room");
    let before = partition.next_offset().0 - begin;
    let shares = HOSTILE as u64 * 64;
    assert!(before <= RECORDS_MAX + shares, "{before} records before it");
    rig.gate.set(Sync::Pass);
    assert_eq!(rig.packets(polite, V311, 1), ["puback 1"]);
    // Nothing of the others is lost, and they went on in turn: none of them long before another.
    let mut most = 0;
    while hostile.iter().any(|key| left(&rig, *key) > 0) {
        rig.turn();
        let lefts = hostile.iter().map(|key| left(&rig, *key));
        let (least_left, most_left) = (lefts.clone().min(), lefts.max());
        most = most.max(most_left.unwrap_or(0) - least_left.unwrap_or(0));
        if !rig.engine.has_more() && !rig.engine.is_behind_log() {
            rig.wait_for_disk();
        }
    }
    let end = begin + 1 + (HOSTILE * FLOOD) as u64;
    rig.turn();
    assert_eq!(partition.next_offset().0, end);
    assert!(most <= 3 * RECORDS_MAX as usize, "{most}");
}

#[test]
fn a_share_is_small_and_there_is_another_one_once_what_was_before_it_is_written() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let polite = rig.connect(ConnectFields::new(V311, "polite"));
    let hostile = flooded(&mut rig);
    let few = small_publishes(100);
    rig.receive(polite, &few);
    rig.turn();
    let waits = left(&rig, polite);
    assert!((1..100).contains(&waits), "{waits} of 100 wait");
    assert_eq!(rig.engine.read_plan(polite), ReadPlan::Wait);
    // It waits behind those that came before it, and a second share needs no room.
    assert!(hostile.iter().all(|key| left(&rig, *key) > 0));
    rig.gate.set(Sync::Pass);
    while left(&rig, polite) > 0 {
        rig.turn();
        if !rig.engine.has_more() && !rig.engine.is_behind_log() {
            rig.wait_for_disk();
        }
    }
    assert_ne!(rig.engine.read_plan(polite), ReadPlan::Wait);
}

#[test]
fn a_large_append_of_others_finds_room_while_small_records_of_clients_wait() {
    let dir = dir();
    let mut rig = rig(dir.path());
    flooded(&mut rig);
    let mut records = Records::new();
    let topic = records.topic("t", 0..1).expect("room");
    let client = records.client("flight").expect("room");
    for _ in 0..100_000 {
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, b"tiny!").expect("room");
    }
    partition(&rig).append(records).expect("there is room");
}

#[test]
fn with_many_connections_each_handles_a_small_part_of_what_it_has_sent_in_a_turn() {
    let dir = dir();
    let settings = Settings::default();
    let mut rig = Rig::open_with_settings(LogConfig::new(dir.path()), 1 << 20, settings);
    let flood = small_publishes(8000);
    for (waiting, most) in [(1, 8000), (8, 8000), (64, 1100), (100_000, 300)] {
        let key = rig.clients(V311, 1)[0];
        rig.engine.share_turn(waiting);
        rig.engine.begin(rig.now);
        rig.engine.receive(key, &flood, true);
        let handled = 8000 - left(&rig, key);
        assert!(
            (most / 2..=most).contains(&handled),
            "{handled} beside {waiting}"
        );
    }
}
