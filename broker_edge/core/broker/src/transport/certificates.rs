//! Certificates, keys and authorities of the listeners: read from files, checked, and replaced while connections stay
//! open.
//!
//! A connection keeps the settings of its handshake; reloaded files apply to later connections. Only revocations apply
//! to open connections, too.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::clock::now_us;
use crate::config::{ClientAuth, TlsSettings, TlsVersion};
use crate::metrics::TransportMetrics;
use crate::peer::CertificateNames;
use crate::regular_file;
use crate::transport::client_verifier;
use crate::transport::revocations::{self, CertificateId, Revocations, Revoked};

/// Warn about a certificate that expires within this time.
const WARN_BEFORE_S: i64 = 14 * 86_400;

/// Why the files of a listener cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("listeners.{listener}.tls.{key}: cannot read {file}: {reason}", file = file.display())]
    Unreadable {
        listener: &'static str,
        key: &'static str,
        file: PathBuf,
        reason: String,
    },
    #[error("listeners.{listener}.tls.{key}: {file} contains no {what} in PEM format", file = file.display())]
    Empty {
        listener: &'static str,
        key: &'static str,
        file: PathBuf,
        what: &'static str,
    },
    #[error("listeners.{listener}.tls.key: {key} is not the key of the certificate {cert}", key = key.display(), cert = cert.display())]
    Mismatch {
        listener: &'static str,
        key: PathBuf,
        cert: PathBuf,
    },
    #[error("listeners.{listener}.tls: {reason}")]
    Refused {
        listener: &'static str,
        reason: String,
    },
}

/// The TLS settings of a listener, from the last successful read of its files.
#[derive(Debug)]
pub struct TlsContext {
    listener: &'static str,
    settings: TlsSettings,
    alpn: &'static [&'static str],
    current: RwLock<Current>,
    /// Shared with the connections, so that a reload reaches those that are open.
    revocations: Arc<Revocations>,
}

#[derive(Debug, Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// Unix seconds.
    expires_s: i64,
}

impl TlsContext {
    /// The settings for a new handshake.
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().config)
    }

    /// What the authorities of the clients have revoked, if the listener has revocation lists.
    pub fn revocations(&self) -> Option<Arc<Revocations>> {
        let has_lists = self.settings.crl.is_some();
        has_lists.then(|| Arc::clone(&self.revocations))
    }

    fn reload(&self) -> Result<(), TlsError> {
        let (read, revoked) = read(self.listener, &self.settings, self.alpn)?;
        *self.current.write() = read;
        self.revocations.replace(revoked);
        Ok(())
    }
}

/// The TLS contexts of all listeners.
#[derive(Debug, Default)]
pub struct Certificates(Vec<Arc<TlsContext>>);

impl Certificates {
    /// Reads the files of a TLS listener; `None` for a listener without a certificate.
    ///
    /// # Errors
    /// A file is missing, has the wrong contents, or does not match the others.
    pub fn load(
        &mut self,
        listener: &'static str,
        settings: &TlsSettings,
        alpn: &'static [&'static str],
    ) -> Result<Option<Arc<TlsContext>>, TlsError> {
        if !settings.is_on() {
            return Ok(None);
        }
        let (current, revoked) = read(listener, settings, alpn)?;
        let revocations = Arc::<Revocations>::default();
        revocations.replace(revoked);
        let context = Arc::new(TlsContext {
            listener,
            settings: settings.clone(),
            alpn,
            current: RwLock::new(current),
            revocations,
        });
        self.0.push(Arc::clone(&context));
        Ok(Some(context))
    }

    /// Reloads all files. A listener with unusable files keeps its old settings.
    ///
    /// # Errors
    /// What is wrong with the first such listener.
    pub fn reload(&self) -> Result<(), TlsError> {
        let mut result = Ok(());
        for context in &self.0 {
            match context.reload() {
                Ok(()) => tracing::info!(listener = context.listener, "reloaded the certificate"),
                Err(error) => {
                    tracing::error!("{error}; the listener keeps its current certificate");
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Sets the metrics of each certificate's expiry.
    pub fn show(&self, metrics: &TransportMetrics) {
        for context in &self.0 {
            metrics.set_expiry(context.listener, context.current.read().expires_s);
        }
    }
}

fn read(
    listener: &'static str,
    settings: &TlsSettings,
    alpn: &[&str],
) -> Result<(Current, Revoked), TlsError> {
    let (cert_file, key_file) = (path(&settings.cert), path(&settings.key));
    let chain = certificates(listener, "cert", &cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes_of(listener, "key", &key_file)?);
    let key = key.map_err(|_| TlsError::Empty {
        listener,
        key: "key",
        file: key_file.clone(),
        what: "private key",
    })?;
    let refused = |reason: String| TlsError::Refused { listener, reason };
    let expires_s = check_time(listener, &cert_file, &chain).map_err(refused)?;
    let versions: &[&SupportedProtocolVersion] = match settings.min_version {
        TlsVersion::V12 => &[&version::TLS13, &version::TLS12],
        TlsVersion::V13 => &[&version::TLS13],
    };
    let lists = revocation_lists(listener, settings)?;
    let revoked = revocations::read(listener, &lists).map_err(refused)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .map_err(|error| refused(error.to_string()))?
        .with_client_cert_verifier(client_verifier(listener, settings, lists)?);
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
                listener,
                key: key_file.clone(),
                cert: cert_file.clone(),
            },
            other => refused(format!("{}: {other}", cert_file.display())),
        })?;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Sessions are resumed with tickets, which the clients store. So a storm of reconnecting devices costs no
    // signatures, and tickets from before a reload are invalid.
    config.ticketer = ring::Ticketer::new().map_err(|error| refused(error.to_string()))?;
    config.send_tls13_tickets = 1;
    let current = Current {
        config: Arc::new(config),
        expires_s,
    };
    Ok((current, revoked))
}

/// Checks the certificates of clients, if they are asked for one.
fn client_verifier(
    listener: &'static str,
    settings: &TlsSettings,
    lists: Vec<CertificateRevocationListDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let is_optional = match settings.client_auth {
        ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuth::Optional => true,
        ClientAuth::Required => false,
    };
    let ca_file = path(&settings.client_ca);
    let refused = |error: &dyn std::fmt::Display| TlsError::Refused {
        listener,
        reason: format!("{}: {error}", ca_file.display()),
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(listener, "client_ca", &ca_file)? {
        roots.add(certificate).map_err(|error| refused(&error))?;
    }
    client_verifier::client_verifier(roots, is_optional, lists).map_err(|error| refused(&error))
}

fn revocation_lists(
    listener: &'static str,
    settings: &TlsSettings,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let Some(file) = &settings.crl else {
        return Ok(Vec::new());
    };
    let bytes = bytes_of(listener, "crl", file)?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    match lists {
        Ok(lists) if !lists.is_empty() => Ok(lists),
        _ => Err(TlsError::Empty {
            listener,
            key: "crl",
            file: file.clone(),
            what: "revocation list (X509 CRL)",
        }),
    }
}

fn path(setting: &Option<PathBuf>) -> PathBuf {
    setting.clone().unwrap_or_default()
}

fn bytes_of(listener: &'static str, key: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = regular_file::open(file).and_then(|mut opened| opened.read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(reason) => Err(TlsError::Unreadable {
            listener,
            key,
            file: file.to_owned(),
            reason: reason.to_string(),
        }),
    }
}

fn certificates(
    listener: &'static str,
    key: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bytes_of(listener, key, file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(TlsError::Empty {
            listener,
            key,
            file: file.to_owned(),
            what: "certificate",
        }),
    }
}

/// Warns about a certificate that has expired or soon will; returns its expiry.
fn check_time(
    listener: &'static str,
    file: &Path,
    chain: &[CertificateDer<'_>],
) -> Result<i64, String> {
    let first = chain.first().map(AsRef::as_ref).unwrap_or_default();
    let (_, certificate) =
        parse_x509_certificate(first).map_err(|error| format!("{}: {error}", file.display()))?;
    let expires_s = certificate.validity().not_after.timestamp();
    let now_s = now_us() / 1_000_000;
    let until = certificate.validity().not_after;
    if expires_s <= now_s {
        tracing::warn!(listener, file = %file.display(), %until, "the certificate has expired; clients will refuse it");
    } else if expires_s - now_s < WARN_BEFORE_S {
        tracing::warn!(listener, file = %file.display(), %until, "the certificate expires soon");
    }
    Ok(expires_s)
}

/// The names in the first certificate of a verified chain; `None` if it cannot be parsed after all.
pub fn names_of(
    chain: &[CertificateDer<'_>],
    revocations: Option<Arc<Revocations>>,
) -> Option<CertificateNames> {
    let (first, others) = chain.split_first()?;
    let (_, certificate) = parse_x509_certificate(first.as_ref()).ok()?;
    let common_name = certificate
        .subject()
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok())
        .map(str::to_owned);
    let text_of = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
            Some((*name).to_owned())
        }
        _ => None,
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names
        .into_iter()
        .flat_map(|names| &names.value.general_names);
    let alternative_names = names.filter_map(text_of).collect();
    let expires_s = certificate.validity().not_after.timestamp();
    Some(CertificateNames {
        common_name,
        alternative_names,
        expires_us: expires_s.checked_mul(1_000_000),
        id: CertificateId::of(&certificate),
        authorities: authorities_of(&certificate, others),
        revocations,
    })
}

/// Of the other certificates that a client has presented, those above its own.
fn authorities_of(
    certificate: &X509Certificate<'_>,
    others: &[CertificateDer<'_>],
) -> Box<[CertificateId]> {
    let parsed = others.iter().map(|one| parse_x509_certificate(one));
    let mut others: Vec<_> = parsed.flatten().map(|(_, one)| one).collect();
    let mut issuer = certificate.issuer().as_raw().to_vec();
    let mut found = Vec::new();
    while let Some(at) = others
        .iter()
        .position(|one| one.subject().as_raw() == issuer)
    {
        let next = others.swap_remove(at);
        found.push(CertificateId::of(&next));
        issuer = next.issuer().as_raw().to_vec();
    }
    found.into()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::names_of;

    #[test]
    fn the_names_of_a_certificate_are_found_in_their_order() {
        let mut params = CertificateParams::new(vec!["dev-7.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "dev-7");
        params
            .subject_alt_names
            .push(SanType::URI("urn:device:7".try_into().unwrap()));
        params
            .subject_alt_names
            .push(SanType::Rfc822Name("ops@example".try_into().unwrap()));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names = names_of(&[certificate.der().clone()], None).unwrap();
        assert_eq!(names.common_name.as_deref(), Some("dev-7"));
        assert_eq!(
            names.alternative_names,
            ["dev-7.example", "urn:device:7", "ops@example"]
        );
        assert_eq!(names_of(&[b"no certificate".to_vec().into()], None), None);
    }
}
