//! DoGet: the records of one partition as a stream of record batches.
//!
//! A read is a task. It takes a blocking thread for each piece of the log that it reads and encodes, and none while it
//! waits: for the reader to take what was sent, for memory to encode more ([`super::shares`]), or for the high watermark
//! to move. A reader that takes nothing for `flight.stall_timeout` loses its place and what waits for it; it may go on
//! with a new read where it was.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use headwater_log::{Offset, Partition};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tonic::Status;

use super::Shared;
use super::caller::Caller;
use super::columns::{Rows, SCHEMA};
use super::error::Refusal;
use super::request;
use super::scan::{Piece, Scan};
use super::shares::{Lender, Loan, MESSAGE_BYTES, Pace};
use super::wire::{Encoder, Message, Messages, Slot};
use crate::auth::Access;

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
    let pace = Arc::new(Pace::default());
    let filters = request::filters(
        ticket.filters,
        ticket.pattern.as_deref(),
        caller,
        Access::Replay,
        &pace.gone,
    )?;
    let partition = shared.partition(ticket.partition)?.clone();
    check_bounds(&partition, ticket.start, ticket.end)?;
    let refused = || shared.metrics.flight.reads_refused.inc();
    let of_user = shared.shares.read(caller).inspect_err(|_| {
        refused();
    })?;
    let permit = Arc::clone(&shared.reads).try_acquire_owned().map_err(|_| {
        refused();
        let most = shared.config.flight.max_reads;
        Refusal::unavailable(format!(
            "{most} reads are running, which is the limit flight.max_reads; try again"
        ))
    })?;
    let (encoder, schema) = Encoder::new(&SCHEMA)
        .map_err(|error| Refusal::internal(format!("the schema could not be encoded: {error}")))?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    let outbox = Outbox {
        sender,
        queued: VecDeque::new(),
        pace: Arc::clone(&pace),
        stall: shared.config.limits.stall_timeout,
    };
    let rows = Rows::new(ticket.partition, &shared.log_id, rows_max, MESSAGE_BYTES);
    let scan = Scan::new(partition, filters, Offset(ticket.start), rows, encoder);
    let read = Read {
        moves: shared.progress[ticket.partition as usize].moves(),
        stopping: shared.stopping.clone(),
        end: ticket.end.map(Offset),
        told: None,
        shared: Arc::clone(shared),
        lender: shared.shares.lender(caller),
        caller: caller.clone(),
        outbox,
        scan: Some(scan),
        _permits: (permit, of_user),
    };
    tokio::spawn(read.run(schema));
    Ok(Messages::new(receiver, pace))
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

/// One read in progress.
struct Read {
    shared: Arc<Shared>,
    caller: Caller,
    lender: Lender,
    /// None follows.
    end: Option<Offset>,
    /// The last place that was sent to the reader.
    told: Option<Offset>,
    /// None while a blocking thread has it.
    scan: Option<Scan>,
    outbox: Outbox,
    moves: watch::Receiver<()>,
    stopping: watch::Receiver<bool>,
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

/// Why a read ended before its end.
enum Ended {
    /// The reader is gone; nobody is left to be told.
    Gone,
    /// The reader takes nothing.
    Stalled,
    Refused(Refusal),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Ended {
        Ended::Refused(refusal)
    }
}

impl Read {
    async fn run(mut self, schema: Message) {
        self.shared.metrics.flight.reads.inc();
        let mut ended = self.send_all(schema).await;
        if !matches!(ended, Err(Ended::Gone | Ended::Stalled)) {
            let status = match ended {
                Err(Ended::Refused(refusal)) => {
                    self.shared.metrics.flight.errors.inc();
                    refusal.into()
                }
                _ => Status::ok(""),
            };
            ended = self.outbox.end(status).await;
        }
        if matches!(ended, Err(Ended::Stalled)) {
            self.shared.metrics.flight.errors.inc();
            self.outbox.discard();
            tracing::info!(
                user = self.caller.owner(),
                timeout_s = self.outbox.stall.as_secs(),
                "a reader took nothing for flight.stall_timeout and lost its place"
            );
        }
        self.shared.metrics.flight.reads.dec();
    }

    async fn send_all(&mut self, schema: Message) -> Result<(), Ended> {
        self.outbox.send(schema, None).await?;
        loop {
            let is_behind = self.read_to_end().await?;
            if is_behind {
                continue;
            }
            if self.end.is_some() {
                return Ok(());
            }
            self.wait().await?;
        }
    }

    /// Reads and sends up to the end, or the high watermark as it is now. True when that has moved meanwhile.
    async fn read_to_end(&mut self) -> Result<bool, Ended> {
        let mut loan = None;
        loop {
            self.renew_rights()?;
            let until = self.until();
            if self.scan()?.is_at(until) {
                break;
            }
            if loan.is_none() {
                loan = Some(self.lend().await?);
            }
            let Some(piece) = self.piece(until).await? else {
                continue;
            };
            if let Some(mut loan) = loan.take() {
                loan.settle(piece.message.bytes());
                self.send(piece, Some(loan)).await?;
            }
        }
        let position = self.scan()?.position();
        if self.end.is_some() && self.told != Some(position) {
            self.tell().await?;
        }
        Ok(position < self.until())
    }

    fn until(&self) -> Offset {
        match (self.end, &self.scan) {
            (Some(end), _) => end,
            (None, Some(scan)) => scan.high_watermark(),
            (None, None) => Offset(0),
        }
    }

    fn scan(&mut self) -> Result<&mut Scan, Refusal> {
        self.scan
            .as_mut()
            .ok_or_else(|| Refusal::internal("the read ended early"))
    }

    /// Waits for memory to encode one message.
    async fn lend(&self) -> Result<Loan, Ended> {
        tokio::select! {
            loan = self.lender.lend(MESSAGE_BYTES) => Ok(loan),
            () = self.outbox.sender.closed() => Err(Ended::Gone),
            () = tokio::time::sleep(2 * self.outbox.stall) => Err(Refusal::unavailable(
                "readers that take nothing hold all the memory for rows (flight.read_budget_bytes); try again",
            ).into()),
        }
    }

    /// Reads on, on a blocking thread, until there is a message or a piece of the log has been looked through.
    async fn piece(&mut self, until: Offset) -> Result<Option<Piece>, Ended> {
        let Some(mut scan) = self.scan.take() else {
            return Err(Refusal::internal("the read ended early").into());
        };
        let done = tokio::task::spawn_blocking(move || {
            let piece = scan.advance(until);
            (scan, piece)
        });
        let (scan, piece) = done
            .await
            .map_err(|error| Refusal::internal(format!("the read ended early: {error}")))?;
        self.scan = Some(scan);
        Ok(piece?)
    }

    /// Sends an empty batch with the place where the reader is.
    async fn tell(&mut self) -> Result<(), Ended> {
        let piece = self.scan()?.flush()?;
        self.send(piece, None).await
    }

    async fn send(&mut self, piece: Piece, loan: Option<Loan>) -> Result<(), Ended> {
        self.outbox.send(piece.message, loan).await?;
        self.told = Some(piece.next);
        let metrics = &self.shared.metrics.flight;
        metrics.records_read.inc_by(piece.rows);
        metrics.bytes_read.inc_by(piece.bytes);
        Ok(())
    }

    /// A read may last for weeks: what its reader may do is looked at again whenever that has changed.
    fn renew_rights(&mut self) -> Result<(), Refusal> {
        if self.caller.is_current(&self.shared) {
            return Ok(());
        }
        self.caller = self.caller.renew(&self.shared)?;
        let rights = self.caller.restricting_rights().cloned();
        if !self.scan()?.restrict(rights.as_ref()) {
            return Err(Refusal::not_allowed("this user may not read here any more"));
        }
        Ok(())
    }

    /// Parks until there is more. An empty batch now and then tells the reader where it is, and us whether it is there.
    async fn wait(&mut self) -> Result<(), Ended> {
        let is_stopping = async |stopping: &mut watch::Receiver<bool>| {
            // An error means that the sender is gone, which is a stop as well.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        tokio::select! {
            moved = self.moves.changed() => return moved.map_err(|_| stopping()),
            () = self.outbox.sender.closed() => return Err(Ended::Gone),
            () = is_stopping(&mut self.stopping) => return Err(stopping()),
            () = tokio::time::sleep(IDLE) => {}
        }
        self.tell().await
    }
}

fn stopping() -> Ended {
    Refusal::unavailable("the broker is stopping").into()
}

/// What is sent and not taken yet.
struct Outbox {
    sender: mpsc::Sender<Result<Slot, Status>>,
    queued: VecDeque<Slot>,
    pace: Arc<Pace>,
    stall: Duration,
}

impl Outbox {
    async fn send(&mut self, message: Message, loan: Option<Loan>) -> Result<(), Ended> {
        let slot = Slot::new(message, loan);
        self.push(Ok(slot.clone())).await?;
        while self.queued.len() > AHEAD {
            self.queued.pop_front();
        }
        self.queued.push_back(slot);
        Ok(())
    }

    async fn push(&self, item: Result<Slot, Status>) -> Result<(), Ended> {
        match self.pace.wait(self.stall, self.sender.reserve()).await {
            None => Err(Ended::Stalled),
            Some(Err(_)) => Err(Ended::Gone),
            Some(Ok(place)) => {
                place.send(item);
                Ok(())
            }
        }
    }

    /// Sends how the read ended, and waits until the reader has taken everything.
    async fn end(&mut self, status: Status) -> Result<(), Ended> {
        self.push(Err(status)).await?;
        let taken = self.pace.wait(self.stall, self.sender.closed()).await;
        taken.ok_or(Ended::Stalled)
    }

    /// Takes back what waits: the stream ends with a status that says why when its reader comes back.
    fn discard(&mut self) {
        self.queued.drain(..).for_each(Slot::discard);
    }
}
