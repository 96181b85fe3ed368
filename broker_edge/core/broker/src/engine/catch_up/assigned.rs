//! Sends the QoS 2 deliveries that were only given packet ids, once these are durable.

use crate::engine::delivery::sender::Delivered;
use crate::engine::ids::CommitSeq;
use crate::engine::session::window::InflightState;
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::read_retry::Recent;
use super::readers::Progress;

impl CatchingUp<'_> {
    /// Sends the records whose packet ids are durable.
    pub(super) fn send_assigned(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        let mut recent = Recent::default();
        loop {
            let Some(session) = self.clients.session_mut(key) else {
                return Progress::NoRoom;
            };
            let window = session.window.present_mut();
            let Some((packet_id, after)) = window.and_then(|window| window.next_unsent()) else {
                return Progress::Finished;
            };
            if session.stored && !self.store.is_settled(after) {
                // The commit wakes the session; its other deliveries need not wait.
                return Progress::Finished;
            }
            if *steps == 0 {
                return Progress::Unfinished;
            }
            *steps -= 1;
            if self.send_first(key, conn, packet_id, &mut recent) == Delivered::NoRoom {
                return Progress::NoRoom;
            }
        }
    }

    /// Whether the packet id of an unsent delivery would survive a crash.
    pub(super) fn is_assigned_durably(&self, key: SessionKey, packet_id: u16) -> bool {
        self.clients.session(key).is_none_or(|session| {
            !session.stored || self.store.is_settled(session.window.after(packet_id))
        })
    }

    /// Sends a delivery that has only been assigned its packet id, unless it is done.
    pub(super) fn send_first(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        packet_id: u16,
        recent: &mut Recent,
    ) -> Delivered {
        let flight_of = |this: &Self| this.clients.session(key)?.window.flight(packet_id);
        let mut delivered = Delivered::Skipped;
        if let Some((sent, InflightState::Assigned)) = flight_of(self) {
            delivered =
                self.send_entry(key, conn, packet_id, sent, InflightState::Assigned, recent);
        }
        if delivered != Delivered::NoRoom
            && let Some(session) = self.clients.session_mut(key)
        {
            if let Some((_, InflightState::Assigned)) = session.window.flight(packet_id) {
                let next = InflightState::AwaitsPubrec;
                session.window.advance(packet_id, next, CommitSeq(0));
            }
            session.window.next_unsent();
        }
        delivered
    }
}
