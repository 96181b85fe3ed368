//! The beginning of deliveries to a client that was admitted.

use crate::engine::ConnKey;
use crate::engine::ids::Waiter;

use super::Lifecycle;

impl Lifecycle<'_> {
    /// Deliveries may begin: the CONNACK has left.
    pub fn activate(&mut self, key: ConnKey) {
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        // Retransmissions go before anything new.
        if session.resend.is_none() && !session.ends_replays() {
            session.behind.join_live(self.delivery.live());
        }
        let now_ms = self.env.now.mono_ms;
        self.groups
            .arrive(session_key, session, self.delivery.live(), now_ms);
        if !session.subscriptions.is_empty() {
            self.routing.note_session(session_key, session.is_member());
        }
        let waiter = Waiter::Session(session_key);
        self.catch_up.wake(waiter, self.clients, self.groups);
    }
}
