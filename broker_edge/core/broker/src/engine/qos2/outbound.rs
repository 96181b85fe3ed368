//! QoS 2 to clients: PUBREC, PUBREL and PUBCOMP, and which packet id belongs to which record.
//!
//! For a session that outlives its connection, the assignment of a packet id to its record is durable in the internal
//! partition before the PUBLISH is sent, and the client's PUBREC is durable before the PUBREL. After a crash a record
//! is sent again with the same id, or released, and never with another id. A record that was given an id is not
//! delivered again from a cursor that lags behind.

mod stored;

use std::collections::VecDeque;

use headwater_log::{Batch, Offset};
use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::{PacketId, ReasonCode, encode};

use crate::engine::catch_up::readers::Progress;
use crate::engine::delivery::deliver::Delivered;
use crate::engine::effects::Cause;
use crate::engine::ids::{CommitSeq, PartitionIndex};
use crate::engine::session::Session;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::{ConnKey, Engine, SessionKey};

pub fn qos2_outbound_key(client_id: &str) -> String {
    format!("sent/{client_id}")
}

/// The records of one source that have been given packet ids: those in `[from, next)` are not delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub source: Source,
    pub partition: PartitionIndex,
    pub from: Offset,
    pub next: Offset,
}

/// Packet ids with the commits that they wait for, oldest first.
pub type WaitingIds = VecDeque<(CommitSeq, u16)>;

impl Session {
    /// Whether a record was given a packet id before the last restart: then it is in the window or done.
    #[inline]
    pub fn has_assigned(&self, source: Source, partition: PartitionIndex, at: Offset) -> bool {
        self.extras.assigned.iter().any(|range| {
            range.source == source
                && range.partition == partition
                && (range.from..range.next).contains(&at)
        })
    }

    fn note_assigned(&mut self, source: Source, partition: PartitionIndex, at: Offset) {
        if !matches!(source, Source::Cursor | Source::Replay(_)) {
            return;
        }
        let assigned = &mut self.extras.assigned;
        let known = assigned
            .iter_mut()
            .find(|range| range.source == source && range.partition == partition);
        match known {
            Some(range) => range.next = range.next.max(at.plus(1)),
            None => assigned.push(Assigned {
                source,
                partition,
                from: at,
                next: at.plus(1),
            }),
        }
    }

    /// The session gets QoS 2 from here on, after a lower QoS: earlier records may be unacknowledged and have to be
    /// delivered again after a crash.
    pub fn begin_qos2(&mut self, offsets: &[(PartitionIndex, Offset)]) {
        let assigned = self.extras.present_mut().map(|extras| &mut extras.assigned);
        for range in assigned.into_iter().flatten() {
            let found = offsets.iter().find(|(of, _)| *of == range.partition);
            if let (Source::Cursor, Some((_, at))) = (range.source, found) {
                range.from = range.from.max(*at);
            }
        }
    }
}

impl Engine {
    /// Assigns a packet id to a record. The record is sent once that is durable.
    pub(in crate::engine) fn assign(&mut self, key: SessionKey, sent: Inflight) -> u16 {
        let commit_seq = self.change(key);
        let Some(session) = self.clients.session_mut(key) else {
            return 0;
        };
        session.outbound_changed = true;
        session.note_assigned(sent.source, sent.partition, sent.offset);
        let packet_id = session.window.push(sent, InflightState::Assigned);
        session.extras.unsent.push_back((commit_seq, packet_id));
        packet_id
    }

    /// Sends the records whose packet ids are durable.
    pub(in crate::engine) fn send_assigned(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        let settled = self.store.state_commits.settled();
        let mut recent = None;
        loop {
            let Some(session) = self.clients.session(key) else {
                return Progress::NoRoom;
            };
            let Some((commit_seq, packet_id)) = session.extras.unsent.front().copied() else {
                return Progress::Finished;
            };
            if session.stored && commit_seq > settled {
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
    pub(in crate::engine) fn is_assigned_durably(&self, key: SessionKey, packet_id: u16) -> bool {
        let settled = self.store.state_commits.settled();
        self.clients.session(key).is_none_or(|session| {
            let mut unsent = session.extras.unsent.iter();
            !session.stored
                || !unsent.any(|(commit_seq, id)| *id == packet_id && *commit_seq > settled)
        })
    }

    /// Sends a delivery that has only been assigned its packet id, unless it is done.
    pub(in crate::engine) fn send_first(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        packet_id: u16,
        recent: &mut Option<(PartitionIndex, Batch)>,
    ) -> Delivered {
        let flight_of = |engine: &Self| engine.clients.session(key)?.window.flight(packet_id);
        let mut delivered = Delivered::Skipped;
        if let Some((sent, InflightState::Assigned)) = flight_of(self) {
            delivered =
                self.send_entry(key, conn, packet_id, sent, InflightState::Assigned, recent);
        }
        if delivered != Delivered::NoRoom
            && let Some(session) = self.clients.session_mut(key)
        {
            if let Some((_, InflightState::Assigned)) = session.window.flight(packet_id) {
                session
                    .window
                    .advance(packet_id, InflightState::AwaitsPubrec);
            }
            if let Some(extras) = session.extras.present_mut() {
                if extras
                    .unsent
                    .front()
                    .is_some_and(|(_, id)| *id == packet_id)
                {
                    extras.unsent.pop_front();
                } else {
                    extras.unsent.retain(|(_, id)| *id != packet_id);
                }
            }
        }
        delivered
    }

    pub(in crate::engine) fn handle_pubrec(&mut self, key: ConnKey, ack: &Ack<'_>) {
        let packet_id = ack.packet_id.get();
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        match session.window.flight(packet_id) {
            Some((_, InflightState::AwaitsPubrec)) if ack.reason.is_error() => {
                self.finish(session_key, packet_id);
            }
            Some((sent, InflightState::AwaitsPubrec)) if sent.receipt => {
                self.take_receipt(session_key, packet_id, sent);
            }
            Some((_, InflightState::AwaitsPubrec)) => self.release(session_key, packet_id),
            Some((_, InflightState::AwaitsPubcomp)) => {
                let waits = session
                    .extras
                    .releases
                    .iter()
                    .any(|(_, id)| *id == packet_id);
                if !waits {
                    self.write_pubrel(key, packet_id);
                }
            }
            Some(_) => self.close(key, Cause::Reason(ReasonCode::ProtocolError)),
            // As in Mosquitto, an unknown id is released, so that the client can forget it too.
            None if !ack.reason.is_error() => self.write_pubrel(key, packet_id),
            None => {}
        }
    }

    /// A client has received a command: the receipt has to be durable before the command is released.
    fn take_receipt(&mut self, key: SessionKey, packet_id: u16, sent: Inflight) {
        if !self.qos2.receipted.contains(&(key, packet_id)) {
            self.append_receipt(key, packet_id, sent);
            self.qos2.receipted.push((key, packet_id));
        }
    }

    /// Releases the commands whose receipts are durable.
    pub(in crate::engine) fn release_receipted(&mut self) {
        for (key, packet_id) in std::mem::take(&mut self.qos2.receipted) {
            self.stage_receipts(key);
            self.drain();
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
        let commit_seq = self.change(key);
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        session
            .window
            .advance(packet_id, InflightState::AwaitsPubcomp);
        session.outbound_changed = session.stored;
        session.extras.releases.push_back((commit_seq, packet_id));
        if commit_seq == CommitSeq::default() {
            self.send_releases(key);
        }
    }

    /// Sends the PUBRELs that are due, in the order of their PUBRECs.
    pub(in crate::engine) fn send_releases(&mut self, key: SessionKey) {
        let settled = self.store.state_commits.settled();
        loop {
            let Some(session) = self.clients.session_mut(key) else {
                return;
            };
            let Some((commit_seq, packet_id)) = session.extras.releases.front().copied() else {
                return;
            };
            if session.stored && commit_seq > settled {
                return;
            }
            session.extras.releases.pop_front();
            // A disconnected client gets its PUBRELs when it is back.
            if let Some(conn) = session.active_conn() {
                self.write_pubrel(conn, packet_id);
            }
        }
    }

    pub(in crate::engine) fn write_pubrel(&mut self, key: ConnKey, packet_id: u16) {
        if let (Some(id), Some(conn)) = (PacketId::new(packet_id), self.clients.conn(key)) {
            let version = conn.version;
            self.write_packet(key, |out| {
                encode::pubrel(out, version, id, ReasonCode::Success, &[]);
            });
        }
    }

    pub(in crate::engine) fn handle_pubcomp(&mut self, key: ConnKey, ack: &Ack<'_>) {
        let packet_id = ack.packet_id.get();
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        let waits = session
            .extras
            .releases
            .iter()
            .any(|(_, id)| *id == packet_id);
        match session.window.flight(packet_id) {
            Some((_, InflightState::AwaitsPubcomp)) if !waits => {
                self.finish(session_key, packet_id)
            }
            Some(_) => self.close(key, Cause::Reason(ReasonCode::ProtocolError)),
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
        if !session.replays.is_empty() {
            session.drop_finished_replays();
        }
        if session.stored {
            session.outbound_changed = true;
            if !session.dirty {
                session.dirty = true;
                self.store.dirty.push(key);
            }
        }
        if let Some(sent) = ended {
            self.settle_shared(sent, true);
        }
        self.wake_session(key);
    }
}
