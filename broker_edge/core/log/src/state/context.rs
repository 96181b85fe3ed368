//! The identity, folder, seams and settings of a partition.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Read by [`epoch`](Self::epoch).
    pub current_epoch: AtomicU64,
    pub is_replica: bool,
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

    /// The epoch that every batch made now carries, and no batch of the partition exceeds. Of a log alone that of this
    /// start, of a replica that of the leader.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.current_epoch.load(Ordering::Acquire))
    }

    /// Only the thread that has the turn of the writer calls this.
    pub fn begin_epoch(&self, epoch: Epoch) {
        self.current_epoch.fetch_max(epoch.0, Ordering::AcqRel);
    }

    pub fn steady(&self) -> Duration {
        self.seams.clock.steady()
    }
}
