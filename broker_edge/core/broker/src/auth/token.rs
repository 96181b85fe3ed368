//! Tokens (JWT) as passwords: which signatures are accepted, and what a token says about its bearer.
//!
//! The claims `exp`, `nbf`, `iss` and `aud` are checked; a token without expiry is refused. A claim `acl` with lists of
//! filters, `{"publish": […], "subscribe": […], "replay": […]}`, replaces the ACL file for its bearer; `client-id`,
//! `group`, `tenant` and `viewer` in it have the same meaning as in the file.

use std::path::Path;
use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, Validation};
use serde::Deserialize;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::file::{FileError, read};
use super::rules::{Allowed, RuleFilter};
use super::section::Section;
use super::signature;
use super::users::{Fingerprint, NAME_BYTES_MAX};
use super::{Denied, Identity, Proof};
use crate::config::TokenSettings;

/// Longer passwords are not treated as tokens.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The most filters and names in the claims of a token.
const FILTERS_MAX: usize = 1024;
/// The most keys in a file, because a token without a key id is tried with each.
const KEYS_MAX: usize = 64;

#[derive(Debug)]
struct SigningKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    fingerprint: Fingerprint,
}

#[derive(Debug)]
pub struct Tokens {
    keys: Vec<SigningKey>,
    settings: TokenSettings,
}

/// The rights that a token gives its bearer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct AclClaim {
    publish: Vec<String>,
    subscribe: Vec<String>,
    replay: Vec<String>,
    client_id: Vec<String>,
    group: Vec<String>,
    tenant: Option<String>,
    viewer: bool,
}

impl Tokens {
    /// # Errors
    /// The file cannot be read, or contains an unusable key.
    pub fn load(file: &Path, settings: &TokenSettings) -> Result<Self, FileError> {
        Self::parse(&read(file)?, settings).map_err(|reason| FileError::Whole {
            file: file.to_owned(),
            reason,
        })
    }

    pub(crate) fn parse(text: &str, settings: &TokenSettings) -> Result<Self, String> {
        signature::install();
        let keys = if text.contains("-----BEGIN") {
            pem_keys(text)
        } else {
            jwks_keys(text)
        };
        let keys = keys.and_then(|keys| match keys.len() {
            0 => Err("it contains no public key; write a JWKS or PEM file".to_owned()),
            count if count > KEYS_MAX => Err(format!("it contains more than {KEYS_MAX} keys")),
            _ => Ok(keys),
        });
        keys.map(|keys| Self {
            keys,
            settings: settings.clone(),
        })
    }

    /// Whether a password looks like a token.
    pub fn is_token(password: &[u8]) -> bool {
        password.starts_with(b"eyJ") && password.iter().filter(|byte| **byte == b'.').count() == 2
    }

    pub fn has_key(&self, fingerprint: Fingerprint) -> bool {
        self.keys.iter().any(|key| key.fingerprint == fingerprint)
    }

    /// The identity of a token's bearer.
    ///
    /// # Errors
    /// The token is malformed, expired, not yet valid, for another audience, or not signed by a key of the file.
    pub fn authenticate(&self, token: &[u8]) -> Result<Identity, Denied> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| Denied::BadToken)?;
        if header.crit.is_some() {
            // RFC 7515, 4.1.11: what the header calls critical must be understood, and no extension is.
            return Err(Denied::BadToken);
        }
        let named = |key: &&SigningKey| {
            key.algorithm == header.alg && (key.id.is_none() || key.id == header.kid)
        };
        let mut denied = Denied::BadToken;
        for key in self.keys.iter().filter(named) {
            let mut validation = Validation::new(key.algorithm);
            self.expect_claims(&mut validation);
            match jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &validation) {
                Ok(token) => return self.identity_of(&token.claims, key.fingerprint),
                Err(error) if *error.kind() == ErrorKind::ExpiredSignature => {
                    denied = Denied::ExpiredToken;
                }
                Err(error) => tracing::debug!(%error, "a token was refused"),
            }
        }
        Err(denied)
    }

    fn expect_claims(&self, validation: &mut Validation) {
        let mut required = vec!["exp"];
        validation.leeway = self.settings.leeway.0.as_secs();
        validation.validate_nbf = true;
        validation.validate_aud = self.settings.audience.is_some();
        if let Some(audience) = &self.settings.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        if let Some(issuer) = &self.settings.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
    }

    fn identity_of(
        &self,
        claims: &Map<String, Value>,
        key: Fingerprint,
    ) -> Result<Identity, Denied> {
        let user = claims
            .get(&self.settings.user_claim)
            .and_then(Value::as_str);
        let user = user.filter(|user| {
            !user.is_empty() && user.len() <= NAME_BYTES_MAX && !user.contains(char::is_control)
        });
        let user = user.ok_or(Denied::BadToken)?;
        let expires_s = claims
            .get("exp")
            .and_then(|exp| exp.as_u64().or_else(|| exp.as_f64().map(|exp| exp as u64)))
            .ok_or(Denied::BadToken)?
            .saturating_add(self.settings.leeway.0.as_secs());
        let own_section = match claims.get("acl") {
            None => None,
            Some(acl) => Some(Arc::new(section_of(acl).ok_or(Denied::BadToken)?)),
        };
        Ok(Identity {
            user: Some(user.into()),
            proof: Proof::Token(key),
            expires_us: Some(
                i64::try_from(expires_s.saturating_mul(1_000_000)).unwrap_or(i64::MAX),
            ),
            own_section,
            ..Identity::default()
        })
    }
}

pub(crate) fn section_of(claim: &Value) -> Option<Section> {
    let claim = AclClaim::deserialize(claim).ok()?;
    let filters = claim.publish.len() + claim.subscribe.len() + claim.replay.len();
    if filters + claim.client_id.len() + claim.group.len() > FILTERS_MAX {
        return None;
    }
    let mut section = Section::default();
    for (filters, allowed) in [
        (&claim.publish, Allowed::WRITE),
        (&claim.subscribe, Allowed::READ),
        (&claim.replay, Allowed::REPLAY),
    ] {
        for filter in filters {
            let rule = RuleFilter::pattern(filter).ok()?;
            section.rules.allow(rule, allowed);
        }
    }
    for client_id in &claim.client_id {
        section.add_client_id(client_id).ok()?;
    }
    for group in &claim.group {
        section.add_group(group).ok()?;
    }
    if let Some(tenant) = &claim.tenant {
        section.set_tenant(tenant).ok()?;
    }
    section.is_viewer = claim.viewer;
    Some(section)
}

fn signing_key(id: Option<String>, key: DecodingKey) -> Result<SigningKey, String> {
    signature::check_key(&key).map_err(|_| {
        "a key is not usable for RS256 (2048 bits or more), ES256 or EdDSA (Ed25519)".to_owned()
    })?;
    let algorithm = match key.family() {
        AlgorithmFamily::Rsa => Algorithm::RS256,
        AlgorithmFamily::Ec => Algorithm::ES256,
        _ => Algorithm::EdDSA,
    };
    let bytes = match key.kind() {
        DecodingKeyKind::SecretOrDer(bytes) => bytes.clone(),
        DecodingKeyKind::RsaModulusExponent { n, e } => [n.as_slice(), e].concat(),
    };
    Ok(SigningKey {
        id,
        algorithm,
        key,
        fingerprint: Fingerprint(xxh3_64(&bytes)),
    })
}

fn jwks_keys(text: &str) -> Result<Vec<SigningKey>, String> {
    let set: JwkSet = serde_json::from_str(text)
        .map_err(|error| format!("it is neither a PEM file nor a JWKS: {error}"))?;
    // Keys for encryption often stand in the same file. A signature by such a key proves nothing.
    let is_for_signatures = |jwk: &Jwk| {
        let operations = jwk.common.key_operations.as_ref();
        matches!(
            jwk.common.public_key_use,
            None | Some(PublicKeyUse::Signature)
        ) && operations.is_none_or(|all| all.contains(&KeyOperations::Verify))
    };
    let keys = set.keys.into_iter().filter(is_for_signatures).map(|jwk| {
        let key =
            DecodingKey::from_jwk(&jwk).map_err(|error| format!("a key is unusable: {error}"))?;
        signing_key(jwk.common.key_id, key)
    });
    keys.collect()
}

fn pem_keys(text: &str) -> Result<Vec<SigningKey>, String> {
    const END: &str = "-----END";
    let mut keys = Vec::new();
    for block in text.split("-----BEGIN").skip(1) {
        if block.contains("PRIVATE KEY") {
            return Err(
                "it contains a private key; only public keys belong on the broker".to_owned(),
            );
        }
        let Some((body, rest)) = block.split_once(END) else {
            return Err(format!("a block has no {END}"));
        };
        let tail = rest.lines().next().unwrap_or_default();
        let pem = format!("-----BEGIN{body}{END}{tail}\n");
        let key = DecodingKey::from_rsa_pem(pem.as_bytes())
            .or_else(|_| DecodingKey::from_ec_pem(pem.as_bytes()))
            .or_else(|_| DecodingKey::from_ed_pem(pem.as_bytes()))
            .map_err(|_| "a block is not a public key of RSA, P-256 or Ed25519".to_owned())?;
        keys.push(signing_key(None, key)?);
    }
    Ok(keys)
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
