//! Authentication and authorization: who a client is, and what it may do.
//!
//! An [`Authority`] is an immutable snapshot of users, token keys and the ACL. A reload replaces it as a whole
//! ([`AuthService`]). Credentials become an [`Identity`], whose permissions are its [`Rights`]. Nothing here knows
//! about connections: the engine and the service ask, and act on the answer.

pub(crate) mod acl;
mod auth_service;
mod authority;
mod certificate;
mod explain;
pub(crate) mod file;
mod later;
mod password;
mod password_cache;
mod refusal_time;
mod rights;
pub(crate) mod rules;
pub mod scram;
mod section;
mod signature;
pub(crate) mod token;
pub mod users;
mod verifier;
mod waiting;

use std::sync::Arc;

use headwater_mqtt::{ConnectReturnCode, ReasonCode};

use crate::peer::CertificateNames;

use section::Section;
use users::Fingerprint;

pub use auth_service::{AuthService, StartError, Watcher};
pub use authority::{Admission, Authority, Check, Credentials};
pub use explain::{Asked, Explanation};
pub use file::FileError;
pub use rights::{Caller, Rights};
pub use verifier::{Answer, Asker, Busy, Verifier};
pub use waiting::ListenerKind;

/// An action on a topic. A new one needs its bit in `rules`, its word in `acl`, its list in the claim (`token`), and
/// its checks (`Access::` finds all). `rights` and `section` pass it on. If it takes something away from `write`, it
/// also needs `changes/table` and `docs/upgrade.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    Publish,
    /// Asked about a filter, not a topic: whether it may match a topic that the client may receive.
    Subscribe,
    /// Receive a record: live, retained, or queued while offline.
    Receive,
    /// Read from an offset of the client's choice. Asked about a topic.
    Replay,
}

/// Why a client is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Denied {
    NoCredentials,
    /// Unknown user or wrong password; the client is not told which.
    BadCredentials,
    BadToken,
    ExpiredToken,
    /// The client id is not the user's own, or belongs to another user.
    ClientId,
    /// An unsupported authentication method.
    Method,
    Busy,
    /// A web page from another host that showed neither password nor token.
    Origin,
}

impl Denied {
    pub const ALL: [Self; 8] = [
        Self::NoCredentials,
        Self::BadCredentials,
        Self::BadToken,
        Self::ExpiredToken,
        Self::ClientId,
        Self::Method,
        Self::Busy,
        Self::Origin,
    ];

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
            Self::Origin => "origin",
        }
    }

    /// The reason code of MQTT 5.
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::NoCredentials | Self::Origin => ReasonCode::NotAuthorized,
            Self::BadCredentials | Self::BadToken | Self::ExpiredToken => {
                ReasonCode::BadUserNameOrPassword
            }
            Self::ClientId => ReasonCode::ClientIdentifierNotValid,
            Self::Method => ReasonCode::BadAuthenticationMethod,
            Self::Busy => ReasonCode::ServerBusy,
        }
    }

    /// The return code of older versions. A wrong password gets "not authorized", as in Mosquitto: code 4 is for
    /// malformed credentials.
    pub fn return_code(self) -> ConnectReturnCode {
        match self {
            Self::ClientId => ConnectReturnCode::IdentifierRejected,
            Self::Busy => ConnectReturnCode::ServerUnavailable,
            _ => ConnectReturnCode::NotAuthorized,
        }
    }
}

/// How a client authenticated, with what a reload needs to check it again.
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
    /// No proof yet: the owner of a restored session has not connected since the start.
    Stored,
}

impl Proof {
    /// Whether the client itself sent a secret. A certificate does not count: a browser shows it on behalf of any page.
    pub fn is_shown(self) -> bool {
        matches!(self, Self::Password(_) | Self::Scram(_) | Self::Token(_))
    }

    /// Whether the password file and the ACL alone say what the client may do. Tokens and certificates name users that
    /// no file lists, and tokens bring rights.
    pub fn is_by_files(self) -> bool {
        matches!(self, Self::Nothing | Self::Password(_) | Self::Scram(_))
    }
}

/// An admitted client.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// `None` for a client without credentials.
    pub user: Option<Arc<str>>,
    pub proof: Proof,
    /// When the identity expires, in Unix microseconds.
    pub expires_us: Option<i64>,
    /// The section in a token, which replaces the ACL file.
    own_section: Option<Arc<Section>>,
    /// The names in the certificate, for [`Proof::Certificate`].
    certified: Option<Arc<CertificateNames>>,
}

impl Identity {
    pub fn is_expired(&self, now_us: i64) -> bool {
        self.expires_us
            .is_some_and(|expires_us| expires_us <= now_us)
    }

    /// The same identity, which expires at this time at the latest.
    pub fn until(&self, latest_us: i64) -> Self {
        let own_us = self.expires_us.unwrap_or(i64::MAX);
        Self {
            expires_us: Some(own_us.min(latest_us)),
            ..self.clone()
        }
    }
}
