//! The identity, folder, seams and settings of a partition.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::batch::layout::Identity;
use crate::config::{ClassConfig, SyncMode};
use crate::ids::{Class, Epoch};
use crate::state::stats::Counters;
use crate::vfs::clock::Seams;
use crate::vfs::files::{File, OpenMode};

pub(crate) struct Context {
    pub name: String,
    pub class: Class,
    pub identity: Identity,
    /// The epoch of this start; every batch written now carries it.
    pub epoch: Epoch,
    pub dir: PathBuf,
    pub seams: Seams,
    pub sync: SyncMode,
    pub segment_bytes: u64,
    pub queue_bytes: usize,
    /// The settings of its class.
    pub kept: ClassConfig,
    pub removes_at_once: bool,
    pub counters: Arc<Counters>,
}

impl Context {
    pub fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.seams.files.open(path, mode)
    }

    pub fn steady(&self) -> Duration {
        self.seams.clock.steady()
    }
}
