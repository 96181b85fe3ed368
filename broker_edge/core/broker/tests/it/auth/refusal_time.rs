//! The time of a refusal does not tell whether a user exists, nor how its password is stored.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::flight::Flight;
use super::{connect, line, start_with, write};
use crate::common::http::{ask, status};
use arrow_flight::HandshakeRequest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream;
use headwater_broker::Broker;
use headwater_broker::auth::users::{generate, new_lines};
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};
use serde_json::json;
use tonic::Code;
use tungstenite::Message;
use tungstenite::client::IntoClientRequest;
use tungstenite::http::HeaderValue;

const ROUNDS: usize = 9;
/// Names of the file by the kind of their hash, and names that are not in it.
const NAMES: [&str; 5] = ["slow", "quick", "generated", "nobody", "no-one"];

fn start(dir: &std::path::Path) -> Broker {
    let slow = new_lines("slow", "a long password", false).unwrap();
    let (_, generated) = generate("generated").unwrap();
    write(dir, "users", &[slow, line("quick"), generated].concat());
    start_with(&dir.join("log"), |config| {
        config.auth.password_file = Some(dir.join("users"));
        config.listeners.ws.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    })
}

/// The median time of each name; the rounds of the names alternate, so that all of them meet the same machine.
struct Times(BTreeMap<&'static str, Vec<Duration>>);

impl Times {
    fn new() -> Times {
        Times(BTreeMap::new())
    }

    fn add(&mut self, name: &'static str, started: Instant) {
        self.0.entry(name).or_default().push(started.elapsed());
    }

    /// Far apart means three times: without the wait, the kinds of hashes lie a hundred times apart.
    fn assert_alike(self, listener: &str) {
        let medians: BTreeMap<&str, Duration> = self
            .0
            .into_iter()
            .map(|(name, mut times)| {
                times.sort_unstable();
                (name, times[times.len() / 2])
            })
            .collect();
        let (least, most) = (medians.values().min(), medians.values().max());
        assert!(
            least
                .zip(most)
                .is_some_and(|(least, most)| *most < 3 * *least),
            "{listener}: {medians:?}"
        );
    }
}

/// Measures `refuse`, which is given a name and a wrong password, for every name in every round.
fn refusals_take_as_long(listener: &str, refuse: impl Fn(&str, &str)) {
    let mut times = Times::new();
    for round in 0..ROUNDS {
        for name in NAMES {
            let started = Instant::now();
            refuse(name, &format!("wrong-{round}"));
            times.add(name, started);
        }
    }
    times.assert_alike(listener);
}

#[test]
fn an_mqtt_refusal_takes_as_long_for_every_name_and_kind_of_hash() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path());
    refusals_take_as_long("MQTT", |name, password| {
        assert_eq!(connect(&broker, name, name, password).1, 0x86);
    });
    let started = Instant::now();
    assert_eq!(connect(&broker, "q", "quick", "pw-quick").1, 0);
    let admitted = started.elapsed();
    let started = Instant::now();
    assert_eq!(connect(&broker, "q", "quick", "pw-wrong").1, 0x86);
    assert!(
        admitted * 3 < started.elapsed(),
        "who is let in does not wait"
    );
    broker.shutdown();
}

/// The reason code of the CONNACK that a client gets in WebSocket.
fn connect_in_websocket(address: SocketAddr, name: &str, password: &str) -> u8 {
    let mut request = format!("ws://{address}/mqtt")
        .into_client_request()
        .unwrap();
    let headers = request.headers_mut();
    headers.insert("sec-websocket-protocol", HeaderValue::from_static("mqtt"));
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let (mut socket, _) = tungstenite::client(request, stream).unwrap();
    let mut fields = ConnectFields::new(Version::V5, name);
    fields.username = Some(name);
    fields.password = Some(password.as_bytes());
    let mut packet = Vec::new();
    encode::connect(&mut packet, &fields);
    socket.send(Message::binary(packet)).unwrap();
    // Behind the type, the length and the flags.
    socket.read().unwrap().into_data()[3]
}

#[test]
fn a_websocket_refusal_takes_as_long_for_every_name_and_kind_of_hash() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path());
    let address = broker.addresses("ws")[0];
    refusals_take_as_long("WebSocket", |name, password| {
        assert_eq!(connect_in_websocket(address, name, password), 0x86);
    });
    assert_eq!(connect_in_websocket(address, "quick", "pw-quick"), 0);
    broker.shutdown();
}

#[test]
fn an_admin_refusal_takes_as_long_for_every_name_and_kind_of_hash() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path());
    refusals_take_as_long("admin", |name, password| {
        let shown = STANDARD.encode(format!("{name}:{password}"));
        let shown = format!("Authorization: Basic {shown}");
        let answer = ask(
            broker.admin_address(),
            "GET /api/v1/status",
            &["Host: localhost", &shown],
        );
        assert_eq!(status(&answer), 401);
    });
    broker.shutdown();
}

/// Measures `refuse`, which is given a connection that shows a name and a wrong password, in the same way.
async fn flight_refusals_take_as_long(call: &str, refuse: impl AsyncFn(Flight) -> Code) {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path());
    let mut times = Times::new();
    for round in 0..ROUNDS {
        for name in NAMES {
            let shown = STANDARD.encode(format!("{name}:wrong-{round}"));
            let flight = Flight::open(&broker, Some(format!("Basic {shown}"))).await;
            let started = Instant::now();
            assert_eq!(refuse(flight).await, Code::Unauthenticated);
            times.add(name, started);
        }
    }
    times.assert_alike(call);
    tokio::task::spawn_blocking(move || broker.shutdown())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flight_refusal_takes_as_long_for_every_name_and_kind_of_hash() {
    let act = async |mut flight: Flight| flight.code("version", json!({})).await;
    flight_refusals_take_as_long("Flight", act).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flight_handshake_refusal_takes_as_long_for_every_name_and_kind_of_hash() {
    let shake = async |mut flight: Flight| {
        let hello = flight.request(stream::iter([HandshakeRequest::default()]));
        flight.service.handshake(hello).await.unwrap_err().code()
    };
    flight_refusals_take_as_long("Flight's handshake", shake).await;
}
