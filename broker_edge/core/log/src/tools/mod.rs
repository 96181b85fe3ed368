//! What people do to a log that no broker has open: look, mend, copy, remove. One file per verb.
//!
//! These open data files by the rules of `docs/format.md` and with the code that a broker uses; they never serve
//! anybody, and none of them deletes what it can not read.

mod backup;
mod dump;
mod folder;
mod manifest;
mod purge;
mod repair;
mod restore;
mod scan;
mod verify;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub use backup::{BackedUp, BackupReport, backup};
pub use dump::{DumpWish, Dumped, dump};
pub use purge::{PurgeReport, PurgeWhat, purge};
pub use repair::{RepairReport, repair};
pub use restore::{RestoreReport, restore};
pub use verify::{FoundGap, PartitionCheck, VerifyReport, verify};

use crate::config::Seams;
use crate::error::OpenError;

/// Why a tool did not do what was asked. What it did before stays done; it can be run again.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{dir} is in use by process {pid}; stop it first", dir = dir.display())]
    InUse { dir: PathBuf, pid: String },
    #[error("{dir} is no log: {reason}", dir = dir.display())]
    NotALog { dir: PathBuf, reason: String },
    /// What was asked can not be done to this log.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("interrupted; run it again")]
    Interrupted,
}

impl ToolError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// How a tool works: on which files, whom it tells how far it is, and what stops it.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub seams: &'a Seams,
    /// Told the bytes that are done, and of how many.
    pub progress: &'a dyn Fn(u64, u64),
    pub stop: &'a AtomicBool,
}

impl Work<'_> {
    fn go_on(&self) -> Result<(), ToolError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ToolError::Interrupted);
        }
        Ok(())
    }
}

/// Whether a folder that a broker has open may be looked at: then only its sealed segments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Refused while a process has the log open.
    Alone,
    /// Sealed segments only, whoever has it open.
    Online,
}
