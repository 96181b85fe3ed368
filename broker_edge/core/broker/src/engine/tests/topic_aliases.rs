//! Topic aliases of publishers: which aliases a client may use, and that each stands for the topic it was last given.

use super::*;

const VERSION: Version = Version::V5;

fn publish(rig: &mut Rig, key: ConnKey, topic: &str, alias: Option<u16>, text: &str) {
    let mut properties = Vec::new();
    if let Some(alias) = alias {
        Property::TopicAlias(alias).encode(&mut properties);
    }
    let fields = PublishFields {
        version: VERSION,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic,
        packet_id: Some(PacketId::FIRST),
        properties: &properties,
        extra: &[],
    };
    rig.feed(key, |out| {
        fields.encode(out, text.as_bytes()).expect("a small packet");
    });
}

/// The answer to a publish.
fn answer(rig: &mut Rig, key: ConnKey, topic: &str, alias: Option<u16>, text: &str) -> String {
    publish(rig, key, topic, alias, text);
    rig.packets(key, VERSION, 1).remove(0)
}

/// Topic and payload of each record.
fn logged(rig: &Rig) -> Vec<String> {
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let batches = telemetry.read(Offset(0), 1 << 20);
    let batches = batches.expect("nothing is damaged");
    let records = batches.iter().flat_map(headwater_log::Batch::records);
    records
        .map(|record| {
            let text = String::from_utf8_lossy(record.payload);
            format!("{} {text}", record.topic)
        })
        .collect()
}

#[test]
fn a_number_stands_for_the_name_that_it_was_given_last() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(VERSION, "p"));
    let steps = [
        ("c", Some(3), "c"),
        ("a", Some(1), "a"),
        ("", Some(1), "a"),
        ("", Some(3), "c"),
        ("b", None, "b"),
        ("", Some(1), "a"),
        // It is the topic of the last publish by name, and gets an alias all the same.
        ("b", Some(2), "b"),
        ("", Some(2), "b"),
        ("d", Some(1), "d"),
        ("", Some(1), "d"),
        ("", Some(2), "b"),
        ("", Some(3), "c"),
        ("b", None, "b"),
        ("a", None, "a"),
        // One topic may have several aliases.
        ("d", Some(4), "d"),
        ("", Some(4), "d"),
        ("", Some(1), "d"),
    ];
    let mut wanted = Vec::new();
    for (n, (topic, alias, stands_for)) in steps.into_iter().enumerate() {
        let told = answer(&mut rig, key, topic, alias, &n.to_string());
        assert_eq!(told, "puback 1", "{n}");
        wanted.push(format!("{stands_for} {n}"));
    }
    assert_eq!(logged(&rig), wanted);
}

#[test]
fn numbers_above_what_the_broker_allows_and_zero_end_the_connection() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    for (maximum, alias, is_allowed) in [
        (0, 1, false),
        (3, 0, false),
        (3, 1, true),
        (3, 3, true),
        (3, 4, false),
        (3, 5, false),
        (u16::MAX, u16::MAX, true),
    ] {
        rig.engine.env.settings.mqtt.topic_alias_maximum = maximum;
        let what = format!("{alias} of {maximum}");
        let key = rig.connect(ConnectFields::new(VERSION, "p"));
        let told = answer(&mut rig, key, "t", Some(alias), &what);
        if is_allowed {
            assert_eq!(told, "puback 1", "{what}");
            assert_eq!(logged(&rig).pop(), Some(format!("t {what}")));
            continue;
        }
        assert_eq!(told, "disconnect TopicAliasInvalid", "{what}");
        assert!(!logged(&rig).contains(&format!("t {what}")));
        let key = rig.connect(ConnectFields::new(VERSION, "p"));
        let told = answer(&mut rig, key, "", Some(alias), &what);
        assert_eq!(told, "disconnect TopicAliasInvalid", "{what}");
    }
}

#[test]
fn a_number_without_a_name_ends_the_connection_and_names_are_not_shared() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let other = rig.connect(ConnectFields::new(VERSION, "other"));
    for alias in 1..=3 {
        assert_eq!(
            answer(&mut rig, other, "t", Some(alias), "kept"),
            "puback 1"
        );
    }
    for (given, used) in [(None, 1), (Some(1), 2), (Some(3), 2), (Some(3), 1)] {
        let key = rig.connect(ConnectFields::new(VERSION, "p"));
        if let Some(alias) = given {
            answer(&mut rig, key, "t", Some(alias), "kept");
        }
        let told = answer(&mut rig, key, "", Some(used), "lost");
        assert_eq!(told, "disconnect ProtocolError", "{given:?} {used}");
    }
    assert!(!logged(&rig).contains(&"t lost".to_owned()));
}

#[test]
fn a_number_keeps_its_name_when_the_table_of_topics_is_emptied() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(VERSION, "p"));
    assert_eq!(answer(&mut rig, key, "t", Some(1), "before"), "puback 1");
    let generation = rig.engine.routing.generation();
    for n in 0.. {
        if rig.engine.routing.generation() != generation {
            break;
        }
        let name = format!("{n}/{}", "x".repeat(60_000));
        rig.engine.routing.intern(&name, &rig.log);
    }
    for text in ["after", "and again"] {
        assert_eq!(answer(&mut rig, key, "", Some(1), text), "puback 1");
    }
    assert_eq!(logged(&rig), ["t before", "t after", "t and again"]);
}

#[test]
fn what_comes_by_the_number_of_a_refused_name_is_refused_as_well_until_it_has_another() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    rig.engine.env.settings.mqtt.max_topic_bytes = 10;
    rig.engine.env.settings.mqtt.max_topics = 1;
    for (name, reason) in [
        ("12345678901", "refused TopicNameInvalid"),
        ("$of-broker", "refused NotAuthorized"),
        ("second", "refused QuotaExceeded"),
    ] {
        let key = rig.connect(ConnectFields::new(VERSION, "p"));
        assert_eq!(answer(&mut rig, key, "t", Some(1), "kept"), "puback 1");
        if name == "second" {
            assert_eq!(answer(&mut rig, key, "first", None, "kept"), "puback 1");
        }
        assert_eq!(answer(&mut rig, key, name, Some(1), "lost"), reason);
        let told = answer(&mut rig, key, "", Some(1), "for another topic");
        assert_eq!(told, reason, "{name}");
        assert_eq!(answer(&mut rig, key, "t", Some(1), "kept"), "puback 1");
        assert_eq!(answer(&mut rig, key, "", Some(1), "kept"), "puback 1");
    }
    assert!(!logged(&rig).contains(&"t for another topic".to_owned()));
}
