//! DoGet: the records of one partition as a stream of record batches.
//!
//! A read is a task. It uses a blocking thread for each piece of the log that it reads and encodes, and none while it
//! waits for the reader, for memory ([`crate::service::callers::shares`]), or for the high watermark to advance. A reader that takes
//! nothing for `flight.stall_timeout` loses its slot and the messages that wait for it; it can continue with a new read
//! at the same offset.

use std::sync::Arc;
use std::time::Duration;

use headwater_log::{Offset, Partition};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::outbox::{Messages, Outbox, ReadEnd};
use super::poll_backoff::PollBackoff;
use super::scan::{Scan, ScanStep, StepBudget};
use crate::auth::Access;
use crate::service::arrow::columns::{Constants, Rows, SCHEMA};
use crate::service::arrow::encoder::{Encoder, Message};
use crate::service::callers::budget::{Lender, Loan, MESSAGE_BYTES, SCAN_BYTES};
use crate::service::callers::caller::Caller;
use crate::service::callers::shares::{Pace, ReadPermits, ScanTurns};
use crate::service::error::Refusal;
use crate::service::groups::tenure::Tenure;
use crate::service::request;
use crate::service::shared::{Shared, stopped};

const BATCH_ROWS: usize = 16_384;
const BATCH_ROWS_MAX: usize = 65_536;
/// How often a following reader is told its position while nothing matches.
const IDLE: Duration = Duration::from_secs(1);

/// Checks the ticket and starts the read.
pub fn start(
    shared: &Arc<Shared>,
    caller: &Caller,
    ticket: request::Ticket,
) -> Result<Messages, Refusal> {
    let office = shared.office.get()?;
    let rows_max = ticket.batch_rows.unwrap_or(BATCH_ROWS);
    if !(1..=BATCH_ROWS_MAX).contains(&rows_max) {
        return Err(Refusal::invalid(
            "batch_rows",
            format!("batch_rows {rows_max} is out of range: use 1 to {BATCH_ROWS_MAX}"),
        ));
    }
    if ticket.end.is_some() == ticket.follow {
        let message = "the ticket needs exactly one of `end` and `follow`";
        return Err(Refusal::invalid("end", message));
    }
    let pace = Arc::new(Pace::default());
    let filters = request::filters(
        ticket.filters,
        ticket.pattern,
        caller,
        Access::Replay,
        &pace.gone,
    )?;
    let partition = shared.partition(ticket.partition)?.clone();
    check_bounds(&partition, ticket.start, ticket.end)?;
    let permits = shared.shares.read(caller);
    let permits = permits.inspect_err(|_| {
        shared.metrics.flight.reads_refused.inc();
    })?;
    let (encoder, schema) = Encoder::new(&SCHEMA)
        .map_err(|error| Refusal::internal(format!("the schema could not be encoded: {error}")))?;
    let stall = shared.limits.stall_timeout;
    let (outbox, messages) = Outbox::new(Arc::clone(&pace), stall);
    let constants = shared
        .constants
        .get_or_init(|| Arc::new(Constants::new(&shared.log_id, BATCH_ROWS_MAX)));
    let rows = Rows::new(ticket.partition, Arc::clone(constants), rows_max);
    let scan = Scan::new(partition, filters, Offset(ticket.start), rows, encoder);
    let read = Read {
        moves: shared.progress[ticket.partition as usize].moves(),
        stopping: shared.stopping.clone(),
        tenure: office.tenure.clone(),
        end: ticket.end.map(Offset),
        told: None,
        told_at: Instant::now(),
        shared: Arc::clone(shared),
        message_lender: shared.shares.lender(caller),
        piece_lender: shared.shares.lender(caller),
        turns: shared.shares.scan_turns(caller),
        message_loan: None,
        piece_loan: None,
        caller: caller.clone(),
        outbox,
        scan: Some(scan),
        backoff: PollBackoff::default(),
        _permits: permits,
    };
    tokio::spawn(read.run(schema));
    Ok(messages)
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
    message_lender: Lender,
    /// Lends memory for pieces of the log.
    piece_lender: Lender,
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
    tenure: Tenure,
    _permits: ReadPermits,
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
                timeout_s = self.outbox.stall().as_secs(),
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
                self.piece_loan = Some(self.lend(&self.piece_lender, SCAN_BYTES).await?);
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
        if let Some(loan) = self.message_lender.try_lend_some(MESSAGE_BYTES) {
            return Ok(loan);
        }
        self.scan()?.let_go();
        self.piece_loan = None;
        self.lend(&self.message_lender, MESSAGE_BYTES).await
    }

    /// Waits for memory. A read that holds no messages always gets some, unless stalled readers that lost their slot
    /// still hold it.
    async fn lend(&self, lender: &Lender, bytes: usize) -> Result<Loan, ReadEnd> {
        let lent = self.outbox.wait(lender.lend_some(bytes));
        let lent = tokio::select! {
            lent = lent => lent,
            () = self.outbox.closed() => return Err(ReadEnd::Gone),
        };
        let is_owed = self.message_lender.loans() > usize::from(self.message_loan.is_some());
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
            () = self.outbox.closed() => return Err(ReadEnd::Gone),
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
        let Some(caller) = self.caller.renewed(&self.shared.auth)? else {
            return Ok(());
        };
        self.caller = caller;
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
        tokio::select! {
            moved = async {
                self.backoff.over().await;
                self.moves.changed().await
            } => return moved.map_err(|_| stopping()),
            () = self.outbox.closed() => return Err(ReadEnd::Gone),
            () = stopped(self.stopping.clone()) => return Err(stopping()),
            refusal = self.tenure.over() => return Err(refusal.into()),
            () = tokio::time::sleep_until(self.told_at + IDLE) => {}
        }
        self.tell().await
    }
}

fn stopping() -> ReadEnd {
    Refusal::unavailable("the broker is stopping").into()
}
