//! What a read asks for, and what it has found so far.

use std::ops::Range;

use crate::batch::record_batch::Batch;
use crate::ids::Offset;

/// What a read asks for. `until` is at or below the high watermark.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    pub from: Offset,
    pub until: Offset,
    pub max_bytes: usize,
    pub topics: Option<&'a dyn Fn(&str) -> bool>,
}

impl Want<'_> {
    pub fn all(range: Range<Offset>, max_bytes: usize) -> Self {
        Self {
            from: range.start,
            until: range.end,
            max_bytes,
            topics: None,
        }
    }

    pub fn takes(&self, batch: &Batch) -> bool {
        self.topics
            .is_none_or(|wanted| batch.topics().any(|topic| wanted(topic.topic)))
    }
}

/// The batches found so far.
#[derive(Default)]
pub(crate) struct Found {
    pub batches: Vec<Batch>,
    pub bytes: usize,
    /// Number of the first batch in the newest buffer.
    newest: usize,
}

impl Found {
    /// Whether a batch of `more` bytes is too much.
    pub fn is_enough(&self, more: usize, want: &Want<'_>) -> bool {
        !self.batches.is_empty() && self.bytes + more > want.max_bytes
    }

    /// Whether the next batch is not worth reading now: it is known not to fit, or its size is not known and most of
    /// the wanted bytes are there. A batch that is read and found too large would be read again by the next call.
    pub fn leaves(&self, claimed: Option<usize>, want: &Want<'_>) -> bool {
        let is_most = self.bytes > want.max_bytes / 2;
        !self.batches.is_empty() && claimed.map_or(is_most, |bytes| self.is_enough(bytes, want))
    }

    /// Where few batches of a buffer are wanted they must not keep all of it: there may be thousands of such buffers.
    pub fn push(&mut self, batch: Batch) {
        let last = self.batches.last();
        if last.is_some_and(|last| !last.shares_buffer_with(&batch)) {
            Batch::leave_large_buffer(&mut self.batches[self.newest..]);
            self.newest = self.batches.len();
        }
        self.bytes += batch.bytes_len();
        self.batches.push(batch);
    }
}
