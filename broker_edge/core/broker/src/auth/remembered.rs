//! Passwords that were found right or wrong lately, so that a client that comes back does not cost a slow check again.
//!
//! Kept is a keyed digest of user and password, with a key that lives as long as one state of the files: it cannot be
//! told what the password was, and after a reload nothing is remembered. Of what was right there is at most one entry per
//! user of the file; of what was wrong, whoever the user was said to be, the newest few thousand: enough for devices that
//! were given the wrong password and try it for ever, and no help to who guesses, since no guess is made twice.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use ring::{digest, hmac};

use super::password::{is_equal, random};

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

/// Wrong passwords that are remembered; as many again may be left of those before.
const WRONG_MAX: usize = 4096;

#[derive(Debug)]
pub struct Remembered {
    /// Nothing is remembered when the system gave no random bytes.
    key: Option<hmac::Key>,
    by_user: Mutex<HashMap<Box<str>, Digest>>,
    wrong: Mutex<Wrong>,
}

/// Two halves, so that room is made without forgetting all.
#[derive(Debug, Default)]
struct Wrong {
    newer: HashSet<Digest>,
    older: HashSet<Digest>,
}

impl Default for Remembered {
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

impl Remembered {
    fn digest(&self, user: &str, password: &[u8]) -> Option<Digest> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        context.update(&(user.len() as u64).to_le_bytes());
        context.update(user.as_bytes());
        context.update(password);
        let mut digest = Digest::default();
        digest.copy_from_slice(context.sign().as_ref());
        Some(digest)
    }

    /// Whether this was found to be the user's password before, or not to be; `None` when it was not looked at lately.
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

    /// Only for a user of the file, whose number bounds this.
    pub fn remember(&self, user: &str, password: &[u8]) {
        if let Some(digest) = self.digest(user, password) {
            self.by_user.lock().insert(user.into(), digest);
        }
    }

    /// This is not the password of that user, who may not exist.
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
        let remembered = Remembered::default();
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
        assert_eq!(Remembered::default().recall("ann", b"other"), None);
        let kept = format!("{:?}", remembered.by_user.lock());
        assert!(!kept.contains("other"));
    }

    #[test]
    fn wrong_passwords_are_remembered_up_to_a_bound_the_newest_longest() {
        let remembered = Remembered::default();
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
