//! What can go wrong with etcd: which member, what, and what to do.

use headwater_cluster::key::Revision;

/// A sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("etcd at {endpoint} {fault}")]
pub struct Error {
    pub endpoint: String,
    pub fault: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("cannot be reached: {0}; check its address and whether it runs")]
    Unreachable(String),
    #[error("has not answered within {0} ms; is it paused, overloaded or cut off?")]
    Silent(u128),
    #[error("closed the connection: {0}; the request may have been carried out")]
    Lost(String),
    #[error("has no leader; the majority of its members must run and reach each other")]
    NoLeader,
    #[error("could not carry out the request in time: {0}; look at its log and its disk")]
    Unavailable(String),
    #[error("failed the TLS handshake: {0}; check the authority, the certificate and the key")]
    Tls(String),
    #[error(
        "closed the connection after the TLS handshake: {0}; check that its authority has issued the certificate \
         of this node"
    )]
    CertificateRefused(String),
    #[error("does not answer as etcd does: {0}; check host and port, and whether TLS is on")]
    NotEtcd(String),
    #[error("has version {0}; use 3.4 or newer")]
    OldVersion(String),
    #[error("is a member of cluster {found:x}, not {expected:x}; name the members of one cluster")]
    OtherCluster { expected: u64, found: u64 },
    #[error(
        "answered with revision {}, and {} was seen before; it lags, or was restored from a backup: \
         then restart all nodes",
        found.0, known.0
    )]
    WentBack { known: Revision, found: Revision },
    #[error("refused the password of user {0:?}; check both")]
    WrongPassword(String),
    #[error("demands a user and a password; set both")]
    NoUser,
    #[error("allows this user too little; grant its role to read and write the prefix of the keys")]
    Denied,
    #[error("has no space left; compact and defragment it, then disarm its alarm")]
    Full,
    #[error("sent an answer that is too large: {0}; delete large values that were written by hand")]
    LargeAnswer(String),
    #[error("does not know this lease; it has expired")]
    NoLease,
    #[error(
        "has {bytes} bytes in key {key:?}, and at most {max} are read; was it written by hand?",
        max = crate::VALUE_BYTES_MAX
    )]
    LargeValue { key: String, bytes: usize },
    #[error(
        "has more than {max} keys or {bytes} bytes under {prefix:?}; delete keys that are no longer used",
        max = crate::KEYS_MAX,
        bytes = crate::LISTING_BYTES_MAX
    )]
    ManyKeys { prefix: String },
    #[error("refused the request: {0}")]
    Refused(String),
}

impl Fault {
    pub(crate) fn at(self, endpoint: &impl ToString) -> Error {
        Error {
            endpoint: endpoint.to_string(),
            fault: self,
        }
    }

    /// Whether another member may answer what this one did not.
    pub(crate) fn is_of_member(&self) -> bool {
        !matches!(
            self,
            Self::WrongPassword(_)
                | Self::NoUser
                | Self::Denied
                | Self::Full
                | Self::LargeAnswer(_)
                | Self::NoLease
                | Self::LargeValue { .. }
                | Self::ManyKeys { .. }
                | Self::Refused(_)
        )
    }

    /// Of several members that failed, the one that a person should hear about.
    pub(crate) fn weight(&self) -> u8 {
        match self {
            Self::Unreachable(_) => 0,
            Self::Silent(_) => 1,
            Self::Lost(_) | Self::NoLeader | Self::Unavailable(_) => 2,
            _ => 3,
        }
    }
}
