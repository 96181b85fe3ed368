//! One snapshot of all auth files: it decides who is admitted, and with which rights.

use std::sync::Arc;
use std::time::Instant;

use super::acl::Acl;
use super::password_cache::PasswordCache;
use super::refusal_time::RefusalTime;
use super::token::{TOKEN_BYTES_MAX, Tokens};
use super::users::{Fingerprint, Users};
use super::{Answer, Denied, FileError, Identity, Proof, certificate, password, scram, users};
use crate::config::{AuthSettings, CertificateSettings, CertificateUser, ClientIds};
use crate::peer::CertificateNames;

/// Longer passwords are refused without a check.
const PASSWORD_BYTES_MAX: usize = 4096;

/// The credentials of a client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credentials<'a> {
    pub user: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub certificate: Option<&'a Arc<CertificateNames>>,
}

/// What to do with credentials.
#[derive(Debug)]
pub enum Admission {
    In(Arc<Identity>),
    Out(Denied),
    /// They must be checked on another thread.
    Check(Check),
}

/// A slow check with its inputs.
pub struct Check {
    authority: Arc<Authority>,
    user: Box<str>,
    password: Box<[u8]>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The result of a slow check.
#[derive(Debug)]
pub struct Verdict {
    pub answer: Answer,
    /// The client may not be told before, so that the time of a refusal tells nothing about the user.
    pub not_before: Option<Instant>,
}

impl Verdict {
    fn at_once(answer: Answer) -> Self {
        Self {
            answer,
            not_before: None,
        }
    }
}

impl Check {
    /// A password takes tens of milliseconds of CPU time.
    pub fn run(self) -> Verdict {
        let authority = &self.authority;
        if let Some(tokens) = authority.tokens_for(&self.password) {
            return Verdict::at_once(tokens.authenticate(&self.password).map(Arc::new));
        }
        // Another check of the same password may have finished meanwhile.
        if let Some(answer) = authority.recall(&self.user, &self.password) {
            return Verdict::at_once(answer);
        }
        let Some(users) = authority.users.as_ref() else {
            return Verdict::at_once(Err(Denied::BadCredentials));
        };
        let started = Instant::now();
        let stored = users
            .get(&self.user)
            .and_then(|user| user.password.as_ref());
        let password = stored.map_or_else(|| users.decoy(&self.user), |stored| &stored.value);
        match (password.is(&self.password), stored) {
            (true, Some(stored)) => {
                authority
                    .password_cache
                    .remember(&self.user, &self.password);
                Verdict::at_once(Ok(with_password(&self.user, stored.fingerprint)))
            }
            _ => {
                authority
                    .password_cache
                    .remember_wrong(&self.user, &self.password);
                let at = authority.refusal_time.answer_at(started, users.slowest());
                Verdict {
                    answer: Err(Denied::BadCredentials),
                    not_before: Some(at),
                }
            }
        }
    }
}

fn identity(user: &str, proof: Proof) -> Identity {
    Identity {
        user: Some(user.into()),
        proof,
        ..Identity::default()
    }
}

fn with_password(user: &str, stored: Fingerprint) -> Arc<Identity> {
    Arc::new(identity(user, Proof::Password(stored)))
}

/// Decides who is admitted and what they may do: one snapshot of all files.
#[derive(Debug, Default)]
pub struct Authority {
    users: Option<Users>,
    tokens: Option<Tokens>,
    pub(super) acl: Option<Acl>,
    certificate: CertificateSettings,
    client_ids: ClientIds,
    /// Users who are operators regardless of the ACL.
    operators: Vec<String>,
    /// Clients without credentials are admitted.
    admits_anybody: bool,
    /// Some authentication method is configured.
    pub(super) is_configured: bool,
    password_cache: PasswordCache,
    refusal_time: RefusalTime,
    /// Every caller is an operator: nothing is configured, and only this machine can connect.
    opens_operation: bool,
    /// The secret from which the SCRAM keys of unknown users are derived.
    scram_secret: [u8; 32],
}

impl Authority {
    /// Admits everybody and allows everything.
    pub fn open() -> Arc<Self> {
        Arc::new(Self {
            admits_anybody: true,
            opens_operation: true,
            ..Self::default()
        })
    }

    /// Reads all files. `is_local` says that no listener is reachable from another machine.
    ///
    /// # Errors
    /// The first invalid file, in one sentence.
    pub fn load(settings: &AuthSettings, is_local: bool) -> Result<Self, FileError> {
        let users = settings
            .password_file
            .as_deref()
            .map(Users::load)
            .transpose()?;
        let keys_file = settings.token.keys_file.as_deref();
        let tokens = keys_file
            .map(|file| Tokens::load(file, &settings.token))
            .transpose()?;
        let acl = settings.acl_file.as_deref().map(Acl::load).transpose()?;
        let mut scram_secret = [0; 32];
        // Without random bytes, clients could recognize decoys, so the start fails.
        password::random(&mut scram_secret).map_err(|reason| FileError::Whole {
            file: "/dev/urandom".into(),
            reason,
        })?;
        if let Some(secret) = users.as_ref().and_then(Users::decoy_secret) {
            scram_secret = secret;
        }
        Ok(Self {
            users,
            tokens,
            opens_operation: is_local && !settings.is_configured() && acl.is_none(),
            acl,
            certificate: settings.certificate.clone(),
            client_ids: settings.client_ids,
            operators: settings.operators.clone(),
            admits_anybody: settings.allow_anonymous || !settings.is_configured(),
            is_configured: settings.is_configured(),
            password_cache: PasswordCache::default(),
            refusal_time: RefusalTime::default(),
            scram_secret,
        })
    }

    /// What is wrong with each of the files.
    pub fn problems(settings: &AuthSettings) -> Vec<FileError> {
        let users = settings.password_file.as_deref().map(Users::load);
        let acl = settings.acl_file.as_deref().map(Acl::load);
        let keys = settings.token.keys_file.as_deref();
        let tokens = keys.map(|file| Tokens::load(file, &settings.token));
        let found = [
            users.and_then(Result::err),
            acl.and_then(Result::err),
            tokens.and_then(Result::err),
        ];
        found.into_iter().flatten().collect()
    }

    /// Whether no authentication is needed and everything is allowed.
    pub fn is_open(&self) -> bool {
        !self.is_configured && self.acl.is_none()
    }

    /// Whether there are users who can prove who they are.
    pub fn has_users(&self) -> bool {
        self.is_configured
    }

    /// Whether an admitted client may be refused anything.
    pub fn restricts(&self) -> bool {
        self.acl.is_some() || self.tokens.is_some()
    }

    /// Whether everybody may operate the broker, because no authentication is configured and only this machine can
    /// connect.
    pub fn opens_operation(&self) -> bool {
        self.opens_operation
    }

    /// Whether client ids are trusted without proof.
    pub(super) fn trusts_client_ids(&self) -> bool {
        self.client_ids == ClientIds::Any
    }

    /// Whether a rule of the ACL file contains `%c`.
    pub(super) fn has_client_id_rules(&self) -> bool {
        let acl = self.acl.as_ref();
        acl.is_some_and(|acl| acl.client_id_rules().next().is_some())
    }

    /// Whether the client id belongs to a user.
    pub(super) fn has_owner(&self, client_id: &str) -> bool {
        let users = self.users.as_ref();
        users.is_some_and(|users| users.get(client_id).is_some())
            || self
                .acl
                .as_ref()
                .is_some_and(|acl| acl.has_owner(client_id))
    }

    /// Whether the settings name this user as an operator.
    pub(super) fn names_operator(&self, user: &str) -> bool {
        self.operators.iter().any(|named| named == user)
    }

    /// Whether the owner of a stored session may still exist. Tokens and certificates name users that no file lists.
    pub(super) fn may_admit(&self, user: Option<&str>) -> bool {
        (user.is_some() && self.names_unlisted_users()) || self.may_admit_listed(user)
    }

    /// The same for an owner who showed neither a token nor a certificate.
    pub(super) fn may_admit_listed(&self, user: Option<&str>) -> bool {
        let Some(user) = user else {
            return self.admits_anybody;
        };
        let is_listed = |users: &Users| users.get(user).is_some();
        !self.is_configured || self.users.as_ref().is_some_and(is_listed)
    }

    fn names_unlisted_users(&self) -> bool {
        self.tokens.is_some() || self.certificate.user != CertificateUser::Ignored
    }

    /// Whether a token may bring rights of its own, which replace the ACL file.
    pub(super) fn reads_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Whether this client authenticated by certificate and its client id must equal the certificate's user.
    pub fn binds_client_id(&self, identity: &Identity) -> bool {
        self.certificate.bind_client_id && identity.proof == Proof::Certificate
    }

    fn tokens_for(&self, password: &[u8]) -> Option<&Tokens> {
        self.tokens.as_ref().filter(|_| Tokens::is_token(password))
    }

    /// The remembered answer for these credentials. The lookup is the same whether the user exists or not.
    fn recall(&self, user: &str, password: &[u8]) -> Option<Answer> {
        let is_right = self.password_cache.recall(user, password)?;
        let stored = self.users.as_ref()?.get(user);
        let stored = stored.and_then(|user| user.password.as_ref());
        Some(match stored.filter(|_| is_right) {
            Some(stored) => Ok(with_password(user, stored.fingerprint)),
            None => Err(Denied::BadCredentials),
        })
    }

    /// Decides about credentials if that is fast; otherwise returns the check to run.
    pub fn admit(self: &Arc<Self>, shown: &Credentials<'_>) -> Admission {
        let certified = shown
            .certificate
            .and_then(|names| certificate::user_of(&self.certificate, names));
        if let Some(user) = certified {
            return Admission::In(Arc::new(Identity {
                certified: shown.certificate.cloned(),
                ..identity(user, Proof::Certificate)
            }));
        }
        if shown.user.is_none() && shown.password.is_none() {
            return if self.admits_anybody {
                Admission::In(Arc::default())
            } else {
                Admission::Out(Denied::NoCredentials)
            };
        }
        if !self.is_configured {
            // The credentials cannot be checked, and everybody is admitted anyway, without a user name.
            return Admission::In(Arc::default());
        }
        let user = shown.user.unwrap_or_default();
        let password = shown.password.unwrap_or_default();
        let is_token = self.tokens_for(password).is_some();
        let bytes_max = if is_token {
            TOKEN_BYTES_MAX
        } else {
            PASSWORD_BYTES_MAX
        };
        let is_too_long = user.len() > users::NAME_BYTES_MAX || password.len() > bytes_max;
        if is_too_long || (!is_token && self.users.is_none()) {
            return Admission::Out(Denied::BadCredentials);
        }
        match self.recall(user, password) {
            Some(Ok(identity)) => Admission::In(identity),
            Some(Err(denied)) => Admission::Out(denied),
            None => Admission::Check(Check {
                authority: Arc::clone(self),
                user: user.into(),
                password: password.into(),
            }),
        }
    }

    /// The SCRAM keys of a user, and their fingerprint. Unknown users get decoy keys that look the same.
    pub fn scram_keys(&self, user: &str) -> (scram::StoredKeys, Option<Fingerprint>) {
        let stored = self.users.as_ref().and_then(|users| users.get(user));
        match stored.and_then(|user| user.scram.as_ref()) {
            Some(stored) => (stored.value.clone(), Some(stored.fingerprint)),
            None => (scram::StoredKeys::decoy(user, &self.scram_secret), None),
        }
    }

    /// Whether SCRAM is supported.
    pub fn serves_scram(&self) -> bool {
        self.users.is_some()
    }

    /// The identity of a client that showed a password before; it expires.
    pub fn password_identity(user: &str, stored: Fingerprint, expires_us: i64) -> Arc<Identity> {
        Arc::new(Identity {
            expires_us: Some(expires_us),
            ..identity(user, Proof::Password(stored))
        })
    }

    /// The identity of a client that completed SCRAM with these keys.
    pub fn scram_identity(user: &str, keys: Fingerprint) -> Arc<Identity> {
        Arc::new(identity(user, Proof::Scram(keys)))
    }

    /// Whether a client admitted under an earlier snapshot would be admitted now.
    pub fn still_admits(&self, identity: &Identity) -> bool {
        let user = identity.user.as_deref().unwrap_or_default();
        let stored = self.users.as_ref().and_then(|users| users.get(user));
        match identity.proof {
            Proof::Nothing => self.admits_anybody,
            Proof::Certificate => !identity
                .certified
                .as_ref()
                .is_some_and(|names| names.is_revoked()),
            Proof::Stored => true,
            Proof::Password(proved) => stored
                .and_then(|user| user.password.as_ref())
                .is_some_and(|stored| stored.fingerprint == proved),
            Proof::Scram(proved) => stored
                .and_then(|user| user.scram.as_ref())
                .is_some_and(|stored| stored.fingerprint == proved),
            Proof::Token(key) => self
                .tokens
                .as_ref()
                .is_some_and(|tokens| tokens.has_key(key)),
        }
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
