//! Publishers while the queue of their partition is full: they wait and are never refused. Flight's DoPut, which
//! appends to the same partition from other threads, helps to fill it.

use std::sync::atomic::{AtomicBool, AtomicU64};

use headwater_log::{AppendError, Partition, PartitionState, RecordMeta, Records};

use super::*;

pub(super) const QUEUE_BYTES: usize = 64 << 10;

fn rig(dir: &Path) -> Rig {
    Rig::open_with(LogConfig {
        queue_bytes: QUEUE_BYTES,
        ..LogConfig::new(dir)
    })
}

fn telemetry(rig: &Rig) -> Partition {
    rig.log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone()
}

/// One record, as DoPut would append it.
pub(super) fn put(payload: &[u8]) -> Records {
    let mut records = Records::new();
    let topic = records.topic("put", 0..3).expect("room");
    let client = records.client("flight").expect("room");
    let meta = RecordMeta::new(topic, client, 1);
    records.push(meta, payload).expect("room");
    records
}

fn fill(partition: &Partition) {
    let payload = [7; 8 << 10];
    loop {
        match partition.append(put(&payload)) {
            Ok(_) => {}
            Err(AppendError::QueueFull { records, .. }) => {
                assert_eq!(records.len(), 1, "what was refused comes back");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Ends the space for a partition of the test's disk.
pub(super) fn fill_disk(rig: &mut Rig, partition: &Partition) {
    rig.gate.is_full.store(true, Ordering::Relaxed);
    while partition.state() != PartitionState::Full {
        let _ = partition.append(put(&[7; 150 << 10]));
        rig.wait_for_disk();
    }
}

/// There is space again.
pub(super) fn free_disk(rig: &mut Rig, partition: &Partition) {
    rig.gate.is_full.store(false, Ordering::Relaxed);
    while partition.state() == PartitionState::Full {
        rig.moved.recv_timeout(DEADLINE).expect("there is space");
    }
}

#[test]
fn a_publish_that_meets_a_full_queue_waits_and_is_acknowledged_once_it_is_written() {
    // With commits on the loop's thread, and on the writer's.
    for publishers in [1, MANY] {
        let dir = dir();
        let mut rig = rig(dir.path());
        let version = Version::V5;
        let keys = rig.clients(version, publishers);
        let partition = telemetry(&rig);
        rig.gate.set(Sync::Hold);
        fill(&partition);
        let text = "x".repeat(8 << 10);
        for key in &keys {
            rig.publish(*key, version, 1, &text);
        }
        rig.turn();
        for key in &keys {
            assert_eq!(rig.sent(*key, version), [""; 0], "of {publishers}");
        }
        rig.gate.set(Sync::Pass);
        for key in keys {
            assert_eq!(
                rig.packets(key, version, 1),
                ["puback 1"],
                "of {publishers}"
            );
        }
    }
}

#[test]
fn who_publishes_on_while_there_is_no_room_is_read_no_further_and_then_goes_on_in_order() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let version = Version::V5;
    let key = rig.clients(version, 1)[0];
    rig.gate.set(Sync::Hold);
    fill(&telemetry(&rig));
    rig.publish(key, version, 1, &"x".repeat(8 << 10));
    rig.turn();
    assert_ne!(
        rig.engine.read_plan(key),
        ReadPlan::Wait,
        "not for the first"
    );
    rig.publish(key, version, 2, "two");
    assert_eq!(rig.engine.read_plan(key), ReadPlan::Wait);
    rig.turn();
    assert_eq!(rig.sent(key, version), [""; 0]);
    rig.gate.set(Sync::Pass);
    assert_eq!(rig.packets(key, version, 2), ["puback 1", "puback 2"]);
    let plan = rig.engine.read_plan(key);
    assert_ne!(plan, ReadPlan::Wait, "there is room");
    rig.publish(key, version, 3, "three");
    assert_eq!(rig.packets(key, version, 1), ["puback 3"]);
}

#[test]
fn who_waited_for_room_is_not_silent_when_there_is_some_and_who_was_silent_still_is() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let version = Version::V5;
    let [waits, silent] = ["waits", "silent"].map(|client_id| {
        let mut fields = ConnectFields::new(version, client_id);
        fields.keep_alive_s = 10;
        rig.connect(fields)
    });
    let partition = telemetry(&rig);
    rig.gate.set(Sync::Hold);
    fill(&partition);
    rig.publish(waits, version, 1, &"x".repeat(8 << 10));
    rig.turn();
    rig.publish(waits, version, 2, "two");
    let plan = rig.engine.read_plan(waits);
    rig.now.mono_ms += 15_000;
    rig.feed(silent, encode::pingreq);
    rig.turn();
    rig.gate.set(Sync::Pass);
    assert_eq!(plan, ReadPlan::Wait);
    while partition.queued_bytes() > 0 {
        rig.moved.recv_timeout(DEADLINE).expect("the log moves");
    }
    // Both are due in the turn in which a publish finds room, before the held packets are handled again.
    rig.now.mono_ms += 15_000;
    rig.engine.begin(rig.now);
    rig.append(&partition);
    assert!(rig.engine.has_more(), "what was held is due");
    rig.engine.tick();
    assert_eq!(rig.engine.take_closed(), [silent]);
    assert_eq!(rig.packets(waits, version, 2), ["puback 1", "puback 2"]);
}

#[test]
fn a_packet_id_that_is_used_for_another_message_counts_once_however_often_that_has_to_wait() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let version = Version::V5;
    let key = rig.clients(version, 1)[0];
    let owed = |rig: &Rig| {
        rig.engine
            .clients
            .conn(key)
            .map(|conn| conn.publishes_in_flight)
    };
    for (id, text) in [(3, "another"), (1, "one")] {
        qos2::publish(&mut rig, key, version, id, "t", text);
        assert!(rig.packets(key, version, 1)[0].starts_with("Pubrec"));
    }
    assert_eq!(owed(&rig), Some(2));
    rig.gate.set(Sync::Hold);
    fill(&telemetry(&rig));
    rig.publish(key, version, 2, &"x".repeat(8 << 10));
    rig.turn();
    // Its session was lost, so the client does not know that the id is in use.
    qos2::publish(&mut rig, key, version, 1, "t", "two");
    assert_eq!(rig.engine.read_plan(key), ReadPlan::Wait);
    rig.gate.set(Sync::Pass);
    let packets = rig.packets(key, version, 2);
    assert_eq!(packets[0], "puback 2");
    assert!(packets[1].starts_with("Pubrec"), "{packets:?}");
    assert_eq!(owed(&rig), Some(2));
    for (id, left) in [(1, 1), (3, 0)] {
        qos2::answer(&mut rig, key, version, id, encode::pubrel);
        assert!(rig.packets(key, version, 1)[0].starts_with("Pubcomp"));
        assert_eq!(owed(&rig), Some(left));
    }
}

#[test]
fn no_publish_is_refused_while_another_thread_keeps_the_queue_full() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let version = Version::V5;
    let key = rig.clients(version, 1)[0];
    let partition = telemetry(&rig);
    let refused = Arc::new(AtomicU64::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    let flood = {
        let (partition, refused) = (partition.clone(), Arc::clone(&refused));
        let is_done = Arc::clone(&is_done);
        std::thread::spawn(move || {
            let mut records = put(&[7; 20 << 10]);
            while !is_done.load(Ordering::Relaxed) {
                records = match partition.append(records) {
                    Ok(_) => put(&[7; 20 << 10]),
                    Err(AppendError::QueueFull { records, .. }) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        *records
                    }
                    Err(error) => panic!("{error}"),
                };
            }
        })
    };
    // On a busy machine the other thread may be late: only publishes made while it fills the queue count.
    let text = "x".repeat(30 << 10);
    let mut published = 0;
    while published < 50 || refused.load(Ordering::Relaxed) == 0 {
        published += 1;
        assert!(published < 60_000, "the queue was never full");
        rig.publish(key, version, published, &text);
        let answer = rig.packets(key, version, 1);
        assert_eq!(answer, [format!("puback {published}")]);
    }
    is_done.store(true, Ordering::Relaxed);
    flood.join().expect("it ends");
}

/// Session state that is not stored because its partition is busy is not lost for the client.
#[test]
fn a_session_whose_connect_meets_a_full_queue_is_refused_and_keeps_what_it_has() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.clean_start = false;
    fields.properties = &[Property::SessionExpiryInterval(3600)];
    let key = rig.connect(fields);
    rig.subscribe(key, Version::V5);
    rig.engine.remove(key);
    let publisher = rig.connect(ConnectFields::new(Version::V5, "p"));
    rig.publish(publisher, Version::V5, 1, "kept");
    assert_eq!(rig.packets(publisher, Version::V5, 1), ["puback 1"]);
    let internal = rig.log.by_name("internal-0").expect("always").clone();
    rig.state_gate.set(Sync::Hold);
    fill(&internal);
    // One more record takes the last room.
    while internal.append(put(&[7; 64])).is_ok() {}
    let refused = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(refused, |out| encode::connect(out, &fields));
    let told = rig.engine.out(refused).to_vec();
    assert_eq!(told[3], ReasonCode::ServerUnavailable.as_u8(), "{told:?}");
    rig.engine.remove(refused);
    rig.state_gate.set(Sync::Pass);
    while rig.quiet_at().is_none() {
        rig.wait_for_disk();
        rig.turn();
    }
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    let told = rig.packets(key, Version::V5, 2);
    assert_eq!(told, ["connack true", "publish kept"]);
    rig.crash();
}
