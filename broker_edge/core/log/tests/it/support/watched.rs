//! The system's files, with a watcher that hears of the calls a test counts or holds up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_log::{
    Clock, File, Files, LockError, LockGuard, OpenMode, Seams, SystemClock, SystemFiles,
};

/// What a test wants to know. Each call does nothing unless a test overrides it.
pub trait Watcher: Send + Sync + 'static {
    /// Before a read. It may wait.
    fn before_read(&self, _path: &Path, _file: &dyn File, _position: u64) -> io::Result<()> {
        Ok(())
    }
    /// After a read of `bytes`.
    fn has_read(&self, _path: &Path, _bytes: usize) {}
    /// The log announces a read.
    fn will_read(&self, _path: &Path, _position: u64, _bytes: u64) {}
    /// Before a sync of a file or a folder.
    fn before_sync(&self, _path: &Path) {}
}

/// Seams with the system's files, watched, and the system's clock.
pub fn watched<W: Watcher>(watcher: &Arc<W>) -> Seams {
    Seams {
        files: Arc::new(WatchedFiles(Arc::clone(watcher))),
        clock: Arc::new(SystemClock::new()) as Arc<dyn Clock>,
    }
}

struct WatchedFiles<W>(Arc<W>);

struct WatchedFile<W> {
    file: Arc<dyn File>,
    path: PathBuf,
    watcher: Arc<W>,
}

impl<W: Watcher> Files for WatchedFiles<W> {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SystemFiles.list(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(WatchedFile {
            file: SystemFiles.open(path, mode)?,
            path: path.to_owned(),
            watcher: Arc::clone(&self.0),
        }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.before_sync(dir);
        SystemFiles.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        SystemFiles.lock(path)
    }
}

impl<W: Watcher> File for WatchedFile<W> {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.watcher
            .before_read(&self.path, &*self.file, position)?;
        let bytes = self.file.read_at(buffer, position)?;
        self.watcher.has_read(&self.path, bytes);
        Ok(bytes)
    }
    fn will_read(&self, position: u64, bytes: u64) {
        self.watcher.will_read(&self.path, position, bytes);
        self.file.will_read(position, bytes);
    }
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, position)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.watcher.before_sync(&self.path);
        self.file.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}
