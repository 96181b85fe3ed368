//! From received bytes to handled packets.
//!
//! Keeps incomplete packets, and pauses reading when a limit requires it: a full append queue, the global budget of
//! unparsed bytes, or too many pending acknowledgements. Each kind of packet is handled in a file of its own.

use std::sync::Arc;

use headwater_mqtt::packet::{self, Packet, kind};
use headwater_mqtt::{Frame, ReasonCode, encode, frame};

use parking_lot::Mutex;

use crate::auth::Denied;
use crate::engine::ConnKey;
use crate::engine::catch_up::CatchUp;
use crate::engine::clients::Clients;
use crate::engine::delivery::Delivery;
use crate::engine::delivery::replies::{PENDING_REPLIES_MAX, Replies};
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;
use crate::engine::ingest::Ingest;
use crate::engine::lifecycle::Lifecycle;
use crate::engine::lifecycle::tick::CHECKPOINT_MS;
use crate::engine::observe::{Count, Observe};
use crate::engine::qos2::{Acknowledging, Qos2};
use crate::engine::quotas::Quotas;
use crate::engine::retained::Retained;
use crate::engine::routing::Routing;
use crate::engine::routing::work::PacketCost;
use crate::engine::session::connection::Phase;
use crate::engine::session::pauses::Pause;
use crate::engine::session_store::Store;
use crate::engine::shared_groups::Groups;

use super::Protocol;
use super::publish::{Publishing, WORK_PAUSE_MS};
use super::subscribe::Subscribing;

/// How the event loop is to read a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadPlan {
    /// Into the shared buffer, after the bytes that the connection held; with them at most `bytes_max`.
    Shared { held: Vec<u8>, bytes_max: usize },
    /// Into the connection's own buffer ([`Engine::held_mut`]), which has room for the rest of a large packet.
    Own { wanted: usize },
    /// Not now. The connection is named by `take_resumed` when it may be read again.
    Wait,
}

/// Packets up to this size are received in the shared buffer, and only their beginning is kept: a connection may always
/// hold this much. A larger packet is received in its own buffer, within the budget.
const OWN_BUFFER_MIN: usize = 64 << 10;
/// The largest packet in an exchange of AUTH packets before the CONNACK. A larger one would use the budget, which is
/// reserved for admitted clients.
const AUTH_PACKET_BYTES_MAX: usize = 32 << 10;

/// What to do after a packet.
enum Step {
    Next,
    /// The packet stays unparsed and reading is paused.
    Pause,
}

/// Packets at work: each may concern every owner.
pub struct Receiving<'a> {
    pub env: &'a Env,
    pub protocol: &'a mut Protocol,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub delivery: &'a mut Delivery,
    pub catch_up: &'a mut CatchUp,
    pub qos2: &'a mut Qos2,
    pub groups: &'a mut Groups,
    pub retained: &'a Arc<Mutex<Retained>>,
    pub store: &'a mut Store,
    pub quotas: &'a mut Quotas,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Receiving<'_> {
    /// Closes a connection; what follows from that is done when the step ends.
    pub(super) fn close(&mut self, key: ConnKey, cause: Cause) {
        self.clients.close(key, cause, self.env, self.effects);
    }

    /// Closes a connection as a step of its own.
    pub(super) fn close_now(&mut self, key: ConnKey, cause: Cause) {
        self.close(key, cause);
        self.drain();
    }

    #[inline]
    fn drain(&mut self) {
        if !self.effects.is_empty() {
            lend!(self => Lifecycle).drain();
        }
    }

    /// Whether and how a readable connection is to be read.
    pub fn read_plan(&mut self, key: ConnKey) -> ReadPlan {
        let is_scarce = self.clients.is_budget_scarce()
            || self.env.settings.mqtt.limits_rate()
            || self.clients.was_costly(self.env)
            || self.ingest.is_any_stalled();
        let room = self.clients.send_budget.room(self.env);
        let Some(conn) = self.clients.conn_mut(key) else {
            return ReadPlan::Wait;
        };
        if conn.acks.len() > PENDING_REPLIES_MAX {
            self.observe.pause(conn, Pause::Acks);
        }
        if conn.out_len() > room {
            self.observe.pause(conn, Pause::Out);
        }
        if conn.phase == Phase::Closed || conn.pauses.is_paused() {
            return ReadPlan::Wait;
        }
        if let Some(unparsed) = conn.unparsed.present_mut()
            && unparsed.needs > OWN_BUFFER_MIN
        {
            let wanted = unparsed.needs.saturating_sub(unparsed.bytes.len());
            if !self.clients.reserve(key, self.env, self.observe) {
                return ReadPlan::Wait;
            }
            return ReadPlan::Own {
                wanted: wanted.max(1),
            };
        }
        // Only larger packets have reserved room.
        let held = conn.unparsed.take().bytes;
        // The bytes read now may have to be kept whole: behind a full queue, or before a packet without room.
        let bytes_max = if is_scarce {
            held.len().max(OWN_BUFFER_MIN - 1) + 1
        } else {
            usize::MAX
        };
        ReadPlan::Shared { held, bytes_max }
    }

    /// Parses the connection's own buffer: after a read into it, or when a pause ends. Returns whether the connection
    /// may be read.
    pub fn receive_held(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.clients.conn_mut(key) else {
            return false;
        };
        conn.last_read_ms = self.env.now.mono_ms;
        if conn.unparsed.bytes.len() < conn.unparsed.needs {
            return true;
        }
        let unparsed = conn.unparsed.take();
        self.clients.give_back(unparsed.reserved);
        self.receive(key, &unparsed.bytes, true);
        self.clients
            .conn(key)
            .is_some_and(|conn| conn.phase != Phase::Closed && !conn.pauses.is_paused())
    }

    /// Handles the packets in `bytes` and keeps an incomplete rest. `is_news` if some bytes were just received.
    pub fn receive(&mut self, key: ConnKey, bytes: &[u8], is_news: bool) {
        let before = self.observe.counted(Count::PublishesReceived);
        self.routing.take_work();
        self.handle_packets(key, bytes, is_news);
        self.drain();
        let received_messages = self.observe.counted(Count::PublishesReceived) - before;
        if received_messages > 0 {
            self.clients.count_messages(key, received_messages);
        }
    }

    fn handle_packets(&mut self, key: ConnKey, bytes: &[u8], is_news: bool) {
        let mut at = 0;
        let bytes_max = self.env.settings.mqtt.max_packet_bytes.as_usize();
        let size_max_in = |phase| match phase {
            Phase::Authenticating => bytes_max.min(AUTH_PACKET_BYTES_MAX),
            _ => bytes_max,
        };
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        let mut phase = conn.phase;
        if is_news {
            conn.last_read_ms = self.env.now.mono_ms;
        }
        while phase != Phase::Closed {
            let rest = &bytes[at..];
            if phase == Phase::Open && rest.first().is_some_and(|byte| byte >> 4 == kind::PUBLISH) {
                let run = lend!(self => Publishing).run(key, rest);
                self.drain();
                at += run.bytes;
                if let Some(size) = run.waits {
                    return self.hold(key, &bytes[at..], size);
                }
                if run.bytes > 0 {
                    phase = self.phase_of(key);
                    continue;
                }
            }
            match frame::next(rest, size_max_in(phase)) {
                Ok(Frame::Whole {
                    first_byte,
                    header_len,
                    total_len,
                }) => {
                    let Some(body) = rest.get(header_len..total_len) else {
                        return;
                    };
                    if self.env.settings.mqtt.limits_rate()
                        && self.clients.is_over_rate(
                            key,
                            (first_byte, total_len),
                            self.env,
                            self.observe,
                        )
                    {
                        return self.hold(key, rest, total_len);
                    }
                    if self.waits_to_store(key, first_byte) || self.waits_for_others(key, phase) {
                        return self.hold(key, rest, total_len);
                    }
                    let step = self.handle(key, first_byte, body);
                    self.drain();
                    match step {
                        Step::Next => {
                            self.observe.count(Count::PacketsReceived, 1);
                            at += total_len;
                        }
                        Step::Pause => {
                            self.hold(key, rest, total_len);
                            if !self.protocol.charge_waiting(self.clients, key, self.env) {
                                self.deny_connect(key, "", Denied::Busy);
                            }
                            return;
                        }
                    }
                    phase = self.phase_of(key);
                }
                Ok(Frame::Incomplete { needed_total }) => {
                    if !rest.is_empty() {
                        self.hold(key, rest, needed_total.unwrap_or(0));
                    }
                    return;
                }
                Err(error) => return self.close(key, Cause::Protocol(error)),
            }
        }
    }

    /// Whether the packets of this read have cost so much that the other ones wait for the next turn.
    fn waits_for_others(&mut self, key: ConnKey, phase: Phase) -> bool {
        if phase != Phase::Open || !self.routing.has_read_enough() {
            return false;
        }
        let due_ms = self.env.now.mono_ms + WORK_PAUSE_MS;
        self.clients
            .pause_for_work(key, due_ms, self.env, self.observe);
        true
    }

    /// Charges a packet with filters.
    fn charge_filters(&mut self, key: ConnKey, packet: usize) {
        let session = self.clients.attached(key);
        let session = session.map_or(0, |(_, session)| session.subscriptions.len());
        self.routing
            .charge_packet(PacketCost::Filters { packet, session });
    }

    /// Whether a change of subscriptions has to wait, because much was stored of the session just now: until that is
    /// durable, and while too much was stored for its tenant.
    fn waits_to_store(&mut self, key: ConnKey, first_byte: u8) -> bool {
        if !matches!(first_byte >> 4, kind::SUBSCRIBE | kind::UNSUBSCRIBE) {
            return false;
        }
        let Some((session_key, session)) = self.clients.attached(key) else {
            return false;
        };
        let (bytes, account) = (session.stored_bytes(), session.account);
        if bytes == 0 || !self.store.counts_next(session_key, bytes) {
            return false;
        }
        let now_ms = self.env.now.mono_ms;
        if let Some(due_ms) = self.quotas.stores_again_at(account, now_ms) {
            // A small session has a little stored again after each checkpoint.
            let due_ms = due_ms.min(now_ms + CHECKPOINT_MS);
            self.clients
                .pause_for_work(key, due_ms, self.env, self.observe);
            return true;
        }
        let Some(until) = self.store.pending_value(session_key) else {
            return false;
        };
        self.clients.pause_for_state(key, self.env);
        let commit = self.ingest.state_written(until);
        self.ingest.watch(commit, key);
        true
    }

    fn phase_of(&self, key: ConnKey) -> Phase {
        let conn = self.clients.conn(key);
        conn.map_or(Phase::Closed, |conn| conn.phase)
    }

    /// Keeps bytes that cannot be handled yet.
    fn hold(&mut self, key: ConnKey, bytes: &[u8], needs: usize) {
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        let unparsed = &mut *conn.unparsed;
        unparsed.bytes.clear();
        unparsed.bytes.reserve_exact(bytes.len());
        unparsed.bytes.extend_from_slice(bytes);
        unparsed.needs = needs;
    }

    #[inline]
    fn handle(&mut self, key: ConnKey, first_byte: u8, body: &[u8]) -> Step {
        let Some(conn) = self.clients.conn_mut(key) else {
            return Step::Next;
        };
        if conn.phase == Phase::New {
            return if self.handle_connect(key, first_byte, body) {
                Step::Next
            } else {
                Step::Pause
            };
        }
        let version = conn.version;
        if conn.phase == Phase::Authenticating
            && !matches!(first_byte >> 4, kind::AUTH | kind::DISCONNECT)
        {
            self.close(key, Cause::Reason(ReasonCode::ProtocolError));
            return Step::Next;
        }
        if first_byte >> 4 == kind::PUBACK
            && let Some(packet_id) = packet::ack::plain(first_byte, body)
        {
            self.routing.charge_packet(PacketCost::Usual);
            lend!(self => Acknowledging).puback(key, packet_id);
            return Step::Next;
        }
        self.routing.charge_packet(PacketCost::Other);
        match packet::decode(version, first_byte, body) {
            Ok(packet) => self.handle_other(key, packet),
            Err(error) => self.close(key, Cause::Protocol(error)),
        }
        Step::Next
    }

    fn handle_other(&mut self, key: ConnKey, packet: Packet<'_>) {
        match packet {
            Packet::Publish(_) => unreachable!("publishes are handled in runs"),
            Packet::Puback(ack) => lend!(self => Acknowledging).puback(key, ack.packet_id),
            Packet::Subscribe(packet) => {
                self.charge_filters(key, packet.subscriptions.iter().count());
                lend!(self => Subscribing).subscribe(key, &packet);
            }
            Packet::Unsubscribe(packet) => {
                self.charge_filters(key, packet.filters.iter().count());
                lend!(self => Subscribing).unsubscribe(key, &packet);
            }
            Packet::Pingreq => lend!(self => Replies).write_packet(key, encode::pingresp),
            Packet::Disconnect(disconnect) => {
                lend!(self => Lifecycle).handle_disconnect(key, &disconnect)
            }
            Packet::Pubrel(ack) => lend!(self => Acknowledging).pubrel(key, ack.packet_id),
            Packet::Pubrec(ack) => lend!(self => Acknowledging).pubrec(key, &ack),
            Packet::Pubcomp(ack) => lend!(self => Acknowledging).pubcomp(key, ack.packet_id),
            Packet::Auth(auth) => self.handle_auth(key, &auth),
        }
    }
}
