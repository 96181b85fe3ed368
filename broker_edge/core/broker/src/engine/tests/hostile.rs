//! Clients that misbehave, and their neighbours: stuck, slow, flooding, or back with a smaller window.

use headwater_log::{Partition, PartitionState};

use super::*;
use crate::engine::session::pauses::Pause;

fn persistent(version: Version, client_id: &str) -> ConnectFields<'_> {
    let mut fields = ConnectFields::new(version, client_id);
    fields.clean_start = false;
    fields
}

pub(super) fn subscribe_to(rig: &mut Rig, key: ConnKey, filter: &str, qos: QoS) {
    let version = rig.engine.clients.conn(key).expect("it is open").version;
    let options = SubscriptionOptions::new(qos);
    let one = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &[], &one)
    });
    assert_eq!(rig.packets(key, version, 1)[0], "suback");
}

/// Runs turns until nothing is left to do, and returns what a connection was sent.
pub(super) fn until_idle(rig: &mut Rig, key: ConnKey, version: Version) -> Vec<String> {
    let mut sent = Vec::new();
    loop {
        rig.turn();
        sent.extend(rig.sent(key, version));
        if !rig.engine.has_more() && !rig.engine.is_behind_log() {
            return sent;
        }
    }
}

#[test]
fn a_session_that_has_caught_up_in_one_partition_goes_on_in_the_others() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let client = rig.connect(persistent(version, "lasting"));
    subscribe_to(&mut rig, client, "wanted", QoS::AtLeastOnce);
    rig.engine.remove(client);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    // Many records in one partition, of which only the last is wanted, and a few in another.
    let noise = "x".repeat(60 << 10);
    let topics = std::iter::repeat_n("noise", 40).chain(["devices/d/actions", "wanted"]);
    for (topic, id) in topics.zip(1..) {
        rig.publish_to(topic, false, publisher, version, id, &noise);
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
    }
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| {
        encode::connect(out, &persistent(version, "lasting"))
    });
    let mut sent = rig.packets(key, version, 1);
    sent.extend(until_idle(&mut rig, key, version));
    assert_eq!(sent[0], "connack true");
    assert_eq!(sent.len(), 2, "and the one that it wants");
}

#[test]
fn i7_who_takes_a_part_of_what_it_is_sent_and_never_all_does_not_make_its_buffer_grow() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let slow = rig.connect(ConnectFields::new(version, "slow"));
    subscribe_to(&mut rig, slow, "t", QoS::AtMostOnce);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    let text = "x".repeat(32 << 10);
    for id in 1..=400 {
        rig.publish(publisher, version, id, &text);
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
        let waiting = rig.engine.out(slow).len();
        rig.engine.written(slow, waiting / 4);
    }
    let held = rig
        .engine
        .clients
        .conn(slow)
        .expect("it is open")
        .out
        .capacity();
    let bound = rig.engine.env.settings.mqtt.out_buffer_bytes.as_usize();
    assert!(held <= 4 * bound, "{held} bytes for a bound of {bound}");
}

#[test]
fn i7_who_does_not_take_its_answers_is_not_read_until_it_does() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(version, "deaf"));
    let pings = [0xc0, 0].repeat(32 << 10);
    let mut turns = 0;
    let is_deaf = |rig: &Rig| {
        let conn = rig.engine.clients.conn(key).expect("it is open");
        conn.pauses.has(Pause::Out)
    };
    while !is_deaf(&rig) {
        turns += 1;
        assert!(turns < 1000, "it is read for ever");
        // In some turns what it has sent waits for others.
        if let ReadPlan::Shared { held, .. } = rig.engine.read_plan(key) {
            rig.engine
                .receive(key, &[held, pings.clone()].concat(), true);
        }
        rig.pass_time(1);
        rig.engine.out(key);
        rig.engine.written(key, 0);
    }
    // What was read before is handled all the same.
    let is_left = |rig: &Rig| {
        let conn = rig.engine.clients.conn(key).expect("it is open");
        !conn.unparsed.bytes.is_empty()
    };
    while is_left(&rig) {
        rig.pass_time(1);
    }
    let waiting = rig.engine.out(key).len();
    rig.engine.written(key, waiting);
    assert!(rig.engine.has_more(), "the loop must not sleep over it");
    assert_eq!(rig.engine.take_resumed(), [key]);
    assert!(matches!(rig.engine.read_plan(key), ReadPlan::Shared { .. }));
}

#[test]
fn a_large_packet_that_never_arrives_does_not_hold_the_budget_for_ever() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.receive_budget_bytes = ByteSize(300 << 10);
    let announced = [0x30, 0x83, 0xc0, 0x0c, 0, 1, b't'];
    let stuck = rig.connect(ConnectFields::new(version, "stuck"));
    let mut fields = ConnectFields::new(version, "waits");
    fields.keep_alive_s = 5;
    let waits = rig.connect(fields);
    for key in [stuck, waits] {
        rig.engine.receive(key, &announced, true);
    }
    assert!(matches!(rig.engine.read_plan(stuck), ReadPlan::Own { .. }));
    assert_eq!(rig.engine.read_plan(waits), ReadPlan::Wait);
    rig.pass_time(29_000);
    assert_eq!(
        rig.engine.take_closed(),
        [],
        "neither is silent: it is the broker that waits"
    );
    rig.pass_time(2_000);
    assert_eq!(rig.engine.take_closed(), [stuck]);
    assert_eq!(rig.engine.take_resumed(), [waits]);
    assert!(matches!(rig.engine.read_plan(waits), ReadPlan::Own { .. }));
}

#[test]
fn i7_long_topic_names_empty_the_table_before_they_fill_the_memory() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let name = |n| format!("{n}/{}", "x".repeat(60_000));
    let first = rig.engine.routing.intern(&name(0), &rig.log);
    for n in 1..300 {
        rig.engine.routing.intern(&name(n), &rig.log);
    }
    assert!(rig.engine.routing.topic(first).is_none());
}

fn ack(rig: &mut Rig, key: ConnKey, version: Version, id: u16) {
    let id = PacketId::new(id).expect("not zero");
    rig.feed(key, |out| {
        encode::puback(out, version, id, ReasonCode::Success, &[])
    });
}

#[test]
fn who_comes_back_with_less_room_is_sent_no_more_than_that_again_and_nothing_new_in_between() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let expiry = [Property::SessionExpiryInterval(60)];
    let narrow = [
        Property::SessionExpiryInterval(60),
        Property::ReceiveMaximum(1),
    ];
    let mut fields = persistent(version, "lasting");
    fields.properties = &expiry;
    let client = rig.connect(fields);
    let at_offset = [Property::UserProperty {
        key: "stream-offset",
        value: "latest",
    }];
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    rig.feed(client, |out| {
        encode::subscribe(out, version, PacketId::FIRST, &at_offset, &one)
    });
    assert_eq!(rig.packets(client, version, 1), ["suback"]);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    let sent = |n: u16| format!("publish {n} from telemetry-0:{n}");
    for n in 0..3 {
        rig.publish(publisher, version, n + 1, &n.to_string());
    }
    assert_eq!(
        rig.packets(client, version, 3),
        (0..3).map(sent).collect::<Vec<_>>()
    );
    rig.engine.remove(client);

    fields.properties = &narrow;
    let client = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(client, |out| encode::connect(out, &fields));
    assert_eq!(rig.packets(client, version, 2), ["connack true", &sent(0)]);
    rig.publish(publisher, version, 4, "3");
    assert_eq!(rig.packets(publisher, version, 4).len(), 4);
    for n in 1..4 {
        assert_eq!(until_idle(&mut rig, client, version), [""; 0]);
        ack(&mut rig, client, version, n);
        assert_eq!(until_idle(&mut rig, client, version), [sent(n)]);
    }
}

#[test]
fn without_file_descriptors_a_session_waits_and_skips_nothing() {
    let dir = dir();
    let version = Version::V311;
    let mut config = LogConfig::new(dir.path());
    // The records that the session needs are no longer in memory.
    config.tail_bytes = 64 << 10;
    let mut rig = Rig::open_with(config);
    let client = rig.connect(persistent(version, "lasting"));
    subscribe_to(&mut rig, client, "t", QoS::AtLeastOnce);
    rig.engine.remove(client);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    let noise = "x".repeat(32 << 10);
    for id in 1..=20 {
        rig.publish(publisher, version, id, &format!("{id}{noise}"));
        assert_eq!(rig.packets(publisher, version, 1), [format!("puback {id}")]);
    }
    rig.gate.no_descriptors.store(true, Ordering::Relaxed);
    let client = rig.connect(persistent(version, "lasting"));
    assert_eq!(until_idle(&mut rig, client, version), [""; 0]);
    rig.gate.no_descriptors.store(false, Ordering::Relaxed);
    rig.pass_time(2 * delivery::RETRY_MS);
    let got = until_idle(&mut rig, client, version);
    let wanted: Vec<String> = (1..=20).map(|id| format!("publish {id}{noise}")).collect();
    assert!(got == wanted, "{} of 20", got.len());
}

#[test]
fn a_retained_value_that_changes_before_the_connack_of_a_clean_start_is_not_missed() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(version, "p"));
    rig.publish_to("t", true, publisher, version, 1, "old");
    assert_eq!(rig.packets(publisher, version, 1), ["puback 1"]);
    let earlier = rig.connect(persistent(version, "c"));
    rig.engine.remove(earlier);

    let client = rig.engine.open(crate::peer::Peer::nobody());
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    rig.feed(client, |out| {
        encode::connect(out, &ConnectFields::new(version, "c"));
        encode::subscribe(out, version, PacketId::FIRST, &[], &one);
    });
    rig.publish_to("t", true, publisher, version, 2, "new");
    let mut packets = rig.packets(client, version, 3);
    if packets[2] == "publish old" {
        // The append took another turn: the old value as of the SUBSCRIBE comes first, then the new one.
        packets.remove(2);
        packets.extend(rig.packets(client, version, 1));
    }
    assert_eq!(packets, ["connack false", "suback", "publish new"]);
}

#[test]
fn a_full_disk_is_told_to_mqtt_5_and_costs_older_clients_their_connection_until_there_is_space() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(Version::V5, "p"));
    let older = rig.connect(ConnectFields::new(Version::V311, "older"));
    rig.gate.is_full.store(true, Ordering::Relaxed);
    let text = "x".repeat(200 << 10);
    let telemetry = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    let mut answers = Vec::new();
    for id in 1..2000 {
        rig.publish(publisher, Version::V5, id, &text);
        answers.clear();
        while answers.is_empty() && telemetry.state() != PartitionState::Full {
            rig.turn();
            answers = rig.sent(publisher, Version::V5);
            if answers.is_empty() {
                rig.moved
                    .recv_timeout(DEADLINE)
                    .expect("the log moves or is full");
            }
        }
        if telemetry.state() == PartitionState::Full {
            break;
        }
    }
    let second = rig.connect(ConnectFields::new(Version::V5, "second"));
    let refused = rig.engine.env.metrics.mqtt.publishes_refused.get();
    (1..=3).for_each(|id| rig.publish(second, Version::V5, id, "refused"));
    assert_eq!(
        rig.packets(second, Version::V5, 3),
        ["refused QuotaExceeded"; 3]
    );
    let now_refused = rig.engine.env.metrics.mqtt.publishes_refused.get();
    assert_eq!(now_refused, refused + 3, "each publish counts");
    rig.publish(older, Version::V311, 1, "refused");
    rig.turn();
    assert!(rig.engine.take_closed().contains(&older));
    rig.gate.is_full.store(false, Ordering::Relaxed);
    if answers.is_empty() {
        // Records accepted before the full disk was noticed are written and acknowledged now.
        assert!(rig.packets(publisher, Version::V5, 1)[0].starts_with("puback"));
    }
    while telemetry.state() == PartitionState::Full {
        rig.moved
            .recv_timeout(DEADLINE)
            .expect("the log hears of the space");
    }
    rig.publish(second, Version::V5, 2, "again");
    assert_eq!(rig.packets(second, Version::V5, 1), ["puback 2"]);
}

/// Fills the disk; returns the packet id of the publish that was accepted and is not written yet.
fn publish_until_one_waits_for_space(
    rig: &mut Rig,
    telemetry: &Partition,
    publisher: ConnKey,
) -> u16 {
    rig.gate.is_full.store(true, Ordering::Relaxed);
    let text = "x".repeat(200 << 10);
    let mut id = 0;
    while telemetry.state() != PartitionState::Full {
        id += 1;
        rig.publish(publisher, Version::V5, id, &text);
        while telemetry.state() != PartitionState::Full {
            rig.turn();
            if !rig.sent(publisher, Version::V5).is_empty() {
                break;
            }
            rig.moved
                .recv_timeout(DEADLINE)
                .expect("the log moves or is full");
        }
    }
    let is_waiting = telemetry.high_watermark() < telemetry.next_offset();
    assert!(is_waiting, "one waits for space");
    id
}

#[test]
fn a_refused_publish_does_not_acknowledge_the_one_that_waits_for_space_before_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(Version::V5, "p"));
    let telemetry = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    let id = publish_until_one_waits_for_space(&mut rig, &telemetry, publisher);
    rig.publish(publisher, Version::V5, id + 1, "refused");
    for _ in 0..3 {
        rig.turn();
        assert_eq!(rig.sent(publisher, Version::V5), [] as [&str; 0]);
    }
    rig.gate.is_full.store(false, Ordering::Relaxed);
    assert_eq!(
        rig.packets(publisher, Version::V5, 2),
        [format!("puback {id}"), "refused QuotaExceeded".to_owned()]
    );
}

#[test]
fn a_record_that_waits_for_space_ends_its_connection_after_some_seconds_and_is_written_all_the_same()
 {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(Version::V5, "p"));
    let telemetry = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    publish_until_one_waits_for_space(&mut rig, &telemetry, publisher);
    let queued = telemetry.next_offset();
    for _ in 0..5 {
        rig.pass_time(1000);
        assert_eq!(rig.sent(publisher, Version::V5), [] as [&str; 0]);
    }
    rig.pass_time(1000);
    rig.pass_time(1000);
    assert_eq!(
        rig.sent(publisher, Version::V5),
        ["disconnect QuotaExceeded"]
    );
    assert!(rig.engine.take_closed().contains(&publisher));

    rig.gate.is_full.store(false, Ordering::Relaxed);
    // The mark moves first; appends are accepted again a moment later.
    while telemetry.high_watermark() < queued || telemetry.state() != PartitionState::Running {
        rig.moved
            .recv_timeout(DEADLINE)
            .expect("the log hears of the space");
    }
    let again = rig.connect(ConnectFields::new(Version::V5, "again"));
    rig.publish(again, Version::V5, 1, "taken");
    assert_eq!(rig.packets(again, Version::V5, 1), ["puback 1"]);
}

#[test]
fn i7_clients_that_come_and_go_leave_no_timers_behind() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let expiry = [Property::SessionExpiryInterval(5)];
    let mut fields = persistent(version, "restless");
    fields.properties = &expiry;
    fields.keep_alive_s = u16::MAX;
    for _ in 0..1900 {
        let key = rig.connect(fields);
        rig.engine.remove(key);
        rig.engine.take_closed();
        rig.now.mono_ms += 1;
        rig.now.wall_us += 1000;
    }
    rig.pass_time(tick::CHECKPOINT_MS);
    assert!(
        rig.engine.clients.timers_len() < 10,
        "{}",
        rig.engine.clients.timers_len()
    );
    assert_eq!(rig.engine.clients.sessions_len(), 1);
    rig.pass_time(5_000);
    assert_eq!(
        rig.engine.clients.sessions_len(),
        0,
        "it expires all the same"
    );
}

#[test]
fn a_log_that_is_closed_leaves_no_file_open() {
    let dir = dir();
    Rig::open(dir.path(), SyncMode::Always).crash();
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(dir.path()))
        .collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn i7_what_every_idle_connection_takes_stays_small() {
    use super::super::session::Subscription;
    // With its tables, an idle connection with a subscription must take less than 0.78 KiB; state that few clients use
    // belongs behind a `LazyBox` or a box. With the 8 bytes of a slot, blocks of these sizes fill the size classes of the
    // allocator: a few bytes more would cost a fifth or a sixth more.
    assert!(
        size_of::<Connection>() <= 184,
        "{}",
        size_of::<Connection>()
    );
    assert!(size_of::<Session>() <= 152, "{}", size_of::<Session>());
    assert!(
        size_of::<Subscription>() <= 40,
        "{}",
        size_of::<Subscription>()
    );
}
