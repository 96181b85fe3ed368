//! Passwords that were right lately, so that a client that comes back does not cost a slow check again.
//!
//! Kept is a keyed digest of user and password, with a key that lives as long as one state of the files: it cannot be
//! told what the password was, and after a reload nothing is remembered. At most one entry per user of the file.

use std::collections::HashMap;

use parking_lot::Mutex;
use ring::{digest, hmac};

use super::password::{is_equal, random};

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

#[derive(Debug)]
pub struct Remembered {
    /// Nothing is remembered when the system gave no random bytes.
    key: Option<hmac::Key>,
    by_user: Mutex<HashMap<Box<str>, Digest>>,
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

    /// Whether this was found to be the user's password before.
    pub fn knows(&self, user: &str, password: &[u8]) -> bool {
        let Some(digest) = self.digest(user, password) else {
            return false;
        };
        let by_user = self.by_user.lock();
        by_user
            .get(user)
            .is_some_and(|known| is_equal(known, &digest))
    }

    /// Only for a user of the file, whose number bounds this.
    pub fn remember(&self, user: &str, password: &[u8]) {
        if let Some(digest) = self.digest(user, password) {
            self.by_user.lock().insert(user.into(), digest);
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
        assert!(remembered.knows("ann", b"secret"));
        assert!(!remembered.knows("ann", b"secret2") && !remembered.knows("ann", b""));
        assert!(!remembered.knows("anns", b"ecret") && !remembered.knows("bob", b"secret"));
        remembered.remember("ann", b"other");
        assert!(!remembered.knows("ann", b"secret") && remembered.knows("ann", b"other"));
        assert!(!Remembered::default().knows("ann", b"other"));
        let kept = format!("{:?}", remembered.by_user.lock());
        assert!(!kept.contains("other"));
    }
}
