//! Clients with the wrong protocol for the port are answered if possible, and counted by kind.

use std::io::Write;
use std::net::SocketAddr;

use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};

use super::wires::{
    Authority, answer, client_config, connect, connect_packet, expect_failures, tls, tls_settings,
    try_connect,
};
use crate::common::{start_with, tcp};

#[test]
fn the_wrong_protocol_is_answered_and_counted_by_kind() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_with(dir.path(), |config| {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        config.listeners.mqtts.bind.0 = vec![free];
        config.listeners.mqtts.tls = settings;
        config.listeners.ws.bind.0 = vec![free];
    });
    let (mqtt, mqtts, ws) = (
        broker.mqtt_address(),
        broker.addresses("mqtts")[0],
        broker.addresses("ws")[0],
    );
    let ask = |address: SocketAddr, bytes: &[u8]| {
        let mut stream = tcp(address);
        stream.write_all(bytes).expect("the broker reads");
        answer(&mut stream)
    };
    let mut v5 = Vec::new();
    encode::connect(&mut v5, &ConnectFields::new(Version::V5, "c"));
    let get = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

    // TLS on a port without TLS.
    for address in [mqtt, ws] {
        let config = client_config(&authority, None);
        assert!(try_connect(tls(tcp(address), &config), "c").is_none());
    }
    expect_failures(&broker, "tls_on_plain", 2.0);

    // Plain MQTT on the TLS port: a CONNACK in the client's version.
    assert_eq!(ask(mqtts, &connect_packet("c")), [0x20, 2, 0, 3]);
    let connack = ask(mqtts, &v5);
    assert_eq!((connack[0], connack[3]), (0x20, 0x83));
    assert!(String::from_utf8_lossy(&connack).contains("TLS"));
    expect_failures(&broker, "plain_on_tls", 2.0);

    // HTTP on both.
    for address in [mqtt, mqtts] {
        let text = String::from_utf8(ask(address, get)).expect("text");
        assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
        assert!(text.contains("This port "), "{text}");
    }
    expect_failures(&broker, "http_on_mqtt", 2.0);

    // MQTT on the WebSocket port.
    assert_eq!(ask(ws, &connect_packet("c")), [0x20, 2, 0, 3]);
    expect_failures(&broker, "mqtt_on_websocket", 1.0);

    // An unexpected proxy header, and bytes of no known protocol.
    assert_eq!(ask(mqtt, b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n"), b"");
    expect_failures(&broker, "proxy", 1.0);
    assert_eq!(ask(mqtt, &[0xc0, 0]), b"");
    expect_failures(&broker, "other", 1.0);

    // A client with the right protocol is served.
    connect(tcp(mqtt), "right").publish("t", b"x");
}
