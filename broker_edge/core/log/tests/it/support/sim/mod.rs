//! A computer in memory: its power can fail, its calls can fail or wait, its disk can fill up and rot.
//!
//! `disk.rs` defines what survives, `calls.rs` what a process sees; tests drive both through this file. All randomness
//! comes from the seed.
//!
//! `with_bytes` changes stored bytes, for rot; a call that fails is a `Fault`.

mod calls;
mod disk;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use headwater_log::{Clock, Seams, SystemClock};
use parking_lot::{Condvar, Mutex};

use calls::Life;
use disk::Disk;
pub use disk::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with EIO. A sync has written a part, and the rest never will be written, as on Linux.
    LostSync,
    /// The call fails with EIO and has no effect.
    Error,
    /// The call fails with ENOSPC; a write has written half.
    Full,
    /// The call fails with EMFILE, if it is one that needs a descriptor.
    NoDescriptor,
    /// A write writes half and fails with EIO; other calls just fail.
    Short,
}

impl Fault {
    fn into_error(self, what: &str) -> io::Error {
        match self {
            Self::Full => io::Error::from_raw_os_error(libc::ENOSPC),
            Self::NoDescriptor => io::Error::from_raw_os_error(libc::EMFILE),
            _ => io::Error::other(format!("injected failure of {what}")),
        }
    }

    /// The error of a call that has no effect at all; None for one that has.
    fn error_of(self, what: &str) -> Option<io::Error> {
        let has_effect = match self {
            Self::Error | Self::NoDescriptor => false,
            Self::LostSync => what == "sync_data",
            Self::Full | Self::Short => matches!(what, "sync_data" | "write_all_at"),
        };
        (!has_effect).then(|| self.into_error(what))
    }

    fn applies_to(self, what: &str) -> bool {
        self != Self::NoDescriptor || matches!(what, "open" | "sync_dir" | "list" | "lock")
    }
}

/// Calls that wait until they are released.
struct Hold {
    what: &'static str,
    name_has: &'static str,
}

impl Hold {
    fn stops(&self, what: &str, name: &str) -> bool {
        self.what == what && name.contains(self.name_has)
    }
}

#[derive(Default)]
struct State {
    disk: Disk,
    random: Random,
    /// A handle of an earlier life is dead.
    life: u64,
    calls: u64,
    /// More calls than any test makes, to detect endless loops.
    calls_max: u64,
    /// The call before which the power fails.
    off_at: Option<u64>,
    is_off: bool,
    /// Calls are neither counted nor recorded, and none fails: the test inspects the state.
    is_aside: bool,
    fail_at: Option<(u64, Fault)>,
    /// The fault outlives the process.
    fails_in_any_life: bool,
    failed: Vec<String>,
    fail_syncs: bool,
    lies_about_syncs: bool,
    /// Files with a failed sync in this life; and files with a later successful sync although the bytes that the failed
    /// one dropped had not been rewritten.
    failed_syncs: BTreeSet<usize>,
    retried: Vec<String>,
    free_bytes: Option<usize>,
    no_descriptors: bool,
    holds: Vec<Hold>,
    held: bool,
    is_recording: bool,
    note: usize,
    recorded: Vec<(String, usize, Disk)>,
}

impl State {
    /// The fault of the call that was just counted, if it is set to fail.
    fn fault_of(&mut self, what: &str, name: &str, inode: Option<usize>) -> Option<Fault> {
        let (at, fault) = self.fail_at?;
        if at != self.calls {
            return None;
        }
        if !fault.applies_to(what) {
            self.fail_at = None;
            return None;
        }
        // A file may have been renamed since it was opened.
        let by_now = inode.and_then(|inode| self.disk.name_of(inode));
        let name = by_now.map_or(name.to_owned(), |path| path.to_string_lossy().into_owned());
        self.failed.push(format!("{what} of {name}"));
        Some(fault)
    }

    fn new_life(&mut self) {
        self.life += 1;
        self.off_at = None;
        self.is_off = false;
        if !self.fails_in_any_life {
            self.fail_at = None;
        }
        self.fail_syncs = false;
        self.failed_syncs.clear();
        self.holds.clear();
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The computer, as the test controls it.
#[derive(Clone, Default)]
pub struct SimFiles(Arc<Shared>);

/// The computer as it was before one call.
pub struct Moment {
    /// The call that comes next.
    pub call: String,
    /// The test's note at that time.
    pub note: usize,
    disk: Disk,
}

impl Moment {
    /// A newly started computer with this disk and page cache.
    pub fn computer(&self, seed: u64) -> SimFiles {
        let files = SimFiles::new(seed);
        files.0.state.lock().disk = self.disk.clone();
        files
    }
}

impl SimFiles {
    pub fn new(seed: u64) -> Self {
        let files = Self::default();
        {
            let mut state = files.0.state.lock();
            state.random = Random(seed);
            state.calls_max = 2_000_000;
        }
        files
    }

    pub fn seams(&self) -> Seams {
        self.seams_with(Arc::new(SystemClock::new()))
    }

    pub fn seams_with(&self, clock: Arc<dyn Clock>) -> Seams {
        let life = self.0.state.lock().life;
        let shared = Arc::clone(&self.0);
        let files = Arc::new(Life { shared, life });
        Seams { files, clock }
    }

    /// From here on every call of an older handle fails; names and bytes are a possible state after a power cut.
    pub fn power_cut(&self) {
        let mut state = self.0.state.lock();
        let State { disk, random, .. } = &mut *state;
        disk.cut(random);
        state.new_life();
        self.0.changed.notify_all();
    }

    /// All handles die, all bytes stay: what `kill -9` does.
    pub fn kill(&self) {
        let mut state = self.0.state.lock();
        let State { disk, random, .. } = &mut *state;
        for inode in &mut disk.inodes {
            inode.evict(random);
        }
        state.new_life();
        self.0.changed.notify_all();
    }

    /// The power fails before the `nth` call from now, counted from 1; `power_cut` then determines what is left.
    pub fn cut_before(&self, nth: u64) {
        let mut state = self.0.state.lock();
        state.off_at = Some(state.calls + nth);
    }

    pub fn is_off(&self) -> bool {
        self.0.state.lock().is_off
    }

    /// Cancels a scheduled power failure.
    pub fn cancel_cut(&self) {
        self.0.state.lock().off_at = None;
    }

    /// Fails the `nth` call from now, counted from 1.
    pub fn fail_call(&self, nth: u64, fault: Fault) {
        let mut state = self.0.state.lock();
        state.fail_at = Some((state.calls + nth, fault));
    }

    /// As `fail_call`, whatever process makes the call.
    pub fn fail_call_in_any_life(&self, nth: u64, fault: Fault) {
        self.fail_call(nth, fault);
        self.0.state.lock().fails_in_any_life = true;
    }

    pub fn fail_syncs(&self, fail: bool) {
        self.0.state.lock().fail_syncs = fail;
    }

    /// A disk that reports every sync as done but does none, for negative controls.
    pub fn lie_about_syncs(&self) {
        self.0.state.lock().lies_about_syncs = true;
    }

    /// Files that were synced again after a failed sync.
    pub fn retried_syncs(&self) -> Vec<String> {
        self.0.state.lock().retried.clone()
    }

    /// From now on the process has no file descriptors left, or has them again.
    pub fn set_no_descriptors(&self, none: bool) {
        self.0.state.lock().no_descriptors = none;
    }

    /// Room for this many more bytes in files that grow.
    pub fn set_free(&self, bytes: Option<usize>) {
        self.0.state.lock().free_bytes = bytes;
    }

    /// Calls of this kind on names that contain `name_has` wait until `let_go`.
    pub fn hold(&self, what: &'static str, name_has: &'static str) {
        let mut state = self.0.state.lock();
        state.held = false;
        state.holds.push(Hold { what, name_has });
    }

    /// Waits until a call is held.
    pub fn await_held(&self) {
        let deadline = Instant::now() + crate::support::PATIENCE;
        let mut state = self.0.state.lock();
        while !state.held {
            let waited = self.0.changed.wait_until(&mut state, deadline);
            assert!(!waited.timed_out(), "no call was held");
        }
    }

    pub fn let_go(&self) {
        self.0.state.lock().holds.clear();
        self.0.changed.notify_all();
    }

    /// From here on a snapshot of the disk and of the last `note` is taken before every call.
    pub fn record(&self) {
        self.0.state.lock().is_recording = true;
    }

    pub fn note(&self, note: usize) {
        self.0.state.lock().note = note;
    }

    pub fn recorded(&self) -> Vec<Moment> {
        let mut state = self.0.state.lock();
        state.is_recording = false;
        let moments = std::mem::take(&mut state.recorded);
        moments
            .into_iter()
            .map(|(call, note, disk)| Moment { call, note, disk })
            .collect()
    }

    /// Calls made by `f` are not counted, so none fails.
    pub fn aside<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.state.lock().is_aside = true;
        let result = f();
        self.0.state.lock().is_aside = false;
        result
    }

    /// The process ends after this many more calls.
    #[allow(dead_code, reason = "the other test program uses it")]
    pub fn limit_calls(&self, max: u64) {
        let mut state = self.0.state.lock();
        state.calls_max = state.calls + max;
    }

    /// The injected faults, in order.
    pub fn failed(&self) -> Vec<String> {
        self.0.state.lock().failed.clone()
    }

    /// Changes bytes on the disk, like bit rot. This syncs the whole file.
    pub fn with_bytes(&self, path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.state.lock();
        let inode = state.disk.file(path).expect("the file is there");
        let inode = &mut state.disk.inodes[inode];
        inode.sync();
        f(Arc::make_mut(&mut inode.cache));
        inode.disk = Arc::clone(&inode.cache);
    }

    /// Writes bytes as the last write of a dead process.
    pub fn write_unsynced(&self, path: &Path, position: usize, bytes: &[u8]) {
        let mut state = self.0.state.lock();
        let inode = state.disk.file(path).expect("the file is there");
        state.disk.inodes[inode].write(position, bytes);
    }

    /// Makes a file with these bytes, synced, or replaces what it holds.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        {
            let mut state = self.0.state.lock();
            let folder = path.parent().expect("a file is in a folder");
            state.disk.create_folder(folder);
            if state.disk.file(path).is_none() {
                state.disk.create_file(path);
            }
            for folder in path.ancestors().skip(1) {
                state.disk.sync_folder(folder);
            }
        }
        self.with_bytes(path, |old| *old = bytes.to_vec());
    }

    /// Removes a name without any process noticing.
    pub fn take_away(&self, path: &Path) {
        let mut state = self.0.state.lock();
        let inode = state.disk.file(path).expect("the file is there");
        state.disk.remove(path, inode);
        state
            .disk
            .sync_folder(path.parent().expect("a file is in a folder"));
    }

    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.0.state.lock();
        let inode = state.disk.file(path).expect("the file is there");
        state.disk.inodes[inode].cache.to_vec()
    }

    /// Every file.
    pub fn names(&self) -> Vec<PathBuf> {
        let state = self.0.state.lock();
        let names = state.disk.names.keys();
        names
            .filter(|path| state.disk.file(path).is_some())
            .cloned()
            .collect()
    }
}
