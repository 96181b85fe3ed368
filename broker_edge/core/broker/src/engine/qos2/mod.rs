//! Acknowledgements of both directions, and the packet ids of QoS 2 in use over all sessions.

mod acknowledge;
mod inbound;
mod outbound;
mod settle;

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use headwater_log::failpoint;
use headwater_mqtt::ReasonCode;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::catch_up::CatchUp;
use super::clients::Clients;
use super::effects::{Cause, Effects};
use super::env::Env;
use super::ids::{Commit, CommitSeq, PartitionIndex, Waiter};
use super::ingest::Ingest;
use super::observe::Observe;
use super::quotas::{AccountId, Quotas};
use super::routing::Routing;
use super::session::Session;
use super::session::received::InboundId;
use super::session_store::Store;
use super::shared_groups::Groups;
use super::{ConnKey, SessionKey};

/// Limit for all sessions together: it bounds the memory that clients can use with publishes that they never release.
pub const IDS_IN_USE_MAX: usize = 1 << 20;

/// How long the counts per tenant stay valid.
const SHARES_MS: u64 = 200;

/// Packet ids in use per tenant, stored for each account of its users, as last counted.
#[derive(Debug, Default)]
struct TenantIdCounts {
    due_ms: u64,
    by_account: FxHashMap<AccountId, usize>,
}

#[derive(Default)]
pub struct Qos2 {
    /// Commands that clients have received and whose receipts are not durable yet; bounded by the windows.
    receipted: Vec<(SessionKey, u16)>,
    /// PUBRELs that wait until their PUBRECs are durable, oldest first.
    releases: VecDeque<(CommitSeq, SessionKey, u16)>,
    /// Packet ids of publishes in use.
    ids_in_use: usize,
    tenant_id_counts: TenantIdCounts,
}

/// What clients and the broker acknowledge to each other.
pub struct Acknowledging<'a> {
    pub env: &'a Env,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub ingest: &'a mut Ingest,
    pub qos2: &'a mut Qos2,
    pub groups: &'a mut Groups,
    pub store: &'a mut Store,
    pub catch_up: &'a mut CatchUp,
    pub observe: &'a mut Observe,
    pub effects: &'a mut Effects,
}

impl Acknowledging<'_> {
    fn close(&mut self, key: ConnKey, reason: ReasonCode) {
        let cause = Cause::Reason(reason);
        self.clients.close(key, cause, self.env, self.effects);
    }

    /// The window of a session has changed: it may have room for more.
    fn wake(&mut self, key: SessionKey) {
        let waiter = Waiter::Session(key);
        self.catch_up.wake(waiter, self.clients, self.groups);
    }
}

impl Qos2 {
    /// So many packet ids were in use before the start.
    pub fn restore(&mut self, ids_in_use: usize) {
        self.ids_in_use = ids_in_use;
    }

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
            for (_, session) in clients.sessions() {
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
            // It is not about one topic.
            let what = ("publish", "quota:packet_ids");
            clients.refused(key, None, what, None, env);
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

    /// The client has released a packet id, and may be told after this commit.
    fn free(&mut self, session: &mut Session, packet_id: u16, after: CommitSeq) {
        let received = &mut session.qos2_inbound;
        received.is_changed = session.stored;
        received.released_in = after;
        self.ids_in_use -= usize::from(received.held.remove(&packet_id).is_some());
    }

    /// The log refused the records of an append: their packet ids are free, except those that a publish in a later
    /// append has taken.
    pub fn free_refused(
        &mut self,
        append: Commit,
        refused: Vec<(SessionKey, u16)>,
        clients: &mut Clients,
    ) {
        for (key, packet_id) in refused {
            let session = clients.session_mut(key);
            let received = session.and_then(|session| session.qos2_inbound.present_mut());
            if let Some(received) = received
                && let Entry::Occupied(held) = received.held.entry(packet_id)
                && held.get().record == Some(append)
            {
                held.remove();
                self.ids_in_use -= 1;
            }
        }
    }

    /// A partition has stopped. The packet ids of records that were not durable are freed in this process; otherwise a
    /// later refusal would count them as settled and their publishes as acknowledged. A restart recovers the ids of
    /// records that did reach the disk.
    pub fn free_abandoned(
        &mut self,
        partition: PartitionIndex,
        ingest: &Ingest,
        clients: &mut Clients,
    ) {
        let is_abandoned = |held: &InboundId| {
            held.record
                .is_some_and(|of| of.partition == partition && !ingest.is_settled(of))
        };
        let has_abandoned =
            |session: &Session| session.qos2_inbound.held.values().any(is_abandoned);
        let sessions = clients.sessions();
        let holders: Vec<SessionKey> = sessions
            .filter(|(_, session)| has_abandoned(session))
            .map(|(key, _)| key)
            .collect();
        for key in holders {
            if let Some(session) = clients.session_mut(key) {
                let held = &mut session.qos2_inbound.held;
                let before = held.len();
                held.retain(|_, held| !is_abandoned(held));
                self.ids_in_use -= before - held.len();
            }
        }
    }

    /// Forgets the packet ids of a session that ends.
    pub fn forget(&mut self, session: &Session) {
        self.ids_in_use -= session.qos2_inbound.held.len();
    }
}
