//! DoGet: the records of one partition as a stream of record batches.
//!
//! A read is a task. It uses a blocking thread for each piece of the log that it reads and encodes, and none while it
//! waits for the reader, for memory ([`super::shares`]), or for the high watermark to advance. A reader that takes
//! nothing for `flight.stall_timeout` loses its slot and the messages that wait for it; it can continue with a new read
//! at the same offset.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use headwater_log::{Offset, Partition};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tonic::Status;

use super::Shared;
use super::budget::{Lender, Loan, MESSAGE_BYTES, SCAN_BYTES};
use super::caller::Caller;
use super::columns::{Constants, Rows, SCHEMA};
use super::error::Refusal;
use super::poll_backoff::PollBackoff;
use super::request;
use super::scan::{Scan, ScanStep, StepBudget};
use super::shares::{Pace, ScanTurns};
use super::wire::{Encoder, Message, MessageSlot, Messages};
use crate::auth::Access;

/// Messages that are encoded ahead of the network.
const AHEAD: usize = 2;
const BATCH_ROWS: usize = 16_384;
const BATCH_ROWS_MAX: usize = 65_536;
/// How often a following reader is told its position while nothing matches.
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
            format!("batch_rows {rows_max} is out of range: use 1 to {BATCH_ROWS_MAX}"),
        ));
    }
    if ticket.end.is_some() == ticket.follow {
        return Err(Refusal::invalid(
            "end",
            "the ticket needs exactly one of `end` and `follow`",
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
    let constants = shared
        .constants
        .get_or_init(|| Arc::new(Constants::new(&shared.log_id, BATCH_ROWS_MAX)));
    let rows = Rows::new(ticket.partition, Arc::clone(constants), rows_max);
    let scan = Scan::new(partition, filters, Offset(ticket.start), rows, encoder);
    let read = Read {
        moves: shared.progress[ticket.partition as usize].moves(),
        stopping: shared.stopping.clone(),
        end: ticket.end.map(Offset),
        told: None,
        told_at: Instant::now(),
        shared: Arc::clone(shared),
        messages: shared.shares.lender(caller),
        pieces: shared.shares.lender(caller),
        turns: shared.shares.scan_turns(caller),
        message_loan: None,
        piece_loan: None,
        caller: caller.clone(),
        outbox,
        scan: Some(scan),
        backoff: PollBackoff::default(),
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
    /// Lends memory for messages.
    messages: Lender,
    /// Lends memory for pieces of the log.
    pieces: Lender,
    turns: ScanTurns,
    /// The loan of the message being built.
    message_loan: Option<Loan>,
    /// The loan of the piece that is read and not yet encoded.
    piece_loan: Option<Loan>,
    /// `None` for a following read.
    end: Option<Offset>,
    /// The last position that was sent to the reader.
    told: Option<Offset>,
    told_at: Instant,
    /// `None` while a blocking thread uses it.
    scan: Option<Scan>,
    outbox: Outbox,
    backoff: PollBackoff,
    moves: watch::Receiver<()>,
    stopping: watch::Receiver<bool>,
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

/// Why a read ended before its end.
enum ReadEnd {
    /// The reader is gone, so it cannot be told.
    Gone,
    /// The reader takes nothing.
    Stalled,
    Refused(Refusal),
}

impl From<Refusal> for ReadEnd {
    fn from(refusal: Refusal) -> ReadEnd {
        ReadEnd::Refused(refusal)
    }
}

impl Read {
    async fn run(mut self, schema: Message) {
        self.shared.metrics.flight.reads.inc();
        let mut ended = self.send_all(schema).await;
        if !matches!(ended, Err(ReadEnd::Gone | ReadEnd::Stalled)) {
            let status = match ended {
                Err(ReadEnd::Refused(refusal)) => {
                    self.shared.metrics.flight.errors.inc();
                    refusal.into()
                }
                _ => Status::ok(""),
            };
            ended = self.outbox.end(status).await;
        }
        if matches!(ended, Err(ReadEnd::Stalled)) {
            self.shared.metrics.flight.errors.inc();
            self.outbox.discard();
            tracing::info!(
                user = self.caller.owner(),
                timeout_s = self.outbox.stall.as_secs(),
                "a reader took nothing for flight.stall_timeout and lost its slot"
            );
        }
        self.shared.metrics.flight.reads.dec();
    }

    async fn send_all(&mut self, schema: Message) -> Result<(), ReadEnd> {
        self.outbox.send(schema, None).await?;
        loop {
            let until = self.until();
            let has_more = !self.scan()?.is_at(until);
            let has_found = self.read_to(until).await?;
            if self.end.is_some() {
                return Ok(());
            }
            if has_more {
                self.backoff.looked(has_found, Instant::now());
            }
            let is_behind = self.until() > until;
            if !(has_found && is_behind) {
                self.wait().await?;
            }
        }
    }

    /// Reads and sends up to `until`. Returns true if it sent something.
    async fn read_to(&mut self, until: Offset) -> Result<bool, ReadEnd> {
        let mut has_found = false;
        loop {
            self.renew_rights()?;
            if self.scan()?.is_at(until) {
                break;
            }
            if self.message_loan.is_none() {
                self.message_loan = Some(self.lend_for_message().await?);
            }
            if self.scan()?.reads_on() {
                self.piece_loan = None;
                self.piece_loan = Some(self.lend(&self.pieces, SCAN_BYTES).await?);
            }
            let Some(piece) = self.piece(until).await? else {
                continue;
            };
            let mut loan = self.message_loan.take();
            if let Some(loan) = &mut loan {
                loan.settle(piece.kept_bytes);
            }
            has_found = true;
            self.send(piece, loan).await?;
        }
        // A read that waits for new records holds no memory.
        (self.message_loan, self.piece_loan) = (None, None);
        let position = self.scan()?.position();
        if self.end.is_some() && self.told != Some(position) {
            self.tell().await?;
        }
        Ok(has_found)
    }

    /// The end of the read, or the current high watermark.
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

    /// Memory for the next message. A read that has to wait for it drops its piece of the log meanwhile and reads the
    /// piece again later. Otherwise readers that hold pieces could wait for each other forever.
    async fn lend_for_message(&mut self) -> Result<Loan, ReadEnd> {
        if let Some(loan) = self.messages.try_lend_some(MESSAGE_BYTES) {
            return Ok(loan);
        }
        self.scan()?.let_go();
        self.piece_loan = None;
        self.lend(&self.messages, MESSAGE_BYTES).await
    }

    /// Waits for memory. A read that holds no messages always gets some, unless stalled readers that lost their slot
    /// still hold it.
    async fn lend(&self, lender: &Lender, bytes: usize) -> Result<Loan, ReadEnd> {
        let stall = self.outbox.stall;
        let lent = self.outbox.pace.wait(stall, lender.lend_some(bytes));
        let lent = tokio::select! {
            lent = lent => lent,
            () = self.outbox.sender.closed() => return Err(ReadEnd::Gone),
        };
        let is_owed = self.messages.loans() > usize::from(self.message_loan.is_some());
        lent.ok_or_else(|| match is_owed {
            true => ReadEnd::Stalled,
            false => Refusal::unavailable(
                "stalled readers hold all the memory for rows (flight.read_budget_bytes); try again",
            )
            .into(),
        })
    }

    /// Reads on a blocking thread until a message is full or a piece of the log is scanned.
    async fn piece(&mut self, until: Offset) -> Result<Option<ScanStep>, ReadEnd> {
        let turn = tokio::select! {
            turn = self.turns.next() => turn,
            () = self.outbox.sender.closed() => return Err(ReadEnd::Gone),
        };
        let Some(mut scan) = self.scan.take() else {
            return Err(Refusal::internal("the read ended early").into());
        };
        self.shared.metrics.flight.scans.inc();
        let lent = |loan: &Option<Loan>| loan.as_ref().map_or(0, Loan::bytes);
        let room = StepBudget {
            scan_bytes: lent(&self.piece_loan),
            message_bytes: lent(&self.message_loan),
        };
        let done = tokio::task::spawn_blocking(move || {
            let piece = scan.advance(until, room);
            let kept = scan.kept_bytes();
            drop(turn);
            (scan, piece, kept)
        });
        let (scan, piece, kept) = done
            .await
            .map_err(|error| Refusal::internal(format!("the read ended early: {error}")))?;
        self.scan = Some(scan);
        match &mut self.piece_loan {
            Some(loan) if kept > 0 => loan.settle(kept),
            _ => self.piece_loan = None,
        }
        Ok(piece?)
    }

    /// Sends an empty batch with the reader's position.
    async fn tell(&mut self) -> Result<(), ReadEnd> {
        let piece = self.scan()?.flush()?;
        self.send(piece, None).await
    }

    async fn send(&mut self, piece: ScanStep, loan: Option<Loan>) -> Result<(), ReadEnd> {
        self.outbox.send(piece.message, loan).await?;
        self.told = Some(piece.next);
        self.told_at = Instant::now();
        let metrics = &self.shared.metrics.flight;
        metrics.records_read.inc_by(piece.rows);
        metrics.bytes_read.inc_by(piece.bytes);
        Ok(())
    }

    /// Checks the rights again after every change, because a read may last for weeks.
    fn renew_rights(&mut self) -> Result<(), Refusal> {
        if self.caller.is_current(&self.shared) {
            return Ok(());
        }
        self.caller = self.caller.renew(&self.shared)?;
        let rights = self.caller.restricting_rights().cloned();
        if !self.scan()?.restrict(rights.as_ref()) {
            return Err(Refusal::not_allowed(
                "this user's right to read here was revoked",
            ));
        }
        Ok(())
    }

    /// Waits for new records. An occasional empty batch tells the reader its position, and shows whether the reader is
    /// still there.
    async fn wait(&mut self) -> Result<(), ReadEnd> {
        let is_stopping = async |stopping: &mut watch::Receiver<bool>| {
            // An error means that the sender is gone, which also means stop.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        tokio::select! {
            moved = async {
                self.backoff.over().await;
                self.moves.changed().await
            } => return moved.map_err(|_| stopping()),
            () = self.outbox.sender.closed() => return Err(ReadEnd::Gone),
            () = is_stopping(&mut self.stopping) => return Err(stopping()),
            () = tokio::time::sleep_until(self.told_at + IDLE) => {}
        }
        self.tell().await
    }
}

fn stopping() -> ReadEnd {
    Refusal::unavailable("the broker is stopping").into()
}

/// Messages that are sent and not yet taken.
struct Outbox {
    sender: mpsc::Sender<Result<MessageSlot, Status>>,
    queued: VecDeque<MessageSlot>,
    pace: Arc<Pace>,
    stall: Duration,
}

impl Outbox {
    async fn send(&mut self, message: Message, loan: Option<Loan>) -> Result<(), ReadEnd> {
        let slot = MessageSlot::new(message, loan);
        self.push(Ok(slot.clone())).await?;
        while self.queued.len() > AHEAD {
            self.queued.pop_front();
        }
        self.queued.push_back(slot);
        Ok(())
    }

    async fn push(&self, item: Result<MessageSlot, Status>) -> Result<(), ReadEnd> {
        match self.pace.wait(self.stall, self.sender.reserve()).await {
            None => Err(ReadEnd::Stalled),
            Some(Err(_)) => Err(ReadEnd::Gone),
            Some(Ok(place)) => {
                place.send(item);
                Ok(())
            }
        }
    }

    /// Sends the final status, and waits until the reader has taken everything.
    async fn end(&mut self, status: Status) -> Result<(), ReadEnd> {
        self.push(Err(status)).await?;
        let taken = self.pace.wait(self.stall, self.sender.closed()).await;
        taken.ok_or(ReadEnd::Stalled)
    }

    /// Takes back the waiting messages. When the reader continues, its stream ends with a status that says why.
    fn discard(&mut self) {
        self.queued.drain(..).for_each(MessageSlot::discard);
    }
}
