//! Mistakes on purpose.

/// Mistakes that the checker must find: each shows that one of its verdicts is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Syncs return at once and do nothing.
    NoSync,
    /// A publish is acknowledged when it is queued.
    AckBeforeSync,
    /// Bytes that do not match their checksum are served.
    ChecksumIgnored,
    /// Recovery accepts half a batch.
    TornTailKept,
    /// Recovery forgets the last batch and gives its offsets again, with the same epoch.
    OffsetReused,
    /// The leader of a cluster acknowledges what its own disk has.
    AckAtLeader,
    /// A copy in doubt is elected like any other.
    SuspectIgnored,
    /// A follower is no longer waited for before etcd says that it has left the in-sync set.
    RemovedEarly,
    /// A follower cuts its copy where it knows that records are committed, and not where the copies part.
    CutAtHighWatermark,
    /// A new leader serves before what earlier ones have acknowledged is committed once more.
    EarlyOffice,
    /// What a follower had synced before it lost it still counts.
    StaleAnswers,
    /// A follower takes the records of another leader without a cut.
    Unaligned,
}
