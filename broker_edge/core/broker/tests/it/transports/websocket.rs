//! MQTT in WebSocket, with and without TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use headwater_broker::Broker;
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};
use tungstenite::client::IntoClientRequest;
use tungstenite::http::HeaderValue;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::{Message, WebSocket};

use super::wires::{
    ACCEPTED, Authority, Wire, answer, client_config, connect, connect_packet, expect_failures,
    password_of_ann, publish_packet, tls, tls_settings,
};
use crate::common::{Client, start_with, tcp};

fn start(dir: &Path) -> (Broker, Authority) {
    let authority = Authority::new("ca");
    let settings = tls_settings(dir, &authority.sign("broker", None), None);
    let broker = start_with(dir, |config| {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        config.listeners.ws.bind.0 = vec![free];
        config.listeners.wss.bind.0 = vec![free];
        config.listeners.wss.tls = settings;
    });
    (broker, authority)
}

/// The payloads of binary messages as a stream.
struct WsWire<S>(WebSocket<S>, Vec<u8>);

impl<S: Wire> Read for WsWire<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.1.is_empty() {
            match self.0.read() {
                Ok(Message::Binary(bytes)) => self.1.extend_from_slice(&bytes),
                Ok(Message::Close(_)) | Err(_) => return Ok(0),
                Ok(_) => {}
            }
        }
        let count = buffer.len().min(self.1.len());
        buffer[..count].copy_from_slice(&self.1[..count]);
        self.1.drain(..count);
        Ok(count)
    }
}

impl<S: Wire> Write for WsWire<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let message = Message::binary(bytes.to_vec());
        self.0.send(message).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open<S: Wire>(stream: S) -> WsWire<S> {
    open_from(stream, "localhost", None)
}

/// Like a page at `origin` that uses the name `host` for the broker.
fn open_from<S: Wire>(stream: S, host: &str, origin: Option<&'static str>) -> WsWire<S> {
    let mut request = format!("ws://{host}/mqtt")
        .into_client_request()
        .expect("a request");
    request
        .headers_mut()
        .insert("Sec-WebSocket-Protocol", HeaderValue::from_static("mqtt"));
    if let Some(origin) = origin {
        let origin = HeaderValue::from_static(origin);
        request.headers_mut().insert("Origin", origin);
    }
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => WsWire(socket, Vec::new()),
        Err(_) => panic!("the broker opens a WebSocket"),
    }
}

fn exchange<S: Wire>(mut reader: Client<WsWire<S>>, mut writer: Client<WsWire<S>>) {
    reader.subscribe("t", 0);
    let payload: Vec<u8> = (0..900_000u32).map(|n| (n * 7) as u8).collect();
    for size in [0, 1, 110, 130, 66_000, 300_000, 900_000] {
        writer.publish("t", &payload[..size]);
        assert!(reader.message().payload == payload[..size], "{size} bytes");
    }
}

#[test]
fn messages_of_all_sizes_travel_whole_with_and_without_tls() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (broker, authority) = start(dir.path());
    let ws = |id| connect(open(tcp(broker.addresses("ws")[0])), id);
    exchange(ws("reader"), ws("writer"));
    let config = client_config(&authority, None);
    let wss = |id| connect(open(tls(tcp(broker.addresses("wss")[0]), &config)), id);
    exchange(wss("secure reader"), wss("secure writer"));
}

#[test]
fn who_sends_pings_instead_of_its_connect_is_closed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (broker, _) = start(dir.path());
    let ping = [0x89, 0x80, 0, 0, 0, 0];
    let mut patient = open(tcp(broker.addresses("ws")[0]));
    let some = ping.repeat(1000);
    patient.0.get_mut().write_all(&some).expect("they are read");
    let mut endless = open(tcp(broker.addresses("ws")[0]));
    // The broker closes the connection among them.
    let _ = endless.0.get_mut().write_all(&ping.repeat(20_000));
    expect_failures(&broker, "too_large", 1.0);
    connect(patient, "patient").publish("t", b"x");
}

#[test]
fn a_packet_may_span_frames_and_a_frame_may_hold_many() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (broker, _) = start(dir.path());
    let mut client = Client::over(open(tcp(broker.addresses("ws")[0])), Version::V311);
    let binary = |bytes: &[u8], begins: bool, ends: bool| {
        let data = if begins { Data::Binary } else { Data::Continue };
        Message::Frame(Frame::message(bytes.to_vec(), OpCode::Data(data), ends))
    };
    let packet = connect_packet("c");
    for (frame, ping) in [
        (binary(&packet[..3], true, false), true),
        (binary(&packet[3..4], false, true), false),
        (binary(&packet[4..], true, true), true),
    ] {
        client.stream.0.send(frame).expect("it reads");
        if ping {
            let ping = Message::Ping(b"are you there".to_vec().into());
            client.stream.0.send(ping).expect("it reads");
        }
    }
    assert_eq!(client.packet().expect("a CONNACK"), ACCEPTED);
    let many = publish_packet("t", b"x").repeat(50);
    client
        .stream
        .0
        .send(binary(&many, true, true))
        .expect("it reads");
    for _ in 0..50 {
        assert_eq!(client.packet().expect("a PUBACK"), [0x40, 2, 0, 1]);
    }
}

#[test]
fn text_is_refused_with_its_code_and_a_goodbye_is_returned() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (broker, _) = start(dir.path());
    let socket = |id| connect(open(tcp(broker.addresses("ws")[0])), id).stream.0;
    let closed_with = |mut socket: WebSocket<TcpStream>| loop {
        match socket.read() {
            Ok(Message::Close(frame)) => return frame.map(|frame| frame.code),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let mut text = socket("text");
    text.send(Message::text("hello")).expect("it reads");
    assert_eq!(closed_with(text), Some(CloseCode::Unsupported));
    let mut goodbye = socket("goodbye");
    goodbye.close(None).expect("it reads");
    assert_eq!(closed_with(goodbye), None);
}

#[test]
fn a_request_for_something_else_gets_an_answer_of_http() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (broker, _) = start(dir.path());
    let status = |request: &str| {
        let mut stream = tcp(broker.addresses("ws")[0]);
        stream.write_all(request.as_bytes()).expect("it reads");
        let text = String::from_utf8(answer(&mut stream)).expect("text");
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        status("GET /other HTTP/1.1\r\nHost: h\r\n\r\n"),
        "HTTP/1.1 404 Not Found"
    );
    assert_eq!(
        status("GET /mqtt HTTP/1.1\r\nHost: h\r\n\r\n"),
        "HTTP/1.1 426 Upgrade Required"
    );
    let filler = "x".repeat(70_000);
    assert_eq!(
        status(&format!("GET /mqtt HTTP/1.1\r\nX: {filler}")),
        "HTTP/1.1 431 Request Header Fields Too Large"
    );
    expect_failures(&broker, "websocket", 2.0);
    expect_failures(&broker, "too_large", 1.0);
}

/// The code in the CONNACK for a page.
fn code_of(broker: &Broker, host: &str, origin: Option<&'static str>, password: bool) -> u8 {
    let wire = open_from(tcp(broker.addresses("ws")[0]), host, origin);
    let mut client = Client::over(wire, Version::V311);
    let mut fields = ConnectFields::new(Version::V311, "page");
    if password {
        fields.username = Some("ann");
        fields.password = Some(b"pw");
    }
    client.send(|out| encode::connect(out, &fields));
    let connack = client.packet().expect("an answer");
    assert_eq!(connack[..3], [0x20, 2, 0]);
    connack[3]
}

const EVIL: Option<&str> = Some("https://evil.example");

#[test]
fn a_page_of_another_host_is_not_let_in_by_what_lets_everybody_in() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.listeners.ws.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.listeners.ws.origins = vec!["https://app.example".to_owned()];
    });
    let code = |host, origin| code_of(&broker, host, origin, false);
    assert_eq!(code("localhost", None), 0, "a program");
    assert_eq!(
        code("localhost", Some("http://localhost:3000")),
        0,
        "the same host"
    );
    assert_eq!(code("127.0.0.1:8083", Some("http://127.0.0.1")), 0);
    assert_eq!(
        code("localhost", Some("https://app.example")),
        0,
        "a listed page"
    );
    assert_eq!(code("localhost", EVIL), 5);
    assert_eq!(code("localhost", Some("null")), 5);
    assert_eq!(
        code("evil.example", EVIL),
        5,
        "a name that was made to resolve here"
    );
    // An open broker cannot tell a correct password from a wrong one.
    assert_eq!(code_of(&broker, "localhost", EVIL, true), 5);
    broker.shutdown();
}

#[test]
fn a_page_of_another_host_is_let_in_with_a_password() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let users = password_of_ann(dir.path());
    let broker = start_with(&dir.path().join("log"), |config| {
        config.listeners.ws.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.auth.password_file = Some(users);
        config.auth.allow_anonymous = true;
    });
    assert_eq!(code_of(&broker, "localhost", EVIL, true), 0);
    assert_eq!(code_of(&broker, "localhost", EVIL, false), 5, "anonymous");
    assert_eq!(code_of(&broker, "localhost", None, false), 0, "a program");
    broker.shutdown();
}
