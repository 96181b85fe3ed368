//! Records of the broker itself, wills and receipts, of which there may be very many at once.

use headwater_log::AppendError;

use crate::engine::ingest::own::{OwnRecord, OwnRecords};

use super::full_queue::{QUEUE_BYTES, fill_disk, free_disk, put};
use super::qos2::publish;
use super::stored_state::assert_next;
use super::*;

const VERSION: Version = Version::V311;
/// A table of one append has room for this many clients.
pub(super) const TABLE: usize = u16::MAX as usize;

/// Stages one record for each of `count` clients.
fn stage(rig: &mut Rig, count: usize) {
    stage_as(rig, count, |n| ("t".to_owned(), n.to_string()));
}

/// The same with other topics and clients.
pub(super) fn stage_as(rig: &mut Rig, count: usize, names: impl Fn(usize) -> (String, String)) {
    rig.engine.begin(rig.now);
    for n in 0..count {
        let (topic, client_id) = names(n);
        let record = OwnRecord {
            topic: &topic,
            client_id: &client_id,
            key: None,
            qos: 1,
            retain: false,
            properties: &[],
            payload: b"x",
        };
        assert!(
            lend!(rig.engine => OwnRecords).stage_own(&record).is_some(),
            "{n}"
        );
    }
    rig.engine.drain();
}

fn telemetry(rig: &Rig) -> headwater_log::Partition {
    rig.log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone()
}

#[test]
fn all_of_them_are_taken_however_many_there_are_at_once() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    stage(&mut rig, TABLE + 1000);
    rig.turn();
    let count = TABLE as u64 + 1000;
    assert_eq!(telemetry(&rig).next_offset(), Offset(count));
}

#[test]
fn a_publish_behind_as_many_as_an_append_takes_goes_into_the_next_one() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let key = rig.clients(VERSION, 1)[0];
    stage(&mut rig, TABLE);
    rig.publish(key, VERSION, 1, "x");
    assert_eq!(rig.packets(key, VERSION, 1), ["puback 1"]);
    let count = TABLE as u64 + 1;
    assert_eq!(telemetry(&rig).next_offset(), Offset(count));
}

#[test]
fn a_publish_behind_as_many_as_an_append_takes_waits_while_the_queue_is_full() {
    let dir = dir();
    let mut rig = Rig::open_with(LogConfig {
        queue_bytes: QUEUE_BYTES,
        ..LogConfig::new(dir.path())
    });
    let key = rig.clients(VERSION, 1)[0];
    let partition = telemetry(&rig);
    rig.gate.set(Sync::Hold);
    loop {
        match partition.append(put(&[7; 8 << 10])) {
            Ok(_) => {}
            Err(AppendError::QueueFull { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let before = partition.next_offset();
    stage(&mut rig, TABLE);
    rig.publish(key, VERSION, 1, "x");
    let plan = rig.engine.read_plan(key);
    let early = rig.sent(key, VERSION);
    rig.gate.set(Sync::Pass);
    assert_eq!((plan, early), (ReadPlan::Wait, Vec::new()));
    assert_eq!(rig.packets(key, VERSION, 1), ["puback 1"]);
    let count = TABLE as u64 + 1;
    assert_eq!(partition.next_offset(), before.plus(count));
}

#[test]
fn a_packet_id_stays_in_use_if_its_second_publish_was_staged_when_the_first_is_refused() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(Version::V5, "c"));
    let partition = telemetry(&rig);
    fill_disk(&mut rig, &partition);
    publish(&mut rig, key, Version::V5, 1, "first", "first");
    // Now the table of topics is full, so the second publish needs another append.
    stage_as(&mut rig, TABLE - 1, |n| {
        (format!("own/{n}"), "c".to_owned())
    });
    publish(&mut rig, key, Version::V5, 1, "second", "second");
    let _refused = rig.sent(key, Version::V5);
    free_disk(&mut rig, &partition);
    let before = partition.next_offset();
    assert_next(&mut rig, key, "Pubrec");
    publish(&mut rig, key, Version::V5, 1, "second", "second");
    assert_next(&mut rig, key, "Pubrec");
    assert_eq!(partition.next_offset(), before.plus(1), "once");
}
