//! How many bytes sessions hold for their clients: filters with the names of shared groups, the will (including a
//! delayed one), and the client id. Limits on the number of sessions and subscriptions do not limit memory by
//! themselves.
//!
//! A session is counted again after each change, from its current state; publishes and deliveries count nothing.

use std::sync::Arc;

use headwater_mqtt::packet::connect;
use headwater_mqtt::{Connect, ReasonCode};

use crate::auth::Rights;
use crate::engine::session::Session;
use crate::engine::session::connection::Will;
use crate::engine::{ConnKey, Engine, SessionKey};

use super::{AccountId, Kind};

/// The first bytes of each session are not counted: the limits on sessions and connections bound them. So an ordinary
/// device, with a short will and a few filters, is admitted even when others have used up the bytes for all.
pub(in crate::engine) const UNCOUNTED_BYTES: u64 = 256;

impl Engine {
    /// Counts a session again: its filters or its will may have changed.
    pub(in crate::engine) fn recount_bytes(&mut self, key: SessionKey) {
        let Some(session) = self.clients.session(key) else {
            return;
        };
        let will = self.will_of(session).map_or(0, will_bytes);
        let bytes = counted(session, filter_bytes(session) + will);
        let (account, before) = (session.account, session.extras.counted_bytes);
        if bytes == before {
            return;
        }
        self.quotas.session_bytes = self.quotas.session_bytes - before + bytes;
        self.quotas.add(account, Kind::SessionBytes, bytes);
        self.quotas.remove(account, Kind::SessionBytes, before);
        if let Some(session) = self.clients.session_mut(key) {
            session.extras.counted_bytes = bytes;
            session.extras.trim();
        }
    }

    /// The will of a connected client, or the one that waits for its delay.
    fn will_of<'a>(&'a self, session: &'a Session) -> Option<&'a Will> {
        let waiting = session.offline.as_ref().and_then(|away| away.will.as_ref());
        let conn = session.conn.and_then(|key| self.clients.conn(key));
        waiting
            .map(|(_, will)| &**will)
            .or_else(|| conn?.extras.will.as_deref())
    }

    /// Why a client is refused because of the size of its will or client id, if it is. A session that would not grow is
    /// admitted even when the limit is exceeded.
    pub(in crate::engine) fn refusal_by_bytes(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
        of: Option<&Arc<Rights>>,
    ) -> Option<ReasonCode> {
        let held = self.clients.by_id(connect.client_id);
        let stays = held.filter(|session| !connect.clean_start && session.expiry_s > 0);
        let will = connect.will.as_ref().map_or(0, wanted_bytes);
        let bytes = connect.client_id.len() as u64 + stays.map_or(0, filter_bytes) + will;
        let before = held.map_or(0, |session| session.extras.counted_bytes);
        let more = above_uncounted(bytes).saturating_sub(before);
        if more == 0 {
            return None;
        }
        let account = of.map(|rights| self.quotas.open(rights.user(), rights.tenant()));
        let over = self.bytes_over(account, more);
        self.close_account(account);
        if over? == OverLimit::Quota {
            self.audit_connect(key, connect.client_id, of, Kind::SessionBytes.reason());
        }
        self.observe.turn_metrics.sessions_refused += 1;
        Some(ReasonCode::QuotaExceeded)
    }

    /// The limit that one more filter would exceed, if any.
    pub(super) fn filter_over(&self, session: &Session, filter: &str) -> Option<OverLimit> {
        let will = self.will_of(session).map_or(0, will_bytes);
        let bytes = counted(session, filter_bytes(session) + filter.len() as u64 + will);
        let more = bytes.saturating_sub(session.extras.counted_bytes);
        self.bytes_over(session.account, more)
    }

    fn bytes_over(&self, account: Option<AccountId>, more: u64) -> Option<OverLimit> {
        if more == 0 {
            return None;
        }
        if self.quotas.session_bytes.saturating_add(more)
            > self.env.settings.mqtt.max_session_bytes.0
        {
            return Some(OverLimit::All);
        }
        let allows = |account| self.quotas.allows(account, Kind::SessionBytes, more);
        (!account.is_none_or(allows)).then_some(OverLimit::Quota)
    }
}

/// Which limit would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverLimit {
    /// The limit for all sessions.
    All,
    /// The limit of the user or its tenant.
    Quota,
}

/// The counted bytes of a session with this many bytes besides its client id.
fn counted(session: &Session, bytes: u64) -> u64 {
    above_uncounted(session.client_id.len() as u64 + bytes)
}

fn above_uncounted(bytes: u64) -> u64 {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

fn filter_bytes(session: &Session) -> u64 {
    let held = session.subscriptions.iter();
    held.map(|held| held.filter.len() as u64).sum()
}

fn will_bytes(will: &Will) -> u64 {
    (will.topic.len() + will.payload.len() + will.properties.len()) as u64
}

/// The same for a will that is not accepted yet.
fn wanted_bytes(will: &connect::Will<'_>) -> u64 {
    let mut properties = Vec::new();
    will.properties.copy_forwardable(&mut properties);
    (will.topic.len() + will.payload.len() + properties.len()) as u64
}
