//! The files and the clock of a fault build.

use std::sync::Arc;

use super::faulty_files::FaultyFiles;
use super::jumping_clock::JumpingClock;
use super::plan::plan;
use crate::vfs::clock::{Seams, SystemClock};
use crate::vfs::system::SystemFiles;

impl Seams {
    /// The operating system's own, with the faults that this process was told to have.
    #[must_use]
    pub fn system() -> Self {
        Self {
            files: Arc::new(FaultyFiles::new(SystemFiles, plan())),
            clock: Arc::new(JumpingClock::new(SystemClock::new(), plan())),
        }
    }
}
