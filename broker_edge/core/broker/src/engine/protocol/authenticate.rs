//! Authenticates a connecting client. Quick checks are decided at once. Slow checks run on another thread; meanwhile
//! the connection keeps its CONNECT and is not read.

use std::sync::Arc;

use headwater_mqtt::Connect;

use crate::auth::{Admission, Credentials, Denied, Identity, Rights};
use crate::engine::clients::Clients;
use crate::engine::env::Env;
use crate::engine::session::auth::{AuthStep, Charge};
use crate::engine::session::pauses::Pause;
use crate::engine::{ConnKey, Connection};

use super::Protocol;

/// The result of authenticating a CONNECT.
pub enum Authenticated {
    As(Option<Arc<Rights>>),
    /// The CONNECT is handled again when there is an answer.
    Waits,
    Refused(Denied),
}

impl Protocol {
    pub(super) fn authenticate(
        &self,
        (key, conn): (ConnKey, &mut Connection),
        connect: &Connect<'_>,
        now_us: i64,
    ) -> Authenticated {
        let is_foreign = conn.peer.foreign_origin;
        if self.auth_gate.authority.is_open() {
            return if is_foreign {
                Authenticated::Refused(Denied::Origin)
            } else {
                Authenticated::As(None)
            };
        }
        if let Some(AuthStep::Answered(answer)) = conn.take_auth() {
            return match answer {
                Ok(identity) => self.authenticated(identity, connect, now_us),
                Err(denied) => Authenticated::Refused(denied),
            };
        }
        let shown = Credentials {
            user: connect.username,
            password: connect.password,
            // A browser presents the certificate for any page.
            certificate: conn.peer.certificate.as_ref().filter(|_| !is_foreign),
        };
        match self.auth_gate.authority.admit(&shown) {
            Admission::In(identity) if is_foreign && !identity.proof.is_shown() => {
                Authenticated::Refused(Denied::Origin)
            }
            Admission::In(identity) => self.authenticated(identity, connect, now_us),
            Admission::Out(denied) => Authenticated::Refused(denied),
            Admission::Check(check) => {
                conn.extras.auth = Some(Box::new(AuthStep::Checking(None)));
                conn.pauses.begin(Pause::Auth);
                let address = conn.peer.address().ip();
                match self.auth_gate.check(key, address, check) {
                    Ok(()) => Authenticated::Waits,
                    Err(_) => Authenticated::Refused(Denied::Busy),
                }
            }
        }
    }

    /// The checks that remain once the credentials are valid.
    pub(super) fn authenticated(
        &self,
        identity: Arc<Identity>,
        connect: &Connect<'_>,
        now_us: i64,
    ) -> Authenticated {
        let authority = &self.auth_gate.authority;
        if identity.is_expired(now_us) {
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
        Authenticated::As(self.auth_gate.rights(identity))
    }

    /// Threads have checked credentials: the CONNECTs of these connections are handled again.
    pub(super) fn take_answers(&mut self, clients: &mut Clients, env: &Env) {
        for (key, answer) in self.auth_gate.take_answers() {
            if let Some(conn) = clients.conn_mut(key)
                && let Some(AuthStep::Checking(_)) = conn.extras.auth.as_deref()
            {
                conn.extras.auth = Some(Box::new(AuthStep::Answered(answer)));
                clients.resume(key, Pause::Auth, env);
            }
        }
    }

    /// Charges the bytes that a connection has sent behind its waiting CONNECT. Returns false over the limit.
    pub(super) fn charge_waiting(&self, clients: &mut Clients, key: ConnKey, env: &Env) -> bool {
        let bytes_max = env.settings.mqtt.receive_budget_bytes.as_usize();
        let Some(conn) = clients.conn_mut(key) else {
            return true;
        };
        let held_bytes = conn.unparsed.bytes.len();
        let extras = conn.extras.present_mut();
        let Some(AuthStep::Checking(charge)) = extras.and_then(|extras| extras.auth.as_deref_mut())
        else {
            return true;
        };
        *charge = Charge::take(&self.unknown_bytes, held_bytes, bytes_max);
        charge.is_some()
    }
}
