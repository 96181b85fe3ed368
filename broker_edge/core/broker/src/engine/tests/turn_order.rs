//! What happens in one turn, and in which order: refusals, closed connections, takeovers, and what they leave to
//! others.

use headwater_log::{Partition, PartitionState};
use headwater_mqtt::encode::WillFields;

use super::full_queue::{fill_disk, free_disk};
use super::member::{GROUP, Member, Publisher, settle_disk};
use super::own_records::{TABLE, stage_as};
use super::qos2::{LASTS, answer, lasting, publish};
use super::resumed::{seen, taken};
use super::stored_state::assert_next;
use super::*;

const V5: Version = Version::V5;

fn telemetry(rig: &Rig) -> Partition {
    rig.log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone()
}

/// One PUBLISH of QoS 1.
fn encode_publish(out: &mut Vec<u8>, topic: &str, id: u16) {
    let fields = PublishFields {
        version: V5,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic,
        packet_id: PacketId::new(id),
        properties: &[],
        extra: &[],
    };
    fields.encode(out, b"x").expect("a small packet");
}

#[test]
fn a_publish_that_goes_into_the_append_after_a_refused_one_is_acknowledged() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = rig.connect(ConnectFields::new(V5, "c"));
    let partition = telemetry(&rig);
    fill_disk(&mut rig, &partition);
    rig.feed(key, |out| encode_publish(out, "first", 1));
    // Now the table of topics is full, so the second publish needs another append.
    stage_as(&mut rig, TABLE - 1, |n| {
        (format!("own/{n}"), "c".to_owned())
    });
    assert_eq!(rig.sent(key, V5), [""; 0]);
    rig.feed(key, |out| encode_publish(out, "second", 2));
    assert_eq!(rig.sent(key, V5), ["refused QuotaExceeded"]);
    free_disk(&mut rig, &partition);
    assert_eq!(rig.packets(key, V5, 1), ["puback 2"]);
}

#[test]
fn a_repeat_over_the_receive_maximum_gets_its_pubrec_before_the_disconnect() {
    let dir = dir();
    let mut settings = Settings::default();
    settings.mqtt.receive_maximum = 2;
    let mut rig = Rig::open_with_settings(LogConfig::new(dir.path()), 1 << 20, settings);
    let before = rig.connect(lasting(V5, "c", &LASTS));
    publish(&mut rig, before, V5, 1, "t", "1");
    assert_next(&mut rig, before, "Pubrec");
    rig.engine.remove(before);
    // A publish of an earlier connection counts only when it is repeated.
    let key = rig.connect(lasting(V5, "c", &LASTS));
    for id in [2, 3] {
        publish(&mut rig, key, V5, id, "t", "x");
        assert_next(&mut rig, key, "Pubrec");
    }
    publish(&mut rig, key, V5, 1, "t", "1");
    let told = rig.sent(key, V5);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("Pubrec") && told[0].contains("PacketId(1)"),
        "{told:?}"
    );
    assert_eq!(told[1], "disconnect ReceiveMaximumExceeded");
    assert_eq!(rig.engine.take_closed().last(), Some(&key));
}

#[test]
fn connect_and_subscribe_in_one_read_are_answered_in_order_and_begin_at_the_live_position() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    rig.publish_to("t", true, publisher, V5, 1, "kept");
    assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
    let key = rig.engine.open(crate::peer::Peer::nobody());
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    rig.feed(key, |out| {
        encode::connect(out, &ConnectFields::new(V5, "c"));
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one);
        encode::pingreq(out);
    });
    for (_, session) in rig.engine.clients.sessions() {
        // It is live everywhere and is never stored.
        let held = session.subscriptions.iter();
        assert!(held.map(|held| held.since.len()).all(|len| len == 0));
    }
    assert_eq!(
        rig.packets(key, V5, 4),
        ["connack false", "suback", "Pingresp", "publish kept"]
    );
    rig.publish(publisher, V5, 2, "new");
    assert_eq!(rig.packets(key, V5, 1), ["publish new"]);
    settle_disk(&mut rig, &mut []);
    assert_eq!(rig.sent(key, V5), [""; 0]);
}

#[test]
fn a_connection_that_closes_when_its_partition_settles_gets_no_delivery_of_that_turn() {
    let dir = dir();
    let mut config = LogConfig::new(dir.path());
    let mut classes = config.classes.iter_mut();
    let control = classes.find(|class| class.class == Class::Control);
    control.expect("there by default").filters = vec!["t".to_owned()];
    let settings = Settings {
        inline_publishers_max: 0,
        ..Settings::default()
    };
    let mut rig = Rig::open_with_settings(config, 1 << 20, settings);
    let key = rig.connect(lasting(V5, "c", &LASTS));
    rig.subscribe(key, V5);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    // Whoever gets this topic is cached from now on.
    rig.publish(publisher, V5, 1, "early");
    assert_eq!(rig.packets(key, V5, 1), ["publish early"]);
    answer(&mut rig, key, V5, 1, encode::puback);
    assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
    let control = rig.log.by_name("control-0").expect("there").clone();
    let telemetry = telemetry(&rig);
    rig.gate.set(Sync::Hold);
    // With a publish of QoS 2, acknowledgements go before deliveries.
    publish(&mut rig, publisher, V5, 2, "t", "late");
    rig.publish_to("u", false, key, V5, 1, "own");
    // Not by a turn, which would deliver what is synced before it ends.
    for partition in [&control, &telemetry] {
        rig.append(partition);
    }
    rig.gate.set(Sync::Fail);
    while !matches!(telemetry.state(), PartitionState::Stopped(_))
        || control.high_watermark() < control.next_offset()
    {
        rig.wait_for_disk();
    }
    assert_eq!(rig.sent(key, V5), [""; 0]);
    rig.turn();
    assert_eq!(rig.engine.take_closed(), [key]);
    assert_eq!(rig.sent(key, V5), ["disconnect UnspecifiedError"]);
    assert!(rig.sent(publisher, V5)[0].starts_with("Pubrec"));
    rig.engine.remove(key);
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &lasting(V5, "c", &LASTS)));
    let mut told = Vec::new();
    while told.len() < 2 {
        rig.turn();
        told.extend(taken(&mut rig, key, V5));
        rig.wait_for_disk();
    }
    assert_eq!(told, ["connack true", "t late qos 1 id 2"]);
}

/// How the first connection ends, in the turn in which the next one of the same client begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Lost,
    SaysGoodbye,
    TakenOver,
}

/// A member of the group that has not acknowledged a record of the group and one of its own, and leaves a will.
fn member_with_a_will(rig: &mut Rig) -> ConnKey {
    let mut fields = lasting(V5, "a", &LASTS);
    fields.will = Some(WillFields {
        topic: "w",
        payload: b"gone",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: &[],
    });
    let key = rig.connect(fields);
    for filter in [GROUP, "own"] {
        subscribe(rig, key, filter);
    }
    key
}

fn subscribe(rig: &mut Rig, key: ConnKey, filter: &str) {
    let one = [Subscription {
        filter,
        options: SubscriptionOptions::new(QoS::AtLeastOnce),
    }];
    rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one)
    });
    assert_eq!(rig.packets(key, V5, 1), ["suback"]);
}

fn assert_handed_over(end: End, clean: bool) {
    let case = format!("{end:?}, clean {clean}");
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let watcher = rig.connect(ConnectFields::new(V5, "watcher"));
    subscribe(&mut rig, watcher, "w");
    let old = member_with_a_will(&mut rig);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 1, QoS::AtLeastOnce);
    rig.publish_to("own", false, publisher.key, V5, 9, "mine");
    let before = seen(&mut rig, old, V5);
    assert_eq!(before, ["t 0 qos 1 id 1", "own mine qos 1 id 2"]);
    let mut other = Member::new("m", V5);
    other.connect(&mut rig, false, 10);
    other.subscribe(&mut rig, QoS::AtLeastOnce);
    settle_disk(&mut rig, &mut [&mut other]);
    assert_eq!(other.got, [""; 0], "{case}");

    match end {
        End::Lost => rig.engine.lost(old),
        End::SaysGoodbye => {
            let reason = ReasonCode::DisconnectWithWill;
            rig.feed(old, |out| encode::disconnect(out, V5, reason, &[]));
        }
        End::TakenOver => {}
    }
    let new = rig.engine.open(crate::peer::Peer::nobody());
    let mut fields = lasting(V5, "a", &LASTS);
    fields.clean_start = clean;
    rig.feed(new, |out| encode::connect(out, &fields));
    rig.turn();
    let told: &[&str] = match end {
        End::TakenOver => &["disconnect SessionTakenOver"],
        _ => &[],
    };
    assert_eq!(rig.sent(old, V5), told, "{case}");
    assert_eq!(rig.engine.take_closed(), [old], "{case}");
    rig.engine.remove(old);
    let told: &[&str] = match clean {
        true => &["connack false"],
        false => &["connack true", "own mine qos 1 id 2 dup"],
    };
    assert_eq!(seen(&mut rig, new, V5), told, "{case}");
    settle_disk(&mut rig, &mut [&mut other]);
    assert_eq!(other.got, ["0"], "{case}: the group's record");
    assert_eq!(rig.sent(watcher, V5), ["publish gone"], "{case}: the will");
    // Only the one that stayed in the group gets its next records.
    other.ack(&mut rig, 1);
    publisher.publish(&mut rig, 4, QoS::AtLeastOnce);
    settle_disk(&mut rig, &mut [&mut other]);
    let of_new = seen(&mut rig, new, V5).len();
    let expected = if clean { 0 } else { 2 };
    assert_eq!(
        (of_new, other.got.len()),
        (expected, 5 - expected),
        "{case}"
    );
}

#[test]
fn a_client_that_connects_in_the_turn_in_which_its_connection_ends_takes_over_what_it_may() {
    for end in [End::Lost, End::SaysGoodbye, End::TakenOver] {
        for clean in [false, true] {
            assert_handed_over(end, clean);
        }
    }
}

#[test]
fn a_clean_stop_publishes_wills_and_stores_every_session_as_disconnected() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let lasts = [Property::SessionExpiryInterval(60)];
    let delays = [(0, "now"), (30, "later")]
        .map(|(delay_s, text)| ([Property::WillDelayInterval(delay_s)], text));
    for (delay, text) in &delays {
        let mut fields = lasting(V5, text, &lasts);
        fields.will = Some(WillFields {
            topic: "t",
            payload: text.as_bytes(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: delay,
        });
        rig.connect(fields);
    }
    rig.engine.begin(rig.now);
    rig.engine.close_all();
    rig.engine.commit();
    rig.engine.store_all();
    rig.crash();

    let at = |wall_s: i64| {
        let wall_us = rig::START_US + wall_s * 1_000_000;
        Rig::open_at(
            wall_us,
            LogConfig::new(dir.path()),
            1 << 20,
            Settings::default(),
        )
    };
    // The time without a broker counts, for the delay of a will and for the expiry of a session.
    let mut rig = at(29);
    rig.pass_time(0);
    assert_eq!(qos2::texts_of(&rig, "telemetry-0"), ["now"]);
    rig.crash();
    let mut rig = at(31);
    rig.pass_time(0);
    settle_disk(&mut rig, &mut []);
    assert_eq!(qos2::texts_of(&rig, "telemetry-0"), ["now", "later"]);
    rig.crash();
    for (wall_s, client_id, is_present) in [(59, "now", true), (61, "later", false)] {
        let mut rig = at(wall_s);
        rig.pass_time(0);
        let key = rig.engine.open(crate::peer::Peer::nobody());
        let fields = lasting(V5, client_id, &lasts);
        rig.feed(key, |out| encode::connect(out, &fields));
        let connack = rig.packets(key, V5, 1);
        assert_eq!(connack, [format!("connack {is_present}")], "at {wall_s} s");
        rig.crash();
    }
}

/// What a client is sent in one turn that subscribes to what it publishes; `appends` are the QoS of its publishes, and
/// all of them become durable together.
fn told_of_own(appends: &[&[QoS]]) -> Vec<String> {
    let dir = dir();
    let settings = Settings {
        inline_publishers_max: 0,
        ..Settings::default()
    };
    let mut rig = Rig::open_with_settings(LogConfig::new(dir.path()), 1 << 20, settings);
    let key = rig.connect(ConnectFields::new(V5, "c"));
    let one = [Subscription {
        filter: "#",
        options: SubscriptionOptions::new(QoS::ExactlyOnce),
    }];
    rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one);
    });
    assert_eq!(rig.packets(key, V5, 1), ["suback"]);
    rig.gate.set(Sync::Hold);
    let mut id = 0;
    for publishes in appends {
        for qos in *publishes {
            id += 1;
            let text = format!("of {}", qos.as_u8());
            match qos {
                QoS::ExactlyOnce => publish(&mut rig, key, V5, id, "t", &text),
                _ => rig.publish_to("t", false, key, V5, id, &text),
            }
        }
        rig.turn();
        rig.gate.wait_until_held();
    }
    assert_eq!(taken(&mut rig, key, V5), [""; 0]);
    rig.gate.set(Sync::Pass);
    let telemetry = telemetry(&rig);
    while telemetry.high_watermark() < telemetry.next_offset() {
        rig.wait_for_disk();
    }
    rig.turn();
    taken(&mut rig, key, V5)
}

#[test]
fn acknowledgements_go_before_deliveries_in_a_turn_whose_first_append_has_qos_2() {
    let (one, two) = (QoS::AtLeastOnce, QoS::ExactlyOnce);
    let (of_one, of_two) = ("t of 1 qos 1", "t of 2 qos 2");
    let cases: [(&[&[QoS]], [&str; 4]); 4] = [
        (&[&[one, two]], ["puback 1", "pubrec 2", of_one, of_two]),
        (&[&[two, one]], ["pubrec 1", "puback 2", of_two, of_one]),
        (&[&[two], &[one]], ["pubrec 1", "puback 2", of_two, of_one]),
        // The first append that waits decides for all of them.
        (&[&[one], &[two]], [of_one, of_two, "puback 1", "pubrec 2"]),
    ];
    for (appends, expected) in cases {
        let told = told_of_own(appends);
        let begins = |(told, expected): (&String, &str)| told.starts_with(expected);
        let is_right = told.len() == 4 && told.iter().zip(expected).all(begins);
        assert!(is_right, "{appends:?}: {told:?}");
    }
}

#[test]
fn nothing_follows_the_disconnect_of_a_connection_that_waited_for_a_partition_that_stopped() {
    let dir = dir();
    let settings = Settings {
        inline_publishers_max: 0,
        ..Settings::default()
    };
    let mut rig = Rig::open_with_settings(LogConfig::new(dir.path()), 1 << 20, settings);
    let key = rig.connect(lasting(V5, "c", &LASTS));
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::ExactlyOnce),
    }];
    rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one)
    });
    assert_eq!(rig.packets(key, V5, 1), ["suback"]);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    publish(&mut rig, publisher, V5, 1, "t", "x");
    assert_eq!(rig.packets(key, V5, 1), ["publish x"]);
    let telemetry = telemetry(&rig);
    let internal = rig.log.partitions()[0].clone();
    // The PUBREL is due with the state, in the turn that closes the connection because of its own publish.
    rig.state_gate.set(Sync::Hold);
    answer(&mut rig, key, V5, 1, encode::pubrec);
    rig.turn();
    rig.gate.set(Sync::Hold);
    rig.publish_to("u", false, key, V5, 1, "own");
    rig.append(&telemetry);
    rig.gate.set(Sync::Fail);
    rig.state_gate.set(Sync::Pass);
    while !matches!(telemetry.state(), PartitionState::Stopped(_))
        || internal.high_watermark() < internal.next_offset()
    {
        rig.wait_for_disk();
    }
    assert_eq!(rig.sent(key, V5), [""; 0]);
    rig.turn();
    assert_eq!(rig.engine.take_closed(), [key]);
    assert_eq!(rig.sent(key, V5), ["disconnect UnspecifiedError"]);
}
