//! One partition: the handle through which everybody appends and reads.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::Batch;
use crate::error::{AppendError, ReadError};
use crate::ids::{Class, Epoch, Offset, PartitionId};
use crate::records::Records;
use crate::view::RecordView;

/// Called after each move of the high watermark or change of state, on the thread that made it. Must be cheap.
pub type Watcher = Arc<dyn Fn() + Send + Sync>;

/// Called before retention removes the segment with these offsets; false postpones.
pub type DeleteHook = Arc<dyn Fn(Range<Offset>) -> bool + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionState {
    Running,
    /// The device is full: appends are refused and resume by themselves.
    Full,
    /// Read-only until restart, with the reason.
    Stopped(String),
}

/// Offsets below the high watermark that are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    pub range: Range<Offset>,
    pub reason: String,
}

/// Where a record of [`Partition::append_unique`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
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

#[derive(Clone)]
pub struct Partition(Arc<Inner>);

struct Inner {
    id: PartitionId,
    name: String,
    class: Class,
    epoch: Epoch,
}

#[allow(clippy::missing_errors_doc, unused_variables)]
impl Partition {
    pub fn id(&self) -> PartitionId {
        self.0.id
    }
    pub fn name(&self) -> &str {
        &self.0.name
    }
    pub fn class(&self) -> Class {
        self.0.class
    }
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }
    /// First offset that is not yet durable; readers see only what is below.
    pub fn high_watermark(&self) -> Offset {
        unimplemented!()
    }
    /// First offset that is not yet written; equals the high watermark with `SyncMode::Always`.
    pub fn written(&self) -> Offset {
        unimplemented!()
    }
    /// The oldest offset that is kept.
    pub fn log_start(&self) -> Offset {
        unimplemented!()
    }
    /// The offset that the next append gets.
    pub fn next_offset(&self) -> Offset {
        unimplemented!()
    }
    pub fn state(&self) -> PartitionState {
        unimplemented!()
    }
    pub fn size_bytes(&self) -> u64 {
        unimplemented!()
    }
    pub fn queued_bytes(&self) -> usize {
        unimplemented!()
    }
    /// Empty records to fill, with the buffers of ones that were written.
    pub fn take_records(&self) -> Records {
        unimplemented!()
    }
    /// Queues the records and gives their offsets; durable once `high_watermark() >= end`. Never blocks.
    pub fn append(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        unimplemented!()
    }
    /// Commits on the caller's thread when nothing is queued and no batch is in flight, else as `append`.
    pub fn append_inline(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        unimplemented!()
    }
    /// A retained or queued record with the same idempotency key wins over a new one. A place may be that of a record
    /// that is still queued: acknowledge once the high watermark is above it.
    pub fn append_unique(&self, records: Records) -> Result<Vec<Placed>, AppendError> {
        unimplemented!()
    }
    pub fn watch(&self, watcher: Watcher) {
        unimplemented!()
    }
    /// Whole batches from the one that contains `from` on, below the high watermark, until `max_bytes` (at least one).
    /// Empty at the high watermark.
    pub fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Batch>, ReadError> {
        unimplemented!()
    }
    /// As `read`, from memory only; None when `from` is older than what is kept there.
    pub fn read_tail(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        unimplemented!()
    }
    /// As `read`, up to `until`, but leaves out batches without a topic that is wanted. Also returns the offset up to
    /// which it looked.
    pub fn read_matching(
        &self,
        from: Offset,
        until: Offset,
        max_bytes: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<Batch>, Offset), ReadError> {
        unimplemented!()
    }
    /// The first offset whose time is at or after `time_us`, or the high watermark.
    pub fn offset_for_time(&self, time_us: i64) -> Result<Offset, ReadError> {
        unimplemented!()
    }
    /// Epoch of the record before `offset`; None at 0 and where it is gone.
    pub fn epoch_before(&self, offset: Offset) -> Result<Option<Epoch>, ReadError> {
        unimplemented!()
    }
    pub fn topics(&self) -> Result<Vec<TopicRange>, ReadError> {
        unimplemented!()
    }
    /// The records with the retain flag, in offset order; of a sealed segment only the newest of each topic.
    pub fn for_each_retained(&self, f: &mut dyn FnMut(&RecordView<'_>)) -> Result<(), ReadError> {
        unimplemented!()
    }
    pub fn gaps(&self) -> Vec<Gap> {
        unimplemented!()
    }
    /// Removes whole segments below `to`.
    pub fn advance_log_start(&self, to: Offset) {
        unimplemented!()
    }
    pub fn before_delete(&self, hook: DeleteHook) {
        unimplemented!()
    }
}
