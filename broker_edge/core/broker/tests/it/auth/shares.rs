//! One user leaves a part of every limit to the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::flight::Flight;
use super::{ACL, basic, connect, http, line, start_for_two, write};
use crate::common::{Client, Got, start_with, tcp};
use arrow_flight::Ticket;
use headwater_broker::Broker;
use headwater_mqtt::encode::{self, ConnectFields, WillFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{PacketId, Property, QoS, Version};
use serde_json::{Value, json};
use tonic::Code;

/// A member with a persistent session in a shared group, which disconnects again.
fn join_and_go(broker: &Broker, names: std::ops::Range<u32>) {
    let mut members: Vec<Client> = names
        .map(|n| {
            let mut client = Client::open(broker.mqtt_address(), Version::V5);
            let client_id = format!("member-{n}");
            let mut fields = ConnectFields::new(Version::V5, &client_id);
            fields.username = Some("reader");
            fields.password = Some(b"pw-reader");
            fields.properties = &[Property::SessionExpiryInterval(3600)];
            let filter = "$share/g/plants/#";
            let options = SubscriptionOptions::new(QoS::AtLeastOnce);
            client.send(|out| {
                encode::connect(out, &fields);
                let one = [Subscription { filter, options }];
                encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &one);
            });
            client
        })
        .collect();
    for member in &mut members {
        let joined = member.wait_for(|got| matches!(got, Got::Suback { .. }));
        assert!(format!("{joined:?}").contains('1'), "{joined:?}");
    }
    for member in members {
        member.disconnect();
    }
}

#[test]
fn i8_three_thousand_members_that_are_away_cost_a_publisher_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "users", &["root", "reader"].map(line).concat());
    let acl = "user root\ntopic readwrite #\nuser reader\ntopic read plants/1/#\n";
    write(dir.path(), "acl", acl);
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(dir.path().join("users"));
        config.auth.acl_file = Some(dir.path().join("acl"));
        config.auth.open_metrics = true;
        config.log.sync = headwater_broker::config::Sync::Never;
    });
    for first in (0..3000).step_by(200) {
        join_and_go(&broker, first..first + 200);
    }
    let (mut publisher, _) = connect(&broker, "publisher", "root", "pw-root");
    for n in 0..500 {
        // They may subscribe to it, but none of them may receive it.
        publisher.publish("plants/2/x", n.to_string());
    }
    let (_, text) = http(broker.admin_address(), "GET", "/metrics", None);
    let name = "headwater_mqtt_shared_rights_checks_total ";
    let looks = text.lines().find_map(|line| line.strip_prefix(name));
    let looks: u64 = looks.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    assert!(
        looks <= 3000,
        "the rights of {looks} members for 500 records"
    );
    broker.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_takes_so_many_connections_of_flight_and_leaves_the_others_to_others() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "users",
        &["root", "reader", "writer"].map(line).concat(),
    );
    write(dir.path(), "acl", ACL);
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(dir.path().join("users"));
        config.auth.acl_file = Some(dir.path().join("acl"));
        config.flight.max_connections = 4;
    });
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut flight = Flight::open(&broker, Some(basic("reader"))).await;
        assert_eq!(flight.code("version", json!({})).await, Code::Ok);
        held.push(flight);
    }
    let mut third = Flight::open(&broker, Some(basic("reader"))).await;
    let refused = third.act("version", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused
            .message()
            .contains("flight.max_connections_per_user")
    );
    let mut root = Flight::open(&broker, Some(basic("root"))).await;
    assert_eq!(root.code("version", json!({})).await, Code::Ok);
    held.clear();
    // The slot is free as soon as the broker has seen the end of the connection.
    while third.code("version", json!({})).await != Code::Ok {}
}

#[tokio::test(flavor = "multi_thread")]
async fn retained_messages_over_flight_count_for_their_user() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| config.mqtt.max_retained = 4);
    write(
        dir.path(),
        "acl",
        "user reader\ntopic write plants/#\nuser rival\ntopic write plants/#\n",
    );
    broker.reload().unwrap();
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    for number in 0..2 {
        let topic = format!("plants/{number}");
        reader.put_as(&topic, b"kept", true).await.unwrap();
    }
    let refused = reader.put_as("plants/2", b"kept", true).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("quota:retained"), "{refused}");
    // An existing retained message may be replaced, and messages without retain do not count; the other half is for
    // other users.
    reader.put_as("plants/1", b"anew", true).await.unwrap();
    reader.put("plants/2", b"passes").await.unwrap();
    rival.put_as("plants/2", b"kept", true).await.unwrap();
    // A freed slot can be used again as soon as the loop has seen it.
    reader.put_as("plants/0", b"", true).await.unwrap();
    while reader.put_as("plants/3", b"kept", true).await.is_err() {}
}

#[test]
fn wills_of_one_user_take_half_of_the_bytes_of_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| {
        config.mqtt.max_session_bytes = "200KiB".parse().unwrap();
    });
    let expiry = [Property::SessionExpiryInterval(600)];
    let delay = [Property::WillDelayInterval(600)];
    let leave_will = |client_id: &str| {
        let mut client = Client::open(broker.mqtt_address(), Version::V5);
        let mut fields = ConnectFields::new(Version::V5, client_id);
        fields.username = Some("root");
        fields.password = Some(b"pw-root");
        fields.clean_start = false;
        fields.properties = &expiry;
        fields.will = Some(WillFields {
            topic: "plants/1/will",
            payload: &[0; 40_000],
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: &delay,
        });
        client.send(|out| encode::connect(out, &fields));
        match client.next() {
            Got::Connack { code, .. } => code,
            other => panic!("expected a CONNACK, got {other:?}"),
        }
    };
    let codes = ["a", "b", "c", "b"].map(leave_will);
    assert_eq!(codes, [0, 0, 0x97, 0]);
    assert_eq!(connect(&broker, "other", "reader", "pw-reader").1, 0);
    let (_, body) = http(
        broker.admin_address(),
        "GET",
        "/api/v1/refusals",
        Some("root"),
    );
    assert!(body.contains("quota:session_bytes"), "{body}");
    broker.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_leaves_places_for_the_reads_and_groups_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| {
        config.flight.max_reads = 4;
        config.flight.max_groups = 4;
    });
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    let follow = || Ticket::new(json!({"partition": 3, "start": 0, "follow": true}).to_string());
    let mut streams = Vec::new();
    for _ in 0..2 {
        let request = rival.request(follow());
        streams.push(rival.service.do_get(request).await.unwrap());
    }
    let request = rival.request(follow());
    let refused = rival.service.do_get(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("flight.max_reads_per_user"));
    let request = reader.request(follow());
    streams.push(reader.service.do_get(request).await.unwrap());

    let group = |name: &str| json!({"group": name, "reader_epoch": 1});
    assert_eq!(rival.code("commit", group("a")).await, Code::Ok);
    assert_eq!(rival.code("commit", group("b")).await, Code::Ok);
    assert_eq!(
        rival.code("commit", group("c")).await,
        Code::ResourceExhausted
    );
    assert_eq!(reader.code("commit", group("d")).await, Code::Ok);
    let of_group = json!({"group": "a"});
    assert_eq!(rival.code("remove_group", of_group).await, Code::Ok);
    assert_eq!(rival.code("commit", group("c")).await, Code::Ok);
    assert_eq!(
        rival.code("commit", group("e")).await,
        Code::ResourceExhausted,
        "a place that is given back is taken once"
    );
}

/// A TCP stream that has sent a GET and reads nothing of the answer.
fn begin_get(admin: SocketAddr, path: &str, user: &str) -> TcpStream {
    let mut stream = tcp(admin);
    let shown = basic(user);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {shown}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    stream
}

/// Publishes an artifact of `chunks` chunks as `root`, larger than the socket buffers.
async fn push_artifact(broker: &Broker, chunks: usize) {
    const CHUNK_BYTES: usize = 512 << 10;
    let mut root = Flight::open(broker, Some(basic("root"))).await;
    let payload = vec![7_u8; CHUNK_BYTES];
    let mut offsets = Vec::new();
    let mut partition = Value::Null;
    for _ in 0..chunks {
        let answer = root.put("artifacts/fw/1/chunks", &payload).await.unwrap();
        offsets.push(answer["offsets"][0].as_u64().unwrap());
        partition = answer["partitions"][0].clone();
    }
    let runs: Vec<_> = offsets.iter().map(|offset| json!([offset, 1])).collect();
    let manifest = json!({
        "v": 1,
        "artifact": {
            "name": "fw", "version": "1", "size": CHUNK_BYTES * chunks, "sha256": "ab".repeat(32),
            "chunk_size": CHUNK_BYTES, "chunks": vec![""; chunks],
        },
        "place": {"number": partition, "runs": runs},
    });
    let manifest = manifest.to_string();
    let pushed = root.put("artifacts/fw/1/manifest", manifest.as_bytes());
    pushed.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_of_one_user_leave_places_for_the_reads_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| {
        config.flight.max_reads = 4;
    });
    let acl = "user root\noperator\ntopic readwrite #\ntopic replay #\n\
               user reader\ntopic replay plants/1/#\nuser rival\ntopic read artifacts/#\n";
    write(dir.path(), "acl", acl);
    let (status, _) = http(
        broker.admin_address(),
        "POST",
        "/api/v1/reload",
        Some("root"),
    );
    assert_eq!(status, 200);
    push_artifact(&broker, 40).await;

    let path = "/artifacts/fw/1";
    let mut downloads = Vec::new();
    let mut heads = Vec::new();
    for _ in 0..4 {
        let mut stream = begin_get(broker.admin_address(), path, "rival");
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        heads.push(String::from_utf8_lossy(&head[9..]).into_owned());
        downloads.push(stream);
    }
    assert_eq!(heads, ["200", "200", "503", "503"]);
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let follow = Ticket::new(json!({"partition": 3, "start": 0, "follow": true}).to_string());
    let request = reader.request(follow);
    assert!(reader.service.do_get(request).await.is_ok());
}
