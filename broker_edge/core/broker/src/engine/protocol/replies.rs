//! Sends the replies of a connection in the order in which its packets arrived, once what they wait for is durable.

use headwater_log::failpoint;
use headwater_mqtt::{PacketId, Property, encode};

use crate::engine::effects::Cause;
use crate::engine::ids::Commit;
use crate::engine::session::ack::{AckKind, Acks, PacketKind, Reply, What};
use crate::engine::session::connection::{Connection, Phase};
use crate::engine::session::pauses::Pause;
use crate::engine::session_store::CHANGES;
use crate::engine::{ConnKey, Engine};

use super::receive::PENDING_REPLIES_MAX;

impl Engine {
    /// Sends all ready entries at the front of a connection's FIFO.
    pub(in crate::engine) fn send_ready(&mut self, key: ConnKey) {
        loop {
            let Some(conn) = self.clients.conn_mut(key) else {
                return;
            };
            if conn.phase != Phase::Open {
                return;
            }
            let (ingest, store) = (&self.ingest, &self.store);
            let is_settled = |after: Commit| match after.partition {
                CHANGES => store.is_settled(after.seq),
                _ => ingest.is_settled(after),
            };
            let Some(reply) = conn.acks.pop_ready(is_settled) else {
                break;
            };
            self.send_reply(key, reply);
        }
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        conn.acks.shrink();
        if conn.pauses.has(Pause::Acks) && conn.acks.len() < PENDING_REPLIES_MAX / 2 {
            self.clients.resume(key, Pause::Acks, &self.env);
        }
    }

    fn send_reply(&mut self, key: ConnKey, reply: Reply) {
        let (acks, offset) = match reply.what {
            What::Acks(acks) => (acks, None),
            What::Located { ack, index, base } => {
                (ack, base.map(|base| base.plus(u64::from(index))))
            }
            What::Packet(kind, bytes) => return self.send_packet(key, kind, &bytes),
            What::Close(reason) => return self.close(key, Cause::Reason(reason)),
        };
        self.observe.turn_metrics.packets_sent += u64::from(acks.count);
        let of_record = reply.after != Commit::DURABLE && acks.kind != AckKind::Pubcomp;
        match acks.kind {
            AckKind::Pubrec if of_record => {
                failpoint!("qos2-before-pubrec");
            }
            AckKind::Pubcomp => {
                failpoint!("qos2-before-pubcomp");
            }
            AckKind::Puback | AckKind::Pubrec => {}
        }
        if of_record {
            self.observe.turn_metrics.publishes_acknowledged += u64::from(acks.count);
        }
        let Some(conn) = self.clients.writer(key) else {
            return;
        };
        let Some(offset) = offset else {
            return write_acks(conn, acks, &[]);
        };
        let name = self.env.partitions[reply.after.partition.index()].name();
        let user = |key, value| Property::UserProperty { key, value };
        let written = if self.env.settings.ack_written {
            "written"
        } else {
            "synced"
        };
        let place = format!("{name}:{offset}");
        let properties = [
            user("stream-offset", &place),
            user("stream-durability", written),
        ];
        write_acks(conn, acks, &properties);
    }

    fn send_packet(&mut self, key: ConnKey, kind: PacketKind, bytes: &[u8]) {
        self.observe.turn_metrics.packets_sent += 1;
        let Some(conn) = self.clients.writer(key) else {
            return;
        };
        conn.out.extend_from_slice(bytes);
        match kind {
            PacketKind::Connack => self.activate(key),
            PacketKind::Suback => {
                conn.subacks_pending = conn.subacks_pending.saturating_sub(1);
                if let Some(session) = conn.session {
                    self.wake_session(session);
                }
            }
            PacketKind::Other => {}
        }
    }
}

/// Properties that make a packet larger than the client accepts are left out.
#[inline]
fn write_acks(conn: &mut Connection, acks: Acks, properties: &[Property<'_>]) {
    let (version, reason) = (conn.version, acks.reason);
    let encode = match acks.kind {
        AckKind::Puback => encode::puback,
        AckKind::Pubrec => encode::pubrec,
        AckKind::Pubcomp => encode::pubcomp,
    };
    conn.out.reserve(usize::from(acks.count) * 5);
    for id in acks.packet_id..=acks.packet_id + (acks.count - 1) {
        let Some(id) = PacketId::new(id) else {
            continue;
        };
        let start = conn.out.len();
        encode(&mut conn.out, version, id, reason, properties);
        if !properties.is_empty() && conn.out.len() - start > conn.packet_max as usize {
            conn.out.truncate(start);
            encode(&mut conn.out, version, id, reason, &[]);
        }
    }
    // A QoS 2 publish counts until its PUBREL, unless it was refused; an unknown id was never counted.
    if acks.kind == AckKind::Puback || (acks.kind == AckKind::Pubrec && reason.is_error()) {
        conn.publishes_in_flight = conn.publishes_in_flight.saturating_sub(acks.count);
    }
}
