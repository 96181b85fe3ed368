//! Sends one record to one session: what the live stream, groups, catch-up and retained messages have in common.

use headwater_log::{Batch, RecordView};
use headwater_mqtt::{PacketId, QoS};

use crate::engine::clients::Clients;
use crate::engine::env::Env;
use crate::engine::ids::PartitionIndex;
use crate::engine::observe::{Count, Observe};
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::Session;
use crate::engine::session::window::{Inflight, InflightState, Source};
use crate::engine::session_store::Store;
use crate::engine::shared_groups::Groups;
use crate::engine::{ConnKey, SessionKey};

use super::encode::{Form, Payload, Written, write};
use super::template::payload_of;

/// The result of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    Sent,
    /// The window or the out buffer is full.
    NoRoom,
    /// Not for this subscriber: expired, or its own message.
    Skipped,
    /// Larger than the client's Maximum Packet Size.
    TooLarge,
}

/// One record on its way to one session.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    pub record: &'a RecordView<'a>,
    /// The batch that holds the record, if its payload may be sent from there.
    pub batch: Option<&'a Batch>,
    pub partition: PartitionIndex,
    pub effective: &'a EffectiveOptions,
    pub source: Source,
    /// Sets the retain flag regardless of the subscription.
    pub retain: bool,
}

/// To encode one subscription identifier takes as long as to copy so many bytes.
pub const ID_COST: usize = 128;
/// The look-ups for one delivery that is encoded by itself take as long as to copy so many bytes.
const DELIVERY_COST: usize = 1 << 10;
/// Bytes of a packet beside its topic and payload, if it has few properties.
const HEAD_BYTES: usize = 32;

impl Packet<'_> {
    /// About what is copied to the buffer of a connection.
    fn copied_bytes(&self) -> usize {
        let payload = match payload_of(self.record) {
            Payload::Shared if self.batch.is_some() => 0,
            Payload::Shared | Payload::Copied => self.record.payload.len(),
        };
        HEAD_BYTES + self.record.topic.len() + payload
    }

    /// The entry for the window; none for QoS 0. An error says why the record is not sent now.
    #[inline]
    fn inflight(&self, session: &Session, qos: QoS) -> Result<Option<Inflight>, Delivered> {
        if qos == QoS::AtMostOnce {
            return Ok(None);
        }
        let (partition, offset) = (self.partition, self.record.offset);
        if qos == QoS::ExactlyOnce && session.has_assigned(self.source, partition, offset) {
            return Err(Delivered::Skipped);
        }
        if session.window.room(session.window_max) == 0 {
            return Err(Delivered::NoRoom);
        }
        Ok(Some(Inflight {
            offset,
            partition,
            source: self.source,
            receipt: session.is_commanded_by(self.record.topic),
        }))
    }
}

/// Sends records to sessions, and gives those of groups to members.
pub struct Sender<'a> {
    pub env: &'a Env,
    pub groups: &'a mut Groups,
    pub clients: &'a mut Clients,
    pub store: &'a mut Store,
    pub observe: &'a mut Observe,
}

impl Sender<'_> {
    /// Encodes one record for one session into its connection's out buffer. With QoS 2, a session that outlives its
    /// connection only gets the packet id now.
    pub fn deliver(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        packet: &Packet<'_>,
    ) -> Delivered {
        let (record, effective) = (packet.record, packet.effective);
        let room = self.clients.send_budget.room(self.env);
        let Some((session, conn)) = self.clients.pair(key, conn_key) else {
            return Delivered::Skipped;
        };
        if effective.no_local && *record.client_id == *session.client_id {
            return Delivered::Skipped;
        }
        let qos = QoS::from_u8(record.qos).map_or(effective.qos, |qos| qos.min(effective.qos));
        let sent = match packet.inflight(session, qos) {
            Ok(sent) => sent,
            Err(delivered) => return delivered,
        };
        if let (QoS::ExactlyOnce, true, Some(sent)) = (qos, session.stored, sent) {
            let packet_id = self.store.assign(key, session, sent);
            session.note_command(packet_id, sent, record);
            return Delivered::Sent;
        }
        if conn.lacks_room(room) {
            return Delivered::NoRoom;
        }
        conn.reserve_out(packet.copied_bytes(), room);
        let form = Form {
            qos,
            retain: packet.retain || (effective.retain_as_published && record.retain),
            dup: false,
            effective,
            uses_aliases: true,
            batch: packet.batch,
        };
        let (layout, base) = match write(conn, record, packet.partition, &form, self.env) {
            Written::Sent(layout, base) => (layout, base),
            Written::Expired => return Delivered::Skipped,
            Written::TooLarge => {
                // A shared group may have another member that accepts it.
                if !matches!(packet.source, Source::Shared(_)) {
                    self.observe.count(Count::DeliveriesDropped, 1);
                }
                return Delivered::TooLarge;
            }
        };
        if let Some(sent) = sent {
            let packet_id = session.window.push(sent, InflightState::sent(qos));
            session.note_command(packet_id, sent, record);
            if let Some(id) = PacketId::new(packet_id) {
                layout.set_packet_id(&mut conn.out[base..], id);
            }
        }
        conn.traffic.sent_messages += 1;
        let ids = effective.ids.as_ref().map_or(0, |ids| ids.len());
        let copied = conn.out.len() - base + ids * ID_COST + DELIVERY_COST;
        self.clients.send_budget.note_copied(copied);
        self.observe
            .count(Count::PublishSentBytes, record.payload.len() as u64);
        self.observe.count(Count::Deliveries, 1);
        self.clients.touch(conn_key);
        Delivered::Sent
    }
}
