//! Certificates made for a test, streams with TLS, and clients over them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_broker::Broker;
use headwater_broker::config::{ClientAuth, TlsSettings};
use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::{PacketId, QoS, Version};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::http::ask;
use crate::common::{Client, DEADLINE};

/// The authority that signs the certificates of a test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate, followed by those above it that the client presents, and its key, in PEM.
pub struct Identity {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let own = CertifiedIssuer::self_signed(Self::params(name), key);
        Self(own.expect("a certificate"))
    }

    /// An authority whose certificate is signed by this one, with a serial number by which it can be revoked.
    pub fn below(&self, name: &str, serial: u64) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = Self::params(name);
        params.serial_number = Some(serial.into());
        let signed = CertifiedIssuer::signed_by(params, key, &self.0);
        Self(signed.expect("a certificate"))
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![
            rcgen::KeyUsagePurpose::KeyCertSign,
            rcgen::KeyUsagePurpose::CrlSign,
        ];
        params
    }

    pub fn pem(&self) -> String {
        self.0.as_ref().pem()
    }

    pub fn sign(&self, common_name: &str, uri: Option<&str>) -> Identity {
        self.sign_until(common_name, uri, None)
    }

    /// A certificate with this serial number, by which it can be revoked.
    pub fn sign_numbered(&self, common_name: &str, serial: u64) -> Identity {
        self.sign_with(common_name, |params| {
            params.serial_number = Some(serial.into());
        })
    }

    /// A revocation list in PEM that is valid until the beginning of a year.
    pub fn revoke(&self, serials: &[u64], until_year: i32) -> String {
        let revoked = serials.iter().map(|serial| rcgen::RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: rcgen::date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2000, 1, 1),
            next_update: rcgen::date_time_ymd(until_year, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.0).expect("a list");
        list.pem().expect("PEM")
    }

    /// A certificate that expires so long after now.
    pub fn sign_for(&self, common_name: &str, time: Duration) -> Identity {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let until = now.expect("a clock after 1970") + time;
        self.sign_with(common_name, |params| {
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + until;
        })
    }

    pub fn sign_until(&self, common_name: &str, uri: Option<&str>, year: Option<i32>) -> Identity {
        self.sign_with(common_name, |params| {
            if let Some(uri) = uri {
                let uri = uri.try_into().expect("ASCII");
                params.subject_alt_names.push(SanType::URI(uri));
            }
            if let Some(year) = year {
                params.not_after = rcgen::date_time_ymd(year, 1, 1);
            }
        })
    }

    fn sign_with(
        &self,
        common_name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Identity {
        let names = vec!["localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("a name");
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.0).expect("a certificate");
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Identity {
    /// Presents the certificate of this authority too.
    pub fn with(mut self, authority: &Authority) -> Self {
        self.cert.push_str(&authority.pem());
        self
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
            let chain = CertificateDer::pem_slice_iter(identity.cert.as_bytes());
            let chain = chain.collect::<Result<_, _>>().expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(chain, key).expect("they fit")
        }
        None => builder.with_no_client_auth(),
    })
}

pub trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

pub type TlsWire = StreamOwned<ClientConnection, TcpStream>;

pub fn tls(stream: TcpStream, config: &Arc<ClientConfig>) -> TlsWire {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("settings");
    StreamOwned::new(connection, stream)
}

/// The CONNACK of a new session.
pub const ACCEPTED: [u8; 4] = [0x20, 2, 0, 0];

pub fn connect_packet(client_id: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode::connect(&mut out, &ConnectFields::new(Version::V311, client_id));
    out
}

/// PROXY protocol v2, TCP over IPv4, from port 12345 of a client.
pub fn proxy_header(client: [u8; 4]) -> Vec<u8> {
    let before = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    let after = b"\x0a\0\0\x01\x30\x39\x07\x5b";
    [&before[..], &client, after].concat()
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

/// A clean session of MQTT 3.1.1.
pub fn connect<W: Wire>(wire: W, client_id: &str) -> Client<W> {
    try_connect(wire, client_id).expect("the broker takes the client")
}

/// `None` if the connection is closed or refused instead.
pub fn try_connect<W: Wire>(wire: W, client_id: &str) -> Option<Client<W>> {
    let mut client = Client::over(wire, Version::V311);
    client.try_send(&connect_packet(client_id)).ok()?;
    (client.packet()? == ACCEPTED).then_some(client)
}

/// The value of a metric by its full name with labels.
pub fn metric(broker: &Broker, name: &str) -> f64 {
    value_in(&http(broker, "/metrics"), name)
}

/// The same in the text of all metrics.
pub fn value_in(text: &str, name: &str) -> f64 {
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
    ask(
        broker.admin_address(),
        &format!("GET {path}"),
        &["Host: localhost"],
    )
}

pub fn http_as_ann(broker: &Broker, path: &str) -> String {
    let shown = format!("Authorization: Basic {}", STANDARD.encode("ann:pw"));
    let headers = ["Host: localhost", &shown];
    ask(broker.admin_address(), &format!("GET {path}"), &headers)
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
