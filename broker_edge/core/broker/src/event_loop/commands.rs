//! Commands from other threads to the loop: a bounded queue. Each asker waits for its answer on its own channel.
//!
//! A sender never waits for room: a full queue is an error. The loop takes a few commands per turn, and each is a
//! bounded amount of work, so commands never stall connections.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use crate::engine::{ClientsRequest, Drain, RetainRequest, WeighRequest};
use crate::state::StateStore;

use super::LoopWaker;

/// Capacity of the queue.
const QUEUED_MAX: usize = 64;
/// The most commands of producers in the queue: the rest of it is for operators, however many producers there are. One
/// user has at most 16 producers (`service::callers::shares`).
const OF_PRODUCERS_MAX: usize = 48;
/// The most commands that the loop takes in one turn.
pub(super) const TAKEN_MAX: usize = 4;

/// A command to the loop.
#[derive(Debug)]
pub enum Command {
    /// Close every connection and end the thread.
    Stop,
    /// Answered at once, as a sign that the loop works.
    Ping(SyncSender<()>),
    /// List, show or disconnect clients.
    Clients(ClientsRequest),
    /// Retained messages that a producer over Flight is about to append.
    Retain(RetainRequest),
    /// Topics of which a producer over Flight is about to append records.
    Weigh(WeighRequest),
    /// Disconnect all clients and admit no new ones, or end that.
    Drain(Option<Drain>),
    /// Serve clients. Nothing happens if it does.
    Open(OpenOffice),
    /// Serve no clients any more. If it serves none, only changes where they are sent.
    Leave(LeaveOffice),
}

/// Makes the loop serve clients.
pub struct OpenOffice {
    /// Replayed from the log.
    pub state: Arc<StateStore>,
    /// Gets whether the engine could be built.
    pub opened: SyncSender<io::Result<()>>,
}

/// Makes the loop close every connection and drop what waits for an acknowledgement.
#[derive(Debug)]
pub struct LeaveOffice {
    /// The address of the node to which clients are sent, if it is known.
    pub server: Option<Arc<str>>,
    /// Gets a message when nothing can be acknowledged any more, and one when nothing of the engine is left. It has room
    /// for both.
    pub left: SyncSender<()>,
    /// This node still leads the log: wills and sessions are stored as at a clean stop.
    pub stores: bool,
}

impl fmt::Debug for OpenOffice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOffice").finish_non_exhaustive()
    }
}

impl Command {
    fn is_of_producer(&self) -> bool {
        matches!(self, Command::Retain(_) | Command::Weigh(_))
    }
}

/// Why a command was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("too many requests are waiting for the MQTT loop; try again")]
    Full,
    #[error("the MQTT loop has stopped")]
    Stopped,
}

/// Sends commands to the loop, from any thread.
#[derive(Debug, Clone)]
pub struct CommandSender {
    queue: SyncSender<Command>,
    of_producers: Arc<AtomicUsize>,
    waker: Arc<LoopWaker>,
}

/// The loop's end of the queue.
#[derive(Debug)]
pub struct Commands {
    queue: Receiver<Command>,
    /// The commands of producers in the queue, and those that are about to be queued.
    of_producers: Arc<AtomicUsize>,
    /// The command that [`Self::is_empty`] took from the queue.
    next: Option<Command>,
}

/// Creates both ends of the queue.
pub fn queue(waker: Arc<LoopWaker>) -> (CommandSender, Commands) {
    let (queue, receiver) = sync_channel(QUEUED_MAX);
    let of_producers = Arc::<AtomicUsize>::default();
    let commands = Commands {
        queue: receiver,
        of_producers: Arc::clone(&of_producers),
        next: None,
    };
    let sender = CommandSender {
        queue,
        of_producers,
        waker,
    };
    (sender, commands)
}

impl CommandSender {
    /// Queues a command and wakes the loop.
    ///
    /// # Errors
    /// The queue is full or the loop has ended. The command is dropped, and with it the channel for the answer.
    pub fn ask(&self, command: Command) -> Result<(), AskError> {
        if command.is_of_producer() {
            self.ask_for_producer(command)?;
        } else {
            self.send(command)?;
        }
        self.waker.wake();
        Ok(())
    }

    fn ask_for_producer(&self, command: Command) -> Result<(), AskError> {
        let before = self.of_producers.fetch_add(1, Ordering::Relaxed);
        let sent = if before < OF_PRODUCERS_MAX {
            self.send(command)
        } else {
            Err(AskError::Full)
        };
        if sent.is_err() {
            self.of_producers.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }

    fn send(&self, command: Command) -> Result<(), AskError> {
        self.queue.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => AskError::Full,
            TrySendError::Disconnected(_) => AskError::Stopped,
        })
    }

    /// Stops the loop.
    pub fn stop(&self) {
        self.tell(Command::Stop);
    }

    /// Queues a command that is not left out. Waits for room in the queue, which the loop empties in each turn.
    pub fn tell(&self, command: Command) {
        // An error means that the loop has already ended.
        let _ = self.queue.send(command);
        self.waker.wake();
    }
}

impl Commands {
    /// The next command; `Stop` when all senders are gone.
    pub fn take(&mut self) -> Option<Command> {
        self.next.take().or_else(|| self.receive())
    }

    /// Whether no command is waiting.
    pub fn is_empty(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.receive();
        }
        self.next.is_none()
    }

    fn receive(&self) -> Option<Command> {
        match self.queue.try_recv() {
            Ok(command) => {
                if command.is_of_producer() {
                    self.of_producers.fetch_sub(1, Ordering::Relaxed);
                }
                Some(command)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use mio::{Poll, Token, Waker};

    use super::*;

    fn weigh() -> Command {
        Command::Weigh(WeighRequest {
            topics: Vec::new(),
            answer: tokio::sync::oneshot::channel().0,
        })
    }

    #[test]
    fn producers_leave_room_for_operators() {
        let poll = Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("a waker");
        let (sender, mut commands) = queue(Arc::new(LoopWaker::new(waker)));
        for _ in 0..OF_PRODUCERS_MAX {
            sender.ask(weigh()).expect("there is room");
        }
        for _ in 0..100 {
            assert_eq!(sender.ask(weigh()), Err(AskError::Full));
        }
        for _ in OF_PRODUCERS_MAX..QUEUED_MAX {
            sender.ask(Command::Drain(None)).expect("there is room");
        }
        assert_eq!(sender.ask(Command::Drain(None)), Err(AskError::Full));
        assert!(matches!(commands.take(), Some(Command::Weigh(_))));
        sender.ask(weigh()).expect("there is room again");
        while commands.take().is_some() {}
        for _ in 0..OF_PRODUCERS_MAX {
            sender.ask(weigh()).expect("there is room for as many");
        }
    }

    #[test]
    fn a_full_queue_is_told_to_who_asks_and_a_gone_loop_as_well() {
        let poll = Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("a waker");
        let (sender, mut commands) = queue(Arc::new(LoopWaker::new(waker)));
        assert!(commands.is_empty());
        for _ in 0..QUEUED_MAX {
            sender.ask(Command::Stop).expect("there is room");
        }
        assert_eq!(sender.ask(Command::Stop), Err(AskError::Full));
        assert!(!commands.is_empty());
        for _ in 0..QUEUED_MAX {
            assert!(matches!(commands.take(), Some(Command::Stop)));
        }
        assert!(commands.take().is_none(), "looking takes nothing away");
        drop(commands);
        assert_eq!(sender.ask(Command::Stop), Err(AskError::Stopped));
    }
}
