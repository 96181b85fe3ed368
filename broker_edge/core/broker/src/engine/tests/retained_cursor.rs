//! Retained messages for new subscribers that read slowly: each once, nothing newer before them, and no list of them in
//! memory.

use crate::engine::retained::retained_cursor::{LISTED_MAX, RetainedCursor};

use super::hostile::subscribe_to;
use super::resumed::seen;
use super::*;

const VERSION: Version = Version::V5;
/// More than are listed, and fewer.
const MANY_AND_FEW: [usize; 2] = [LISTED_MAX + 200, 200];

fn topic(n: usize) -> String {
    format!("r/{n}")
}

/// Publishes one retained message in each of `count` topics: the topic, `old`, and this many bytes of filling.
fn retain(rig: &mut Rig, count: usize, filling: usize) -> ConnKey {
    let publisher = rig.connect(ConnectFields::new(VERSION, "retains"));
    let filling = "x".repeat(filling);
    for first in (0..count).step_by(100) {
        let some = first..count.min(first + 100);
        for n in some.clone() {
            let id = u16::try_from(n % 1000 + 1).expect("a small number");
            let text = format!("{} old{filling}", topic(n));
            rig.publish_to(&topic(n), true, publisher, VERSION, id, &text);
        }
        rig.packets(publisher, VERSION, some.len());
    }
    publisher
}

/// A client with a receive maximum of ten.
fn slow_client(rig: &mut Rig) -> ConnKey {
    let mut fields = ConnectFields::new(VERSION, "slow");
    fields.properties = &[Property::ReceiveMaximum(10)];
    rig.connect(fields)
}

fn say(rig: &mut Rig, publisher: ConnKey, topic: &str, retain: bool, text: &str) {
    rig.publish_to(topic, retain, publisher, VERSION, 2000, text);
    assert_eq!(rig.packets(publisher, VERSION, 1), ["puback 2000"]);
}

/// Reads and acknowledges until nothing more comes; returns the payloads.
fn take_all(rig: &mut Rig, key: ConnKey) -> Vec<String> {
    let mut got = Vec::new();
    loop {
        rig.turn();
        let bytes = rig.engine.out(key).to_vec();
        rig.engine.written(key, bytes.len());
        let mut rest = bytes.as_slice();
        let mut acks = Vec::new();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(VERSION, first_byte, &rest[header_len..total_len]);
            if let Ok(ServerPacket::Publish(publish)) = packet {
                got.push(String::from_utf8_lossy(publish.payload).into_owned());
                acks.extend(publish.packet_id);
            }
            rest = &rest[total_len..];
        }
        for id in &acks {
            rig.feed(key, |out| {
                encode::puback(out, VERSION, *id, ReasonCode::Success, &[])
            });
        }
        if acks.is_empty() && !rig.engine.has_more() && !rig.engine.is_behind_log() {
            return got;
        }
    }
}

fn session_of(rig: &Rig, key: ConnKey) -> &Session {
    let conn = rig.engine.clients.conn(key).expect("it is open");
    let session = conn.session.expect("it is connected");
    rig.engine.clients.session(session).expect("it is there")
}

#[test]
fn i7_a_subscriber_that_takes_nothing_holds_no_list_of_what_is_retained() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    retain(&mut rig, MANY_AND_FEW[0], 0);
    let slow = slow_client(&mut rig);
    for filter in ["#", "r/1/#", "r/+"] {
        subscribe_to(&mut rig, slow, filter, QoS::AtLeastOnce);
    }
    rig.turn();
    let session = session_of(&rig, slow);
    let listed: Vec<usize> = session
        .extras
        .retained
        .iter()
        .map(RetainedCursor::listed)
        .collect();
    assert_eq!(listed, [0, 0, 0]);
    // A short list is made when its turn comes.
    let got = take_all(&mut rig, slow);
    assert_eq!(got.len(), 2 * MANY_AND_FEW[0] + 1);
    assert!(!session_of(&rig, slow).has_work());
}

#[test]
fn every_retained_value_comes_once_and_nothing_newer_of_its_topic_before_it() {
    for count in MANY_AND_FEW {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let publisher = retain(&mut rig, count, 0);
        let slow = slow_client(&mut rig);
        subscribe_to(&mut rig, slow, "other", QoS::AtLeastOnce);
        subscribe_to(&mut rig, slow, "r/#", QoS::AtLeastOnce);
        rig.turn();
        let last = [1, 2, 3].map(|n| topic(count - n));
        say(&mut rig, publisher, &last[0], true, "replaced");
        say(&mut rig, publisher, &last[1], true, "");
        say(&mut rig, publisher, &last[2], false, "live");
        say(&mut rig, publisher, &topic(0), false, "live of the first");
        say(&mut rig, publisher, "r/new", true, "new");
        say(&mut rig, publisher, "other", false, "of another filter");
        assert!(
            session_of(&rig, slow).has_pending_retained(),
            "it is not done yet"
        );
        let got = take_all(&mut rig, slow);
        let mut wanted: Vec<String> = (0..count - 3)
            .map(|n| format!("{} old", topic(n)))
            .collect();
        wanted.push(format!("{} old", last[2]));
        let live = [
            "replaced",
            "",
            "live",
            "live of the first",
            "new",
            "of another filter",
        ];
        wanted.extend(live.map(str::to_owned));
        assert_eq!(got, wanted, "of {count}");
        let session = session_of(&rig, slow);
        assert!(!session.has_pending_retained() && session.behind.is_empty());
    }
}

#[test]
fn what_was_published_before_the_subscribe_comes_before_the_retained_values() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    let lasts = [
        Property::SessionExpiryInterval(60),
        Property::ReceiveMaximum(1),
    ];
    let mut fields = ConnectFields::new(VERSION, "lasting");
    fields.clean_start = false;
    fields.properties = &lasts;
    let first = rig.connect(fields);
    subscribe_to(&mut rig, first, "t", QoS::AtLeastOnce);
    rig.engine.remove(first);
    for text in ["1", "2", "3"] {
        say(&mut rig, publisher, "t", true, text);
    }
    let back = rig.engine.open(crate::peer::Peer::nobody());
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    // The SUBACK must not leave before the test has seen it wait.
    rig.state_gate.set(Sync::Hold);
    rig.feed(back, |out| {
        encode::connect(out, &fields);
        encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one);
    });
    let waits = |rig: &Rig| {
        rig.engine
            .clients
            .conn(back)
            .expect("it is open")
            .subacks_pending
            > 0
    };
    let has_waited = waits(&rig);
    // Before anything may fail: a log whose syncs are held does not close.
    rig.state_gate.set(Sync::Pass);
    assert!(has_waited, "for what a lasting session has to store");
    while waits(&rig) {
        rig.wait_for_disk();
        rig.turn();
    }
    say(&mut rig, publisher, "t", false, "4");
    assert_eq!(take_all(&mut rig, back), ["1", "2", "3", "3", "4"]);
}

/// A device that comes back with more commands than its window: it must learn which keys count before it carries one
/// out.
#[test]
fn a_retained_value_does_not_wait_for_the_records_of_other_partitions() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(VERSION, "p"));
    let lasts = [
        Property::SessionExpiryInterval(60),
        Property::ReceiveMaximum(2),
    ];
    let mut fields = ConnectFields::new(VERSION, "d");
    fields.clean_start = false;
    fields.properties = &lasts;
    let first = rig.connect(fields);
    subscribe_to(&mut rig, first, "devices/d/actions", QoS::AtLeastOnce);
    rig.engine.remove(first);
    say(
        &mut rig,
        publisher,
        "artifacts/other",
        true,
        "not asked for",
    );
    say(&mut rig, publisher, "artifacts/root", true, "keys");
    for n in 1..=7 {
        let text = format!("command {n}");
        say(&mut rig, publisher, "devices/d/actions", false, &text);
    }

    let back = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(back, |out| encode::connect(out, &fields));
    let commands = [
        "connack true",
        "devices/d/actions command 1 qos 1 id 1",
        "devices/d/actions command 2 qos 1 id 2",
    ];
    assert_eq!(seen(&mut rig, back, VERSION), commands);
    let one = [Subscription {
        filter: "artifacts/root",
        options: SubscriptionOptions::new(QoS::AtMostOnce),
    }];
    rig.feed(back, |out| {
        encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one)
    });
    assert_eq!(
        seen(&mut rig, back, VERSION),
        ["suback", "artifacts/root keys qos 0 id 0 retain"]
    );
}

#[test]
fn qos_0_waits_behind_retained_values_but_not_for_long() {
    for (waits_us, all_come) in [(0, true), (3_600_000_000, false)] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        // More than fits into the buffer of a connection, before and after.
        let publisher = retain(&mut rig, 400, 1000);
        let reader = rig.connect(ConnectFields::new(VERSION, "reader"));
        let one = [Subscription {
            filter: "#",
            options: SubscriptionOptions::new(QoS::AtMostOnce),
        }];
        rig.feed(reader, |out| {
            encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one)
        });
        rig.turn();
        assert!(
            session_of(&rig, reader).has_pending_retained(),
            "it does not fit"
        );
        // The log has its own clock.
        let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
        let first = telemetry.read(Offset(0), 1).expect("a sound log");
        rig.now.wall_us = first[0].record(0).time_us;
        let filling = "x".repeat(1000);
        for n in 0..600 {
            say(
                &mut rig,
                publisher,
                "live",
                false,
                &format!("{n} {filling}"),
            );
        }
        assert_eq!(rig.engine.env.metrics.mqtt.deliveries_dropped.get(), 0);
        rig.now.wall_us += waits_us;
        let got = take_all(&mut rig, reader);
        let (retained, live) = got.split_at(400);
        assert!(retained.iter().all(|text| text.starts_with("r/")));
        assert_eq!(live.len() == 600, all_come, "{}", live.len());
        assert!(!live.is_empty(), "what there is room for comes");
        assert!(
            session_of(&rig, reader).behind.is_empty(),
            "it is live again"
        );
        say(&mut rig, publisher, "live", false, "now");
        assert_eq!(take_all(&mut rig, reader), ["now"]);
    }
}

#[test]
fn a_subscription_that_ends_owes_nothing_and_what_waited_for_it_goes_on() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = retain(&mut rig, 30, 0);
    let slow = slow_client(&mut rig);
    subscribe_to(&mut rig, slow, "other", QoS::AtLeastOnce);
    subscribe_to(&mut rig, slow, "r/#", QoS::AtLeastOnce);
    say(&mut rig, publisher, "other", false, "waits");
    rig.feed(slow, |out| {
        encode::unsubscribe(out, VERSION, PacketId::FIRST, &[], &["r/#"]);
    });
    let got = take_all(&mut rig, slow);
    let (sent, last) = got.split_at(got.len() - 1);
    assert!(sent.iter().all(|text| text.starts_with("r/")), "{got:?}");
    assert_eq!((sent.len(), last), (10, &["waits".to_owned()][..]));
    assert!(session_of(&rig, slow).behind.is_empty());
}
