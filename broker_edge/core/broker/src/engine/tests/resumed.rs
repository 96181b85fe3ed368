//! Two data folders that the `headwaterd` of commit 583ec94 wrote, in `tests/fixtures/broker-583ec94`: today's broker
//! resumes everything in them.
//!
//! It ran with segments of 64 KiB and one telemetry partition, and removed segments of artifacts after a second. Clients
//! over TCP made: deliveries of QoS 1 and 2 in flight (`inflight`), publishes of QoS 2 without PUBREL (`releases`), a
//! replay of which one of two records is acknowledged (`replays`), a group (`m1`, `m2`), a session with a record to
//! catch up (`older`), a delayed will (`will`), a session that expires (`expires`), and retained messages of which one
//! is in the state, because its segment is gone. Lock and spare files are left out.

use std::fs;

use super::member::settle_disk;
use super::qos2::{LASTS, answer, lasting, publish, texts_of};
use super::*;

const V5: Version = Version::V5;
/// The segments of the fixture are stored without the zeros at their end.
const SEGMENT_BYTES: u64 = 64 << 10;
/// Ten seconds after the last change in it.
const THEN_US: i64 = 1_795_441_819_000_000;
/// When the delayed will is due.
const WILL_DUE_US: i64 = 1_795_445_405_112_918;

/// `stopped` is after a clean stop, `killed` as it was just before.
const FOLDERS: [&str; 2] = ["stopped", "killed"];

fn restore(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            restore(&path, &target);
            continue;
        }
        fs::copy(&path, &target).expect("copied");
        if target.extension().is_some_and(|suffix| suffix == "seg") {
            let file = fs::File::options().write(true).open(&target);
            let file = file.expect("it was just made");
            file.set_len(SEGMENT_BYTES).expect("there is room");
        }
    }
}

/// Today's broker on a copy of the folder, at this time.
fn broker_on(folder: &str, dir: &Path, wall_us: i64) -> Rig {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/broker-583ec94");
    restore(&fixtures.join(folder), dir);
    let config = LogConfig {
        segment_bytes: SEGMENT_BYTES,
        ..LogConfig::new(dir)
    };
    Rig::open_at(wall_us, config, 1 << 20, Settings::default())
}

fn connect(rig: &mut Rig, client_id: &str, version: Version) -> (ConnKey, Vec<String>) {
    let key = rig.engine.open(crate::peer::Peer::nobody());
    let fields = lasting(version, client_id, &LASTS);
    rig.feed(key, |out| encode::connect(out, &fields));
    let told = seen(rig, key, version);
    (key, told)
}

#[test]
fn sessions_deliveries_replays_and_groups_resume_from_a_folder_of_583ec94() {
    // The session, its version, and what its client is sent when it comes back.
    let cases: &[(&str, Version, &[&str])] = &[
        (
            "inflight",
            V5,
            &[
                "connack true",
                "t/2 sent qos 2 id 4 dup",
                "pubrel 5",
                "t/1 unacknowledged qos 1 id 6 subscription 7",
            ],
        ),
        (
            "replays",
            V5,
            &["connack true", "t/1 unacknowledged qos 1 id 1"],
        ),
        // Of six records of its group, 0 and 4 are not acknowledged.
        (
            "m1",
            V5,
            &["connack true", "s 0 qos 1 id 1", "s 4 qos 1 id 2"],
        ),
        ("m2", V5, &["connack true"]),
        (
            "older",
            Version::V311,
            &["connack true", "o/1 while away qos 1 id 1"],
        ),
        ("will", V5, &["connack true"]),
        ("expires", V5, &["connack true"]),
        ("another", V5, &["connack false"]),
    ];
    for folder in FOLDERS {
        let dir = dir();
        let mut rig = broker_on(folder, dir.path(), THEN_US);
        for (client_id, version, expected) in cases {
            let told = connect(&mut rig, client_id, *version).1;
            assert_eq!(told, *expected, "{client_id} of {folder}");
        }
        rig.crash();
    }
}

#[test]
fn packet_ids_in_use_resume_from_a_folder_of_583ec94() {
    for folder in FOLDERS {
        let dir = dir();
        let mut rig = broker_on(folder, dir.path(), THEN_US);
        let (key, told) = connect(&mut rig, "releases", V5);
        assert_eq!(told, ["connack true"], "{folder}");
        let before = texts_of(&rig, "telemetry-0").len();
        // Number 8 was released.
        for id in 7..=9 {
            publish(&mut rig, key, V5, id, "t/3", &format!("once {id}"));
            assert_eq!(seen(&mut rig, key, V5), [format!("pubrec {id}")]);
            answer(&mut rig, key, V5, id, encode::pubrel);
            assert_eq!(seen(&mut rig, key, V5), [format!("pubcomp {id}")]);
        }
        let texts = texts_of(&rig, "telemetry-0");
        assert_eq!(texts[before..], ["once 8"], "{folder}");
        rig.crash();
    }
}

#[test]
fn retained_messages_resume_from_a_folder_of_583ec94_in_the_log_and_in_the_state() {
    for folder in FOLDERS {
        let dir = dir();
        let mut rig = broker_on(folder, dir.path(), THEN_US);
        let key = rig.connect(ConnectFields::new(V5, "c"));
        let filters = ["r/#", "artifacts/#"].map(|filter| Subscription {
            filter,
            options: SubscriptionOptions::new(QoS::AtLeastOnce),
        });
        rig.feed(key, |out| {
            encode::subscribe(out, V5, PacketId::FIRST, &[], &filters);
        });
        let told = seen(&mut rig, key, V5);
        let expected = [
            "suback",
            "r/new kept in the log qos 1 id 1 retain",
            "artifacts/old kept in the state qos 1 id 2 retain",
        ];
        assert_eq!(told, expected, "{folder}");
        rig.crash();
    }
}

#[test]
fn a_will_and_an_expiry_of_a_folder_of_583ec94_are_due_when_they_were() {
    for folder in FOLDERS {
        for (after_us, is_due) in [(-1_000_000, false), (1_000_000, true)] {
            let dir = dir();
            let mut rig = broker_on(folder, dir.path(), WILL_DUE_US + after_us);
            rig.pass_time(0);
            settle_disk(&mut rig, &mut []);
            let texts = texts_of(&rig, "telemetry-0");
            let wills = texts.iter().filter(|text| *text == "gone").count();
            assert_eq!(wills, usize::from(is_due), "{folder} {after_us}");
            // Its session was lost in the same moment, for 3600 seconds as well.
            let connack = connect(&mut rig, "expires", V5).1;
            assert_eq!(connack, [format!("connack {}", !is_due)], "{folder}");
            rig.crash();
        }
    }
}

/// What a connection is sent until the disk is idle.
pub(super) fn seen(rig: &mut Rig, key: ConnKey, version: Version) -> Vec<String> {
    settle_disk(rig, &mut []);
    taken(rig, key, version)
}

/// What a connection was sent since the last call.
pub(super) fn taken(rig: &mut Rig, key: ConnKey, version: Version) -> Vec<String> {
    let bytes = rig.engine.out(key).to_vec();
    rig.engine.written(key, bytes.len());
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while let Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    }) = frame::next(rest, 1 << 28)
    {
        let packet = decode_from_server(version, first_byte, &rest[header_len..total_len]);
        found.push(match packet.expect("well-formed") {
            ServerPacket::Connack(connack) => format!("connack {}", connack.session_present),
            ServerPacket::Suback(_) => "suback".to_owned(),
            ServerPacket::Puback(ack) => format!("puback {}", ack.packet_id),
            ServerPacket::Pubrec(ack) => format!("pubrec {}", ack.packet_id),
            ServerPacket::Pubrel(ack) => format!("pubrel {}", ack.packet_id),
            ServerPacket::Pubcomp(ack) => format!("pubcomp {}", ack.packet_id),
            ServerPacket::Publish(publish) => {
                let id = publish.packet_id.map_or(0, |id| id.get());
                let mut text = format!(
                    "{} {} qos {} id {id}",
                    publish.topic.as_str(),
                    String::from_utf8_lossy(publish.payload),
                    publish.qos.as_u8(),
                );
                for (is_set, word) in [(publish.dup, " dup"), (publish.retain, " retain")] {
                    text.push_str(if is_set { word } else { "" });
                }
                if let Some(id) = publish.properties.subscription_identifier() {
                    text.push_str(&format!(" subscription {id}"));
                }
                text
            }
            other => format!("{other:?}"),
        });
        rest = &rest[total_len..];
    }
    found
}
