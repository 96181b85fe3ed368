//! What other threads ask of the loop: a bounded queue into it, and answers that the asker waits for elsewhere.
//!
//! A sender never waits for room: a full queue is told to who asks. The loop takes a few commands each turn, and
//! each is bounded work, so that asking never stalls connections.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use crate::engine::{ClientsRequest, Drain, RetainRequest};

use super::LoopWaker;

/// Commands that may wait for a turn of the loop.
const QUEUED_MAX: usize = 64;
/// Commands that the loop takes in one turn.
pub(super) const TAKEN_MAX: usize = 4;

/// What is asked of the loop.
#[derive(Debug)]
pub enum Command {
    /// Close every connection and end the thread.
    Stop,
    /// About the clients of this broker.
    Clients(ClientsRequest),
    /// Retained messages that a producer over Flight is about to append.
    Retain(RetainRequest),
    /// Send clients away and let nobody in, or end that.
    Drain(Option<Drain>),
}

/// Why a command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("too many requests wait for the MQTT loop, try again")]
    Full,
    #[error("the MQTT loop has stopped")]
    Stopped,
}

/// The way into the loop, for any thread.
#[derive(Debug, Clone)]
pub struct CommandSender {
    queue: SyncSender<Command>,
    waker: Arc<LoopWaker>,
}

/// The loop's end of the queue.
#[derive(Debug)]
pub struct Commands {
    queue: Receiver<Command>,
    /// Taken off the queue to see whether there is one.
    next: Option<Command>,
}

/// Both ends.
pub fn queue(waker: Arc<LoopWaker>) -> (CommandSender, Commands) {
    let (queue, receiver) = sync_channel(QUEUED_MAX);
    let commands = Commands {
        queue: receiver,
        next: None,
    };
    (CommandSender { queue, waker }, commands)
}

impl CommandSender {
    /// Puts a command into the queue and makes the loop look.
    ///
    /// # Errors
    /// When the queue is full or the loop has ended; then the command is dropped, and with it the way to answer.
    pub fn ask(&self, command: Command) -> Result<(), AskError> {
        self.queue.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => AskError::Full,
            TrySendError::Disconnected(_) => AskError::Stopped,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// Ends the loop. Waits for room in the queue, which the loop makes each turn.
    pub fn stop(&self) {
        // An error means that the loop has ended already.
        let _ = self.queue.send(Command::Stop);
        self.waker.wake();
    }
}

impl Commands {
    /// The next command. When nobody can ask any more, the loop has to stop.
    pub fn take(&mut self) -> Option<Command> {
        self.next.take().or_else(|| self.receive())
    }

    /// Whether a command waits.
    pub fn is_empty(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.receive();
        }
        self.next.is_none()
    }

    fn receive(&self) -> Option<Command> {
        match self.queue.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use mio::{Poll, Token, Waker};

    use super::*;

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
