//! Holds the current authority: loaded at the start, replaced as a whole by a reload, kept if a file is invalid.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::{Authority, FileError, Verifier};
use crate::config::AuthSettings;

/// A callback that runs when the authority has changed.
pub type Watcher = Arc<dyn Fn() + Send + Sync>;

pub struct AuthService {
    settings: AuthSettings,
    /// No listener is reachable from another machine.
    is_local: bool,
    current: RwLock<Arc<Authority>>,
    /// Grows with every reload, so that the owner of a copy notices that it is outdated.
    epoch: AtomicU64,
    verifier: Verifier,
    watchers: Mutex<Vec<Weak<dyn Fn() + Send + Sync>>>,
}

impl AuthService {
    /// # Errors
    /// A file is invalid, or the system refuses a thread.
    pub fn start(settings: &AuthSettings, is_local: bool) -> Result<Arc<Self>, StartError> {
        let authority = Authority::load(settings, is_local)?;
        // Without authentication there are no checks to run.
        let threads = if settings.is_configured() {
            settings.threads
        } else {
            0
        };
        let verifier =
            Verifier::start(threads, settings.max_waiting).map_err(StartError::Threads)?;
        Ok(Arc::new(Self {
            settings: settings.clone(),
            is_local,
            current: RwLock::new(Arc::new(authority)),
            epoch: AtomicU64::new(1),
            verifier,
            watchers: Mutex::default(),
        }))
    }

    pub fn current(&self) -> Arc<Authority> {
        Arc::clone(&self.current.read())
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    pub fn opens_metrics(&self) -> bool {
        self.settings.open_metrics
    }

    /// Calls `watcher` after every reload, for as long as the caller keeps it.
    pub fn watch(&self, watcher: &Watcher) {
        self.watchers.lock().push(Arc::downgrade(watcher));
    }

    /// Reloads all files. If one of them is invalid, nothing changes.
    ///
    /// # Errors
    /// The invalid file, in one sentence.
    pub fn reload(&self) -> Result<(), FileError> {
        let authority = Arc::new(Authority::load(&self.settings, self.is_local)?);
        *self.current.write() = authority;
        self.review();
        Ok(())
    }

    /// Has everybody who is connected checked again, with the same files: a certificate may have been revoked.
    pub fn review(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        let call = |watcher: Watcher| watcher();
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.upgrade().map(call).is_some());
    }
}

/// Why the authority could not be created.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot start the threads that check passwords: {0}")]
    Threads(std::io::Error),
}
