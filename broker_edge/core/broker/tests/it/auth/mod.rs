//! Authentication and rights over real sockets: MQTT, Flight and admin HTTP use the same users and the same ACL.

mod credentials;
mod flight;
mod floods;
mod refusal_time;
mod rights;
mod shares;

use std::net::SocketAddr;
use std::path::Path;

use crate::common::http::{ask, status};
use crate::common::{Client, Got, start_with};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_broker::Broker;
use headwater_broker::config::AuthSettings;
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};

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
fn line(user: &str) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA512);
    context.update(format!("pw-{user}").as_bytes());
    context.update(b"salt");
    let (salt, hash) = (STANDARD.encode("salt"), STANDARD.encode(context.finish()));
    format!("{user}:$6${salt}${hash}\n")
}

fn write(dir: &Path, name: &str, text: &str) {
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

fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:pw-{user}")))
}

/// Sends a CONNECT with a password and returns the code of the answer.
fn connect(broker: &Broker, client_id: &str, user: &str, password: &str) -> (Client, u8) {
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
