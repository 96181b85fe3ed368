//! Gives answers at their time: one thread for all of them, so that a refusal that waits holds no checking thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::{Answer, Asker, Denied};

/// The most answers that wait. Each belongs to a connection that is read no further, so the limits of connections
/// usually come first. A client beyond it is told that the broker is busy, which says nothing about its password.
const WAITING_MAX: usize = 16_384;

pub struct Later {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// An earlier answer was added, or the thread has to stop.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By their time; the number keeps answers of the same time apart.
    waiting: BTreeMap<(Instant, u64), (Box<dyn Asker>, Answer)>,
    next: u64,
    is_stopping: bool,
}

impl Later {
    /// # Errors
    /// The system refuses a thread.
    pub fn start() -> std::io::Result<Self> {
        let queue: Arc<Queue> = Arc::default();
        let own = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("verify-later".to_owned())
            .spawn(move || own.work())?;
        Ok(Self {
            queue,
            thread: Some(thread),
        })
    }

    pub fn adder(&self) -> LaterAdder {
        LaterAdder(Arc::clone(&self.queue))
    }
}

/// Adds answers; a checking thread has one.
pub struct LaterAdder(Arc<Queue>);

impl LaterAdder {
    pub fn tell(&self, at: Instant, asker: Box<dyn Asker>, answer: Answer) {
        let mut state = self.0.state.lock();
        if state.waiting.len() >= WAITING_MAX {
            drop(state);
            asker.tell(Err(Denied::Busy));
            return;
        }
        let key = (at, state.next);
        state.next += 1;
        state.waiting.insert(key, (asker, answer));
        let is_first = state
            .waiting
            .first_key_value()
            .is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
    }
}

impl Queue {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.is_stopping {
            let Some((&(at, _), _)) = state.waiting.first_key_value() else {
                self.changed.wait(&mut state);
                continue;
            };
            if at > Instant::now() {
                self.changed.wait_until(&mut state, at);
                continue;
            }
            if let Some((_, (asker, answer))) = state.waiting.pop_first() {
                drop(state);
                asker.tell(answer);
                state = self.state.lock();
            }
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        // Answers that still wait are dropped, so that they do not delay the stop.
        self.queue.state.lock().is_stopping = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already ended.
            let _ = thread.join();
        }
    }
}
