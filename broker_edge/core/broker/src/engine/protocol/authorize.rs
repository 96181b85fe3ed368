//! Whether a client may publish or subscribe, and where a reload of the rights takes effect. `Access` (`auth/mod.rs`)
//! lists the rights; `Access::` finds all checks. Those of wills are in `connect`, `lifecycle/close` and
//! `lifecycle/will`.
//!
//! A session has rights only if the broker knows something about its client, so an open broker pays one branch. Live
//! deliveries are checked when a topic's list of subscribers is built; the list is cached under the epoch of the
//! subscriptions. Publishes are checked once per topic and connection; the auth gate caches the verdict.

use std::sync::Arc;

use headwater_mqtt::ReasonCode;

use crate::auth::{Access, AuthService, Authority, Proof};
use crate::engine::clients::Clients;
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;
use crate::engine::quotas::Quotas;
use crate::engine::routing::Routing;
use crate::engine::routing::position::Refusal;
use crate::engine::routing::topics::TopicId;
use crate::engine::shared_groups::Groups;
use crate::engine::{ConnKey, SessionKey};

use super::Protocol;
use super::auth_gate::{AuthGate, Wake};

impl Protocol {
    /// The authority that decides now.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.auth_gate.authority
    }

    /// Whether there is a newer authority, or an answer about credentials.
    pub fn has_auth_updates(&self) -> bool {
        self.auth_gate.has_updates()
    }

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

/// Whether the client may subscribe to a filter, or replay what it matches.
pub fn check_access(
    clients: &Clients,
    env: &Env,
    key: SessionKey,
    filter: &str,
    access: Access,
) -> Result<(), Refusal> {
    let session = clients.session(key);
    if session.is_some_and(|session| session.may_filter(access, filter)) {
        return Ok(());
    }
    let (act, what) = match access {
        Access::Replay => ("replay", "replaying"),
        _ => ("subscribe", "subscribing to"),
    };
    env.metrics.auth.subscriptions_denied.inc();
    if let Some(conn) = clients.conn_of(key) {
        clients.refused(conn, None, (act, "acl"), Some(filter), env);
    }
    let sentence = format!("{what} this filter is not allowed");
    Err(Refusal::new(ReasonCode::NotAuthorized, sentence))
}

/// News from other threads about rights and credentials.
pub struct AuthUpdates<'a> {
    pub env: &'a Env,
    pub protocol: &'a mut Protocol,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub groups: &'a mut Groups,
    pub quotas: &'a mut Quotas,
    pub effects: &'a mut Effects,
}

impl AuthUpdates<'_> {
    /// Requires authentication by this authority for new connections. `wake` makes the loop take a turn.
    pub fn begin(&mut self, auth_service: Arc<AuthService>, wake: Wake) {
        self.protocol.auth_gate = AuthGate::new(Some(auth_service), wake);
        self.renew_rights();
    }

    /// Takes a newer authority, and answers about credentials.
    pub fn take(&mut self) {
        if !self.protocol.has_auth_updates() {
            return;
        }
        if self.protocol.auth_gate.is_old() {
            self.protocol.auth_gate.take_authority();
            self.renew_rights();
        }
        self.protocol.take_answers(self.clients, self.env);
    }

    /// Gives every session its rights under the new authority, and closes the connections of clients that are no longer
    /// admitted.
    fn renew_rights(&mut self) {
        let authority = &self.protocol.auth_gate.authority;
        let mut revoked = Vec::new();
        for key in self.clients.session_keys() {
            let Some(session) = self.clients.session(key) else {
                continue;
            };
            // Checked for an open broker too, which gives its clients no rights.
            let conn = session.conn;
            let is_revoked = conn
                .and_then(|conn| self.clients.conn(conn))
                .and_then(|conn| conn.peer.certificate.as_ref())
                .is_some_and(|names| names.is_revoked());
            if is_revoked {
                revoked.extend(conn);
            }
            let Some(session) = self.clients.session_mut(key) else {
                continue;
            };
            let Some(rights) = &session.rights else {
                continue;
            };
            let identity = Arc::clone(rights.identity());
            if identity.proof == Proof::Stored {
                session.rights = session.owner().map(|user| authority.stored_rights(user));
            } else if !is_revoked && authority.still_admits(&identity) {
                session.rights = self.protocol.auth_gate.rights(identity);
            } else {
                // With these rights a pending will is refused too.
                session.rights = Some(authority.no_rights(&identity));
                revoked.extend(session.conn.filter(|_| !is_revoked));
            }
        }
        let auth_gate = &self.protocol.auth_gate;
        self.quotas.renew_tenants(|user| auth_gate.tenant_of(user));
        if !self.protocol.auth_gate.authority.is_open() {
            self.clients.charge_all(self.quotas);
        }
        self.routing.note_all();
        self.groups.forget_audiences();
        self.groups.update_all_rights(self.clients);
        tracing::info!(revoked = revoked.len(), "users and rights were reloaded");
        for key in revoked {
            self.env.metrics.auth.end("revoked");
            let cause = Cause::Reason(ReasonCode::AdministrativeAction);
            self.clients.close(key, cause, self.env, self.effects);
        }
    }
}
