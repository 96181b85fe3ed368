//! SCRAM-SHA-256 (RFC 5802, RFC 7677): the stored keys of a password, and the server's side of an exchange.
//!
//! Pure: messages in, messages out. Channel binding is not supported, so clients that require it are refused.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};

use super::password::{is_equal, padded, parse_iterations, random};

/// The name of the method in MQTT's AUTH packets.
pub const METHOD: &str = "SCRAM-SHA-256";

const PREFIX: &str = "$scram-sha-256$";
const ITERATIONS: u32 = 15_000;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 18;
/// Of "n,," and "y,,".
const HEADER_BYTES: usize = 3;
/// Longer client messages are rejected.
const MESSAGE_BYTES_MAX: usize = 4096;

type Key = [u8; digest::SHA256_OUTPUT_LEN];

/// The stored keys of a password: enough to check a proof, not enough to make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKeys {
    iterations: NonZeroU32,
    salt: Box<[u8]>,
    stored_key: Key,
    server_key: Key,
}

impl StoredKeys {
    /// The stored form of a new password.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn create(password: &str) -> Result<String, String> {
        let mut salt = [0; SALT_BYTES];
        random(&mut salt)?;
        let iterations = NonZeroU32::new(ITERATIONS).ok_or("no iterations")?;
        let keys = Self::of(password, &salt, iterations);
        Ok(format!(
            "{PREFIX}{ITERATIONS}${}${}${}",
            STANDARD.encode(salt),
            STANDARD.encode(keys.stored_key),
            STANDARD.encode(keys.server_key)
        ))
    }

    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// # Errors
    /// What is wrong with the stored form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix(PREFIX).unwrap_or_default();
        let parts: Vec<&str> = rest.split('$').collect();
        let [iterations, salt, stored_key, server_key] = parts.as_slice() else {
            return Err("a SCRAM line must be $scram-sha-256$iterations$salt$key$key".to_owned());
        };
        let key = |text| {
            let bytes = padded(text)?;
            Key::try_from(&*bytes).map_err(|_| "a SCRAM key must have 32 bytes".to_owned())
        };
        Ok(Self {
            iterations: parse_iterations(iterations)?,
            salt: padded(salt)?,
            stored_key: key(stored_key)?,
            server_key: key(server_key)?,
        })
    }

    fn of(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        let mut salted = Key::default();
        let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
        pbkdf2::derive(
            algorithm,
            iterations,
            salt,
            password.as_bytes(),
            &mut salted,
        );
        let client_key = keyed(&salted, b"Client Key");
        Self {
            iterations,
            salt: salt.into(),
            stored_key: sha256(&client_key),
            server_key: keyed(&salted, b"Server Key"),
        }
    }

    /// Keys for an unknown user. The salt is the same each time, as for a known user.
    pub fn decoy(user: &str, secret: &Key) -> Self {
        let salt = keyed(secret, user.as_bytes());
        Self {
            iterations: NonZeroU32::MIN.saturating_add(ITERATIONS - 1),
            salt: salt[..SALT_BYTES].into(),
            stored_key: keyed(secret, &salt),
            server_key: salt,
        }
    }
}

/// An exchange in progress: the client must still prove that it knows the password.
#[derive(Debug)]
pub struct Exchange {
    /// The header of the client's first message in base64, which the final one has to repeat.
    binding: Box<str>,
    user: Box<str>,
    nonce: Box<str>,
    /// Both first messages, in the form that is signed.
    signed: Box<str>,
    keys: StoredKeys,
}

/// A malformed message or a wrong proof; the client is not told which.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the SCRAM exchange failed")]
pub struct Failed;

impl Exchange {
    /// Takes the client's first message; returns the exchange and the server's first message.
    ///
    /// # Errors
    /// The message is malformed, or it requests channel binding or another user's rights.
    pub fn begin(
        message: &[u8],
        keys_of: impl FnOnce(&str) -> StoredKeys,
    ) -> Result<(Self, String), Failed> {
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce).map_err(|_| Failed)?;
        Self::begin_with(message, &STANDARD.encode(nonce), keys_of)
    }

    fn begin_with(
        message: &[u8],
        own_nonce: &str,
        keys_of: impl FnOnce(&str) -> StoredKeys,
    ) -> Result<(Self, String), Failed> {
        let message = text_of(message)?;
        // "n" or "y" means no channel binding; nothing between the commas means no other identity.
        let header = message.get(..HEADER_BYTES).ok_or(Failed)?;
        if !matches!(header, "n,," | "y,,") {
            return Err(Failed);
        }
        let bare = &message[HEADER_BYTES..];
        let mut attributes = bare.split(',');
        let user = attributes.next().and_then(|it| it.strip_prefix("n="));
        let client_nonce = attributes.next().and_then(|it| it.strip_prefix("r="));
        let (user, client_nonce) = (user.ok_or(Failed)?, client_nonce.ok_or(Failed)?);
        let is_printable = |c: char| c.is_ascii_graphic() && c != ',';
        if client_nonce.is_empty() || !client_nonce.chars().all(is_printable) {
            return Err(Failed);
        }
        let user = unescaped(user)?;
        let nonce = format!("{client_nonce}{own_nonce}");
        let keys = keys_of(&user);
        let answer = format!(
            "r={nonce},s={},i={}",
            STANDARD.encode(&keys.salt),
            keys.iterations
        );
        let exchange = Self {
            binding: STANDARD.encode(header).into(),
            user: user.into(),
            nonce: nonce.into(),
            signed: format!("{bare},{answer}").into(),
            keys,
        };
        Ok((exchange, answer))
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    /// Takes the client's final message; returns the server's, which proves that the broker knows the password too.
    ///
    /// # Errors
    /// The message is malformed, or the proof is wrong.
    pub fn finish(&self, message: &[u8]) -> Result<String, Failed> {
        let message = text_of(message)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(Failed)?;
        let mut attributes = without_proof.split(',');
        let binding = attributes.next().and_then(|it| it.strip_prefix("c="));
        let nonce = attributes.next().and_then(|it| it.strip_prefix("r="));
        if binding != Some(&*self.binding) || nonce != Some(&*self.nonce) {
            return Err(Failed);
        }
        let proof = STANDARD.decode(proof).map_err(|_| Failed)?;
        let proof = Key::try_from(proof.as_slice()).map_err(|_| Failed)?;
        let signed = format!("{},{without_proof}", self.signed);
        let signature = keyed(&self.keys.stored_key, signed.as_bytes());
        let mut client_key = proof;
        for (byte, other) in client_key.iter_mut().zip(signature) {
            *byte ^= other;
        }
        if !is_equal(&sha256(&client_key), &self.keys.stored_key) {
            return Err(Failed);
        }
        let own = keyed(&self.keys.server_key, signed.as_bytes());
        Ok(format!("v={}", STANDARD.encode(own)))
    }
}

fn text_of(message: &[u8]) -> Result<&str, Failed> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Failed);
    }
    std::str::from_utf8(message).map_err(|_| Failed)
}

/// Decodes a user name: `=2C` is a comma, `=3D` an equals sign. Any other `=` is an error.
fn unescaped(name: &str) -> Result<String, Failed> {
    let mut parts = name.split('=');
    let mut user = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (sign, rest) = match part.split_at_checked(2) {
            Some(("2C", rest)) => (',', rest),
            Some(("3D", rest)) => ('=', rest),
            _ => return Err(Failed),
        };
        user.push(sign);
        user.push_str(rest);
    }
    if user.is_empty() || user.contains(char::is_control) {
        return Err(Failed);
    }
    Ok(user)
}

fn keyed(key: &[u8], message: &[u8]) -> Key {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("a tag of SHA-256")
}

fn sha256(message: &[u8]) -> Key {
    let digest = digest::digest(&digest::SHA256, message);
    digest.as_ref().try_into().expect("a digest of SHA-256")
}

/// The client's side, for tests.
#[cfg(test)]
pub mod client {
    use super::*;

    pub fn first(user: &str, nonce: &str) -> String {
        format!("n,,n={user},r={nonce}")
    }

    /// The final message, with the proof that the client knows the password.
    pub fn last(password: &str, first: &str, challenge: &str) -> String {
        last_with(password, first, challenge, "biws")
    }

    /// The same, with this value of `c`.
    pub fn last_with(password: &str, first: &str, challenge: &str, binding: &str) -> String {
        let part = |prefix: &str| {
            let mut parts = challenge.split(',');
            parts
                .find_map(|it| it.strip_prefix(prefix))
                .expect("a challenge")
        };
        let salt = STANDARD.decode(part("s=")).expect("base64");
        let iterations = part("i=").parse().expect("a number");
        let mut salted = Key::default();
        let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
        pbkdf2::derive(
            algorithm,
            iterations,
            &salt,
            password.as_bytes(),
            &mut salted,
        );
        let client_key = keyed(&salted, b"Client Key");
        let bare = &first[HEADER_BYTES..];
        let without_proof = format!("c={binding},r={}", part("r="));
        let signed = format!("{bare},{challenge},{without_proof}");
        let signature = keyed(&sha256(&client_key), signed.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(signature)
            .map(|(l, r)| l ^ r)
            .collect();
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange of RFC 7677, section 3.
    const FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const OWN_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    const FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                         p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    fn keys() -> StoredKeys {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        StoredKeys::of("pencil", &salt, NonZeroU32::new(4096).unwrap())
    }

    fn begun() -> (Exchange, String) {
        Exchange::begin_with(FIRST, OWN_NONCE, |user| {
            assert_eq!(user, "user");
            keys()
        })
        .unwrap()
    }

    #[test]
    fn the_exchange_of_rfc_7677_succeeds() {
        let (exchange, answer) = begun();
        assert_eq!(
            answer,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        assert_eq!(
            exchange.finish(FINAL.as_bytes()).unwrap(),
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
        );
    }

    #[test]
    fn a_wrong_proof_nonce_or_binding_fails() {
        let (exchange, _) = begun();
        for (from, to) in [
            ("p=dHzb", "p=eHzb"),
            ("r=rOpr", "r=xOpr"),
            ("c=biws", "c=cD0s"),
        ] {
            let forged = FINAL.replace(from, to);
            assert_eq!(exchange.finish(forged.as_bytes()), Err(Failed), "{forged}");
        }
        for message in ["", "p=", "c=biws,p=", "\u{0}"] {
            assert_eq!(exchange.finish(message.as_bytes()), Err(Failed));
        }
    }

    /// RFC 5802, section 5.1: the `c` attribute repeats the header of the first message.
    #[test]
    fn a_final_message_with_another_header_than_the_first_fails_even_with_a_right_proof() {
        for (header, binding, is_same) in [
            ("n,,", "biws", true),
            ("y,,", "eSws", true),
            ("n,,", "eSws", false),
            ("y,,", "biws", false),
        ] {
            let first = format!("{header}n=user,r=abc");
            let begun = Exchange::begin_with(first.as_bytes(), OWN_NONCE, |_| keys());
            let (exchange, challenge) = begun.unwrap();
            let last = super::client::last_with("pencil", &first, &challenge, binding);
            assert_eq!(
                exchange.finish(last.as_bytes()).is_ok(),
                is_same,
                "{header} {binding}"
            );
        }
    }

    #[test]
    fn first_messages_that_are_none_are_refused() {
        let long = format!("n,,n=user,r={}", "x".repeat(5000));
        for message in [
            "p=tls-unique,,n=user,r=abc",
            "n,a=admin,n=user,r=abc",
            "n,,n=us=er,r=abc",
            "n,,n=,r=abc",
            "n,,n=user,r=",
            "n,,n=user",
            "n,,m=ext,n=user,r=abc",
            &long,
        ] {
            let begun = Exchange::begin(message.as_bytes(), |_| keys());
            assert!(begun.is_err(), "{message}");
        }
        let escaped = Exchange::begin(b"n,,n=a=2Cb=3Dc,r=abc", |user| {
            assert_eq!(user, "a,b=c");
            keys()
        });
        assert!(escaped.is_ok());
    }

    #[test]
    fn stored_keys_are_read_as_they_were_written() {
        let text = StoredKeys::create("pencil").unwrap();
        assert!(StoredKeys::is_meant_by(&text));
        let keys = StoredKeys::parse(&text).unwrap();
        assert_eq!(keys, StoredKeys::of("pencil", &keys.salt, keys.iterations));
        for bad in ["$scram-sha-256$", "$scram-sha-256$0$AA==$AA==$AA=="] {
            assert!(StoredKeys::parse(bad).is_err());
        }
        let (one, again) = (
            StoredKeys::decoy("eve", &[7; 32]),
            StoredKeys::decoy("eve", &[7; 32]),
        );
        assert_eq!(one, again);
    }
}
