//! Deliveries that a client left unacknowledged on an earlier connection, or that only have their packet ids: what is
//! sent of them, in which order, and what becomes of those that cannot be sent.

use std::collections::VecDeque;

use super::edges::deliveries;
use super::guarded::Guarded;
use super::member::settle_disk;
use super::qos2::{LASTS, answer, lasting, publish};
use super::resumed::{seen, taken};
use super::stored_state::assert_next;
use super::*;

const V5: Version = Version::V5;
const TOPIC: &str = "plant/1";

fn subscribe(rig: &mut Rig, key: ConnKey, filter: &str, qos: QoS) {
    let options = SubscriptionOptions::new(qos);
    let one = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one);
    });
    assert_next(rig, key, "suback");
}

/// Publishes with QoS 1 or 2; the publisher releases nothing.
fn say(rig: &mut Rig, publisher: ConnKey, qos: QoS, id: u16, text: &str) {
    if qos == QoS::ExactlyOnce {
        publish(rig, publisher, V5, id, TOPIC, text);
        assert_next(rig, publisher, "Pubrec");
    } else {
        rig.publish_to(TOPIC, false, publisher, V5, id, text);
        assert_next(rig, publisher, "puback");
    }
}

fn connect(rig: &mut Rig, fields: &ConnectFields<'_>) -> ConnKey {
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, fields));
    key
}

/// Topic and alias of each delivery.
fn named(rig: &mut Rig, key: ConnKey) -> Vec<(String, Option<u16>)> {
    settle_disk(rig, &mut []);
    let found = deliveries(rig, key).into_iter();
    found.map(|(_, _, topic, alias)| (topic, alias)).collect()
}

#[test]
fn a_resent_publish_has_its_full_topic_and_gives_it_no_alias() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let publisher = rig.connect(ConnectFields::new(V5, "p"));
        let allows = [LASTS[0], Property::TopicAliasMaximum(9)];
        let fields = lasting(V5, "c", &allows);
        let key = rig.connect(fields);
        subscribe(&mut rig, key, "plant/+", qos);
        say(&mut rig, publisher, qos, 1, "x");
        // The id of a QoS 2 delivery has to be durable before it is sent, which is as if it were sent again.
        let first = (qos == QoS::AtLeastOnce).then_some(1);
        assert_eq!(named(&mut rig, key), [(TOPIC.to_owned(), first)]);
        rig.engine.remove(key);
        let key = connect(&mut rig, &fields);
        assert_eq!(named(&mut rig, key), [(TOPIC.to_owned(), None)], "{qos:?}");
        // The alias is new to the next delivery of the live stream, and known from then on.
        for expected in [(TOPIC, Some(1)), ("", Some(1))] {
            say(&mut rig, publisher, QoS::AtLeastOnce, 2, "y");
            let expected = [(expected.0.to_owned(), expected.1)];
            assert_eq!(named(&mut rig, key), expected, "{qos:?}");
        }
    }
}

/// Why a delivery can never be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    Expired,
    Removed,
    Forbidden,
    TooLarge,
}

const GONE: [Gone; 4] = [
    Gone::Expired,
    Gone::Removed,
    Gone::Forbidden,
    Gone::TooLarge,
];
const ACL: &str = "user ann\ntopic readwrite #\nuser bob\ntopic read #\n";
const ACL_WITHOUT: &str = "user ann\ntopic readwrite #\nuser bob\ntopic read other/#\n";

fn bob<'a>(properties: &'a [Property<'a>]) -> ConnectFields<'a> {
    let mut fields = lasting(V5, "bob-1", properties);
    fields.username = Some("bob");
    fields.password = Some(b"pw-b");
    fields
}

fn load(broker: &mut Guarded, acl: &str) {
    broker.write("acl", acl);
    broker.auth_service.reload().expect("the file is right");
    broker.rig.turn();
}

/// Packet ids of the stored QoS 2 deliveries of a client.
fn stored_ids(rig: &Rig, client_id: &str) -> Vec<u64> {
    let Some(value) = rig.state.get(&format!("sent/{client_id}")) else {
        return Vec::new();
    };
    let value: serde_json::Value = serde_json::from_slice(&value).expect("JSON");
    let flights = value["flights"].as_array().expect("a list");
    flights.iter().filter_map(|of| of[0].as_u64()).collect()
}

impl Gone {
    fn happen(self, broker: &mut Guarded, publisher: ConnKey) {
        match self {
            Self::Expired => {
                // The log has its own clock.
                let telemetry = broker.rig.log.by_name("telemetry-0").expect("there");
                let first = telemetry.read(Offset(0), 1).expect("a sound log");
                broker.rig.now.wall_us = first[0].record(0).time_us + 120_000_000;
            }
            Self::Forbidden => load(broker, ACL_WITHOUT),
            Self::TooLarge => {}
            Self::Removed => {
                let telemetry = broker.rig.log.by_name("telemetry-0").expect("there");
                let telemetry = telemetry.clone();
                let noise = "x".repeat(32 << 10);
                for id in (1..=1000).cycle() {
                    if telemetry.log_start() > Offset(1) {
                        break;
                    }
                    let rig = &mut broker.rig;
                    rig.publish_to("noise", false, publisher, V5, id, &noise);
                    assert_next(rig, publisher, "puback");
                    rig.log.maintain();
                }
            }
        }
    }
}

/// Publishes 200 bytes.
fn say_with(rig: &mut Rig, publisher: ConnKey, qos: QoS, properties: &[Property<'_>]) {
    let mut encoded = Vec::new();
    properties
        .iter()
        .for_each(|property| property.encode(&mut encoded));
    let fields = PublishFields {
        version: V5,
        dup: false,
        qos,
        retain: false,
        topic: TOPIC,
        packet_id: PacketId::new(1),
        properties: &encoded,
        extra: &[],
    };
    rig.feed(publisher, |out| {
        fields.encode(out, &[b'x'; 200]).expect("a small packet");
    });
    let is_qos2 = qos == QoS::ExactlyOnce;
    assert_next(rig, publisher, if is_qos2 { "Pubrec" } else { "puback" });
}

/// What a client is sent from its CONNACK on; the check of its credentials takes some time.
fn told_when_admitted(rig: &mut Rig, key: ConnKey) -> Vec<String> {
    let mut told = Vec::new();
    while told.is_empty() {
        told = seen(rig, key, V5);
    }
    told.extend(seen(rig, key, V5));
    told
}

/// A delivery in the window of a session or of the only member of a group, that can never be sent again.
fn assert_ends(gone: Gone, qos: QoS, is_shared: bool) {
    let case = format!("{gone:?} with {qos:?}, shared: {is_shared}");
    let mut broker = Guarded::with_log(
        |_| {},
        |config| {
            config.segment_bytes = 256 << 10;
            for class in &mut config.classes {
                class.retention_bytes = Some(512 << 10);
            }
        },
    );
    load(&mut broker, ACL);
    let publisher = broker.connect("ann", "pw-a", "ann-1");
    let narrow = [LASTS[0], Property::ReceiveMaximum(1)];
    let (key, code) = broker.try_connect(&bob(&narrow));
    assert_eq!(code, 0, "{case}");
    let filter = if is_shared { "$share/g/+/+" } else { "+/+" };
    let rig = &mut broker.rig;
    subscribe(rig, key, filter, qos);
    let expires = [Property::MessageExpiryInterval(60)];
    let expires = (gone == Gone::Expired).then_some(&expires[..]);
    say_with(rig, publisher, qos, expires.unwrap_or_default());
    assert_eq!(seen(rig, key, V5).len(), 1, "{case}");
    let count = |rig: &Rig| {
        let id = rig.engine.groups.by_name(filter);
        id.and_then(|id| rig.engine.groups.get(id))
            .map_or(0, |group| group.pending())
    };
    assert_eq!(count(rig), usize::from(is_shared), "{case}");
    rig.engine.remove(key);
    gone.happen(&mut broker, publisher);

    let rig = &mut broker.rig;
    let small = [narrow[0], narrow[1], Property::MaximumPacketSize(100)];
    let key = connect(
        rig,
        &bob(if gone == Gone::TooLarge {
            &small
        } else {
            &narrow
        }),
    );
    let told = told_when_admitted(rig, key);
    assert_eq!(told, ["connack true"], "{case}");
    assert_eq!(count(rig), 0, "{case}");
    // There is room in the window again, and the acknowledgement lets a checkpoint store the session.
    rig.publish_to("other/1", false, publisher, V5, 2, "next");
    let told = seen(rig, key, V5);
    assert_eq!(told, ["other/1 next qos 1 id 2"], "{case}");
    answer(rig, key, V5, 2, encode::puback);
    if qos == QoS::ExactlyOnce {
        assert_eq!(stored_ids(rig, "bob-1"), [1], "{case}: not yet");
        rig.pass_time(tick::CHECKPOINT_MS);
        settle_disk(rig, &mut []);
        assert_eq!(stored_ids(rig, "bob-1"), [0; 0], "{case}");
    }
}

#[test]
fn a_delivery_that_cannot_be_sent_again_leaves_the_window_its_group_and_the_stored_state() {
    for gone in GONE {
        for (qos, is_shared) in [
            (QoS::AtLeastOnce, false),
            (QoS::ExactlyOnce, false),
            (QoS::ExactlyOnce, true),
        ] {
            assert_ends(gone, qos, is_shared);
        }
    }
}

#[test]
fn pubrels_leave_in_the_order_of_the_pubrecs_whether_they_become_durable_together_or_not() {
    // The ids of each turn.
    let orders: [&[&[u16]]; 3] = [
        &[&[3, 1, 4, 2]],
        &[&[3], &[1], &[4], &[2]],
        &[&[4, 2], &[3, 1]],
    ];
    for turns in orders {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let publisher = rig.connect(ConnectFields::new(V5, "p"));
        let key = rig.connect(lasting(V5, "c", &LASTS));
        subscribe(&mut rig, key, "#", QoS::ExactlyOnce);
        for id in 1..=4 {
            say(&mut rig, publisher, QoS::ExactlyOnce, id, "x");
        }
        assert_eq!(seen(&mut rig, key, V5).len(), 4);
        rig.state_gate.set(Sync::Hold);
        for ids in turns {
            for id in *ids {
                answer(&mut rig, key, V5, *id, encode::pubrec);
            }
            rig.turn();
        }
        let early = taken(&mut rig, key, V5);
        rig.state_gate.set(Sync::Pass);
        assert_eq!(early, [""; 0], "{turns:?}");
        let expected = turns.concat().into_iter().map(|id| format!("pubrel {id}"));
        let told = seen(&mut rig, key, V5);
        assert_eq!(told, expected.collect::<Vec<_>>(), "{turns:?}");
    }
}

/// What a client is sent that returns with this window, one acknowledgement at a time. Of six deliveries two were only
/// assigned their ids, and one was received.
fn told_with_window(window: u16, is_durable: bool) -> Vec<String> {
    let (one, two) = (QoS::AtLeastOnce, QoS::ExactlyOnce);
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let key = rig.connect(lasting(V5, "c", &LASTS));
    subscribe(&mut rig, key, "#", two);
    for (id, qos) in [(1, two), (2, two), (3, one)] {
        say(&mut rig, publisher, qos, id, &id.to_string());
        assert_eq!(seen(&mut rig, key, V5).len(), 1);
    }
    answer(&mut rig, key, V5, 1, encode::pubrec);
    assert_eq!(seen(&mut rig, key, V5), ["pubrel 1"]);
    rig.state_gate.set(Sync::Hold);
    for (id, qos) in [(4, two), (5, one), (6, two)] {
        say(&mut rig, publisher, qos, id, &id.to_string());
    }
    rig.turn();
    assert_eq!(taken(&mut rig, key, V5), ["plant/1 5 qos 1 id 5"]);
    rig.engine.remove(key);
    if is_durable {
        rig.state_gate.set(Sync::Pass);
        settle_disk(&mut rig, &mut []);
    }
    let narrow = [LASTS[0], Property::ReceiveMaximum(window)];
    let key = connect(&mut rig, &lasting(V5, "c", &narrow));
    rig.turn();
    rig.state_gate.set(Sync::Pass);
    rig.publish_to(TOPIC, false, publisher, V5, 7, "new");
    let mut told = Vec::new();
    let mut owed: VecDeque<String> = seen(&mut rig, key, V5).into();
    let mut in_flight = 0;
    while let Some(packet) = owed.pop_front() {
        if let Some((_, rest)) = packet.split_once(" id ") {
            let id = rest.trim_end_matches(" dup").parse().expect("a number");
            let qos2 = packet.contains("qos 2");
            answer(
                &mut rig,
                key,
                V5,
                id,
                if qos2 { encode::pubrec } else { encode::puback },
            );
        } else if let Some(id) = packet.strip_prefix("pubrel ") {
            answer(
                &mut rig,
                key,
                V5,
                id.parse().expect("a number"),
                encode::pubcomp,
            );
        }
        told.push(packet);
        owed.extend(seen(&mut rig, key, V5));
        let waiting = owed.iter().filter(|packet| packet.contains(" id "));
        in_flight = waiting.count().max(in_flight);
    }
    assert!(in_flight <= usize::from(window), "{in_flight} at once");
    told
}

#[test]
fn an_assigned_packet_id_keeps_its_place_in_a_smaller_window_and_new_deliveries_come_last() {
    for window in [1, 2, 3, 5, 10] {
        for is_durable in [true, false] {
            let case = format!("window {window}, durable: {is_durable}");
            let told = told_with_window(window, is_durable);
            assert_eq!(told[0], "connack true", "{case}");
            let sent: Vec<&str> = told[1..]
                .iter()
                .filter(|packet| !packet.starts_with("pubrel"))
                .map(String::as_str)
                .collect();
            let expected = [
                "plant/1 2 qos 2 id 2 dup",
                "plant/1 3 qos 1 id 3 dup",
                "plant/1 4 qos 2 id 4",
                "plant/1 5 qos 1 id 5 dup",
                "plant/1 6 qos 2 id 6",
                "plant/1 new qos 1 id 7",
            ];
            assert_eq!(sent, expected, "{case}");
            let released = told.iter().filter(|packet| packet.starts_with("pubrel"));
            assert_eq!(released.count(), 4, "{case}: {told:?}");
            assert_eq!(told[1], "pubrel 1", "{case}");
        }
    }
}
