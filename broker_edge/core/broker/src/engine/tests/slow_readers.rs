//! Clients that do not read, and the budget for what waits for their sockets.

use super::hostile::{subscribe_to, until_idle};
use super::*;

const VERSION: Version = Version::V311;
const PAYLOAD_BYTES: usize = 4 << 10;

/// Clients that subscribe to `t` and take nothing of it.
fn deaf(rig: &mut Rig, count: usize) -> Vec<ConnKey> {
    let connect = |n| {
        let key = rig.connect(ConnectFields::new(VERSION, &format!("deaf {n}")));
        subscribe_to(rig, key, "t", QoS::AtMostOnce);
        key
    };
    (0..count).map(connect).collect()
}

fn publish_all(rig: &mut Rig, publisher: ConnKey, deaf: &[ConnKey], count: u16) {
    let padding = "x".repeat(PAYLOAD_BYTES);
    for id in 1..=count {
        rig.publish(publisher, VERSION, id, &format!("{id} {padding}"));
        assert_eq!(rig.packets(publisher, VERSION, 1), [format!("puback {id}")]);
        for key in deaf {
            rig.engine.out(*key);
            rig.engine.written(*key, 0);
        }
    }
}

fn waiting(rig: &mut Rig, keys: &[ConnKey]) -> Vec<usize> {
    let waiting = keys.iter().map(|key| rig.engine.out(*key).len());
    waiting.collect()
}

#[test]
fn i7_clients_that_do_not_read_share_a_budget_and_each_has_a_small_part() {
    const BUDGET: usize = 2 << 20;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.send_budget_bytes = ByteSize(BUDGET as u64);
    let deaf = deaf(&mut rig, 60);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    publish_all(&mut rig, publisher, &deaf, 80);
    let waiting = waiting(&mut rig, &deaf);
    assert!(
        waiting.iter().all(|bytes| *bytes >= 16 << 10),
        "{waiting:?}"
    );
    let all: usize = waiting.iter().sum();
    // One packet more each, with which it reached its part.
    assert!(all <= BUDGET + deaf.len() * 5000, "{all}");
    assert_eq!(rig.engine.clients.send_budget.waiting_bytes(), all);
    // Who reads gets what there is, and what is taken or gone is not counted.
    let reads = rig.connect(ConnectFields::new(VERSION, "reads"));
    subscribe_to(&mut rig, reads, "t", QoS::AtMostOnce);
    publish_all(&mut rig, publisher, &[], 1);
    assert_eq!(rig.packets(reads, VERSION, 1).len(), 1);
    let (gone, back) = deaf.split_at(30);
    gone.iter().for_each(|key| rig.engine.remove(*key));
    for key in back {
        rig.sent(*key, VERSION);
    }
    assert_eq!(rig.engine.clients.send_budget.waiting_bytes(), 0);
}

#[test]
fn who_had_no_room_in_the_budget_gets_everything_in_order_once_it_reads() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.send_budget_bytes = ByteSize(1 << 20);
    let mut slow = deaf(&mut rig, 60);
    let late = rig.connect(ConnectFields::new(VERSION, "late"));
    subscribe_to(&mut rig, late, "t", QoS::AtLeastOnce);
    slow.push(late);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    publish_all(&mut rig, publisher, &slow, 60);
    let own = rig.engine.env.settings.mqtt.out_buffer_bytes.as_usize();
    let waiting = waiting(&mut rig, &[late])[0];
    assert!(waiting < own / 4, "{waiting}");
    let mut sent = Vec::new();
    while sent.len() < 60 {
        sent.extend(until_idle(&mut rig, late, VERSION));
    }
    for (packet, id) in sent.iter().zip(1..) {
        assert!(packet.starts_with(&format!("publish {id} ")));
    }
}

#[test]
fn i7_a_turn_copies_no_more_than_there_is_memory_for() {
    const COPIED_MAX: usize = 64 << 20;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let deaf = deaf(&mut rig, 300);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    let payload = "x".repeat(PAYLOAD_BYTES);
    let fields = |id| PublishFields {
        version: VERSION,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "t",
        packet_id: PacketId::new(id),
        properties: &[],
        extra: &[],
    };
    // As much as fits the buffer of each: all of it is more than a turn copies.
    rig.feed(publisher, |out| {
        for id in 1..=60 {
            let packet = fields(id).encode(out, payload.as_bytes());
            packet.expect("a packet");
        }
    });
    let mut all = 0;
    while all < deaf.len() * 60 * PAYLOAD_BYTES {
        rig.turn();
        let waiting: usize = waiting(&mut rig, &deaf).iter().sum();
        assert!(waiting <= COPIED_MAX + (4 << 20), "{waiting}");
        for key in &deaf {
            all += rig.engine.out(*key).len();
            rig.sent(*key, VERSION);
        }
    }
}

#[test]
fn i7_a_buffer_takes_little_more_than_what_waits_in_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let slow = deaf(&mut rig, 1);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    publish_all(&mut rig, publisher, &slow, 80);
    let capacity = |rig: &Rig| {
        let conn = rig.engine.clients.conn(slow[0]).expect("it is open");
        conn.out.capacity()
    };
    let own = rig.engine.env.settings.mqtt.out_buffer_bytes.as_usize();
    let full = capacity(&rig);
    assert!((own..own + 2 * PAYLOAD_BYTES).contains(&full), "{full}");
    let all = waiting(&mut rig, &slow)[0];
    rig.engine.written(slow[0], all - 100);
    let emptied = capacity(&rig);
    assert!(emptied <= 64 << 10, "{emptied}");
}

#[test]
fn i7_a_large_payload_that_many_hold_is_kept_once_and_one_that_few_hold_is_copied() {
    const BYTES: usize = 64 << 10;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let many = deaf(&mut rig, 8);
    let alone = rig.connect(ConnectFields::new(VERSION, "alone"));
    subscribe_to(&mut rig, alone, "of one", QoS::AtMostOnce);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    let payload = "x".repeat(BYTES);
    // What is read after them is of nobody, and much more than what the log keeps in memory for them.
    let topics = ["t", "of one"].into_iter();
    for (topic, id) in topics.chain(["noise"; 300]).zip(1..) {
        rig.publish_to(topic, false, publisher, VERSION, id, &payload);
        rig.packets(publisher, VERSION, 1);
        for key in many.iter().chain([&alone]) {
            rig.engine.out(*key);
            rig.engine.written(*key, 0);
        }
    }
    let copied = |rig: &Rig, key| {
        let conn = rig.engine.clients.conn(key).expect("it is open");
        conn.out.len()
    };
    assert!(copied(&rig, alone) >= BYTES);
    for key in many {
        assert!(copied(&rig, key) < BYTES);
        let text = rig.sent(key, VERSION).concat();
        assert_eq!(text, format!("publish {payload}"));
    }
}
