//! Every listener carries MQTT, and a proxy's header names the client.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use headwater_mqtt::Version;

use super::wires::{
    ACCEPTED, Authority, Identity, answer, client_config, connect, connect_packet, expect_failures,
    http, http_as_ann, password_of_ann, proxy_header, tls, tls_settings, try_connect,
};
use crate::common::{Client, start_with, tcp};

fn free(host: &str) -> SocketAddr {
    format!("{host}:0").parse().expect("an address")
}

#[test]
fn a_listener_takes_connections_on_all_its_addresses_of_ipv4_and_ipv6() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| {
        config.listeners.mqtt.bind.0 = vec![free("127.0.0.1"), free("[::1]"), free("127.0.0.1")];
    });
    let addresses = broker.addresses("mqtt");
    assert_eq!(addresses.len(), 3);
    assert!(addresses[1].is_ipv6());
    let connected = addresses
        .into_iter()
        .enumerate()
        .map(|(index, address)| connect(tcp(address), &format!("c{index}")));
    let mut clients: Vec<_> = connected.collect();
    clients
        .iter_mut()
        .for_each(|client| client.publish("t", b"x"));
    assert!(http(&broker, "/api/v1/clients").contains("[::1]:"));
}

const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

#[test]
fn a_proxys_header_names_the_client_and_is_required_where_it_is_configured() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start_with(dir.path(), |config| {
        config.listeners.mqtt.proxy_protocol = true;
        config.auth.allow_anonymous = true;
        config.auth.password_file = Some(password_of_ann(dir.path()));
        config.auth.operators = vec!["ann".to_owned()];
        config.listeners.mqtts.bind.0 = vec![free("127.0.0.1")];
        config.listeners.mqtts.proxy_protocol = true;
        config.listeners.mqtts.tls = settings;
    });
    let header = proxy_header([192, 0, 2, 7]);
    // The header and the CONNECT in one piece, and byte by byte.
    let mut whole = Client::open(broker.mqtt_address(), Version::V311);
    whole.send(|out| out.extend([&header[..], &connect_packet("whole")].concat()));
    assert_eq!(whole.packet().expect("a CONNACK"), ACCEPTED);
    let mut bytes = Client::open(broker.mqtt_address(), Version::V311);
    for byte in [&header[..], &connect_packet("bytes")].concat() {
        bytes.send(|out| out.push(byte));
    }
    assert_eq!(bytes.packet().expect("a CONNACK"), ACCEPTED);
    // Before TLS.
    let mut stream = tcp(broker.addresses("mqtts")[0]);
    stream.write_all(&header).expect("the broker reads");
    let _secure = connect(tls(stream, &client_config(&authority, None)), "secure");
    // The proxy itself.
    let mut local = Client::open(broker.mqtt_address(), Version::V311);
    local.send(|out| out.extend([LOCAL, &connect_packet("local")].concat()));
    assert_eq!(local.packet().expect("a CONNACK"), ACCEPTED);

    let clients = http_as_ann(&broker, "/api/v1/clients");
    assert_eq!(clients.matches("192.0.2.7:12345").count(), 3, "{clients}");
    assert!(clients.contains("127.0.0.1:"), "{clients}");

    assert!(try_connect(tcp(broker.mqtt_address()), "bare").is_none());
    expect_failures(&broker, "proxy", 1.0);
}

#[test]
fn admin_and_flight_speak_tls_only_where_they_have_a_certificate() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (authority, clients) = (Authority::new("ca"), Authority::new("clients"));
    let server = authority.sign("broker", None);
    let settings = tls_settings(dir.path(), &server, Some(&clients));
    let broker = start_with(dir.path(), |config| {
        config.listeners.flight.tls = settings.clone();
        config.listeners.admin.tls = settings;
    });
    let client = clients.sign("operator", None);
    let ask = |identity: Option<&Identity>| {
        let config = client_config(&authority, identity);
        let mut wire = tls(tcp(broker.admin_address()), &config);
        // The refusal of a certificate may arrive while this is sent.
        let _ = wire
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        String::from_utf8(answer(&mut wire)).expect("text")
    };
    assert!(ask(Some(&client)).starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(ask(None), "");
    for address in [broker.admin_address(), broker.flight_address()] {
        let mut plain = tcp(address);
        plain
            .write_all(b"GET /healthz HTTP/1.1\r\n\r\n")
            .expect("it reads");
        assert!(!answer(&mut plain).starts_with(b"HTTP"), "{address}");
    }
    // The preface of HTTP/2 is answered with its settings.
    let mut config = (*client_config(&authority, Some(&client))).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut wire = tls(tcp(broker.flight_address()), &Arc::new(config));
    wire.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .expect("it reads");
    let mut header = [0; 9];
    wire.read_exact(&mut header).expect("it answers");
    assert_eq!(header[3], 4, "a SETTINGS frame");
}
