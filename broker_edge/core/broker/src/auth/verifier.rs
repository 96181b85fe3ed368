//! The threads that check passwords and tokens: a fixed number, before places to wait whose number is bounded.
//!
//! Whoever asks gives a closure for the answer and never waits. When there is no place the check is given back, and the
//! client is told that the broker is busy; so is one that has to give its place to somebody of another address.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::waiting::{Line, Queued, Source, Waiting};
use super::{Check, Denied, Identity};

/// How much less urgent than the rest of the broker a check is.
const NICE: i32 = 10;

/// What came out of a check.
pub type Answer = Result<Arc<Identity>, Denied>;

/// Who wants to hear an answer.
pub trait Asker: Send {
    /// Whether there is still somebody; a check for nobody is not made.
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
}

struct Jobs {
    queue: Mutex<Queue>,
    /// There is something to do, or an end to it.
    changed: Condvar,
}

struct Queue {
    waiting: Waiting<Job>,
    is_stopping: bool,
}

/// There is no place to wait.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

impl Verifier {
    /// # Errors
    /// When the system refuses a thread.
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
        };
        for number in 0..threads {
            let jobs = Arc::clone(&jobs);
            let thread = std::thread::Builder::new()
                .name(format!("verify-{number}"))
                .spawn(move || work(&jobs))?;
            verifier.threads.push(thread);
        }
        Ok(verifier)
    }

    /// Has a check done, and `asker` told of it on another thread.
    ///
    /// # Errors
    /// When there is no place to wait.
    pub fn check(
        &self,
        line: Line,
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
            queue.waiting.push(Source::new(line, address), job)
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
        // Who waits is not answered any more: a stop must not take as long as all their checks.
        self.jobs.queue.lock().is_stopping = true;
        self.jobs.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Jobs) {
    // On Linux that is this thread alone: guesses must not take the processor from the loop.
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "checks of passwords are as urgent as everything else");
    }
    while let Some(job) = next(jobs) {
        if job.asker.is_there() {
            job.asker.tell(job.check.run());
        }
    }
}

/// Waits for something to do; `None` at the end.
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
