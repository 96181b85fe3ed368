//! What is counted, and its limits.

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sessions that outlive their connection.
    Sessions,
    Connections,
    /// Including shared ones.
    Subscriptions,
    /// Shared groups with a member of the user or tenant.
    SharedGroups,
    SharedMembers,
    /// Topics with a retained message set by the user.
    Retained,
    RetainedBytes,
    /// Of sessions, connected or not: filters, wills and long client ids.
    SessionBytes,
    /// Topics added to the topic table.
    Topics,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::Sessions,
        Self::Connections,
        Self::Subscriptions,
        Self::SharedGroups,
        Self::SharedMembers,
        Self::Retained,
        Self::RetainedBytes,
        Self::SessionBytes,
        Self::Topics,
    ];

    /// The reason in the audit log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Sessions => "quota:sessions",
            Self::Connections => "quota:connections",
            Self::Subscriptions => "quota:subscriptions",
            Self::SharedGroups => "quota:shared_groups",
            Self::SharedMembers => "quota:shared_members",
            Self::Retained => "quota:retained",
            Self::RetainedBytes => "quota:retained_bytes",
            Self::SessionBytes => "quota:session_bytes",
            Self::Topics => "quota:topics",
        }
    }
}

/// One number for each kind.
pub type Counts = [u64; Kind::ALL.len()];

/// Usage by name.
#[cfg(test)]
pub type HeldBy = Vec<(String, Counts)>;

pub(super) const NONE: Counts = [0; Kind::ALL.len()];

/// Limits of a tenant and of a user.
#[derive(Debug, Clone, Copy)]
pub struct QuotaLimits {
    pub tenant: Counts,
    pub user: Counts,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        Self {
            tenant: [u64::MAX; Kind::ALL.len()],
            user: [u64::MAX; Kind::ALL.len()],
        }
    }
}
