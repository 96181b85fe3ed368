//! Whether a client may publish or subscribe, and where a reload of the rights takes effect. `Access` (`auth/mod.rs`)
//! lists the rights; `Access::` finds all checks. Those of wills are in `connect`, `lifecycle/close` and
//! `lifecycle/will`.
//!
//! A session has rights only if the broker knows something about its client, so an open broker pays one branch. Live
//! deliveries are checked when a topic's list of subscribers is built; the list is cached under the epoch of the
//! subscriptions. Publishes are checked once per topic and connection; the auth gate caches the verdict.

use headwater_mqtt::ReasonCode;

use crate::auth::{Access, Proof};
use crate::engine::clients::Clients;
use crate::engine::effects::Cause;
use crate::engine::routing::Routing;
use crate::engine::routing::position::Refusal;
use crate::engine::routing::topics::TopicId;
use crate::engine::{ConnKey, Engine, SessionKey};

use super::Protocol;

impl Protocol {
    /// Whether the client of a connection may publish to a topic.
    #[inline]
    pub(super) fn may_publish(
        &mut self,
        key: ConnKey,
        topic: TopicId,
        (clients, routing): (&Clients, &Routing),
    ) -> bool {
        !self.auth_gate.restricts || self.may_publish_restricted(key, topic, clients, routing)
    }

    fn may_publish_restricted(
        &mut self,
        key: ConnKey,
        id: TopicId,
        clients: &Clients,
        routing: &Routing,
    ) -> bool {
        if let Some(verdict) = self.auth_gate.verdict(key, id) {
            return verdict;
        }
        let (Some(session), Some(topic)) = (clients.session_of(key), routing.topic(id)) else {
            return false;
        };
        let verdict = session.may(Access::Publish, &topic.name);
        self.auth_gate.keep_verdict(key, id, verdict);
        verdict
    }
}

impl Engine {
    /// Whether the client of a session has this access to a topic (a filter, for [`Access::Subscribe`]).
    #[inline]
    pub(in crate::engine) fn may(&self, session: SessionKey, access: Access, topic: &str) -> bool {
        self.clients
            .session(session)
            .is_some_and(|session| session.may(access, topic))
    }

    /// Whether the client of a session may have this access to any topic under a filter.
    fn may_filter(&self, session: SessionKey, access: Access, filter: &str) -> bool {
        self.clients.session(session).is_some_and(|session| {
            let rights = session.rights.as_ref();
            rights.is_none_or(|rights| rights.may_filter(access, filter, Some(&session.client_id)))
        })
    }

    /// Whether the client may subscribe to a filter, or replay what it matches.
    pub(super) fn check_access(
        &self,
        key: SessionKey,
        filter: &str,
        access: Access,
    ) -> Result<(), Refusal> {
        if self.may_filter(key, access, filter) {
            return Ok(());
        }
        let what = match access {
            Access::Replay => "replaying",
            _ => "subscribing to",
        };
        self.env.metrics.auth.subscriptions_denied.inc();
        if let Some(conn) = self.clients.conn_of(key) {
            let what = ("subscribe", "acl");
            self.clients.refused(conn, None, what, &self.env);
        }
        let sentence = format!("{what} this filter is not allowed");
        Err(Refusal::new(ReasonCode::NotAuthorized, sentence))
    }

    /// Takes news from other threads: a newer authority, and answers about credentials.
    pub(in crate::engine) fn take_auth_updates(&mut self) {
        if !self.protocol.auth_gate.has_updates() {
            return;
        }
        if self.protocol.auth_gate.is_old() {
            self.protocol.auth_gate.take_authority();
            self.renew_rights();
        }
        self.protocol.take_answers(&mut self.clients, &self.env);
    }

    /// Gives every session its rights under the new authority, and closes the connections of clients that are no longer
    /// admitted.
    pub(in crate::engine) fn renew_rights(&mut self) {
        let authority = &self.protocol.auth_gate.authority;
        let mut revoked = Vec::new();
        let keys: Vec<SessionKey> = self.clients.sessions.keys().collect();
        for key in keys {
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            let Some(rights) = &session.rights else {
                continue;
            };
            let identity = std::sync::Arc::clone(rights.identity());
            if identity.proof == Proof::Stored {
                session.rights = session.owner().map(|user| authority.stored_rights(user));
            } else if authority.still_admits(&identity) {
                session.rights = self.protocol.auth_gate.rights(identity);
            } else {
                // With these rights a pending will is refused too.
                session.rights = Some(authority.no_rights(&identity));
                revoked.extend(session.conn);
            }
        }
        let auth_gate = &self.protocol.auth_gate;
        self.quotas.renew_tenants(|user| auth_gate.tenant_of(user));
        if !self.protocol.auth_gate.authority.is_open() {
            self.clients.charge_all(&mut self.quotas);
        }
        self.routing.advance();
        self.groups.forget_audiences();
        self.groups.update_all_rights(&self.clients);
        tracing::info!(revoked = revoked.len(), "users and rights were reloaded");
        for key in revoked {
            self.env.metrics.auth.end("revoked");
            self.close_now(key, Cause::Reason(ReasonCode::AdministrativeAction));
        }
    }
}
