//! The writer of a partition: its thread, who may write when, and what happens on a full disk, a failure and at the end.
//!
//! No timer and no second group in flight: while one sync runs, the next records gather in the queue. How they become
//! batches is `group.rs`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::SyncMode;
use crate::failpoint;
use crate::ids::Offset;
use crate::recovery::checkpoint::{Checkpoint, CheckpointKind};
use crate::segment::header::Segment;
use crate::state::core::Core;
use crate::vfs::files::File;
use crate::write::queue::QueuedAppend;

/// How often securing space is tried again on a full disk.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// The segment that is written. One thread at a time owns it.
pub(crate) struct Active {
    pub file: Arc<dyn File>,
    pub segment: Arc<Segment>,
    /// Where the next batch goes.
    pub position: u64,
    /// Bytes up to here need no new space.
    pub filled: u64,
    /// The pages of the file that this process has written whole end here.
    pub whole_to: u64,
    /// Base offset of the next batch.
    pub next: Offset,
    /// Topics that its index holds in memory.
    pub topics: usize,
    /// Something was written since the last sync.
    pub unsynced: bool,
    pub synced_at: Duration,
    pub wrote_at: Duration,
    /// The mark on disk says all this.
    pub marked: bool,
    /// When idleness was marked last.
    pub marked_at: Option<Duration>,
}

/// Why the writer can not go on.
#[derive(Debug)]
pub(crate) enum Halt {
    /// No space; nothing was harmed.
    Full,
    /// What the disk holds is unknown from here on.
    Failed(String),
}

impl Halt {
    pub fn failed(doing: &str, error: &io::Error) -> Self {
        Self::Failed(format!("{doing} failed: {error}"))
    }
}

enum Job {
    Write,
    Seal,
    Sync,
    Close,
}

impl Core {
    /// The writer thread.
    pub(crate) fn run_writer(&self) {
        let mut work = VecDeque::new();
        loop {
            match self.next_job(&mut work) {
                Job::Write => self.write_until_done(&mut work),
                Job::Seal => self.seal_aged(),
                Job::Sync => {
                    let synced = self.sync_active(&mut self.active.lock());
                    self.heed(synced);
                }
                Job::Close => {
                    self.close();
                    return;
                }
            }
            let mut queue = self.queue.lock();
            queue.busy = false;
        }
    }

    /// Waits for something to do and takes the right to do it (`Queue::busy`).
    fn next_job(&self, work: &mut VecDeque<QueuedAppend>) -> Job {
        let mut queue = self.queue.lock();
        loop {
            if !queue.busy {
                let job = if !queue.items.is_empty() {
                    std::mem::swap(work, &mut queue.items);
                    Some(Job::Write)
                } else if queue.seal {
                    queue.seal = false;
                    Some(Job::Seal)
                } else {
                    queue.closing.then_some(Job::Close)
                };
                if let Some(job) = job {
                    queue.busy = true;
                    return job;
                }
            }
            match self.context.sync {
                SyncMode::Interval(interval)
                    if self.written() != self.high_watermark() && !self.is_stopped() =>
                {
                    let waited = self.queue_changed.wait_for(&mut queue, interval);
                    if waited.timed_out() && !queue.busy {
                        queue.busy = true;
                        return Job::Sync;
                    }
                }
                _ => self.queue_changed.wait(&mut queue),
            }
        }
    }

    /// Writes all of `work`; on a full disk waits and tries again until there is space or the log closes.
    fn write_until_done(&self, work: &mut VecDeque<QueuedAppend>) {
        while let Some(Halt::Full) = self.write_taken(work) {
            self.set_full(true);
            let mut queue = self.queue.lock();
            if !queue.closing {
                self.queue_changed.wait_for(&mut queue, FULL_RETRY);
            }
            if queue.closing {
                // Never acknowledged: their offsets are given again by the next start, under a higher epoch.
                queue.drop_all();
                break;
            }
        }
        work.clear();
    }

    /// Writes what the caller took from the queue. The caller has set `Queue::busy`. What could not be written stays in
    /// `work`; after a failure the partition is stopped.
    pub(crate) fn write_taken(&self, work: &mut VecDeque<QueuedAppend>) -> Option<Halt> {
        let result = {
            let mut active = self.active.lock();
            if self.is_stopped() {
                work.clear();
                return None;
            }
            self.write_batches(&mut active, work)
        };
        match result {
            Ok(()) => {
                self.set_full(false);
                None
            }
            Err(halt) => {
                if let Halt::Failed(reason) = &halt {
                    work.clear();
                    self.stop(reason);
                }
                Some(halt)
            }
        }
    }

    /// Syncs what was written before and moves the high watermark over it. Does nothing with `SyncMode::Never`.
    pub(crate) fn sync_active(&self, active: &mut Active) -> Result<(), Halt> {
        if !active.unsynced || self.context.sync == SyncMode::Never {
            return Ok(());
        }
        active
            .file
            .sync_data()
            .map_err(|error| Halt::failed("syncing the active segment", &error))?;
        active.unsynced = false;
        active.synced_at = self.context.seams.clock.steady();
        let written = self.written();
        if self.high_watermark() != written {
            self.set_high_watermark(written);
            self.tell_watchers();
        }
        Ok(())
    }

    fn seal_aged(&self) {
        let mut active = self.active.lock();
        if self.is_stopped() || active.position == crate::segment::header::SEGMENT_HEADER_BYTES {
            return;
        }
        let rolled = self.roll(&mut active, 0);
        drop(active);
        self.heed(rolled);
    }

    fn heed(&self, result: Result<(), Halt>) {
        match result {
            // A full disk is no reason to refuse appends that still have room: the next look at the age tries again.
            Ok(()) | Err(Halt::Full) => {}
            Err(Halt::Failed(reason)) => self.stop(&reason),
        }
    }

    /// Last act of the writer: everything synced, and a mark that says so.
    fn close(&self) {
        if self.is_stopped() {
            return;
        }
        let mut active = self.active.lock();
        let synced = self.sync_active(&mut active);
        if synced.is_ok() {
            self.write_mark(&mut active, CheckpointKind::CleanStop);
        }
        drop(active);
        self.heed(synced);
    }

    /// Says on disk that everything up to here was whole. Failing only makes damage harder to tell from a torn tail.
    pub(crate) fn write_mark(&self, active: &mut Active, kind: CheckpointKind) {
        if active.unsynced {
            return;
        }
        let mark = Checkpoint {
            base: active.segment.base,
            position: active.position,
            next: active.next,
            epoch: self.context.epoch,
            kind,
        };
        let saved = mark.save(
            &*self.context.seams.files,
            &self.context.dir,
            &self.context.identity,
        );
        match saved {
            Ok(()) => {
                failpoint!("mark-saved");
                active.marked = true;
            }
            Err(error) => {
                tracing::warn!(partition = %self.context.name, %error, "the mark could not be written");
            }
        }
    }
}
