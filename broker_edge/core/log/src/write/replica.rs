//! What a replica's writer does besides: shows batches once they are committed, takes those of a leader, and cuts those
//! that the leader does not have.
//!
//! `docs/adr/0024-replicas-log.md` says why. Who leads, and what is committed, others decide.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::batch::buffers::Chunk;
use crate::batch::layout::{DecodeError, Header};
use crate::batch::record_batch::Batch;
use crate::error::ReplicaError;
use crate::failpoint;
use crate::ids::{Epoch, Offset};
use crate::index::builder::key_entries;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::look::ValidRange;
use crate::recovery::rewrite::copy;
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::vfs::files::is_full;
use crate::write::active::{Active, Halt, LastPage};
use crate::write::group_commit::Group;
use crate::write::queue::Queue;
use crate::write::uncommitted::UncommittedBatch;
use crate::write::writer::Writer;

/// As many changes of leader as two logs are compared by.
const EPOCHS_MAX: usize = 128;

impl Writer {
    /// Shows the batches of `group`, which are written, to those who send them on, and syncs as the settings say.
    pub(super) fn announce(&self, active: &mut Active, group: &mut Group) -> Result<(), Halt> {
        let held = self.queue.lock().recycle(group.completed.drain(..));
        {
            let mut uncommitted = self.uncommitted.lock();
            let last = group.batches.len() - 1;
            for (number, (batch, position)) in group.batches.drain(..).enumerate() {
                uncommitted.push(UncommittedBatch {
                    batch,
                    position,
                    queue_bytes: if number == last { held } else { 0 },
                    has_new_keys: group.is_taken,
                });
            }
        }
        group.bytes = 0;
        self.status.set_written(active.next);
        // A leader sends them on while it syncs. Nobody waits for what a follower has written and not synced.
        if !self.status.is_following() {
            self.status.tell_watchers();
        }
        self.sync_when_due(active)
    }

    /// Shows what is committed below `to` to readers: whole batches, and nothing that is not on this disk.
    pub fn commit_to(&self, to: Offset) -> Offset {
        let mut uncommitted = self.uncommitted.lock();
        let to = to.min(self.status.synced());
        let segment = self.segments.active();
        let (mut keys, mut held, mut high_watermark) = (Vec::new(), 0, None);
        segment.push_all(std::iter::from_fn(|| {
            let one = uncommitted.pop_below(to)?;
            if one.has_new_keys {
                keys.extend(key_entries(&one.batch));
            }
            high_watermark = Some(one.batch.next_offset());
            held += one.queue_bytes;
            self.tail.push(self.id(), one.batch.clone());
            Some((one.batch, one.position))
        }));
        let Some(high_watermark) = high_watermark else {
            return self.status.high_watermark();
        };
        if !keys.is_empty() {
            self.keys.lock().add(&keys);
        }
        self.status.set_high_watermark(high_watermark);
        failpoint!("batch-shown");
        {
            // Before the watchers run: a caller that was refused for a full queue tries again.
            let mut queue = self.queue.lock();
            queue.release(held);
            if queue.awaits_commit {
                self.queue_changed.notify_one();
            }
        }
        drop(uncommitted);
        self.status.tell_watchers();
        high_watermark
    }

    /// Written and uncommitted batches from the one that begins at `from` on.
    pub fn read_uncommitted(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        self.uncommitted.lock().read(from, max_bytes)
    }

    /// Where each epoch begins, ascending: the newest ones, up to the last batch that is written.
    pub fn epochs(&self) -> Vec<(Epoch, Offset)> {
        // Together, so that no batch is committed in between and missed.
        let uncommitted = self.uncommitted.lock();
        let mut found: Vec<(Epoch, Offset)> = Vec::new();
        for segment in self.segments.all() {
            segment.with_head(|head| {
                found.extend(head.epochs.iter().map(|(at, epoch)| (*epoch, *at)))
            });
        }
        found.extend(uncommitted.epochs());
        found.dedup_by_key(|(epoch, _)| *epoch);
        found.drain(..found.len().saturating_sub(EPOCHS_MAX));
        found
    }

    /// The epoch of the last batch that is written; 0 when there is none.
    fn last_epoch(&self) -> Epoch {
        self.epochs().last().map_or(Epoch(0), |(epoch, _)| *epoch)
    }

    /// Takes appends from here on, in a new epoch; returns where it begins.
    pub fn lead(&self, epoch: Epoch) -> Result<Offset, ReplicaError> {
        self.with_turn(|active| {
            self.must_be_sound()?;
            let last = self.last_epoch();
            if epoch < self.context.epoch() || epoch <= last || !self.status.is_following() {
                return Err(self.wrong_epoch(epoch));
            }
            let mut queue = self.queue.lock();
            self.context.begin_epoch(epoch);
            queue.next = active.next;
            self.status.set_following(false);
            Ok(active.next)
        })
    }

    /// Takes no appends any more and drops those that are queued; those of the write in progress are written.
    pub fn follow(&self, epoch: Epoch) -> Result<(), ReplicaError> {
        if !self.context.is_replica {
            return Err(ReplicaError::NoReplica {
                partition: self.id(),
            });
        }
        {
            let mut queue = self.queue.lock();
            if epoch < self.context.epoch() {
                return Err(self.wrong_epoch(epoch));
            }
            self.status.set_following(true);
            queue.drop_all();
            self.queue_changed.notify_all();
        }
        self.with_turn(|active| {
            self.context.begin_epoch(epoch);
            // Records that were queued are dropped, and their offsets given to others.
            self.keys.lock().forget_from(active.next);
            // Nobody waits for these in the new term.
            self.uncommitted.lock().release_all();
            let last = self.last_epoch();
            let mut queue = self.queue.lock();
            // What a writer gave back unwritten, and the offsets that were given and are not written.
            queue.drop_all();
            (queue.next, queue.taken_epoch) = (active.next, last);
            // Nothing waits for room any more. Whether there is some, the next write finds out.
            self.status.set_full(false);
            Ok(())
        })?;
        self.status.tell_watchers();
        Ok(())
    }

    pub fn decode(&self, bytes: Vec<u8>) -> Result<Vec<Batch>, DecodeError> {
        let bytes = Chunk::new(bytes, &self.tail.buffers);
        Batch::decode_all(&bytes, &self.context.identity)
    }

    pub fn buffer_for(&self, begin: &[u8], bytes_max: usize) -> Vec<u8> {
        let said = Header::parse(begin).map_or(0, |header| header.total());
        let fits = if said <= bytes_max { said } else { 0 };
        self.tail.buffers.take(fits.max(begin.len()))
    }

    /// Queues batches of the leader of `epoch`; they are on this disk once `synced` is above them.
    pub fn take(&self, epoch: Epoch, batches: Vec<Batch>) -> Result<(), ReplicaError> {
        let partition = self.id();
        let mut queue = self.queue.lock();
        if !self.status.is_following() || epoch != self.context.epoch() {
            return Err(self.wrong_epoch(epoch));
        }
        if let Some(reason) = self.status.stopped_because() {
            return Err(ReplicaError::ReadOnly { partition, reason });
        }
        self.must_be_sound()?;
        if queue.closing {
            let reason = "the log is shut down".to_owned();
            return Err(ReplicaError::ReadOnly { partition, reason });
        }
        let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
        let (queued_bytes, limit_bytes) = (queue.bytes, self.context.queue_bytes);
        if queued_bytes > 0 && queued_bytes + bytes > limit_bytes {
            return Err(ReplicaError::QueueFull {
                partition,
                queued_bytes,
                limit_bytes,
            });
        }
        let (mut expected, mut least) = (queue.next, queue.taken_epoch);
        for batch in &batches {
            if batch.base_offset() != expected || !(least..=epoch).contains(&batch.epoch()) {
                return Err(ReplicaError::OutOfOrder {
                    partition,
                    expected,
                    least,
                    most: epoch,
                    batch: format!("{batch:?}"),
                });
            }
            (expected, least) = (batch.next_offset(), batch.epoch());
        }
        (queue.next, queue.taken_epoch) = (expected, least);
        queue.bytes += bytes;
        queue.taken.extend(batches);
        self.queue_changed.notify_one();
        Ok(())
    }

    /// Writes and syncs the batches of `work`, one group after the other.
    pub(super) fn write_foreign(
        &self,
        active: &mut Active,
        work: &mut VecDeque<Batch>,
    ) -> Result<(), Halt> {
        let mut group = Group {
            is_taken: true,
            ..Group::default()
        };
        while let Some(batch) = work.front() {
            if let Err(halt) = self.secure(active, &mut group, batch.bytes_len() as u64) {
                if !matches!(halt, Halt::Failed(_)) {
                    self.flush(active, &mut group)?;
                }
                return Err(halt);
            }
            let batch = work.pop_front().expect("it was looked at");
            group.bytes += batch.bytes_len();
            self.queue.lock().release(batch.bytes_len());
            group.batches.push(self.place_batch(active, batch));
            if group.is_large() {
                self.flush(active, &mut group)?;
            }
        }
        self.flush(active, &mut group)
    }

    fn must_be_sound(&self) -> Result<(), ReplicaError> {
        let partition = self.id();
        self.status.doubt().map_or(Ok(()), |reason| {
            Err(ReplicaError::Doubtful { partition, reason })
        })
    }

    /// Removes the batches from `to` on, which must be uncommitted.
    pub fn truncate(&self, to: Offset) -> Result<(), ReplicaError> {
        if !self.status.is_following() {
            return Err(self.wrong_epoch(self.context.epoch()));
        }
        self.with_turn(|active| self.cut(active, to))
    }

    fn cut(&self, active: &mut Active, to: Offset) -> Result<(), ReplicaError> {
        let partition = self.id();
        let is_doubtful = self.status.doubt().is_some();
        if to == active.next && !is_doubtful {
            return Ok(());
        }
        let no_cut = |reason: String| {
            Err(ReplicaError::NoCut {
                partition,
                to,
                reason,
            })
        };
        let high_watermark = self.status.high_watermark();
        if to < high_watermark {
            return no_cut(format!("everything below {high_watermark} is committed"));
        }
        if to > active.next {
            return no_cut(format!("it ends at {}", active.next));
        }
        if let Some(gap) = self.reader.gaps().first().filter(|_| is_doubtful) {
            let (start, end) = (gap.range.start, gap.range.end);
            return no_cut(format!(
                "offsets {start} to {end} are gone, let it begin anew"
            ));
        }
        let mut uncommitted = self.uncommitted.lock();
        let position = match uncommitted.position_of(to) {
            Some(position) => position,
            None if to == active.next => active.position,
            None => return no_cut("no batch begins there".to_owned()),
        };
        if let Err(error) = self.rewrite_below(active, position, to) {
            drop(uncommitted);
            if is_full(&error) {
                let reason = error.to_string();
                return Err(ReplicaError::Later { partition, reason });
            }
            let reason = format!("cutting the active segment: {error}");
            self.stop(&reason);
            return Err(ReplicaError::ReadOnly { partition, reason });
        }
        let held = uncommitted.cut(to);
        self.status.cut_to(to);
        self.status.set_doubt(None);
        drop(uncommitted);
        self.keys.lock().forget_from(to);
        let last = self.last_epoch();
        let mut queue = self.queue.lock();
        queue.release(held);
        (queue.next, queue.taken_epoch) = (to, last);
        Ok(())
    }

    /// Puts a copy that ends at `position`, where offset `to` was, in the place of the active segment.
    fn rewrite_below(&self, active: &mut Active, position: u64, to: Offset) -> io::Result<()> {
        let (context, files) = (&self.context, &*self.context.seams.files);
        // A mark above the end would say that records are lost.
        Checkpoint::remove(files, &context.dir)?;
        files.sync_dir(&context.dir)?;
        active.is_checkpointed = false;
        failpoint!("cut-begun");
        let below = ValidRange {
            end: position,
            next: to,
            ..ValidRange::empty(SEGMENT_HEADER_BYTES, active.segment.base)
        };
        let copied = copy(context, &*active.file, below)?;
        failpoint!("cut-named");
        let segment = Arc::new(active.segment.after_cut(&context.dir));
        segment.set_file_bytes(copied.filled);
        self.segments.replace_active(Arc::clone(&segment));
        active.file = copied.file;
        active.segment = segment;
        active.position = copied.position;
        active.filled = copied.filled;
        active.last_page = LastPage::default();
        active.next = to;
        active.unsynced = false;
        Ok(())
    }

    fn wrong_epoch(&self, asked: Epoch) -> ReplicaError {
        ReplicaError::WrongEpoch {
            partition: self.id(),
            role: match (self.context.is_replica, self.status.is_following()) {
                (false, _) => "alone",
                (true, true) => "following",
                (true, false) => "leading",
            },
            current: self.context.epoch(),
            asked,
        }
    }

    /// Runs `f` while no other thread writes, once the write in progress is over.
    fn with_turn<T>(
        &self,
        f: impl FnOnce(&mut Active) -> Result<T, ReplicaError>,
    ) -> Result<T, ReplicaError> {
        let partition = self.id();
        if !self.context.is_replica {
            return Err(ReplicaError::NoReplica { partition });
        }
        let mut queue = self.queue.lock();
        while queue.busy {
            queue.turns_wanted += 1;
            self.turn_ended.wait(&mut queue);
            queue.turns_wanted -= 1;
        }
        queue.busy = true;
        drop(queue);
        let result = match self.status.stopped_because() {
            Some(reason) => Err(ReplicaError::ReadOnly { partition, reason }),
            None => f(&mut self.active.lock()),
        };
        self.end_turn();
        result
    }

    /// Gives the right to write back.
    pub(super) fn end_turn(&self) {
        self.end_turn_of(&mut self.queue.lock());
    }

    pub(super) fn end_turn_of(&self, queue: &mut Queue) {
        queue.busy = false;
        if queue.turns_wanted > 0 {
            self.turn_ended.notify_one();
        } else if queue.has_work() {
            self.queue_changed.notify_one();
        }
    }
}
