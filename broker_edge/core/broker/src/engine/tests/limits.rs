//! The limits of one client, and the reason codes for exceeding them.

use headwater_mqtt::encode::WillFields;
use headwater_mqtt::packet::connack::ConnackCode;

use super::*;

/// The code and the properties of the answer to a CONNECT.
fn refused(rig: &mut Rig, fields: &ConnectFields<'_>) -> (u8, Option<String>) {
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, fields));
    rig.turn();
    let bytes = rig.engine.out(key).to_vec();
    let Ok(ServerPacket::Connack(connack)) =
        decode_from_server(fields.version, bytes[0], &bytes[2..])
    else {
        panic!("no CONNACK: {bytes:?}");
    };
    let code = match connack.code {
        ConnackCode::V3(code) => code.as_u8(),
        ConnackCode::V5(code) => code.as_u8(),
    };
    let reference = connack.properties.server_reference().map(str::to_owned);
    assert!(rig.engine.take_closed().contains(&key));
    (code, reference)
}

/// Publishes without waiting, and returns what the engine answered in the same turn.
fn publish(rig: &mut Rig, key: ConnKey, version: Version, topic: &str, id: u16) -> Vec<String> {
    rig.publish_to(topic, false, key, version, id, "x");
    rig.packets(key, version, 1)
}

#[test]
fn a_client_over_its_rate_is_read_more_slowly_and_loses_nothing() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.max_messages_per_second = Some(10);
    let key = rig.connect(ConnectFields::new(Version::V311, "fast"));
    let mut bytes = Vec::new();
    for n in 0..35_u16 {
        let packet_id = PacketId::new(n + 1);
        let fields = PublishFields {
            version: Version::V311,
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id,
            properties: &[],
            extra: &[],
        };
        fields.encode(&mut bytes, b"x").expect("a small packet");
    }
    rig.engine.begin(rig.now);
    rig.engine.receive(key, &bytes, true);
    rig.turn();
    let burst = rig.engine.env.metrics.mqtt.publishes_received.get();
    assert!((10..=12).contains(&burst), "{burst} in the first second");
    assert_eq!(
        rig.engine.read_plan(key),
        ReadPlan::Wait,
        "its socket is not read"
    );
    for _ in 0..60 {
        rig.pass_time(100);
        rig.turn();
    }
    assert_eq!(rig.engine.env.metrics.mqtt.publishes_received.get(), 35);
    assert_eq!(rig.packets(key, Version::V311, 35).len(), 35);
    assert!(matches!(rig.engine.read_plan(key), ReadPlan::Shared { .. }));
    let mut text = String::new();
    let registry = rig.engine.env.metrics.registry();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("figures");
    assert!(
        text.contains("headwater_mqtt_pauses_total{cause=\"message_rate\"}"),
        "{text}"
    );
    rig.crash();
}

#[test]
fn a_client_over_its_bytes_waits_and_others_do_not() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let version = Version::V311;
    let fast = rig.connect(ConnectFields::new(version, "fast"));
    let calm = rig.connect(ConnectFields::new(version, "calm"));
    rig.engine.env.settings.mqtt.max_bytes_per_second = Some(ByteSize(1000));
    let large = "x".repeat(3000);
    // One packet may pass at any size; the following ones pay for it.
    rig.publish(fast, version, 1, &large);
    rig.publish(fast, version, 2, "late");
    assert_eq!(rig.packets(fast, version, 1), ["puback 1"]);
    assert_eq!(publish(&mut rig, calm, version, "t", 1), ["puback 1"]);
    for _ in 0..10 {
        rig.pass_time(100);
    }
    assert_eq!(rig.sent(fast, version), [""; 0]);
    for _ in 0..20 {
        rig.pass_time(100);
        rig.turn();
    }
    assert_eq!(rig.packets(fast, version, 1), ["puback 2"]);
    rig.crash();
}

#[test]
fn one_topic_too_many_of_a_connection_is_refused_and_those_it_has_are_not() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.max_topics = 2;
    let new = rig.connect(ConnectFields::new(Version::V5, "new"));
    let old = rig.connect(ConnectFields::new(Version::V311, "old"));
    for (topic, answer) in [
        ("a", "puback 1"),
        ("b", "puback 1"),
        ("c", "refused QuotaExceeded"),
        ("a", "puback 1"),
    ] {
        assert_eq!(publish(&mut rig, new, Version::V5, topic, 1), [answer]);
    }
    // A topic that is already in the table costs nothing.
    assert_eq!(publish(&mut rig, old, Version::V311, "a", 1), ["puback 1"]);
    for topic in ["d", "e"] {
        assert_eq!(
            publish(&mut rig, old, Version::V311, topic, 1),
            ["puback 1"]
        );
    }
    rig.publish_to("f", false, old, Version::V311, 2, "x");
    rig.turn();
    assert!(rig.engine.take_closed().contains(&old));
    assert_eq!(rig.engine.env.metrics.detail.topics_refused.get(), 2);
    rig.crash();
}

#[test]
fn a_topic_or_filter_that_is_too_long_or_too_deep_has_the_code_for_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.max_topic_bytes = 10;
    rig.engine.env.settings.mqtt.max_topic_levels = 3;
    let new = rig.connect(ConnectFields::new(Version::V5, "new"));
    for topic in ["12345678901", "a/b/c/d"] {
        let answer = publish(&mut rig, new, Version::V5, topic, 1);
        assert_eq!(answer, ["refused TopicNameInvalid"], "{topic}");
        let old = rig.connect(ConnectFields::new(Version::V311, "old"));
        rig.publish_to(topic, false, old, Version::V311, 1, "x");
        rig.turn();
        assert!(rig.engine.take_closed().contains(&old), "{topic}");
        let codes = subscribe(&mut rig, new, topic, QoS::AtMostOnce);
        assert_eq!(codes, [0x8F], "{topic}");
    }
    rig.crash();
}

/// The codes of the SUBACK.
fn subscribe(rig: &mut Rig, key: ConnKey, filter: &str, qos: QoS) -> Vec<u8> {
    let options = SubscriptionOptions::new(qos);
    let wanted = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &wanted);
    });
    rig.turn();
    let bytes = rig.engine.out(key).to_vec();
    rig.engine.written(key, bytes.len());
    vec![*bytes.last().expect("a SUBACK")]
}

#[test]
fn what_the_broker_does_not_offer_is_announced_and_refused_with_its_code() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let limits = &mut rig.engine.env.settings.mqtt;
    limits.max_qos = QoS::AtMostOnce.as_u8();
    limits.retain_available = false;
    limits.wildcard_available = false;
    limits.keep_alive_max = Some(Age::from_secs(30));
    limits.response_information = Some("answers/".to_owned());
    let asks = [Property::RequestResponseInformation(true)];
    let mut fields = ConnectFields::new(Version::V5, "c");
    fields.properties = &asks;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    rig.turn();
    let bytes = rig.engine.out(key).to_vec();
    rig.engine.written(key, bytes.len());
    let Ok(ServerPacket::Connack(connack)) = decode_from_server(Version::V5, bytes[0], &bytes[2..])
    else {
        panic!("no CONNACK");
    };
    let told = connack.properties;
    assert_eq!(told.maximum_qos(), Some(0));
    assert_eq!(told.retain_available(), Some(false));
    assert_eq!(told.wildcard_subscription_available(), Some(false));
    assert_eq!(told.server_keep_alive(), Some(30));
    assert_eq!(told.response_information(), Some("answers/"));
    assert_eq!(subscribe(&mut rig, key, "a/#", QoS::AtMostOnce), [0xA2]);
    assert_eq!(
        subscribe(&mut rig, key, "a", QoS::ExactlyOnce),
        [0],
        "granted less"
    );
    rig.publish_to("a", false, key, Version::V5, 1, "x");
    rig.turn();
    assert_eq!(rig.sent(key, Version::V5), ["disconnect QosNotSupported"]);

    rig.engine.env.settings.mqtt.max_qos = QoS::AtLeastOnce.as_u8();
    let key = rig.connect(ConnectFields::new(Version::V5, "c"));
    rig.publish_to("a", true, key, Version::V5, 1, "x");
    rig.turn();
    assert_eq!(
        rig.sent(key, Version::V5),
        ["disconnect RetainNotSupported"]
    );
    let old = rig.connect(ConnectFields::new(Version::V311, "old"));
    rig.publish_to("a", true, old, Version::V311, 1, "x");
    rig.turn();
    assert!(rig.engine.take_closed().contains(&old));

    for (qos, retain, code) in [
        (QoS::ExactlyOnce, false, 0x9B),
        (QoS::AtMostOnce, true, 0x9A),
    ] {
        let mut fields = ConnectFields::new(Version::V5, "w");
        fields.will = Some(WillFields {
            topic: "w",
            payload: b"x",
            qos,
            retain,
            properties: &[],
        });
        assert_eq!(refused(&mut rig, &fields).0, code);
    }
    rig.crash();
}

#[test]
fn a_silent_client_is_closed_by_the_keep_alive_that_the_broker_imposed() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.keep_alive_max = Some(Age::from_secs(10));
    let mut fields = ConnectFields::new(Version::V5, "new");
    fields.keep_alive_s = 0;
    let new = rig.connect(fields);
    let mut fields = ConnectFields::new(Version::V311, "old");
    fields.keep_alive_s = 0;
    let old = rig.connect(fields);
    for _ in 0..16 {
        rig.pass_time(1000);
    }
    let closed = rig.engine.take_closed();
    assert!(closed.contains(&new));
    assert!(!closed.contains(&old), "an older client cannot be told");
    rig.crash();
}

#[test]
fn a_drained_broker_sends_clients_where_it_is_told_and_takes_them_again_afterwards() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let new = rig.connect(ConnectFields::new(Version::V5, "new"));
    let old = rig.connect(ConnectFields::new(Version::V311, "old"));
    rig.engine.set_drain(Some(Drain::ForNow));
    assert_eq!(
        refused(&mut rig, &ConnectFields::new(Version::V5, "c")),
        (0x88, None),
        "without a reference nobody is sent anywhere"
    );
    assert_eq!(
        rig.sent(new, Version::V5),
        ["disconnect ServerShuttingDown"]
    );
    assert!(rig.engine.connections() > 0);
    rig.engine.remove(old);
    rig.engine.env.settings.mqtt.server_reference = Some("b:1883".to_owned());
    let other = Some("b:1883".to_owned());
    let fields = ConnectFields::new(Version::V5, "c");
    assert_eq!(refused(&mut rig, &fields), (0x9C, other.clone()));
    rig.engine.set_drain(Some(Drain::ForGood));
    assert_eq!(refused(&mut rig, &fields), (0x9D, other));
    let fields = ConnectFields::new(Version::V311, "c");
    assert_eq!(refused(&mut rig, &fields), (3, None));
    rig.engine.set_drain(None);
    rig.connect(ConnectFields::new(Version::V5, "c"));
    rig.crash();
}

#[test]
fn the_topics_of_a_client_that_comes_back_to_its_session_still_count() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.max_topics = 2;
    let version = Version::V5;
    let lasting = [Property::SessionExpiryInterval(600)];
    let mut fields = ConnectFields::new(version, "lasting");
    (fields.clean_start, fields.properties) = (false, &lasting);
    let key = rig.connect(fields);
    for topic in ["a", "b"] {
        let answer = publish(&mut rig, key, version, topic, 1);
        assert_eq!(answer, ["puback 1"]);
    }
    for clean_start in [false, true] {
        rig.engine.remove(key);
        fields.clean_start = clean_start;
        let key = rig.connect(fields);
        let answer = publish(&mut rig, key, version, "c", 1);
        let expected = if clean_start {
            "puback 1"
        } else {
            "refused QuotaExceeded"
        };
        assert_eq!(answer, [expected], "clean start: {clean_start}");
        assert_eq!(publish(&mut rig, key, version, "a", 2), ["puback 2"]);
        rig.engine.remove(key);
    }
    rig.crash();
}

#[test]
fn a_client_that_takes_no_packet_as_large_as_its_connack_is_closed_without_one_and_without_its_will()
 {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let version = Version::V5;
    let eye = rig.connect(ConnectFields::new(version, "eye"));
    rig.subscribe(eye, version);
    // An empty CONNACK has 5 bytes; one with an assigned client id has more.
    for (client_id, size_max, is_answered) in [("c", 4, false), ("c", 5, true), ("", 12, false)] {
        let properties = [Property::MaximumPacketSize(size_max)];
        let mut fields = ConnectFields::new(version, client_id);
        fields.properties = &properties;
        fields.will = Some(WillFields {
            topic: "t",
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: &[],
        });
        let key = rig.engine.open(crate::peer::Peer::nobody());
        rig.feed(key, |out| encode::connect(out, &fields));
        rig.turn();
        let sent = rig.engine.out(key).len();
        assert_eq!(sent, if is_answered { 5 } else { 0 }, "{size_max}");
        let closed = rig.engine.take_closed().contains(&key);
        assert_eq!(closed, !is_answered, "{size_max}");
        if is_answered {
            rig.feed(key, |out| {
                encode::disconnect(out, version, ReasonCode::Success, &[])
            });
            rig.turn();
        }
        rig.engine.remove(key);
        rig.turn();
    }
    assert_eq!(rig.sent(eye, version), [""; 0], "no will was published");
    rig.crash();
}

#[test]
fn one_shared_group_too_many_is_refused_and_those_there_are_take_further_members() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.env.settings.mqtt.max_shared_groups = 1;
    let open = |rig: &mut Rig, id: &str| rig.connect(ConnectFields::new(Version::V5, id));
    let (first, second) = (open(&mut rig, "1"), open(&mut rig, "2"));
    let qos = QoS::AtLeastOnce;
    assert_eq!(subscribe(&mut rig, first, "$share/a/t", qos), [1]);
    assert_eq!(subscribe(&mut rig, second, "$share/b/t", qos), [0x97]);
    assert_eq!(subscribe(&mut rig, second, "$share/a/t", qos), [1]);
    rig.engine.remove(first);
    rig.engine.remove(second);
    rig.turn();
    let third = open(&mut rig, "3");
    let codes = subscribe(&mut rig, third, "$share/b/t", qos);
    assert_eq!(codes, [1], "a group that nobody is in leaves its place");
    rig.crash();
}
