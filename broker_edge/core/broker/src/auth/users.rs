//! The password file: one line `name:stored` per password, and another for a user's SCRAM keys, if any.

use std::collections::HashMap;
use std::path::Path;

use ring::digest::SHA256;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::file::{FileError, lines, load};
use super::password::{StoredPassword, random};
use super::scram::StoredKeys;

/// Longer names are refused, both in the file and from clients.
pub const NAME_BYTES_MAX: usize = 1024;

/// Identifies a stored password, so that a reload notices which ones have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

#[derive(Debug)]
pub struct Stored<T> {
    pub value: T,
    pub fingerprint: Fingerprint,
}

#[derive(Debug, Default)]
pub struct User {
    pub password: Option<Stored<StoredPassword>>,
    pub scram: Option<Stored<StoredKeys>>,
}

#[derive(Debug)]
pub struct Users {
    by_name: HashMap<Box<str>, User>,
    /// Decoys that the passwords of unknown users are compared with, so that the check costs as much as for a known
    /// user: one per cost in the file, with the number of users of that cost.
    decoys: Vec<(StoredPassword, u64)>,
    /// Selects the decoy of a name.
    seed: u64,
    /// From the first stored password, which nobody outside knows: the same after a reload and a restart, as are the
    /// salts of known users.
    decoy_secret: Option<[u8; 32]>,
}

impl Users {
    /// # Errors
    /// The file cannot be read, or has an invalid line (the first one is reported).
    pub fn load(file: &Path) -> Result<Self, FileError> {
        load(file, Self::parse)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut by_name: HashMap<Box<str>, User> = HashMap::new();
        let mut decoys: Vec<(StoredPassword, u64)> = Vec::new();
        let mut decoy_secret = None;
        for (number, line) in lines(text) {
            let at = |reason: String| (number, reason);
            let (name, stored) = line.split_once(':').ok_or_else(|| {
                at("a line must be `name:password`, as `headwater users add` writes it".into())
            })?;
            check_name(name).map_err(|reason| at(reason.to_owned()))?;
            let user = by_name.entry(name.into()).or_default();
            let fingerprint = Fingerprint(xxh3_64(stored.as_bytes()));
            let is_twice = if StoredKeys::is_meant_by(stored) {
                let value = StoredKeys::parse(stored).map_err(at)?;
                user.scram.replace(Stored { value, fingerprint }).is_some()
            } else {
                let value = StoredPassword::parse(stored).map_err(at)?;
                decoy_secret.get_or_insert_with(|| {
                    let digest = ring::digest::digest(&SHA256, stored.as_bytes());
                    digest.as_ref().try_into().expect("a digest of SHA-256")
                });
                match decoys
                    .iter_mut()
                    .find(|(decoy, _)| decoy.cost() == value.cost())
                {
                    Some((_, count)) => *count += 1,
                    None => decoys.push((value.decoy(), 1)),
                }
                user.password
                    .replace(Stored { value, fingerprint })
                    .is_some()
            };
            if is_twice {
                return Err(at(format!(
                    "user `{name}` appears twice; remove one of the lines"
                )));
            }
        }
        if decoys.is_empty() {
            decoys.push((StoredPassword::default().decoy(), 1));
        }
        let mut seed = [0; 8];
        random(&mut seed).map_err(|reason| (0, reason))?;
        Ok(Self {
            by_name,
            decoys,
            seed: u64::from_le_bytes(seed),
            decoy_secret,
        })
    }

    pub fn get(&self, name: &str) -> Option<&User> {
        self.by_name.get(name)
    }

    /// The secret of the SCRAM salts of unknown users.
    pub fn decoy_secret(&self) -> Option<[u8; 32]> {
        self.decoy_secret
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &User)> {
        self.by_name.iter().map(|(name, user)| (&**name, user))
    }

    /// A decoy with the cost of the slowest password of the file.
    pub fn slowest(&self) -> &StoredPassword {
        let decoys = self.decoys.iter().map(|(decoy, _)| decoy);
        let slowest = decoys.max_by_key(|decoy| decoy.work());
        slowest.expect("`parse` leaves at least one decoy")
    }

    /// The decoy of an unknown user. Over many names, the costs are distributed as in the file.
    pub fn decoy(&self, name: &str) -> &StoredPassword {
        let total: u64 = self.decoys.iter().map(|(_, count)| count).sum();
        let mut place = xxh3_64_with_seed(name.as_bytes(), self.seed) % total;
        let here = self.decoys.iter().find(|(_, count)| {
            let is_here = place < *count;
            place = place.saturating_sub(*count);
            is_here
        });
        &here.expect("the place is below the sum of the counts").0
    }
}

/// The lines for a user with a new password.
///
/// # Errors
/// The system provides no random bytes or no memory.
pub fn new_lines(name: &str, password: &str, with_scram: bool) -> Result<String, String> {
    let stored = StoredPassword::create(password.as_bytes())?;
    let mut lines = format!("{name}:{stored}\n");
    if with_scram {
        lines.push_str(&format!("{name}:{}\n", StoredKeys::create(password)?));
    }
    Ok(lines)
}

/// A generated password with its line. Nobody has to remember it, and it is random enough that its fast digest cannot
/// be guessed.
///
/// # Errors
/// The system provides no random bytes.
pub fn generate(name: &str) -> Result<(String, String), String> {
    let (password, stored) = StoredPassword::generate()?;
    Ok((password, format!("{name}:{stored}\n")))
}

/// Checks that a user name fits a line of the file.
///
/// # Errors
/// Why it does not fit.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("the user name is empty")
    } else if name.len() > NAME_BYTES_MAX {
        Err("a user name has at most 1024 bytes")
    } else if name.contains(|c: char| c.is_control() || c == ':')
        || name.trim() != name
        || name.starts_with('#')
    {
        Err(
            "a user name may not contain a colon or a control character, begin with `#`, or begin or end with a space",
        )
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIX: &str = "$6$c2FsdA==$c2FsdHNhbHRzYWx0c2FsdA==";

    #[test]
    fn a_user_may_have_a_password_and_keys_of_scram() {
        let scram = StoredKeys::create("x").unwrap();
        let text = format!("# people\n\nann:{SIX}\nann:{scram}\nbob smith:{SIX}\n");
        let users = Users::parse(&text).unwrap();
        let ann = users.get("ann").unwrap();
        assert!(ann.password.is_some() && ann.scram.is_some());
        let bob = users.get("bob smith").unwrap();
        assert!(bob.password.is_some() && bob.scram.is_none());
        assert!(users.get("eve").is_none() && users.get("# people").is_none());
    }

    #[test]
    fn unknown_names_cost_what_the_names_of_the_file_cost() {
        let slow = "$argon2id$v=19$m=1024,t=2,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2FsdA";
        let users = Users::parse(&format!("a:{slow}\nb:{SIX}\nc:{SIX}\nd:{SIX}\n")).unwrap();
        let is_slow = |name: &String| users.decoy(name).kind() == "argon2id";
        let names: Vec<String> = (0..1000).map(|n| format!("device-{n}")).collect();
        let slow = names.iter().filter(|name| is_slow(name)).count();
        assert!((150..350).contains(&slow), "{slow} of 1000 instead of 250");
        assert!(names.iter().all(|name| is_slow(name) == is_slow(name)));
        assert_eq!(Users::parse("").unwrap().decoy("x").kind(), "argon2id");
    }

    #[test]
    fn the_secret_of_decoys_is_the_same_when_the_file_is_read_again() {
        let of = |text: &str| Users::parse(text).unwrap().decoy_secret();
        let scram = StoredKeys::create("x").unwrap();
        let secret = of(&format!("ann:{SIX}\n"));
        assert!(secret.is_some() && secret == of(&format!("eve:{scram}\nann:{SIX}\nbob:{SIX}\n")));
        // Whoever knows a password can make its SCRAM keys, so they are no secret.
        assert_eq!(of(&format!("ann:{scram}\n")), None);
    }

    #[test]
    fn a_bad_line_is_named_and_its_password_is_not_repeated() {
        for (text, line) in [
            ("ann".to_owned(), 1),
            ("\nann:secret".to_owned(), 2),
            (format!("ann:{SIX}\nann:{SIX}"), 2),
            (format!(":{SIX}"), 1),
            (format!("a\u{7}b:{SIX}"), 1),
            (format!("{}:{SIX}", "x".repeat(2000)), 1),
        ] {
            let (at, reason) = Users::parse(&text).unwrap_err();
            assert!(at == line && !reason.contains("secret"), "{at} {reason}");
        }
    }
}
