//! A broker that ends to serve clients on its open log, and begins again, as a node of a cluster does when the leader
//! changes.

use headwater_broker::Elsewhere;
use headwater_mqtt::encode::{self, ConnectFields};
use headwater_mqtt::{ReasonCode, Version};
use serde_json::{Value, json};
use tonic::Code;

use crate::common::{Client, Got};
use crate::support::{Sent, TestBroker, refused};

const MQTT: &str = "node-b:1883";
const FLIGHT: &str = "grpc://node-b:8815";

fn elsewhere() -> Elsewhere {
    Elsewhere {
        mqtt: Some(MQTT.into()),
        flight: Some(FLIGHT.into()),
    }
}

/// The bytes of the answer to a CONNECT, after which the connection ends.
fn answer(broker: &TestBroker, version: Version) -> Vec<u8> {
    let mut client = Client::open(broker.broker().mqtt_address(), version);
    client.send(|out| encode::connect(out, &ConnectFields::new(version, "late")));
    let packet = client.packet().expect("an answer");
    assert_eq!(client.packet(), None, "the connection ends");
    packet
}

#[test]
fn clients_are_sent_elsewhere_and_find_their_sessions_when_it_serves_again() {
    let mut broker = TestBroker::start(&[]);
    let address = broker.broker().mqtt_address();
    let (mut session, _) = Client::resume(address, Version::V5, "session");
    session.subscribe("devices/+/telemetry", 1);
    let mut old = Client::connect(address, Version::V311, "old");
    let mut publisher = Client::connect(address, Version::V5, "publisher");
    publisher.publish("devices/d1/telemetry", "before");
    assert_eq!(session.message().text(), "before");

    broker.broker_mut().leave_office(elsewhere());
    assert_eq!(
        session.next(),
        Got::Disconnect(ReasonCode::UseAnotherServer)
    );
    assert_eq!(session.next(), Got::Closed);
    assert_eq!(old.next(), Got::Closed);
    let v5 = answer(&broker, Version::V5);
    assert_eq!(v5[..5], [0x20, 17, 0, 0x9c, 14], "{v5:x?}");
    assert_eq!(v5[5..], [b"\x1c\0\x0b", MQTT.as_bytes()].concat());
    assert_eq!(answer(&broker, Version::V311), [0x20, 2, 0, 3]);
    let (_, figures) = broker.http("/metrics");
    for line in [
        "headwater_mqtt_connects_failed_total{reason=\"standby\"} 2",
        "headwater_mqtt_connections 0",
    ] {
        assert!(figures.contains(line), "{line} is not in {figures}");
    }

    // The leader is lost: nobody serves now.
    broker.broker_mut().leave_office(Elsewhere::default());
    assert_eq!(answer(&broker, Version::V5)[3], 0x88);

    broker.broker_mut().open_office().expect("the log is whole");
    let mut publisher = Client::connect(address, Version::V5, "publisher");
    publisher.publish("devices/d1/telemetry", "after");
    let (mut session, present) = Client::resume(address, Version::V5, "session");
    assert!(present);
    // What was acknowledged just before may come again: where a session is, is stored each second.
    while session.message().text() != "after" {}
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_flight_are_refused_by_name_and_follow_the_office() {
    let mut broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    let sent = [Sent::new("devices/d1/telemetry", "1")];
    let placed = client.produce(&sent).await.expect("it serves");
    let group = json!({"group": "readers", "reader_epoch": 1, "offsets": {}});
    client
        .act("commit", group.clone())
        .await
        .expect("it serves");
    let follow = json!({"partition": placed[0].0, "start": 0, "follow": true});
    let mut following = client.stream(follow.clone()).await.expect("it serves");
    let (rows, _) = futures::StreamExt::next(&mut following)
        .await
        .expect("a batch")
        .expect("it serves");
    assert_eq!(rows.len(), 1);

    broker.broker_mut().leave_office(elsewhere());
    let is_sent_elsewhere = |status: &tonic::Status| {
        let refusal = refused(status);
        assert_eq!(refusal.code, Code::Unavailable);
        assert_eq!(refusal.body["error"], "not_leader", "{refusal:?}");
        assert_eq!(refusal.body["leader"], FLIGHT);
    };
    // A reader that follows is told, instead of waiting for ever.
    let ended = loop {
        match futures::StreamExt::next(&mut following).await {
            Some(Ok((rows, _))) => assert!(rows.is_empty()),
            Some(Err(status)) => break status,
            None => panic!("the read ended without a reason"),
        }
    };
    is_sent_elsewhere(&ended);
    for (action, body) in [
        ("offsets", json!({})),
        ("topics", json!({})),
        ("plan", json!({"from": {}})),
        ("commit", group.clone()),
        ("committed", json!({"group": "readers"})),
        ("groups", json!({})),
        ("backup", json!({"name": "b"})),
    ] {
        let refusal = client.act(action, body).await;
        is_sent_elsewhere(&refusal.expect_err(action));
    }
    is_sent_elsewhere(&client.produce(&sent).await.expect_err("it must not append"));
    is_sent_elsewhere(&client.read(follow).await.expect_err("it must not read"));
    let version = client.act("version", json!({})).await.expect("always");
    assert_eq!(version["log_id"], broker.broker().log_id().to_string());
    assert_eq!(broker.http("/healthz").0, 200);
    let standby = r#"{"ready":false,"standby":true}"#.to_owned();
    assert_eq!(broker.http("/readyz"), (503, standby));
    let status: Value = serde_json::from_str(&broker.http("/api/v1/status").1).expect("JSON");
    assert_eq!(status["partitions"].as_array().map(Vec::len), Some(5));

    broker.broker_mut().open_office().expect("the log is whole");
    let committed = client.act("committed", json!({"group": "readers"})).await;
    assert_eq!(committed.expect("it serves again")["reader_epoch"], 1);
    assert_eq!(broker.http("/readyz").0, 200);
    let again = client.produce(&sent).await.expect("it serves again");
    assert_eq!(again[0].1, placed[0].1 + 1);
}

#[test]
fn maintenance_outlives_a_change_of_the_leader() {
    let mut broker = TestBroker::start(&[]);
    let admin = broker.broker().admin_address();
    let (code, _) = crate::common::http::text(admin, "PUT", "/api/v1/drain");
    assert_eq!(code, 200);
    broker.broker_mut().leave_office(elsewhere());
    broker.broker_mut().open_office().expect("the log is whole");
    assert_eq!(answer(&broker, Version::V311), [0x20, 2, 0, 3]);
}
