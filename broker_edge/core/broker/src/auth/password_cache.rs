//! Recent results of password checks, so that a returning client does not cost another slow check.
//!
//! Entries are keyed digests of user and password. The key lives as long as one snapshot of the files, so the digest
//! does not reveal the password, and a reload forgets everything. There is at most one correct password per user of the
//! file, and the newest few thousand wrong ones for any user name. That is enough for devices that retry
//! forever with a wrong password. It does not help an attacker, because an attacker never repeats a guess.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use ring::{digest, hmac};

use super::password::{is_equal, random};

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

/// The most wrong passwords per half; the older half may hold as many again.
const WRONG_MAX: usize = 4096;

#[derive(Debug)]
pub struct PasswordCache {
    /// `None` if the system provided no random bytes; then nothing is remembered.
    key: Option<hmac::Key>,
    by_user: Mutex<HashMap<Box<str>, Digest>>,
    wrong: Mutex<WrongPasswords>,
}

/// Two halves, so that making room does not forget everything.
#[derive(Debug, Default)]
struct WrongPasswords {
    newer: HashSet<Digest>,
    older: HashSet<Digest>,
}

impl Default for PasswordCache {
    fn default() -> Self {
        let mut secret = Digest::default();
        let key = random(&mut secret)
            .ok()
            .map(|()| hmac::Key::new(hmac::HMAC_SHA256, &secret));
        Self {
            key,
            by_user: Mutex::default(),
            wrong: Mutex::default(),
        }
    }
}

impl PasswordCache {
    fn digest(&self, user: &str, password: &[u8]) -> Option<Digest> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        context.update(&(user.len() as u64).to_le_bytes());
        context.update(user.as_bytes());
        context.update(password);
        let mut digest = Digest::default();
        digest.copy_from_slice(context.sign().as_ref());
        Some(digest)
    }

    /// The result of a recent check of this password: right or wrong; `None` if there was none.
    pub fn recall(&self, user: &str, password: &[u8]) -> Option<bool> {
        let digest = self.digest(user, password)?;
        let known = self.by_user.lock().get(user).copied();
        if known.is_some_and(|known| is_equal(&known, &digest)) {
            return Some(true);
        }
        let wrong = self.wrong.lock();
        let is_wrong = wrong.newer.contains(&digest) || wrong.older.contains(&digest);
        is_wrong.then_some(false)
    }

    /// Only for users of the file, whose number bounds the entries.
    pub fn remember(&self, user: &str, password: &[u8]) {
        if let Some(digest) = self.digest(user, password) {
            self.by_user.lock().insert(user.into(), digest);
        }
    }

    /// Remembers a wrong password. The user may not exist.
    pub fn remember_wrong(&self, user: &str, password: &[u8]) {
        if let Some(digest) = self.digest(user, password) {
            let mut wrong = self.wrong.lock();
            if wrong.newer.len() >= WRONG_MAX {
                wrong.older = std::mem::take(&mut wrong.newer);
            }
            wrong.newer.insert(digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_password_of_the_very_user_is_known_and_only_here() {
        let remembered = PasswordCache::default();
        remembered.remember("ann", b"secret");
        assert_eq!(remembered.recall("ann", b"secret"), Some(true));
        for (user, password) in [
            ("ann", &b"secret2"[..]),
            ("ann", b""),
            ("anns", b"ecret"),
            ("bob", b"secret"),
        ] {
            assert_eq!(remembered.recall(user, password), None, "{user}");
        }
        remembered.remember("ann", b"other");
        assert_eq!(remembered.recall("ann", b"secret"), None);
        assert_eq!(remembered.recall("ann", b"other"), Some(true));
        assert_eq!(PasswordCache::default().recall("ann", b"other"), None);
        let kept = format!("{:?}", remembered.by_user.lock());
        assert!(!kept.contains("other"));
    }

    #[test]
    fn wrong_passwords_are_remembered_up_to_a_bound_the_newest_longest() {
        let remembered = PasswordCache::default();
        let guess = |number: usize| number.to_le_bytes();
        remembered.remember("ann", b"right");
        for number in 0..3 * WRONG_MAX {
            remembered.remember_wrong("ann", &guess(number));
        }
        assert_eq!(remembered.recall("ann", &guess(0)), None);
        for number in 2 * WRONG_MAX..3 * WRONG_MAX {
            assert_eq!(remembered.recall("ann", &guess(number)), Some(false));
            assert_eq!(remembered.recall("bob", &guess(number)), None);
        }
        let wrong = remembered.wrong.lock();
        assert!(wrong.newer.len() + wrong.older.len() <= 2 * WRONG_MAX);
        drop(wrong);
        assert_eq!(remembered.recall("ann", b"right"), Some(true));
    }
}
