//! The rules of the protocol that the model switches off one at a time, to show that it finds what each prevents.
//!
//! Only tests and the fault build of the broker can do that, with the feature `sabotage`: in every other build
//! [`Rules::holds`] is `true` and costs nothing.

/// A rule whose absence loses acknowledged records or shows two payloads at one offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Rule {
    /// A record is committed when everybody that the leader waits for has synced it, and not the leader alone.
    CommitByAll,
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
    /// A member joins only when it has synced so far in every partition.
    EveryPartition,
    /// Only members of the in-sync set are candidates.
    CandidateInSync,
    /// Only sound replicas are candidates while one may come.
    CandidateSound,
    /// A higher epoch is durable before anything is answered in it.
    EpochDurable,
    /// An epoch is begun only by a compare-and-swap: a leader that restarts needs a new one.
    EpochByCas,
    /// A follower cuts before it takes anything of another leader.
    AlignFirst,
    /// The cut is where both logs part, not at the follower's own high watermark.
    CutAtDivergence,
    /// From a `Follow` until the `Align` with its stamp nothing is cut or taken.
    AlignOfNewestFollow,
    /// What a leader says is committed counts only for a replica that is aligned in its epoch.
    ToldOnlyWhenAligned,
    /// Suspicion is taken back only when the leader says so.
    SoundByLeader,
    /// A leader answers clients only when everything of earlier epochs is committed.
    OfficePastStart,
    /// After an unknown outcome a leader rewrites the key before it trusts the set that it reads.
    RewriteAfterUnknown,
    /// A key that names a replica in doubt is no office, unless that replica tried for it as it is.
    NamedOnlySound,
    /// Who is asked makes the epoch of the key durable before it answers.
    AskMakesDurable,
    /// A replica that did not stop cleanly is unproven.
    UnprovenAfterCrash,
    /// Suspicion is durable before a suspect is cut. Kept by whoever writes the replica file.
    SuspicionDurable,
    /// After a start nothing counts as synced but what recovery has synced. Kept by the log.
    RecoverySyncs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rules {
    #[cfg(any(test, feature = "sabotage"))]
    off: u32,
}

impl Rules {
    #[cfg(any(test, feature = "sabotage"))]
    #[must_use]
    pub fn without(rule: Rule) -> Self {
        Self::without_all(&[rule])
    }

    #[cfg(any(test, feature = "sabotage"))]
    #[must_use]
    pub fn without_all(rules: &[Rule]) -> Self {
        Self {
            off: rules.iter().fold(0, |off, rule| off | 1 << *rule as u32),
        }
    }

    #[cfg(any(test, feature = "sabotage"))]
    #[must_use]
    pub(crate) fn holds(self, rule: Rule) -> bool {
        self.off & (1 << rule as u32) == 0
    }

    #[cfg(not(any(test, feature = "sabotage")))]
    #[must_use]
    pub(crate) const fn holds(self, _rule: Rule) -> bool {
        true
    }
}
