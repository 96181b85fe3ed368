//! How far a partition is and whether it takes appends. The writer moves the marks, everybody reads them.
//!
//! The marks are monotonic atomics, so that a reader never waits for the writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};

use crate::ids::Offset;

/// Called after each move of the high watermark or change of state, on the thread that made it, for as long as its owner
/// keeps it. Must be cheap.
pub type Watcher = Arc<dyn Fn() + Send + Sync>;
type WeakWatcher = Weak<dyn Fn() + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionState {
    Running,
    /// The device or the disk budget is full: appends are refused until there is space, and then resume.
    Full,
    /// A replica that does not lead: its records come from the leader, appends are refused.
    Following,
    /// Read-only until restart, with the reason.
    Stopped(String),
}

pub(crate) struct Status {
    /// Name of the partition, for the log.
    name: String,
    /// Everything below is committed: synced here, and in a cluster on every member of the in-sync set. Moved only
    /// after the sync of those bytes returned, and after their batches are in the tail and noted for the index, so that
    /// a reader that sees it can read up to it.
    high_watermark: AtomicU64,
    /// Everything below is on this disk; equals the high watermark unless this is a replica. Only a cut moves it back.
    synced: AtomicU64,
    /// Everything below is written; equals `synced` unless `SyncMode::Interval`. Only a cut moves it back.
    written: AtomicU64,
    log_start: AtomicU64,
    /// The device has no space, or the process no descriptor.
    is_full: AtomicBool,
    /// The disk budget has no room for this class: appends are refused although the partition could take them.
    over_budget: AtomicBool,
    /// A replica whose batches come from a leader. Changed under the lock of the writer's queue.
    is_following: AtomicBool,
    /// Why a replica may lack what it once had on its disk. It then takes nothing until it is cut.
    doubt: Mutex<Option<String>>,
    /// Why it is read-only; the first reason is kept.
    stopped: OnceLock<String>,
    /// Called without the lock: a watcher may add another, or drop the last handle of the log, which shuts it down.
    watchers: RwLock<Arc<Vec<WeakWatcher>>>,
}

impl Status {
    /// Everything below `next` is on this disk, everything below `high_watermark` committed.
    pub fn new(name: &str, log_start: Offset, high_watermark: Offset, next: Offset) -> Self {
        Self {
            name: name.to_owned(),
            high_watermark: AtomicU64::new(high_watermark.0),
            synced: AtomicU64::new(next.0),
            written: AtomicU64::new(next.0),
            log_start: AtomicU64::new(log_start.0),
            is_full: AtomicBool::new(false),
            over_budget: AtomicBool::new(false),
            is_following: AtomicBool::new(false),
            doubt: Mutex::new(None),
            stopped: OnceLock::new(),
            watchers: RwLock::default(),
        }
    }

    pub fn high_watermark(&self) -> Offset {
        Offset(self.high_watermark.load(Ordering::Acquire))
    }

    pub fn written(&self) -> Offset {
        Offset(self.written.load(Ordering::Acquire))
    }

    pub fn log_start(&self) -> Offset {
        Offset(self.log_start.load(Ordering::Acquire))
    }

    pub fn set_log_start(&self, to: Offset) {
        self.log_start.fetch_max(to.0, Ordering::AcqRel);
    }

    pub fn set_written(&self, to: Offset) {
        self.written.store(to.0, Ordering::Release);
    }

    pub fn synced(&self) -> Offset {
        Offset(self.synced.load(Ordering::Acquire))
    }

    /// Only after the sync of everything below `to` returned.
    pub fn set_synced(&self, to: Offset) {
        debug_assert!(to <= self.written());
        self.synced.store(to.0, Ordering::Release);
    }

    /// Only after everything below `to` is committed and can be read.
    pub fn set_high_watermark(&self, to: Offset) {
        debug_assert!(to <= self.synced() && to >= self.high_watermark());
        self.high_watermark.store(to.0, Ordering::Release);
    }

    /// After a cut: everything below `end`, which is not below the high watermark, is on this disk, and nothing else is.
    pub fn cut_to(&self, end: Offset) {
        debug_assert!(end >= self.high_watermark());
        self.synced.store(end.0, Ordering::Release);
        self.written.store(end.0, Ordering::Release);
    }

    pub fn is_following(&self) -> bool {
        self.is_following.load(Ordering::Acquire)
    }

    pub fn set_following(&self, is_following: bool) {
        self.is_following.store(is_following, Ordering::Release);
    }

    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire) || self.over_budget.load(Ordering::Acquire)
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    pub fn stopped_because(&self) -> Option<String> {
        self.stopped.get().cloned()
    }

    pub fn state(&self) -> PartitionState {
        match self.stopped.get() {
            Some(reason) => PartitionState::Stopped(reason.clone()),
            None if self.is_following() => PartitionState::Following,
            None if self.is_full() => PartitionState::Full,
            None => PartitionState::Running,
        }
    }

    pub fn doubt(&self) -> Option<String> {
        self.doubt.lock().clone()
    }

    pub fn set_doubt(&self, doubt: Option<String>) {
        if let Some(reason) = &doubt {
            tracing::error!(partition = %self.name, reason, "this replica may lack records that it had: it takes none until it is cut");
        }
        *self.doubt.lock() = doubt;
    }

    /// Moves between running and full; a stopped partition stays stopped.
    pub fn set_full(&self, full: bool) {
        if !self.is_stopped() {
            let raised = "no space or no file descriptor left: appends are refused until there is";
            let lowered = "space and file descriptors are available again: appends resume";
            self.set(&self.is_full, full, raised, lowered);
        }
    }

    /// Sets whether the disk budget refuses appends.
    pub fn set_over_budget(&self, is_over: bool) {
        let raised = "the disk budget is used up: appends are refused until there is room";
        let lowered = "the disk budget has room again: appends resume";
        self.set(&self.over_budget, is_over, raised, lowered);
    }

    fn set(&self, flag: &AtomicBool, to: bool, raised: &str, lowered: &str) {
        if flag.swap(to, Ordering::AcqRel) == to {
            return;
        }
        if to {
            tracing::warn!(partition = %self.name, "{raised}");
        } else {
            tracing::info!(partition = %self.name, "{lowered}");
        }
        self.tell_watchers();
    }

    /// Makes the partition read-only until restart.
    pub fn stop(&self, reason: &str) {
        let _ = self.stopped.set(reason.to_owned());
        tracing::error!(partition = %self.name, reason, "partition is read-only until restart");
    }

    pub fn watch(&self, watcher: &Watcher) {
        Arc::make_mut(&mut self.watchers.write()).push(Arc::downgrade(watcher));
    }

    pub fn tell_watchers(&self) {
        let watchers = Arc::clone(&self.watchers.read());
        let mut has_dropped = false;
        for watcher in watchers.iter() {
            match watcher.upgrade() {
                Some(watcher) => watcher(),
                None => has_dropped = true,
            }
        }
        drop(watchers);
        if has_dropped {
            Arc::make_mut(&mut self.watchers.write()).retain(|watcher| watcher.strong_count() > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_watcher_is_called_for_as_long_as_it_is_kept() {
        let status = Status::new("p", Offset(0), Offset(0), Offset(0));
        let calls = Arc::new(AtomicUsize::new(0));
        let watch = || {
            let counted = Arc::clone(&calls);
            let watcher: Watcher = Arc::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            status.watch(&watcher);
            watcher
        };
        let (kept, dropped) = (watch(), watch());
        status.tell_watchers();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        drop(dropped);
        assert_eq!(Arc::strong_count(&calls), 2, "the log does not keep it");
        status.tell_watchers();
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        assert_eq!(status.watchers.read().len(), 1, "it left the list");
        drop(kept);
    }
}
