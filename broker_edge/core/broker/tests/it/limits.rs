//! Limits of a broker process: connections and file descriptors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Client, Got, raise_open_files, start, start_with};
use arrow_flight::flight_service_client::FlightServiceClient;
use headwater_broker::config::units::Age;
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};

const VERSION: Version = Version::V311;

/// Connects, and returns whether the broker answered with a CONNACK instead of closing.
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
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
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
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A broker with this many file descriptors, and the line with its addresses.
fn start_limited(dir: &Path, open_files: u32) -> (Process, String) {
    let mut command = Command::new("sh");
    let limited = format!("ulimit -n {open_files}; exec \"$@\"");
    command.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_headwaterd")]);
    command
        .arg("--set")
        .arg(format!("data_dir={}", dir.display()));
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
    (process, line)
}

#[test]
fn without_file_descriptors_new_connections_are_closed_and_the_others_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (_process, line) = start_limited(dir.path(), 60);
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

/// Flight's answer to a client that has credentials, or needs none.
fn flight_answers(flight: SocketAddr) -> Result<(), tonic::Status> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{flight}"));
        let channel = endpoint.expect("an address").connect().await;
        let channel = channel.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let mut service = FlightServiceClient::new(channel);
        let action = arrow_flight::Action::new("version", "{}");
        service.do_action(action).await.map(|_| ())
    })
}

#[test]
fn connections_that_say_nothing_to_flight_and_admin_take_nothing_from_anybody() {
    let open_files = raise_open_files().unwrap_or(u64::MAX);
    assert!(
        open_files >= 4096,
        "this test needs 4096 open files: raise `ulimit -Hn`"
    );
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (_process, line) = start_limited(dir.path(), 1024);
    let [mqtt, flight, admin] =
        ["mqtt=", "flight=", "admin="].map(|listener| address_in(&line, listener));
    let mut early = is_served(mqtt, "early").expect("descriptors are left");
    early.subscribe("t", 1);
    let silent = |address, count| -> Vec<TcpStream> {
        let open = |_| TcpStream::connect(address).expect("the backlog takes it");
        (0..count).map(open).collect()
    };
    let held = [silent(flight, 1500), silent(admin, 500)];
    // While they stay, everything works: new clients, appends, health, and Flight itself.
    let mut late = is_served(mqtt, "late").expect("MQTT takes clients");
    late.publish("t", "appended");
    assert_eq!(early.message().text(), "appended");
    assert_eq!(health(admin), "HTTP/1.1 200 OK");
    flight_answers(flight).expect("Flight takes calls");
    let more: Vec<Client> = (0..200)
        .map(|n| is_served(mqtt, &format!("more-{n}")).expect("MQTT takes clients"))
        .collect();
    drop((held, more));
}

/// Waits for the other side to close; panics at the deadline.
fn wait_for_end(mut stream: TcpStream) {
    stream
        .set_read_timeout(Some(crate::common::DEADLINE))
        .expect("a timeout");
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("it was not closed: {error}"),
        }
    }
}

#[test]
fn a_flight_connection_without_a_call_ends_at_its_deadline_and_one_with_a_call_stays() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.flight.connect_timeout = Age(Duration::from_millis(1500));
    });
    let flight = broker.flight_address();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{flight}"));
    let channel = runtime.block_on(endpoint.expect("an address").connect());
    let mut service = FlightServiceClient::new(channel.expect("it listens"));
    let mut call = || {
        let action = arrow_flight::Action::new("version", "{}");
        runtime
            .block_on(service.do_action(action))
            .expect("it answers");
    };
    call();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let begun: Vec<TcpStream> = [0, 5, 24, preface.len()]
        .into_iter()
        .map(|count| {
            let mut stream = TcpStream::connect(flight).expect("it listens");
            stream.write_all(&preface[..count]).expect("it is taken");
            stream
        })
        .collect();
    begun.into_iter().for_each(wait_for_end);
    // It was opened before the closed ones, and is still the same connection.
    call();
    let metrics = admin_metrics(broker.admin_address());
    assert!(
        metrics.contains("headwater_service_connections{listener=\"flight\"} 1"),
        "{metrics}"
    );
    let timeouts =
        "headwater_service_connections_closed_total{listener=\"flight\",reason=\"timeout\"} 4";
    assert!(metrics.contains(timeouts), "{metrics}");
    broker.shutdown();
}

#[test]
fn flight_tells_how_many_calls_and_how_large_headers_it_takes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| config.flight.max_streams = 5);
    let mut stream = TcpStream::connect(broker.flight_address()).expect("it listens");
    stream
        .set_read_timeout(Some(crate::common::DEADLINE))
        .expect("a timeout");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).expect("it is taken");
    let mut head = [0; 9];
    stream
        .read_exact(&mut head)
        .expect("the settings come first");
    assert_eq!(head[3], 4, "SETTINGS (RFC 9113, 6.5)");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).expect("they are whole");
    let value = |id: u8| {
        let one = settings.chunks(6).find(|one| one[..2] == [0, id])?;
        Some(u32::from_be_bytes([one[2], one[3], one[4], one[5]]))
    };
    assert_eq!(value(3), Some(5), "calls at the same time");
    assert_eq!(value(6), Some(16 << 10), "bytes of headers");
    broker.shutdown();
}

fn admin_metrics(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).expect("it listens");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("it is taken");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

#[test]
fn a_client_that_still_sends_reads_why_its_connection_ends() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    for _ in 0..20 {
        let mut client = Client::connect(broker.mqtt_address(), Version::V5, "talker");
        // A packet of the reserved type, followed by many bytes that nobody reads.
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
