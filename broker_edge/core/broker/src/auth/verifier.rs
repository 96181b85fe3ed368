//! The threads that check passwords and tokens: a fixed number, behind a queue with a bound.
//!
//! Whoever asks gives a closure for the answer and never waits. When the queue is full the check is given back, and the
//! client is told that the broker is busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::{Check, Denied, Identity};

/// How much less urgent than the rest of the broker a check is.
const NICE: i32 = 10;

/// What came out of a check.
pub type Answer = Result<Arc<Identity>, Denied>;

struct Job {
    check: Check,
    tell: Box<dyn FnOnce(Answer) + Send>,
}

pub struct Verifier {
    /// `None` once it stops, so that the threads see the end of the queue.
    queue: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
    /// Held here, too, so that what waits keeps its place whatever becomes of the threads.
    _jobs: Arc<Mutex<Receiver<Job>>>,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

impl Verifier {
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(threads: u16, waiting_max: u32) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel(waiting_max as usize);
        let jobs = Arc::new(Mutex::new(jobs));
        let stopping = Arc::new(AtomicBool::new(false));
        let threads = (0..threads).map(|number| {
            let (jobs, stopping) = (Arc::clone(&jobs), Arc::clone(&stopping));
            std::thread::Builder::new()
                .name(format!("verify-{number}"))
                .spawn(move || work(&jobs, &stopping))
        });
        Ok(Self {
            queue: Some(queue),
            threads: threads.collect::<Result<_, _>>()?,
            stopping,
            _jobs: jobs,
        })
    }

    /// Has a check done, and `tell` told of it on another thread.
    ///
    /// # Errors
    /// When as many wait as may.
    pub fn check(
        &self,
        check: Check,
        tell: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), Busy> {
        let job = Job {
            check,
            tell: Box::new(tell),
        };
        match self.queue.as_ref().map(|queue| queue.try_send(job)) {
            Some(Ok(())) => Ok(()),
            None | Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) => Err(Busy),
        }
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        // Who waits is not answered any more: a stop must not take as long as all their checks.
        self.stopping.store(true, Ordering::Relaxed);
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, stopping: &AtomicBool) {
    // On Linux that is this thread alone: guesses must not take the processor from the loop.
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "checks of passwords are as urgent as everything else");
    }
    loop {
        // The lock is held while waiting: that is how the threads take turns.
        let job = jobs.lock().recv();
        let Ok(job) = job else { return };
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        (job.tell)(job.check.run());
    }
}
