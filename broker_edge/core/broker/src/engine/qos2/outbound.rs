//! QoS 2 to clients: PUBREC, PUBREL and PUBCOMP, and which packet id belongs to which record.
//!
//! For a session that outlives its connection, the assignment of a packet id to its record is durable in the internal
//! partition before the PUBLISH is sent, and the client's PUBREC is durable before the PUBREL. After a crash a record
//! is sent again with the same id, or released, and never with another id. A record that was given an id is not
//! delivered again from a cursor that lags behind.

use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::{PacketId, ReasonCode, encode};

use crate::engine::delivery::replies::Replies;
use crate::engine::ids::CommitSeq;
use crate::engine::ingest::own::OwnRecords;
use crate::engine::session::Session;
use crate::engine::session::window::{Inflight, InflightState};
use crate::engine::{ConnKey, SessionKey};

use super::Acknowledging;

impl Acknowledging<'_> {
    /// A client has received a QoS 2 delivery, or refuses it.
    pub fn pubrec(&mut self, key: ConnKey, ack: &Ack<'_>) {
        let packet_id = ack.packet_id.get();
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        let waits = !self.store.is_settled(session.window.after(packet_id));
        match session.window.flight(packet_id) {
            Some((_, InflightState::AwaitsPubrec)) if ack.reason.is_error() => {
                self.finish(session_key, packet_id);
            }
            Some((sent, InflightState::AwaitsPubrec)) if sent.receipt => {
                self.take_receipt(session_key, packet_id, sent);
            }
            Some((_, InflightState::AwaitsPubrec)) => self.release(session_key, packet_id),
            Some((_, InflightState::AwaitsPubcomp)) if waits => {}
            Some((_, InflightState::AwaitsPubcomp)) => self.write_pubrel(key, packet_id),
            Some(_) => self.close(key, ReasonCode::ProtocolError),
            // As in Mosquitto, an unknown id is released, so that the client can forget it too.
            None if !ack.reason.is_error() => self.write_pubrel(key, packet_id),
            None => {}
        }
    }

    /// A client has received a command: the receipt has to be durable before the command is released.
    fn take_receipt(&mut self, key: SessionKey, packet_id: u16, sent: Inflight) {
        if !self.qos2.receipted.contains(&(key, packet_id)) {
            lend!(self => OwnRecords).append_receipt(key, packet_id, sent);
            self.qos2.receipted.push((key, packet_id));
        }
    }

    /// Releases the commands whose receipts are durable.
    pub fn release_receipted(&mut self) {
        for (key, packet_id) in std::mem::take(&mut self.qos2.receipted) {
            lend!(self => OwnRecords).stage_receipts(key);
            let Some(session) = self.clients.session(key) else {
                continue;
            };
            let Some((sent, InflightState::AwaitsPubrec)) = session.window.flight(packet_id) else {
                continue;
            };
            let waits = session.extras.receipts.iter().any(|receipt| {
                (receipt.partition, receipt.offset) == (sent.partition, sent.offset)
            });
            if waits {
                self.qos2.receipted.push((key, packet_id));
            } else {
                self.release(key, packet_id);
            }
        }
    }

    /// The client has the record: PUBREL is sent once that is durable.
    fn release(&mut self, key: SessionKey, packet_id: u16) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let after = self.store.change(key, session);
        let next = InflightState::AwaitsPubcomp;
        session.window.advance(packet_id, next, after);
        session.outbound_changed = session.stored;
        if after == CommitSeq::default() {
            self.send_pubrel(key, packet_id);
        } else {
            self.qos2.releases.push_back((after, key, packet_id));
        }
    }

    /// Sends the PUBRELs that are due, in the order of their PUBRECs.
    pub fn send_releases(&mut self) {
        while let Some((after, key, packet_id)) = self.qos2.releases.front().copied()
            && self.store.is_settled(after)
        {
            self.qos2.releases.pop_front();
            self.send_pubrel(key, packet_id);
        }
    }

    /// A disconnected client gets its PUBRELs when it is back.
    fn send_pubrel(&mut self, key: SessionKey, packet_id: u16) {
        let session = self.clients.session(key);
        if let Some(conn) = session.and_then(Session::active_conn) {
            self.write_pubrel(conn, packet_id);
        }
    }

    fn write_pubrel(&mut self, key: ConnKey, packet_id: u16) {
        if let (Some(id), Some(conn)) = (PacketId::new(packet_id), self.clients.conn(key)) {
            let version = conn.version;
            lend!(self => Replies).write_packet(key, |out| {
                encode::pubrel(out, version, id, ReasonCode::Success, &[]);
            });
        }
    }

    /// A client has completed a QoS 2 delivery.
    pub fn pubcomp(&mut self, key: ConnKey, packet_id: PacketId) {
        let packet_id = packet_id.get();
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        let is_released = self.store.is_settled(session.window.after(packet_id));
        match session.window.flight(packet_id) {
            Some((_, InflightState::AwaitsPubcomp)) if is_released => {
                self.finish(session_key, packet_id)
            }
            Some(_) => self.close(key, ReasonCode::ProtocolError),
            None => {}
        }
    }

    /// A delivery is done. This need not become durable soon: after a crash its PUBREL is sent once more.
    fn finish(&mut self, key: SessionKey, packet_id: u16) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let ended = session.window.finish(packet_id);
        if let Some(extras) = session.extras.present_mut() {
            extras
                .commands
                .retain(|command| command.packet_id != packet_id);
        }
        if !session.extras.replays.is_empty() {
            session.drop_finished_replays();
        }
        if session.stored {
            session.outbound_changed = true;
            self.store.note_dirty(key, session);
        }
        if let Some(sent) = ended {
            self.groups.settle(sent, true);
        }
        self.wake(key);
    }
}
