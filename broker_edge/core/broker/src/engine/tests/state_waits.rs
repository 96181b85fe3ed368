//! Which stored state a reply waits for: its own, and not that of others; with every setting of acknowledgements the
//! synced one.

use headwater_log::{AppendError, Partition};

use super::full_queue::{QUEUE_BYTES, put};
use super::qos2::{LASTS, answer, lasting, publish};
use super::stored_state::{assert_next, idle, subscribe};
use super::*;

const VERSION: Version = Version::V5;

/// What a client with a persistent session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Connect,
    Subscribe,
    Unsubscribe,
    /// PUBREC, so that the broker sends PUBREL.
    Received,
    /// PUBREL, so that the broker sends PUBCOMP.
    Release,
}

impl Ask {
    const ALL: [Self; 5] = [
        Self::Connect,
        Self::Subscribe,
        Self::Unsubscribe,
        Self::Received,
        Self::Release,
    ];

    fn answer(self) -> &'static str {
        match self {
            Self::Connect => "connack",
            Self::Subscribe => "suback",
            Self::Unsubscribe => "Unsuback",
            Self::Received => "Pubrel",
            Self::Release => "Pubcomp",
        }
    }

    fn send(self, rig: &mut Rig, key: ConnKey) {
        match self {
            Self::Connect => rig.feed(key, |out| {
                encode::connect(out, &lasting(VERSION, "newcomer", &LASTS));
            }),
            Self::Subscribe => subscribe(rig, key, "another"),
            Self::Unsubscribe => rig.feed(key, |out| {
                encode::unsubscribe(out, VERSION, PacketId::FIRST, &[], &["t"]);
            }),
            Self::Received => answer(rig, key, VERSION, 1, encode::pubrec),
            Self::Release => answer(rig, key, VERSION, 1, encode::pubrel),
        }
    }
}

fn internal(rig: &Rig) -> Partition {
    rig.log.by_name("internal-0").expect("always there").clone()
}

fn open(rig: &mut Rig) -> ConnKey {
    rig.engine.open(crate::peer::Peer::nobody())
}

/// A client that may ask for anything but a connection: subscribed to `t`, with a delivery of QoS 2 and a publish of
/// QoS 2 that is not released.
fn busy(rig: &mut Rig, publisher: ConnKey) -> ConnKey {
    let key = idle(rig, "busy");
    subscribe(rig, key, "t");
    assert_next(rig, key, "suback");
    publish(rig, publisher, VERSION, 1, "t", "x");
    assert_next(rig, publisher, "Pubrec");
    assert_next(rig, key, "publish x");
    key
}

#[test]
fn i1_i6_replies_about_state_wait_for_the_sync_also_when_publishes_are_acknowledged_once_written() {
    for ask in Ask::ALL {
        let dir = dir();
        let settings = Settings {
            ack_written: true,
            inline_publishers_max: 0,
            ..Settings::default()
        };
        let config = LogConfig {
            sync: SyncMode::Interval(Duration::from_millis(20)),
            ..LogConfig::new(dir.path())
        };
        let mut rig = Rig::open_with_settings(config, 1 << 20, settings);
        let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
        let key = busy(&mut rig, publisher);
        let key = if ask == Ask::Connect {
            open(&mut rig)
        } else {
            key
        };
        let internal = internal(&rig);
        while rig.quiet_at().is_none() {
            rig.wait_for_disk();
        }
        rig.state_gate.set(Sync::Hold);
        ask.send(&mut rig, key);
        rig.turn();
        while internal.written() < internal.next_offset() {
            rig.wait_for_disk();
        }
        let durable = internal.high_watermark();
        rig.turn();
        let early = (rig.engine.is_behind_log(), rig.sent(key, VERSION));
        rig.state_gate.set(Sync::Pass);
        assert!(
            durable < internal.next_offset(),
            "{ask:?}: nothing to wait for"
        );
        assert_eq!(early, (false, Vec::new()), "{ask:?}");
        assert_next(&mut rig, key, ask.answer());
    }
}

/// Appends until the queue takes nothing more.
fn fill(partition: &Partition) {
    for bytes in [8 << 10, 64] {
        loop {
            match partition.append(put(&vec![7; bytes])) {
                Ok(_) => {}
                Err(AppendError::QueueFull { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_connack_waits_for_its_own_state_and_not_for_that_of_others_which_finds_the_queue_full() {
    let dir = dir();
    // No other file of the partition is synced at that time.
    let mut rig = Rig::open_with(LogConfig {
        queue_bytes: QUEUE_BYTES,
        maintain_every: None,
        ..LogConfig::new(dir.path())
    });
    let internal = internal(&rig);
    let releases = idle(&mut rig, "releases");
    rig.state_gate.set(Sync::Hold);
    let newcomer = open(&mut rig);
    Ask::Connect.send(&mut rig, newcomer);
    let own_end = internal.next_offset();
    rig.state_gate.wait_until_held();
    fill(&internal);
    let full = internal.next_offset();
    Ask::Release.send(&mut rig, releases);
    rig.turn();
    assert_eq!(internal.next_offset(), full, "there was no room");
    pass_one_sync(&rig, &internal);
    assert_eq!(internal.high_watermark(), own_end);
    rig.turn();
    let told = [newcomer, releases].map(|key| rig.sent(key, VERSION));
    let written = internal.next_offset();
    rig.state_gate.set(Sync::Pass);
    assert_eq!(told, [vec!["connack false".to_owned()], Vec::new()]);
    assert_eq!(written, full.plus(1), "the next turn stores it");
    assert_next(&mut rig, releases, "Pubcomp");
}

#[test]
fn releases_of_several_turns_are_stored_together_when_the_queue_has_room_again() {
    let dir = dir();
    let mut rig = Rig::open_with(LogConfig {
        queue_bytes: QUEUE_BYTES,
        maintain_every: None,
        ..LogConfig::new(dir.path())
    });
    let internal = internal(&rig);
    let keys = ["one", "two"].map(|client_id| idle(&mut rig, client_id));
    rig.state_gate.set(Sync::Hold);
    fill(&internal);
    rig.state_gate.wait_until_held();
    fill(&internal);
    let full = internal.next_offset();
    for key in keys {
        Ask::Release.send(&mut rig, key);
        rig.turn();
    }
    assert_eq!(internal.next_offset(), full, "there was no room");
    // One sync after the other: of what was first, of what filled the queue, and of the releases.
    let mut told = Vec::new();
    let mut ends = Vec::new();
    while internal.high_watermark() < full {
        pass_one_sync(&rig, &internal);
        for key in keys {
            // An unknown packet id needs no state, so its answer waits only behind the others.
            answer(&mut rig, key, VERSION, 99, encode::pubrel);
        }
        // The writer may have taken the releases together with what filled the queue.
        let is_early = internal.high_watermark() <= full;
        rig.turn();
        ends.push(internal.next_offset());
        if is_early {
            told.extend(keys.map(|key| rig.sent(key, VERSION)).concat());
        }
    }
    rig.state_gate.set(Sync::Pass);
    assert_eq!(ends[0], full.plus(2), "stored with the first room");
    assert_eq!(ends.last(), Some(&full.plus(2)));
    assert_eq!(told, [""; 0], "not durable yet");
    for key in keys {
        assert_next(&mut rig, key, "Pubcomp");
    }
}

/// Lets the sync that is held pass, and holds the next one.
fn pass_one_sync(rig: &Rig, partition: &Partition) {
    let before = partition.high_watermark();
    rig.state_gate.set(Sync::Once);
    while partition.high_watermark() == before {
        rig.wait_for_disk();
    }
}

#[test]
fn mqtt_3_2_0_1_nothing_is_sent_before_a_connack_that_waits() {
    let encoded = |encode: fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        bytes
    };
    let pubrec = |out: &mut Vec<u8>| {
        encode::pubrec(out, VERSION, PacketId::FIRST, ReasonCode::Success, &[]);
    };
    let cases = [
        ("a ping", encoded(encode::pingreq), "Pingresp"),
        ("an unknown packet id", encoded(pubrec), "Pubrel"),
        ("the connection closes", vec![0xc1, 0], ""),
    ];
    for (case, next, answer) in cases {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        rig.state_gate.set(Sync::Hold);
        let key = open(&mut rig);
        rig.feed(key, |out| {
            encode::connect(out, &lasting(VERSION, "c", &LASTS));
            out.extend(next);
        });
        rig.turn();
        let early = rig.sent(key, VERSION);
        rig.state_gate.set(Sync::Pass);
        assert_eq!(early, [""; 0], "{case}");
        if !answer.is_empty() {
            let told = rig.packets(key, VERSION, 2);
            assert!(
                told[0] == "connack false" && told[1].starts_with(answer),
                "{told:?}"
            );
        }
    }
}

#[test]
fn a_subscribe_that_changes_nothing_waits_for_state_that_is_on_its_way() {
    for lasts in [true, false] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let other = idle(&mut rig, "other");
        let key = rig.connect(if lasts {
            lasting(VERSION, "c", &LASTS)
        } else {
            ConnectFields::new(VERSION, "c")
        });
        subscribe(&mut rig, key, "t");
        assert_next(&mut rig, key, "suback");
        subscribe(&mut rig, key, "t");
        assert_eq!(rig.sent(key, VERSION), ["suback"], "nothing is on its way");
        rig.state_gate.set(Sync::Hold);
        answer(&mut rig, other, VERSION, 1, encode::pubrel);
        rig.turn();
        subscribe(&mut rig, key, "t");
        rig.turn();
        let early = rig.sent(key, VERSION);
        rig.state_gate.set(Sync::Pass);
        assert_eq!(early, [""; 0], "lasts: {lasts}");
        assert_next(&mut rig, key, "suback");
    }
}

#[test]
fn a_clean_start_waits_until_the_removal_of_its_old_session_is_durable() {
    // So many sessions expire together, and the client of one of them comes back.
    for (removed, returns) in [(1, 0), (2, 1), (2, 0)] {
        let case = format!("client {returns} of {removed}");
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let lasts = [Property::SessionExpiryInterval(60)];
        for n in 0..removed {
            let key = rig.connect(lasting(VERSION, &format!("c{n}"), &lasts));
            rig.engine.remove(key);
        }
        while rig.quiet_at().is_none() {
            rig.wait_for_disk();
        }
        rig.state_gate.set(Sync::Hold);
        rig.pass_time(60_000);
        let key = open(&mut rig);
        let client_id = format!("c{returns}");
        rig.feed(key, |out| {
            encode::connect(out, &ConnectFields::new(VERSION, &client_id));
        });
        rig.turn();
        let early = rig.sent(key, VERSION);
        rig.state_gate.set(Sync::Pass);
        assert_eq!(early, [""; 0], "{case}");
        assert_next(&mut rig, key, "connack false");
    }
}
