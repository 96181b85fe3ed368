//! A disk whose syncs a test holds or fails, and that can be full or out of descriptors.

use super::*;

/// What a sync of the gated partitions does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sync {
    Pass,
    /// The next sync passes, and later ones are held.
    Once,
    Hold,
    Fail,
}

#[derive(Default)]
pub(super) struct Gate {
    pub(super) sync: Mutex<Option<Sync>>,
    pub(super) changed: Condvar,
    /// A sync has been held.
    has_held: AtomicBool,
    /// No file of the gated partitions can be opened for reading.
    pub(super) no_descriptors: AtomicBool,
    /// They cannot grow.
    pub(super) is_full: AtomicBool,
    /// Bytes announced for read-ahead.
    pub(super) announced: AtomicU64,
}

impl Gate {
    pub(super) fn set(&self, sync: Sync) {
        *self.sync.lock() = Some(sync);
        self.changed.notify_all();
    }

    pub(super) fn wait_until_held(&self) {
        let mut sync = self.sync.lock();
        while !self.has_held.load(Ordering::Relaxed) {
            let waited = self.changed.wait_for(&mut sync, DEADLINE);
            assert!(!waited.timed_out(), "nothing was to be synced");
        }
    }

    pub(super) fn pass(&self) -> io::Result<()> {
        let mut sync = self.sync.lock();
        if *sync == Some(Sync::Hold) {
            self.has_held.store(true, Ordering::Relaxed);
            self.changed.notify_all();
        }
        while *sync == Some(Sync::Hold) {
            self.changed.wait(&mut sync);
        }
        if *sync == Some(Sync::Once) {
            *sync = Some(Sync::Hold);
        }
        match *sync {
            Some(Sync::Fail) => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        }
    }
}

/// Each of the two has its own gate.
pub(super) struct GatedFiles {
    pub(super) telemetry: Arc<Gate>,
    pub(super) internal: Arc<Gate>,
}

pub(super) struct GatedFile(Arc<dyn File>, Arc<Gate>);

impl GatedFiles {
    fn gate_of(&self, path: &Path) -> Option<&Arc<Gate>> {
        let path = path.to_string_lossy();
        if path.contains("telemetry-0") {
            return Some(&self.telemetry);
        }
        path.contains("internal-0").then_some(&self.internal)
    }
}

impl File for GatedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(buffer, position)
    }
    fn will_read(&self, position: u64, bytes: u64) {
        self.1.announced.fetch_add(bytes, Ordering::Relaxed);
        self.0.will_read(position, bytes);
    }
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let end = position + bytes.len() as u64;
        if self.1.is_full.load(Ordering::Relaxed) && end > self.0.len()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_all_at(bytes, position)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.1.pass()?;
        self.0.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}

impl Files for GatedFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SystemFiles.list(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let gate = self.gate_of(path);
        let has_none = gate.is_some_and(|gate| gate.no_descriptors.load(Ordering::Relaxed));
        if mode == OpenMode::Read && has_none {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let file = SystemFiles.open(path, mode)?;
        let Some(gate) = gate else { return Ok(file) };
        Ok(Arc::new(GatedFile(file, Arc::clone(gate))))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        SystemFiles.lock(path)
    }
}
