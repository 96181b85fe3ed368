//! A fixed number of threads that check passwords and tokens, with a bounded queue. An answer that may
//! not be given yet waits elsewhere (`later`).
//!
//! The caller passes a closure for the answer and never waits. If the queue is full, the check is returned and the
//! client is told that the broker is busy. A queued client that has to make room for another address gets the same
//! answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::later::{Later, LaterAdder};
use super::waiting::{ListenerKind, Queued, Source, Waiting};
use super::{Check, Denied, Identity};

/// The niceness of the checking threads, above the rest of the broker.
const NICE: i32 = 10;

/// The result of a check.
pub type Answer = Result<Arc<Identity>, Denied>;

/// Receives the answer of a check.
pub trait Asker: Send {
    /// Whether the receiver still exists; otherwise the check is skipped.
    fn is_there(&self) -> bool {
        true
    }

    fn tell(self: Box<Self>, answer: Answer);
}

impl<F: FnOnce(Answer) + Send> Asker for F {
    fn tell(self: Box<Self>, answer: Answer) {
        self(answer);
    }
}

struct Job {
    check: Check,
    asker: Box<dyn Asker>,
}

pub struct Verifier {
    jobs: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
    /// `None` without checking threads. Dropped after they have ended.
    later: Option<Later>,
}

struct Jobs {
    queue: Mutex<Queue>,
    /// A job was added, or the threads have to stop.
    changed: Condvar,
}

struct Queue {
    waiting: Waiting<Job>,
    is_stopping: bool,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

impl Verifier {
    /// # Errors
    /// The system refuses a thread.
    pub fn start(threads: u16, waiting_max: u32) -> std::io::Result<Self> {
        let jobs = Arc::new(Jobs {
            queue: Mutex::new(Queue {
                waiting: Waiting::new(waiting_max as usize),
                is_stopping: false,
            }),
            changed: Condvar::new(),
        });
        let mut verifier = Self {
            jobs: Arc::clone(&jobs),
            threads: Vec::new(),
            later: None,
        };
        if threads == 0 {
            return Ok(verifier);
        }
        let later = verifier.later.insert(Later::start()?);
        for number in 0..threads {
            let (jobs, later) = (Arc::clone(&jobs), later.adder());
            let thread = std::thread::Builder::new()
                .name(format!("verify-{number}"))
                .spawn(move || work(&jobs, &later))?;
            verifier.threads.push(thread);
        }
        Ok(verifier)
    }

    /// Queues a check; another thread runs it and calls `asker`.
    ///
    /// # Errors
    /// The queue is full.
    pub fn check(
        &self,
        kind: ListenerKind,
        address: IpAddr,
        check: Check,
        asker: impl Asker + 'static,
    ) -> Result<(), Busy> {
        let job = Job {
            check,
            asker: Box::new(asker),
        };
        let queued = {
            let mut queue = self.jobs.queue.lock();
            queue.waiting.push(Source::new(kind, address), job)
        };
        self.jobs.changed.notify_one();
        match queued {
            Queued::Waits => Ok(()),
            Queued::Instead(other) => {
                other.asker.tell(Err(Denied::Busy));
                Ok(())
            }
            Queued::Full(_) => Err(Busy),
        }
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        // Queued checks are dropped without an answer, so that they do not delay the stop.
        self.jobs.queue.lock().is_stopping = true;
        self.jobs.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has already ended.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Jobs, later: &LaterAdder) {
    // On Linux this affects only this thread. Password guesses must not take CPU time from the event loop.
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "could not lower the priority of password checks");
    }
    while let Some(job) = next(jobs) {
        if job.asker.is_there() {
            let verdict = job.check.run();
            match verdict.not_before {
                Some(at) => later.tell(at, job.asker, verdict.answer),
                None => job.asker.tell(verdict.answer),
            }
        }
    }
}

/// Waits for a job; `None` when stopping.
fn next(jobs: &Jobs) -> Option<Job> {
    let mut queue = jobs.queue.lock();
    loop {
        if queue.is_stopping {
            return None;
        }
        if let Some(job) = queue.waiting.pop() {
            return Some(job);
        }
        jobs.changed.wait(&mut queue);
    }
}
