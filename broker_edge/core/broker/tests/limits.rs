//! Limits of a whole broker process: connections and file descriptors.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use common::{Client, Got, start, start_with};
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};

const VERSION: Version = Version::V311;

/// Connects, and says whether the broker answered with a CONNACK instead of closing.
fn is_served(address: SocketAddr, client_id: &str) -> Option<Client> {
    let mut client = Client::open(address, VERSION);
    client.send(|out| encode::connect(out, &ConnectFields::new(VERSION, client_id)));
    matches!(client.next(), Got::Connack { .. }).then_some(client)
}

#[test]
fn a_connection_beyond_the_limit_is_closed_and_a_place_that_is_free_again_is_given() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| config.broker.max_connections = 2);
    let address = broker.mqtt_address();
    let first = is_served(address, "first").expect("there is room");
    let mut second = is_served(address, "second").expect("there is room");
    assert!(is_served(address, "third").is_none());
    first.disconnect();
    while is_served(address, "third").is_none() {}
    second.subscribe("t", 1);
    second.publish("t", "still here");
    broker.shutdown();
}

fn address_in(ready: &str, prefix: &str) -> SocketAddr {
    let word = ready
        .split_whitespace()
        .find_map(|word| word.strip_prefix(prefix));
    word.and_then(|address| address.parse().ok())
        .unwrap_or_else(|| panic!("no {prefix} in {ready:?}"))
}

/// The first line of the answer.
fn health(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).expect("the admin listener takes connections");
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .expect("the request is taken");
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .expect("it answers");
    line.trim_end().to_owned()
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn without_file_descriptors_new_connections_are_closed_and_the_others_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 60; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_headwaterd"),
    ]);
    command
        .arg("--set")
        .arg(format!("data_dir={}", dir.path().display()));
    for listener in ["mqtt", "flight", "admin"] {
        command
            .arg("--set")
            .arg(format!("listeners.{listener}.bind=127.0.0.1:0"));
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut process = Process(child.expect("a shell"));
    let mut line = String::new();
    let stdout = process.0.stdout.take().expect("it is piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("a line when it listens");
    let address = address_in(&line, "mqtt=");

    let mut early = is_served(address, "early").expect("descriptors are left");
    let mut served = Vec::new();
    while let Some(client) = is_served(address, &format!("c{}", served.len())) {
        served.push(client);
        assert!(served.len() < 60, "the limit was never reached");
    }
    early.subscribe("t", 1);
    early.publish("t", "still here");
    assert_eq!(early.message().text(), "still here");
    assert_eq!(health(address_in(&line, "admin=")), "HTTP/1.1 200 OK");
    drop(served);
    while is_served(address, "late").is_none() {}
}

#[test]
fn a_client_that_still_sends_reads_why_its_connection_ends() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    for _ in 0..20 {
        let mut client = Client::connect(broker.mqtt_address(), Version::V5, "talker");
        // A packet of the reserved type, and much behind it that nobody reads.
        let mut bytes = vec![0x00, 0x00];
        bytes.extend(std::iter::repeat_n(0xc0, 128 << 10));
        client.send(|out| out.extend_from_slice(&bytes));
        assert!(
            matches!(client.next(), Got::Disconnect(_)),
            "a reset has overtaken the reason"
        );
        assert_eq!(client.next(), Got::Closed);
    }
}
