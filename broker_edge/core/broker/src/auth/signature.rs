//! Checks the signatures of tokens with ring, as a crypto provider for `jsonwebtoken`. It supports RS256, ES256 and
//! EdDSA, cannot sign, and has no secret keys, so a token cannot select one for its check.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, new_error};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::signature as ring_signature;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| {
        family_of(*algorithm)
            .filter(|family| *family == key.family())
            .map(|_| {
                Box::new(Ring {
                    algorithm: *algorithm,
                    key: key.clone(),
                }) as Box<dyn JwtVerifier>
            })
            .ok_or_else(|| new_error(ErrorKind::InvalidAlgorithm))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs ring as the provider of this process. An earlier provider stays in place, because an embedding program may
/// have chosen its own.
pub fn install() {
    let _ = PROVIDER.install_default();
}

/// The family of a supported algorithm.
pub fn family_of(algorithm: Algorithm) -> Option<AlgorithmFamily> {
    match algorithm {
        Algorithm::RS256 => Some(AlgorithmFamily::Rsa),
        Algorithm::ES256 => Some(AlgorithmFamily::Ec),
        Algorithm::EdDSA => Some(AlgorithmFamily::Ed),
        _ => None,
    }
}

struct Ring {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for Ring {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let rsa = &ring_signature::RSA_PKCS1_2048_8192_SHA256;
        let algorithm: &'static dyn ring_signature::VerificationAlgorithm = match self.algorithm {
            Algorithm::RS256 => rsa,
            Algorithm::ES256 => &ring_signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::EdDSA => &ring_signature::ED25519,
            _ => return Err(signature::Error::new()),
        };
        let verified = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                // A JWKS may have leading zeros, which ring rejects.
                let n = &n[n.iter().take_while(|byte| **byte == 0).count()..];
                ring_signature::RsaPublicKeyComponents { n, e }.verify(rsa, message, signed)
            }
            DecodingKeyKind::SecretOrDer(key) => {
                ring_signature::UnparsedPublicKey::new(algorithm, key).verify(message, signed)
            }
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Ring {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Checks that a key can be used to check signatures here.
///
/// # Errors
/// The key has an unsupported type or length.
pub fn check_key(key: &DecodingKey) -> Result<(), Error> {
    let is_usable = match (key.family(), key.kind()) {
        (AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, .. }) => n.len() >= 256,
        (AlgorithmFamily::Rsa, DecodingKeyKind::SecretOrDer(der)) => der.len() >= 256,
        (AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => point.len() == 65,
        (AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(key)) => key.len() == 32,
        _ => false,
    };
    if is_usable {
        Ok(())
    } else {
        Err(new_error(ErrorKind::InvalidKeyFormat))
    }
}
