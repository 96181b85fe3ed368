//! Turns of a writer without a thread: a test that steps whole clusters decides itself when each writes.

use std::collections::VecDeque;

use crate::write::active::Halt;
use crate::write::writer::{Job, Writer};

impl Writer {
    /// One job without waiting, for a log whose writers have no threads. False when nothing was done.
    pub fn work(&self) -> bool {
        let (mut work, mut taken) = (VecDeque::new(), VecDeque::new());
        let job = {
            let mut queue = self.queue.lock();
            let is_due = self.has_unsynced() && !queue.busy;
            Self::take_job(&mut queue, &mut work, &mut taken).or_else(|| {
                queue.busy |= is_due;
                // With an interval: how long that is, is up to the caller.
                is_due.then_some(Job::Sync)
            })
        };
        let Some(job) = job else {
            return false;
        };
        let halt = match job {
            Job::Write { .. } => self.write_taken(&mut work, Self::write_batches),
            Job::Take { .. } => self.write_taken(&mut taken, Self::write_foreign),
            Job::Seal => {
                self.seal_aged();
                None
            }
            Job::Sync => {
                let synced = self.sync_active(&mut self.active.lock());
                self.heed(synced);
                None
            }
            // Whoever shuts the log down does it.
            Job::Close => None,
        };
        if matches!(halt, Some(Halt::Full)) {
            self.status.set_full(true);
        }
        let mut queue = self.queue.lock();
        // What could not be written waits for space or a commit.
        let is_done = work.is_empty() && taken.is_empty();
        while let Some(queued) = work.pop_back() {
            queue.items.push_front(queued);
        }
        while let Some(batch) = taken.pop_back() {
            queue.taken.push_front(batch);
        }
        self.end_turn_of(&mut queue);
        is_done
    }
}
