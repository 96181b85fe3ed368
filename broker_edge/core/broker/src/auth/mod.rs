//! Who a client is, and what it may do.
//!
//! An [`Authority`] is an immutable snapshot of everything that decides about that: users, keys of tokens, the ACL. It
//! is replaced as a whole on a reload ([`Keeper`]), never changed. Credentials become an [`Identity`]; what it may do
//! are its [`Rights`]. Nothing here knows a connection: the engine and the service ask and act.

mod acl;
mod certificate;
mod file;
mod keeper;
mod password;
mod remembered;
mod rules;
pub mod scram;
mod signature;
mod token;
pub mod users;
mod verifier;

use std::sync::Arc;

use headwater_mqtt::{ConnectReturnCode, ReasonCode};

use crate::config::{AuthSettings, CertificateSettings};
use crate::peer::CertificateNames;

use acl::{Acl, Section, Target};
use remembered::Remembered;
use rules::{Names, Rules, Verdict};
use token::{TOKEN_BYTES_MAX, Tokens};
use users::{Fingerprint, Users};

pub use file::FileError;
pub use keeper::{Keeper, StartError};
pub use verifier::{Answer, Busy, Verifier};

/// A longer password is refused unseen.
const PASSWORD_BYTES_MAX: usize = 4096;

/// What somebody wants to do with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    Publish,
    /// Asked for a filter, not for a topic: whether it may match something that may be received.
    Subscribe,
    /// Be sent a record, live, retained or after having been away.
    Receive,
    /// Read from an offset of one's own choosing. Asked for a topic.
    Replay,
}

/// Why somebody is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Denied {
    NoCredentials,
    /// Unknown user or wrong password: nobody is told which.
    BadCredentials,
    BadToken,
    ExpiredToken,
    /// The client id is not the one that belongs to the user.
    ClientId,
    /// An authentication method that is not served.
    Method,
    Busy,
}

impl Denied {
    /// For metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoCredentials => "no_credentials",
            Self::BadCredentials => "bad_credentials",
            Self::BadToken => "bad_token",
            Self::ExpiredToken => "expired_token",
            Self::ClientId => "client_id",
            Self::Method => "method",
            Self::Busy => "busy",
        }
    }

    /// What MQTT 5 calls it.
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::NoCredentials => ReasonCode::NotAuthorized,
            Self::BadCredentials | Self::BadToken | Self::ExpiredToken => {
                ReasonCode::BadUserNameOrPassword
            }
            Self::ClientId => ReasonCode::ClientIdentifierNotValid,
            Self::Method => ReasonCode::BadAuthenticationMethod,
            Self::Busy => ReasonCode::ServerBusy,
        }
    }

    /// What older versions call it. A wrong password is "not authorized", as from Mosquitto: code 4 is for credentials
    /// that are malformed.
    pub fn return_code(self) -> ConnectReturnCode {
        match self {
            Self::ClientId => ConnectReturnCode::IdentifierRejected,
            Self::Busy => ConnectReturnCode::ServerUnavailable,
            _ => ConnectReturnCode::NotAuthorized,
        }
    }
}

/// How somebody proved who they are, as far as a reload has to ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Proof {
    /// No credentials were given or needed.
    #[default]
    Nothing,
    Password(Fingerprint),
    Scram(Fingerprint),
    /// Signed with this key.
    Token(Fingerprint),
    Certificate,
}

/// A client that was let in.
#[derive(Debug, Default)]
pub struct Identity {
    /// `None` for who gave no credentials.
    pub user: Option<Arc<str>>,
    pub proof: Proof,
    /// Unix microseconds after which it counts no more.
    pub expires_us: Option<i64>,
    /// What a token brings, in place of the ACL file.
    own_rules: Option<Arc<Rules>>,
}

impl Identity {
    pub fn is_expired(&self, now_us: i64) -> bool {
        self.expires_us
            .is_some_and(|expires_us| expires_us <= now_us)
    }
}

/// What a client shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credentials<'a> {
    pub user: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub certificate: Option<&'a CertificateNames>,
}

/// What is to be done about credentials.
#[derive(Debug)]
pub enum Admission {
    In(Arc<Identity>),
    Out(Denied),
    /// They have to be checked on another thread.
    Check(Check),
}

/// A slow check, with everything that it needs.
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

impl Check {
    /// Takes tens of milliseconds of a processor for a password.
    ///
    /// # Errors
    /// Credentials that are not good.
    pub fn run(self) -> Answer {
        let authority = &self.authority;
        if let Some(tokens) = authority.tokens_for(&self.password) {
            return tokens.identify(&self.password).map(Arc::new);
        }
        // Somebody else may have asked the same meanwhile.
        if let Some(identity) = authority.known(&self.user, &self.password) {
            return Ok(identity);
        }
        let users = authority.users.as_ref().ok_or(Denied::BadCredentials)?;
        let stored = users
            .get(&self.user)
            .and_then(|user| user.password.as_ref());
        let password = stored.map_or(users.decoy(), |stored| &stored.value);
        match (password.is(&self.password), stored) {
            (true, Some(stored)) => {
                authority.remembered.remember(&self.user, &self.password);
                Ok(Arc::new(identity(
                    &self.user,
                    Proof::Password(stored.fingerprint),
                )))
            }
            _ => Err(Denied::BadCredentials),
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

/// What decides who is let in and what they may do: one state of all files together.
#[derive(Debug, Default)]
pub struct Authority {
    users: Option<Users>,
    tokens: Option<Tokens>,
    acl: Option<Acl>,
    certificate: CertificateSettings,
    /// Who gives no credentials is let in.
    admits_anybody: bool,
    /// There is some way to prove who one is.
    is_configured: bool,
    remembered: Remembered,
    /// What the keys of SCRAM for users that there are not are made of.
    scram_secret: [u8; 32],
}

impl Authority {
    /// Lets everybody in and allows everything.
    pub fn open() -> Arc<Self> {
        Arc::new(Self {
            admits_anybody: true,
            ..Self::default()
        })
    }

    /// Reads all files.
    ///
    /// # Errors
    /// The first file that is not right, in one sentence.
    pub fn load(settings: &AuthSettings) -> Result<Self, FileError> {
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
        // Without random bytes the decoys could be told apart, so the start is refused.
        password::random(&mut scram_secret).map_err(|reason| FileError::Whole {
            file: "/dev/urandom".into(),
            reason,
        })?;
        Ok(Self {
            users,
            tokens,
            acl,
            certificate: settings.certificate.clone(),
            admits_anybody: settings.allow_anonymous || !settings.is_configured(),
            is_configured: settings.is_configured(),
            remembered: Remembered::default(),
            scram_secret,
        })
    }

    /// Nobody has to prove anything, and everything is allowed.
    pub fn is_open(&self) -> bool {
        !self.is_configured && self.acl.is_none()
    }

    /// Whether anything may be refused to somebody who was let in.
    pub fn restricts(&self) -> bool {
        self.acl.is_some() || self.tokens.is_some()
    }

    /// Whether the client id of who shows a certificate must be the user that it names.
    pub fn binds_client_id(&self, identity: &Identity) -> bool {
        self.certificate.bind_client_id && identity.proof == Proof::Certificate
    }

    fn tokens_for(&self, password: &[u8]) -> Option<&Tokens> {
        self.tokens.as_ref().filter(|_| Tokens::is_token(password))
    }

    /// The identity of somebody whose password was found to be right before.
    fn known(&self, user: &str, password: &[u8]) -> Option<Arc<Identity>> {
        let stored = self.users.as_ref()?.get(user)?.password.as_ref()?;
        self.remembered
            .knows(user, password)
            .then(|| Arc::new(identity(user, Proof::Password(stored.fingerprint))))
    }

    /// Decides about credentials, as far as that is quickly done.
    pub fn admit(self: &Arc<Self>, shown: &Credentials<'_>) -> Admission {
        let certified = shown
            .certificate
            .and_then(|names| certificate::user_of(&self.certificate, names));
        if let Some(user) = certified {
            return Admission::In(Arc::new(identity(user, Proof::Certificate)));
        }
        if shown.user.is_none() && shown.password.is_none() {
            return if self.admits_anybody {
                Admission::In(Arc::default())
            } else {
                Admission::Out(Denied::NoCredentials)
            };
        }
        if !self.is_configured {
            // Nothing could tell whether they are good, and everybody is let in anyway, as nobody in particular.
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
        match self.known(user, password) {
            Some(identity) => Admission::In(identity),
            None => Admission::Check(Check {
                authority: Arc::clone(self),
                user: user.into(),
                password: password.into(),
            }),
        }
    }

    /// The keys of a user for SCRAM, and what tells them from others; those of nobody look the same.
    pub fn scram_keys(&self, user: &str) -> (scram::StoredKeys, Option<Fingerprint>) {
        let stored = self.users.as_ref().and_then(|users| users.get(user));
        match stored.and_then(|user| user.scram.as_ref()) {
            Some(stored) => (stored.value.clone(), Some(stored.fingerprint)),
            None => (scram::StoredKeys::decoy(user, &self.scram_secret), None),
        }
    }

    /// Whether SCRAM is served at all.
    pub fn serves_scram(&self) -> bool {
        self.users.is_some()
    }

    /// The identity of who has shown a password before, for a while.
    pub fn password_identity(user: &str, stored: Fingerprint, expires_us: i64) -> Arc<Identity> {
        Arc::new(Identity {
            expires_us: Some(expires_us),
            ..identity(user, Proof::Password(stored))
        })
    }

    /// The identity of who has proved to know the keys.
    pub fn scram_identity(user: &str, keys: Fingerprint) -> Arc<Identity> {
        Arc::new(identity(user, Proof::Scram(keys)))
    }

    /// Whether somebody who was let in under an earlier state of the files would be let in now.
    pub fn still_admits(&self, identity: &Identity) -> bool {
        let user = identity.user.as_deref().unwrap_or_default();
        let stored = self.users.as_ref().and_then(|users| users.get(user));
        match identity.proof {
            Proof::Nothing => self.admits_anybody,
            Proof::Certificate => true,
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

    /// What an identity may do; nothing where there is nothing to know about it.
    pub fn rights(self: &Arc<Self>, identity: Arc<Identity>) -> Option<Arc<Rights>> {
        if self.is_open() {
            return None;
        }
        let acl = self.acl.as_ref();
        let section = acl.map(|acl| acl.section(identity.user.as_deref()));
        Some(Arc::new(Rights {
            authority: Arc::clone(self),
            identity,
            section,
        }))
    }

    /// The rights of who was let in once and is not any more.
    pub fn no_rights(self: &Arc<Self>, identity: &Identity) -> Arc<Rights> {
        Arc::new(Rights {
            authority: Arc::clone(self),
            identity: Arc::new(Identity {
                user: identity.user.clone(),
                own_rules: Some(Arc::default()),
                ..Identity::default()
            }),
            section: None,
        })
    }
}

/// What an identity may do.
#[derive(Debug)]
pub struct Rights {
    authority: Arc<Authority>,
    identity: Arc<Identity>,
    /// Of the ACL file, when there is one.
    section: Option<Arc<Section>>,
}

impl Rights {
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Whether the topic (the filter, for [`Access::Subscribe`]) may be used so. `client_id` is `None` outside MQTT.
    pub fn may(&self, access: Access, topic: &str, client_id: Option<&str>) -> bool {
        match access {
            Access::Subscribe => self.may_filter(access, topic, client_id),
            _ => self.ask(access, Target::Topic(topic), client_id),
        }
    }

    /// Whether there may be a topic under the filter that may be used so.
    pub fn may_filter(&self, access: Access, filter: &str, client_id: Option<&str>) -> bool {
        // A subscription is shared in its delivery, not in what it reads.
        let filter = match headwater_mqtt::topic::parse_shared(filter) {
            Ok(Some(shared)) => shared.filter,
            _ => filter,
        };
        self.ask(access, Target::Filter(filter), client_id)
    }

    fn ask(&self, access: Access, target: Target<'_>, client_id: Option<&str>) -> bool {
        let names = Names {
            user: self.identity.user.as_deref(),
            client_id,
        };
        if let Some(rules) = &self.identity.own_rules {
            return target.ask(rules, access, &names) == Verdict::Allowed;
        }
        match (&self.authority.acl, &self.section) {
            (Some(acl), Some(section)) => acl.allows(section, access, target, &names),
            _ => true,
        }
    }

    /// Whether anything at all may be used so, by its rules alone.
    pub fn may_some(&self, access: Access) -> bool {
        match (&self.identity.own_rules, &self.authority.acl, &self.section) {
            (Some(rules), _, _) => rules.allow_some(access),
            (None, Some(acl), Some(section)) => acl.allows_some(section, access),
            _ => true,
        }
    }

    /// Whether every topic may be used in every way.
    pub fn is_unrestricted(&self) -> bool {
        self.identity.own_rules.is_none() && self.authority.acl.is_none()
    }

    /// Whether the broker itself may be worked on: groups removed, backups taken, files loaded anew. Without an ACL file
    /// every user may, but nobody without a name where names can be proved.
    pub fn is_operator(&self) -> bool {
        let is_named = self.identity.user.is_some() || !self.authority.is_configured;
        match (&self.identity.own_rules, &self.section) {
            (Some(_), _) => false,
            (None, Some(section)) => section.is_operator(),
            (None, None) => is_named,
        }
    }
}
