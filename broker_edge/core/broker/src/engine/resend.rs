//! Deliveries that an earlier connection of a session left unacknowledged: sent again, with DUP and the same packet ids.

use headwater_log::Offset;
use headwater_mqtt::{PacketId, QoS};

use super::catch_up::{Progress, merged_for};
use super::deliver::{Delivered, extra_properties, format_place, offset_topic};
use super::encode::{self, Form};
use super::session::Session;
use super::topics::Merged;
use super::unread::is_passing;
use super::window::{Sent, Source};
use super::{ConnKey, Engine, SessionKey};

impl Engine {
    /// Sends again, with the same packet ids, what an earlier connection left unacknowledged.
    pub(super) fn resend(&mut self, key: SessionKey, conn: ConnKey, steps: &mut usize) -> Progress {
        loop {
            let Some(session) = self.sessions.get_mut(key) else {
                return Progress::NoRoom;
            };
            let Some(from) = session.resend else {
                return Progress::Finished;
            };
            let Some((packet_id, sent)) = session.window.unacked_from(from).next() else {
                session.resend = None;
                return Progress::Finished;
            };
            if *steps == 0 {
                return Progress::Unfinished;
            }
            if session.window.unacked_before(packet_id) >= usize::from(session.window_max) {
                // The client may take fewer at a time than on the connection before.
                return Progress::NoRoom;
            }
            *steps -= 1;
            let following = session
                .window
                .unacked_from(packet_id)
                .nth(1)
                .map(|(id, _)| id);
            if self.resend_one(key, conn, packet_id, sent) == Delivered::NoRoom {
                return Progress::NoRoom;
            }
            if let Some(session) = self.sessions.get_mut(key) {
                session.resend = following;
            }
        }
    }

    fn resend_one(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        packet_id: u16,
        sent: Sent,
    ) -> Delivered {
        let now_us = self.now.wall_us;
        let read = match self.read_one(sent.partition, sent.offset) {
            Ok(read) => read,
            Err(error) if is_passing(&error) => return self.retry_later(key, &error),
            Err(_) => None,
        };
        let (Some(session), Some(conn)) =
            (self.sessions.get_mut(key), self.conns.get_mut(conn_key))
        else {
            return Delivered::Skipped;
        };
        if conn.out_len() >= self.settings.out_buffer_bytes {
            conn.wake_when_drained = true;
            return Delivered::NoRoom;
        }
        let base = conn.out.len();
        let stage = &self.stages[sent.partition.index()];
        let packet = read.and_then(|(batch, index)| {
            let record = batch.record(index);
            let merged = merged_for_sent(session, record.topic, sent);
            let place = format_place(stage, &record, &merged);
            let extra = if conn.is_v5() {
                extra_properties(&record, &merged, &place)
            } else {
                Vec::new()
            };
            let at_topic = offset_topic(&record, &merged, &place);
            let form = Form {
                version: conn.version,
                qos: QoS::AtLeastOnce,
                retain: sent.source == Source::Retained
                    || (merged.retain_as_published && record.retain),
                dup: true,
                topic: at_topic.as_deref(),
                extra: &extra,
            };
            encode::record(&mut conn.out, &record, form, now_us)
        });
        match (packet, PacketId::new(packet_id)) {
            (Some(packet), Some(id)) if packet.total_len <= conn.packet_max as usize => {
                packet.set_packet_id(&mut conn.out[base..], id);
                self.tally.deliveries += 1;
                self.touch(conn_key);
                Delivered::Sent
            }
            // Expired or removed since: nobody will acknowledge it.
            _ => {
                conn.out.truncate(base);
                session.window.ack(packet_id);
                Delivered::Skipped
            }
        }
    }
}

/// What the subscriptions that a delivery came from ask for now; nothing special when they are gone.
fn merged_for_sent(session: &Session, topic: &str, sent: Sent) -> Merged {
    let (only, at) = match sent.source {
        Source::Cursor => (None, sent.offset),
        Source::Retained => (None, Offset(u64::MAX)),
        Source::Replay(number) => {
            let replay = session
                .replays
                .iter()
                .find(|replay| replay.number == number);
            (replay.map(|replay| &*replay.filter), sent.offset)
        }
    };
    merged_for(session, topic, sent.partition, at, only)
        .unwrap_or_else(|| Merged::of(std::iter::empty()))
}
