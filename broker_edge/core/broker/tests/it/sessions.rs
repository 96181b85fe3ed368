//! Sessions against a real broker: offsets in the log instead of queues, with slow clients, disconnected clients and
//! restarts.

use std::io::Write;

use crate::common::{Client, Got, start, start_with};
use headwater_mqtt::encode::ConnectFields;
use headwater_mqtt::packet::subscribe::SubscriptionOptions;
use headwater_mqtt::{Property, QoS, ReasonCode, Version};

const BOTH: [Version; 2] = [Version::V311, Version::V5];

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[test]
fn a_persistent_session_gets_what_came_while_it_was_away_but_not_qos_0() {
    let dir = dir();
    let broker = start(dir.path());
    for version in BOTH {
        let id = format!("away-{version}");
        let (mut client, present) = Client::resume(broker.mqtt_address(), version, &id);
        assert!(!present);
        client.subscribe("devices/d/+", 1);
        client.disconnect();
        let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
        publisher.publish("devices/d/1", "one");
        publisher.send_publish("devices/d/1", b"lossy", 0, false, &[]);
        publisher.publish("devices/d/2", "two");
        let (mut client, present) = Client::resume(broker.mqtt_address(), version, &id);
        assert!(present);
        assert_eq!(client.texts(2), ["one", "two"]);
        client.expect_silence();
        publisher.publish("devices/d/1", "live");
        assert_eq!(client.message().text(), "live");
    }
}

#[test]
fn who_was_away_gets_the_topics_it_names_out_of_batches_of_many_and_in_order() {
    const TOPICS: usize = 50;
    let dir = dir();
    let broker = start(dir.path());
    // A window of two: each batch is read many times.
    let properties = [
        Property::ReceiveMaximum(2),
        Property::SessionExpiryInterval(600),
    ];
    let back = |id| {
        let mut fields = ConnectFields::new(Version::V5, id);
        fields.clean_start = false;
        fields.properties = &properties;
        Client::connect_with(broker.mqtt_address(), fields).0
    };
    let sessions: [(&str, &[usize]); 3] =
        [("one", &[7]), ("several", &[41, 3, 999]), ("none", &[998])];
    for (id, topics) in sessions {
        let mut client = back(id);
        for topic in topics {
            client.subscribe(&format!("devices/d/{topic:02}"), 1);
        }
        client.disconnect();
    }
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V311, "p");
    let mut packets = Vec::new();
    for n in 0..4 * TOPICS {
        let mut body = format!("\0\x0cdevices/d/{:02}", n % TOPICS).into_bytes();
        body.extend_from_slice(&(n as u16 + 1).to_be_bytes());
        body.extend_from_slice(n.to_string().as_bytes());
        packets.extend_from_slice(&[0x32, body.len() as u8]);
        packets.extend_from_slice(&body);
    }
    publisher.stream.write_all(&packets).expect("it is read");
    publisher.publish("devices/d/end", "end");
    for (id, topics) in sessions {
        let mut client = back(id);
        let wanted = (0..4 * TOPICS).filter(|n| topics.contains(&(n % TOPICS)));
        let wanted: Vec<String> = wanted.map(|n| n.to_string()).collect();
        assert_eq!(client.texts(wanted.len()), wanted, "{id}");
        client.expect_silence();
    }
}

#[test]
fn a_session_outlives_a_restart_with_its_subscriptions_and_what_it_has_not_acknowledged() {
    let dir = dir();
    let mut broker = start(dir.path());
    for version in BOTH {
        let id = format!("c-{version}");
        let (mut client, _) = Client::resume(broker.mqtt_address(), version, &id);
        client.subscribe("t/#", 1);
        let mut publisher = Client::connect(broker.mqtt_address(), version, "p");
        publisher.publish("t/a", "acked");
        publisher.publish("t/a", "unacked");
        assert_eq!(client.message().text(), "acked");
        assert_eq!(client.message_unacked().text(), "unacked");
        client.disconnect();
        broker.shutdown();
        broker = start(dir.path());
        let mut publisher = Client::connect(broker.mqtt_address(), version, "p");
        publisher.publish("t/b", "after");
        let (mut client, present) = Client::resume(broker.mqtt_address(), version, &id);
        assert!(present);
        assert_eq!(client.texts(2), ["unacked", "after"]);
        client.unsubscribe("t/#");
        client.disconnect();
        broker.shutdown();
        broker = start(dir.path());
        let (mut client, present) = Client::resume(broker.mqtt_address(), version, &id);
        assert!(present);
        let mut publisher = Client::connect(broker.mqtt_address(), version, "p");
        publisher.publish("t/b", "nobody");
        client.expect_silence();
    }
}

#[test]
fn unacknowledged_deliveries_come_again_with_dup_and_the_same_packet_ids() {
    let dir = dir();
    let broker = start(dir.path());
    let (mut client, _) = Client::resume(broker.mqtt_address(), Version::V311, "c");
    client.subscribe("t", 1);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V311, "p");
    for text in ["0", "1", "2"] {
        publisher.publish("t", text);
    }
    let first: Vec<_> = (0..3).map(|_| client.message_unacked()).collect();
    client.ack(&first[1]);
    client.expect_silence();
    drop(client);
    let (mut client, _) = Client::resume(broker.mqtt_address(), Version::V311, "c");
    for expected in [&first[0], &first[2]] {
        let again = client.message_unacked();
        assert_eq!(
            (again.id, &again.payload, again.dup),
            (expected.id, &expected.payload, true)
        );
        client.ack(&again);
    }
    publisher.publish("t", "3");
    assert!(!client.message().dup);
}

#[test]
fn a_clean_start_forgets_the_session_and_a_session_ends_when_it_expires() {
    let dir = dir();
    let broker = start(dir.path());
    let (mut client, _) = Client::resume(broker.mqtt_address(), Version::V5, "c");
    client.subscribe("t", 1);
    client.disconnect();
    Client::connect(broker.mqtt_address(), Version::V5, "c").disconnect();
    let (_, present) = Client::resume(broker.mqtt_address(), Version::V5, "c");
    assert!(!present);

    let soon = [Property::SessionExpiryInterval(1)];
    let mut fields = ConnectFields::new(Version::V5, "soon");
    (fields.clean_start, fields.properties) = (false, &soon);
    Client::connect_with(broker.mqtt_address(), fields)
        .0
        .disconnect();
    let deadline = std::time::Instant::now() + crate::common::DEADLINE;
    loop {
        // Each check resumes or creates the session; an expired one is created anew, without subscriptions.
        std::thread::park_timeout(std::time::Duration::from_millis(1100));
        let (client, present) = Client::connect_with(broker.mqtt_address(), fields);
        client.disconnect();
        if !present {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the session never expired"
        );
    }
}

#[test]
fn a_slow_subscriber_holds_nobody_up_and_misses_nothing() {
    let dir = dir();
    let broker = start_with(dir.path(), |config| {
        config.mqtt.out_buffer_bytes.0 = 16 << 10
    });
    let mut slow = Client::connect(broker.mqtt_address(), Version::V311, "slow");
    slow.subscribe("t", 1);
    let mut quick = Client::connect(broker.mqtt_address(), Version::V311, "quick");
    quick.subscribe("t", 1);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V311, "p");
    let text = |n: usize| format!("{n}:{}", "x".repeat(4096));
    for n in 0..2000 {
        publisher.publish("t", text(n));
        assert!(
            quick.message().text() == text(n),
            "the quick one gets each as it comes"
        );
    }
    for n in 0..2000 {
        assert!(
            slow.message().text() == text(n),
            "message {n} of the slow one"
        );
    }
    publisher.publish("t", "live again");
    assert_eq!(slow.message().text(), "live again");
}

#[test]
fn a_small_receive_maximum_is_kept_and_everything_still_arrives_in_order() {
    let dir = dir();
    let broker = start(dir.path());
    let two = [Property::ReceiveMaximum(2)];
    let mut fields = ConnectFields::new(Version::V5, "narrow");
    fields.properties = &two;
    let (mut narrow, _) = Client::connect_with(broker.mqtt_address(), fields);
    narrow.subscribe("devices/d/+", 1);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    for n in 0..50 {
        publisher.publish(&format!("devices/d/{}", n % 3), n.to_string());
    }
    let first = narrow.message_unacked();
    let second = narrow.message_unacked();
    narrow.expect_silence();
    narrow.ack(&second);
    let third = narrow.message_unacked();
    narrow.expect_silence();
    narrow.ack(&first);
    narrow.ack(&third);
    let mut texts: Vec<String> = [first, second, third]
        .iter()
        .map(|message| message.text().to_owned())
        .collect();
    texts.extend(narrow.texts(47));
    assert_eq!(texts, numbers(0..50));
}

#[test]
fn a_publisher_on_two_partitions_is_acknowledged_for_both() {
    let dir = dir();
    let broker = start(dir.path());
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "c");
    let asked = [Property::UserProperty {
        key: "stream-ack",
        value: "1",
    }];
    let mut fields = ConnectFields::new(Version::V5, "located");
    fields.properties = &asked;
    let (mut located, _) = Client::connect_with(broker.mqtt_address(), fields);
    client.publish("x", "first");
    located.send_publish("x", b"a", 1, false, &[]);
    located.send_publish("devices/d/actions", b"b", 1, false, &[]);
    let mut places = Vec::new();
    for _ in 0..2 {
        let Got::Puback { properties, .. } = located.next() else {
            panic!("expected a PUBACK")
        };
        assert_eq!(
            properties[1],
            ("stream-durability".to_owned(), "synced".to_owned())
        );
        places.push(properties[0].1.clone());
    }
    assert!(
        places[0].starts_with("telemetry-") && places[1] == "control-0:0",
        "{places:?}"
    );
}

#[test]
fn a_subscription_begins_at_the_offset_it_names_and_goes_on_live() {
    let dir = dir();
    let broker = start(dir.path());
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    for n in 0..40 {
        publisher.publish("devices/d/telemetry", n.to_string());
    }
    let at = |value| {
        [Property::UserProperty {
            key: "stream-offset",
            value,
        }]
    };
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let mut early = Client::connect(broker.mqtt_address(), Version::V5, "early");
    let (codes, report) = early.subscribe_with("devices/+/telemetry", options, &at("earliest"));
    assert_eq!(codes, [ReasonCode::GrantedQos1]);
    assert!(
        report
            .iter()
            .any(|(key, value)| key == "stream-start" && value.contains("telemetry-0:0")),
        "{report:?}"
    );
    let mut place = String::new();
    for n in 0..40 {
        let message = early.message();
        assert_eq!(message.text(), n.to_string());
        assert!(message.property("ts").is_some());
        if n == 30 {
            place = message
                .property("stream-offset")
                .expect("an offset")
                .to_owned();
        }
    }
    publisher.publish("devices/d/telemetry", "40");
    let live = early.message();
    assert_eq!(live.text(), "40");
    assert!(
        live.property("stream-offset").is_some(),
        "also once it has caught up"
    );

    let mut later = Client::connect(broker.mqtt_address(), Version::V5, "later");
    later.subscribe_with("devices/d/telemetry", options, &at(&place));
    assert_eq!(later.texts(11), numbers(30..41));

    let mut old = Client::connect(broker.mqtt_address(), Version::V311, "old");
    for spelling in ["$at+", "$at-offset"] {
        old.subscribe(&format!("{spelling}/{place}/devices/d/telemetry"), 1);
        let message = old.message();
        assert_eq!(message.topic, format!("$at/{place}/devices/d/telemetry"));
        assert_eq!(old.texts(10), numbers(31..41));
        old.unsubscribe("devices/d/telemetry");
    }

    let mut wrong = Client::connect(broker.mqtt_address(), Version::V5, "wrong");
    let (codes, report) =
        wrong.subscribe_with("devices/d/telemetry", options, &at("telemetry-0:4000000"));
    assert_eq!(codes, [ReasonCode::TopicFilterInvalid]);
    assert!(
        report
            .iter()
            .any(|(key, value)| key == "reason" && value.contains("log starts at 0")),
        "{report:?}"
    );
    let (codes, _) = wrong.subscribe_with("devices/d/telemetry", options, &at("yesterday"));
    assert_eq!(codes, [ReasonCode::ImplementationSpecificError]);
}

#[test]
fn the_position_counts_only_when_the_session_does_not_hold_the_subscription_yet() {
    let dir = dir();
    let mut broker = start(dir.path());
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V311, "p");
    for n in 0..5 {
        publisher.publish("t", n.to_string());
    }
    let (mut client, _) = Client::resume(broker.mqtt_address(), Version::V311, "c");
    client.subscribe("$at/earliest/t", 1);
    assert_eq!(client.texts(5), numbers(0..5));
    client.disconnect();
    broker.shutdown();
    broker = start(dir.path());
    let (mut client, present) = Client::resume(broker.mqtt_address(), Version::V311, "c");
    assert!(present);
    client.subscribe("$at/earliest/t", 1);
    client.expect_silence();
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V311, "p");
    publisher.publish("t", "5");
    assert_eq!(client.message().text(), "5");
}

#[test]
fn a_command_that_its_device_acknowledges_leaves_a_receipt() {
    let dir = dir();
    let broker = start(dir.path());
    let mut watcher = Client::connect(broker.mqtt_address(), Version::V311, "watcher");
    watcher.subscribe("$receipts", 1);
    let mut curious = Client::connect(broker.mqtt_address(), Version::V311, "curious");
    curious.subscribe("devices/+/actions", 1);
    let (mut device, _) = Client::resume(broker.mqtt_address(), Version::V311, "d1");
    device.subscribe("devices/d1/actions", 1);
    let mut engine = Client::connect(broker.mqtt_address(), Version::V311, "engine");
    engine.publish("devices/d1/actions", "reboot");
    assert_eq!(
        curious.message().text(),
        "reboot",
        "somebody else's acknowledgement is no receipt"
    );
    watcher.expect_silence();
    assert_eq!(device.message().text(), "reboot");
    let receipt = watcher.message();
    let value: serde_json::Value = serde_json::from_slice(&receipt.payload).expect("JSON");
    assert_eq!(value["client_id"], "d1");
    assert_eq!(value["topic"], "devices/d1/actions");
    assert_eq!(value["key"], "d1");
    assert_eq!(value["name"], "control-0");
    assert_eq!(value["offset"], 0);
    watcher.expect_silence();
}

#[test]
fn a_broker_without_a_reader_keeps_its_bounds_when_one_client_floods_it() {
    let dir = dir();
    let broker = start_with(dir.path(), |config| config.log.queue_bytes.0 = 256 << 10);
    let mut flood = Client::connect(broker.mqtt_address(), Version::V311, "flood");
    let mut packets = Vec::new();
    let body = [&b"\x00\x01t"[..], &[b'x'; 1000]].concat();
    for _ in 0..8000 {
        packets.extend_from_slice(&[0x30, 0xeb, 0x07]);
        packets.extend_from_slice(&body);
    }
    flood
        .stream
        .write_all(&packets)
        .expect("the broker reads in the end");
    flood.publish("t", "last");
    let mut reader = Client::connect(broker.mqtt_address(), Version::V5, "reader");
    let at = [Property::UserProperty {
        key: "stream-offset",
        value: "earliest",
    }];
    reader.subscribe_with("t", SubscriptionOptions::new(QoS::AtLeastOnce), &at);
    for n in 0..8000 {
        assert_eq!(reader.message().payload.len(), 1000, "record {n}");
    }
    assert_eq!(reader.message().text(), "last");
}
