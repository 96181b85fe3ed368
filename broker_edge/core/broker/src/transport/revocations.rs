//! The certificates that the authorities of a listener's clients have revoked, from their revocation lists (CRL).
//!
//! rustls refuses them at the handshake. This copy finds the clients that were connected before.

use std::collections::HashSet;

use parking_lot::RwLock;
use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::clock::now_us;

/// An authority counts its certificates, so both together identify one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CertificateId {
    issuer: Box<[u8]>,
    serial: Box<[u8]>,
}

impl CertificateId {
    pub fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            issuer: certificate.issuer().as_raw().into(),
            serial: certificate.raw_serial().into(),
        }
    }
}

pub type Revoked = HashSet<CertificateId>;

/// Replaced by a reload.
#[derive(Debug, Default)]
pub struct Revocations(RwLock<Revoked>);

impl Revocations {
    pub fn contains(&self, id: &CertificateId) -> bool {
        self.0.read().contains(id)
    }

    pub fn replace(&self, revoked: Revoked) {
        *self.0.write() = revoked;
    }
}

/// The same lists, not lists with the same contents.
impl PartialEq for Revocations {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Revocations {}

/// All certificates of the lists. An expired list is logged, because every client of its authority will be refused.
///
/// # Errors
/// A list is not one.
pub fn read(
    listener: &'static str,
    lists: &[CertificateRevocationListDer<'_>],
) -> Result<Revoked, String> {
    let mut revoked = Revoked::new();
    for list in lists {
        let (_, list) = CertificateRevocationList::from_der(list.as_ref())
            .map_err(|error| format!("crl: a revocation list cannot be read: {error}"))?;
        let until = list.next_update();
        let is_old = until.is_some_and(|until| until.timestamp() <= now_us() / 1_000_000);
        if let Some(until) = until.filter(|_| is_old) {
            tracing::error!(listener, issuer = %list.issuer(), %until,
                "the revocation list has expired: clients of this authority are refused until listeners.{listener}.tls.crl has a newer one");
        }
        revoked.extend(list.iter_revoked_certificates().map(|one| CertificateId {
            issuer: list.issuer().as_raw().into(),
            serial: one.raw_serial().into(),
        }));
    }
    Ok(revoked)
}
