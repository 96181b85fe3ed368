//! Deliveries that an earlier connection of a session left unacknowledged: sent again, with DUP and the same packet ids.

use headwater_mqtt::{PacketId, QoS};

use super::catch_up::Progress;
use super::encode::{self, Form};
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
            *steps -= 1;
            let following = session
                .window
                .unacked_from(packet_id)
                .nth(1)
                .map(|(id, _)| id);
            if !self.resend_one(key, conn, packet_id, sent) {
                return Progress::NoRoom;
            }
            if let Some(session) = self.sessions.get_mut(key) {
                session.resend = following;
            }
        }
    }

    /// False when the out buffer is full.
    fn resend_one(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        packet_id: u16,
        sent: Sent,
    ) -> bool {
        let now_us = self.now.wall_us;
        let read = self.read_one(sent.partition, sent.offset);
        let (Some(session), Some(conn)) =
            (self.sessions.get_mut(key), self.conns.get_mut(conn_key))
        else {
            return true;
        };
        if conn.out_len() >= self.settings.out_buffer_bytes {
            conn.wake_when_drained = true;
            return false;
        }
        let base = conn.out.len();
        let packet = read.and_then(|(batch, index)| {
            let record = batch.record(index);
            let retain = sent.source == Source::Retained;
            let form = Form {
                version: conn.version,
                qos: QoS::AtLeastOnce,
                retain,
                dup: true,
                topic: None,
                extra: &[],
            };
            encode::record(&mut conn.out, &record, form, now_us)
        });
        match (packet, PacketId::new(packet_id)) {
            (Some(packet), Some(id)) if packet.total_len <= conn.packet_max as usize => {
                packet.set_packet_id(&mut conn.out[base..], id);
                self.tally.deliveries += 1;
                self.touch(conn_key);
            }
            // Expired or removed since: nobody will acknowledge it.
            _ => {
                conn.out.truncate(base);
                session.window.ack(packet_id);
            }
        }
        true
    }
}
