//! One partition: the handle through which everybody appends and reads.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::record_batch::Batch;
use crate::batch::records::Records;
use crate::batch::view::RecordView;
use crate::error::{AppendError, ReadError};
use crate::ids::{Class, Epoch, Offset, PartitionId};
use crate::index::model::RetainedOffset;
use crate::index::shared::Shared;
use crate::read::candidates::{CandidateRanges, TopicFilter, TopicSelection};
use crate::read::gap::Gap;
use crate::read::lookup::TopicRange;
use crate::read::reader::Reader;
use crate::read::tail::Tail;
use crate::recovery::partition::RecoveredPartition;
use crate::retention::age::AgeClock;
use crate::retention::holds::DeleteHook;
use crate::retention::rules::Retention;
use crate::state::context::Context;
use crate::state::disk_budget::DiskBudget;
use crate::state::stats::Stats;
use crate::state::status::{PartitionState, Watcher};
use crate::write::active::Active;
use crate::write::append::UniqueAppend;
use crate::write::writer::Writer;

/// A cheap handle; clones name the same partition.
#[derive(Clone)]
pub struct Partition(Arc<Owners>);

/// Who owns what of a partition. Each depends on the ones before it.
pub(crate) struct Owners {
    pub shared: Shared,
    pub reader: Arc<Reader>,
    pub writer: Arc<Writer>,
    pub retention: Retention,
}

impl Partition {
    pub(crate) fn new(
        context: Context,
        recovered: RecoveredPartition,
        tail: &Arc<Tail>,
        budget: &Arc<DiskBudget>,
        ages: &Arc<AgeClock>,
    ) -> Self {
        let active = Active::resume(&context, recovered.active);
        let shared = Shared::new(context, recovered.segments, active.next);
        let reader = Arc::new(Reader::new(&shared, tail, recovered.quarantine));
        let writer = Writer::new(&shared, &reader, tail, budget, active, &recovered.keys);
        let writer = Arc::new(writer);
        let retention = Retention::new(shared.clone(), (&reader, &writer), (budget, ages));
        Self(Arc::new(Owners {
            shared,
            reader,
            writer,
            retention,
        }))
    }

    pub(crate) fn owners(&self) -> &Owners {
        &self.0
    }

    #[must_use]
    pub fn id(&self) -> PartitionId {
        self.0.shared.context.identity.partition
    }

    /// `<class>-<n>`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.shared.context.name
    }

    #[must_use]
    pub fn class(&self) -> Class {
        self.0.shared.context.class
    }

    /// The epoch that records appended now carry.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.shared.context.epoch
    }

    /// First offset that is not yet durable; readers see only offsets below.
    #[must_use]
    pub fn high_watermark(&self) -> Offset {
        self.0.shared.status.high_watermark()
    }

    /// First offset that is not yet written; equals the high watermark unless the log syncs at an interval.
    #[must_use]
    pub fn written(&self) -> Offset {
        self.0.shared.status.written()
    }

    /// The oldest offset that still exists.
    #[must_use]
    pub fn log_start(&self) -> Offset {
        self.0.shared.status.log_start()
    }

    /// The offset that the next append gets.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        self.0.writer.next_offset()
    }

    #[must_use]
    pub fn state(&self) -> PartitionState {
        self.0.shared.status.state()
    }

    /// Bytes of all segments up to their last batch.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.shared.segments.size_bytes()
    }

    /// Length of all its files, except very small ones, including prepared space.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.0.retention.file_bytes()
    }

    /// Totals of what it has written, synced and removed since the log was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.shared.context.counters.stats()
    }

    /// Time of its oldest record; None when it is empty, or when that record cannot be read.
    #[must_use]
    pub fn oldest_time_us(&self) -> Option<i64> {
        self.0.shared.segments.first().first_time_us()
    }

    /// Bytes in the queue or being written.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.0.writer.queued_bytes()
    }

    /// Empty records to fill, with the buffers of ones that were written.
    #[must_use]
    pub fn take_records(&self) -> Records {
        self.0.writer.take_records()
    }

    /// Queues the records and returns their offsets; durable once `high_watermark() >= end`. Never blocks: a full queue
    /// returns the records in the error. Empty records give the empty range.
    pub fn append(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        self.0.writer.append(records)
    }

    /// Commits on the caller's thread when nothing is queued and no batch is in flight, else as
    /// [`append`](Self::append). Either way the range is durable only once the high watermark says so.
    pub fn append_inline(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        self.0.writer.append_inline(records)
    }

    /// Appends the records whose idempotency key no stored or queued record of the same topic has. Returns one result
    /// per record; it may name a record that is still queued, so acknowledge once the high watermark is above its
    /// offset.
    pub fn append_unique(&self, records: Records) -> Result<Vec<UniqueAppend>, AppendError> {
        self.0.writer.append_unique(records)
    }

    /// Adds a watcher. It is called for as long as the caller keeps it.
    pub fn watch(&self, watcher: &Watcher) {
        self.0.shared.status.watch(watcher);
    }

    /// Whole batches from the one that contains `from` on, below the high watermark, until `max_bytes` (at least one).
    /// May give fewer at the end of a segment; none at the high watermark.
    pub fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Batch>, ReadError> {
        self.0.reader.read(from, max_bytes)
    }

    /// As [`read`](Self::read), from memory only; None when `from` is removed, or older than the batches in memory.
    #[must_use]
    pub fn read_tail(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        self.0.reader.read_tail(from, max_bytes)
    }

    /// As [`read`](Self::read), but only up to `until` and only batches that hold a wanted topic. Batches that an index
    /// rules out are not read. Also returns the offset up to which it looked. The last batch may reach past `until`.
    pub fn read_matching(
        &self,
        from: Offset,
        until: Offset,
        max_bytes: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<Batch>, Offset), ReadError> {
        self.0.reader.read_matching(from, until, max_bytes, wanted)
    }

    /// Where in `[from, until)` wanted topics may lie, by the indexes alone: at most `max` ranges of one segment. The
    /// caller keeps `selection` for its next question about the same topics.
    pub fn candidate_ranges(
        &self,
        from: Offset,
        until: Offset,
        max: usize,
        selection: &mut TopicSelection,
        wanted: TopicFilter<'_>,
    ) -> Result<CandidateRanges, ReadError> {
        self.0
            .reader
            .candidate_ranges((from, until), max, selection, wanted)
    }

    /// Whole batches of a range from the files, until `max_bytes` (at least one); reads no more of the files than the
    /// blocks in which the range lies. The last batch may reach past the range.
    pub fn read_range(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
    ) -> Result<Vec<Batch>, ReadError> {
        self.0.reader.read_range(range, max_bytes)
    }

    /// Has the system fetch up to `bytes` from an offset on, within its segment, because they are read soon. Does
    /// nothing where there is nothing to read.
    pub fn will_read(&self, from: Offset, bytes: u64) {
        self.0.reader.will_read(from, bytes);
    }

    /// The first offset whose time is at or after `time_us`, or the high watermark.
    pub fn offset_for_time(&self, time_us: i64) -> Result<Offset, ReadError> {
        self.0.reader.offset_for_time(time_us)
    }

    /// Epoch of the record before `offset`; None at 0 and where that record is gone.
    pub fn epoch_before(&self, offset: Offset) -> Result<Option<Epoch>, ReadError> {
        self.0.reader.epoch_before(offset)
    }

    /// Every topic with a record below the high watermark, by name.
    pub fn topics(&self) -> Result<Vec<TopicRange>, ReadError> {
        self.0.reader.topics()
    }

    /// Whether every topic of the partition is wanted, without listing them. Also false when there are too many topics
    /// to tell, and while a start still reads them.
    pub fn every_topic(&self, wanted: &dyn Fn(&str) -> bool) -> Result<bool, ReadError> {
        self.0.reader.every_topic(wanted)
    }

    /// The offset of the newest record with the retain flag of each topic, without reading records: a start needs this.
    /// A topic may come again, with a newer offset.
    pub fn for_each_retained_offset(
        &self,
        f: &mut dyn FnMut(&str, RetainedOffset),
    ) -> Result<(), ReadError> {
        self.0.reader.for_each_retained_offset(f)
    }

    /// The newest record with the retain flag of each topic, in offset order.
    pub fn for_each_retained(&self, f: &mut dyn FnMut(&RecordView<'_>)) -> Result<(), ReadError> {
        self.0.reader.for_each_retained(f)
    }

    /// Damage from the log start on, as far as a start or a reader has found it.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        self.0.reader.gaps()
    }

    /// Damaged bytes, as far as a start or a reader has found them, including those in `.damaged` files.
    #[must_use]
    pub fn damaged_bytes(&self) -> u64 {
        self.0.reader.damaged_bytes()
    }

    /// Removes whole segments below `to`.
    pub fn advance_log_start(&self, to: Offset) {
        self.0.retention.advance_log_start(to);
    }

    /// Asks this hook, and no earlier one, before a segment is removed. The hook must not remove segments itself, nor
    /// drop a guard.
    pub fn before_delete(&self, hook: DeleteHook) -> RemovalGuard {
        self.0.retention.set_hook(Arc::clone(&hook));
        RemovalGuard {
            partition: self.clone(),
            hook,
        }
    }
}

/// Keeps a hook asked. Dropped, it waits for a call of the hook in progress, and then the partition removes nothing
/// until the next `before_delete`, because nobody looks after what the hook did. Until then no limit of age, bytes or
/// disk is kept by removing records; a full disk budget refuses appends.
#[must_use = "without it nothing is removed"]
pub struct RemovalGuard {
    partition: Partition,
    hook: DeleteHook,
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        self.partition.0.retention.end_hook(&self.hook);
    }
}
