//! Unmodified rumqttc clients in both protocol versions: each QoS in both directions, retained messages, wills,
//! sessions, large payloads, properties and offsets. A test of the codec compares its codec with ours.

use std::time::Instant;

use rumqttc::v5::mqttbytes::v5 as packets;
use rumqttc::{Client, Connection, Event, LastWill, MqttOptions, Packet, QoS, v5};

use crate::common::DEADLINE;
use crate::conformance::{address, fresh};

const EACH_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

fn options(client_id: &str, clean: bool) -> MqttOptions {
    let mut options = MqttOptions::new(client_id, "127.0.0.1", address().port());
    options
        .set_clean_session(clean)
        .set_max_packet_size(1 << 20, 1 << 20);
    options
}

/// The next packet that `wanted` accepts.
fn until<T>(connection: &mut Connection, wanted: impl Fn(&Packet) -> Option<T>) -> T {
    let due = Instant::now() + DEADLINE;
    while let Ok(event) = connection.recv_timeout(due.saturating_duration_since(Instant::now())) {
        if let Event::Incoming(packet) = event.expect("the connection lasts")
            && let Some(found) = wanted(&packet)
        {
            return found;
        }
    }
    panic!("nothing came in time");
}

fn message(connection: &mut Connection) -> rumqttc::Publish {
    until(connection, |packet| match packet {
        Packet::Publish(publish) => Some(publish.clone()),
        _ => None,
    })
}

fn subscribe(client: &Client, connection: &mut Connection, filter: &str, qos: QoS) {
    client.subscribe(filter, qos).unwrap();
    until(connection, |packet| {
        matches!(packet, Packet::SubAck(_)).then_some(())
    });
}

#[test]
fn rumqttc_publishes_and_receives_with_every_qos_in_3_1_1() {
    let topic = fresh("rumqttc/");
    let (client, mut connection) = Client::new(options(&fresh("r"), true), 10);
    subscribe(
        &client,
        &mut connection,
        &format!("{topic}/#"),
        QoS::ExactlyOnce,
    );
    for qos in EACH_QOS {
        client
            .publish(format!("{topic}/a"), qos, false, vec![qos as u8; 200_000])
            .unwrap();
        let got = message(&mut connection);
        assert_eq!(
            (got.qos, &got.payload[..]),
            (qos, &[qos as u8; 200_000][..])
        );
    }
    client
        .publish(format!("{topic}/kept"), QoS::AtLeastOnce, true, "kept")
        .unwrap();
    assert!(!message(&mut connection).retain);
    client.unsubscribe(format!("{topic}/#")).unwrap();
    until(&mut connection, |packet| {
        matches!(packet, Packet::UnsubAck(_)).then_some(())
    });
    subscribe(
        &client,
        &mut connection,
        &format!("{topic}/kept"),
        QoS::AtMostOnce,
    );
    assert!(message(&mut connection).retain);
    // All messages published to this topic, from the log.
    subscribe(
        &client,
        &mut connection,
        &format!("$at/earliest/{topic}/a"),
        QoS::AtLeastOnce,
    );
    for qos in EACH_QOS {
        assert_eq!(message(&mut connection).payload[0], qos as u8);
    }
}

#[test]
fn rumqttc_finds_its_session_and_its_will_is_sent_in_3_1_1() {
    let (id, topic) = (fresh("r"), fresh("rumqttc/"));
    let mut first = options(&id, false);
    first.set_last_will(LastWill::new(
        format!("{topic}/will"),
        "gone",
        QoS::AtLeastOnce,
        false,
    ));
    let (client, mut connection) = Client::new(first, 10);
    subscribe(&client, &mut connection, &topic, QoS::ExactlyOnce);
    let (watcher, mut watching) = Client::new(options(&fresh("w"), true), 10);
    subscribe(
        &watcher,
        &mut watching,
        &format!("{topic}/will"),
        QoS::AtLeastOnce,
    );
    drop(connection);
    drop(client);
    assert_eq!(&message(&mut watching).payload[..], b"gone");
    watcher
        .publish(&topic, QoS::ExactlyOnce, false, "while away")
        .unwrap();
    until(&mut watching, |packet| {
        matches!(packet, Packet::PubComp(_)).then_some(())
    });
    let (_client, mut connection) = Client::new(options(&id, false), 10);
    let present = until(&mut connection, |packet| match packet {
        Packet::ConnAck(connack) => Some(connack.session_present),
        _ => None,
    });
    assert!(present);
    assert_eq!(&message(&mut connection).payload[..], b"while away");
}

#[test]
fn rumqttc_of_5_sees_properties_and_places() {
    let topic = fresh("rumqttc/");
    let mut options = v5::MqttOptions::new(fresh("r"), "127.0.0.1", address().port());
    options.set_clean_start(true);
    let (client, mut connection) = v5::Client::new(options, 10);
    let properties = packets::PublishProperties {
        content_type: Some("text/plain".to_owned()),
        response_topic: Some("reply".to_owned()),
        correlation_data: Some(vec![0, 1].into()),
        payload_format_indicator: Some(1),
        user_properties: vec![
            ("k".to_owned(), "1".to_owned()),
            ("k".to_owned(), "2".to_owned()),
        ],
        ..Default::default()
    };
    let qos = v5::mqttbytes::QoS::ExactlyOnce;
    client
        .publish_with_properties(&topic, qos, false, "x", properties.clone())
        .unwrap();
    let next = |connection: &mut v5::Connection, wanted: &dyn Fn(&packets::Packet) -> bool| {
        let due = Instant::now() + DEADLINE;
        while let Ok(event) = connection.recv_timeout(due.saturating_duration_since(Instant::now()))
        {
            match event.expect("the connection lasts") {
                v5::Event::Incoming(packet) if wanted(&packet) => return packet,
                _ => {}
            }
        }
        panic!("nothing came in time");
    };
    next(&mut connection, &|packet| {
        matches!(packet, packets::Packet::PubComp(_))
    });
    let position = packets::SubscribeProperties {
        id: Some(7),
        user_properties: vec![("stream-offset".to_owned(), "earliest".to_owned())],
    };
    client
        .subscribe_with_properties(&topic, qos, position)
        .unwrap();
    let got = match next(&mut connection, &|packet| {
        matches!(packet, packets::Packet::Publish(_))
    }) {
        packets::Packet::Publish(publish) => publish.properties.expect("properties"),
        other => panic!("{other:?}"),
    };
    assert_eq!(got.content_type, properties.content_type);
    assert_eq!(got.response_topic, properties.response_topic);
    assert_eq!(got.correlation_data, properties.correlation_data);
    assert_eq!(got.payload_format_indicator, Some(1));
    assert_eq!(got.subscription_identifiers, [7]);
    assert_eq!(got.user_properties[..2], properties.user_properties[..]);
    let names: Vec<&str> = got.user_properties[2..]
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["stream-offset", "ts"]);
}
