//! How far a partition is and whether it takes appends. The writer moves the marks, everybody reads them.
//!
//! The marks are monotonic atomics, so that a reader never waits for the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::ids::Offset;

const RUNNING: u8 = 0;
const FULL: u8 = 1;
const STOPPED: u8 = 2;

/// Called after each move of the high watermark or change of state, on the thread that made it. Must be cheap.
pub type Watcher = Arc<dyn Fn() + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionState {
    Running,
    /// The device or the disk budget is full: appends are refused until there is space, and then resume.
    Full,
    /// Read-only until restart, with the reason.
    Stopped(String),
}

pub(crate) struct Status {
    /// Name of the partition, for the log.
    name: String,
    /// Everything below is synced. Moved only after the sync of those bytes returned, and after their batches are in
    /// the tail and noted for the index, so that a reader that sees it can read up to it.
    high_watermark: AtomicU64,
    /// Everything below is written; equals the high watermark unless `SyncMode::Interval`.
    written: AtomicU64,
    log_start: AtomicU64,
    state: AtomicU8,
    /// The disk budget has no room for this class: appends are refused although the partition could take them.
    over_budget: AtomicBool,
    stop_reason: Mutex<String>,
    /// Called without the lock: a watcher may add another, or drop the last handle of the log, which shuts it down.
    watchers: RwLock<Arc<Vec<Watcher>>>,
}

impl Status {
    pub fn new(name: &str, log_start: Offset, next: Offset) -> Self {
        Self {
            name: name.to_owned(),
            high_watermark: AtomicU64::new(next.0),
            written: AtomicU64::new(next.0),
            log_start: AtomicU64::new(log_start.0),
            state: AtomicU8::new(RUNNING),
            over_budget: AtomicBool::new(false),
            stop_reason: Mutex::default(),
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

    /// Only after the sync of everything below `to` returned.
    pub fn set_high_watermark(&self, to: Offset) {
        debug_assert!(to <= self.written());
        self.high_watermark.store(to.0, Ordering::Release);
    }

    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING && !self.over_budget.load(Ordering::Acquire)
    }

    pub fn is_stopped(&self) -> bool {
        self.state.load(Ordering::Acquire) == STOPPED
    }

    pub fn state(&self) -> PartitionState {
        match self.state.load(Ordering::Acquire) {
            RUNNING if !self.over_budget.load(Ordering::Acquire) => PartitionState::Running,
            RUNNING | FULL => PartitionState::Full,
            _ => PartitionState::Stopped(self.stop_reason.lock().clone()),
        }
    }

    /// Moves between running and full; a stopped partition stays stopped.
    pub fn set_full(&self, full: bool) {
        let (from, to) = if full {
            (RUNNING, FULL)
        } else {
            (FULL, RUNNING)
        };
        let swapped = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            return;
        }
        if full {
            tracing::warn!(partition = %self.name, "no space or no file descriptor left: appends are refused until there is");
        } else {
            tracing::info!(partition = %self.name, "space and file descriptors are available again: appends resume");
        }
        self.tell_watchers();
    }

    /// Sets whether the disk budget refuses appends.
    pub fn set_over_budget(&self, is_over: bool) {
        if self.over_budget.swap(is_over, Ordering::AcqRel) == is_over {
            return;
        }
        if is_over {
            tracing::warn!(partition = %self.name, "the disk budget is used up: appends are refused until there is room");
        } else {
            tracing::info!(partition = %self.name, "the disk budget has room again: appends resume");
        }
        self.tell_watchers();
    }

    /// Makes the partition read-only until restart. The first reason is kept.
    pub fn stop(&self, reason: &str) {
        {
            let mut stop_reason = self.stop_reason.lock();
            if stop_reason.is_empty() {
                reason.clone_into(&mut stop_reason);
            }
        }
        self.state.store(STOPPED, Ordering::Release);
        tracing::error!(partition = %self.name, reason, "partition is read-only until restart");
    }

    pub fn watch(&self, watcher: Watcher) {
        Arc::make_mut(&mut self.watchers.write()).push(watcher);
    }

    /// Watchers may hold partitions, which would keep each other alive.
    pub fn drop_watchers(&self) {
        *self.watchers.write() = Arc::default();
    }

    pub fn tell_watchers(&self) {
        let watchers = Arc::clone(&self.watchers.read());
        for watcher in watchers.iter() {
            watcher();
        }
    }
}
