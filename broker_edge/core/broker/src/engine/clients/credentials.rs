//! Clients that are denied access, and the end of the time for which credentials are valid.

use std::sync::Arc;

use headwater_mqtt::ReasonCode;

use crate::auth::{Denied, Rights};
use crate::engine::ConnKey;
use crate::engine::effects::{Cause, Effects};
use crate::engine::env::Env;

use super::Clients;
use super::timers::Timer;

/// Wall clocks jump, so expiry is checked at least this often.
const EXPIRY_CHECK_MS_MAX: u64 = 60 * 60 * 1000;

impl Clients {
    /// Counts and audits a client that is refused. `rights` is set if the credentials were valid.
    pub fn note_denied(
        &self,
        key: ConnKey,
        client_id: &str,
        denied: Denied,
        rights: Option<&Arc<Rights>>,
        env: &Env,
    ) {
        env.metrics.auth.deny(denied);
        let who = Some((client_id, rights.map(|rights| &**rights)));
        let what = ("connect", denied.label());
        self.refused(key, who, what, None, env);
    }

    /// When the credentials of a connection expire: those of its user, or its certificate.
    fn expires_us(&self, key: ConnKey, rights: Option<&Rights>) -> Option<i64> {
        let of_user = rights.and_then(|rights| rights.identity().expires_us);
        let certificate = self
            .conn(key)
            .and_then(|conn| conn.peer.certificate.as_ref());
        let of_certificate = certificate.and_then(|names| names.expires_us);
        of_user.into_iter().chain(of_certificate).min()
    }

    /// Sets a timer to check the credentials again when they expire.
    pub fn watch_expiry(&mut self, key: ConnKey, rights: Option<&Rights>, env: &Env) {
        if let Some(expires_us) = self.expires_us(key, rights) {
            let left_ms = u64::try_from(expires_us - env.now.wall_us).unwrap_or(0) / 1000 + 1;
            let due_ms = env.now.mono_ms + left_ms.min(EXPIRY_CHECK_MS_MAX);
            self.set_timer(due_ms, Timer::Credentials(key));
        }
    }

    /// The timer of the credentials is due: closes the connection if they have expired.
    pub fn check_credentials(&mut self, key: ConnKey, env: &Env, effects: &mut Effects) {
        let session = self.session_of(key);
        let rights = session
            .filter(|session| session.conn == Some(key))
            .and_then(|session| session.rights.clone());
        let expires_us = self.expires_us(key, rights.as_deref());
        if expires_us.is_some_and(|expires_us| expires_us <= env.now.wall_us) {
            env.metrics.auth.end("expired");
            let cause = Cause::Reason(ReasonCode::MaximumConnectTime);
            self.close(key, cause, env, effects);
        } else {
            self.watch_expiry(key, rights.as_deref(), env);
        }
    }
}
