//! MQTT against a real broker over TCP: acknowledgements, retained messages, wills, sessions, take-over, limits.

use std::collections::BTreeMap;

use crate::common::{Client, Got, start, start_with};
use headwater_mqtt::encode::{self, ConnectFields, WillFields};
use headwater_mqtt::packet::subscribe::{RetainHandling, SubscriptionOptions};
use headwater_mqtt::{Property, QoS, ReasonCode, Version};

const BOTH: [Version; 2] = [Version::V311, Version::V5];

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn will<'a>(topic: &'a str, properties: &'a [Property<'a>]) -> WillFields<'a> {
    WillFields {
        topic,
        payload: b"gone",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties,
    }
}

#[test]
fn a_publish_reaches_every_matching_subscriber_once_with_the_lower_qos() {
    let dir = dir();
    let broker = start(dir.path());
    for version in BOTH {
        let mut exact = Client::connect(broker.mqtt_address(), version, "exact");
        let mut wild = Client::connect(broker.mqtt_address(), version, "wild");
        exact.subscribe("a/b", 0);
        wild.subscribe("a/#", 0);
        wild.subscribe("+/b", 1);
        let mut publisher = Client::connect(broker.mqtt_address(), version, "publisher");
        publisher.publish("a/b", "one");
        publisher.publish("a/c", "two");
        let first = exact.message();
        assert_eq!(
            (first.topic.as_str(), first.text(), first.qos, first.retain),
            ("a/b", "one", 0, false)
        );
        assert_eq!(
            wild.texts(2),
            ["one", "two"],
            "overlapping filters deliver once"
        );
        exact.expect_silence();
        wild.expect_silence();
    }
}

#[test]
fn acknowledgements_leave_in_order_of_arrival_refusals_included() {
    let dir = dir();
    let broker = start(dir.path());
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "c");
    let mut sent = Vec::new();
    for n in 0..30 {
        let topic = match n % 3 {
            0 => "devices/d/telemetry",
            1 => "devices/d/actions",
            _ => "$forbidden",
        };
        sent.push((client.send_publish(topic, b"x", 1, false, &[]), n % 3 == 2));
    }
    for (id, forbidden) in sent {
        match client.next() {
            Got::Puback {
                id: acked, reason, ..
            } => {
                assert_eq!(acked, id);
                assert_eq!(reason == ReasonCode::NotAuthorized, forbidden, "{reason:?}");
            }
            other => panic!("expected a PUBACK, got {other:?}"),
        }
    }
}

#[test]
fn properties_travel_unchanged_and_in_order_and_expiry_counts_down() {
    let dir = dir();
    let broker = start(dir.path());
    let mut subscriber = Client::connect(broker.mqtt_address(), Version::V5, "s");
    subscriber.subscribe_with(
        "t",
        SubscriptionOptions::new(QoS::AtLeastOnce),
        &[Property::SubscriptionIdentifier(7)],
    );
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    let user = |key, value| Property::UserProperty { key, value };
    publisher.publish_with(
        "t",
        "x",
        false,
        &[
            user("b", "1"),
            Property::MessageExpiryInterval(100),
            user("a", "2"),
            user("b", "3"),
        ],
    );
    let message = subscriber.message();
    let expected =
        [("b", "1"), ("a", "2"), ("b", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(message.properties, expected);
    assert_eq!(message.ids, [7]);
    assert!(
        message
            .expiry_s
            .is_some_and(|left| (90..=100).contains(&left)),
        "{:?}",
        message.expiry_s
    );
}

#[test]
fn topic_aliases_stand_for_their_topic_and_unknown_ones_end_the_connection() {
    let dir = dir();
    let broker = start(dir.path());
    let mut subscriber = Client::connect(broker.mqtt_address(), Version::V311, "s");
    subscriber.subscribe("long/topic", 1);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    publisher.publish_with("long/topic", "named", false, &[Property::TopicAlias(3)]);
    publisher.publish_with("", "aliased", false, &[Property::TopicAlias(3)]);
    assert_eq!(subscriber.texts(2), ["named", "aliased"]);
    publisher.send_publish("", b"x", 1, false, &[Property::TopicAlias(4)]);
    assert_eq!(publisher.next(), Got::Disconnect(ReasonCode::ProtocolError));
    assert_eq!(publisher.next(), Got::Closed);
}

#[test]
fn retained_messages_reach_new_subscribers_and_outlive_a_restart_until_they_are_cleared() {
    let dir = dir();
    let mut broker = start(dir.path());
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    for (topic, text) in [
        ("r/1", "old"),
        ("r/1", "new"),
        ("r/2", "two"),
        ("r/3", "three"),
    ] {
        publisher.publish_with(topic, text, true, &[]);
    }
    publisher.publish_with("r/3", "", true, &[]);
    for version in BOTH {
        let mut subscriber = Client::connect(broker.mqtt_address(), version, "s");
        subscriber.subscribe("r/#", 1);
        let got: Vec<_> = (0..2)
            .map(|_| subscriber.message())
            .map(|m| (m.topic.clone(), m.text().to_owned(), m.retain))
            .collect();
        assert_eq!(
            got,
            [
                ("r/1".to_owned(), "new".to_owned(), true),
                ("r/2".to_owned(), "two".to_owned(), true)
            ]
        );
        subscriber.expect_silence();
        broker.shutdown();
        broker = start(dir.path());
    }
}

#[test]
fn many_retained_messages_come_once_each_to_a_client_that_takes_few_at_a_time() {
    const COUNT: usize = 10_000;
    let dir = dir();
    let broker = start(dir.path());
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    for first in (0..COUNT).step_by(500) {
        for n in first..first + 500 {
            publisher.send_publish(&format!("r/{n}"), b"old", 1, true, &[]);
        }
        for _ in 0..500 {
            assert!(matches!(publisher.next(), Got::Puback { .. }));
        }
    }
    let mut fields = ConnectFields::new(Version::V5, "slow");
    fields.properties = &[Property::ReceiveMaximum(10)];
    let (mut slow, _) = Client::connect_with(broker.mqtt_address(), fields);
    slow.subscribe("r/#", 1);
    // It has acknowledged nothing, so these have not been sent.
    publisher.publish_with("r/5000", "new", true, &[]);
    publisher.publish_with("r/6000", "", true, &[]);
    publisher.publish_with("r/7000", "live", false, &[]);
    let mut of_topic: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..COUNT + 1 {
        let message = slow.message();
        let text = format!("{} {}", message.text(), message.retain);
        of_topic.entry(message.topic).or_default().push(text);
    }
    slow.expect_silence();
    let mut take = |topic: &str| of_topic.remove(topic).unwrap_or_default();
    assert_eq!(take("r/5000"), ["new false"]);
    assert_eq!(take("r/6000"), [" false"]);
    assert_eq!(take("r/7000"), ["old true", "live false"]);
    assert_eq!(of_topic.len(), COUNT - 3);
    assert!(of_topic.values().all(|texts| *texts == ["old true"]));
}

#[test]
fn retain_handling_and_retain_as_published_are_honoured() {
    let dir = dir();
    let broker = start(dir.path());
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    publisher.publish_with("r", "kept", true, &[]);
    let mut subscriber = Client::connect(broker.mqtt_address(), Version::V5, "s");
    let with = |handling, as_published| {
        let mut options = SubscriptionOptions::new(QoS::AtLeastOnce);
        options.retain_handling = handling;
        options.retain_as_published = as_published;
        options
    };
    subscriber.subscribe_with("r", with(RetainHandling::DoNotSend, false), &[]);
    subscriber.expect_silence();
    subscriber.subscribe_with("r", with(RetainHandling::SendIfNew, false), &[]);
    subscriber.expect_silence();
    subscriber.subscribe_with("r", with(RetainHandling::Send, true), &[]);
    assert!(subscriber.message().retain);
    publisher.publish_with("r", "live", true, &[]);
    assert!(subscriber.message().retain, "retain as published");
    subscriber.subscribe_with("r", with(RetainHandling::DoNotSend, false), &[]);
    publisher.publish_with("r", "again", true, &[]);
    assert!(!subscriber.message().retain);
}

#[test]
fn no_local_keeps_a_clients_own_messages_from_it() {
    let dir = dir();
    let broker = start(dir.path());
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "c");
    let mut options = SubscriptionOptions::new(QoS::AtLeastOnce);
    options.no_local = true;
    client.subscribe_with("t", options, &[]);
    client.publish("t", "own");
    let mut other = Client::connect(broker.mqtt_address(), Version::V5, "o");
    other.publish("t", "other");
    assert_eq!(client.message().text(), "other");
}

#[test]
fn a_will_is_published_when_the_client_is_lost_and_not_when_it_says_goodbye() {
    let dir = dir();
    let broker = start(dir.path());
    let mut watcher = Client::connect(broker.mqtt_address(), Version::V311, "watcher");
    watcher.subscribe("will/+", 1);
    for version in BOTH {
        let mut fields = ConnectFields::new(version, "polite");
        fields.will = Some(will("will/polite", &[]));
        Client::connect_with(broker.mqtt_address(), fields)
            .0
            .disconnect();
        let mut fields = ConnectFields::new(version, "lost");
        fields.will = Some(will("will/lost", &[]));
        drop(Client::connect_with(broker.mqtt_address(), fields));
        assert_eq!(watcher.message().topic, "will/lost");
        watcher.expect_silence();
    }
}

#[test]
fn a_silent_client_loses_its_connection_after_its_keep_alive_and_its_will_is_sent() {
    let dir = dir();
    let broker = start(dir.path());
    let mut watcher = Client::connect(broker.mqtt_address(), Version::V311, "watcher");
    watcher.subscribe("will", 1);
    let mut fields = ConnectFields::new(Version::V5, "silent");
    fields.keep_alive_s = 1;
    fields.will = Some(will("will", &[]));
    let (mut silent, _) = Client::connect_with(broker.mqtt_address(), fields);
    assert_eq!(silent.next(), Got::Disconnect(ReasonCode::KeepAliveTimeout));
    assert_eq!(watcher.message().text(), "gone");
}

#[test]
fn a_delayed_will_is_dropped_when_the_client_is_back_and_sent_when_its_session_ends() {
    let dir = dir();
    let broker = start(dir.path());
    let mut watcher = Client::connect(broker.mqtt_address(), Version::V311, "watcher");
    watcher.subscribe("will", 1);
    let session = [Property::SessionExpiryInterval(60)];
    let delay = [Property::WillDelayInterval(60)];
    let mut fields = ConnectFields::new(Version::V5, "c");
    (fields.clean_start, fields.properties, fields.will) =
        (false, &session, Some(will("will", &delay)));
    drop(Client::connect_with(broker.mqtt_address(), fields));
    let (client, present) = Client::connect_with(broker.mqtt_address(), fields);
    assert!(present);
    watcher.expect_silence();
    drop(client);
    // A clean start ends the session and with it the will delay.
    let _fresh = Client::connect(broker.mqtt_address(), Version::V5, "c");
    assert_eq!(watcher.message().text(), "gone");
}

#[test]
fn a_second_connection_of_a_client_takes_the_session_over() {
    let dir = dir();
    let broker = start(dir.path());
    let (mut first, _) = Client::resume(broker.mqtt_address(), Version::V5, "c");
    first.subscribe("t", 1);
    let (mut second, present) = Client::resume(broker.mqtt_address(), Version::V5, "c");
    assert!(present);
    assert_eq!(first.next(), Got::Disconnect(ReasonCode::SessionTakenOver));
    assert_eq!(first.next(), Got::Closed);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V311, "p");
    publisher.publish("t", "x");
    assert_eq!(second.message().text(), "x");
}

#[test]
fn a_method_of_authentication_that_nobody_offers_is_refused_with_its_code() {
    let dir = dir();
    let broker = start(dir.path());
    let address = broker.mqtt_address();
    let refused = |fields: ConnectFields<'_>| {
        let mut client = Client::open(address, fields.version);
        client.send(|out| encode::connect(out, &fields));
        match client.next() {
            Got::Connack {
                accepted: false,
                code,
                ..
            } => {
                assert_eq!(client.next(), Got::Closed);
                code
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    };
    let method = [Property::AuthenticationMethod("SCRAM")];
    let mut fields = ConnectFields::new(Version::V5, "auth");
    fields.properties = &method;
    assert_eq!(refused(fields), ReasonCode::BadAuthenticationMethod.as_u8());
}

#[test]
fn a_client_without_an_id_is_given_one() {
    let dir = dir();
    let broker = start(dir.path());
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut client = Client::open(broker.mqtt_address(), Version::V5);
        client.send(|out| encode::connect(out, &ConnectFields::new(Version::V5, "")));
        let Got::Connack {
            accepted: true,
            properties,
            ..
        } = client.next()
        else {
            panic!("refused")
        };
        ids.push(
            properties
                .iter()
                .find(|(key, _)| key == "assigned")
                .expect("an id")
                .1
                .clone(),
        );
    }
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn a_large_message_arrives_whole_and_a_too_large_one_ends_the_connection() {
    let dir = dir();
    let broker = start_with(dir.path(), |config| {
        config.mqtt.max_packet_bytes.0 = 1 << 20
    });
    let mut subscriber = Client::connect(broker.mqtt_address(), Version::V311, "s");
    subscriber.subscribe("big", 1);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "p");
    let payload: String = (0..900_000)
        .map(|n| char::from(b'a' + (n % 26) as u8))
        .collect();
    publisher.publish("big", &payload);
    publisher.publish("big", "small");
    assert_eq!(subscriber.message().text(), payload);
    assert_eq!(subscriber.message().text(), "small");
    // The header is enough. A payload after it could reach a closed socket, whose reset can overtake the answer.
    let head = [0x32, 0x81, 0x80, 0x40, 0x00, 0x03, b'b', b'i', b'g'];
    publisher.send(|out| out.extend_from_slice(&head));
    assert_eq!(
        publisher.next(),
        Got::Disconnect(ReasonCode::PacketTooLarge)
    );
}

#[test]
fn a_connection_that_never_says_who_it_is_is_closed() {
    let dir = dir();
    let broker = start_with(dir.path(), |config| {
        config.mqtt.connect_timeout.0 = std::time::Duration::from_millis(200)
    });
    let mut mute = Client::open(broker.mqtt_address(), Version::V5);
    assert_eq!(mute.next(), Got::Closed);
}
