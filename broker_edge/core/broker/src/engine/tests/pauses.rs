//! A connection that the broker does not read is not silent: neither while its pause lasts, nor when it ends.

use super::guarded::Guarded;
use super::qos2::{LASTS, lasting};
use super::*;

const VERSION: Version = Version::V5;
const KEEP_ALIVE_S: u16 = 10;
/// One and a half times the keep alive.
const SILENCE_MS: u64 = 15_000;
const PAYLOAD: usize = 100 << 10;

/// A pause that the broker causes.
struct Pause {
    settings: fn(&mut Settings),
    /// Sends so much that the connection is not read any more.
    begin: fn(&mut Rig, ConnKey, ConnKey),
    /// What has to happen just before the pause can end; time does it otherwise.
    end: fn(&mut Rig, ConnKey),
}

const ACKS: Pause = Pause {
    settings: |_| {},
    begin: owe_many_acknowledgements,
    end: |rig, _| {
        rig.gate.set(Sync::Pass);
        let telemetry = rig.log.by_name("telemetry-0").expect("there").clone();
        while telemetry.high_watermark() < telemetry.next_offset() {
            rig.wait_for_disk();
        }
    },
};

const BUDGET: Pause = Pause {
    settings: |settings| settings.mqtt.receive_budget_bytes = ByteSize(150 << 10),
    begin: |rig, key, other| {
        for key in [other, key] {
            let first = &large_publish()[..1000];
            assert_eq!(rig.receive(key, first), first.len());
            // The rest is received if there is room for it.
            rig.engine.read_plan(key);
        }
    },
    end: |rig, other| {
        let rest = &large_publish()[1000..];
        assert_eq!(rig.receive(other, rest), rest.len());
    },
};

const RATE: Pause = Pause {
    settings: |settings| settings.mqtt.max_bytes_per_second = Some(ByteSize(4 << 10)),
    begin: |rig, key, _| {
        // 25 seconds' worth, and one packet more.
        let bytes = large_publish();
        assert_eq!(feed_all(rig, key, &bytes), bytes.len());
        rig.feed(key, encode::pingreq);
    },
    end: |_, _| {},
};

fn large_publish() -> Vec<u8> {
    let fields = PublishFields {
        version: VERSION,
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: &[],
        extra: &[],
    };
    let mut bytes = Vec::new();
    fields
        .encode(&mut bytes, &[b'x'; PAYLOAD])
        .expect("it fits");
    bytes
}

/// Sends bytes in as many reads as it takes.
fn feed_all(rig: &mut Rig, key: ConnKey, bytes: &[u8]) -> usize {
    let mut sent = 0;
    while sent < bytes.len() {
        let count = rig.receive(key, &bytes[sent..]);
        if count == 0 {
            break;
        }
        sent += count;
    }
    sent
}

/// Every second packet id, so that no two acknowledgements form a range.
fn owe_many_acknowledgements(rig: &mut Rig, key: ConnKey, _: ConnKey) {
    rig.gate.set(Sync::Hold);
    for id in (1_u16..).step_by(2) {
        if rig.engine.read_plan(key) == ReadPlan::Wait {
            return;
        }
        rig.publish(key, VERSION, id, "x");
    }
}

/// A clock that the engine sees, without a turn that handles what was held back.
fn tick_at(rig: &mut Rig, mono_ms: u64) {
    rig.now.mono_ms = mono_ms;
    rig.engine.begin(rig.now);
    rig.engine.tick();
    rig.engine.commit();
}

/// The first check of the silence comes in the middle of the pause, the second one just after it has ended.
fn assert_not_silence(pause: &Pause) {
    let dir = dir();
    let mut settings = Settings {
        // The writer's thread has to wait for the disk, not this one.
        inline_publishers_max: 0,
        ..Settings::default()
    };
    settings.mqtt.receive_maximum = u16::MAX;
    (pause.settings)(&mut settings);
    let mut rig = Rig::open_with_settings(LogConfig::new(dir.path()), 1 << 20, settings);
    let [paused, silent] = ["paused", "silent"].map(|client_id| {
        let mut fields = ConnectFields::new(VERSION, client_id);
        fields.keep_alive_s = KEEP_ALIVE_S;
        rig.connect(fields)
    });
    let mut fields = lasting(VERSION, "other", &LASTS);
    fields.keep_alive_s = 0;
    let other = rig.connect(fields);
    (pause.begin)(&mut rig, paused, other);
    let plan = rig.engine.read_plan(paused);
    rig.now.mono_ms = SILENCE_MS;
    rig.feed(silent, encode::pingreq);
    tick_at(&mut rig, SILENCE_MS);
    let early = (rig.engine.take_closed(), rig.engine.take_resumed());
    (pause.end)(&mut rig, other);
    tick_at(&mut rig, 2 * SILENCE_MS - 1);
    let (closed, resumed) = (rig.engine.take_closed(), rig.engine.take_resumed());
    tick_at(&mut rig, 2 * SILENCE_MS);
    let silenced = rig.engine.take_closed();
    assert_eq!(plan, ReadPlan::Wait);
    assert_eq!(early, (Vec::new(), Vec::new()));
    assert_eq!((closed, resumed), (Vec::new(), vec![paused]));
    assert_eq!(silenced, [silent]);
    // It counts from the end of the pause.
    tick_at(&mut rig, 3 * SILENCE_MS - 2);
    assert_eq!(rig.engine.take_closed(), []);
    tick_at(&mut rig, 3 * SILENCE_MS - 1);
    assert_eq!(rig.engine.take_closed(), [paused]);
}
#[test]
fn who_waits_for_acknowledgements_to_leave_is_not_silent() {
    assert_not_silence(&ACKS);
}

#[test]
fn who_waits_for_the_budget_is_not_silent() {
    assert_not_silence(&BUDGET);
}

#[test]
fn who_is_over_its_rate_is_not_silent() {
    assert_not_silence(&RATE);
}

#[test]
fn who_waits_for_its_credentials_to_be_checked_is_not_silent() {
    // No thread takes the check from its queue.
    let mut broker = Guarded::new(|settings| settings.threads = 0);
    let rig = &mut broker.rig;
    let [waits, mute] = [(); 2].map(|()| rig.engine.open(crate::peer::Peer::nobody()));
    let mut fields = ConnectFields::new(VERSION, "c");
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    rig.feed(waits, |out| encode::connect(out, &fields));
    assert_eq!(rig.engine.read_plan(waits), ReadPlan::Wait);
    let timeout_ms = Settings::default().mqtt.connect_timeout.as_ms();
    tick_at(rig, timeout_ms);
    assert_eq!(rig.engine.take_closed(), [mute]);
    tick_at(rig, 2 * timeout_ms);
    assert_eq!(rig.engine.take_closed(), []);
    broker.rig.crash();
}
