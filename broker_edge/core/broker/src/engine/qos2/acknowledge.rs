//! PUBACK from a client. Only its packet id gets here: a refused delivery counts as acknowledged, so `protocol/receive`
//! drops the reason code.

use headwater_mqtt::{PacketId, ReasonCode};

use crate::engine::ConnKey;
use crate::engine::ingest::own::OwnRecords;

use super::Acknowledging;

impl Acknowledging<'_> {
    /// A client acknowledged a delivery.
    #[inline]
    pub fn puback(&mut self, key: ConnKey, packet_id: PacketId) {
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        let Some(sent) = session.window.ack(packet_id.get()) else {
            if session.window.flight(packet_id.get()).is_some() {
                self.close(key, ReasonCode::ProtocolError);
            }
            return;
        };
        if !session.extras.replays.is_empty() {
            session.drop_finished_replays();
        }
        if session.stored || sent.receipt {
            self.store.note_dirty(session_key, session);
        }
        let wakes = session.has_work() || session.is_member();
        if sent.receipt {
            lend!(self => OwnRecords).append_receipt(session_key, packet_id.get(), sent);
        }
        if wakes {
            self.groups.settle(sent, false);
            self.wake(session_key);
        }
    }
}
