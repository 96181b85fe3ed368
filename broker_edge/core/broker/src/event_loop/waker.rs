//! Wakes the loop from other threads.

use std::sync::atomic::{AtomicBool, Ordering};

use mio::Waker;

/// Costs a system call only while the loop sleeps.
#[derive(Debug)]
pub struct LoopWaker {
    waker: Waker,
    pub(super) sleeping: AtomicBool,
}

impl LoopWaker {
    pub fn new(waker: Waker) -> Self {
        Self {
            waker,
            sleeping: AtomicBool::new(false),
        }
    }

    /// Makes the loop take a turn soon. A loop that is awake checks again before it sleeps.
    pub fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "could not wake the loop");
        }
    }
}
