//! Sends the deliveries in the window: those left unacknowledged by an earlier connection again, with DUP and the same
//! packet ids, and those that were only assigned a packet id for the first time.

use headwater_log::{Batch, Offset, ReadError, RecordView};
use headwater_mqtt::{PacketId, QoS};

use crate::auth::Access;
use crate::engine::delivery::deliver::{Delivered, extra_properties, format_offset, offset_topic};
use crate::engine::delivery::encode::{self, Payload, PublishOptions};
use crate::engine::ids::PartitionIndex;
use crate::engine::retained::RecordRef;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::session::{Command, Session};
use crate::engine::shared_groups::Groups;
use crate::engine::{ConnKey, Engine, SessionKey};

use super::read_retry::is_passing;
use super::readers::{Progress, effective_for};
use super::send_retained::OwnedRecord;

impl Engine {
    /// Sends the deliveries left unacknowledged by an earlier connection again, with the same packet ids.
    pub(in crate::engine) fn resend(
        &mut self,
        key: SessionKey,
        conn: ConnKey,
        steps: &mut usize,
    ) -> Progress {
        let mut recent = None;
        loop {
            let Some(session) = self.clients.session_mut(key) else {
                return Progress::NoRoom;
            };
            let Some(from) = session.resend else {
                return Progress::Finished;
            };
            let Some((packet_id, sent, flight)) = session.window.unacked_from(from).next() else {
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
            match flight {
                // Never sent. Later deliveries may need its room in the window, so it goes first.
                InflightState::Assigned => {
                    if !self.is_assigned_durably(key, packet_id) {
                        // The commit wakes the session.
                        return Progress::NoRoom;
                    }
                    let sent = self.send_first(key, conn, packet_id, &mut recent);
                    if sent == Delivered::NoRoom {
                        return Progress::NoRoom;
                    }
                }
                InflightState::AwaitsPubcomp => {
                    let waits = session
                        .extras
                        .releases
                        .iter()
                        .any(|(_, id)| *id == packet_id);
                    if !waits {
                        self.write_pubrel(conn, packet_id);
                    }
                }
                _ => {
                    let sent = self.send_entry(key, conn, packet_id, sent, flight, &mut recent);
                    if sent == Delivered::NoRoom {
                        return Progress::NoRoom;
                    }
                }
            }
            if let Some(session) = self.clients.session_mut(key) {
                session.resend = following;
            }
        }
    }

    /// Sends an entry of the window: for the first time if it was only assigned, otherwise with DUP.
    pub(in crate::engine) fn send_entry(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        packet_id: u16,
        sent: Inflight,
        flight: InflightState,
        recent: &mut Option<(PartitionIndex, Batch)>,
    ) -> Delivered {
        let (batch, stored) = match self.batch_of(sent, recent) {
            Ok(Some(batch)) => (Some(batch), None),
            Ok(None) => (None, self.stored_value_of(sent)),
            Err(error) if is_passing(&error) => return self.retry_later(key, &error),
            Err(_) => (None, self.stored_value_of(sent)),
        };
        let record = match (&batch, &stored) {
            (Some(batch), _) => {
                Some(batch.record((sent.offset.0 - batch.base_offset().0) as usize))
            }
            (None, Some(stored)) => Some(stored.view()),
            (None, None) => None,
        };
        let delivered = self.send_record(key, conn_key, packet_id, sent, flight, record.as_ref());
        *recent = batch.map(|batch| (sent.partition, batch));
        delivered
    }

    /// The batch that holds a delivery's record: the one read last, if possible.
    fn batch_of(
        &self,
        sent: Inflight,
        recent: &mut Option<(PartitionIndex, Batch)>,
    ) -> Result<Option<Batch>, ReadError> {
        let offsets = |batch: &Batch| batch.base_offset()..batch.next_offset();
        if let Some((_, batch)) = recent.take().filter(|(partition, batch)| {
            *partition == sent.partition && offsets(batch).contains(&sent.offset)
        }) {
            return Ok(Some(batch));
        }
        let read = self.read_one(sent.partition, sent.offset)?;
        Ok(read.map(|(batch, _)| batch))
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
        let now_us = self.env.now.wall_us;
        let Some((session, conn)) = self.clients.pair(key, conn_key) else {
            return Delivered::Skipped;
        };
        if conn.out_len() >= self.env.settings.mqtt.out_buffer_bytes.as_usize() {
            conn.wake_when_drained = true;
            return Delivered::NoRoom;
        }
        // The rights may have been revoked since the first sending.
        let access = match sent.source {
            Source::Replay(_) => Access::Replay,
            _ => Access::Receive,
        };
        let record = record.filter(|record| session.may(access, record.topic));
        let base = conn.out.len();
        let stage = &self.ingest.stages[sent.partition.index()];
        let packet = record.and_then(|record| {
            let effective = effective_for_sent(session, &self.groups, key, record.topic, sent);
            let place = format_offset(stage, record, &effective);
            let extra = if conn.is_v5() {
                extra_properties(record, &effective, &place)
            } else {
                Vec::new()
            };
            let at_topic = offset_topic(record, &effective, &place);
            let form = PublishOptions {
                version: conn.version,
                qos: if flight.is_qos2() {
                    QoS::ExactlyOnce
                } else {
                    QoS::AtLeastOnce
                },
                retain: sent.source == Source::Retained
                    || (effective.retain_as_published && record.retain),
                dup: flight != InflightState::Assigned,
                topic: at_topic.as_deref(),
                extra: &extra,
            };
            encode::record(&mut conn.out, record, form, Payload::Copied, now_us)
        });
        match (packet, PacketId::new(packet_id)) {
            (Some(packet), Some(id)) if packet.total_len <= conn.packet_max as usize => {
                packet.set_packet_id(&mut conn.out[base..], id);
                self.observe.turn_metrics.deliveries +=
                    u64::from(flight != InflightState::Assigned);
                // An entry restored from the state store does not have this flag yet.
                if let Some(record) = record
                    && !sent.receipt
                    && session.is_commanded_by(record.topic)
                {
                    session.window.note_receipt(packet_id);
                    session.extras.commands.push(Command::of(packet_id, record));
                }
                self.clients.touch(conn_key);
                Delivered::Sent
            }
            // Expired, removed or too large: it will never be acknowledged.
            _ => {
                conn.out.truncate(base);
                session.window.finish(packet_id);
                session.outbound_changed |= session.stored && flight.is_qos2();
                self.settle_shared(sent, flight.is_qos2());
                Delivered::Skipped
            }
        }
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
    let (only, at) = match sent.source {
        Source::Cursor => (None, sent.offset),
        Source::Retained => (None, Offset(u64::MAX)),
        Source::Shared(id) => {
            let effective = groups.get(id).and_then(|group| group.effective_of(key));
            return effective
                .cloned()
                .unwrap_or_else(|| EffectiveOptions::of(std::iter::empty()));
        }
        Source::Moved | Source::Unattached => return EffectiveOptions::of(std::iter::empty()),
        Source::Replay(number) => {
            let replay = session
                .replays
                .iter()
                .find(|replay| replay.number == number);
            (replay.map(|replay| &*replay.filter), sent.offset)
        }
    };
    effective_for(session, topic, sent.partition, at, only)
        .unwrap_or_else(|| EffectiveOptions::of(std::iter::empty()))
}
