//! Session ownership: a session belongs to the user who opened it. Other users are refused its client id while it
//! lasts.
//!
//! There is one exception, so that nobody can lock out a device by taking its client id first: a user who proves that
//! the client id is its own (see [`Rights::proves`]) ends the session of a user who does not, and begins a new one. A
//! stored session without a known owner belongs to the first client admitted with its client id.

use std::sync::Arc;

use headwater_mqtt::ReasonCode;

use crate::auth::{Denied, Rights};
use crate::engine::effects::Cause;
use crate::engine::lifecycle::Lifecycle;

use super::receive::Receiving;

/// Minimum time between two log lines about client ids that `%c` rules do not accept as proved.
const UNPROVED_LOG_MS: u64 = 1000;

impl Receiving<'_> {
    /// Whether a client may have the session of its client id, if there is one. Ends the session of a user who took the
    /// client id without proof.
    pub(super) fn claim_session(
        &mut self,
        client_id: &str,
        rights: Option<&Arc<Rights>>,
    ) -> Result<(), Denied> {
        // An open broker does not distinguish users.
        let Some(rights) = rights else {
            return Ok(());
        };
        let Some(key) = self.clients.key_by_id(client_id) else {
            return Ok(());
        };
        let Some(owner) = self
            .clients
            .session(key)
            .and_then(|session| session.rights.clone())
        else {
            let user = rights.user().map(|user| &**user);
            tracing::info!(
                client_id,
                user,
                "a session without an owner belongs to this user now"
            );
            return Ok(());
        };
        if owner.user() == rights.user() {
            return Ok(());
        }
        // A client without credentials proves nothing.
        let is_own = |rights: &Rights| rights.user().is_some() && rights.proves(client_id);
        if !is_own(rights) || is_own(&owner) {
            return Err(Denied::ClientId);
        }
        let user = rights.user().map(|user| &**user);
        if self.observe.may_log_client(self.env.now.mono_ms) {
            tracing::warn!(
                client_id,
                user,
                owner = owner.user().map(|user| &**user),
                "the session of another user is ended: the client id belongs to this user"
            );
        }
        if let Some(old) = self.clients.conn_of(key) {
            self.close_now(old, Cause::Reason(ReasonCode::SessionTakenOver));
        }
        if let Some(session) = self.clients.session(key) {
            self.observe
                .note_ended(session, "its client id is another user's");
        }
        lend!(self => Lifecycle).end_session(key);
        Ok(())
    }
}

/// Clients whose client id was not proved, as rules with `%c` require.
#[derive(Debug, Default)]
pub struct Unproved {
    /// Since the last log line.
    unlogged: u64,
    /// When the next line may be written.
    due_ms: u64,
}

impl Unproved {
    /// Logs which ACL line would make rules with `%c` apply, if they do not because the client id is not proved to be
    /// the user's own. Nothing has been refused yet, so this is no refusal.
    pub fn log(&mut self, rights: Option<&Arc<Rights>>, client_id: &str, now_ms: u64) {
        let is_told =
            |rights: &&Arc<Rights>| rights.user().is_some() && rights.misses_rules_by(client_id);
        let Some(rights) = rights.filter(is_told) else {
            return;
        };
        self.unlogged += 1;
        if now_ms < self.due_ms {
            return;
        }
        self.due_ms = now_ms + UNPROVED_LOG_MS;
        let count = std::mem::take(&mut self.unlogged);
        let user = rights.user().map_or("", |user| &**user);
        let shown: String = client_id.chars().take(64).collect();
        let add = format!("client-id {shown}");
        tracing::warn!(
            user,
            client_id = shown,
            count,
            add,
            "rules with %c do not apply to a client id that is not proved to be the user's own; to allow it, write the line \
             `add` into the section of the user in the ACL file"
        );
    }
}
