//! One partition: the handle through which everybody appends and reads.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::layout::DecodeError;
use crate::batch::record_batch::Batch;
use crate::batch::records::Records;
use crate::batch::view::RecordView;
use crate::error::{AppendError, ReadError, ReplicaError};
use crate::ids::{Class, Epoch, Offset, PartitionId};
use crate::index::model::RetainedOffset;
use crate::index::segment_info::SegmentInfo;
use crate::index::shared::Shared;
use crate::read::candidates::{CandidateRanges, TopicFilter, TopicSelection};
use crate::read::gap::Gap;
use crate::read::lookup::TopicRange;
use crate::read::reader::Reader;
use crate::read::tail::Tail;
use crate::recovery::partition::RecoveredPartition;
use crate::recovery::quarantine::{KeptFile, kept_files};
use crate::retention::age::AgeClock;
use crate::retention::holds::DeleteHook;
use crate::retention::rules::Retention;
use crate::state::context::Context;
use crate::state::disk_budget::DiskBudget;
use crate::state::stats::Stats;
use crate::state::status::{PartitionState, Watcher};
use crate::write::active::Active;
use crate::write::append_unique::UniqueAppend;
use crate::write::uncommitted::Uncommitted;
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
        let (high_watermark, next) = (recovered.high_watermark, active.next);
        let shared = Shared::new(context, recovered.segments, high_watermark, next);
        shared.status.set_following(shared.context.is_replica);
        let reader = Arc::new(Reader::new(&shared, tail, recovered.quarantine));
        let written = (active, Uncommitted::new(recovered.uncommitted));
        let writer = Writer::new(&shared, &reader, tail, budget, written, &recovered.keys);
        let writer = Arc::new(writer);
        let retention = Retention::new(shared.clone(), (&reader, &writer), (budget, ages));
        if shared.context.is_replica {
            let gap = || {
                let gaps = reader.gaps();
                let range = &gaps.first()?.range;
                Some(format!("offsets {} to {} are gone", range.start, range.end))
            };
            shared.status.set_doubt(recovered.doubt.or_else(gap));
        }
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

    /// The epoch that records appended now carry; of a follower the newest that a batch may have.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.shared.context.epoch()
    }

    /// First offset that is not yet committed, which in a log alone means durable; readers see only offsets below.
    #[must_use]
    pub fn high_watermark(&self) -> Offset {
        self.0.shared.status.high_watermark()
    }

    /// First offset that is not on this disk; equals the high watermark unless this is a replica.
    #[must_use]
    pub fn synced(&self) -> Offset {
        self.0.shared.status.synced()
    }

    /// First offset that is not yet written; equals [`synced`](Self::synced) unless the log syncs at an interval.
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

    /// Whether this replica follows a leader, or waits for one. Never of a log that is no replica.
    #[must_use]
    pub fn is_following(&self) -> bool {
        self.0.shared.status.is_following()
    }

    /// Why this replica may lack records that it once had on its disk, as its start has found. Nothing was changed: it
    /// takes no batches and does not lead until [`truncate`](Self::truncate) has cut it, which may be at its end.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        self.0.shared.status.doubt()
    }

    /// Whether the device has room for more; of a follower [`state`](Self::state) does not tell.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.0.shared.status.is_full()
    }

    /// Does the next job of the writer, where it has no thread
    /// ([`LogConfig::has_writers`](crate::LogConfig::has_writers)). Never waits; false when it could do nothing.
    pub fn work(&self) -> bool {
        self.0.writer.work()
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

    /// Of a replica: has it lead from here on, in an epoch that no batch has yet. Returns the offset at which the epoch
    /// begins; appends get offsets from there on.
    ///
    /// Waits until the write in progress is over, as all calls do that change what a replica is or has.
    pub fn lead(&self, epoch: Epoch) -> Result<Offset, ReplicaError> {
        self.0.writer.lead(epoch)
    }

    /// Of a replica: has it refuse appends, drop those that are queued, and take batches of the leader of `epoch`,
    /// which may not be lower than the epoch before.
    pub fn follow(&self, epoch: Epoch) -> Result<(), ReplicaError> {
        self.0.writer.follow(epoch)
    }

    /// Of a follower: queues batches of the leader of `epoch`, which begin where the last one ended. They are durable
    /// here once [`synced`](Self::synced) is above them. Never blocks.
    pub fn take(&self, epoch: Epoch, batches: Vec<Batch>) -> Result<(), ReplicaError> {
        self.0.writer.take(epoch, batches)
    }

    /// The batches that these bytes hold, one after the other, as another replica's
    /// [`Batch::bytes`] gave them. Every length and the checksum, which only replicas of this log can make, are
    /// checked.
    pub fn decode(&self, bytes: Vec<u8>) -> Result<Vec<Batch>, DecodeError> {
        self.0.writer.decode(bytes)
    }

    /// An empty buffer for [`decode`](Self::decode), with room for the batch that begins with these bytes, if it has at
    /// most `bytes_max`.
    #[must_use]
    pub fn buffer_for(&self, begin: &[u8], bytes_max: usize) -> Vec<u8> {
        self.0.writer.buffer_for(begin, bytes_max)
    }

    /// Of a replica: shows the batches that end at or below `to` and are on this disk to readers. Returns the high
    /// watermark. The caller knows that they are on the disk of every replica that counts.
    pub fn commit_to(&self, to: Offset) -> Offset {
        self.0.writer.commit_to(to)
    }

    /// Of a follower: removes the batches from the one that begins at `to` on. Those below the high watermark are never
    /// removed.
    pub fn truncate(&self, to: Offset) -> Result<(), ReplicaError> {
        self.0.writer.truncate(to)
    }

    /// Of a replica: written batches above the high watermark, from the one that begins at `from` on, until `max_bytes`
    /// (at least one). None when none begins there: then [`read`](Self::read) has it, or it was cut.
    #[must_use]
    pub fn read_uncommitted(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        self.0.writer.read_uncommitted(from, max_bytes)
    }

    /// Where each epoch begins, ascending: the newest 128, of all batches that are written.
    #[must_use]
    pub fn epochs(&self) -> Vec<(Epoch, Offset)> {
        self.0.writer.epochs()
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
        let topics = self.topics_within(&|_| true, usize::MAX)?;
        Ok(topics.unwrap_or_default())
    }

    /// The same for those that are wanted. `None` if they take more memory than `bytes_max`: a log may have more names
    /// than there is memory.
    pub fn topics_within(
        &self,
        wanted: &dyn Fn(&str) -> bool,
        bytes_max: usize,
    ) -> Result<Option<Vec<TopicRange>>, ReadError> {
        self.0.reader.topics_within(wanted, bytes_max)
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

    /// Its segments in the order of their offsets, at most `max`, from the first one that begins at or after `from`.
    #[must_use]
    pub fn segments(&self, from: Offset, max: usize) -> Vec<SegmentInfo> {
        self.0.shared.segments.described(from, max)
    }

    /// The files with bytes of it that are not served, in no order.
    #[must_use]
    pub fn kept_files(&self) -> Vec<KeptFile> {
        kept_files(&self.0.shared.context)
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
