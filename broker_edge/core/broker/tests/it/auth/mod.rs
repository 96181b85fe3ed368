//! Authentication and rights over real sockets: MQTT, Flight and admin HTTP use the same users and the same ACL.

mod credentials;
pub mod flight;
mod floods;
mod refusal_time;
mod rights;
mod shares;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::http::{ask, status};
use crate::common::{Client, Got, start_with};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use headwater_broker::Broker;
use headwater_broker::config::AuthSettings;
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

const ACL: &str = "
user root
operator
topic readwrite #
topic replay #
user reader
topic replay plants/1/#
user writer
topic write plants/1/#
";

/// The password format of Mosquitto before 2.0, which is fast to check and keeps the tests fast.
pub fn line(user: &str) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA512);
    context.update(format!("pw-{user}").as_bytes());
    context.update(b"salt");
    let (salt, hash) = (STANDARD.encode("salt"), STANDARD.encode(context.finish()));
    format!("{user}:$6${salt}${hash}\n")
}

pub fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

fn start(dir: &Path, change: impl FnOnce(&mut AuthSettings)) -> Broker {
    write(
        dir,
        "users",
        &["root", "reader", "writer"].map(line).concat(),
    );
    write(dir, "acl", ACL);
    start_with(&dir.join("log"), |config| {
        config.auth.password_file = Some(dir.join("users"));
        config.auth.acl_file = Some(dir.join("acl"));
        change(&mut config.auth);
    })
}

/// Two users who may replay the same topics, and an operator, on a broker with small limits.
fn start_for_two(dir: &Path, change: impl FnOnce(&mut headwater_broker::config::Config)) -> Broker {
    write(
        dir,
        "users",
        &["root", "reader", "rival"].map(line).concat(),
    );
    let acl = "user root\noperator\ntopic readwrite #\ntopic replay #\ntopic read $gaps\ntopic replay $gaps\n\
               user reader\ntopic replay plants/1/#\nuser rival\ntopic replay plants/1/#\n";
    write(dir, "acl", acl);
    start_with(&dir.join("log"), |config| {
        config.auth.password_file = Some(dir.join("users"));
        config.auth.acl_file = Some(dir.join("acl"));
        change(config);
    })
}

pub fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:pw-{user}")))
}

fn token_key() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

/// The contents of a file with the key of [`token`].
pub fn token_keys() -> String {
    let x = URL_SAFE_NO_PAD.encode(token_key().public_key());
    json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x}]}).to_string()
}

/// A token that is valid for so long.
pub fn token(user: &str, life_s: i64) -> String {
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"sub": user, "exp": now_s.saturating_add_signed(life_s)});
    let signed = format!("{}.{}", part(json!({"alg": "EdDSA"})), part(claims));
    let tag = URL_SAFE_NO_PAD.encode(token_key().sign(signed.as_bytes()));
    format!("{signed}.{tag}")
}

/// Sends a CONNECT with a password and returns the code of the answer.
pub fn connect(broker: &Broker, client_id: &str, user: &str, password: &str) -> (Client, u8) {
    let mut client = Client::open(broker.mqtt_address(), Version::V5);
    let mut fields = ConnectFields::new(Version::V5, client_id);
    fields.username = Some(user);
    fields.password = Some(password.as_bytes());
    client.send(|out| encode::connect(out, &fields));
    match client.next() {
        Got::Connack { code, .. } => (client, code),
        other => panic!("expected a CONNACK, got {other:?}"),
    }
}

/// Status and complete answer.
fn http(admin: SocketAddr, method: &str, path: &str, user: Option<&str>) -> (u16, String) {
    let shown = user.map(|user| format!("Authorization: {}", basic(user)));
    let headers: Vec<&str> = ["Host: localhost"]
        .into_iter()
        .chain(shown.as_deref())
        .collect();
    let answer = ask(admin, &format!("{method} {path}"), &headers);
    (status(&answer), answer)
}
