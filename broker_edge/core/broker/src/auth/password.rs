//! One stored password: our own argon2id, and the two kinds that Mosquitto writes.
//!
//! A check takes tens of milliseconds on purpose, so it never runs on the event loop.

use std::num::NonZeroU32;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, pbkdf2};

/// The cost of a new password: 19 MiB and two passes, OWASP's recommendation with the least memory.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// The length of a generated password.
const GENERATED_BYTES: usize = 24;

/// The highest cost that a file may demand.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;
const LANES_MAX: u32 = 16;
const ITERATIONS_MAX: u32 = 10_000_000;

/// Of argon2id: memory in KiB, passes and lanes.
type Costs = [u32; 3];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredPassword {
    Argon2id {
        costs: Costs,
        salt: Box<[u8]>,
        hash: Box<[u8]>,
    },
    /// Mosquitto's `$7$`.
    Pbkdf2Sha512 {
        iterations: NonZeroU32,
        salt: Box<[u8]>,
        hash: Box<[u8]>,
    },
    /// Mosquitto's `$6$`, which is fast to guess.
    Sha512 { salt: Box<[u8]>, hash: Box<[u8]> },
}

impl StoredPassword {
    /// The stored form of a new password.
    ///
    /// # Errors
    /// The system provides no random bytes or no memory.
    pub fn create(password: &[u8]) -> Result<String, String> {
        let mut salt = [0; SALT_BYTES];
        random(&mut salt)?;
        let mut hash = [0; HASH_BYTES];
        argon2id([MEMORY_KIB, PASSES, LANES], password, &salt, &mut hash)?;
        Ok(format!(
            "$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${}${}",
            STANDARD_NO_PAD.encode(salt),
            STANDARD_NO_PAD.encode(hash)
        ))
    }

    /// A new password of 192 random bits, and its stored form. A slow digest would add no security to that many bits,
    /// and thousands of devices that reconnect together would wait for it.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate() -> Result<(String, String), String> {
        let (mut secret, mut salt) = ([0; GENERATED_BYTES], [0; SALT_BYTES]);
        random(&mut secret)?;
        random(&mut salt)?;
        let password = URL_SAFE_NO_PAD.encode(secret);
        let hash = sha512(password.as_bytes(), &salt);
        let stored = format!("$6${}${}", STANDARD.encode(salt), STANDARD.encode(hash));
        Ok((password, stored))
    }

    /// Parses a stored form, from its first `$` on.
    ///
    /// # Errors
    /// What is wrong with it, without quoting the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('$').collect();
        match parts.as_slice() {
            ["", "argon2id", "v=19", costs, salt, hash] => parse_argon2id(costs, salt, hash),
            ["", "7", iterations, salt, hash] => Ok(Self::Pbkdf2Sha512 {
                iterations: parse_iterations(iterations)?,
                salt: padded(salt)?,
                hash: filled(padded(hash)?)?,
            }),
            ["", "6", salt, hash] => Ok(Self::Sha512 {
                salt: padded(salt)?,
                hash: filled(padded(hash)?)?,
            }),
            _ => Err(
                "unknown password format (known are $argon2id$, and Mosquitto's $7$ and $6$); write it with \
                 `headwater users add`"
                    .to_owned(),
            ),
        }
    }

    /// Whether this is the password. Takes the same time either way.
    pub fn is(&self, password: &[u8]) -> bool {
        match self {
            Self::Argon2id { costs, salt, hash } => {
                let mut found = vec![0; hash.len()];
                match argon2id(*costs, password, salt, &mut found) {
                    Ok(()) => is_equal(&found, hash),
                    Err(error) => {
                        tracing::error!(error, "a password check failed");
                        false
                    }
                }
            }
            Self::Pbkdf2Sha512 {
                iterations,
                salt,
                hash,
            } => pbkdf2::verify(
                pbkdf2::PBKDF2_HMAC_SHA512,
                *iterations,
                salt,
                password,
                hash,
            )
            .is_ok(),
            Self::Sha512 { salt, hash } => is_equal(sha512(password, salt).as_ref(), hash),
        }
    }

    /// The name of the format, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Argon2id { .. } => "argon2id",
            Self::Pbkdf2Sha512 { .. } => "pbkdf2-sha512",
            Self::Sha512 { .. } => "sha512",
        }
    }

    /// The cost of a check; equal for passwords of equal cost.
    pub fn cost(&self) -> (&'static str, [u32; 3]) {
        let numbers = match self {
            Self::Argon2id { costs, .. } => *costs,
            Self::Pbkdf2Sha512 { iterations, .. } => [iterations.get(), 0, 0],
            Self::Sha512 { .. } => [0; 3],
        };
        (self.kind(), numbers)
    }

    /// An estimate of the time of a check, in microseconds; only for comparing stored passwords.
    pub fn work(&self) -> u64 {
        match self {
            Self::Argon2id { costs, .. } => u64::from(costs[0]) * u64::from(costs[1]),
            Self::Pbkdf2Sha512 { iterations, .. } => u64::from(iterations.get()),
            Self::Sha512 { .. } => 0,
        }
    }

    /// A stored form of the same cost that no password matches, for unknown users.
    pub fn decoy(&self) -> Self {
        let mut decoy = self.clone();
        let (Self::Argon2id { hash, .. }
        | Self::Pbkdf2Sha512 { hash, .. }
        | Self::Sha512 { hash, .. }) = &mut decoy;
        // Nobody knows a password with a random digest. If there are no random bytes, the inverted digest serves as
        // well.
        if random(hash).is_err() {
            hash.iter_mut().for_each(|byte| *byte = !*byte);
        }
        decoy
    }
}

impl Default for StoredPassword {
    /// With the cost of a new password.
    fn default() -> Self {
        Self::Argon2id {
            costs: [MEMORY_KIB, PASSES, LANES],
            salt: [0; SALT_BYTES].into(),
            hash: [0; HASH_BYTES].into(),
        }
    }
}

fn sha512(password: &[u8], salt: &[u8]) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA512);
    context.update(password);
    context.update(salt);
    context.finish()
}

fn parse_argon2id(costs: &str, salt: &str, hash: &str) -> Result<StoredPassword, String> {
    let mut found = [None; 3];
    for cost in costs.split(',') {
        let slot = match cost.split_at_checked(2) {
            Some(("m=", count)) => (&mut found[0], count, MEMORY_KIB_MAX),
            Some(("t=", count)) => (&mut found[1], count, PASSES_MAX),
            Some(("p=", count)) => (&mut found[2], count, LANES_MAX),
            _ => return Err(format!("`{cost}` is not a cost of argon2id")),
        };
        let (place, count, max) = slot;
        *place = count.parse::<u32>().ok().filter(|count| *count <= max);
    }
    let [Some(memory_kib), Some(passes), Some(lanes)] = found else {
        return Err("argon2id needs the costs m, t and p, within the supported range".to_owned());
    };
    Params::new(memory_kib, passes, lanes, None)
        .map_err(|error| format!("invalid costs of argon2id: {error}"))?;
    Ok(StoredPassword::Argon2id {
        costs: [memory_kib, passes, lanes],
        salt: unpadded(salt)?,
        hash: filled(unpadded(hash)?)?,
    })
}

fn argon2id(
    [memory_kib, passes, lanes]: Costs,
    password: &[u8],
    salt: &[u8],
    hash: &mut [u8],
) -> Result<(), String> {
    let params = Params::new(memory_kib, passes, lanes, Some(hash.len()))
        .map_err(|error| error.to_string())?;
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(password, salt, hash)
        .map_err(|error| error.to_string())
}

pub(super) fn parse_iterations(text: &str) -> Result<NonZeroU32, String> {
    let count = text.parse().ok();
    count
        .filter(|count: &NonZeroU32| count.get() <= ITERATIONS_MAX)
        .ok_or_else(|| "invalid iteration count".to_owned())
}

fn unpadded(text: &str) -> Result<Box<[u8]>, String> {
    decoded(&STANDARD_NO_PAD, text)
}

pub(super) fn padded(text: &str) -> Result<Box<[u8]>, String> {
    decoded(&STANDARD, text)
}

fn decoded(base64: &GeneralPurpose, text: &str) -> Result<Box<[u8]>, String> {
    let bytes = base64.decode(text);
    bytes
        .map(Into::into)
        .map_err(|_| "salt or digest is not base64".to_owned())
}

/// An empty or tiny digest would match every password, or many.
fn filled(hash: Box<[u8]>) -> Result<Box<[u8]>, String> {
    if (16..=128).contains(&hash.len()) {
        Ok(hash)
    } else {
        Err("the digest has an invalid length".to_owned())
    }
}

pub(super) fn random(bytes: &mut [u8]) -> Result<(), String> {
    SystemRandom::new()
        .fill(bytes)
        .map_err(|_| "the system provides no random bytes".to_owned())
}

/// Compares digests in constant time.
pub(super) fn is_equal(left: &[u8], right: &[u8]) -> bool {
    let differing = left.iter().zip(right).fold(0, |all, (l, r)| all | (l ^ r));
    left.len() == right.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_password_is_stored_as_argon2id_with_a_salt_of_its_own() {
        let (one, other) = (
            StoredPassword::create(b"secret").unwrap(),
            StoredPassword::create(b"secret").unwrap(),
        );
        assert!(one.starts_with("$argon2id$v=19$m=19456,t=2,p=1$") && one != other);
        let stored = StoredPassword::parse(&one).unwrap();
        assert!(stored.is(b"secret"));
        assert!(!stored.is(b"Secret") && !stored.is(b"") && !stored.is(b"secret\0"));
        assert!(!stored.decoy().is(b"secret"));
    }

    #[test]
    fn a_generated_password_is_long_random_and_quick_to_check() {
        let (one, stored) = StoredPassword::generate().unwrap();
        let (other, _) = StoredPassword::generate().unwrap();
        assert!(one.len() == 32 && one != other && !stored.contains(&one));
        let stored = StoredPassword::parse(&stored).unwrap();
        assert!(stored.kind() == "sha512" && stored.is(one.as_bytes()));
        assert!(!stored.is(other.as_bytes()));
    }

    #[test]
    fn what_mosquitto_wrote_is_read() {
        // Made with OpenSSL: PBKDF2-HMAC-SHA512 with 101 iterations, and SHA512(password, salt).
        let salt = STANDARD.encode(b"twelve bytes");
        let mut hash = [0; 64];
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA512,
            NonZeroU32::new(101).unwrap(),
            b"twelve bytes",
            b"secret",
            &mut hash,
        );
        let seven = format!("$7$101${salt}${}", STANDARD.encode(hash));
        let mut context = digest::Context::new(&digest::SHA512);
        context.update(b"secrettwelve bytes");
        let six = format!("$6${salt}${}", STANDARD.encode(context.finish()));
        for text in [seven, six] {
            let stored = StoredPassword::parse(&text).unwrap();
            assert!(stored.is(b"secret"), "{text}");
            assert!(
                !stored.is(b"secret ") && !stored.decoy().is(b"secret"),
                "{text}"
            );
        }
    }

    #[test]
    fn stored_forms_that_would_fit_anything_or_cost_everything_are_refused() {
        for text in [
            "secret",
            "$6$c2FsdA==$",
            "$7$0$c2FsdA==$c2FsdHNhbHRzYWx0c2FsdA==",
            "$7$99999999$c2FsdA==$c2FsdHNhbHRzYWx0c2FsdA==",
            "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$",
            "$argon2id$v=19$m=99999999,t=2,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA",
            "$argon2id$v=19$m=19456,t=2$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA",
            "$argon2i$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA",
        ] {
            assert!(StoredPassword::parse(text).is_err(), "{text}");
        }
    }
}
