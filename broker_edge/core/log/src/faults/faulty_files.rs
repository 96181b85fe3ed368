//! A file system with faults: counts operations, and fails, shortens, delays or ends them as the plan says.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::{Action, Plan, is_sabotaged};
use super::sabotage::Sabotage;

use crate::vfs::files::{File, Files, LockError, LockGuard, OpenMode, Padded};

pub(super) struct FaultyFiles<F> {
    inner: F,
    plan: &'static Plan,
}

struct FaultyFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    plan: &'static Plan,
}

impl<F: Files> FaultyFiles<F> {
    pub(super) fn new(inner: F, plan: &'static Plan) -> Self {
        Self { inner, plan }
    }
}

/// Runs an operation unless the plan has a fault for it.
fn run<T>(
    plan: &Plan,
    kind: &'static str,
    path: &Path,
    operation: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    refuse(plan.before(kind, path))?;
    let done = operation()?;
    plan.after(kind, path);
    Ok(done)
}

impl FaultyFile {
    /// A write that may end in its middle.
    fn write(
        &self,
        half: impl FnOnce() -> io::Result<()>,
        whole: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let action = self.plan.before("write", &self.path);
        if matches!(action, Some(Action::Short | Action::Tear)) {
            half()?;
        }
        if action == Some(Action::Tear) {
            std::process::abort();
        }
        refuse(action)?;
        whole()?;
        self.plan.after("write", &self.path);
        Ok(())
    }
}

fn refuse(action: Option<Action>) -> io::Result<()> {
    match action {
        Some(Action::Error(number)) => Err(io::Error::from_raw_os_error(number)),
        Some(Action::Short | Action::Tear) => Err(io::Error::from_raw_os_error(libc::EIO)),
        _ => Ok(()),
    }
}

impl File for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        run(self.plan, "read", &self.path, || {
            self.inner.read_at(buffer, position)
        })
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let half = || self.inner.write_all_at(&bytes[..bytes.len() / 2], position);
        self.write(half, || self.inner.write_all_at(bytes, position))
    }

    fn write_padded_at(&self, padded: &Padded<'_>, position: u64) -> io::Result<()> {
        let bytes = padded.parts.concat();
        let half = || self.inner.write_all_at(&bytes[..bytes.len() / 2], position);
        self.write(half, || self.inner.write_padded_at(padded, position))
    }

    fn fill_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let half = || self.inner.fill_zeros(from, from + (to - from) / 2);
        self.write(half, || self.inner.fill_zeros(from, to))
    }

    fn sync_data(&self) -> io::Result<()> {
        run(self.plan, "sync", &self.path, || {
            if is_sabotaged(Sabotage::NoSync) {
                return Ok(());
            }
            self.inner.sync_data()
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        run(self.plan, "truncate", &self.path, || {
            self.inner.set_len(bytes)
        })
    }
}

impl<F: Files> Files for FaultyFiles<F> {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        run(self.plan, "mkdir", dir, || self.inner.create_dir(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let kind = match mode {
            OpenMode::Create => "create",
            OpenMode::Read | OpenMode::ReadWrite => "open",
        };
        let inner = run(self.plan, kind, path, || self.inner.open(path, mode))?;
        Ok(Arc::new(FaultyFile {
            inner,
            path: path.to_owned(),
            plan: self.plan,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        run(self.plan, "rename", to, || self.inner.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        run(self.plan, "remove", path, || self.inner.remove(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        run(self.plan, "syncdir", dir, || {
            if is_sabotaged(Sabotage::NoSync) {
                return Ok(());
            }
            self.inner.sync_dir(dir)
        })
    }

    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        self.inner.lock(path)
    }
}
