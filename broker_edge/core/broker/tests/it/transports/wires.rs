//! Certificates made for a test, and a small blocking MQTT client over any stream.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_broker::Broker;
use headwater_broker::config::{ClientAuth, TlsSettings};
use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{Frame, PacketId, QoS, Version, frame};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::DEADLINE;

/// The authority that signs the certificates of a test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub struct Identity {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub fn pem(&self) -> String {
        self.0.as_ref().pem()
    }

    pub fn sign(&self, common_name: &str, uri: Option<&str>) -> Identity {
        self.sign_until(common_name, uri, None)
    }

    pub fn sign_until(&self, common_name: &str, uri: Option<&str>, year: Option<i32>) -> Identity {
        let names = vec!["localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("a name");
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        if let Some(uri) = uri {
            let uri = uri.try_into().expect("ASCII");
            params.subject_alt_names.push(SanType::URI(uri));
        }
        if let Some(year) = year {
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.0).expect("a certificate");
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Writes the files of a listener and returns the settings that name them.
pub fn tls_settings(dir: &Path, identity: &Identity, clients: Option<&Authority>) -> TlsSettings {
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).expect("the folder takes files");
        path
    };
    TlsSettings {
        cert: Some(file("cert.pem", &identity.cert)),
        key: Some(file("key.pem", &identity.key)),
        client_ca: clients.map(|clients| file("clients.pem", &clients.pem())),
        client_auth: clients.map_or(ClientAuth::None, |_| ClientAuth::Required),
        ..TlsSettings::default()
    }
}

/// A client's side of TLS.
pub fn client_config(authority: &Authority, identity: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM");
    roots.add(root).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    Arc::new(match identity {
        Some(identity) => {
            let cert = CertificateDer::from_pem_slice(identity.cert.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
            builder
                .with_client_auth_cert(vec![cert], key)
                .expect("they fit")
        }
        None => builder.with_no_client_auth(),
    })
}

pub trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

pub type TlsWire = StreamOwned<ClientConnection, TcpStream>;

pub fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.set_nodelay(true).expect("an open socket");
    stream
}

pub fn tls(stream: TcpStream, config: &Arc<ClientConfig>) -> TlsWire {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("settings");
    StreamOwned::new(connection, stream)
}

/// MQTT 3.1.1 over a stream.
pub struct Mqtt<W> {
    pub wire: W,
    received: Vec<u8>,
}

pub fn connect_packet(client_id: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode::connect(&mut out, &ConnectFields::new(Version::V311, client_id));
    out
}

pub fn publish_packet(topic: &str, payload: &[u8]) -> Vec<u8> {
    let fields = PublishFields {
        version: Version::V311,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic,
        packet_id: PacketId::new(1),
        properties: &[],
        extra: &[],
    };
    let mut out = Vec::new();
    fields.encode(&mut out, payload).expect("a packet");
    out
}

impl<W: Wire> Mqtt<W> {
    /// Opens it without sending anything.
    pub fn over(wire: W) -> Self {
        Self {
            wire,
            received: Vec::new(),
        }
    }

    pub fn connect(wire: W, client_id: &str) -> Self {
        Self::try_connect(wire, client_id).expect("the broker takes the client")
    }

    /// `None` if the connection is closed or refused instead.
    pub fn try_connect(wire: W, client_id: &str) -> Option<Self> {
        let mut client = Self::over(wire);
        client.wire.write_all(&connect_packet(client_id)).ok()?;
        client.wire.flush().ok()?;
        let connack = client.packet()?;
        (connack == [0x20, 2, 0, 0]).then_some(client)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.wire.write_all(bytes).expect("the broker reads");
        self.wire.flush().expect("the broker reads");
    }

    /// A QoS 1 publish, with its PUBACK.
    pub fn publish(&mut self, topic: &str, payload: &[u8]) {
        self.send(&publish_packet(topic, payload));
        loop {
            let packet = self.packet().expect("the connection is open");
            if packet == [0x40, 2, 0, 1] {
                return;
            }
        }
    }

    pub fn subscribe(&mut self, filter: &str) {
        let mut out = Vec::new();
        let options = SubscriptionOptions::new(QoS::AtMostOnce);
        let id = PacketId::new(9).expect("not zero");
        let subscriptions = [Subscription { filter, options }];
        encode::subscribe(&mut out, Version::V311, id, &[], &subscriptions);
        self.send(&out);
        assert_eq!(self.packet().expect("a SUBACK")[..4], [0x90, 3, 0, 9]);
    }

    /// The next complete packet; `None` at the end of the connection.
    pub fn packet(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Ok(Frame::Whole { total_len, .. }) = frame::next(&self.received, 1 << 28) {
                return Some(self.received.drain(..total_len).collect());
            }
            match self.wire.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// The payload of the next QoS 0 message.
    pub fn message(&mut self) -> Vec<u8> {
        loop {
            let packet = self.packet().expect("the connection is open");
            if packet[0] >> 4 == 3 {
                let body = &packet[packet.len() - body_len(&packet)..];
                let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
                return body[2 + topic..].to_vec();
            }
        }
    }
}

fn body_len(packet: &[u8]) -> usize {
    let bytes = packet[1..].iter().take_while(|byte| *byte & 0x80 != 0);
    packet.len() - 2 - bytes.count()
}

/// The value of a metric by its full name with labels.
pub fn metric(broker: &Broker, name: &str) -> f64 {
    let text = http(broker, "/metrics");
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Waits until `count` connections have ended for this reason before MQTT. The broker counts a connection after it has
/// closed it, so a client may look too early.
pub fn expect_failures(broker: &Broker, reason: &str, count: f64) {
    let name = format!("headwater_mqtt_connects_failed_total{{reason=\"{reason}\"}}");
    let deadline = Instant::now() + DEADLINE;
    loop {
        let counted = metric(broker, &name);
        if counted == count {
            return;
        }
        assert!(
            counted < count && Instant::now() < deadline,
            "{counted} connections failed with {reason}, not {count}"
        );
        std::thread::yield_now();
    }
}

pub fn http(broker: &Broker, path: &str) -> String {
    ask(broker, path, "")
}

pub fn http_as_ann(broker: &Broker, path: &str) -> String {
    let shown = STANDARD.encode("ann:pw");
    ask(broker, path, &format!("Authorization: Basic {shown}\r\n"))
}

fn ask(broker: &Broker, path: &str, header: &str) -> String {
    let mut stream = tcp(broker.admin_address());
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}");
    let request = format!("{head}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

/// A password file with the user ann, whose password is fast to check.
pub fn password_of_ann(dir: &Path) -> PathBuf {
    let digest = ring::digest::digest(&ring::digest::SHA512, b"pwsalt");
    let (salt, hash) = (STANDARD.encode("salt"), STANDARD.encode(digest));
    let file = dir.join("users");
    fs::write(&file, format!("ann:$6${salt}${hash}\n")).expect("the folder takes files");
    file
}

/// All bytes until the end of the connection.
pub fn answer(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset also counts as an end.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}
