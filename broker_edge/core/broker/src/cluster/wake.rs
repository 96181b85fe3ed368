//! Wakes the thread of a node when the log has moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use mio::Waker;

/// Costs a system call only while the thread sleeps, and nothing when the thread itself moved the log.
pub struct LogWaker {
    waker: Arc<Waker>,
    owner: ThreadId,
    has_moved: AtomicBool,
    sleeps: AtomicBool,
}

impl LogWaker {
    /// Of the thread that calls this.
    pub fn new(waker: Arc<Waker>) -> Self {
        Self {
            waker,
            owner: thread::current().id(),
            has_moved: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
        }
    }

    pub fn moved(&self) {
        if thread::current().id() == self.owner {
            return;
        }
        self.has_moved.store(true, Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "could not wake the thread of the node");
        }
    }

    /// Whether the thread may sleep: nothing has moved since it looked.
    pub fn begin_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        !self.has_moved.load(Ordering::SeqCst)
    }

    /// It is awake, and looks at the log after this.
    pub fn end_sleep(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
        self.has_moved.store(false, Ordering::SeqCst);
    }
}
