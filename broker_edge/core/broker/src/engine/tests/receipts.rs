//! Receipts that are not durable yet: until then the device's session does not pass the command.

use headwater_log::{PartitionState, RecordMeta, Records};

use crate::engine::ids::Commit;
use crate::engine::ingest::own::OwnRecords;

use super::qos2::{LASTS, answer, lasting};
use super::*;

const VERSION: Version = Version::V5;
const COMMANDS: &str = "devices/d/actions";

/// Commands stay in the control partition; receipts go to the telemetry partition, whose disk the test controls.
fn rig(dir: &Path) -> Rig {
    let mut config = LogConfig::new(dir);
    let mut classes = config.classes.iter_mut();
    let control = classes.find(|class| class.class == Class::Control);
    control.expect("there by default").filters = vec!["devices/+/actions".to_owned()];
    Rig::open_with(config)
}

fn partition(rig: &Rig, name: &str) -> headwater_log::Partition {
    rig.log.by_name(name).expect("there by default").clone()
}

/// A device that subscribes to commands, with a session that outlives its connection if it `lasts`.
fn subscribed(rig: &mut Rig, lasts: bool) -> ConnKey {
    let device = rig.connect(if lasts {
        lasting(VERSION, "d", &LASTS)
    } else {
        ConnectFields::new(VERSION, "d")
    });
    let one = [Subscription {
        filter: COMMANDS,
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    rig.feed(device, |out| {
        encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one);
    });
    assert_eq!(rig.packets(device, VERSION, 1), ["suback"]);
    device
}

/// A device that was sent a command and has not acknowledged it.
fn commanded(rig: &mut Rig, lasts: bool) -> ConnKey {
    let device = subscribed(rig, lasts);
    let sender = rig.connect(ConnectFields::new(VERSION, "sender"));
    rig.publish_to(COMMANDS, false, sender, VERSION, 1, "blink");
    assert_eq!(rig.packets(device, VERSION, 1), ["publish blink"]);
    device
}

/// The control partition's cursor in a checkpoint.
fn cursor(rig: &Rig, device: ConnKey) -> u64 {
    let engine = &rig.engine;
    let control = PartitionIndex::of(partition(rig, "control-0").id());
    let session = engine.clients.conn(device).and_then(|conn| conn.session);
    let session = session.and_then(|key| engine.clients.session(key));
    let live_at = engine.delivery.live_at(control);
    session.expect("connected").cursor(control, live_at).0
}

/// Runs checkpoints until the command is passed; returns the number of receipts then.
fn receipts_when_passed(rig: &mut Rig, device: ConnKey) -> usize {
    let until_ms = rig.now.mono_ms + 1000 * tick::CHECKPOINT_MS;
    while cursor(rig, device) == 0 {
        assert!(rig.now.mono_ms < until_ms, "the command is never passed");
        rig.wait_for_disk();
        rig.pass_time(tick::CHECKPOINT_MS);
    }
    let telemetry = partition(rig, "telemetry-0");
    let (mut next, mut receipts) = (Offset(0), 0);
    while next < telemetry.high_watermark() {
        for batch in telemetry.read(next, 1 << 20).expect("nothing is damaged") {
            let receipt = |record: &headwater_log::RecordView<'_>| record.topic == "$receipts";
            receipts += batch.records().filter(receipt).count();
            next = batch.next_offset();
        }
    }
    receipts
}

/// The receipt is on its way to the disk of the telemetry partition, which is returned.
fn acknowledge_while_syncs_are_held(rig: &mut Rig, device: ConnKey) -> PartitionIndex {
    let telemetry = PartitionIndex::of(partition(rig, "telemetry-0").id());
    for _ in 0..3 {
        // The writer's thread has to wait for the disk, not this one.
        let stage = rig.engine.ingest.stage_mut(telemetry);
        stage.inline_commits.note(Duration::from_secs(1));
    }
    rig.gate.set(Sync::Hold);
    answer(rig, device, VERSION, 1, encode::puback);
    rig.turn();
    telemetry
}

#[test]
fn a_command_is_passed_once_its_receipt_is_durable_and_not_before() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let device = commanded(&mut rig, true);
    acknowledge_while_syncs_are_held(&mut rig, device);
    let mut cursors = Vec::new();
    for _ in 0..3 {
        rig.pass_time(tick::CHECKPOINT_MS);
        cursors.push(cursor(&rig, device));
    }
    rig.gate.set(Sync::Pass);
    assert_eq!(cursors, [0; 3]);
    assert_eq!(receipts_when_passed(&mut rig, device), 1);
}

/// An append by another client.
fn large_record() -> Records {
    let mut records = Records::new();
    let topic = records.topic("put", 0..3).expect("room");
    let client = records.client("flight").expect("room");
    let meta = RecordMeta::new(topic, client, 1);
    records.push(meta, &[7; 150 << 10]).expect("room");
    records
}

#[test]
fn a_receipt_on_its_way_is_not_appended_again_when_others_are_refused() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let device = commanded(&mut rig, true);
    let telemetry = acknowledge_while_syncs_are_held(&mut rig, device);
    // As if the log refused later records, or records for another partition.
    let commits = &rig.engine.ingest.stage_mut(telemetry).commits;
    let behind = commits.open();
    let (staged, _) = commits.newest().expect("it is on its way");
    let control = PartitionIndex::of(partition(&rig, "control-0").id());
    let sessions: Vec<SessionKey> = rig.engine.clients.session_keys();
    for (partition, seq) in [(telemetry, behind), (control, staged)] {
        let refused = Commit { partition, seq };
        lend!(rig.engine => OwnRecords).unstage_receipts(refused, &sessions);
        rig.pass_time(tick::CHECKPOINT_MS);
    }
    rig.gate.set(Sync::Pass);
    assert_eq!(receipts_when_passed(&mut rig, device), 1);
}

/// With a session that outlives its connection, or not.
fn assert_appended_when_there_is_space(lasts: bool) {
    let dir = dir();
    let mut rig = rig(dir.path());
    let device = commanded(&mut rig, lasts);
    let telemetry = partition(&rig, "telemetry-0");
    rig.gate.is_full.store(true, Ordering::Relaxed);
    while telemetry.state() != PartitionState::Full {
        // Refused once the full disk is noticed, which may be by now.
        let _ = telemetry.append(large_record());
        while telemetry.state() != PartitionState::Full
            && telemetry.high_watermark() < telemetry.next_offset()
        {
            let moved = rig.moved.recv_timeout(DEADLINE);
            moved.expect("the log moves or is full");
        }
    }
    answer(&mut rig, device, VERSION, 1, encode::puback);
    for _ in 0..3 {
        rig.turn();
        assert_eq!(cursor(&rig, device), 0);
        rig.pass_time(tick::CHECKPOINT_MS);
    }
    rig.gate.is_full.store(false, Ordering::Relaxed);
    while telemetry.state() == PartitionState::Full {
        rig.moved.recv_timeout(DEADLINE).expect("there is space");
    }
    rig.pass_time(tick::CHECKPOINT_MS);
    assert_eq!(receipts_when_passed(&mut rig, device), 1);
}

#[test]
fn a_receipt_that_the_log_refused_is_appended_when_there_is_space() {
    assert_appended_when_there_is_space(true);
}

#[test]
fn a_refused_receipt_of_a_session_that_ends_with_its_connection_is_appended_all_the_same() {
    assert_appended_when_there_is_space(false);
}

#[test]
fn a_receipt_is_a_record_of_the_device_and_says_which_command_it_is_for_and_when_it_was_received() {
    let dir = dir();
    let mut rig = rig(dir.path());
    let device = subscribed(&mut rig, true);
    let control = partition(&rig, "control-0");
    // Two commands; the second, which has its own offset and keys, is acknowledged.
    for (key, once) in [("k0", "once 0"), ("k1", "once 1")] {
        let mut records = Records::new();
        let topic = records.topic(COMMANDS, 0..1).expect("room");
        let client = records.client("sender").expect("room");
        let mut meta = RecordMeta::new(topic, client, 1);
        meta.key = Some(key.as_bytes());
        meta.idempotency_key = Some(once);
        records.push(meta, b"blink").expect("room");
        control.append(records).expect("there is room");
    }
    let delivered = ["publish blink"; 2];
    assert_eq!(rig.packets(device, VERSION, 2), delivered);
    rig.now.wall_us += 5;
    answer(&mut rig, device, VERSION, 2, encode::puback);
    let telemetry = partition(&rig, "telemetry-0");
    while telemetry.high_watermark() == Offset(0) {
        rig.turn();
        rig.wait_for_disk();
    }
    let batches = telemetry.read(Offset(0), 1).expect("nothing is damaged");
    let record = batches[0].record(0);
    assert_eq!((record.topic, record.key), ("$receipts", &b"d"[..]));
    assert_eq!((record.qos, record.retain), (1, false));
    let value: serde_json::Value = serde_json::from_slice(record.payload).expect("JSON");
    let wanted = serde_json::json!({
        "client_id": "d",
        "topic": COMMANDS,
        "key": "k1",
        "idempotency_key": "once 1",
        "partition": control.id().0,
        "name": "control-0",
        "offset": 1,
        "time_us": rig.now.wall_us,
    });
    assert_eq!(value, wanted);
}
