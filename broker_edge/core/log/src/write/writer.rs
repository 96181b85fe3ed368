//! The writer of a partition: its state, its thread, and what happens on a full disk, a failure and at shutdown.
//!
//! No timer and no second group in flight: while one sync runs, the next records gather in the queue. Appending is
//! `append.rs`, how records become batches `group_commit.rs`, space `preallocate.rs`.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::batch::record_batch::Batch;
use crate::batch::records::Records;
use crate::config::SyncMode;
use crate::failpoint;
use crate::ids::{Offset, PartitionId};
use crate::index::keys::KeyEntry;
use crate::index::shared::Shared;
use crate::read::reader::Reader;
use crate::read::tail::Tail;
use crate::recovery::checkpoint::{Checkpoint, CheckpointKind};
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::state::disk_budget::DiskBudget;
use crate::write::active::{Active, Halt, SpareSegment};
use crate::write::idempotency::IdempotencyKeys;
use crate::write::queue::{Queue, QueuedAppend};
use crate::write::uncommitted::Uncommitted;

/// How often securing space is tried again on a full disk.
const FULL_RETRY: Duration = Duration::from_millis(500);
/// A partition that wrote nothing for this long is marked as whole up to its end.
const IDLE: Duration = Duration::from_secs(5);
/// Least time between two such checkpoints: with few records they would cost more than the records.
const IDLE_CHECKPOINTS_APART: Duration = Duration::from_secs(60);

pub(crate) struct Writer {
    shared: Shared,
    pub(super) reader: Arc<Reader>,
    pub(super) tail: Arc<Tail>,
    pub(super) budget: Arc<DiskBudget>,
    /// Held from giving an offset to noting the key, so that two callers never both append a key. No file is read under
    /// it. Locks are taken in
    /// the order of these fields, and none is held while another thread is waited for.
    pub(super) keys: Mutex<IdempotencyKeys>,
    pub(super) queue: Mutex<Queue>,
    pub(super) queue_changed: Condvar,
    /// `Queue::busy` ended, and somebody waits for that.
    pub(super) turn_ended: Condvar,
    /// Of a replica; empty for a log alone. Locked after `active` and before `keys` and `queue`.
    pub(super) uncommitted: Mutex<Uncommitted>,
    /// Locked by the thread that set `Queue::busy`, and by the maintenance thread to note idleness.
    pub(super) active: Mutex<Active>,
    pub(super) spare: Mutex<Option<SpareSegment>>,
    /// Numbers the names of spares: one that the writer took keeps its name until the writer renames it, so the next
    /// must not get the same, or its file would be replaced under the writer.
    pub(super) spares_made: AtomicU64,
}

/// Writes what was taken from the queue; what could not be written stays.
type Write<T> = fn(&Writer, &mut Active, &mut VecDeque<T>) -> Result<(), Halt>;

pub(super) enum Job {
    /// `drops` as in the queue when the work was taken from it.
    Write {
        drops: u64,
    },
    /// Batches of a leader.
    Take {
        drops: u64,
    },
    Seal,
    Sync,
    Close,
}

impl Deref for Writer {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Writer {
    pub fn new(
        shared: &Shared,
        reader: &Arc<Reader>,
        tail: &Arc<Tail>,
        budget: &Arc<DiskBudget>,
        (active, uncommitted): (Active, Uncommitted),
        keys: &[KeyEntry],
    ) -> Self {
        Self {
            shared: shared.clone(),
            reader: Arc::clone(reader),
            tail: Arc::clone(tail),
            budget: Arc::clone(budget),
            keys: Mutex::new(IdempotencyKeys::new(active.segment.base, keys)),
            queue: Mutex::new(Queue::starting_at(active.next)),
            queue_changed: Condvar::new(),
            turn_ended: Condvar::new(),
            uncommitted: Mutex::new(uncommitted),
            active: Mutex::new(active),
            spare: Mutex::new(None),
            spares_made: AtomicU64::new(0),
        }
    }

    pub(super) fn id(&self) -> PartitionId {
        self.context.identity.partition
    }

    /// The offset that the next append gets.
    pub fn next_offset(&self) -> Offset {
        self.queue.lock().next
    }

    pub fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes
    }

    /// Empty records to fill, with the buffers of ones that were written.
    pub fn take_records(&self) -> Records {
        self.queue.lock().take_spare(&self.tail.buffers)
    }

    /// Has the active segment sealed by the thread that writes.
    pub fn request_seal(&self) {
        self.queue.lock().seal = true;
        self.queue_changed.notify_one();
    }

    /// No more appends; what is queued is still written.
    pub fn begin_close(&self) {
        self.queue.lock().closing = true;
        self.queue_changed.notify_all();
    }

    /// Drops keys of records that the index files can be asked for, and with them those of removed ones.
    pub fn forget_keys_below(&self, offset: Offset) {
        let taken = self.keys.lock().take_below(offset);
        drop(taken);
    }

    /// The writer thread.
    pub fn run(&self) {
        let (mut work, mut taken) = (VecDeque::new(), VecDeque::new());
        loop {
            match self.next_job(&mut work, &mut taken) {
                Job::Write { drops } => {
                    self.write_until_done(drops, &mut work, Self::write_batches);
                }
                Job::Take { drops } => {
                    self.write_until_done(drops, &mut taken, Self::write_foreign);
                }
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
            self.end_turn();
        }
    }

    /// Takes the right to write (`Queue::busy`) if it is free and there is something to do.
    pub(super) fn take_job(
        queue: &mut Queue,
        work: &mut VecDeque<QueuedAppend>,
        taken: &mut VecDeque<Batch>,
    ) -> Option<Job> {
        if queue.busy || queue.turns_wanted > 0 {
            return None;
        }
        let drops = queue.drops;
        let job = if !queue.items.is_empty() {
            std::mem::swap(work, &mut queue.items);
            Job::Write { drops }
        } else if !queue.taken.is_empty() {
            std::mem::swap(taken, &mut queue.taken);
            Job::Take { drops }
        } else if queue.seal {
            queue.seal = false;
            Job::Seal
        } else if queue.closing {
            Job::Close
        } else {
            return None;
        };
        queue.busy = true;
        Some(job)
    }

    /// Waits for something to do and takes the right to do it (`Queue::busy`).
    fn next_job(&self, work: &mut VecDeque<QueuedAppend>, taken: &mut VecDeque<Batch>) -> Job {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = Self::take_job(&mut queue, work, taken) {
                return job;
            }
            match self.context.sync {
                SyncMode::Interval(interval) if self.has_unsynced() => {
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

    pub(super) fn has_unsynced(&self) -> bool {
        self.status.written() != self.status.synced() && !self.status.is_stopped()
    }

    /// Writes all of `work`; on a full disk, and at the end of a segment that is not committed, waits and tries again
    /// until it can, the log closes or the queue is dropped.
    fn write_until_done<T>(&self, drops: u64, work: &mut VecDeque<T>, write: Write<T>) {
        while let Some(halt @ (Halt::Full | Halt::Uncommitted)) = self.write_taken(work, write) {
            if matches!(halt, Halt::Full) {
                self.status.set_full(true);
            }
            let mut queue = self.queue.lock();
            let is_over = |queue: &Queue| queue.closing || queue.drops != drops;
            if !is_over(&queue) && !self.can_go_on(&halt) {
                queue.awaits_commit = matches!(halt, Halt::Uncommitted);
                self.queue_changed.wait_for(&mut queue, FULL_RETRY);
                queue.awaits_commit = false;
            }
            if queue.closing {
                // Never acknowledged: their offsets are given again by the next start, under a higher epoch.
                queue.drop_all();
            }
            if is_over(&queue) {
                break;
            }
        }
        work.clear();
    }

    /// Whether what it waits for has happened: everything written is committed.
    fn can_go_on(&self, halt: &Halt) -> bool {
        let is_committed = self.status.high_watermark() == self.status.written();
        matches!(halt, Halt::Uncommitted) && is_committed
    }

    /// Writes the appends that the caller took from the queue. The caller has set `Queue::busy`. Appends that could not
    /// be written stay in `work`; after a failure the partition is stopped.
    pub(super) fn write_taken<T>(&self, work: &mut VecDeque<T>, write: Write<T>) -> Option<Halt> {
        let result = {
            let mut active = self.active.lock();
            if self.status.is_stopped() {
                work.clear();
                return None;
            }
            write(self, &mut active, work)
        };
        match result {
            Ok(()) => {
                self.status.set_full(false);
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

    /// Makes the partition read-only until restart and drops the queue: its records were never acknowledged.
    pub fn stop(&self, reason: &str) {
        self.status.stop(reason);
        self.queue.lock().drop_all();
        self.status.tell_watchers();
    }

    /// Syncs the active file, whatever the settings say.
    pub(super) fn sync_file(&self, active: &mut Active) -> Result<(), Halt> {
        let synced = active.file.sync_data();
        synced.map_err(|error| Halt::failed("syncing the active segment", &error))
    }

    /// Syncs the written batches and moves the high watermark over them. Does nothing with `SyncMode::Never`.
    pub(super) fn sync_active(&self, active: &mut Active) -> Result<(), Halt> {
        if !active.unsynced || self.context.sync == SyncMode::Never {
            return Ok(());
        }
        self.sync_file(active)?;
        active.unsynced = false;
        active.synced_at = self.context.steady();
        let written = self.status.written();
        if self.status.synced() != written {
            self.status.set_synced(written);
            if !self.context.is_replica {
                self.status.set_high_watermark(written);
            }
            self.status.tell_watchers();
        }
        Ok(())
    }

    /// Syncs what was just written, at once or when the interval is over.
    pub(super) fn sync_when_due(&self, active: &mut Active) -> Result<(), Halt> {
        match self.context.sync {
            SyncMode::Interval(interval)
                if self.context.steady().saturating_sub(active.synced_at) < interval =>
            {
                self.status.tell_watchers();
                Ok(())
            }
            _ => self.sync_active(active),
        }
    }

    pub(super) fn seal_aged(&self) {
        let mut active = self.active.lock();
        if self.status.is_stopped() || active.position == SEGMENT_HEADER_BYTES {
            return;
        }
        let rolled = self.roll(&mut active, 0);
        drop(active);
        self.heed(rolled);
    }

    pub(super) fn heed(&self, result: Result<(), Halt>) {
        match result {
            // A full disk is no reason to refuse appends that still have room: the next look at the age tries again.
            Ok(()) | Err(Halt::Full | Halt::Uncommitted) => {}
            Err(Halt::Failed(reason)) => self.stop(&reason),
        }
    }

    /// The last act of the writer: syncs everything and writes a checkpoint.
    fn close(&self) {
        if self.status.is_stopped() {
            return;
        }
        let mut active = self.active.lock();
        let synced = self.sync_active(&mut active);
        if synced.is_ok() {
            self.write_checkpoint(&mut active, CheckpointKind::CleanStop);
        }
        drop(active);
        self.heed(synced);
    }

    /// Writes a checkpoint when nothing was written for a while.
    pub fn note_idleness(&self) {
        // The thread that holds the lock is writing: then the partition is not idle.
        let Some(mut active) = self.active.try_lock() else {
            return;
        };
        let now = self.context.steady();
        let since = now.saturating_sub(active.wrote_at);
        let apart = match self.context.sync {
            SyncMode::Interval(interval) => IDLE_CHECKPOINTS_APART.max(interval),
            SyncMode::Always | SyncMode::Never => IDLE_CHECKPOINTS_APART,
        };
        let is_due = active
            .idle_noted_at
            .is_none_or(|at| now.saturating_sub(at) >= apart);
        if !active.is_checkpointed && since >= IDLE && is_due {
            self.write_checkpoint(&mut active, CheckpointKind::Idle);
            active.idle_noted_at = Some(now);
        }
    }

    /// Notes on disk that everything up to here was whole. A failure only makes damage harder to tell from a torn tail.
    fn write_checkpoint(&self, active: &mut Active, kind: CheckpointKind) {
        // It would hide that records are missing.
        if active.unsynced || self.status.doubt().is_some() {
            return;
        }
        let checkpoint = Checkpoint {
            base: active.segment.base,
            position: active.position,
            next: active.next,
            epoch: self.context.epoch(),
            kind,
        };
        let (files, dir) = (&*self.context.seams.files, &self.context.dir);
        match checkpoint.save(files, dir, &self.context.identity) {
            Ok(()) => {
                failpoint!("mark-saved");
                active.is_checkpointed = true;
            }
            Err(error) => {
                tracing::warn!(partition = %self.context.name, %error, "the checkpoint could not be written");
            }
        }
    }
}
