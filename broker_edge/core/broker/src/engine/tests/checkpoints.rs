//! Checkpoints that take several turns: what changes meanwhile.

use super::full_queue::{fill_disk, free_disk};
use super::member::{Member, Publisher, settle_disk};
use super::own_records::{TABLE, stage_as};
use super::qos2::{LASTS, answer, lasting};
use super::*;

const V5: Version = Version::V5;
/// More than one turn of a checkpoint stores.
const SESSIONS: usize = 300;

#[test]
fn a_session_that_changes_during_a_checkpoint_waits_for_the_next_one() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let mut members: Vec<Member> = (0..SESSIONS)
        .map(|n| Member::new(&format!("s{n}"), V5))
        .collect();
    for member in &mut members {
        member.connect(&mut rig, true, 10);
        member.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    }
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 2, QoS::AtLeastOnce);
    for member in &mut members {
        member.ack(&mut rig, 1);
    }
    settle_disk(&mut rig, &mut []);
    let internal = rig.log.partitions()[0].clone();
    let stored_in = |rig: &mut Rig, ms: u64| {
        let before = internal.next_offset();
        rig.pass_time(ms);
        internal.next_offset().0 - before.0
    };
    let first = stored_in(&mut rig, tick::CHECKPOINT_MS);
    // Clients of the stored part and of the part that is left acknowledge once more; the former have changed again.
    let stored = members
        .iter()
        .position(|member| cursor(&rig, &member.name) > 0)
        .expect("a part is stored");
    members[stored].ack(&mut rig, 1);
    let rest = stored_in(&mut rig, 1);
    assert!((1..SESSIONS as u64).contains(&first), "{first} at once");
    assert_eq!(first + rest, SESSIONS as u64, "each once");
    assert_eq!(cursor(&rig, &members[stored].name), 1);
    assert_eq!(stored_in(&mut rig, 1), 0, "the checkpoint is complete");
    assert_eq!(stored_in(&mut rig, tick::CHECKPOINT_MS), 1);
    assert_eq!(cursor(&rig, &members[stored].name), 2);
}

/// The stored position of a session in the telemetry partition.
fn cursor(rig: &Rig, client_id: &str) -> u64 {
    let value = rig.state.get(&format!("cursor/{client_id}"));
    let value: serde_json::Value =
        serde_json::from_slice(&value.expect("it is stored")).expect("JSON");
    value["cursors"]["telemetry-0"].as_u64().expect("a number")
}

/// Commands stay in the control partition; receipts go to the telemetry partition, whose disk the test controls.
fn rig_of_devices(dir: &Path) -> Rig {
    let mut config = LogConfig::new(dir);
    let mut classes = config.classes.iter_mut();
    let control = classes.find(|class| class.class == Class::Control);
    control.expect("there by default").filters = vec!["devices/+/actions".to_owned()];
    Rig::open_with(config)
}

#[test]
fn a_receipt_that_is_refused_while_its_checkpoint_goes_on_is_appended_later() {
    let dir = dir();
    let mut rig = rig_of_devices(dir.path());
    let sender = rig.connect(ConnectFields::new(V5, "sender"));
    let devices = ["d1", "d2"].map(|device| {
        let topic = format!("devices/{device}/actions");
        let key = rig.connect(lasting(V5, device, &LASTS));
        let one = [Subscription {
            filter: &topic,
            options: SubscriptionOptions::new(QoS::AtLeastOnce),
        }];
        rig.feed(key, |out| {
            encode::subscribe(out, V5, PacketId::FIRST, &[], &one);
        });
        assert_eq!(rig.packets(key, V5, 1), ["suback"]);
        rig.publish_to(&topic, false, sender, V5, 1, "blink");
        assert_eq!(rig.packets(key, V5, 1), ["publish blink"]);
        assert_eq!(rig.packets(sender, V5, 1), ["puback 1"]);
        key
    });
    let telemetry = rig.log.by_name("telemetry-0").expect("there").clone();
    fill_disk(&mut rig, &telemetry);
    for key in devices {
        answer(&mut rig, key, V5, 1, encode::puback);
    }
    rig.turn();
    // The receipt of the first device takes the last room in the table of clients: that of the second has the append
    // refused, which includes the first one's.
    stage_as(&mut rig, TABLE - 1, |n| ("own".to_owned(), n.to_string()));
    rig.pass_time(tick::CHECKPOINT_MS);
    free_disk(&mut rig, &telemetry);
    for _ in 0..3 {
        rig.pass_time(tick::CHECKPOINT_MS);
        settle_disk(&mut rig, &mut []);
    }
    assert_eq!(receipts(&rig), ["d1", "d2"]);
}

/// The devices of the receipts in the log, in order.
fn receipts(rig: &Rig) -> Vec<String> {
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let (mut next, mut devices) = (Offset(0), Vec::new());
    while next < telemetry.high_watermark() {
        for batch in telemetry.read(next, 1 << 20).expect("nothing is damaged") {
            let records = batch.records().filter(|record| record.topic == "$receipts");
            devices.extend(records.map(|record| record.client_id.to_owned()));
            next = batch.next_offset();
        }
    }
    devices.sort_unstable();
    devices
}
