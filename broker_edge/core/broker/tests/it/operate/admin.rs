//! The admin listener: its limits, the page, and maintenance.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use headwater_broker::config::units::Age;
use headwater_mqtt::encode::{self, ConnectFields};
use headwater_mqtt::{ReasonCode, Version};

use crate::common::http::{json, text};
use crate::common::{Client, DEADLINE, Got, start, start_with};

/// Long enough for a whole request on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);

fn say(admin: SocketAddr, words: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).expect("the listener takes connections");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(words.as_bytes()).expect("it is taken");
    stream
}

#[test]
fn an_admin_connection_that_does_not_finish_its_request_is_closed_and_a_probe_does_not_wait_for_it()
{
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.admin.max_connections = 1;
        config.admin.request_timeout = Age(TIMEOUT);
    });
    let admin = broker.admin_address();
    let mut slow = say(admin, "GET /healthz HTTP/1.1\r\nHo");
    assert_eq!(text(admin, "GET", "/healthz"), (200, "ok".to_owned()));
    let mut rest = Vec::new();
    // A reset also counts as an end.
    let _ = slow.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}");
    // Another request takes the slot.
    let _slow = say(admin, "GET /healthz HTTP/1.1\r\nHo");
    assert_eq!(text(admin, "GET", "/api/v1/status").0, 200);
    broker.shutdown();
}

#[test]
fn a_body_beyond_the_limit_is_refused_before_it_is_read() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let head = "PUT /api/v1/log-level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n";
    let mut stream = say(
        broker.admin_address(),
        &format!("{head}Content-Length: 1000000000\r\n\r\n{{"),
    );
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("it answers");
    assert_eq!(&first, b"HTTP/1.1 413");
    broker.shutdown();
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (status, page) = text(broker.admin_address(), "GET", "/");
    assert_eq!(status, 200);
    assert!(page.starts_with("<!doctype html>") && page.contains("src=\"ui/"));
    for foreign in ["http://", "https://", "//", "@import"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    broker.shutdown();
}

/// A connection from a chosen address of this machine.
fn from(site: u8, admin: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    let local = SocketAddr::from(([127, 0, 0, site], 0));
    socket.bind(&local.into()).expect("all of 127/8 is local");
    socket.connect(&admin.into()).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

#[test]
fn an_address_that_opens_many_connections_loses_its_own_and_no_other() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.admin.max_pending_connections = 8;
    });
    let admin = broker.admin_address();
    let mut quiet = from(2, admin);
    let mut flood: Vec<TcpStream> = (0..300).map(|_| from(3, admin)).collect();
    // Its oldest are closed.
    let mut rest = Vec::new();
    let _ = flood[0].read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    // This one came before them and has sent nothing either; it is still served.
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    quiet.write_all(request).expect("it is open");
    let mut answer = String::new();
    quiet.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(text(admin, "GET", "/healthz").0, 200);
    drop(flood);
    broker.shutdown();
}

#[test]
fn a_drained_broker_is_not_ready_and_serves_again_when_it_is_told() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.mqtt.server_reference = Some("other.example:1883".to_owned());
    });
    let (mqtt, admin) = (broker.mqtt_address(), broker.admin_address());
    let mut client = Client::connect(mqtt, Version::V5, "c");
    let (status, body) = json(admin, "PUT", "/api/v1/drain");
    assert_eq!((status, body["draining"].as_bool()), (200, Some(true)));
    assert_eq!(client.next(), Got::Disconnect(ReasonCode::UseAnotherServer));
    assert_eq!(client.next(), Got::Closed);
    assert_eq!(json(admin, "GET", "/readyz").0, 503);
    let mut refused = Client::open(mqtt, Version::V5);
    refused.send(|out| encode::connect(out, &ConnectFields::new(Version::V5, "c")));
    assert!(matches!(refused.next(), Got::Connack { code: 0x9C, .. }));
    let (_, body) = json(admin, "DELETE", "/api/v1/drain");
    assert_eq!(body["draining"], false);
    let mut client = Client::connect(mqtt, Version::V5, "c");
    client.publish("t", "x");
    assert_eq!(text(admin, "GET", "/readyz").0, 200);
    broker.shutdown();
}
