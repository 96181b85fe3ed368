//! A build without faults: the operating system's own files and clock, and no mistakes.

use std::sync::Arc;

use crate::faults::sabotage::Sabotage;
use crate::ids::Epoch;
use crate::vfs::clock::{Seams, SystemClock};
use crate::vfs::system::SystemFiles;

impl Seams {
    /// The operating system's own.
    #[must_use]
    pub fn system() -> Self {
        Self {
            files: Arc::new(SystemFiles),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

/// Never, in this build.
#[must_use]
#[inline]
pub const fn is_sabotaged(_: Sabotage) -> bool {
    false
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
