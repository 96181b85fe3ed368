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
}
