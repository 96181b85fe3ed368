//! Sends the deliveries in the window: those left unacknowledged by an earlier connection again, with DUP and the same
//! packet ids, and those that were only assigned a packet id for the first time.

use headwater_log::{Offset, RecordView};
use headwater_mqtt::{PacketId, QoS, ReasonCode, encode};

use crate::auth::Access;
use crate::engine::delivery::encode::{Form, Written, write};
use crate::engine::delivery::is_passing;
use crate::engine::delivery::matches::effective_for;
use crate::engine::delivery::sender::Delivered;
use crate::engine::ids::Waiter;
use crate::engine::observe::Count;
use crate::engine::retained::RecordRef;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::Session;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::shared_groups::Groups;
use crate::engine::{ConnKey, SessionKey};

use super::CatchingUp;
use super::read_retry::Recent;
use super::readers::Progress;
use super::send_retained::OwnedRecord;

impl CatchingUp<'_> {
    /// Sends the deliveries left unacknowledged by an earlier connection again, with the same packet ids.
    pub(super) fn resend(&mut self, key: SessionKey, conn: ConnKey, steps: &mut usize) -> Progress {
        let mut recent = Recent::default();
        loop {
            let Some(session) = self.clients.session_mut(key) else {
                return Progress::NoRoom;
            };
            let Some(from) = session.resend else {
                return Progress::Finished;
            };
            let Some((packet_id, sent, flight)) = session.window.unacked_from(from.get()).next()
            else {
                session.resend = None;
                return Progress::Finished;
            };
            if *steps == 0 {
                return Progress::Unfinished;
            }
            if session.window.unacked_before(packet_id) >= usize::from(session.window_max) {
                // The client may have a smaller receive maximum than on the connection before.
                return Progress::NoRoom;
            }
            *steps -= 1;
            let following = session
                .window
                .unacked_from(packet_id)
                .nth(1)
                .map(|(id, _, _)| id);
            let after = session.window.after(packet_id);
            let delivered = match flight {
                // Never sent; the commit wakes the session. Later deliveries may need its room in the window, so it
                // goes first.
                InflightState::Assigned if !self.is_assigned_durably(key, packet_id) => {
                    Delivered::NoRoom
                }
                InflightState::Assigned => self.send_first(key, conn, packet_id, &mut recent),
                InflightState::AwaitsPubcomp => {
                    if self.store.is_settled(after) {
                        self.send_pubrel(conn, packet_id);
                    }
                    Delivered::Sent
                }
                _ => self.send_entry(key, conn, packet_id, sent, flight, &mut recent),
            };
            if delivered == Delivered::NoRoom {
                return Progress::NoRoom;
            }
            if let Some(session) = self.clients.session_mut(key) {
                session.resend = following.and_then(PacketId::new);
            }
        }
    }

    fn send_pubrel(&mut self, key: ConnKey, packet_id: u16) {
        if let (Some(id), Some(conn)) = (PacketId::new(packet_id), self.clients.writer(key)) {
            encode::pubrel(&mut conn.out, conn.version, id, ReasonCode::Success, &[]);
            self.observe.count(Count::PacketsSent, 1);
        }
    }

    /// Sends an entry of the window: for the first time if it was only assigned, otherwise with DUP.
    pub(super) fn send_entry(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        packet_id: u16,
        sent: Inflight,
        flight: InflightState,
        recent: &mut Recent,
    ) -> Delivered {
        let (batch, stored) = match self.read_one((sent.partition, sent.offset), recent) {
            Ok(Some(batch)) => (Some(batch), None),
            Ok(None) => (None, self.stored_value_of(sent)),
            Err(error) if is_passing(&error) => {
                return self.retry_later(Waiter::Session(key), &error);
            }
            Err(_) => (None, self.stored_value_of(sent)),
        };
        let record = match (&batch, &stored) {
            (Some(batch), _) => {
                Some(batch.record((sent.offset.0 - batch.base_offset().0) as usize))
            }
            (None, Some(stored)) => Some(stored.view()),
            (None, None) => None,
        };
        self.send_record(key, conn_key, packet_id, sent, flight, record.as_ref())
    }

    /// A retained message whose segment is gone.
    fn stored_value_of(&self, sent: Inflight) -> Option<OwnedRecord> {
        if sent.source != Source::Retained {
            return None;
        }
        let at = RecordRef::new(sent.partition, sent.offset);
        let topic = self.retained.lock().stored_at(at)?;
        self.stored_retained(&topic)
    }

    fn send_record(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        packet_id: u16,
        sent: Inflight,
        flight: InflightState,
        record: Option<&RecordView<'_>>,
    ) -> Delivered {
        let room = self.clients.send_budget.room(self.env);
        let Some((session, conn)) = self.clients.pair(key, conn_key) else {
            return Delivered::Skipped;
        };
        if conn.lacks_room(room) {
            return Delivered::NoRoom;
        }
        // The rights may have been revoked since the first sending.
        let access = match sent.source {
            Source::Replay(_) => Access::Replay,
            _ => Access::Receive,
        };
        let record = record.filter(|record| session.may(access, record.topic));
        let is_first = flight == InflightState::Assigned;
        let written = record.map(|record| {
            let effective = effective_for_sent(session, self.groups, key, record.topic, sent);
            let form = Form {
                qos: if flight.is_qos2() {
                    QoS::ExactlyOnce
                } else {
                    QoS::AtLeastOnce
                },
                retain: sent.source == Source::Retained
                    || (effective.retain_as_published && record.retain),
                dup: !is_first,
                effective: &effective,
                uses_aliases: false,
                batch: None,
            };
            write(conn, record, sent.partition, &form, self.env)
        });
        if let (Some(record), Some(Written::Sent(packet, base))) = (record, written)
            && let Some(id) = PacketId::new(packet_id)
        {
            packet.set_packet_id(&mut conn.out[base..], id);
            self.observe.count(Count::Deliveries, u64::from(!is_first));
            // An entry restored from the state store does not have this flag yet.
            if !sent.receipt && session.is_commanded_by(record.topic) {
                session.window.note_receipt(packet_id);
                let receipt = true;
                session.note_command(packet_id, Inflight { receipt, ..sent }, record);
            }
            self.clients.touch(conn_key);
            return Delivered::Sent;
        }
        // Expired, removed or too large: it will never be acknowledged.
        session.window.finish(packet_id);
        session.outbound_changed |= session.stored && flight.is_qos2();
        self.groups.settle(sent, flight.is_qos2());
        Delivered::Skipped
    }
}

/// The current options of the subscriptions that a delivery came from; the defaults if they are gone.
fn effective_for_sent(
    session: &Session,
    groups: &Groups,
    key: SessionKey,
    topic: &str,
    sent: Inflight,
) -> EffectiveOptions {
    let of = |at, replay| effective_for(session, topic, sent.partition, at, replay);
    let effective = match sent.source {
        Source::Cursor => of(sent.offset, None),
        Source::Retained => of(Offset(u64::MAX), None),
        // A replay that was dropped: the subscription goes on with the session's own cursor.
        Source::Replay(number) => of(sent.offset, session.replay(number).map(|_| number)),
        Source::Shared(id) => groups
            .get(id)
            .and_then(|group| group.effective_of(key))
            .cloned(),
        Source::Moved | Source::Unattached => None,
    };
    effective.unwrap_or_else(|| EffectiveOptions::of(std::iter::empty()))
}
