//! The stored values of the engine, byte by byte: what is written today, and that a broker resumes from exactly these
//! bytes. A change of one of them needs a version that still reads the old one.

pub(in crate::engine) mod literals;

use headwater_mqtt::encode::WillFields;
use headwater_mqtt::packet::subscribe::RetainHandling;

use literals::{RETAINED, SHARED_GROUP, SHARED_SESSION, STORED};

use super::guarded::Guarded;
use super::member::settle_disk;
use super::qos2::{LASTS, answer, lasting, publish};
use super::resumed::seen;
use super::rig::START_US;
use super::stored_state::assert_next;
use super::*;

const V5: Version = Version::V5;
const EARLIEST: [Property<'static>; 1] = [Property::UserProperty {
    key: "stream-offset",
    value: "earliest",
}];

fn dump(rig: &Rig) -> Vec<(String, String)> {
    let mut found = Vec::new();
    rig.state.for_each_prefix("", |key, value| {
        let text = String::from_utf8(value.to_vec()).expect("JSON");
        found.push((key.to_owned(), text));
    });
    found
}

fn subscribe(
    rig: &mut Rig,
    key: ConnKey,
    filter: &str,
    properties: &[Property<'_>],
    options: SubscriptionOptions,
) {
    let one = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, properties, &one);
    });
    assert_next(rig, key, "suback");
}

/// A client with state of every kind, which is lost; then a clean stop.
fn store_every_kind(rig: &mut Rig) {
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    for (id, text) in [(1, "first"), (2, "second")] {
        rig.publish_to("old", false, publisher, V5, id, text);
    }
    let properties = [
        Property::WillDelayInterval(30),
        Property::ContentType("text"),
    ];
    let mut fields = lasting(V5, "c", &LASTS);
    fields.will = Some(WillFields {
        topic: "w",
        payload: b"gone",
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: &properties,
    });
    let key = rig.connect(fields);
    let mut options = SubscriptionOptions::new(QoS::ExactlyOnce);
    options.no_local = true;
    options.retain_as_published = true;
    options.retain_handling = RetainHandling::SendIfNew;
    let id = [Property::SubscriptionIdentifier(7)];
    subscribe(rig, key, "t/+", &id, options);
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    subscribe(rig, key, "$share/g/s", &[], options);
    for (id, text) in [(1, "0"), (2, "1"), (3, "2")] {
        rig.publish_to("s", false, publisher, V5, id, text);
    }
    rig.publish_to("t/1", false, publisher, V5, 4, "one");
    for (id, text) in [(5, "sent"), (6, "released")] {
        publish(rig, publisher, V5, id, "t/2", text);
    }
    settle_disk(rig, &mut []);
    // The second record of the group, and the last one.
    answer(rig, key, V5, 2, encode::puback);
    answer(rig, key, V5, 6, encode::pubrec);
    settle_disk(rig, &mut []);
    rig.sent(key, V5);
    subscribe(rig, key, "old", &EARLIEST, options);
    for id in [7, 8] {
        publish(rig, key, V5, id, "v", "own");
    }
    settle_disk(rig, &mut []);
    answer(rig, key, V5, 8, encode::pubrel);
    settle_disk(rig, &mut []);
    rig.engine.remove(key);
    store_every_source(rig, publisher);
    let never = [Property::SessionExpiryInterval(u32::MAX)];
    rig.connect(lasting(V5, "n", &never));
    rig.engine.store_all();
    settle_disk(rig, &mut []);
}

/// A client with a delivery of QoS 2 from a replay, a retained message, a group, and a group that it has left.
fn store_every_source(rig: &mut Rig, publisher: ConnKey) {
    publish(rig, publisher, V5, 9, "replayed", "replayed");
    let retained = PublishFields {
        version: V5,
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: true,
        topic: "retained",
        packet_id: PacketId::new(10),
        properties: &[],
        extra: &[],
    };
    rig.feed(publisher, |out| {
        retained.encode(out, b"retained").expect("it is small");
    });
    settle_disk(rig, &mut []);
    let key = rig.connect(lasting(V5, "d", &LASTS));
    let options = SubscriptionOptions::new(QoS::ExactlyOnce);
    subscribe(rig, key, "replayed", &EARLIEST, options);
    settle_disk(rig, &mut []);
    for filter in ["retained", "$share/g/shared", "$share/g/left"] {
        rig.sent(key, V5);
        subscribe(rig, key, filter, &[], options);
        settle_disk(rig, &mut []);
    }
    for (id, topic) in [(11, "shared"), (12, "left")] {
        publish(rig, publisher, V5, id, topic, topic);
        settle_disk(rig, &mut []);
    }
    rig.feed(key, |out| {
        encode::unsubscribe(out, V5, PacketId::FIRST, &[], &["$share/g/left"]);
    });
    settle_disk(rig, &mut []);
    rig.engine.remove(key);
}

/// A broker that finds exactly these values in its state, at this time.
fn resumed(dir: &Path, wall_us: i64, values: &[(&str, &str)]) -> Rig {
    let config = || LogConfig::new(dir);
    let (log, _) = Log::open(config(), Seams::system()).expect("a log opens in its own folder");
    let state = StateStore::open(&log, 1 << 20).expect("state follows from the log");
    let mut keys = Vec::new();
    state.for_each_prefix("", |key, _| keys.push(key.to_owned()));
    for key in keys {
        state.delete(&key).expect("there is room");
    }
    for (key, value) in values {
        state.put(key, value.as_bytes()).expect("there is room");
    }
    log.shutdown();
    drop((state, log));
    Rig::open_at(wall_us, config(), 1 << 20, Settings::default())
}

fn never_expires() -> Settings {
    let mut settings = Settings::default();
    settings.mqtt.session_expiry_max = Age(Duration::from_secs(u64::from(u32::MAX)));
    settings
}

#[test]
fn every_stored_value_has_these_bytes_and_a_broker_resumes_from_them() {
    let dir = dir();
    let mut rig = Rig::open_with_settings(LogConfig::new(dir.path()), 1 << 20, never_expires());
    store_every_kind(&mut rig);
    let stored = dump(&rig);
    rig.crash();
    let stored: Vec<(&str, &str)> = stored
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(stored, STORED);

    let mut rig = resumed(dir.path(), START_US + 10_000_000, &STORED);
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &lasting(V5, "c", &LASTS)));
    let told = seen(&mut rig, key, V5);
    let expected = [
        "connack true",
        "t/2 sent qos 2 id 5 dup subscription 7",
        "pubrel 6",
        "old first qos 1 id 7",
        "old second qos 1 id 8",
        "t/1 one qos 1 id 9 subscription 7",
        "s 0 qos 1 id 10",
        "s 2 qos 1 id 11",
    ];
    assert_eq!(told, expected);
    let sources = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(sources, |out| {
        encode::connect(out, &lasting(V5, "d", &LASTS));
    });
    let told = seen(&mut rig, sources, V5);
    let expected = [
        "connack true",
        "replayed replayed qos 2 id 1 dup",
        "retained retained qos 2 id 2 dup retain",
        "shared shared qos 2 id 3 dup",
        "left left qos 2 id 4 dup",
    ];
    assert_eq!(told, expected);
    let ends = |rig: &Rig| rig.log.by_name("telemetry-0").map(|of| of.next_offset());
    let before = ends(&rig);
    publish(&mut rig, key, V5, 7, "v", "own");
    assert_eq!(seen(&mut rig, key, V5), ["pubrec 7"]);
    assert_eq!(ends(&rig), before, "its packet id is in use");
    // Not its own publishes, and retained ones as they are published.
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    rig.publish_to("t/1", true, publisher, V5, 1, "retained");
    rig.publish_to("t/1", false, key, V5, 9, "own");
    let told = seen(&mut rig, key, V5);
    assert_eq!(
        told,
        ["t/1 retained qos 1 id 12 retain subscription 7", "puback 9"]
    );
    let never = rig.connect(lasting(V5, "n", &LASTS));
    rig.engine.remove(never);
    rig.crash();

    // 30 seconds after its client was lost, and not before.
    for (after_s, wills) in [(29, 0), (30, 1)] {
        let mut rig = resumed(dir.path(), START_US + after_s * 1_000_000, &STORED);
        let watcher = rig.connect(ConnectFields::new(V5, "watcher"));
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        subscribe(&mut rig, watcher, "w", &[], options);
        rig.pass_time(0);
        let told = seen(&mut rig, watcher, V5);
        assert_eq!(told.len(), wills, "after {after_s} s: {told:?}");
        rig.crash();
    }
}

#[test]
fn the_stored_values_of_users_tenants_and_history_have_these_bytes_and_are_resumed_from() {
    let mut broker = Guarded::new(|_| {});
    broker.write(
        "acl",
        "user ann\ntenant north\ntopic readwrite #\ntopic replay #\n\
         user bob\ntopic readwrite #\n",
    );
    broker.auth_service.reload().expect("the file is right");
    let bob = broker.connect("bob", "pw-b", "b");
    broker.publish(bob, "t", 1);
    let mut fields = lasting(V5, "a", &LASTS);
    fields.username = Some("ann");
    fields.password = Some(b"pw-a");
    let (key, _) = broker.try_connect(&fields);
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let one = [Subscription {
        filter: "$share/g/t",
        options,
    }];
    broker.rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &EARLIEST, &one);
    });
    settle_disk(&mut broker.rig, &mut []);
    broker.rig.engine.remove(key);
    broker.rig.engine.store_all();
    settle_disk(&mut broker.rig, &mut []);
    for (key, value) in [SHARED_SESSION, SHARED_GROUP] {
        let stored = broker.rig.state.get(key).expect("it is stored");
        assert_eq!(String::from_utf8_lossy(&stored), value);
    }
    let mut broker = broker.restart();
    let mut stranger = fields;
    stranger.username = Some("bob");
    stranger.password = Some(b"pw-b");
    assert_eq!(broker.try_connect(&stranger).1, 0x85, "it is ann's");
    let rig = &mut broker.rig;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    let mut told = Vec::new();
    while told.len() < 2 {
        // The password is checked on another thread.
        told.extend(seen(rig, key, V5));
    }
    assert_eq!(told, ["connack true", "t t 1 qos 1 id 1"]);
    broker.rig.crash();
}

/// Small segments, of which the log keeps few.
fn keeps_little(dir: &Path) -> LogConfig {
    let mut config = LogConfig::new(dir);
    config.segment_bytes = 64 << 10;
    for class in &mut config.classes {
        class.retention_bytes = Some(128 << 10);
    }
    config
}

#[test]
fn a_stored_retained_message_has_these_bytes_and_is_resumed_from() {
    let dir = dir();
    let mut rig = Rig::open_with(keeps_little(dir.path()));
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut properties = Vec::new();
    Property::ContentType("text").encode(&mut properties);
    let kept = PublishFields {
        version: V5,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "a/b",
        packet_id: PacketId::new(1),
        properties: &properties,
        extra: &[],
    };
    rig.feed(publisher, |out| {
        kept.encode(out, b"kept").expect("it is small");
    });
    assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
    let telemetry = rig.log.by_name("telemetry-0").expect("there").clone();
    let batches = telemetry.read(Offset(0), 1).expect("nothing is damaged");
    let time_us = batches[0].record(0).time_us;
    let noise = "x".repeat(8 << 10);
    for id in 2.. {
        if telemetry.log_start() > Offset(0) {
            break;
        }
        assert!(id < 1000, "retention never removed a segment");
        rig.publish_to("noise", false, publisher, V5, id, &noise);
        assert_eq!(rig.packets(publisher, V5, 1), [format!("puback {id}")]);
        rig.log.maintain();
    }
    let stored = rig.state.get(RETAINED.0).expect("its segment is gone");
    let time = format!(r#""time_us":{time_us}"#);
    let value = RETAINED.1.replace(r#""time_us":0"#, &time);
    assert_eq!(String::from_utf8_lossy(&stored), value);
    rig.crash();
    let mut rig = Rig::open_with(keeps_little(dir.path()));
    let key = rig.connect(ConnectFields::new(V5, "c"));
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    subscribe(&mut rig, key, "a/#", &[], options);
    assert_eq!(seen(&mut rig, key, V5), ["a/b kept qos 1 id 1 retain"]);
    rig.crash();
}
