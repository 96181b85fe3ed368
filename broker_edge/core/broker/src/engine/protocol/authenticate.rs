//! Authenticates a connecting client. Quick checks are decided at once. Slow checks run on another thread; meanwhile
//! the connection keeps its CONNECT and is not read.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use headwater_mqtt::{Connect, ReasonCode};

use crate::auth::{Admission, Answer, Credentials, Denied, Identity, Rights};
use crate::engine::clients::timers::Timer;
use crate::engine::effects::Cause;
use crate::engine::{ConnKey, Engine};

use super::enhanced::Exchanging;

/// Wall clocks jump, so expiry is checked at least this often.
const EXPIRY_CHECK_MS_MAX: u64 = 60 * 60 * 1000;

/// The authentication state of a connection. Most connections store none.
#[derive(Debug)]
pub enum AuthStep {
    /// A thread checks the credentials. The connection is not read, and the bytes it has sent are kept.
    Checking(Option<Charge>),
    Answered(Answer),
    /// Enhanced authentication, in progress or done.
    Enhanced(Exchanging),
}

/// Bytes kept for a client that is not admitted yet, counted against one limit for all such clients.
#[derive(Debug)]
pub struct Charge {
    bytes: usize,
    total: Rc<Cell<usize>>,
}

impl Charge {
    /// `None` if the limit would be exceeded.
    pub fn take(total: &Rc<Cell<usize>>, bytes: usize, bytes_max: usize) -> Option<Self> {
        let sum = total.get() + bytes;
        (sum <= bytes_max).then(|| {
            total.set(sum);
            Self {
                bytes,
                total: Rc::clone(total),
            }
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.bytes);
    }
}

/// The result of authenticating a CONNECT.
pub(in crate::engine) enum Authenticated {
    As(Option<Arc<Rights>>),
    /// The CONNECT is handled again when there is an answer.
    Waits,
    Refused(Denied),
}

impl Engine {
    pub(in crate::engine) fn authenticate(
        &mut self,
        key: ConnKey,
        connect: &Connect<'_>,
    ) -> Authenticated {
        let Some(conn) = self.clients.conn_mut(key) else {
            return Authenticated::Refused(Denied::NoCredentials);
        };
        let is_foreign = conn.peer.foreign_origin;
        if self.protocol.auth_gate.authority.is_open() {
            return if is_foreign {
                Authenticated::Refused(Denied::Origin)
            } else {
                Authenticated::As(None)
            };
        }
        if let Some(AuthStep::Answered(answer)) = conn.take_auth() {
            return match answer {
                Ok(identity) => self.authenticated(identity, connect),
                Err(denied) => Authenticated::Refused(denied),
            };
        }
        let shown = Credentials {
            user: connect.username,
            password: connect.password,
            // A browser presents the certificate for any page.
            certificate: conn.peer.certificate.as_ref().filter(|_| !is_foreign),
        };
        match self.protocol.auth_gate.authority.admit(&shown) {
            Admission::In(identity) if is_foreign && !identity.proof.is_shown() => {
                Authenticated::Refused(Denied::Origin)
            }
            Admission::In(identity) => self.authenticated(identity, connect),
            Admission::Out(denied) => Authenticated::Refused(denied),
            Admission::Check(check) => {
                conn.extras.auth = Some(Box::new(AuthStep::Checking(None)));
                conn.paused_on_auth = true;
                let address = conn.peer.address().ip();
                match self.protocol.auth_gate.check(key, address, check) {
                    Ok(()) => Authenticated::Waits,
                    Err(_) => Authenticated::Refused(Denied::Busy),
                }
            }
        }
    }

    /// The checks that remain once the credentials are valid.
    pub(in crate::engine) fn authenticated(
        &self,
        identity: Arc<Identity>,
        connect: &Connect<'_>,
    ) -> Authenticated {
        let authority = &self.protocol.auth_gate.authority;
        if identity.is_expired(self.env.now.wall_us) {
            return Authenticated::Refused(Denied::ExpiredToken);
        }
        if !authority.still_admits(&identity) {
            // The files changed while the credentials were checked.
            return Authenticated::Refused(Denied::BadCredentials);
        }
        if authority.binds_client_id(&identity)
            && identity.user.as_deref() != Some(connect.client_id)
        {
            return Authenticated::Refused(Denied::ClientId);
        }
        Authenticated::As(self.protocol.auth_gate.rights(identity))
    }

    /// A thread has checked the credentials of a connection: its CONNECT is handled again.
    pub(super) fn take_answer(&mut self, key: ConnKey, answer: Answer) {
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        if !matches!(conn.extras.auth.as_deref(), Some(AuthStep::Checking(_))) {
            return;
        }
        conn.extras.auth = Some(Box::new(AuthStep::Answered(answer)));
        conn.paused_on_auth = false;
        self.clients.resumed.push(key);
    }

    /// Charges the bytes that a connection has sent behind its waiting CONNECT. Over the limit, the CONNECT is refused
    /// as busy.
    pub(super) fn charge_waiting(&mut self, key: ConnKey) {
        let bytes_max = self.env.settings.mqtt.receive_budget_bytes.as_usize();
        let Some(conn) = self.clients.conn_mut(key) else {
            return;
        };
        let held_bytes = conn.unparsed.bytes.len();
        let auth = conn
            .extras
            .present_mut()
            .and_then(|extras| extras.auth.as_deref_mut());
        let Some(AuthStep::Checking(charge)) = auth else {
            return;
        };
        *charge = Charge::take(&self.protocol.unknown_bytes, held_bytes, bytes_max);
        if charge.is_none() {
            self.deny_connect(key, "", Denied::Busy);
        }
    }

    /// Counts and audits a client that is refused. `rights` is set if the credentials were valid.
    pub(super) fn note_denied(
        &self,
        key: ConnKey,
        client_id: &str,
        denied: Denied,
        rights: Option<&Arc<Rights>>,
    ) {
        self.env.metrics.auth.deny(denied);
        self.audit_connect(key, client_id, rights, denied.label());
    }

    /// Sets a timer to check the credentials again when they expire.
    pub(super) fn watch_expiry(&mut self, key: ConnKey, rights: Option<&Rights>) {
        if let Some(expires_us) = rights.and_then(|rights| rights.identity().expires_us) {
            let left_ms = u64::try_from(expires_us - self.env.now.wall_us).unwrap_or(0) / 1000 + 1;
            let due_ms = self.env.now.mono_ms + left_ms.min(EXPIRY_CHECK_MS_MAX);
            self.clients.timers.set(due_ms, Timer::Credentials(key));
        }
    }

    pub(in crate::engine) fn check_credentials(&mut self, key: ConnKey) {
        let session = self.clients.session_of(key);
        let rights = session
            .filter(|session| session.conn == Some(key))
            .and_then(|session| session.rights.clone());
        match rights {
            Some(rights) if rights.identity().is_expired(self.env.now.wall_us) => {
                self.env.metrics.auth.end("expired");
                self.close(key, Cause::Reason(ReasonCode::MaximumConnectTime));
            }
            rights => self.watch_expiry(key, rights.as_deref()),
        }
    }
}
