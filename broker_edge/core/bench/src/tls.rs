//! TLS to the broker: who is trusted, with which certificate the clients answer, and one client's encrypted socket.
//!
//! rustls keeps the state of a connection; this module moves its bytes. Reading never waits for writing: a broker that
//! is full of our messages must still be able to deliver its own.

use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};

use crate::secrets;

/// Where systems keep the authorities that they trust; `SSL_CERT_FILE` goes before them.
const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// rustls asks for 4 KiB at a time; the socket is read in pieces of this size.
const READ_BYTES: usize = 16 << 10;

/// PEM files by path or reference, as given on the command line or, where absent, in the environment.
#[derive(Debug, Default)]
pub struct Given {
    pub ca: Option<String>,
    pub cert: Option<String>,
    pub key: Option<String>,
}

impl Given {
    pub fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none() && self.key.is_none()
    }

    /// Fills what the command line has left out.
    pub fn or_from(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        self.ca = self.ca.or_else(|| variable("HEADWATER_TLS_CA"));
        if self.cert.is_none() && self.key.is_none() {
            self.cert = variable("HEADWATER_TLS_CERT");
            self.key = variable("HEADWATER_TLS_KEY");
        }
        self
    }
}

/// The TLS settings of all connections of a run.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// Settings for a broker with the name or IP address `host`.
    pub fn new(host: &str, given: &Given) -> Result<Self, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("--mqtt: `{host}` cannot be the name in a certificate"))?;
        let mut roots = RootCertStore::empty();
        match &given.ca {
            Some(ca) => {
                for certificate in certificates(ca, "--tls-ca")? {
                    roots
                        .add(certificate)
                        .map_err(|error| format!("--tls-ca: {ca}: {error}"))?;
                }
            }
            None => {
                let file = system_file()?;
                // Systems ship authorities that rustls cannot use; the others count.
                roots.add_parsable_certificates(certificates(&file, "SSL_CERT_FILE")?);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match (&given.cert, &given.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let private =
                    PrivateKeyDer::from_pem_slice(&pem(key, "--tls-key")?).map_err(|_| {
                        format!("--tls-key: {key} contains no private key in PEM format")
                    })?;
                builder
                    .with_client_auth_cert(certificates(cert, "--tls-cert")?, private)
                    .map_err(|error| match error {
                        Error::InconsistentKeys(_) => {
                            format!("--tls-key: {key} is not the key of the certificate {cert}")
                        }
                        other => format!("--tls-cert: {cert}: {other}"),
                    })?
            }
            _ => {
                return Err(
                    "a certificate and its key belong together: give --tls-cert and --tls-key"
                        .to_owned(),
                );
            }
        };
        // Every client is another device, and none has been here before.
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        Ok(Self { config, name })
    }
}

fn system_file() -> Result<String, String> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let found = SYSTEM_FILES.map(PathBuf::from).into_iter();
    named
        .or_else(|| found.map(|path| path.display().to_string()).find(|path| std::fs::exists(path).unwrap_or(false)))
        .ok_or("no file with the authorities that this system trusts was found: give --tls-ca, or SSL_CERT_FILE".to_owned())
}

/// A path alone is a file.
fn pem(place: &str, what: &str) -> Result<Vec<u8>, String> {
    let is_reference = place.starts_with("file:") || place.starts_with("env:");
    if is_reference {
        return secrets::read(place, what);
    }
    std::fs::read(place).map_err(|error| {
        format!("{what}: cannot read {place} ({error}): check the path and its permissions")
    })
}

fn certificates(place: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(place, what)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!(
            "{what}: {place} contains no certificate in PEM format"
        )),
    }
}

/// A socket with TLS, as a non-blocking stream of plaintext.
#[derive(Debug)]
pub struct TlsSocket {
    tls: ClientConnection,
    tcp: BufReader<TcpStream>,
}

impl TlsSocket {
    pub fn new(tcp: TcpStream, tls: &Tls) -> io::Result<Self> {
        let tls = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
        Ok(Self {
            tls: tls.map_err(|error| failed(&error))?,
            tcp: BufReader::with_capacity(READ_BYTES, tcp),
        })
    }

    /// Continues the handshake. Returns true when it is complete, as far as the client knows.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        loop {
            self.write_out()?;
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            match self.take_records() {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the broker closed the connection during the TLS handshake: write mqtt:// or ws:// for a port without TLS",
                    ));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives and decrypts a piece; zero at the end of the socket.
    fn take_records(&mut self) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut self.tcp)?;
        if let Err(error) = self.tls.process_new_packets() {
            // The broker is told if its socket has room; the connection ends in any case.
            let _ = self.write_out();
            return Err(failed(&error));
        }
        // Answers to the handshake and to key updates; what remains is sent with the next messages.
        self.write_out()?;
        Ok(count)
    }

    /// Returns false when the socket is full.
    fn write_out(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(self.tcp.get_mut()) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Read for TlsSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The socket ended without a TLS close. MQTT has its own DISCONNECT.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            self.take_records()?;
        }
    }
}

impl Write for TlsSocket {
    /// Encrypts as much as rustls buffers, and only when the bytes before have been sent.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let count = self.tls.writer().write(bytes)?;
        self.write_out()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.write_out()? {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }
}

fn failed(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, sentence(error))
}

/// What went wrong, and what to do about it.
fn sentence(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(reason) => match reason {
            // The other reason is an authority that was made again with the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the broker's certificate is not signed by a trusted authority: name the authority with --tls-ca"
                    .to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("the broker's certificate has expired ({reason}): renew it, or set the clock of this machine")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("the broker's certificate has another name ({reason}): use its name in --mqtt")
            }
            other => format!("the broker's certificate is refused: {other}"),
        },
        Error::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
        ) => format!("{error}: the broker may require a client certificate, see --tls-cert and --tls-key"),
        Error::AlertReceived(_) => {
            format!("{error}: the broker ended the TLS handshake; check --tls-cert if it asks for a certificate")
        }
        Error::InvalidMessage(_) => {
            format!("the broker did not answer with TLS ({error}): write mqtt:// or ws:// for a port without TLS")
        }
        other => format!("TLS failed: {other}"),
    }
}
