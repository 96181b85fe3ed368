//! What each client uses, charged to the account of its user. Whoever changes a usage reports it here, and asks here
//! before it grows.

use std::sync::Arc;

use headwater_log::RecordView;
use headwater_mqtt::{Connect, ReasonCode};

use crate::auth::Rights;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::retained::{RecordRef, Retained, RetainedEntry, bytes_of};
use crate::engine::routing::position::Refusal;
use crate::engine::routing::topics::TopicId;
use crate::engine::session::Session;
use crate::engine::session::connection::Will;
use crate::engine::shared_groups::is_shared;
use crate::engine::{ConnKey, Engine, SessionKey};

use super::session_bytes::OverLimit;
use super::{AccountId, Kind};

impl Engine {
    /// Why a client is refused because of what its user or tenant already uses.
    pub(in crate::engine) fn refusal_by_quotas(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
        of: Option<&Arc<Rights>>,
    ) -> Option<ReasonCode> {
        let rights = of?;
        let account = self.quotas.open(rights.user(), rights.tenant());
        let held = self.clients.by_id(connect.client_id);
        let held = held.filter(|session| session.account == Some(account));
        // An earlier connection of the client makes room for this one and has the same session.
        let replaces = held.is_some_and(|session| session.conn.is_some());
        let is_stored = held.is_some_and(|session| session.stored);
        let lasts = self.expiry_of(connect) > 0;
        let is_over = |kind: &Kind| match kind {
            Kind::Connections => !replaces && !self.quotas.allows(account, *kind, 1),
            _ => lasts && !is_stored && !self.quotas.allows(account, *kind, 1),
        };
        let over = [Kind::Connections, Kind::Sessions]
            .into_iter()
            .find(is_over);
        self.quotas.close(account);
        let kind = over?;
        self.observe.turn_metrics.sessions_refused += u64::from(kind == Kind::Sessions);
        self.audit_connect(key, connect.client_id, of, kind.reason());
        Some(ReasonCode::QuotaExceeded)
    }

    /// Charges a session with everything it has to the account of its current user.
    pub(in crate::engine) fn charge_session(
        &mut self,
        key: SessionKey,
        rights: Option<&Arc<Rights>>,
    ) {
        let account = rights.map(|rights| self.quotas.open(rights.user(), rights.tenant()));
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut session.account, account);
        if before == account {
            // The account was opened a second time.
            return self.close_account(account);
        }
        let sessions = u64::from(session.stored);
        let subscriptions = session.subscriptions.len() as u64;
        let bytes = session.extras.counted_bytes;
        let groups: Vec<GroupId> = session.groups().to_vec();
        for group in groups {
            self.quotas.join(account, group);
            self.quotas.leave(before, group);
        }
        for (kind, count) in [
            (Kind::Sessions, sessions),
            (Kind::Subscriptions, subscriptions),
            (Kind::SessionBytes, bytes),
        ] {
            self.quotas.add(account, kind, count);
            self.quotas.remove(before, kind, count);
        }
        self.close_account(before);
    }

    /// Charges all sessions again: restored sessions get their owner once the rights are known, and a user's tenant may
    /// have changed.
    pub(in crate::engine) fn charge_all(&mut self) {
        let keys: Vec<SessionKey> = self.clients.sessions.keys().collect();
        for key in keys {
            let session = self.clients.session(key);
            let rights = session.and_then(|session| session.rights.clone());
            self.charge_session(key, rights.as_ref());
        }
    }

    pub(super) fn close_account(&mut self, account: Option<AccountId>) {
        if let Some(account) = account {
            self.quotas.close(account);
        }
    }

    /// A session is gone; its groups and its stored state were discharged before.
    pub(in crate::engine) fn discharge_session(&mut self, session: &Session) {
        let subscriptions = session.subscriptions.len() as u64;
        self.quotas
            .remove(session.account, Kind::Subscriptions, subscriptions);
        let bytes = session.extras.counted_bytes;
        self.quotas.session_bytes -= bytes;
        self.quotas
            .remove(session.account, Kind::SessionBytes, bytes);
        self.close_account(session.account);
    }

    /// The state store holds a session, or no longer holds it.
    pub(in crate::engine) fn note_stored(&mut self, account: Option<AccountId>, is_stored: bool) {
        if is_stored {
            self.quotas.stored_sessions += 1;
            self.quotas.add(account, Kind::Sessions, 1);
        } else {
            self.quotas.stored_sessions -= 1;
            self.quotas.remove(account, Kind::Sessions, 1);
        }
    }

    pub(in crate::engine) fn discharge_connection(&mut self, account: Option<AccountId>) {
        self.quotas.remove(account, Kind::Connections, 1);
    }

    /// Why one more subscription is refused, if it is.
    pub(in crate::engine) fn check_quotas(
        &mut self,
        key: SessionKey,
        filter: &str,
    ) -> Result<(), Refusal> {
        let Some(session) = self.clients.session(key) else {
            return Ok(());
        };
        if session.subscription(filter).is_some() {
            return Ok(());
        }
        let refuse = |sentence: String| {
            Err(Refusal {
                reason: ReasonCode::QuotaExceeded,
                sentence,
            })
        };
        let (total_max, members_max) = (
            self.env.settings.mqtt.max_total_subscriptions as usize,
            self.env.settings.mqtt.max_shared_members as usize,
        );
        if self.routing.router.len() + self.groups.members() >= total_max {
            return refuse(format!(
                "the broker keeps at most {total_max} subscriptions"
            ));
        }
        let shared = is_shared(filter);
        if shared && self.groups.members() >= members_max {
            return refuse(format!(
                "the broker keeps at most {members_max} members of shared groups"
            ));
        }
        let over_bytes = self.filter_over(session, filter);
        if over_bytes == Some(OverLimit::All) {
            let bytes_max = self.env.settings.mqtt.max_session_bytes.0;
            return refuse(format!(
                "the broker keeps at most {bytes_max} bytes of filters and wills for all sessions"
            ));
        }
        let Some(account) = session.account else {
            return Ok(());
        };
        let is_over = !self.quotas.allows(account, Kind::Subscriptions, 1);
        let over = is_over.then_some(Kind::Subscriptions).or_else(|| {
            let group = || self.groups.by_name(&self.group_name(key, filter));
            shared.then(|| self.quotas.refuses_member(account, group()))?
        });
        let over = over.or_else(|| over_bytes.map(|_| Kind::SessionBytes));
        let Some(kind) = over else { return Ok(()) };
        let conn = session.conn;
        self.note_over_quota(conn, "subscribe", kind);
        refuse(format!(
            "this exceeds a quota of the user or its tenant ({})",
            kind.reason()
        ))
    }

    /// Audits a refusal because of a quota.
    fn note_over_quota(&self, key: Option<ConnKey>, act: &'static str, kind: Kind) {
        if let Some(key) = key {
            self.audit(key, act, kind.reason());
        }
    }

    /// Whether one more topic exceeds a quota of the client's user.
    pub(in crate::engine) fn is_topic_over_quota(&mut self, key: ConnKey, name: &str) -> bool {
        if !self.quotas.is_used() || self.routing.topics.holds(name) {
            return false;
        }
        self.quotas.begin_table(self.routing.topics.generation());
        let Some(account) = self.clients.conn(key).and_then(|conn| conn.account) else {
            return false;
        };
        let is_over = !self.quotas.allows(account, Kind::Topics, 1);
        if is_over {
            self.note_over_quota(Some(key), "publish", Kind::Topics);
        }
        is_over
    }

    /// A client added a topic to the table.
    pub(in crate::engine) fn charge_topic(&mut self, key: ConnKey) {
        if self.quotas.is_used() {
            self.quotas.begin_table(self.routing.topics.generation());
            let account = self.clients.conn(key).and_then(|conn| conn.account);
            self.quotas.add(account, Kind::Topics, 1);
        }
    }

    /// Whether a retained message exceeds a quota of its publisher.
    pub(in crate::engine) fn is_retained_over_quota(
        &self,
        key: ConnKey,
        id: TopicId,
        bytes: usize,
    ) -> bool {
        let account = self.clients.conn(key).and_then(|conn| conn.account);
        let (Some(account), Some(topic)) = (account, self.routing.topics.get(id)) else {
            return false;
        };
        let entry = self.retained.lock().entry_of(&topic.name);
        let held = entry.and_then(|entry| Some((entry.account?, entry.bytes)));
        let bytes = bytes_of(&topic.name, bytes);
        let over = self
            .quotas
            .refuses_retained(account, &topic.name, bytes, held);
        if let Some(kind) = over {
            self.note_over_quota(Some(key), "publish", kind);
        }
        over.is_some()
    }

    /// A retained message is on its way into the log.
    pub(in crate::engine) fn claim_retained(
        &mut self,
        account: AccountId,
        id: TopicId,
        bytes: usize,
    ) {
        let Some(topic) = self.routing.topics.get(id) else {
            return;
        };
        let entry = self.retained.lock().entry_of(&topic.name);
        let held = entry.and_then(|entry| Some((entry.account?, entry.bytes)));
        let bytes = bytes_of(&topic.name, bytes);
        let now_ms = self.env.now.mono_ms;
        self.quotas.claim(account, &topic.name, bytes, held, now_ms);
    }

    /// Whether a will is published with its retain flag: over a quota it is published without it.
    pub(in crate::engine) fn may_retain(
        &mut self,
        account: Option<AccountId>,
        will: &Will,
    ) -> bool {
        let (Some(account), true) = (account, will.retain && !will.payload.is_empty()) else {
            return will.retain;
        };
        let entry = self.retained.lock().entry_of(&will.topic);
        let held = entry.and_then(|entry| Some((entry.account?, entry.bytes)));
        let bytes = bytes_of(&will.topic, will.payload.len());
        let over = self
            .quotas
            .refuses_retained(account, &will.topic, bytes, held);
        if over.is_some() {
            self.observe.turn_metrics.retained_refused += 1;
            return false;
        }
        let now_ms = self.env.now.mono_ms;
        self.quotas.claim(account, &will.topic, bytes, held, now_ms);
        true
    }

    /// Applies a record with the retain flag, charged to its publisher's account. Returns the entry it replaced.
    pub(in crate::engine) fn apply_retained(
        &mut self,
        retained: &mut Retained,
        record: &RecordView<'_>,
        partition: PartitionIndex,
    ) -> Option<RetainedEntry> {
        if !self.quotas.is_used() {
            return retained.apply(record, partition);
        }
        let before = retained.entry_of(record.topic);
        let account = if record.payload.is_empty() {
            None
        } else {
            self.quotas.settle(record.topic)
        };
        let replaced = retained.apply(record, partition);
        let at = RecordRef::new(partition, record.offset);
        match retained.charge(record.topic, at, account) {
            // The value exists already; its bytes count from now on.
            Some(bytes) => self.quotas.add(account, Kind::RetainedBytes, bytes),
            None => self.quotas.remove(account, Kind::Retained, 1),
        }
        let now = retained.entry_of(record.topic);
        if let Some(before) = before.filter(|before| now.is_none_or(|now| now.at != before.at)) {
            self.quotas
                .remove(before.account, Kind::RetainedBytes, before.bytes);
            self.quotas.remove(before.account, Kind::Retained, 1);
        }
        replaced
    }
}
