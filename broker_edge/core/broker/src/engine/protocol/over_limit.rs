//! Refuses clients and subscriptions that exceed what the broker, a user or its tenant may have.

use headwater_mqtt::{Connect, ReasonCode};

use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::env::Env;
use crate::engine::observe::Gauges;
use crate::engine::quotas::{AccountId, Kind, Quotas};
use crate::engine::routing::Routing;
use crate::engine::routing::position::Refusal;
use crate::engine::shared_groups::{Groups, is_shared};

/// The limit that would be exceeded.
pub enum OverLimit {
    /// That of the broker for all sessions.
    All,
    /// That of the user or its tenant.
    Quota(Kind),
}

/// What clients have, to be compared with the limits.
pub struct Usage<'a> {
    pub env: &'a Env,
    pub clients: &'a Clients,
    pub routing: &'a Routing,
    pub groups: &'a Groups,
    pub quotas: &'a Quotas,
}

impl Usage<'_> {
    /// The same for operators.
    pub fn gauges(&self, is_draining: bool) -> Gauges {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        Gauges {
            connections: count(self.clients.connections_len()),
            sessions: count(self.clients.sessions_len()),
            session_bytes: i64::try_from(self.quotas.session_bytes()).unwrap_or(i64::MAX),
            subscriptions: count(self.routing.subscriptions()),
            send_waiting_bytes: count(self.clients.send_budget.waiting_bytes()),
            shared_groups: count(self.groups.len()),
            draining: i64::from(is_draining),
        }
    }

    /// The limit that a client would exceed, if any.
    pub fn connect_over(
        &self,
        account: Option<AccountId>,
        connect: &Connect<'_>,
    ) -> Option<OverLimit> {
        let (quotas, settings) = (self.quotas, &self.env.settings);
        let held = self.clients.by_id(connect.client_id);
        let lasts = settings.expiry_of(connect) > 0;
        let is_stored = held.is_some_and(|session| session.stored);
        if lasts && !is_stored && quotas.stored_sessions() >= settings.mqtt.max_sessions as usize {
            return Some(OverLimit::All);
        }
        // An earlier connection of the client makes room for this one and has the same session.
        let own = held.filter(|session| session.account == account);
        let replaces = own.is_some_and(|session| session.conn.is_some());
        if !replaces && !quotas.allows(account, Kind::Connections, 1) {
            return Some(OverLimit::Quota(Kind::Connections));
        }
        let is_counted = own.is_some_and(|session| session.stored);
        if lasts && !is_counted && !quotas.allows(account, Kind::Sessions, 1) {
            return Some(OverLimit::Quota(Kind::Sessions));
        }
        self.bytes_over(account, self.clients.growth_by_connect(connect))
    }

    /// The limit that a session would exceed with `more` counted bytes, if any.
    fn bytes_over(&self, account: Option<AccountId>, more: u64) -> Option<OverLimit> {
        let bytes = self.quotas.session_bytes().saturating_add(more);
        if more > 0 && bytes > self.env.settings.mqtt.max_session_bytes.0 {
            return Some(OverLimit::All);
        }
        let is_over = !self.quotas.allows(account, Kind::SessionBytes, more);
        is_over.then_some(OverLimit::Quota(Kind::SessionBytes))
    }

    /// Why one more subscription is refused, if it is.
    pub fn check_quotas(&self, key: SessionKey, filter: &str) -> Result<(), Refusal> {
        let session = self.clients.session(key);
        let Some(session) = session.filter(|session| session.subscription(filter).is_none()) else {
            return Ok(());
        };
        let refuse = |sentence| Err(Refusal::new(ReasonCode::QuotaExceeded, sentence));
        let limits = &self.env.settings.mqtt;
        let (total_max, members_max) = (limits.max_total_subscriptions, limits.max_shared_members);
        let members = self.groups.members();
        if self.routing.subscriptions() + members >= total_max as usize {
            return refuse(format!(
                "the broker keeps at most {total_max} subscriptions"
            ));
        }
        let shared = is_shared(filter);
        if shared && members >= members_max as usize {
            return refuse(format!(
                "the broker keeps at most {members_max} members of shared groups"
            ));
        }
        let account = session.account;
        let more = self.clients.growth_by_filter(session, filter);
        let of_bytes = match self.bytes_over(account, more) {
            Some(OverLimit::All) => {
                let bytes_max = limits.max_session_bytes.0;
                return refuse(format!(
                    "the broker keeps at most {bytes_max} bytes of filters and wills for all sessions"
                ));
            }
            Some(OverLimit::Quota(kind)) => Some(kind),
            None => None,
        };
        let is_over = !self.quotas.allows(account, Kind::Subscriptions, 1);
        let over = is_over.then_some(Kind::Subscriptions).or_else(|| {
            let group = || self.groups.meant(session, filter);
            shared.then(|| self.quotas.refuses_member(account, group()))?
        });
        let Some(kind) = over.or(of_bytes) else {
            return Ok(());
        };
        if let Some(conn) = session.conn {
            let what = ("subscribe", kind.reason());
            let topic = Some(filter);
            self.clients.refused(conn, None, what, topic, self.env);
        }
        refuse(format!(
            "this exceeds a quota of the user or its tenant ({})",
            kind.reason()
        ))
    }
}
