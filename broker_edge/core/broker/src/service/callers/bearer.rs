//! The broker's own bearer tokens. Flight's handshake returns one for a password, so a client sends its password once.
//!
//! The broker stores no tokens. A token names the user and the stored password and is signed with a key of this
//! process. It ends when the password changes, when it expires, or with the process; then the client repeats the
//! handshake.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;

use crate::auth::users::Fingerprint;
use crate::auth::{Authority, Identity, Proof};

const PREFIX: &str = "headwater.";
/// How long a token is valid.
const LIFE_US: i64 = 3600 * 1_000_000;

pub struct Bearers {
    key: hmac::Key,
}

impl Bearers {
    /// # Errors
    /// The system provides no random bytes.
    pub fn new() -> std::io::Result<Bearers> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map(|key| Bearers { key })
            .map_err(|_| std::io::Error::other("the system provides no random bytes"))
    }

    /// A token for a caller who used a password; other callers need none.
    pub fn issue(&self, identity: &Identity, now_us: i64) -> Option<String> {
        let (Some(user), Proof::Password(stored)) = (&identity.user, identity.proof) else {
            return None;
        };
        let claims = format!("{}.{}.{user}", stored.0, now_us.saturating_add(LIFE_US));
        let tag = hmac::sign(&self.key, claims.as_bytes());
        Some(format!(
            "{PREFIX}{}.{}",
            URL_SAFE_NO_PAD.encode(&claims),
            URL_SAFE_NO_PAD.encode(tag)
        ))
    }

    pub fn is_own(token: &str) -> bool {
        token.starts_with(PREFIX)
    }

    /// The user of a valid token.
    pub fn authenticate(
        &self,
        authority: &Authority,
        token: &str,
        now_us: i64,
    ) -> Option<Arc<Identity>> {
        let (claims, tag) = token.strip_prefix(PREFIX)?.split_once('.')?;
        let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.key, &claims, &tag).ok()?;
        let claims = std::str::from_utf8(&claims).ok()?;
        let (stored, rest) = claims.split_once('.')?;
        let (expires_us, user) = rest.split_once('.')?;
        let identity = Authority::password_identity(
            user,
            Fingerprint(stored.parse().ok()?),
            expires_us.parse().ok()?,
        );
        (!identity.is_expired(now_us) && authority.still_admits(&identity)).then_some(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_time_and_not_when_it_was_touched() {
        let bearers = Bearers::new().unwrap();
        let identity = Authority::password_identity("ann", Fingerprint(7), i64::MAX);
        let token = bearers.issue(&identity, 0).unwrap();
        let claims = format!("7.{LIFE_US}.ann");
        assert!(token.contains(&URL_SAFE_NO_PAD.encode(&claims)));
        // No user file contains this password, so the token is refused.
        let authority = Authority::open();
        assert!(bearers.authenticate(&authority, &token, 1).is_none());
        let forged = format!(
            "{PREFIX}{}.{}",
            URL_SAFE_NO_PAD.encode("7.9999999999999.root"),
            token.rsplit('.').next().unwrap()
        );
        assert!(bearers.authenticate(&authority, &forged, 1).is_none());
        assert!(bearers.issue(&Identity::default(), 0).is_none());
        let other = Bearers::new().unwrap();
        assert!(other.authenticate(&authority, &token, 1).is_none());
    }
}
