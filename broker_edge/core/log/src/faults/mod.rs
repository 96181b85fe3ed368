//! What a fault build (`--features faults`) can be told to do to itself: end at a named point, fail or delay a file
//! operation, let the clock jump, or be wrong on purpose. `docs/torture.md` has the words.
//!
//! In every other build nothing of it is compiled: [`failpoint!`] is empty and [`is_sabotaged`] is always false.

#[cfg(feature = "faults")]
mod faulty_files;
#[cfg(feature = "faults")]
mod jumping_clock;
#[cfg(feature = "faults")]
mod plan;

#[cfg(feature = "faults")]
pub use plan::{POINTS, check_environment, pass};
#[cfg(feature = "faults")]
pub(crate) use plan::{epoch_of_start, seams, set_recovering, trusts_checksums};

/// Mistakes that the checker must find: each shows that one of its words can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Syncs return at once and do nothing.
    NoSync,
    /// A publish is acknowledged when it is queued.
    AckBeforeSync,
    /// Bytes that do not match their checksum are served.
    ChecksumIgnored,
    /// Recovery accepts a batch that is half there.
    TornTailKept,
    /// Recovery forgets the last batch and gives its offsets again, with the same epoch.
    OffsetReused,
}

/// A place that a fault build can be told to end at.
#[cfg(feature = "faults")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::faults::pass($name)
    };
}

/// A place that a fault build can be told to end at; nothing in this one.
#[cfg(not(feature = "faults"))]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {};
}

/// Whether this process was told to make this mistake.
#[cfg(feature = "faults")]
#[must_use]
pub fn is_sabotaged(mistake: Sabotage) -> bool {
    plan::plan().sabotage == Some(mistake)
}

/// Never, in this build.
#[cfg(not(feature = "faults"))]
#[must_use]
#[inline]
pub const fn is_sabotaged(_: Sabotage) -> bool {
    false
}

#[cfg(not(feature = "faults"))]
mod sound {
    use std::sync::Arc;

    use crate::config::Seams;
    use crate::ids::Epoch;
    use crate::vfs::clock::SystemClock;
    use crate::vfs::files::SystemFiles;

    /// The operating system's own.
    pub(crate) fn seams() -> Seams {
        Seams {
            files: Arc::new(SystemFiles),
            clock: Arc::new(SystemClock::new()),
        }
    }

    #[inline]
    pub(crate) const fn trusts_checksums() -> bool {
        false
    }

    #[inline]
    pub(crate) const fn set_recovering(_: bool) {}

    /// No epoch is used by two starts.
    #[inline]
    pub(crate) const fn epoch_of_start(newest: u64) -> Epoch {
        Epoch(newest + 1)
    }
}

#[cfg(not(feature = "faults"))]
pub(crate) use sound::{epoch_of_start, seams, set_recovering, trusts_checksums};
