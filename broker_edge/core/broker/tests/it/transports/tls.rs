//! MQTT over TLS: authentication by certificate, and replacing certificates.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;

use headwater_broker::Broker;
use headwater_broker::config::{ClientAuth, TlsSettings, TlsVersion};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::wires::{
    Authority, Identity, client_config, connect, expect_failures, metric, tls, tls_settings,
    try_connect,
};
use crate::common::{start_with, tcp, try_start_with};

fn start(dir: &Path, settings: TlsSettings) -> Broker {
    start_with(dir, |config| listen(config, settings))
}

fn listen(config: &mut headwater_broker::config::Config, settings: TlsSettings) {
    config.listeners.mqtts.bind.0 = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.listeners.mqtts.tls = settings;
}

fn address(broker: &Broker) -> SocketAddr {
    broker.addresses("mqtts")[0]
}

#[test]
fn large_messages_travel_whole_in_both_directions() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start(dir.path(), settings);
    let config = client_config(&authority, None);
    let mut reader = connect(tls(tcp(address(&broker)), &config), "reader");
    let mut writer = connect(tls(tcp(address(&broker)), &config), "writer");
    reader.subscribe("t", 0);
    let payload: Vec<u8> = (0..900_000u32).map(|n| (n * 7) as u8).collect();
    for size in [0, 1, 5_000, 40_000, 70_000, 300_000, 900_000] {
        writer.publish("t", &payload[..size]);
        assert!(reader.message().payload == payload[..size], "{size} bytes");
    }
    assert_eq!(metric(&broker, "headwater_tls_handshakes_total"), 2.0);
}

#[test]
fn a_required_certificate_lets_only_those_in_whom_the_authority_signed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (authority, clients, others) = (
        Authority::new("ca"),
        Authority::new("a"),
        Authority::new("b"),
    );
    let server = authority.sign("broker", None);
    let broker = start(
        dir.path(),
        tls_settings(dir.path(), &server, Some(&clients)),
    );
    let enter = |identity: Option<&Identity>| {
        let wire = tls(tcp(address(&broker)), &client_config(&authority, identity));
        try_connect(wire, "c")
    };
    let good = clients.sign("dev-7", Some("urn:device:7"));
    enter(Some(&good)).expect("signed").publish("t", b"x");
    assert!(enter(None).is_none());
    assert!(enter(Some(&others.sign("dev-7", None))).is_none());
    let expired = clients.sign_until("dev-7", None, Some(2001));
    assert!(enter(Some(&expired)).is_none());
    expect_failures(&broker, "certificate", 3.0);
    enter(Some(&good)).expect("others are still served");
}

#[test]
fn an_optional_certificate_may_be_left_out_but_not_be_wrong() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (authority, clients) = (Authority::new("ca"), Authority::new("clients"));
    let server = authority.sign("broker", None);
    let mut settings = tls_settings(dir.path(), &server, Some(&clients));
    settings.client_auth = ClientAuth::Optional;
    settings.min_version = TlsVersion::V13;
    let broker = start(dir.path(), settings);
    let wire = |identity: Option<&Identity>| {
        tls(tcp(address(&broker)), &client_config(&authority, identity))
    };
    connect(wire(None), "without");
    connect(wire(Some(&clients.sign("with", None))), "with");
    assert!(try_connect(wire(Some(&authority.sign("no", None))), "no").is_none());
}

#[test]
fn certificates_are_replaced_while_connections_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let (first, second) = (
        authority.sign("first", None),
        authority.sign("second", None),
    );
    let broker = start(dir.path(), tls_settings(dir.path(), &first, None));
    let config = client_config(&authority, None);
    let enter = |id: &str| connect(tls(tcp(address(&broker)), &config), id);
    let mut early = enter("early");

    // A key that does not match: everything stays as it is.
    fs::write(dir.path().join("key.pem"), &second.key).expect("a file");
    let refused = broker.reload_certificates().expect_err("they do not fit");
    assert!(
        refused.to_string().contains("is not the key of"),
        "{refused}"
    );
    enter("between").publish("t", b"x");

    fs::write(dir.path().join("cert.pem"), &second.cert).expect("a file");
    broker.reload_certificates().expect("they fit again");
    let late = enter("late");
    let shown = late.stream.conn.peer_certificates().expect("a certificate")[0].clone();
    let expected = CertificateDer::from_pem_slice(second.cert.as_bytes()).expect("PEM");
    assert_eq!(shown, expected);
    early.publish("t", b"the connection from before goes on");
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let (one, other) = (authority.sign("one", None), authority.sign("other", None));
    let good = tls_settings(dir.path(), &one, None);
    fs::write(dir.path().join("other.pem"), &other.key).expect("a file");
    fs::write(dir.path().join("text.pem"), "no PEM").expect("a file");
    let pipe = dir.path().join("pipe.pem");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    let file = |name: &str| Some(dir.path().join(name));
    for (settings, sentence) in [
        (
            TlsSettings {
                cert: file("none.pem"),
                ..good.clone()
            },
            "listeners.mqtts.tls.cert: cannot read ",
        ),
        (
            TlsSettings {
                key: file("pipe.pem"),
                ..good.clone()
            },
            "pipe.pem: it is no regular file",
        ),
        (
            TlsSettings {
                key: file("text.pem"),
                ..good.clone()
            },
            "text.pem contains no private key in PEM format",
        ),
        (
            TlsSettings {
                cert: file("text.pem"),
                ..good.clone()
            },
            "text.pem contains no certificate in PEM format",
        ),
        (
            TlsSettings {
                key: file("other.pem"),
                ..good.clone()
            },
            "other.pem is not the key of the certificate ",
        ),
    ] {
        let error = try_start_with(dir.path(), |config| listen(config, settings))
            .err()
            .expect("it must not start");
        assert!(error.to_string().contains(sentence), "{error}");
    }
}

#[test]
fn a_storm_of_handshakes_is_served_and_those_who_are_connected_too() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::new("ca");
    let settings = tls_settings(dir.path(), &authority.sign("broker", None), None);
    let broker = start(dir.path(), settings);
    let config = client_config(&authority, None);
    let mut live = connect(tcp(broker.mqtt_address()), "live");
    let (done, waits) = mpsc::channel();
    for storm in 0..4 {
        let (done, config, address) = (done.clone(), config.clone(), address(&broker));
        std::thread::spawn(move || {
            // All sockets first, so that the handshakes start together.
            let sockets: Vec<_> = (0..40).map(|_| tcp(address)).collect();
            for (index, socket) in sockets.into_iter().enumerate() {
                connect(tls(socket, &config), &format!("s{storm}-{index}"));
            }
            done.send(()).expect("the test waits");
        });
    }
    drop(done);
    let mut rounds = 0;
    while let Err(mpsc::TryRecvError::Empty) = waits.try_recv() {
        live.publish("t", b"x");
        rounds += 1;
    }
    assert_eq!(waits.iter().count(), 3);
    assert!(rounds > 0);
    assert_eq!(metric(&broker, "headwater_tls_handshakes_total"), 160.0);
}
