//! The surroundings of a tool, and its errors.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::OpenError;
use crate::vfs::clock::Seams;
use crate::vfs::files::Files;

/// Why a tool stopped. The steps before are done; the tool can be run again.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{dir} is in use by process {pid}; stop it first")]
    InUse { dir: PathBuf, pid: String },
    #[error("{dir} is no log: {reason}")]
    NotALog { dir: PathBuf, reason: String },
    /// The request cannot be done on this log.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("interrupted; run it again")]
    Interrupted,
}

impl ToolError {
    pub(super) fn not_a_log(dir: &Path, reason: &str) -> Self {
        Self::NotALog {
            dir: dir.to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// A request that cannot be done because of a file or folder.
    pub(super) fn refused(path: &Path, why: &str) -> Self {
        Self::Refused(format!("{} {why}", path.display()))
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// The surroundings of a tool: files, progress, and a flag that stops it.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub seams: &'a Seams,
    /// Called with the bytes done and the total.
    pub progress: &'a dyn Fn(u64, u64),
    pub stop: &'a AtomicBool,
}

impl Work<'_> {
    /// Does something with a file or folder.
    pub(super) fn on<T>(
        self,
        action: &'static str,
        path: &Path,
        f: impl FnOnce(&dyn Files, &Path) -> io::Result<T>,
    ) -> Result<T, ToolError> {
        f(&*self.seams.files, path).map_err(ToolError::io(action, path))
    }

    pub(super) fn go_on(&self) -> Result<(), ToolError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ToolError::Interrupted);
        }
        Ok(())
    }
}

/// Whether a tool may read a log that a broker has open; then it reads only sealed segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Refused while a process has the log open.
    Alone,
    /// Allowed; then only sealed segments are read.
    Online,
}
