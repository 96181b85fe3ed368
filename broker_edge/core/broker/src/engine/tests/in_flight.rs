//! The in-flight publishes of a publisher: how many are accepted, and that all of them are acknowledged.

use headwater_log::PartitionState;

use crate::engine::effects::Cause;
use crate::engine::lifecycle::Lifecycle;

use super::qos2::answer;
use super::*;

/// Sent by a client that wants to know the offsets of its records.
const PLACES: [Property<'static>; 1] = [Property::UserProperty {
    key: "stream-ack",
    value: "1",
}];

fn publish_bytes(version: Version, qos: QoS, topic: &str, id: u16) -> Vec<u8> {
    let fields = PublishFields {
        version,
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: PacketId::new(id),
        properties: &[],
        extra: &[],
    };
    let mut bytes = Vec::new();
    let payload = b"sixteen bytes or";
    fields.encode(&mut bytes, payload).expect("a small packet");
    bytes
}

#[test]
fn i7_a_publisher_that_is_owed_many_acknowledgements_is_read_again_once_it_has_them() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.clients(version, 1)[0];
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let telemetry = telemetry.clone();
    rig.gate.set(Sync::Hold);
    // Every second id, so that no two of them form a range. One turn has too many of them to be committed by the loop.
    let mut ids = (1_u16..20_000).step_by(2);
    let mut owed = Vec::new();
    loop {
        let some: Vec<u16> = ids.by_ref().take(500).collect();
        let packets = some
            .iter()
            .flat_map(|id| publish_bytes(version, QoS::AtLeastOnce, "t", *id));
        let bytes: Vec<u8> = packets.collect();
        assert!(!bytes.is_empty(), "it is read without end");
        if rig.receive(key, &bytes) == 0 {
            break;
        }
        owed.extend(some.iter().map(|id| format!("puback {id}")));
    }
    rig.turn();
    let early = (rig.sent(key, version), rig.engine.take_resumed());
    rig.gate.set(Sync::Pass);
    assert_eq!(early, (Vec::new(), Vec::new()));
    while telemetry.high_watermark() < telemetry.next_offset() {
        rig.moved.recv_timeout(DEADLINE).expect("the log moves");
    }
    rig.turn();
    assert_eq!(rig.engine.take_resumed(), [key]);
    assert_eq!(rig.sent(key, version), owed);
    let next = publish_bytes(version, QoS::AtLeastOnce, "t", 2);
    assert_eq!(rig.receive(key, &next), next.len());
    assert_eq!(rig.packets(key, version, 1), ["puback 2"]);
}

#[test]
fn the_last_packet_ids_of_all_are_acknowledged_like_the_others() {
    let dir = dir();
    let version = Version::V311;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.clients(version, 1)[0];
    for id in 65_533..=65_535 {
        rig.publish(key, version, id, "x");
    }
    assert_eq!(
        rig.packets(key, version, 3),
        ["puback 65533", "puback 65534", "puback 65535"]
    );
}

#[test]
fn only_who_asks_for_it_hears_where_its_records_are() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let asks_not = [Property::UserProperty {
        key: "stream-ack",
        value: "0",
    }];
    for (properties, hears) in [(&PLACES[..], true), (&asks_not, false), (&[], false)] {
        let mut fields = ConnectFields::new(Version::V5, "c");
        fields.properties = properties;
        let key = rig.connect(fields);
        rig.publish(key, Version::V5, 1, "x");
        while rig.engine.out(key).is_empty() {
            rig.turn();
            rig.wait_for_disk();
        }
        let puback = rig.engine.out(key).to_vec();
        let has_place = String::from_utf8_lossy(&puback).contains("stream-offset");
        assert_eq!(puback[0], 0x40);
        assert_eq!(has_place, hears, "{properties:?}: {puback:?}");
    }
}

/// Repeats this many publishes in flight, then sends one more at once; returns the last packet that came.
fn last_of_one_too_many(version: Version, qos: QoS, places: bool) -> Option<String> {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let maximum = 4;
    rig.engine.env.settings.mqtt.receive_maximum = maximum;
    let mut fields = ConnectFields::new(version, "c");
    if places {
        fields.properties = &PLACES;
    }
    let key = rig.connect(fields);
    let send = |rig: &mut Rig, topic, id| {
        let bytes = publish_bytes(version, qos, topic, id);
        rig.feed(key, |out| out.extend_from_slice(&bytes));
    };
    for _ in 0..3 {
        (1..=maximum).for_each(|id| send(&mut rig, "t", id));
        let count = usize::from(maximum);
        let is_ack = |packet: &String| packet.to_lowercase().starts_with("pub");
        assert!(rig.packets(key, version, count).iter().all(is_ack));
        if qos == QoS::ExactlyOnce {
            (1..=maximum).for_each(|id| answer(&mut rig, key, version, id, encode::pubrel));
            assert!(rig.packets(key, version, count).iter().all(is_ack));
        }
        // A refused publish is no longer in flight.
        send(&mut rig, "$of-the-broker", 9);
        rig.packets(key, version, 1);
    }
    (0..=maximum).for_each(|id| send(&mut rig, "t", id + 1));
    rig.sent(key, version).pop()
}

#[test]
fn the_receive_maximum_counts_what_is_in_flight_and_nothing_that_is_over() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for places in [false, true] {
            let last = last_of_one_too_many(Version::V5, qos, places);
            let wanted = Some("disconnect ReceiveMaximumExceeded");
            assert_eq!(last.as_deref(), wanted, "{qos:?} {places}");
        }
        // Older clients have no receive maximum.
        assert_eq!(last_of_one_too_many(Version::V311, qos, false), None);
    }
}

#[test]
fn a_publish_that_is_refused_makes_no_room_among_those_that_are_in_flight() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.receive_maximum = 2;
    let key = rig.clients(version, 1)[0];
    let mut answers = Vec::new();
    for (topic, id) in [("t", 1), ("t", 2), ("$of-the-broker", 3), ("t", 4)] {
        let bytes = publish_bytes(version, QoS::ExactlyOnce, topic, id);
        rig.feed(key, |out| out.extend_from_slice(&bytes));
        answers.extend(rig.packets(key, version, 1));
    }
    let last = answers.pop();
    assert_eq!(last.as_deref(), Some("disconnect ReceiveMaximumExceeded"));
    assert!(
        answers.iter().all(|answer| answer.starts_with("Pubrec")),
        "{answers:?}"
    );
}

#[test]
fn a_place_that_does_not_fit_into_the_packets_of_a_client_is_left_out() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut fields = ConnectFields::new(version, "c");
    fields.properties = &PLACES;
    let key = rig.connect(fields);
    let mut answer_bytes = |packet_max: usize| {
        let conn = rig.engine.clients.conn_mut(key).expect("connected");
        conn.packet_max = u32::try_from(packet_max).expect("small");
        rig.publish(key, version, 1, "x");
        loop {
            rig.turn();
            let bytes = rig.engine.out(key).to_vec().len();
            if bytes > 0 {
                rig.engine.written(key, bytes);
                return bytes;
            }
            rig.moved.recv_timeout(DEADLINE).expect("the log moves");
        }
    };
    let whole = answer_bytes(1000);
    assert!(whole > "telemetry-0:0".len() + "synced".len());
    assert_eq!(answer_bytes(whole), whole);
    assert!(answer_bytes(whole - 1) < 10, "an acknowledgement alone");
}

#[test]
fn a_place_says_how_durable_its_record_is_and_gives_way_only_to_its_own_size() {
    for (ack_written, durability) in [(false, "synced"), (true, "written")] {
        let dir = dir();
        let version = Version::V5;
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        rig.engine.env.settings.ack_written = ack_written;
        let mut fields = ConnectFields::new(version, "c");
        fields.properties = &PLACES;
        let key = rig.connect(fields);
        let mut bytes = Vec::new();
        // The second publish meets the first, and there would be room for one.
        for (id, kind) in [(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce)] {
            let packet = publish_bytes(version, kind, "t", id);
            rig.feed(key, |out| out.extend_from_slice(&packet));
        }
        let conn = rig.engine.clients.conn_mut(key).expect("connected");
        conn.packet_max = 80;
        while bytes.is_empty() {
            rig.turn();
            bytes = rig.engine.out(key).to_vec();
            if bytes.is_empty() {
                rig.moved.recv_timeout(DEADLINE).expect("the log moves");
            }
        }
        let mut rest = bytes.as_slice();
        let mut told = Vec::new();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(version, first_byte, &rest[header_len..total_len]);
            let (ServerPacket::Puback(ack) | ServerPacket::Pubrec(ack)) =
                packet.expect("well-formed")
            else {
                panic!("no acknowledgement");
            };
            let said = |name| ack.properties.user_property(name).map(str::to_owned);
            told.push((said("stream-offset"), said("stream-durability")));
            rest = &rest[total_len..];
        }
        let place = |offset: u32| {
            let place = format!("telemetry-0:{offset}");
            (Some(place), Some(durability.to_owned()))
        };
        assert_eq!(told, [place(0), place(1)]);
        assert!(bytes.len() > 80, "{}", bytes.len());
    }
}

#[test]
fn who_has_a_durable_record_and_one_that_never_will_be_hears_of_the_first_before_it_is_closed() {
    let dir = dir();
    let version = Version::V5;
    // No other file of the partition is synced at that time.
    let mut rig = Rig::open_with(LogConfig {
        maintain_every: None,
        ..LogConfig::new(dir.path())
    });
    rig.engine.env.settings.inline_publishers_max = 0;
    let key = rig.clients(version, 1)[0];
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let telemetry = telemetry.clone();
    rig.gate.set(Sync::Hold);
    for id in 1..=2 {
        rig.publish(key, version, id, "x");
        rig.turn();
        // The first is on its way alone before the second is appended.
        rig.gate.wait_until_held();
    }
    rig.gate.set(Sync::Once);
    while telemetry.high_watermark() < Offset(1) {
        rig.moved.recv_timeout(DEADLINE).expect("the log moves");
    }
    rig.gate.set(Sync::Fail);
    while !matches!(telemetry.state(), PartitionState::Stopped(_)) {
        rig.moved.recv_timeout(DEADLINE).expect("the log stops");
    }
    rig.turn();
    rig.turn();
    let told = rig.sent(key, version);
    assert_eq!(told, ["puback 1", "disconnect UnspecifiedError"]);
}

#[test]
fn nothing_is_sent_behind_a_disconnect() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let keys = rig.clients(version, MANY);
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let telemetry = telemetry.clone();
    rig.gate.set(Sync::Hold);
    for key in &keys {
        rig.publish(*key, version, 1, "x");
    }
    rig.turn();
    let cause = Cause::Reason(ReasonCode::AdministrativeAction);
    lend!(rig.engine => Lifecycle).close_now(keys[0], cause);
    rig.turn();
    rig.gate.set(Sync::Pass);
    assert_eq!(
        rig.sent(keys[0], version),
        ["disconnect AdministrativeAction"]
    );
    while telemetry.high_watermark() < telemetry.next_offset() {
        rig.moved.recv_timeout(DEADLINE).expect("the log moves");
    }
    rig.turn();
    assert_eq!(rig.sent(keys[0], version), [""; 0]);
    assert_eq!(rig.sent(keys[1], version), ["puback 1"]);
}
