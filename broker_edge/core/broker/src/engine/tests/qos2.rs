//! The steps of QoS 2 one by one: repetitions, refusals, releases, lost and kept state, with a kill in between.

use crate::state::Compaction;

use super::peer::Peer;
use super::world::{World, small};
use super::*;

pub(super) fn lasting<'a>(
    version: Version,
    client_id: &'a str,
    lasts: &'a [Property<'a>],
) -> ConnectFields<'a> {
    let mut fields = ConnectFields::new(version, client_id);
    fields.clean_start = false;
    fields.properties = if version.is_v5() { lasts } else { &[] };
    fields
}

pub(super) const LASTS: [Property<'static>; 1] = [Property::SessionExpiryInterval(3600)];

pub(super) fn publish(
    rig: &mut Rig,
    key: ConnKey,
    version: Version,
    id: u16,
    topic: &str,
    text: &str,
) {
    let fields = PublishFields {
        version,
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic,
        packet_id: PacketId::new(id),
        properties: &[],
        extra: &[],
    };
    rig.feed(key, |out| {
        fields.encode(out, text.as_bytes()).expect("a small packet");
    });
}

pub(super) fn answer(
    rig: &mut Rig,
    key: ConnKey,
    version: Version,
    id: u16,
    encode: fn(&mut Vec<u8>, Version, PacketId, ReasonCode, &[Property<'_>]),
) {
    let id = PacketId::new(id).expect("not zero");
    rig.feed(key, |out| {
        encode(out, version, id, ReasonCode::Success, &[])
    });
}

/// Removes the state under these prefixes, as a broker that does not store it would.
fn forget_state(dir: &Path, prefixes: &[&str]) {
    let (log, _) = Log::open(small(dir), Seams::system()).expect("a log opens in its own folder");
    let state = StateStore::open(&log, 1 << 20).expect("state follows from the log");
    let mut keys = Vec::new();
    for prefix in prefixes {
        state.for_each_prefix(prefix, |key, _| keys.push(key.to_owned()));
    }
    for key in keys {
        state.delete(&key).expect("there is room");
    }
    log.shutdown();
}

/// Publishes, is killed before the PUBREL, and publishes again with the same packet id.
fn texts_after_a_repetition(forgets: bool) -> Vec<String> {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(version, "p", &LASTS));
    publish(&mut rig, key, version, 7, "t", "once");
    assert!(rig.packets(key, version, 1)[0].starts_with("Pubrec"));
    rig.crash();
    if forgets {
        forget_state(dir.path(), &["received/", "mark/"]);
    }
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(version, "p", &LASTS));
    publish(&mut rig, key, version, 7, "t", "once");
    assert!(rig.packets(key, version, 1)[0].starts_with("Pubrec"));
    answer(&mut rig, key, version, 7, encode::pubrel);
    assert!(rig.packets(key, version, 1)[0].starts_with("Pubcomp"));
    // The id is free: the next publish with it is another message.
    publish(&mut rig, key, version, 7, "t", "next");
    assert!(rig.packets(key, version, 1)[0].starts_with("Pubrec"));
    let texts = texts_of(&rig, "telemetry-0");
    rig.crash();
    texts
}

pub(super) fn texts_of(rig: &Rig, partition: &str) -> Vec<String> {
    let partition = rig.log.by_name(partition).expect("there by default");
    let batches = partition
        .read(Offset(0), 1 << 20)
        .expect("nothing is damaged");
    let records = batches.iter().flat_map(headwater_log::Batch::records);
    records
        .map(|record| String::from_utf8_lossy(record.payload).into_owned())
        .collect()
}

#[test]
fn i6_a_publish_that_is_repeated_after_a_crash_is_in_the_log_once() {
    assert_eq!(texts_after_a_repetition(false), ["once", "next"]);
}

#[test]
fn negative_control_without_its_state_a_repeated_publish_is_taken_twice() {
    assert_eq!(texts_after_a_repetition(true), ["once", "once", "next"]);
}

#[test]
fn a_publisher_that_subscribes_gets_its_message_before_the_puback_and_after_the_pubrec() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(version, "p"));
    rig.subscribe(key, version);
    rig.publish(key, version, 1, "one");
    assert_eq!(rig.packets(key, version, 2), ["publish one", "puback 1"]);
    publish(&mut rig, key, version, 2, "t", "two");
    let packets = rig.packets(key, version, 2);
    assert!(packets[0].starts_with("Pubrec"), "{packets:?}");
    assert_eq!(packets[1], "publish two");
    rig.publish(key, version, 3, "three");
    assert_eq!(rig.packets(key, version, 2), ["publish three", "puback 3"]);
}

#[test]
fn a_clean_start_forgets_the_packet_ids_for_good() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(version, "p", &LASTS));
    publish(&mut rig, key, version, 1, "t", "old");
    assert!(rig.packets(key, version, 1)[0].starts_with("Pubrec"));
    let mut fields = lasting(version, "p", &LASTS);
    fields.clean_start = true;
    rig.connect(fields);
    rig.crash();
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(version, "p", &LASTS));
    publish(&mut rig, key, version, 1, "t", "new");
    assert!(rig.packets(key, version, 1)[0].starts_with("Pubrec"));
    assert_eq!(texts_of(&rig, "telemetry-0"), ["old", "new"]);
    rig.crash();
}

#[test]
fn a_refused_publish_leaves_its_packet_id_free() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(lasting(version, "p", &LASTS));
    let telemetry = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    rig.gate.is_full.store(true, Ordering::Relaxed);
    let filler = rig.connect(ConnectFields::new(version, "filler"));
    let text = "x".repeat(200 << 10);
    for id in 1..2000 {
        rig.publish(filler, version, id, &text);
        rig.turn();
        rig.sent(filler, version);
        if telemetry.state() == headwater_log::PartitionState::Full {
            break;
        }
        let _ = rig.moved.recv_timeout(Duration::from_millis(20));
    }
    publish(&mut rig, key, version, 1, "t", "refused");
    let refused = rig.packets(key, version, 1);
    assert!(refused[0].contains("QuotaExceeded"), "{refused:?}");
    rig.gate.is_full.store(false, Ordering::Relaxed);
    while telemetry.state() == headwater_log::PartitionState::Full {
        rig.moved
            .recv_timeout(DEADLINE)
            .expect("the log hears of the space");
    }
    // The same message with the same id: if the id were still in use, this would count as a repetition.
    publish(&mut rig, key, version, 1, "t", "refused");
    let taken = rig.packets(key, version, 1);
    assert!(
        taken[0].starts_with("Pubrec") && taken[0].contains("Success"),
        "{taken:?}"
    );
    let last = Offset(telemetry.high_watermark().0 - 1);
    let batches = telemetry.read(last, 1).expect("nothing is damaged");
    let record = batches[0].record((last.0 - batches[0].base_offset().0) as usize);
    assert_eq!(record.payload, b"refused");
    rig.crash();
}

#[test]
fn a_pubrel_before_its_pubrec_and_a_puback_for_qos_2_end_the_connection() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let hasty = rig.connect(lasting(version, "hasty", &LASTS));
    rig.gate.set(Sync::Hold);
    publish(&mut rig, hasty, version, 1, "t", "x");
    answer(&mut rig, hasty, version, 1, encode::pubrel);
    rig.gate.set(Sync::Pass);
    assert_eq!(rig.packets(hasty, version, 1), ["disconnect ProtocolError"]);
    let wrong = rig.connect(ConnectFields::new(version, "wrong"));
    let options = SubscriptionOptions::new(QoS::ExactlyOnce);
    let one = [Subscription {
        filter: "u",
        options,
    }];
    rig.feed(wrong, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &[], &one)
    });
    assert_eq!(rig.packets(wrong, version, 1), ["suback"]);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    publish(&mut rig, publisher, version, 1, "u", "x");
    assert_eq!(rig.packets(wrong, version, 1), ["publish x"]);
    answer(&mut rig, wrong, version, 1, encode::puback);
    assert_eq!(rig.packets(wrong, version, 1), ["disconnect ProtocolError"]);
}

#[test]
fn a_command_of_qos_2_is_released_only_after_its_receipt_is_durable_also_after_a_kill() {
    let mut world = World::new();
    let version = Version::V5;
    let topic = "devices/d/actions";
    let mut fields = lasting(version, "d", &LASTS);
    let key = world.rig.connect(fields);
    let options = SubscriptionOptions::new(QoS::ExactlyOnce);
    let one = [Subscription {
        filter: topic,
        options,
    }];
    world.rig.feed(key, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &[], &one)
    });
    assert_eq!(world.rig.packets(key, version, 1), ["suback"]);
    let engine = world.rig.connect(ConnectFields::new(version, "engine"));
    publish(&mut world.rig, engine, version, 1, topic, "blink");
    assert_eq!(world.rig.packets(key, version, 1), ["publish blink"]);
    world.kill(&mut []);
    fields.clean_start = false;
    let key = world.rig.engine.open(crate::peer::Peer::nobody());
    world.rig.feed(key, |out| encode::connect(out, &fields));
    assert_eq!(
        world.rig.packets(key, version, 2),
        ["connack true", "publish blink"]
    );
    answer(&mut world.rig, key, version, 1, encode::pubrec);
    let released = world.rig.packets(key, version, 1);
    assert!(released[0].starts_with("Pubrel"), "{released:?}");
    let control = texts_of(&world.rig, "control-0");
    let receipts = control
        .iter()
        .filter(|text| text.contains("\"client_id\":\"d\""))
        .count();
    assert_eq!(receipts, 1, "{control:?}");
    answer(&mut world.rig, key, version, 1, encode::pubcomp);
    world.rig.crash();
}

#[test]
fn the_internal_partition_stays_bounded_under_qos_2() {
    let dir = dir();
    let version = Version::V311;
    let compact_after = 128 << 10;
    let mut world = World::with(Rig::open_compacting(small(dir.path()), compact_after));
    let compaction = Compaction::start(&world.rig.state).expect("a thread");
    let mut publisher = Peer::new("publisher", version);
    let mut subscriber = Peer::new("subscriber", version);
    publisher.connect(&mut world.rig);
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut publisher, &mut subscriber]);
    subscriber.subscribe(&mut world.rig, QoS::ExactlyOnce, None);
    let internal = world
        .rig
        .log
        .by_name("internal-0")
        .expect("always there")
        .clone();
    let (mut most, mut count) = (0, 0);
    for round in 0..6000 {
        if publisher.flights.len() < 20 {
            publisher.publish(&mut world.rig, format!("m{round}"));
            count += 1;
        }
        world.rig.turn();
        publisher.work(&mut world.rig);
        subscriber.work(&mut world.rig);
        if publisher.flights.len() >= 20 && !world.rig.engine.is_behind_log() {
            world
                .rig
                .moved
                .recv_timeout(DEADLINE)
                .expect("the log moves");
        }
        most = most.max(internal.size_bytes());
    }
    world.settle(&mut [&mut publisher, &mut subscriber]);
    assert!(count > 1000, "only {count} were published");
    assert_eq!(subscriber.got.len(), world.log().len());
    assert!(
        internal.log_start() > Offset(0),
        "snapshots let old records go"
    );
    // The segment being written, the one before, and the records written during a snapshot.
    assert!(most < 4 * compact_after + 3 * (256 << 10), "{most} bytes");
    drop(compaction);
    world.rig.crash();
}
