//! What one part of the engine asks of a higher one; `Engine::drain` does it after each step of a turn.

use std::collections::VecDeque;

use headwater_mqtt::{DecodeError, ReasonCode};

use super::ingest::stage::Outcome;
use super::{ConnKey, SessionKey};

/// Why a connection ends.
#[derive(Debug, Clone, Copy)]
pub enum Cause {
    /// The client sent DISCONNECT; its will is dropped.
    Goodbye,
    /// The client sent DISCONNECT and asked for its will to be published.
    GoodbyeWithWill,
    /// The socket is gone.
    Lost,
    /// The broker closes the connection and tells MQTT 5 clients why.
    Reason(ReasonCode),
    /// The client violated the protocol.
    Protocol(DecodeError),
    /// The CONNECT was answered with a refusal.
    Refused,
}

impl Cause {
    /// What an MQTT 5 client is told.
    pub fn reason(&self) -> Option<ReasonCode> {
        match self {
            Self::Reason(reason) => Some(*reason),
            Self::Protocol(error) => Some(error.reason),
            Self::Goodbye | Self::GoodbyeWithWill | Self::Lost | Self::Refused => None,
        }
    }
}

#[derive(Debug)]
pub enum Effect {
    /// The connection is marked as closed and has its DISCONNECT; the rest follows.
    Close(ConnKey, Cause),
    /// The CONNACK of the connection has left: deliveries may begin.
    Activated(ConnKey),
    /// The session may have something to send besides the live stream.
    Wake(SessionKey),
    /// A replay of the session has caught up: that is to be stored.
    Joined(SessionKey),
    /// Records were refused, or accepted and something follows: publishers are told, and go on if they were paused.
    Appended(Outcome),
}

#[derive(Debug, Default)]
pub struct Effects {
    queue: VecDeque<Effect>,
    /// Something stopped at its bound: the next turn must not sleep.
    more: bool,
}

impl Effects {
    /// Begins a turn: what the last one left over is done in this one.
    pub fn begin_turn(&mut self) {
        debug_assert!(self.is_empty(), "the last step was drained");
        self.more = false;
    }

    /// If there is more to do than one turn does, the next turn must not sleep.
    pub fn note_more(&mut self, is_left: bool) {
        self.more |= is_left;
    }

    pub fn has_more(&self) -> bool {
        self.more
    }

    pub fn push(&mut self, effect: Effect) {
        self.queue.push_back(effect);
    }

    pub fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.queue.extend(effects);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Effect> {
        self.queue.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
