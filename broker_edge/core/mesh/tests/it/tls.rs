use std::sync::Arc;

use headwater_mesh::{MeshEvent, Tls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::support::{Clock, One, SHARD, batches, hello, listener, member};

struct Authority {
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        Authority { der, issuer }
    }

    /// The settings of a node with a certificate for `name`.
    fn tls(&self, name: &str) -> Tls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let own = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = || PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![own.clone()], key())
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own], key())
            .unwrap();
        Tls {
            server: Arc::new(server),
            client: Arc::new(client),
        }
    }
}

/// `a` and `b` with these settings.
fn meshes(of_a: Tls, of_b: Option<Tls>) -> (One, One) {
    let ((at_a, a), (at_b, b)) = (listener(), listener());
    let one = One::new(hello("a"), at_a, &[("b", b.to_string())], Some(of_a));
    let two = One::new(hello("b"), at_b, &[("a", a.to_string())], of_b);
    (one, two)
}

#[test]
fn nodes_with_certificates_of_their_names_are_linked() {
    let authority = Authority::new();
    let (mut a, mut b) = meshes(authority.tls("a"), Some(authority.tls("b")));
    let mut clock = Clock::default();
    clock.until(&mut [&mut a, &mut b], |both| {
        both[0].is_linked("b") && both[1].is_linked("a")
    });
    a.batches = vec![batches(60_000); 100];
    clock.until(&mut [&mut a, &mut b], |both| both[1].frames().len() == 100);
    b.mesh.disconnect(&member("a"), clock.0);
    a.came.clear();
    clock.until(&mut [&mut a, &mut b], |both| both[0].is_linked("b"));
    b.mesh.send(&member("a"), SHARD, batches(1_000), clock.0);
    clock.until(&mut [&mut a, &mut b], |both| !both[0].frames().is_empty());
}

#[test]
fn others_are_not() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    // The name of another node, another authority, and none at all, on either side.
    let cases = [
        (authority.tls("a"), Some(authority.tls("c"))),
        (authority.tls("c"), Some(authority.tls("b"))),
        (authority.tls("a"), Some(stranger.tls("b"))),
        (stranger.tls("a"), Some(authority.tls("b"))),
        (authority.tls("a"), None),
    ];
    for (number, (of_a, of_b)) in cases.into_iter().enumerate() {
        let (mut a, mut b) = meshes(of_a, of_b);
        let mut clock = Clock::default();
        for _ in 0..200 {
            clock.step(&mut [&mut a, &mut b]);
        }
        let is_linked = b
            .came
            .iter()
            .any(|came| matches!(came, MeshEvent::Linked { .. }));
        assert!(!is_linked, "case {number}: {:?}", b.came);
        // With TLS 1.3 the one that dialled learns of the refusal after its handshake.
        assert!(!a.is_linked("b"), "case {number}: {:?}", a.came);
    }
}
