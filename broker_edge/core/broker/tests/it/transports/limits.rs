//! What a connection may use before it is authenticated.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_broker::config::units::{Age, ByteSize};
use headwater_mqtt::Version;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::wires::{
    ACCEPTED, Authority, answer, client_config, connect, connect_packet, expect_failures, metric,
    proxy_header, tls, tls_settings, try_connect,
};
use crate::common::{Client, DEADLINE, start_with, tcp};

#[test]
fn a_connect_byte_by_byte_ends_at_the_deadline() {
    // Long enough for a normal client to connect, even on a busy machine.
    const LIMIT: Duration = Duration::from_millis(1500);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.mqtt.connect_timeout = Age(LIMIT);
    });
    let begun = Instant::now();
    let mut slow = tcp(broker.mqtt_address());
    slow.set_read_timeout(Some(Duration::from_millis(40)))
        .expect("a timeout");
    let mut bytes = connect_packet(&"a client that takes its time".repeat(8)).into_iter();
    let mut buffer = [0];
    loop {
        // The pace of the client, and of the checks of the broker.
        match slow.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => panic!("the broker answered"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        let byte = bytes.next().expect("the deadline comes before the end");
        if slow.write_all(&[byte]).is_err() {
            break;
        }
    }
    // The broker's clock has whole milliseconds.
    assert!(begun.elapsed() >= LIMIT - Duration::from_millis(1));
    expect_failures(&broker, "timeout", 1.0);
    connect(tcp(broker.mqtt_address()), "quick");
}

#[test]
fn a_connect_larger_than_the_bound_is_refused_before_its_body_comes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.mqtt.max_connect_bytes = ByteSize::kib(2);
    });
    let mut greedy = tcp(broker.mqtt_address());
    let claim = b"\x10\xff\xff\xff\x7f\0\x04MQTT\x05\x02\0\x3c";
    greedy.write_all(claim).expect("the broker reads");
    let connack = answer(&mut greedy);
    assert_eq!((connack[0], connack[3]), (0x20, 0x95));
    expect_failures(&broker, "too_large", 1.0);
    let fits = "i".repeat(2000);
    connect(tcp(broker.mqtt_address()), &fits).publish("t", [0_u8; 100_000]);
    assert!(try_connect(tcp(broker.mqtt_address()), &"i".repeat(2040)).is_none());
}

#[test]
fn too_many_that_say_nothing_give_way_to_one_that_speaks() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.broker.max_pending_connections = 3;
    });
    let mut silent: Vec<TcpStream> = (0..3).map(|_| tcp(broker.mqtt_address())).collect();
    let mut client = connect(tcp(broker.mqtt_address()), "speaks");
    assert_eq!(answer(&mut silent[0]), b"", "the oldest was closed");
    expect_failures(&broker, "pending", 1.0);
    client.publish("t", b"x");
    // The metric is updated at the end of a turn.
    let begun = Instant::now();
    while metric(&broker, "headwater_mqtt_pending_connections") != 2.0 {
        assert!(begun.elapsed() < DEADLINE, "two still say nothing");
    }
}

#[test]
fn those_that_say_nothing_give_way_before_all_connections_are_taken() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.broker.max_connections = 20;
    });
    let _first = connect(tcp(broker.mqtt_address()), "first");
    let mut silent: Vec<TcpStream> = (0..19).map(|_| tcp(broker.mqtt_address())).collect();
    let mut client = connect(tcp(broker.mqtt_address()), "speaks");
    assert_eq!(answer(&mut silent[0]), b"", "the oldest was closed");
    expect_failures(&broker, "limit", 0.0);
    client.publish("t", b"x");
}

#[test]
fn an_address_with_many_incomplete_connects_gives_up_its_own_for_those_of_others() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.listeners.mqtt.proxy_protocol = true;
    });
    let begin_connect = |bytes: usize| {
        let mut stream = tcp(broker.mqtt_address());
        let mut sent = proxy_header([192, 0, 2, 7]);
        sent.extend(b"\x10\xfc\xff\x03\0\x04MQTT\x04\x02");
        sent.resize(28 + bytes, 0);
        stream.write_all(&sent).expect("the broker reads");
        stream
    };
    // 8 MiB hold 139 of them, and nearly the smaller one.
    let mut held: Vec<TcpStream> = (0..140).map(|_| begin_connect(60_000)).collect();
    expect_failures(&broker, "pending", 1.0);
    assert_eq!(answer(&mut held[0]), b"", "the oldest was closed");
    held.push(begin_connect(48_000));
    let connect = connect_packet(&"i".repeat(2000));
    let (first, rest) = connect.split_at(1000);
    let mut other = Client::open(broker.mqtt_address(), Version::V311);
    other.send(|out| out.extend([&proxy_header([198, 51, 100, 7]), first].concat()));
    expect_failures(&broker, "pending", 2.0);
    assert_eq!(answer(&mut held[1]), b"", "the next oldest was closed");
    other.send(|out| out.extend(rest));
    assert_eq!(other.packet().expect("a CONNACK"), ACCEPTED);
}

#[test]
fn an_address_has_no_more_connections_than_configured() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.broker.max_connections_per_ip = Some(2);
    });
    let enter = |id: &str| try_connect(tcp(broker.mqtt_address()), id);
    let _first = enter("first").expect("there is room");
    let mut second = enter("second").expect("there is room");
    assert!(enter("third").is_none());
    expect_failures(&broker, "per_ip", 1.0);
    second.send(|out| out.extend([0xe0, 0]));
    assert!(second.packet().is_none());
    while enter("third").is_none() {}
}

#[test]
fn connections_beyond_the_rate_wait_and_are_served() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| config.broker.max_connect_rate = 10);
    let begun = Instant::now();
    let clients: Vec<_> = (0..14)
        .map(|n| connect(tcp(broker.mqtt_address()), &format!("c{n}")))
        .collect();
    // Ten at once, four at their turns.
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(clients.len(), 14);
}

/// The broker as a separate process, so that its memory can be measured.
struct Process {
    child: Child,
    mqtt: SocketAddr,
}

impl Process {
    fn start(data_dir: &std::path::Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwaterd"));
        let data_dir = format!("data_dir={}", data_dir.display());
        let loopback = ["mqtt", "flight", "admin"]
            .map(|listener| format!("listeners.{listener}.bind=127.0.0.1:0"));
        for setting in loopback.iter().chain([&data_dir]) {
            command.arg("--set").arg(setting);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("a line when it listens");
        let mut words = line.split_whitespace();
        let mqtt = words.find_map(|word| word.strip_prefix("mqtt="));
        let mqtt = mqtt.and_then(|address| address.parse().ok());
        Self {
            child,
            mqtt: mqtt.unwrap_or_else(|| panic!("no address in {line:?}")),
        }
    }

    fn memory_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("the process runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("no VmRSS in {text}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn claims_of_256_mib_on_2000_half_open_connections_leave_memory_flat_and_others_served() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let process = Process::start(dir.path());
    let mut live = connect(tcp(process.mqtt), "live");
    live.publish("t", b"before");
    let before_kib = process.memory_kib();
    let claims: [&[u8]; 3] = [
        // The largest packet of MQTT, the largest accepted CONNECT, and no bytes.
        b"\x10\xff\xff\xff\x7f\0\x04MQTT\x04\x02",
        b"\x10\xfc\xff\x03\0\x04MQTT\x04\x02",
        b"",
    ];
    let mut half_open = Vec::new();
    for index in 0..2000 {
        let mut stream = tcp(process.mqtt);
        // Refused ones may be closed by now.
        let _ = stream.write_all(claims[index % claims.len()]);
        half_open.push(stream);
        if index % 100 == 0 {
            live.publish("t", b"during");
        }
    }
    let grown_kib = process.memory_kib().saturating_sub(before_kib);
    assert!(grown_kib < 8 << 10, "memory grew by {grown_kib} KiB");
    connect(tcp(process.mqtt), "another").publish("t", b"after");
    live.publish("t", b"after");
}

#[test]
fn handshakes_that_nobody_finishes_give_way_to_those_that_are() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_with(dir.path(), |config| {
        config.broker.max_pending_connections = 8;
        config.listeners.mqtts.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.listeners.mqtts.tls = settings;
    });
    let address = broker.addresses("mqtts")[0];
    let config = client_config(&authority, None);
    // A quarter of eight may be in a handshake.
    let mut stuck: Vec<TcpStream> = (0..3)
        .map(|_| begin_handshake(tcp(address), &config).1)
        .collect();
    answer(&mut stuck[0]);
    expect_failures(&broker, "pending", 1.0);
    connect(tls(tcp(address), &config), "finishes");
    expect_failures(&broker, "pending", 2.0);
    assert_eq!(metric(&broker, "headwater_tls_handshakes_total"), 1.0);
}

#[test]
fn many_handshakes_of_one_address_give_way_to_an_older_one_of_another() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_with(dir.path(), |config| {
        config.broker.max_pending_connections = 16;
        config.listeners.mqtts.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.listeners.mqtts.tls = settings;
    });
    let address = broker.addresses("mqtts")[0];
    let config = client_config(&authority, None);
    let (client, stream) = begin_handshake(tcp(address), &config);
    let attacker = IpAddr::from([127, 9, 9, 9]);
    let _stuck: Vec<TcpStream> = (0..12)
        .map(|_| begin_handshake(tcp_from(attacker, address), &config).1)
        .collect();
    // A quarter of sixteen may be in a handshake.
    expect_failures(&broker, "pending", 9.0);
    connect(StreamOwned::new(client, stream), "slow");
}

#[test]
fn half_a_client_hello_takes_no_place_from_a_handshake() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_with(dir.path(), |config| {
        config.broker.max_pending_connections = 16;
        config.listeners.mqtts.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.listeners.mqtts.tls = settings;
    });
    let address = broker.addresses("mqtts")[0];
    let config = client_config(&authority, None);
    let (client, stream) = begin_handshake(tcp(address), &config);
    let mut halves: Vec<(Vec<u8>, TcpStream)> = Vec::new();
    for _ in 0..8 {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut client = ClientConnection::new(Arc::clone(&config), name).expect("a client");
        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("a ClientHello");
        let rest = hello.split_off(hello.len() / 2);
        let mut stream = tcp(address);
        stream.write_all(&hello).expect("the broker reads");
        halves.push((rest, stream));
    }
    // The broker has read them when it answers one that came later.
    connect(tls(tcp(address), &config), "later");
    connect(StreamOwned::new(client, stream), "first");
    // Each gets its answer when it sends the rest.
    let (rest, stream) = &mut halves[7];
    stream.write_all(rest).expect("the broker reads");
    stream.peek(&mut [0]).expect("a ServerHello");
}

/// Sends a ClientHello, and returns once the broker has begun the handshake.
fn begin_handshake(
    mut stream: TcpStream,
    config: &Arc<ClientConfig>,
) -> (ClientConnection, TcpStream) {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = ClientConnection::new(Arc::clone(config), name).expect("a client");
    client.write_tls(&mut stream).expect("the broker reads");
    stream.peek(&mut [0]).expect("a ServerHello");
    (client, stream)
}

/// A connection from another address of this host.
fn tcp_from(local: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let local = SocketAddr::from((local, 0));
    socket.bind(&local.into()).expect("all of 127/8 is local");
    socket.connect(&to.into()).expect("the broker listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}
