//! What proves who somebody is: passwords, tokens, and what a reload takes back.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::flight::Flight;
use super::{basic, connect, http, line, start, write};
use crate::common::Got;
use arrow_flight::HandshakeRequest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::stream;
use headwater_broker::Broker;
use headwater_mqtt::ReasonCode;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
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
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let x = URL_SAFE_NO_PAD.encode(key.public_key());
    let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x}]});
    write(dir.path(), "keys", &keys.to_string());
    let broker = start(dir.path(), |auth| {
        auth.token.keys_file = Some(dir.path().join("keys"))
    });
    let token = |life_s: i64| {
        let now_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({"sub": "writer", "exp": now_s.saturating_add_signed(life_s)});
        let signed = format!("{}.{}", part(json!({"alg": "EdDSA"})), part(claims));
        let tag = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
        format!("{signed}.{tag}")
    };
    let (mut client, code) = connect(&broker, "t", "whatever", &token(2));
    assert_eq!(code, 0);
    client.publish("plants/1/a", "in time");
    assert_eq!(connect(&broker, "u", "writer", &token(-10)).1, 0x86);
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
