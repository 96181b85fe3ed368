//! The rules of the protocol that the model switches off one at a time, to show that it finds what each prevents.
//!
//! Only tests can do that: in every other build [`Rules::holds`] is `true` and costs nothing.

/// A rule whose absence loses acknowledged records or shows two payloads at one offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Rule {
    /// Only answers with the stamp of the follower's newest `Follow` count.
    OnlyNewestStamp,
    /// A `Follow` takes back everything that the follower said before.
    FollowTakesBack,
    /// A joining member is waited for before the compare-and-swap that adds it is sent.
    WaitBeforeAdding,
    /// A member is waited for until a compare-and-swap that names the set without it has succeeded.
    WaitUntilRemoved,
    /// A member joins only when it has synced up to the high watermark.
    JoinAtHighWatermark,
    /// A member joins only when it has synced up to the start of the epoch.
    JoinAtStart,
    /// Only members of the in-sync set are candidates.
    CandidateInSync,
    /// Only sound replicas are candidates while one may come.
    CandidateSound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rules {
    #[cfg(test)]
    off: u32,
}

impl Rules {
    #[cfg(test)]
    #[must_use]
    pub(crate) fn without(rule: Rule) -> Self {
        Self {
            off: 1 << rule as u32,
        }
    }

    #[cfg(test)]
    #[must_use]
    pub(crate) fn holds(self, rule: Rule) -> bool {
        self.off & (1 << rule as u32) == 0
    }

    #[cfg(not(test))]
    #[must_use]
    pub(crate) const fn holds(self, _rule: Rule) -> bool {
        true
    }
}
