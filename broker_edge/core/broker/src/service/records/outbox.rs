//! The messages of a read between the task that encodes them and the body that sends them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Status;

use crate::service::arrow::encoder::Message;
use crate::service::callers::budget::Loan;
use crate::service::callers::shares::Pace;
use crate::service::error::Refusal;

/// Messages that are encoded ahead of the network.
const AHEAD: usize = 2;

/// Why a read ended before its end.
pub enum ReadEnd {
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

/// Messages that are sent and not yet taken.
pub struct Outbox {
    sender: mpsc::Sender<Result<MessageSlot, Status>>,
    queued: VecDeque<MessageSlot>,
    pace: Arc<Pace>,
    stall: Duration,
}

impl Outbox {
    /// The outbox, and what its reader receives.
    pub fn new(pace: Arc<Pace>, stall: Duration) -> (Outbox, Messages) {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let outbox = Outbox {
            sender,
            queued: VecDeque::new(),
            pace: Arc::clone(&pace),
            stall,
        };
        (outbox, Messages::new(receiver, pace))
    }

    /// How long a reader may take nothing.
    pub fn stall(&self) -> Duration {
        self.stall
    }

    /// Completes when the reader is gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Waits for `event`; `None` when the reader stalls.
    pub async fn wait<T>(&self, event: impl Future<Output = T>) -> Option<T> {
        self.pace.wait(self.stall, event).await
    }

    pub async fn send(&mut self, message: Message, loan: Option<Loan>) -> Result<(), ReadEnd> {
        let slot = MessageSlot::new(message, loan);
        self.push(Ok(slot.clone())).await?;
        while self.queued.len() > AHEAD {
            self.queued.pop_front();
        }
        self.queued.push_back(slot);
        Ok(())
    }

    async fn push(&self, item: Result<MessageSlot, Status>) -> Result<(), ReadEnd> {
        match self.wait(self.sender.reserve()).await {
            None => Err(ReadEnd::Stalled),
            Some(Err(_)) => Err(ReadEnd::Gone),
            Some(Ok(place)) => {
                place.send(item);
                Ok(())
            }
        }
    }

    /// Sends the final status, and waits until the reader has taken everything.
    pub async fn end(&mut self, status: Status) -> Result<(), ReadEnd> {
        self.push(Err(status)).await?;
        let taken = self.wait(self.sender.closed()).await;
        taken.ok_or(ReadEnd::Stalled)
    }

    /// Takes back the waiting messages. When the reader continues, its stream ends with a status that says why.
    pub fn discard(&mut self) {
        self.queued.drain(..).for_each(MessageSlot::discard);
    }
}

/// A message that waits for its reader, with its loan. The read may take it back.
#[derive(Clone)]
pub struct MessageSlot(Arc<Mutex<Option<LoanedMessage>>>);

pub struct LoanedMessage {
    pub message: Message,
    pub loan: Option<Loan>,
}

impl MessageSlot {
    pub fn new(message: Message, loan: Option<Loan>) -> MessageSlot {
        MessageSlot(Arc::new(Mutex::new(Some(LoanedMessage { message, loan }))))
    }

    pub fn discard(self) {
        drop(self.0.lock().take());
    }
}

/// The messages of a read, then its final status.
pub struct Messages {
    receiver: mpsc::Receiver<Result<MessageSlot, Status>>,
    pace: Arc<Pace>,
}

impl Messages {
    pub fn new(receiver: mpsc::Receiver<Result<MessageSlot, Status>>, pace: Arc<Pace>) -> Messages {
        Messages { receiver, pace }
    }

    /// The next message with its loan, or the final status.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<LoanedMessage, Status>> {
        self.receiver.poll_recv(context).map(|next| match next {
            Some(Ok(slot)) => slot.0.lock().take().ok_or_else(stalled),
            Some(Err(status)) => Err(status),
            None => Err(stalled()),
        })
    }

    /// Notes that the reader takes data.
    pub fn take(&self) {
        self.pace.take();
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.pace.gone.store(true, Ordering::Relaxed);
    }
}

/// The status for a reader that continues after losing its slot.
fn stalled() -> Status {
    let message = "this reader took nothing for longer than flight.stall_timeout; continue with a new read from the last `next`";
    Refusal::unavailable(message).into()
}
