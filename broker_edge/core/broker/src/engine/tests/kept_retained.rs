//! Retention waits for whoever keeps the retained messages of a segment.

use headwater_log::{Partition, RecordMeta, Records};

use super::*;

const VERSION: Version = Version::V5;
const NOISE_BYTES: usize = 32 << 10;

/// A rig whose log keeps few segments, and removes them only on request.
fn rig_of(dir: &Path) -> (Rig, Partition) {
    let mut config = LogConfig::new(dir);
    config.segment_bytes = 256 << 10;
    config.maintain_every = None;
    for class in &mut config.classes {
        class.retention_bytes = Some(512 << 10);
    }
    let rig = Rig::open_with(config);
    let telemetry = rig.log.by_name("telemetry-0").expect("by default").clone();
    (rig, telemetry)
}

fn assert_is_kept(rig: &mut Rig, telemetry: &Partition) {
    while telemetry.log_start() == Offset(0) {
        rig.turn();
        rig.log.maintain();
    }
    let subscriber = rig.connect(ConnectFields::new(VERSION, "s"));
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::AtMostOnce),
    }];
    rig.feed(subscriber, |out| {
        encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one)
    });
    let got = rig.packets(subscriber, VERSION, 2);
    assert_eq!(got, ["suback", "publish kept"]);
}

/// Between two engines nobody could store the retained messages.
#[test]
fn a_segment_stays_until_the_next_engine_has_stored_its_retained_messages() {
    let dir = dir();
    let (mut rig, telemetry) = rig_of(dir.path());
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    rig.publish_to("t", true, publisher, VERSION, 1, "kept");
    for id in 2..40 {
        let noise = "x".repeat(NOISE_BYTES);
        rig.publish_to("noise", false, publisher, VERSION, id, &noise);
    }
    rig.packets(publisher, VERSION, 39);
    let mut rig = rig.remade(true, |log| {
        log.maintain();
        assert_eq!(telemetry.log_start(), Offset(0));
    });
    assert_is_kept(&mut rig, &telemetry);
}

/// Records may come from elsewhere, faster than the loop takes note of them.
#[test]
fn a_segment_stays_until_the_loop_has_seen_its_retained_messages() {
    let dir = dir();
    let (mut rig, telemetry) = rig_of(dir.path());
    let append = |topic: &str, retain: bool, payload: &[u8]| {
        let mut records = Records::new();
        let index = records.topic(topic, 0..1).expect("room");
        let client = records.client("producer").expect("room");
        let meta = RecordMeta {
            retain,
            ..RecordMeta::new(index, client, 1)
        };
        records.push(meta, payload).expect("room");
        let range = telemetry.append(records).expect("taken");
        while telemetry.high_watermark() < range.end {
            rig.wait_for_disk();
        }
    };
    append("t", true, b"kept");
    (0..40).for_each(|_| append("noise", false, &[b'x'; NOISE_BYTES]));
    rig.log.maintain();
    assert_eq!(telemetry.log_start(), Offset(0));
    assert_is_kept(&mut rig, &telemetry);
}
