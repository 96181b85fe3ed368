//! One partition: the handle through which everybody appends and reads.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::decode::Batch;
use crate::batch::records::Records;
use crate::batch::view::RecordView;
use crate::error::{AppendError, ReadError};
use crate::ids::{Class, Epoch, Offset, PartitionId};
use crate::index::model::RetainedOffset;
use crate::read::candidates::{CandidateRanges, TopicFilter, TopicSelection};
use crate::read::single::Record;
use crate::state::core::Core;
use crate::state::stats::{Cause, Stats};

/// Called after each move of the high watermark or change of state, on the thread that made it. Must be cheap.
pub type Watcher = Arc<dyn Fn() + Send + Sync>;

/// Called before retention removes the segment with these offsets; false postpones.
pub type DeleteHook = Arc<dyn Fn(Range<Offset>) -> bool + Send + Sync>;

/// Somebody who still needs records of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub holder: String,
    /// The first offset that it has not finished.
    pub next: Offset,
}

/// Records that go although they are held.
#[derive(Debug, Clone)]
pub struct HeldLoss<'a> {
    pub partition: PartitionId,
    pub range: Range<Offset>,
    /// All of them begin below the end of the range.
    pub holds: &'a [Hold],
    pub cause: Cause,
}

/// Who still needs what. Asked on the maintenance thread, and must not remove segments itself.
pub trait Holders: Send + Sync {
    /// Those that have not finished what lies below `end`.
    fn holding(&self, partition: PartitionId, end: Offset) -> Vec<Hold>;

    /// Held records are about to go.
    fn overridden(&self, loss: &HeldLoss<'_>);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionState {
    Running,
    /// The device or the budget is full: appends are refused and resume by themselves.
    Full,
    /// Read-only until restart, with the reason.
    Stopped(String),
}

/// Why offsets are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapKind {
    /// The disk lost or changed them.
    Damage,
    /// Someone asked for their removal.
    Purge,
}

impl GapKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::Purge => "purge",
        }
    }
}

/// Offsets from the log start on, below the high watermark, that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    pub range: Range<Offset>,
    pub kind: GapKind,
    pub reason: String,
}

/// Where a record of [`Partition::append_unique`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueAppend {
    pub offset: Offset,
    /// A record with this idempotency key was there before; nothing was appended for it.
    pub duplicate: bool,
}

/// Offsets between which a topic has records; others may lie between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRange {
    pub topic: String,
    pub first: Offset,
    pub next: Offset,
}

/// A cheap handle; clones name the same partition.
#[derive(Clone)]
pub struct Partition(pub(crate) Arc<Core>);

impl Partition {
    #[must_use]
    pub fn id(&self) -> PartitionId {
        self.0.id()
    }

    /// `<class>-<n>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.context.name
    }

    #[must_use]
    pub fn class(&self) -> Class {
        self.0.context.class
    }

    /// The epoch that records appended now carry.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.context.epoch
    }

    /// First offset that is not yet durable; readers see only what is below.
    #[must_use]
    pub fn high_watermark(&self) -> Offset {
        self.0.high_watermark()
    }

    /// First offset that is not yet written; equals the high watermark unless the log syncs at an interval.
    #[must_use]
    pub fn written(&self) -> Offset {
        self.0.written()
    }

    /// The oldest offset that is kept.
    #[must_use]
    pub fn log_start(&self) -> Offset {
        self.0.log_start()
    }

    /// The offset that the next append gets.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        self.0.queue.lock().next
    }

    #[must_use]
    pub fn state(&self) -> PartitionState {
        self.0.state()
    }

    /// Bytes of all segments up to their last batch.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    /// Length of all its files but the smallest, prepared space included.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.0.file_bytes()
    }

    /// What it has written, synced and removed since the log was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.context.counters.stats()
    }

    /// Time of its oldest record; None when it is empty, or when that record can not be read.
    #[must_use]
    pub fn oldest_time_us(&self) -> Option<i64> {
        self.0.oldest_time_us()
    }

    /// Bytes that wait for the writer or are being written.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.0.queue.lock().bytes
    }

    /// Empty records to fill, with the buffers of ones that were written.
    #[must_use]
    pub fn take_records(&self) -> Records {
        self.0.queue.lock().take_spare(&self.0.tail.buffers)
    }

    /// Queues the records and gives their offsets; durable once `high_watermark() >= end`. Never blocks: a full queue
    /// gives the records back with the error. Empty records give the empty range.
    pub fn append(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        self.0.append(records)
    }

    /// Commits on the caller's thread when nothing is queued and no batch is in flight, else as [`append`](Self::append).
    /// Either way the range is durable only once the high watermark says so.
    pub fn append_inline(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        self.0.append_inline(records)
    }

    /// Appends the records whose idempotency key no retained or queued record of the same topic carries; one place per record. A place may
    /// be that of a record that is still queued: acknowledge once the high watermark is above it.
    pub fn append_unique(&self, records: Records) -> Result<Vec<UniqueAppend>, AppendError> {
        self.0.append_unique(records)
    }

    /// Adds a watcher for the life of the log.
    pub fn watch(&self, watcher: Watcher) {
        Arc::make_mut(&mut self.0.watchers.write()).push(watcher);
    }

    /// Whole batches from the one that contains `from` on, below the high watermark, until `max_bytes` (at least one).
    /// May give fewer at the end of a segment; none at the high watermark.
    pub fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Batch>, ReadError> {
        self.0.read(from, max_bytes)
    }

    /// The record at `offset`, which is below the high watermark: as little is read as can be checked.
    pub fn read_record(&self, offset: Offset) -> Result<Record, ReadError> {
        self.0.read_record(offset)
    }

    /// As [`read`](Self::read), from memory only; None when `from` is older than what is kept there, or removed.
    #[must_use]
    pub fn read_tail(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        self.0.read_tail(from, max_bytes)
    }

    /// As [`read`](Self::read), up to `until`, but leaves out batches without a topic that is wanted, without reading
    /// them where an index tells. Also returns the offset up to which it looked. The last batch may reach past `until`.
    pub fn read_matching(
        &self,
        from: Offset,
        until: Offset,
        max_bytes: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<Batch>, Offset), ReadError> {
        self.0.read_matching(from, until, max_bytes, wanted)
    }

    /// Where in `[from, until)` topics that are wanted may lie, by the indexes alone: at most `max` ranges, of one segment.
    /// `selection` is kept by the reader for its next question about the same topics.
    pub fn candidate_ranges(
        &self,
        from: Offset,
        until: Offset,
        max: usize,
        selection: &mut TopicSelection,
        wanted: TopicFilter<'_>,
    ) -> Result<CandidateRanges, ReadError> {
        self.0
            .candidate_ranges((from, until), max, selection, wanted)
    }

    /// Whole batches of a range from the files, until `max_bytes` (at least one); reads no more of the files than the
    /// blocks in which the range lies. The last batch may reach past the range.
    pub fn read_range(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
    ) -> Result<Vec<Batch>, ReadError> {
        self.0.read_range(range, max_bytes)
    }

    /// Says that what lies from an offset on is read soon, so that the disk gives it meanwhile: `bytes` of its segment at
    /// most. Does nothing where there is nothing to read.
    pub fn will_read(&self, from: Offset, bytes: u64) {
        self.0.will_read(from, bytes);
    }

    /// The first offset whose time is at or after `time_us`, or the high watermark.
    pub fn offset_for_time(&self, time_us: i64) -> Result<Offset, ReadError> {
        self.0.offset_for_time(time_us)
    }

    /// Epoch of the record before `offset`; None at 0 and where it is gone.
    pub fn epoch_before(&self, offset: Offset) -> Result<Option<Epoch>, ReadError> {
        self.0.epoch_before(offset)
    }

    /// Every topic with a record below the high watermark, by name.
    pub fn topics(&self) -> Result<Vec<TopicRange>, ReadError> {
        self.0.topics()
    }

    /// Whether every topic of the partition is wanted, without listing them. False also where there are too many topics
    /// to tell, and while a start still reads them.
    pub fn every_topic(&self, wanted: &dyn Fn(&str) -> bool) -> Result<bool, ReadError> {
        self.0.every_topic(wanted)
    }

    /// Where the newest record with the retain flag of each topic is, without reading records: what a start needs. A
    /// topic may come again, with the place of a newer record.
    pub fn for_each_retained_place(
        &self,
        f: &mut dyn FnMut(&str, RetainedOffset),
    ) -> Result<(), ReadError> {
        self.0.for_each_retained_place(f)
    }

    /// The newest record with the retain flag of each topic, in offset order.
    pub fn for_each_retained(&self, f: &mut dyn FnMut(&RecordView<'_>)) -> Result<(), ReadError> {
        self.0.for_each_retained(f)
    }

    /// Damage from the log start on, as far as a start or a reader has met it.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        self.0.gaps()
    }

    /// Bytes that are damaged, as far as a start or a reader has met them; those in `.damaged` files included.
    #[must_use]
    pub fn damaged_bytes(&self) -> u64 {
        self.0
            .damaged_bytes
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Removes whole segments below `to`.
    pub fn advance_log_start(&self, to: Offset) {
        self.0.advance_log_start(to);
    }

    /// Adds a hook that is asked before a segment is removed. It must not remove segments itself.
    pub fn before_delete(&self, hook: DeleteHook) {
        self.0.hooks.write().push(hook);
    }
}
