//! What the files of a cluster's settings hold. They are read once, at the start; a reload only says which of them have
//! changed since then.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_cluster::marks::Node;
use headwater_etcd::{Identity, Options, Patience, User};
use headwater_log::Secret;
use headwater_mesh::Tls;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{ClusterSettings, EtcdSettings, MeshTlsSettings};
use crate::regular_file;

/// Of each file: a larger one is no secret, certificate, key or password.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file as it was read, for the comparison at a reload. Keys and passwords are not kept for that.
struct Seen {
    key: &'static str,
    file: PathBuf,
    sum: u64,
}

/// The files as they are in use.
#[derive(Default)]
pub struct FilesInUse(Vec<Seen>);

/// Everything that a node needs from its files.
pub struct ClusterFiles {
    pub secret: Secret,
    /// `None`: the nodes do not authenticate each other.
    pub mesh_tls: Option<Tls>,
    pub etcd: Options,
    pub in_use: FilesInUse,
}

impl ClusterFiles {
    /// Reads the files of checked settings.
    ///
    /// # Errors
    /// The first thing that is wrong, in one sentence with the key and the file.
    pub fn load(settings: &ClusterSettings) -> Result<Self, String> {
        let mut reader = Reader::default();
        let secret = secret(&mut reader, settings.secret_file.as_deref())?;
        let mesh_tls = mesh_tls(&mut reader, settings)?;
        let etcd = etcd(&mut reader, &settings.etcd)?;
        Ok(Self {
            secret,
            mesh_tls,
            etcd,
            in_use: reader.seen,
        })
    }
}

impl FilesInUse {
    /// One sentence for each file whose content is no longer the one in use.
    pub fn changed(&self) -> Vec<String> {
        let is_changed = |seen: &&Seen| {
            let now = regular_file::read(&seen.file, FILE_BYTES_MAX).map(|bytes| xxh3_64(&bytes));
            now.ok() != Some(seen.sum)
        };
        let changed = self.0.iter().filter(is_changed);
        changed
            .map(|Seen { key, file, .. }| {
                let file = file.display();
                format!("{key}: {file} has changed; the broker uses it after a restart")
            })
            .collect()
    }
}

#[derive(Default)]
struct Reader {
    seen: FilesInUse,
}

impl Reader {
    fn bytes(&mut self, key: &'static str, file: Option<&Path>) -> Result<Vec<u8>, String> {
        let file = file.unwrap_or(Path::new(""));
        let bytes = regular_file::read(file, FILE_BYTES_MAX)
            .map_err(|error| format!("{key}: cannot read {}: {error}", file.display()))?;
        let seen = Seen {
            key,
            file: file.to_owned(),
            sum: xxh3_64(&bytes),
        };
        self.seen.0.push(seen);
        Ok(bytes)
    }

    fn certificates(
        &mut self,
        key: &'static str,
        file: Option<&Path>,
    ) -> Result<Vec<CertificateDer<'static>>, String> {
        let bytes = self.bytes(key, file)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let found = found.ok().filter(|found| !found.is_empty());
        found.ok_or_else(|| {
            format!(
                "{key}: {} contains no certificate in PEM format",
                shown(file)
            )
        })
    }
}

fn shown(file: Option<&Path>) -> String {
    file.unwrap_or(Path::new("")).display().to_string()
}

/// The secret of `cluster.secret_file`.
///
/// # Errors
/// A file that cannot be read, or holds something else.
pub fn secret_in(file: &Path) -> Result<Secret, String> {
    secret(&mut Reader::default(), Some(file))
}

fn secret(reader: &mut Reader, file: Option<&Path>) -> Result<Secret, String> {
    let key = "cluster.secret_file";
    let bytes = reader.bytes(key, file)?;
    let digits = bytes.trim_ascii();
    let number = std::str::from_utf8(digits).ok().filter(|digits| {
        digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    // The text is not shown: it may be almost the secret.
    let number = number.ok_or_else(|| {
        format!("{key}: {} does not hold 16 hexadecimal digits; copy the file that `headwater cluster init` wrote", shown(file))
    })?;
    Ok(Secret::from_bytes(number.to_be_bytes()))
}

fn mesh_tls(reader: &mut Reader, settings: &ClusterSettings) -> Result<Option<Tls>, String> {
    let MeshTlsSettings { cert, key, ca } = &settings.tls;
    if cert.is_none() {
        return Ok(None);
    }
    let chain = reader.certificates("cluster.tls.cert", cert.as_deref())?;
    let key_bytes = reader.bytes("cluster.tls.key", key.as_deref())?;
    let private = || {
        PrivateKeyDer::from_pem_slice(&key_bytes).map_err(|_| {
            format!(
                "cluster.tls.key: {} contains no private key in PEM format",
                shown(key.as_deref())
            )
        })
    };
    let mut roots = RootCertStore::empty();
    for authority in reader.certificates("cluster.tls.ca", ca.as_deref())? {
        roots
            .add(authority)
            .map_err(|error| format!("cluster.tls.ca: {}: {error}", shown(ca.as_deref())))?;
    }
    check_name(&chain, settings)?;
    let unusable = |error: &dyn std::fmt::Display| format!("cluster.tls: {error}");
    let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| unusable(&error))?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), private()?)
        .map_err(|error| unusable(&error))?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, private()?)
        .map_err(|error| unusable(&error))?;
    Ok(Some(Tls {
        server: Arc::new(server),
        client: Arc::new(client),
    }))
}

/// The other nodes know a node by the names in its certificate.
fn check_name(chain: &[CertificateDer<'_>], settings: &ClusterSettings) -> Result<(), String> {
    let node = settings.node.as_deref().unwrap_or_default();
    let first = chain.first().map(AsRef::as_ref).unwrap_or_default();
    let file = shown(settings.tls.cert.as_deref());
    let (_, certificate) = parse_x509_certificate(first)
        .map_err(|error| format!("cluster.tls.cert: {file}: {error}"))?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
    let names: Vec<&str> = names.collect();
    if names.contains(&node) && Node::new(node).is_ok() {
        return Ok(());
    }
    Err(format!(
        "cluster.tls.cert: {file} is not for node {node}: its DNS names are [{}]; sign a certificate with DNS:{node}",
        names.join(", ")
    ))
}

fn etcd(reader: &mut Reader, settings: &EtcdSettings) -> Result<Options, String> {
    let endpoints = settings.endpoints.iter().map(|text| text.parse());
    let endpoints: Result<Vec<_>, headwater_etcd::OptionsError> = endpoints.collect();
    let endpoints = endpoints.map_err(|error| format!("cluster.etcd.endpoints: {error}"))?;
    let tls = match settings.ca.as_deref() {
        None => None,
        ca => {
            let authority = reader.bytes("cluster.etcd.ca", ca)?;
            let identity = match settings.cert.as_deref() {
                None => None,
                cert => Some(Identity {
                    certificate: reader.bytes("cluster.etcd.cert", cert)?,
                    key: reader.bytes("cluster.etcd.key", settings.key.as_deref())?,
                }),
            };
            let tls = headwater_etcd::Tls::new(&authority, identity.as_ref());
            Some(tls.map_err(|error| format!("cluster.etcd: {error}"))?)
        }
    };
    let user = match &settings.user {
        None => None,
        Some(name) => Some(User {
            name: name.clone(),
            password: password(reader, settings.password_file.as_deref())?,
        }),
    };
    Ok(Options {
        endpoints,
        tls,
        user,
        patience: Patience::default(),
    })
}

/// How to reach etcd, where nothing else of the settings is used.
///
/// # Errors
/// The first file that is wrong, in one sentence.
pub fn etcd_options(settings: &EtcdSettings) -> Result<Options, String> {
    etcd(&mut Reader::default(), settings)
}

fn password(reader: &mut Reader, file: Option<&Path>) -> Result<String, String> {
    let key = "cluster.etcd.password_file";
    let bytes = reader.bytes(key, file)?;
    let text = String::from_utf8(bytes).ok();
    let line = text.as_deref().and_then(|text| text.lines().next());
    let line = line.filter(|line| !line.is_empty());
    line.map(str::to_owned)
        .ok_or_else(|| format!("{key}: {} has no password in its first line", shown(file)))
}

#[cfg(test)]
#[path = "cluster_files_tests.rs"]
mod tests;
