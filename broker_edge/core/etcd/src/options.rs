//! Where etcd is and how to speak to it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

pub const ENDPOINTS_MAX: usize = 9;

/// `http://HOST:PORT` or `https://HOST:PORT` of one member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub(crate) is_tls: bool,
    /// An IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        if self.host.contains(':') {
            return write!(f, "{scheme}://[{}]:{}", self.host, self.port);
        }
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl std::str::FromStr for Endpoint {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        if let Some((_, host)) = text.rsplit_once('@') {
            return Err(OptionsError::UserInEndpoint(host.to_owned()));
        }
        let wrong = || OptionsError::Endpoint(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let bare = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let port = port.parse().ok().filter(|port| *port > 0);
        let endpoint = Self {
            is_tls,
            host: bare.to_owned(),
            port: port.ok_or_else(wrong)?,
        };
        endpoint.server_name().map(|_| endpoint)
    }
}

impl Endpoint {
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether nothing that is sent to it leaves this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// The name that a certificate must have.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, OptionsError> {
        ServerName::try_from(self.host.clone())
            .map_err(|_| OptionsError::Endpoint(self.to_string()))
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish()
    }
}

/// A certificate chain and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// TLS with etcd's own authority; that of the system is not used.
#[derive(Clone)]
pub struct Tls(pub(crate) Arc<ClientConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// # Errors
    /// The authority, the certificate or the key is not PEM, or they do not fit together.
    pub fn new(authority: &[u8], identity: Option<&Identity>) -> Result<Self, OptionsError> {
        let mut roots = RootCertStore::empty();
        for one in certificates(authority, "authority")? {
            roots.add(one).map_err(OptionsError::refused)?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(OptionsError::refused)?
            .with_webpki_verifier(verifier.build().map_err(OptionsError::refused)?);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = certificates(&identity.certificate, "certificate")?;
                let key = PrivateKeyDer::from_pem_slice(&identity.key)
                    .map_err(|_| OptionsError::NotPem("key"))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(OptionsError::refused)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

fn certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, OptionsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(OptionsError::NotPem(what)),
    }
}

/// How long to wait for a member before the next one is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Connection, TLS handshake and first answer.
    pub connect: Duration,
    /// One request.
    pub request: Duration,
    /// A watch asks for progress when nothing came for so long, and takes the member for lost after twice that.
    pub progress: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            request: Duration::from_secs(1),
            progress: Duration::from_secs(2),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    pub endpoints: Vec<Endpoint>,
    pub tls: Option<Tls>,
    pub user: Option<User>,
    pub patience: Patience,
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS_MAX {
            return Err(OptionsError::Count(self.endpoints.len()));
        }
        match self
            .endpoints
            .iter()
            .find(|one| one.is_tls != self.tls.is_some())
        {
            Some(one) if one.is_tls => Err(OptionsError::NoAuthority(one.to_string())),
            Some(one) => Err(OptionsError::NoTls(one.to_string())),
            None => Ok(()),
        }
    }
}

/// Why options are not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("{0:?} is no endpoint of etcd; write http://HOST:PORT or https://HOST:PORT")]
    Endpoint(String),
    /// Without what stands before the host: it may be a password.
    #[error(
        "the endpoint of etcd at {0:?} has a user in it; write http://HOST:PORT and set user and password apart"
    )]
    UserInEndpoint(String),
    #[error("{0} endpoints of etcd are given; write 1 to {ENDPOINTS_MAX}")]
    Count(usize),
    #[error("{0} needs TLS; give the authority of etcd's certificates, or write http")]
    NoAuthority(String),
    #[error("{0} would not use TLS, for which files are given; write https")]
    NoTls(String),
    #[error("the TLS {0} for etcd is not in PEM format")]
    NotPem(&'static str),
    #[error("the TLS files for etcd cannot be used: {0}")]
    Refused(String),
}

impl OptionsError {
    fn refused(error: impl fmt::Display) -> Self {
        Self::Refused(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_back_and_wrong_ones_are_refused() {
        for text in [
            "http://127.0.0.1:2379",
            "https://[::1]:2379",
            "https://etcd-0.example:1",
        ] {
            assert_eq!(text.parse::<Endpoint>().expect(text).to_string(), text);
        }
        for text in [
            "127.0.0.1:2379",
            "ftp://a:1",
            "http://a",
            "http://a:0",
            "http://a:65536",
            "http://::1:1",
            "http://[::1:2379",
            "http://:1",
            "http://a:1/",
            "",
        ] {
            let error = text.parse::<Endpoint>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn an_endpoint_says_whether_it_is_on_this_machine() {
        for (text, is_tls, is_loopback) in [
            ("http://127.0.0.9:1", false, true),
            ("https://[::1]:1", true, true),
            ("http://localhost:1", false, true),
            ("https://etcd.example:1", true, false),
            ("http://10.0.0.1:1", false, false),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            let found = (endpoint.is_tls(), endpoint.is_loopback());
            assert_eq!(found, (is_tls, is_loopback), "{text}");
        }
    }

    #[test]
    fn a_password_in_an_endpoint_is_refused_and_not_shown() {
        let error = "https://root:secret@etcd:2379".parse::<Endpoint>();
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("\"etcd:2379\" has a user in it"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    fn options(endpoints: &[&str], tls: Option<Tls>) -> Result<(), String> {
        let endpoints = endpoints
            .iter()
            .map(|one| one.parse().expect("an endpoint"));
        let options = Options {
            endpoints: endpoints.collect(),
            tls,
            user: None,
            patience: Patience::default(),
        };
        options.check().map_err(|error| error.to_string())
    }

    #[test]
    fn endpoints_and_tls_have_to_fit() {
        let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).expect("made");
        let tls = Tls::new(made.cert.pem().as_bytes(), None).expect("used");
        assert_eq!(options(&["http://a:1", "http://b:1"], None), Ok(()));
        assert_eq!(options(&["https://a:1"], Some(tls.clone())), Ok(()));
        let wrong = |endpoints: &[&str], tls| options(endpoints, tls).expect_err("refused");
        assert!(wrong(&[], None).contains("0 endpoints"));
        assert!(wrong(&["http://a:1"; 10], None).contains("10 endpoints"));
        assert!(wrong(&["http://a:1", "https://b:1"], None).contains("https://b:1 needs TLS"));
        assert!(wrong(&["https://a:1", "http://b:1"], Some(tls)).contains("http://b:1 would not"));
    }

    #[test]
    fn tls_files_that_cannot_be_used_are_named() {
        let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).expect("made");
        let other = rcgen::KeyPair::generate().expect("made");
        let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let tls = |authority: &str, certificate: &str, key: &str| {
            let (certificate, key) = (certificate.into(), key.into());
            let identity = Identity { certificate, key };
            Tls::new(authority.as_bytes(), Some(&identity)).map_err(|error| error.to_string())
        };
        assert!(tls(&pem, &pem, &key).is_ok());
        let wrong = |authority, certificate, key| tls(authority, certificate, key).expect_err("no");
        assert!(wrong("x", &pem, &key).contains("authority"));
        assert!(wrong(&pem, "x", &key).contains("certificate"));
        assert!(wrong(&pem, &pem, "x").contains("key"));
        assert!(wrong(&pem, &pem, &other.serialize_pem()).contains("cannot be used"));
    }

    #[test]
    fn a_password_is_not_shown() {
        let (name, password) = ("n".to_owned(), "secret".to_owned());
        let shown = format!("{:?}", User { name, password });
        assert!(!shown.contains("secret"), "{shown}");
    }
}
