//! What the event loop asks before a turn: whether one is due, when, and how much there is.

use super::{ConnKey, Engine, Session};

impl Engine {
    pub fn connections(&self) -> usize {
        self.clients.connections_len()
    }

    /// Whether a turn is due although nothing is ready, because bounded work was left over.
    pub fn has_more(&self) -> bool {
        self.effects.has_more()
            || self.has_late()
            || self.groups.runnable() > 0
            || self.clients.has_resumed()
    }

    /// Whether there are sessions that can catch up now.
    pub fn has_late(&self) -> bool {
        self.catch_up.has_late()
    }

    /// Whether the connection's session has more to send than the live stream.
    #[inline]
    pub fn is_catching_up(&self, key: ConnKey) -> bool {
        let session = self.clients.session_of(key);
        session.is_some_and(Session::has_work)
    }

    /// Whether a partition has changed since the engine last checked, so that a turn is due.
    pub fn is_behind_log(&self) -> bool {
        self.delivery.has_due(&self.env)
            || self.ingest.is_settleable(&self.env)
            || self.ingest.has_room_for_waiting()
            || self.store.is_settleable()
            || self.protocol.has_auth_updates()
    }

    /// When the next turn is due at the latest, on the monotonic clock.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.clients.next_due_ms()
    }

    /// Whether the loop should read more sockets first, because the commit would block it for several publishers.
    pub fn will_hold_up_several(&self) -> bool {
        self.ingest.will_hold_up_several(&self.env)
    }
}
