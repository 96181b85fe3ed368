//! Who a client is, and what it may do.
//!
//! An [`Authority`] is an immutable snapshot of everything that decides about that: users, keys of tokens, the ACL. It
//! is replaced as a whole on a reload ([`Keeper`]), never changed. Credentials become an [`Identity`]; what it may do
//! are its [`Rights`]. Nothing here knows a connection: the engine and the service ask and act.

pub(crate) mod acl;
mod authority;
mod certificate;
pub(crate) mod file;
mod keeper;
mod password;
mod remembered;
mod rights;
mod rules;
pub mod scram;
mod section;
mod signature;
mod token;
pub mod users;
mod verifier;
mod waiting;

use std::sync::Arc;

use headwater_mqtt::{ConnectReturnCode, ReasonCode};

use crate::peer::CertificateNames;

use section::Section;
use users::Fingerprint;

pub use authority::{Admission, Authority, Check, Credentials};
pub use file::FileError;
pub use keeper::{Keeper, StartError};
pub use rights::{Caller, Rights};
pub use verifier::{Answer, Asker, Busy, Verifier};
pub use waiting::Line;

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
    /// The client id is not the one that belongs to the user, or belongs to another one.
    ClientId,
    /// An authentication method that is not served.
    Method,
    Busy,
    /// A web page of another host, which showed neither password nor token.
    Origin,
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
            Self::Origin => "origin",
        }
    }

    /// What MQTT 5 calls it.
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
    /// No proof yet: the owner of a restored session has not connected since the start.
    Stored,
}

impl Proof {
    /// Whether the client showed a secret itself: a browser shows a certificate for any page.
    pub fn is_shown(self) -> bool {
        matches!(self, Self::Password(_) | Self::Scram(_) | Self::Token(_))
    }
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
    own_section: Option<Arc<Section>>,
    /// The names in the certificate that was the proof.
    certified: Option<Arc<CertificateNames>>,
}

impl Identity {
    pub fn is_expired(&self, now_us: i64) -> bool {
        self.expires_us
            .is_some_and(|expires_us| expires_us <= now_us)
    }
}
