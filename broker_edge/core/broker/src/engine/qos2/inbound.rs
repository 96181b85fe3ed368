//! QoS 2 from clients: repeated PUBLISH, PUBREL and the reason code of PUBCOMP; the packet ids whose publish is in the
//! log and whose PUBREL has not arrived.
//!
//! A publish with such an id is a repetition: it is answered and not appended. For sessions that outlive their
//! connection the ids survive a crash; see `session_store/received.rs`.

use headwater_log::{PartitionState, failpoint};
use headwater_mqtt::{PacketId, Publish, ReasonCode};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::ConnKey;
use crate::engine::delivery::replies::Replies;
use crate::engine::ids::Commit;
use crate::engine::observe::Count;
use crate::engine::session::ack::{AckKind, Acks};
use crate::engine::session_store::CHANGES;

use super::Acknowledging;

/// A client repeats a publish when it reconnects. One that repeats it over and over violates the protocol, as in
/// Mosquitto.
const REPEATS_MAX: u8 = 1;

impl Acknowledging<'_> {
    /// Answers a publish whose packet id is in use. Returns false if the id is new.
    pub fn answer_repeated(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        let Some(packet_id) = publish.packet_id.map(|id| id.get()) else {
            return false;
        };
        let Some((conn, session)) = self.clients.conn_with_session(key) else {
            return true;
        };
        let Some(held) = session.and_then(|session| session.qos2_inbound.held.get_mut(&packet_id))
        else {
            return false;
        };
        if held
            .hash
            .is_some_and(|hash| hash != xxh3_64(publish.payload))
        {
            // A client that uses the packet id for another message has lost its state: as in Mosquitto, the new message
            // is accepted. The old one no longer counts, however long the new one has to wait for room.
            if held.counted.take_if(|of| *of == key).is_some() {
                conn.publishes_in_flight = conn.publishes_in_flight.saturating_sub(1);
            }
            return false;
        }
        self.observe.count(Count::PublishesRepeated, 1);
        if held.counted != Some(key) {
            held.counted = Some(key);
            held.repeats = 0;
            conn.publishes_in_flight = conn.publishes_in_flight.saturating_add(1);
        }
        held.repeats = held.repeats.saturating_add(1);
        if held.repeats > REPEATS_MAX {
            self.close(key, ReasonCode::ProtocolError);
            return true;
        }
        let too_many =
            conn.is_v5() && conn.publishes_in_flight > self.env.settings.mqtt.receive_maximum;
        let ack = Acks::one(AckKind::Pubrec, packet_id, ReasonCode::Success);
        match held
            .record
            .filter(|record| !self.ingest.is_settled(*record))
        {
            Some(record) => {
                let state = self.env.partitions[record.partition.index()].state();
                if matches!(state, PartitionState::Stopped(_)) {
                    self.close(key, ReasonCode::UnspecifiedError);
                    return true;
                }
                self.ingest.watch(record, key);
                conn.acks.push_ack(record, ack);
            }
            None => {
                conn.acks.push_ack(Commit::DURABLE, ack);
                lend!(self => Replies).send_ready(key);
            }
        }
        if too_many {
            self.close(key, ReasonCode::ReceiveMaximumExceeded);
        }
        true
    }

    /// A client has released a packet id.
    pub fn pubrel(&mut self, key: ConnKey, packet_id: PacketId) {
        let packet_id = packet_id.get();
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        // Releasing an unknown id is complete, as in Mosquitto.
        let mut after = session.qos2_inbound.released_in;
        if let Some(held) = session.qos2_inbound.held.get(&packet_id).copied() {
            if !self.ingest.is_acknowledged(&held) {
                // The PUBREC was never sent.
                return self.close(key, ReasonCode::ProtocolError);
            }
            after = self.store.change(session_key, session);
            self.qos2.free(session, packet_id, after);
            if let Some(conn) = self.clients.conn_mut(key)
                && held.counted == Some(key)
            {
                conn.publishes_in_flight = conn.publishes_in_flight.saturating_sub(1);
            }
        }
        if let Some(conn) = self.clients.conn_mut(key) {
            let after = Commit {
                partition: CHANGES,
                seq: after,
            };
            let ack = Acks::one(AckKind::Pubcomp, packet_id, ReasonCode::Success);
            conn.acks.push_ack(after, ack);
            failpoint!("qos2-release-staged");
            lend!(self => Replies).send_ready(key);
        }
    }
}
