//! Checks the certificates that clients present: against the listener's authorities, and against revocation lists.
//!
//! The status of the client's own certificate must be known: without a valid list of its authority it is refused. The
//! certificates between it and the authorities of the listener are checked as far as there is a list of their
//! authority, because few authorities publish one for them. A list that has expired does not say what was revoked since,
//! so it refuses every certificate of its authority.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientCertVerifierBuilder, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

/// # Errors
/// There are no authorities, or a list is not one.
pub fn client_verifier(
    roots: RootCertStore,
    is_optional: bool,
    lists: Vec<CertificateRevocationListDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let roots = Arc::new(roots);
    let builder = || -> ClientCertVerifierBuilder {
        let provider = Arc::new(ring::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider);
        if is_optional {
            builder.allow_unauthenticated()
        } else {
            builder
        }
    };
    if lists.is_empty() {
        return builder().build();
    }
    let own = builder()
        .with_crls(lists.clone())
        .only_check_end_entity_revocation()
        .enforce_revocation_expiration()
        .build()?;
    let chain = builder()
        .with_crls(lists)
        .allow_unknown_revocation_status()
        .enforce_revocation_expiration()
        .build()?;
    Ok(Arc::new(WithLists { own, chain }))
}

/// rustls has one policy for all certificates of a chain; these are two.
#[derive(Debug)]
struct WithLists {
    own: Arc<dyn ClientCertVerifier>,
    /// Asked only where there is more than the client's own certificate.
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for WithLists {
    fn offer_client_auth(&self) -> bool {
        self.own.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.own.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.own.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .own
            .verify_client_cert(end_entity, intermediates, now)?;
        if !intermediates.is_empty() {
            self.chain
                .verify_client_cert(end_entity, intermediates, now)?;
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.own.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.own.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.own.supported_verify_schemes()
    }
}
