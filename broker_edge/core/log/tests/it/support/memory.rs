//! Files in memory that a test can copy, change and make unreadable, and that count what is read.
//!
//! They keep everything written; `sim` simulates power cuts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_log::{File, Files, LockError, LockGuard, OpenMode, Seams, SystemClock};
use parking_lot::Mutex;

type Bytes = Arc<Mutex<Vec<u8>>>;

#[derive(Default)]
struct State {
    files: BTreeMap<PathBuf, Bytes>,
    /// A path that may be opened this many more times, and the error after that; `None` means any path, always.
    open_error: Option<(PathBuf, usize, i32)>,
    /// Unreadable positions of a file.
    unreadable: Option<(PathBuf, std::ops::Range<u64>)>,
    /// Folders that were synced.
    synced: Vec<PathBuf>,
}

#[derive(Clone, Default)]
pub struct MemoryFiles {
    state: Arc<Mutex<State>>,
    segment_bytes_read: Arc<AtomicU64>,
}

struct MemoryFile {
    files: MemoryFiles,
    path: PathBuf,
    bytes: Bytes,
}

impl MemoryFiles {
    pub fn seams(&self) -> Seams {
        Seams {
            files: Arc::new(self.clone()),
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// Other files with the same names and bytes, without the faults.
    pub fn copy(&self) -> Self {
        let copied = Self::default();
        for (path, bytes) in &self.state.lock().files {
            let bytes = Arc::new(Mutex::new(bytes.lock().clone()));
            copied.state.lock().files.insert(path.clone(), bytes);
        }
        copied
    }

    pub fn names(&self) -> Vec<PathBuf> {
        self.state.lock().files.keys().cloned().collect()
    }

    pub fn with_suffix(&self, suffix: &str) -> Vec<PathBuf> {
        let mut names = self.names();
        names.retain(|path| path.to_string_lossy().ends_with(suffix));
        names
    }

    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        self.state.lock().files[path].lock().clone()
    }

    pub fn change(&self, path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
        let bytes = Arc::clone(&self.state.lock().files[path]);
        f(&mut bytes.lock());
    }

    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let bytes = Arc::new(Mutex::new(bytes));
        self.state.lock().files.insert(path.to_owned(), bytes);
    }

    pub fn delete(&self, path: &Path) {
        self.state.lock().files.remove(path).expect("a file");
    }

    /// Opening the path fails with this error code, always.
    pub fn fail_open(&self, path: &Path, code: i32) {
        self.fail_open_after(path, 0, code);
    }

    /// The same, after the path has been opened this many more times.
    pub fn fail_open_after(&self, path: &Path, times: usize, code: i32) {
        self.state.lock().open_error = Some((path.to_owned(), times, code));
    }

    pub fn make_unreadable(&self, path: &Path, positions: std::ops::Range<u64>) {
        self.state.lock().unreadable = Some((path.to_owned(), positions));
    }

    pub fn mend(&self) {
        let mut state = self.state.lock();
        state.open_error = None;
        state.unreadable = None;
    }

    /// Bytes read from segment files so far.
    pub fn segment_bytes_read(&self) -> u64 {
        self.segment_bytes_read.load(Ordering::SeqCst)
    }

    pub fn synced_folders(&self) -> Vec<PathBuf> {
        self.state.lock().synced.clone()
    }
}

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        // The state before the bytes, as everywhere: the maintenance thread reads while the test copies.
        let unreadable = self.files.state.lock().unreadable.clone();
        let bytes = self.bytes.lock();
        let start = (position as usize).min(bytes.len());
        let end = (start + buffer.len()).min(bytes.len());
        if let Some((path, range)) = &unreadable
            && *path == self.path
            && (start as u64) < range.end
            && end as u64 > range.start
        {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        buffer[..end - start].copy_from_slice(&bytes[start..end]);
        if self.path.to_string_lossy().contains(".seg") {
            let count = &self.files.segment_bytes_read;
            count.fetch_add((end - start) as u64, Ordering::SeqCst);
        }
        Ok(end - start)
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut held = self.bytes.lock();
        let end = position as usize + bytes.len();
        if held.len() < end {
            held.resize(end, 0);
        }
        held[position as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.bytes.lock().resize(bytes as usize, 0);
        Ok(())
    }
}

impl Files for MemoryFiles {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state.lock();
        let below = state
            .files
            .keys()
            .filter_map(|path| path.strip_prefix(dir).ok());
        let first = below.filter_map(|rest| rest.components().next());
        let mut names: Vec<String> = first
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .collect();
        names.dedup();
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.state.lock();
        if let Some((of, times, code)) = &mut state.open_error
            && of == path
        {
            if *times == 0 {
                return Err(io::Error::from_raw_os_error(*code));
            }
            *times -= 1;
        }
        if mode == OpenMode::Create {
            state.files.insert(path.to_owned(), Bytes::default());
        }
        let bytes = state.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile {
            files: self.clone(),
            path: path.to_owned(),
            bytes: Arc::clone(bytes),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let bytes = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), bytes);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.state.lock().files.remove(path);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.state.lock().synced.push(dir.to_owned());
        Ok(())
    }

    fn lock(&self, _: &Path) -> Result<LockGuard, LockError> {
        Ok(Box::new(()))
    }
}
