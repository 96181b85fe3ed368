//! DoGet: the records of one partition as a stream of record batches.
//!
//! A read is a thread of the blocking pool that reads the log, builds columns and encodes them, ahead of the network by
//! a few messages. Their number is bounded by `flight.max_reads`, the memory of each by the constants below. A reader
//! that follows parks until the high watermark moves.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use headwater_log::{Batch, GapKind, Offset, Partition};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tonic::Status;

use super::Shared;
use super::caller::Caller;
use super::columns::{Rows, SCHEMA};
use super::error::Refusal;
use super::request;
use super::wire::{Encoder, Message, Messages};
use crate::auth::Access;
use crate::filter::Filters;

/// Bytes of the log that a read takes at once.
const READ_BYTES: usize = 4 << 20;
/// Payload bytes after which a message is cut.
const MESSAGE_BYTES: usize = 16 << 20;
/// Messages that are encoded ahead of the network.
const AHEAD: usize = 2;
const BATCH_ROWS: usize = 16_384;
const BATCH_ROWS_MAX: usize = 65_536;
/// How often a following reader that matches nothing is told where it is.
const IDLE: Duration = Duration::from_secs(1);

/// Checks the ticket and starts the read.
pub(super) fn start(
    shared: &Arc<Shared>,
    caller: &Caller,
    ticket: request::Ticket,
) -> Result<Messages, Refusal> {
    let rows_max = ticket.batch_rows.unwrap_or(BATCH_ROWS);
    if !(1..=BATCH_ROWS_MAX).contains(&rows_max) {
        return Err(Refusal::invalid(
            "batch_rows",
            format!("batch_rows {rows_max} is not in 1 to {BATCH_ROWS_MAX}"),
        ));
    }
    if ticket.end.is_some() == ticket.follow {
        return Err(Refusal::invalid(
            "end",
            "the ticket needs one of `end` and `follow`",
        ));
    }
    let filters = request::filters(
        ticket.filters,
        ticket.pattern.as_deref(),
        caller,
        Access::Replay,
    )?;
    let partition = shared.partition(ticket.partition)?.clone();
    check_bounds(&partition, ticket.start, ticket.end)?;
    let permit = Arc::clone(&shared.reads).try_acquire_owned().map_err(|_| {
        shared.metrics.flight.reads_refused.inc();
        let most = shared.config.flight.max_reads;
        Refusal::unavailable(format!(
            "{most} reads are running, which is the limit flight.max_reads; try again"
        ))
    })?;
    let (encoder, schema) = Encoder::new(&SCHEMA)
        .map_err(|error| Refusal::internal(format!("the schema could not be encoded: {error}")))?;
    let (messages, stream) = mpsc::channel(AHEAD);
    let read = Read {
        rows: Rows::new(ticket.partition, &shared.log_id, rows_max, MESSAGE_BYTES),
        encoder,
        moves: shared.progress[ticket.partition as usize].moves(),
        stopping: shared.stopping.clone(),
        position: Offset(ticket.start),
        end: ticket.end.map(Offset),
        told: None,
        shared: Arc::clone(shared),
        partition,
        caller: caller.clone(),
        filters,
        messages,
        _permit: permit,
    };
    tokio::task::spawn_blocking(move || read.run(schema, &Handle::current()));
    Ok(stream)
}

fn check_bounds(partition: &Partition, start: u64, end: Option<u64>) -> Result<(), Refusal> {
    if end.is_some_and(|end| end < start) {
        return Err(Refusal::invalid("end", "`end` is below `start`"));
    }
    let high_watermark = partition.high_watermark().0;
    if let Some(wanted) = [Some(start), end]
        .into_iter()
        .flatten()
        .find(|offset| *offset > high_watermark)
    {
        return Err(Refusal::out_of_range(partition, wanted));
    }
    if start < partition.log_start().0 {
        return Err(Refusal::out_of_range(partition, start));
    }
    Ok(())
}

/// The first run of purged records in this part of a batch.
fn first_purged(batch: &Batch, part: Range<usize>) -> Option<Range<usize>> {
    if !batch.holds_purged() {
        return None;
    }
    let is_purged = |index: &usize| batch.record(*index).purged;
    let start = part.clone().find(is_purged)?;
    let end = (start..part.end).find(|index| !is_purged(index));
    Some(start..end.unwrap_or(part.end))
}

/// One read in progress.
struct Read {
    shared: Arc<Shared>,
    partition: Partition,
    caller: Caller,
    filters: Filters,
    /// Everything below was sent or lies in `rows`.
    position: Offset,
    /// None follows.
    end: Option<Offset>,
    /// The last place that was sent to the reader.
    told: Option<Offset>,
    rows: Rows,
    encoder: Encoder,
    messages: mpsc::Sender<Result<Message, Status>>,
    moves: watch::Receiver<()>,
    stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

/// Why a read ended before its end.
enum Ended {
    /// The reader is gone; nobody is left to be told.
    Gone,
    Refused(Refusal),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Ended {
        Ended::Refused(refusal)
    }
}

impl Read {
    fn run(mut self, schema: Message, runtime: &Handle) {
        self.shared.metrics.flight.reads.inc();
        let ended = self.send_all(schema, runtime);
        self.shared.metrics.flight.reads.dec();
        if let Err(Ended::Refused(refusal)) = ended {
            self.shared.metrics.flight.errors.inc();
            // The reader may have gone meanwhile, which is its own affair.
            let _ = self.messages.blocking_send(Err(refusal.into()));
        }
    }

    fn send_all(&mut self, schema: Message, runtime: &Handle) -> Result<(), Ended> {
        self.send(schema)?;
        loop {
            self.renew_rights()?;
            let until = self.end.unwrap_or_else(|| self.partition.high_watermark());
            while self.position < until {
                self.renew_rights()?;
                self.read_on(until)?;
            }
            if self.rows.len() > 0 || (self.end.is_some() && self.told != Some(self.position)) {
                self.flush()?;
            }
            if self.end.is_some() {
                return Ok(());
            }
            self.wait(runtime)?;
        }
    }

    /// A read may last for weeks: what its reader may do is looked at again whenever that has changed.
    fn renew_rights(&mut self) -> Result<(), Ended> {
        if self.caller.is_current(&self.shared) {
            return Ok(());
        }
        self.caller = self.caller.renew(&self.shared)?;
        let filters = self.filters.clone();
        self.filters = filters.under(self.caller.restricting_rights(), Access::Replay);
        if !self.filters.may_want_some() {
            let message = "this user may not read here any more";
            return Err(Refusal::not_allowed(message).into());
        }
        Ok(())
    }

    /// Reads once and moves the position.
    fn read_on(&mut self, until: Offset) -> Result<(), Ended> {
        // A purged record has no topic left: whoever may have wanted it is told.
        let wanted = |topic: &str| topic.is_empty() || self.filters.wants(topic);
        let found = self
            .partition
            .read_matching(self.position, until, READ_BYTES, &wanted);
        let (batches, looked_at) = match found {
            Ok(found) => found,
            Err(error) => {
                // What was read before the refusal still reaches the reader.
                if self.rows.len() > 0 {
                    self.flush()?;
                }
                return Err(Refusal::from_read(&self.partition, error).into());
            }
        };
        for batch in &batches {
            self.take(batch, until)?;
        }
        self.position = looked_at.min(until).max(self.position);
        Ok(())
    }

    /// Adds the wanted records of `batch` from the position on and below `until`.
    fn take(&mut self, batch: &Batch, until: Offset) -> Result<(), Ended> {
        let base = batch.base_offset().0;
        let within = |offset: Offset| {
            usize::try_from(offset.0.saturating_sub(base))
                .unwrap_or(usize::MAX)
                .min(batch.len())
        };
        let (mut at, asked) = (within(self.position), within(until));
        let purged = first_purged(batch, at..asked);
        let end = purged.as_ref().map_or(asked, |run| run.start);
        let wanted: Vec<bool> = batch
            .topics()
            .map(|topic| self.filters.wants(topic.topic))
            .collect();
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
            at = start;
            while at < run_end {
                at += self.rows.push_run(batch, at..run_end);
                self.position = Offset(base + at as u64);
                if self.rows.is_full() || at < run_end {
                    self.flush()?;
                }
            }
        }
        self.position = Offset(base + end as u64).max(self.position);
        let Some(run) = purged else {
            return Ok(());
        };
        // What was read before them still reaches the reader.
        if self.rows.len() > 0 {
            self.flush()?;
        }
        let range = Offset(base + run.start as u64)..Offset(base + run.end as u64);
        Err(Refusal::data_loss(&self.partition, &range, GapKind::Purge).into())
    }

    /// Sends the rows so far, which may be none, with the place where the reader goes on.
    fn flush(&mut self) -> Result<(), Ended> {
        let (rows, bytes) = (self.rows.len() as u64, self.rows.payload_bytes() as u64);
        let next = format!("{{\"next\":{}}}", self.position);
        let message = self
            .rows
            .finish()
            .and_then(|batch| self.encoder.encode(&batch, next))
            .map_err(|error| Refusal::internal(format!("rows could not be encoded: {error}")))?;
        self.send(message)?;
        self.told = Some(self.position);
        self.shared.metrics.flight.records_read.inc_by(rows);
        self.shared.metrics.flight.bytes_read.inc_by(bytes);
        Ok(())
    }

    fn send(&self, message: Message) -> Result<(), Ended> {
        self.messages
            .blocking_send(Ok(message))
            .map_err(|_| Ended::Gone)
    }

    /// Parks until there is more. An empty batch now and then tells the reader where it is, and us whether it is there.
    fn wait(&mut self, runtime: &Handle) -> Result<(), Ended> {
        enum Woken {
            Moved,
            Idle,
            Gone,
            Stopping,
        }
        let (moves, stopping, messages) = (&mut self.moves, &mut self.stopping, &self.messages);
        let woken = runtime.block_on(async {
            tokio::select! {
                moved = moves.changed() => if moved.is_ok() { Woken::Moved } else { Woken::Stopping },
                () = messages.closed() => Woken::Gone,
                _ = stopping.wait_for(|stop| *stop) => Woken::Stopping,
                () = tokio::time::sleep(IDLE) => Woken::Idle,
            }
        });
        match woken {
            Woken::Moved => Ok(()),
            Woken::Idle => self.flush(),
            Woken::Gone => Err(Ended::Gone),
            Woken::Stopping => Err(Refusal::unavailable("the broker is stopping").into()),
        }
    }
}
