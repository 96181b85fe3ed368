//! TLS, client certificates and WebSocket between the tool and the small broker, and what is said when they fail.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use headwater_bench::{BenchError, Report, measure, plan_of};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};
use tungstenite::handshake::server::{Request, Response};
use tungstenite::http::HeaderValue;
use tungstenite::{Bytes, Message, WebSocket};

use crate::small_broker::{Behaviour, Link, SmallBroker, Wrap};

/// What a broker's certificate is, and what it asks of its clients.
#[derive(Clone, Copy)]
struct Offer {
    name: &'static str,
    is_expired: bool,
    asks_certificate: bool,
    version: &'static SupportedProtocolVersion,
}

const GOOD: Offer = Offer {
    name: "localhost",
    is_expired: false,
    asks_certificate: false,
    version: &TLS13,
};

/// An authority, and the files that clients need: `ca`, `cert` and `key`.
struct Pki {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let device = CertificateParams::new(vec!["device".to_owned()]).unwrap();
        let device = device.signed_by(&key, &issuer).unwrap();
        std::fs::write(folder.path().join("ca"), issuer.pem()).unwrap();
        std::fs::write(folder.path().join("cert"), device.pem()).unwrap();
        std::fs::write(folder.path().join("key"), key.serialize_pem()).unwrap();
        Self { folder, issuer }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn server(&self, offer: Offer) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![offer.name.to_owned()]).unwrap();
        if offer.is_expired {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let verifier = if offer.asks_certificate {
            let roots = Arc::new(roots);
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
                .build()
                .unwrap()
        } else {
            WebPkiClientVerifier::no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[offer.version])
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        Arc::new(config)
    }
}

type TlsLink = StreamOwned<ServerConnection, TcpStream>;

impl Link for TlsLink {}

/// A WebSocket as a stream of bytes, in frames of whatever is written at once.
struct Frames<S>(WebSocket<S>, Bytes);

impl<S: Read + Write> Read for Frames<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.1.is_empty() {
            match self.0.read() {
                Ok(Message::Binary(bytes)) => self.1 = bytes,
                Ok(_) => {}
                Err(_) => return Ok(0),
            }
        }
        let count = self.1.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.1.split_to(count));
        Ok(count)
    }
}

impl<S: Read + Write> Write for Frames<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Packets and frames need not coincide, and pings may come at any time.
        for piece in bytes.chunks(bytes.len().div_ceil(2).max(1)) {
            let ping = Message::Ping(Bytes::from_static(b"?"));
            let data = Message::Binary(Bytes::copy_from_slice(piece));
            for message in [ping, data] {
                self.0.send(message).map_err(io::Error::other)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Read + Write> Link for Frames<S> {}

/// Finishes the handshake; the socket is closed in order when it fails, so that the client can read the alert.
fn secured(tcp: TcpStream, config: &Arc<ServerConfig>) -> Option<TlsLink> {
    let mut tls = ServerConnection::new(Arc::clone(config)).unwrap();
    let mut tcp = tcp;
    while tls.is_handshaking() {
        if tls.complete_io(&mut tcp).is_err() {
            let _ = tcp.shutdown(Shutdown::Write);
            let _ = io::copy(&mut tcp, &mut io::sink());
            return None;
        }
    }
    Some(StreamOwned::new(tls, tcp))
}

#[expect(clippy::result_large_err, reason = "the type is that of tungstenite")]
fn upgraded<S: Read + Write>(stream: S) -> Option<Frames<S>> {
    let accept = |request: &Request, mut response: Response| {
        assert_eq!(request.headers()["sec-websocket-protocol"], "mqtt");
        assert_eq!(request.uri().path(), "/mqtt");
        let mqtt = HeaderValue::from_static("mqtt");
        response
            .headers_mut()
            .insert("sec-websocket-protocol", mqtt);
        Ok(response)
    };
    let socket = tungstenite::accept_hdr(stream, accept).ok()?;
    Some(Frames(socket, Bytes::new()))
}

/// The layers by their scheme.
fn wrap(scheme: &str, config: Option<Arc<ServerConfig>>) -> Arc<Wrap> {
    let is_websocket = scheme.starts_with("ws");
    Arc::new(move |tcp| {
        Some(match (&config, is_websocket) {
            (Some(config), true) => Box::new(upgraded(secured(tcp, config)?)?),
            (Some(config), false) => Box::new(secured(tcp, config)?),
            (None, true) => Box::new(upgraded(tcp)?),
            (None, false) => Box::new(tcp),
        })
    })
}

fn command(words: &str) -> Result<Report, BenchError> {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let plan = plan_of(&words).expect("it is well-formed");
    measure(&plan.expect("no help"), &AtomicBool::new(false))
}

/// The message of a run that must fail to connect, over each scenario that connects in its own way.
fn refusals(words: &str) -> Vec<String> {
    ["pub -n 20 -c 3", "connect -n 20 -c 3"]
        .map(|scenario| {
            let error = command(&format!("{scenario} {words}")).expect_err(words);
            assert_eq!(error.exit_code(), 3, "{words}: {error}");
            error.to_string()
        })
        .into()
}

#[test]
fn every_message_arrives_through_any_layers() {
    let pki = Pki::new("one");
    let ca = pki.path("ca");
    for scheme in ["mqtt", "mqtts", "ws", "wss"] {
        let tls = scheme.ends_with('s') && scheme != "ws";
        let config = tls.then(|| pki.server(GOOD));
        let broker = SmallBroker::start_with(Behaviour::default(), wrap(scheme, config));
        let trust = if tls {
            format!("--tls-ca {ca}")
        } else {
            String::new()
        };
        let at = format!(
            "--mqtt {scheme}://localhost:{} {trust}",
            broker.address.port()
        );
        let seen = |what: &AtomicU64| what.swap(0, Ordering::Relaxed);
        let report = command(&format!("pub -n 3000 -c 5 -q 0:1,1:1,2:1 {at}")).expect(scheme);
        assert_eq!(
            (report.sent, report.acked, report.is_short()),
            (3000, 2000, false)
        );
        assert_eq!(seen(&broker.seen.publishes), 3000, "{scheme}");
        seen(&broker.seen.bytes);
        // More than the buffers of the sockets, so that sends are interrupted.
        let large = format!("pub -n 64 -c 2 -w 32 -s 1000000:1,70000:1 --protocol 5 {at}");
        let report = command(&large).expect(scheme);
        assert_eq!((report.sent, report.acked), (64, 64), "{scheme}");
        assert_eq!(seen(&broker.seen.bytes), 32 * 1_070_000, "{scheme}");
        seen(&broker.seen.connects);
        let report = command(&format!("connect -n 40 -c 8 {at}")).expect(scheme);
        assert_eq!(
            (report.acked, seen(&broker.seen.connects)),
            (40, 40),
            "{scheme}"
        );
    }
}

#[test]
fn a_broker_that_asks_for_a_certificate_gets_one() {
    let pki = Pki::new("one");
    for version in [&TLS12, &TLS13] {
        let asks_certificate = true;
        let config = pki.server(Offer {
            asks_certificate,
            version,
            ..GOOD
        });
        let broker = SmallBroker::start_with(Behaviour::default(), wrap("mqtts", Some(config)));
        let port = broker.address.port();
        let at = format!(
            "--mqtt mqtts://localhost:{port} --tls-ca {}",
            pki.path("ca")
        );
        let (cert, key) = (pki.path("cert"), pki.path("key"));
        let with = format!("pub -n 100 -c 3 {at} --tls-cert {cert} --tls-key file:{key}");
        assert_eq!(command(&with).expect("it has one").acked, 100);
        for said in refusals(&at) {
            assert!(said.contains("--tls-cert"), "{version:?}: {said}");
        }
        let connects = broker.seen.connects.load(Ordering::Relaxed);
        assert_eq!(connects, 3, "those without a certificate never got to MQTT");
    }
}

#[test]
fn a_certificate_that_cannot_be_trusted_is_said_with_its_reason() {
    let [pki, same_name, other] = ["one", "one", "other"].map(Pki::new);
    let name = "elsewhere.example";
    for (offer, trust, named) in [
        (GOOD, &other, "--tls-ca"),
        (GOOD, &same_name, "--tls-ca"),
        (
            Offer {
                is_expired: true,
                ..GOOD
            },
            &pki,
            "expired",
        ),
        (Offer { name, ..GOOD }, &pki, name),
    ] {
        for scheme in ["mqtts", "wss"] {
            let config = Some(pki.server(offer));
            let broker = SmallBroker::start_with(Behaviour::default(), wrap(scheme, config));
            let port = broker.address.port();
            let ca = trust.path("ca");
            for said in refusals(&format!("--mqtt {scheme}://localhost:{port} --tls-ca {ca}")) {
                assert!(said.contains(named) && !said.contains('\n'), "{said}");
            }
            assert_eq!(broker.seen.connects.load(Ordering::Relaxed), 0);
        }
    }
}

/// A listener that reads a little, gives one answer to everybody, and closes.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    });
    address.to_string()
}

#[test]
fn a_port_of_another_protocol_is_recognized() {
    const ALERT: &[u8] = b"\x15\x03\x01\x00\x02\x02\x46";
    const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nnope\n";
    const CONNACK: &[u8] = b"\x20\x02\x00\x00";
    let pki = Pki::new("one");
    let ca = format!("--tls-ca {}", pki.path("ca"));
    let (none, ca) = ("", ca.as_str());
    for (answer, scheme, trust, named) in [
        (ALERT, "mqtt", none, "expects TLS"),
        (HTTP, "mqtt", none, "ws://"),
        (b"HTTP", "mqtt", none, "ws://"),
        (b"", "mqtt", none, "without an answer to CONNECT"),
        (CONNACK, "mqtts", ca, "write mqtt://"),
        (HTTP, "mqtts", ca, "write mqtt://"),
        (b"", "mqtts", ca, "write mqtt://"),
        (b"", "wss", ca, "write mqtt://"),
        (CONNACK, "ws", none, "WebSocket request"),
        (HTTP, "ws", none, "400 Bad Request: nope"),
        (b"", "ws", none, "does this port speak WebSocket"),
    ] {
        let place = answering(answer);
        for said in refusals(&format!("--mqtt {scheme}://{place} {trust}")) {
            let is_one_sentence = !said.contains('\n') && said.contains(&place);
            assert!(said.contains(named) && is_one_sentence, "{scheme}: {said}");
        }
    }
}

#[test]
fn text_frames_end_the_measurement() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            let Some(mut frames) = upgraded(tcp) else {
                continue;
            };
            let _ = frames.read(&mut [0; 1024]);
            let _ = frames.0.send(Message::text("hello"));
            let _ = frames.read(&mut [0; 1024]);
        }
    });
    for said in refusals(&format!("--mqtt ws://{place}")) {
        assert!(said.contains("text frame"), "{said}");
    }
}
