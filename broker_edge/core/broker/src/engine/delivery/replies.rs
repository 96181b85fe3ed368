//! Sends the replies of a connection in the order in which its packets arrived, once what they wait for is durable.

use headwater_log::{Offset, failpoint};
use headwater_mqtt::{PacketId, Property, encode};

use crate::engine::ConnKey;
use crate::engine::clients::Clients;
use crate::engine::effects::{Cause, Effect, Effects};
use crate::engine::env::Env;
use crate::engine::ids::Commit;
use crate::engine::ingest::Ingest;
use crate::engine::observe::{Count, Observe};
use crate::engine::session::ack::{AckKind, Acks, PacketKind, Reply, What};
use crate::engine::session::connection::{Connection, Phase};
use crate::engine::session::pauses::Pause;
use crate::engine::session_store::{CHANGES, Store};

/// A connection with more entries in its FIFO of replies is not read until some have left.
pub const PENDING_REPLIES_MAX: usize = 4096;

/// The replies of connections on their way to the clients.
pub struct Replies<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub ingest: &'a mut Ingest,
    pub store: &'a mut Store,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Replies<'_> {
    /// Sends all ready entries at the front of a connection's FIFO.
    pub fn send_ready(&mut self, key: ConnKey) {
        loop {
            let Some(conn) = self.clients.conn_mut(key) else {
                return;
            };
            if conn.phase != Phase::Open {
                return;
            }
            let (ingest, store) = (&*self.ingest, &*self.store);
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
            self.clients.resume(key, Pause::Acks, self.env);
        }
        // It looks again whether it has to wait.
        self.clients.resume(key, Pause::State, self.env);
    }

    fn send_reply(&mut self, key: ConnKey, reply: Reply) {
        let (acks, offset) = match reply.what {
            What::Acks(acks) => (acks, None),
            What::Located { ack, index, base } => {
                (ack, base.map(|base| base.plus(u64::from(index))))
            }
            What::Packet(kind, bytes) => return self.send_packet(key, kind, &bytes),
            What::Close(reason) => {
                let cause = Cause::Reason(reason);
                return self.clients.close(key, cause, self.env, self.effects);
            }
        };
        self.observe
            .count(Count::PacketsSent, u64::from(acks.count));
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
            self.observe
                .count(Count::PublishesAcknowledged, u64::from(acks.count));
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
        self.observe.count(Count::PacketsSent, 1);
        let Some(conn) = self.clients.writer(key) else {
            return;
        };
        conn.out.extend_from_slice(bytes);
        match kind {
            PacketKind::Connack => {
                if let Some((_, session)) = self.clients.attached(key) {
                    session.active = true;
                }
                self.effects.push(Effect::Activated(key));
            }
            PacketKind::Suback => {
                conn.subacks_pending = conn.subacks_pending.saturating_sub(1);
                self.effects.extend(conn.session.map(Effect::Wake));
            }
            PacketKind::Other => {}
        }
    }

    /// Writes a packet that may leave before the pending acknowledgements, but not before the CONNACK (MQTT-3.2.0-1) and
    /// not behind the DISCONNECT of a connection that is closed.
    pub fn write_packet(&mut self, key: ConnKey, encode: impl FnOnce(&mut Vec<u8>)) {
        let conn = self.clients.conn(key);
        if conn.is_none_or(|conn| conn.phase != Phase::Open) {
            return;
        }
        if !self.clients.has_connack(key) {
            let mut bytes = Vec::new();
            encode(&mut bytes);
            self.queue_packet(key, None, PacketKind::Other, bytes);
        } else if let Some(conn) = self.clients.writer(key) {
            encode(&mut conn.out);
            self.observe.count(Count::PacketsSent, 1);
        }
    }

    /// Queues an encoded packet behind the pending acknowledgements; it leaves once the state record at `after` is
    /// durable.
    pub fn queue_packet(
        &mut self,
        key: ConnKey,
        after: Option<Offset>,
        kind: PacketKind,
        bytes: Vec<u8>,
    ) {
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        let commit = after.map_or(Commit::DURABLE, |end| self.ingest.state_written(end));
        conn.acks.push(commit, What::Packet(kind, bytes.into()));
        if kind == PacketKind::Suback {
            conn.subacks_pending += 1;
        }
        if commit == Commit::DURABLE {
            self.send_ready(key);
        } else {
            self.ingest.watch(commit, key);
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
