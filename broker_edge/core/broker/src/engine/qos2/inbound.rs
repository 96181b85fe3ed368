//! QoS 2 from clients: the packet ids whose publish is in the log and whose PUBREL has not arrived.
//!
//! A publish with such an id is a repetition: it is answered and not appended. For sessions that outlive their
//! connection the ids survive a crash; see `session_store/received.rs`.

use headwater_log::{PartitionState, failpoint};
use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::{Publish, ReasonCode};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::clients::Clients;
use crate::engine::delivery::replies::Replies;
use crate::engine::effects::Cause;
use crate::engine::env::Env;
use crate::engine::ids::{Commit, CommitSeq, PartitionIndex};
use crate::engine::quotas::{AccountId, Quotas};
use crate::engine::session::Session;
use crate::engine::session::ack::{AckKind, Acks};
use crate::engine::session::received::InboundId;
use crate::engine::session_store::{CHANGES, Store};
use crate::engine::{ConnKey, Engine, SessionKey};

use super::{Acknowledging, Qos2};

/// Limit for all sessions together: it bounds the memory that clients can use with publishes that they never release.
pub(in crate::engine) const IDS_IN_USE_MAX: usize = 1 << 20;

/// How long the counts per tenant stay valid.
const SHARES_MS: u64 = 200;

/// Packet ids in use per tenant, stored for each account of its users, as last counted.
#[derive(Debug, Default)]
pub(in crate::engine) struct TenantIdCounts {
    due_ms: u64,
    by_account: FxHashMap<AccountId, usize>,
}

/// A client repeats a publish when it reconnects. One that repeats it over and over violates the protocol, as in
/// Mosquitto.
const REPEATS_MAX: u8 = 1;

impl Acknowledging<'_> {
    /// Answers a publish whose packet id is in use. Returns false if the id is new.
    pub fn answer_repeated(&mut self, key: ConnKey, publish: &Publish<'_>) -> bool {
        let Some(packet_id) = publish.packet_id.map(|id| id.get()) else {
            return false;
        };
        let Some(conn) = self.clients.conns.get_mut(key) else {
            return true;
        };
        let Some(held) = conn
            .session
            .and_then(|session| self.clients.sessions.get_mut(session))
            .and_then(|session| session.qos2_inbound.held.get_mut(&packet_id))
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
        self.observe.turn_metrics.publishes_repeated += 1;
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

    fn close(&mut self, key: ConnKey, reason: ReasonCode) {
        let cause = Cause::Reason(reason);
        self.clients.close(key, cause, self.env, self.effects);
    }
}

impl Qos2 {
    /// Whether clients use as many packet ids as the broker remembers; from half of the limit on, whether the client's
    /// tenant uses half of them.
    #[inline]
    pub fn holds_too_many(
        &mut self,
        key: ConnKey,
        (clients, quotas): (&Clients, &Quotas),
        env: &Env,
    ) -> bool {
        let held_max = env.settings.ids_in_use_max;
        self.ids_in_use >= held_max / 2
            && (self.ids_in_use >= held_max
                || self.tenant_holds_too_many(key, (clients, quotas), env))
    }

    /// Counts the ids of all tenants from time to time; most brokers never get here.
    #[cold]
    fn tenant_holds_too_many(
        &mut self,
        key: ConnKey,
        (clients, quotas): (&Clients, &Quotas),
        env: &Env,
    ) -> bool {
        let Some(account) = clients.conn(key).and_then(|conn| conn.account) else {
            return false;
        };
        let now_ms = env.now.mono_ms;
        if self.tenant_id_counts.due_ms <= now_ms {
            let mut by_account: FxHashMap<AccountId, usize> = FxHashMap::default();
            for (_, session) in clients.sessions.iter() {
                if let (Some(of), held @ 1..) = (session.account, session.qos2_inbound.held.len()) {
                    *by_account.entry(of).or_default() += held;
                }
            }
            self.tenant_id_counts = TenantIdCounts {
                due_ms: now_ms + SHARES_MS,
                by_account: quotas.by_tenant(by_account),
            };
        }
        let held = self.tenant_id_counts.by_account.get(&account);
        let is_over = held.is_some_and(|held| *held >= env.settings.ids_in_use_max / 2);
        if is_over {
            let what = ("publish", "quota:packet_ids");
            clients.refused(key, None, what, env);
        }
        is_over
    }

    /// A QoS 2 publish of this connection was staged: its packet id is now in use.
    pub fn hold_id(
        &mut self,
        key: ConnKey,
        (packet_id, payload): (u16, &[u8]),
        record: Commit,
        (clients, store): (&mut Clients, &mut Store),
    ) {
        let Some((session_key, session)) = clients.attached(key) else {
            return;
        };
        let received = &mut session.qos2_inbound;
        let held = InboundId {
            record: Some(record),
            counted: Some(key),
            repeats: 0,
            hash: Some(xxh3_64(payload)),
        };
        self.ids_in_use += usize::from(received.held.insert(packet_id, held).is_none());
        failpoint!("qos2-publish-staged");
        if session.stored {
            received.miss(record.partition);
            store.note_unmarked(session_key, received);
        }
    }
}

impl Engine {
    /// The log refused these records: their packet ids are free.
    pub(in crate::engine) fn free_refused(&mut self, refused: Vec<(SessionKey, u16)>) {
        for (key, packet_id) in refused {
            if let Some(session) = self.clients.session_mut(key)
                && session.qos2_inbound.held.remove(&packet_id).is_some()
            {
                self.qos2.ids_in_use -= 1;
            }
        }
    }

    /// A partition has stopped. The packet ids of records that were not durable are freed in this process; otherwise a
    /// later refusal would count them as settled and their publishes as acknowledged. A restart recovers the ids of
    /// records that did reach the disk.
    pub(in crate::engine) fn free_abandoned(&mut self, partition: PartitionIndex) {
        let ingest = &self.ingest;
        let is_abandoned = |held: &InboundId| {
            held.record
                .is_some_and(|of| of.partition == partition && !ingest.is_settled(of))
        };
        let holders: Vec<SessionKey> = self
            .clients
            .sessions
            .iter()
            .filter(|(_, session)| session.qos2_inbound.held.values().any(is_abandoned))
            .map(|(key, _)| key)
            .collect();
        for key in holders {
            if let Some(session) = self.clients.session_mut(key) {
                let held = &mut session.qos2_inbound.held;
                let before = held.len();
                held.retain(|_, held| !is_abandoned(held));
                self.qos2.ids_in_use -= before - held.len();
            }
        }
    }

    pub(in crate::engine) fn handle_pubrel(&mut self, key: ConnKey, ack: &Ack<'_>) {
        let packet_id = ack.packet_id.get();
        let Some((session_key, session)) = self.clients.attached(key) else {
            return;
        };
        // Releasing an unknown id is complete, as in Mosquitto.
        let mut after = session.qos2_inbound.released_in;
        if let Some(held) = session.qos2_inbound.held.get(&packet_id).copied() {
            if !self.ingest.is_acknowledged(&held) {
                // The PUBREC was never sent.
                return self.close(key, Cause::Reason(ReasonCode::ProtocolError));
            }
            after = self.free(session_key, packet_id);
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

    /// The client has released a packet id. Returns the commit after which the client may be told.
    fn free(&mut self, key: SessionKey, packet_id: u16) -> CommitSeq {
        let Some(session) = self.clients.session_mut(key) else {
            return CommitSeq::default();
        };
        let after = self.store.change(key, session);
        session.qos2_inbound.is_changed = session.stored;
        session.qos2_inbound.released_in = after;
        self.qos2.ids_in_use -= usize::from(session.qos2_inbound.held.remove(&packet_id).is_some());
        after
    }

    /// Forgets the packet ids of a session that ends.
    pub(in crate::engine) fn forget_received(&mut self, session: &Session) {
        self.qos2.ids_in_use -= session.qos2_inbound.held.len();
    }
}
