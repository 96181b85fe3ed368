//! Turns the log into the messages of a read, one at a time. Every step may wait for the disk.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use headwater_log::{Batch, GapKind, Offset, Partition};

use crate::auth::{Access, Rights};
use crate::filter::Filters;
use crate::service::arrow::columns::Rows;
use crate::service::arrow::encoder::{Encoder, Message};
use crate::service::error::Refusal;
use crate::service::request;

/// The state of a read between two messages.
pub struct Scan {
    partition: Partition,
    filters: Filters,
    /// Everything below was sent or is in `rows`.
    position: Offset,
    /// The rest of the piece that was read, and the end of the piece.
    pending: VecDeque<Batch>,
    looked_at: Offset,
    piece_bytes: usize,
    /// The current batch, and which of its topics are wanted.
    current: Option<(Batch, Vec<bool>)>,
    /// A refusal to send after the rows before it.
    failed: Option<Refusal>,
    rows: Rows,
    encoder: Encoder,
}

/// One message with its position and sizes.
pub struct ScanStep {
    pub message: Message,
    pub next: Offset,
    pub rows: u64,
    pub bytes: u64,
    /// Memory that the message holds.
    pub kept_bytes: usize,
}

/// Memory available for the next step.
#[derive(Clone, Copy)]
pub struct StepBudget {
    pub scan_bytes: usize,
    pub message_bytes: usize,
}

impl Scan {
    pub fn new(
        partition: Partition,
        filters: Filters,
        start: Offset,
        rows: Rows,
        encoder: Encoder,
    ) -> Scan {
        Scan {
            partition,
            filters,
            position: start,
            pending: VecDeque::new(),
            looked_at: start,
            piece_bytes: 0,
            current: None,
            failed: None,
            rows,
            encoder,
        }
    }

    pub fn position(&self) -> Offset {
        self.position
    }

    pub fn high_watermark(&self) -> Offset {
        self.partition.high_watermark()
    }

    /// From here on, reads only what these rights allow; returns false if that is nothing.
    pub fn restrict(&mut self, rights: Option<&Arc<Rights>>) -> bool {
        self.filters = self.filters.clone().under(rights, Access::Replay);
        if let Some((batch, _)) = self.current.take() {
            self.pending.push_front(batch);
        }
        self.filters.may_want_some()
    }

    /// Whether nothing is left to do up to `until`.
    pub fn is_at(&self, until: Offset) -> bool {
        self.position >= until && self.rows.len() == 0 && self.failed.is_none()
    }

    /// Whether the next step begins with reading the log.
    pub fn reads_on(&self) -> bool {
        self.current.is_none() && self.pending.is_empty() && self.failed.is_none()
    }

    /// Drops the unused part of the piece; the next step reads it again.
    pub fn let_go(&mut self) {
        self.current = None;
        self.pending.clear();
    }

    /// Memory of the current piece, which is held until all of it is taken.
    pub fn kept_bytes(&self) -> usize {
        if self.current.is_none() && self.pending.is_empty() {
            0
        } else {
            self.piece_bytes
        }
    }

    /// Takes records up to `until`, stopping when a message is full or the piece ends.
    pub fn advance(
        &mut self,
        until: Offset,
        room: StepBudget,
    ) -> Result<Option<ScanStep>, Refusal> {
        self.rows.bytes_max = room.message_bytes;
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let taken = self.take_piece(until, room.scan_bytes);
        match taken {
            Ok(true) => self.flush().map(Some),
            Ok(false) if self.rows.len() > 0 && self.position >= until => self.flush().map(Some),
            Ok(false) => Ok(None),
            Err(refusal) if self.rows.len() > 0 => {
                // Rows read before the refusal still reach the reader.
                self.failed = Some(refusal);
                self.flush().map(Some)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns true when the rows must be sent before more are taken.
    fn take_piece(&mut self, until: Offset, bytes_max: usize) -> Result<bool, Refusal> {
        if self.current.is_none() && self.pending.is_empty() {
            self.read_on(until, bytes_max)?;
        }
        while let Some((batch, wanted)) = self.next_batch()? {
            if self.take(&batch, &wanted, until)? {
                if self.position < batch.next_offset() {
                    self.current = Some((batch, wanted));
                } else if self.pending.is_empty() {
                    // Release the piece while waiting for the reader.
                    self.pass_piece(until);
                }
                return Ok(true);
            }
        }
        self.pass_piece(until);
        Ok(false)
    }

    /// Moves the position to the end of the piece, all of which is taken.
    fn pass_piece(&mut self, until: Offset) {
        self.position = self.looked_at.min(until).max(self.position);
    }

    fn next_batch(&mut self) -> Result<Option<(Batch, Vec<bool>)>, Refusal> {
        if let Some(current) = self.current.take() {
            return Ok(Some(current));
        }
        let Some(batch) = self.pending.pop_front() else {
            return Ok(None);
        };
        let wanted = batch
            .topics()
            .map(|topic| self.filters.wants(topic.topic))
            .collect();
        // Checked before taking anything, because a record that the filters did not check must not be skipped.
        request::check_work(&self.filters)?;
        Ok(Some((batch, wanted)))
    }

    fn read_on(&mut self, until: Offset, bytes_max: usize) -> Result<(), Refusal> {
        self.filters.work_anew();
        // A purged record has no topic left, so every read that may have wanted it is told.
        let wanted = |topic: &str| topic.is_empty() || self.filters.wants(topic);
        let (batches, looked_at) = self
            .partition
            .read_matching(self.position, until, bytes_max, &wanted)
            .map_err(|error| Refusal::from_read(&self.partition, error))?;
        request::check_work(&self.filters)?;
        self.piece_bytes = Batch::kept_bytes(&batches);
        self.pending = batches.into();
        self.looked_at = looked_at.min(until);
        Ok(())
    }

    /// Adds the wanted records of `batch` in `[position, until)`. Returns true when the rows are full.
    fn take(&mut self, batch: &Batch, wanted: &[bool], until: Offset) -> Result<bool, Refusal> {
        let base = batch.base_offset().0;
        let within = |offset: Offset| {
            usize::try_from(offset.0.saturating_sub(base))
                .unwrap_or(usize::MAX)
                .min(batch.len())
        };
        let (mut at, asked) = (within(self.position), within(until));
        let purged = first_purged(batch, at..asked);
        let end = purged.as_ref().map_or(asked, |run| run.start);
        let wants_all = wanted.iter().all(|wanted| *wanted);
        let is_wanted = |index: &usize| wants_all || wanted[usize::from(batch.topic_index(*index))];
        while at < end {
            let Some(start) = (at..end).find(is_wanted) else {
                break;
            };
            let run_end = if wants_all {
                end
            } else {
                (start..end).find(|index| !is_wanted(index)).unwrap_or(end)
            };
            at = start + self.rows.push_run(batch, start..run_end);
            self.position = Offset(base + at as u64);
            if self.rows.is_full() || at < run_end {
                return Ok(true);
            }
        }
        self.position = Offset(base + end as u64).max(self.position);
        let Some(run) = purged else {
            return Ok(false);
        };
        let range = Offset(base + run.start as u64)..Offset(base + run.end as u64);
        Err(Refusal::data_loss(&self.partition, &range, GapKind::Purge))
    }

    /// A message with the rows so far, possibly none, and the position at which the reader continues.
    pub fn flush(&mut self) -> Result<ScanStep, Refusal> {
        let (rows, bytes) = (self.rows.len() as u64, self.rows.payload_bytes() as u64);
        let kept_bytes = self.rows.memory();
        let next = format!("{{\"next\":{}}}", self.position);
        let message = self
            .rows
            .finish()
            .and_then(|batch| self.encoder.encode(&batch, next))
            .map_err(|error| Refusal::internal(format!("rows could not be encoded: {error}")))?;
        Ok(ScanStep {
            message,
            next: self.position,
            rows,
            bytes,
            kept_bytes,
        })
    }
}

/// The first run of purged records in this part of the batch.
fn first_purged(batch: &Batch, part: Range<usize>) -> Option<Range<usize>> {
    if !batch.holds_purged() {
        return None;
    }
    let is_purged = |index: &usize| batch.record(*index).purged;
    let start = part.clone().find(is_purged)?;
    let end = (start..part.end).find(|index| !is_purged(index));
    Some(start..end.unwrap_or(part.end))
}
