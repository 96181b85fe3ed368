//! What proves who somebody is: passwords, tokens, and what a reload takes back.

use std::net::SocketAddr;

use super::flight::Flight;
use super::{basic, connect, http, line, start, token, token_keys, write};
use crate::common::Got;
use arrow_flight::HandshakeRequest;
use futures::stream;
use headwater_broker::Broker;
use headwater_mqtt::ReasonCode;
use serde_json::json;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_gives_a_bearer_token_that_ends_with_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let mut flight = Flight::open(&broker, Some(basic("reader"))).await;
    let hello = flight.request(stream::iter([HandshakeRequest::default()]));
    let answer = flight.service.handshake(hello).await.unwrap();
    let token = answer
        .metadata()
        .get("authorization")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(token.starts_with("Bearer headwater."));
    let mut bearer = Flight::open(&broker, Some(token)).await;
    assert_eq!(bearer.code("version", json!({})).await, Code::Ok);
    write(dir.path(), "users", &line("root"));
    broker.reload().unwrap();
    assert_eq!(
        bearer.code("version", json!({})).await,
        Code::Unauthenticated
    );
}

#[test]
fn a_reload_over_http_revokes_a_live_connection_and_a_bad_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let (mut writer, _) = connect(&broker, "w", "writer", "pw-writer");
    write(dir.path(), "users", "broken\n");
    let (status, answer) = http(
        broker.admin_address(),
        "POST",
        "/api/v1/reload",
        Some("root"),
    );
    assert!(
        status == 400 && answer.contains("users, line 1"),
        "{answer}"
    );
    writer.publish("plants/1/a", "still in");
    write(dir.path(), "users", &["root", "reader"].map(line).concat());
    let (status, answer) = http(
        broker.admin_address(),
        "POST",
        "/api/v1/reload",
        Some("root"),
    );
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        writer.next(),
        Got::Disconnect(ReasonCode::AdministrativeAction)
    );
    assert_eq!(writer.next(), Got::Closed);
    assert_eq!(connect(&broker, "w", "writer", "pw-writer").1, 0x86);
}

#[test]
fn a_token_is_a_password_and_its_end_is_the_end_of_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "keys", &token_keys());
    let broker = start(dir.path(), |auth| {
        auth.token.keys_file = Some(dir.path().join("keys"))
    });
    let (mut client, code) = connect(&broker, "t", "whatever", &token("writer", 2));
    assert_eq!(code, 0);
    client.publish("plants/1/a", "in time");
    assert_eq!(
        connect(&broker, "u", "writer", &token("writer", -10)).1,
        0x86
    );
    assert_eq!(
        client.next(),
        Got::Disconnect(ReasonCode::MaximumConnectTime)
    );
}

#[test]
fn a_start_with_a_bad_file_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "users", "root:secret\n");
    let mut config = headwater_broker::config::Config {
        data_dir: dir.path().join("log"),
        ..Default::default()
    };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    config.listeners.mqtt.bind.0 = vec![free];
    config.listeners.flight.bind.0 = free;
    config.listeners.admin.bind.0 = free;
    config.auth.password_file = Some(dir.path().join("users"));
    let error = Broker::start(config).err().unwrap().to_string();
    assert!(
        error.contains("users, line 1") && !error.contains("secret"),
        "{error}"
    );
}
