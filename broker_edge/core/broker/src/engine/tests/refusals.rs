//! Publishes over a limit: what is accepted below it, and what each version and QoS is told above it.

use crate::engine::qos2::IDS_IN_USE_MAX;

use super::qos2::{answer, texts_of};
use super::*;

const V5: Version = Version::V5;
const V311: Version = Version::V311;

struct Say<'a> {
    topic: &'a str,
    qos: QoS,
    retain: bool,
    text: &'a str,
}

impl<'a> Say<'a> {
    fn new(topic: &'a str, qos: QoS, text: &'a str) -> Self {
        Self {
            topic,
            qos,
            retain: false,
            text,
        }
    }

    fn retained(topic: &'a str, qos: QoS, text: &'a str) -> Self {
        Self {
            retain: true,
            ..Self::new(topic, qos, text)
        }
    }
}

fn say(rig: &mut Rig, key: ConnKey, said: &Say<'_>) {
    let version = rig.engine.clients.conn(key).expect("it is open").version;
    let fields = PublishFields {
        version,
        dup: false,
        qos: said.qos,
        retain: said.retain,
        topic: said.topic,
        packet_id: (said.qos != QoS::AtMostOnce).then_some(PacketId::FIRST),
        properties: &[],
        extra: &[],
    };
    rig.feed(key, |out| {
        fields
            .encode(out, said.text.as_bytes())
            .expect("a small packet");
    });
}

/// Runs turns until there is an answer; returns it with its code.
fn told(rig: &mut Rig, key: ConnKey) -> (&'static str, ReasonCode) {
    let version = rig.engine.clients.conn(key).expect("it is open").version;
    loop {
        rig.turn();
        let bytes = rig.engine.out(key).to_vec();
        rig.engine.written(key, bytes.len());
        if let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(&bytes, 1 << 28)
        {
            assert_eq!(total_len, bytes.len(), "one answer");
            let body = &bytes[header_len..];
            return match decode_from_server(version, first_byte, body).expect("well-formed") {
                ServerPacket::Puback(ack) => ("puback", ack.reason),
                ServerPacket::Pubrec(ack) => ("pubrec", ack.reason),
                ServerPacket::Disconnect(disconnect) => ("disconnect", disconnect.reason),
                other => panic!("{other:?}"),
            };
        }
        if !rig.engine.has_more() {
            rig.moved.recv_timeout(DEADLINE).expect("the log moves");
        }
    }
}

const LEVELS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

fn ack_of(qos: QoS) -> &'static str {
    if qos == QoS::ExactlyOnce {
        "pubrec"
    } else {
        "puback"
    }
}

/// Publishes over a limit with every version and QoS. MQTT 5 gets a refusal, older clients' connections are closed, and
/// QoS 0 is dropped.
fn assert_over(rig: &mut Rig, topic: &str, retain: bool, reason: ReasonCode) {
    for (version, qos) in [V5, V311]
        .into_iter()
        .flat_map(|version| LEVELS.map(|qos| (version, qos)))
    {
        let what = format!("{topic:?} {version:?} {qos:?}");
        let refused = rig.engine.env.metrics.mqtt.publishes_refused.get();
        let key = rig.connect(ConnectFields::new(version, "over"));
        let said = Say {
            retain,
            ..Say::new(topic, qos, "over")
        };
        say(rig, key, &said);
        if version == V5 && qos != QoS::AtMostOnce {
            assert_eq!(told(rig, key), (ack_of(qos), reason), "{what}");
        } else {
            rig.turn();
            assert_eq!(rig.sent(key, version), [""; 0], "{what}");
        }
        let is_closed = version == V311 && qos != QoS::AtMostOnce;
        assert_eq!(rig.engine.take_closed().contains(&key), is_closed, "{what}");
        let now_refused = rig.engine.env.metrics.mqtt.publishes_refused.get();
        assert_eq!(now_refused, refused + 1, "{what}");
        if !is_closed {
            let owed = rig
                .engine
                .clients
                .conn(key)
                .expect("it is open")
                .publishes_in_flight;
            assert_eq!(owed, 0, "{what}");
            say(rig, key, &Say::new("t", QoS::AtLeastOnce, "taken"));
            assert_eq!(told(rig, key).0, "puback", "{what}");
        }
        rig.engine.remove(key);
    }
    let texts = texts_of(rig, "telemetry-0");
    assert!(!texts.contains(&"over".to_owned()), "{topic}");
}

fn assert_taken(rig: &mut Rig, said: &Say<'_>) {
    for version in [V5, V311] {
        let key = rig.connect(ConnectFields::new(version, "within"));
        say(rig, key, said);
        let (kind, reason) = told(rig, key);
        assert_eq!(kind, ack_of(said.qos), "{version:?} {}", said.topic);
        assert!(!reason.is_error(), "{version:?} {} {reason:?}", said.topic);
        rig.engine.remove(key);
    }
    let last = texts_of(rig, "telemetry-0").pop();
    assert_eq!(last.as_deref(), Some(said.text));
}

#[test]
fn a_name_may_have_as_many_bytes_and_levels_as_the_limits_say_and_not_one_more() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.max_topic_bytes = 10;
    rig.engine.env.settings.mqtt.max_topic_levels = 3;
    for topic in ["1234567890", "ääääab", "a/b/c", "//", "12345678/9"] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            assert_taken(&mut rig, &Say::new(topic, qos, topic));
        }
    }
    for topic in ["12345678901", "äääääa", "a/b/c/d", "///", "1/2345678/9"] {
        assert_over(&mut rig, topic, false, ReasonCode::TopicNameInvalid);
    }
}

#[test]
fn one_topic_too_many_is_refused_whatever_the_qos() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let first = rig.connect(ConnectFields::new(V5, "first"));
    say(&mut rig, first, &Say::new("t", QoS::AtLeastOnce, "taken"));
    assert_eq!(told(&mut rig, first).0, "puback");
    rig.engine.env.settings.mqtt.max_topics = 0;
    assert_over(&mut rig, "new", false, ReasonCode::QuotaExceeded);
    assert_taken(&mut rig, &Say::new("t", QoS::ExactlyOnce, "known"));
}

#[test]
fn one_retained_message_too_many_is_refused_and_what_needs_no_room_is_not() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.retained.lock().limit(1, 1 << 20);
    assert_taken(&mut rig, &Say::retained("kept", QoS::AtLeastOnce, "kept"));
    assert_over(&mut rig, "new", true, ReasonCode::QuotaExceeded);
    assert_taken(&mut rig, &Say::new("new", QoS::AtLeastOnce, "live"));
    assert_taken(&mut rig, &Say::retained("new", QoS::AtLeastOnce, ""));
    assert_taken(&mut rig, &Say::retained("kept", QoS::ExactlyOnce, "other"));
    // By bytes.
    let (_, held) = rig.engine.retained.lock().held();
    rig.engine.retained.lock().limit(9, held + 1);
    assert_taken(&mut rig, &Say::retained("kept", QoS::AtLeastOnce, "longer"));
    let key = rig.connect(ConnectFields::new(V5, "over"));
    let over = Say::retained("kept", QoS::AtLeastOnce, "longest");
    say(&mut rig, key, &over);
    assert_eq!(told(&mut rig, key), ("puback", ReasonCode::QuotaExceeded));
}

#[test]
fn a_name_of_the_brokers_own_is_acknowledged_and_not_published() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    for (version, qos) in [V5, V311]
        .into_iter()
        .flat_map(|version| LEVELS.map(|qos| (version, qos)))
    {
        let what = format!("{version:?} {qos:?}");
        let key = rig.connect(ConnectFields::new(version, "p"));
        // Twice, and a third time after another topic.
        for topic in ["$SYS/x", "$SYS/x", "t", "$"] {
            say(&mut rig, key, &Say::new(topic, qos, topic));
            if qos != QoS::AtMostOnce {
                let (kind, reason) = told(&mut rig, key);
                assert_eq!(kind, ack_of(qos), "{what}");
                let is_told = version == V5 && topic != "t";
                assert_eq!(reason == ReasonCode::NotAuthorized, is_told, "{what}");
                if qos == QoS::ExactlyOnce && !is_told {
                    answer(&mut rig, key, version, 1, encode::pubrel);
                    assert_eq!(rig.packets(key, version, 1).len(), 1, "{what}");
                }
            }
        }
        rig.turn();
        assert_eq!(rig.sent(key, version), [""; 0], "{what}");
        assert!(!rig.engine.take_closed().contains(&key), "{what}");
        rig.engine.remove(key);
    }
    let texts = texts_of(&rig, "telemetry-0");
    assert!(texts.iter().all(|text| text == "t"), "{texts:?}");
    assert!(
        rig.log
            .by_name("control-0")
            .expect("there by default")
            .next_offset()
            == Offset(0)
    );
}

#[test]
fn who_publishes_with_qos_1_and_mqtt_5_hears_whether_anybody_has_subscribed() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let reader = rig.connect(ConnectFields::new(V5, "reader"));
    rig.subscribe(reader, V5);
    let nobody = ReasonCode::NoMatchingSubscribers;
    let ok = ReasonCode::Success;
    for (version, qos, topic, reason) in [
        (V5, QoS::AtLeastOnce, "t", ok),
        (V5, QoS::AtLeastOnce, "u", nobody),
        (V5, QoS::ExactlyOnce, "t", ok),
        (V5, QoS::ExactlyOnce, "u", ok),
        (V311, QoS::AtLeastOnce, "u", ok),
        (V311, QoS::ExactlyOnce, "u", ok),
    ] {
        let key = rig.connect(ConnectFields::new(version, "p"));
        say(&mut rig, key, &Say::new(topic, qos, "x"));
        let what = format!("{version:?} {qos:?} {topic}");
        assert_eq!(told(&mut rig, key), (ack_of(qos), reason), "{what}");
        rig.engine.remove(key);
    }
}

#[test]
fn i7_packet_ids_that_clients_never_release_have_a_bound() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(V5, "p"));
    // As if other clients used all of them but one.
    rig.engine.qos2.restore(IDS_IN_USE_MAX - 1);
    let qos = QoS::ExactlyOnce;
    say(&mut rig, key, &Say::new("t", qos, "the last"));
    assert_eq!(told(&mut rig, key), ("pubrec", ReasonCode::Success));
    let over = Say::new("t", qos, "one too many");
    let other = rig.connect(ConnectFields::new(V5, "other"));
    say(&mut rig, other, &over);
    let refused = ("pubrec", ReasonCode::QuotaExceeded);
    assert_eq!(told(&mut rig, other), refused);
    let older = rig.connect(ConnectFields::new(V311, "older"));
    say(&mut rig, older, &over);
    rig.turn();
    assert!(rig.engine.take_closed().contains(&older));
    // A QoS below 2 uses no packet id, and released ids make room.
    say(&mut rig, other, &Say::new("t", QoS::AtLeastOnce, "x"));
    assert_eq!(told(&mut rig, other).0, "puback");
    answer(&mut rig, key, V5, 1, encode::pubrel);
    assert_eq!(rig.packets(key, V5, 1).len(), 1);
    say(&mut rig, other, &Say::new("t", qos, "in its place"));
    assert_eq!(told(&mut rig, other), ("pubrec", ReasonCode::Success));
    let texts = texts_of(&rig, "telemetry-0");
    assert_eq!(texts, ["the last", "x", "in its place"]);
}
