//! A file system in memory that forgets what was not synced when its power is cut, fails calls, and fills up.
//!
//! It keeps, per file, what is on the "disk" and what was written since the last sync; a power cut applies a random
//! part of the latter, sector by sector, and of the changes of names. It models nothing but what `Files` promises.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_log::{Clock, File, Files, LockError, LockGuard, OpenMode, Seams, SystemClock};
use parking_lot::Mutex;

const SECTOR: usize = 512;

#[derive(Debug, Clone, Default)]
struct Inode {
    disk: Vec<u8>,
    cache: Vec<u8>,
    /// Written since the last sync: position and length, in order.
    unsynced: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and has no effect.
    Error,
    /// A sync fails and what it should have written is dropped from what will reach the disk, but stays visible: what
    /// Linux does.
    LostSync,
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    /// Names as every process sees them, and as they are on the disk.
    names: HashMap<PathBuf, usize>,
    disk_names: HashMap<PathBuf, usize>,
    life: u64,
    calls: u64,
    fail_at: Option<(u64, Fault)>,
    failed: Vec<String>,
    fail_syncs: bool,
    free_bytes: Option<usize>,
    no_descriptors: bool,
    random: u64,
}

/// The disk, as the test sees it.
#[derive(Clone, Default)]
pub struct SimFiles(Arc<Mutex<State>>);

/// The file system, as one life of the process under test sees it.
struct Life {
    state: Arc<Mutex<State>>,
    life: u64,
}

struct SimFile {
    state: Arc<Mutex<State>>,
    inode: usize,
    life: u64,
}

impl State {
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn toss(&mut self) -> bool {
        self.next_random() & 1 == 0
    }

    /// Counts a call; an error when it is the one that is to fail.
    fn call(&mut self, what: &str) -> Result<Option<Fault>, io::Error> {
        self.calls += 1;
        match self.fail_at {
            Some((at, fault)) if at == self.calls => {
                self.failed.push(what.to_owned());
                if fault == Fault::LostSync && what == "sync_data" {
                    return Ok(Some(fault));
                }
                Err(io::Error::other(format!("injected failure of {what}")))
            }
            _ => Ok(None),
        }
    }
}

impl SimFiles {
    pub fn new(seed: u64) -> Self {
        let files = Self::default();
        files.0.lock().random = seed;
        files
    }

    pub fn seams(&self) -> Seams {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let life = self.0.lock().life;
        Seams {
            files: Arc::new(Life {
                state: Arc::clone(&self.0),
                life,
            }),
            clock,
        }
    }

    /// From here on every call of an older handle fails; names and bytes are what a disk may hold after a power cut.
    pub fn power_cut(&self) {
        let state = &mut *self.0.lock();
        state.life += 1;
        let changed: Vec<PathBuf> = state
            .names
            .keys()
            .chain(state.disk_names.keys())
            .filter(|path| state.names.get(*path) != state.disk_names.get(*path))
            .cloned()
            .collect();
        for path in changed {
            if state.toss() {
                match state.names.get(&path) {
                    Some(inode) => state.disk_names.insert(path, *inode),
                    None => state.disk_names.remove(&path),
                };
            }
        }
        state.names = state.disk_names.clone();
        for at in 0..state.inodes.len() {
            let unsynced = std::mem::take(&mut state.inodes[at].unsynced);
            for (start, length) in unsynced {
                let mut from = start;
                while from < start + length {
                    let to = ((from / SECTOR + 1) * SECTOR).min(start + length);
                    if state.toss() {
                        let inode = &mut state.inodes[at];
                        if inode.disk.len() < to {
                            inode.disk.resize(to, 0);
                        }
                        let end = to.min(inode.cache.len());
                        if from < end {
                            inode.disk[from..end].copy_from_slice(&inode.cache[from..end]);
                        }
                    }
                    from = to;
                }
            }
            let inode = &mut state.inodes[at];
            inode.cache = inode.disk.clone();
        }
        state.fail_at = None;
        state.fail_syncs = false;
    }

    /// All handles die, all bytes stay: what `kill -9` does.
    pub fn kill(&self) {
        let mut state = self.0.lock();
        state.life += 1;
        state.fail_at = None;
        state.fail_syncs = false;
    }

    /// Fails the `nth` call from now, counted from 1.
    pub fn fail_call(&self, nth: u64, fault: Fault) {
        let mut state = self.0.lock();
        state.fail_at = Some((state.calls + nth, fault));
    }

    pub fn fail_syncs(&self, fail: bool) {
        self.0.lock().fail_syncs = fail;
    }

    /// From now on (or no longer) the process has no file descriptor left.
    pub fn set_no_descriptors(&self, none: bool) {
        self.0.lock().no_descriptors = none;
    }

    /// Room for this many more bytes in files that grow.
    pub fn set_free(&self, bytes: Option<usize>) {
        self.0.lock().free_bytes = bytes;
    }

    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// What was made to fail, in order.
    pub fn failed(&self) -> Vec<String> {
        self.0.lock().failed.clone()
    }

    /// Changes bytes on the disk, as rot would.
    pub fn with_bytes(&self, path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.0.lock();
        let inode = state.names[path];
        f(&mut state.inodes[inode].cache);
        state.inodes[inode].disk = state.inodes[inode].cache.clone();
    }

    pub fn names(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> = self.0.lock().names.keys().cloned().collect();
        names.sort();
        names
    }
}

impl SimFile {
    fn with<T>(&self, f: impl FnOnce(&mut State, usize) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.state.lock();
        if state.life != self.life {
            return Err(io::Error::other("this process is dead"));
        }
        f(state, self.inode)
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.with(|state, inode| {
            state.call("read_at")?;
            let bytes = &state.inodes[inode].cache;
            let start = (position as usize).min(bytes.len());
            let end = (start + buffer.len()).min(bytes.len());
            buffer[..end - start].copy_from_slice(&bytes[start..end]);
            Ok(end - start)
        })
    }

    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.with(|state, inode| {
            state.call("write_all_at")?;
            let (start, end) = (position as usize, position as usize + bytes.len());
            let grows = end.saturating_sub(state.inodes[inode].cache.len());
            if let Some(free) = &mut state.free_bytes {
                if grows > *free {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                *free -= grows;
            }
            let inode = &mut state.inodes[inode];
            if inode.cache.len() < end {
                inode.cache.resize(end, 0);
            }
            inode.cache[start..end].copy_from_slice(bytes);
            inode.unsynced.push((start, bytes.len()));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|state, inode| {
            let fault = state.call("sync_data")?;
            if fault.is_some() || state.fail_syncs {
                // The kernel marks the pages clean although they never reached the disk.
                state.inodes[inode].unsynced.clear();
                return Err(io::Error::other("injected failure of sync_data"));
            }
            let inode = &mut state.inodes[inode];
            if inode.disk.len() < inode.cache.len() {
                inode.disk.resize(inode.cache.len(), 0);
            }
            inode.disk.truncate(inode.cache.len());
            for (start, length) in std::mem::take(&mut inode.unsynced) {
                let end = (start + length).min(inode.cache.len());
                if start < end {
                    inode.disk[start..end].copy_from_slice(&inode.cache[start..end]);
                }
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state, inode| {
            state.call("len")?;
            Ok(state.inodes[inode].cache.len() as u64)
        })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.with(|state, inode| {
            state.call("set_len")?;
            let inode = &mut state.inodes[inode];
            let freed = inode.cache.len().saturating_sub(bytes as usize);
            inode.cache.resize(bytes as usize, 0);
            if let Some(free) = &mut state.free_bytes {
                *free += freed;
            }
            Ok(())
        })
    }
}

impl Life {
    fn call<T>(&self, what: &str, f: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.state.lock();
        if state.life != self.life {
            return Err(io::Error::other("this process is dead"));
        }
        state.call(what)?;
        if state.no_descriptors && matches!(what, "open" | "sync_dir" | "list") {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        f(state)
    }
}

impl Files for Life {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        self.call("create_dir", |_| Ok(()))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call("list", |state| {
            let below = state
                .names
                .keys()
                .filter_map(|path| path.strip_prefix(dir).ok());
            let first = below.filter_map(|rest| rest.components().next());
            let mut names: Vec<String> = first
                .map(|name| name.as_os_str().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names.dedup();
            Ok(names)
        })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.call("open", |state| {
            let known = state.names.get(path).copied();
            let inode = match (known, mode) {
                (Some(inode), OpenMode::Read | OpenMode::ReadWrite) => inode,
                (None, OpenMode::Read | OpenMode::ReadWrite) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                (_, OpenMode::Create) => {
                    state.inodes.push(Inode::default());
                    state.names.insert(path.to_owned(), state.inodes.len() - 1);
                    state.inodes.len() - 1
                }
            };
            let file: Arc<dyn File> = Arc::new(SimFile {
                state: Arc::clone(&self.state),
                inode,
                life: self.life,
            });
            Ok(file)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename", |state| {
            let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            state.names.insert(to.to_owned(), inode);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call("remove", |state| {
            let inode = state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
            let freed = state.inodes[inode].cache.len();
            if let Some(free) = &mut state.free_bytes {
                *free += freed;
            }
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("sync_dir", |state| {
            state
                .disk_names
                .retain(|path, _| path.parent() != Some(dir));
            for (path, inode) in state
                .names
                .iter()
                .filter(|(path, _)| path.parent() == Some(dir))
            {
                state.disk_names.insert(path.clone(), *inode);
            }
            Ok(())
        })
    }

    fn lock(&self, _: &Path) -> Result<LockGuard, LockError> {
        let guard: LockGuard = Box::new(());
        self.call("lock", |_| Ok(guard)).map_err(LockError::Io)
    }
}
