//! Connects and disconnects of clients, logged at info level: client id, address, reason and the verified user, never
//! anything else that a client sent.
//!
//! Clients cause these lines, so they have a budget. Lines over the budget are counted, and the count is logged.

use headwater_mqtt::ReasonCode;

use crate::engine::effects::Cause;
use crate::engine::{ConnKey, Engine, Session};

/// Limit on lines in one time window.
const LINES_MAX: u32 = 100;
const WINDOW_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub struct ClientLog {
    began_ms: u64,
    lines: u32,
    left_out: u64,
}

impl ClientLog {
    /// Whether a line may be written now, and, when a window has ended, how many lines were left out in it.
    fn ask(&mut self, now_ms: u64) -> (bool, u64) {
        let mut told = 0;
        if now_ms >= self.began_ms + WINDOW_MS {
            told = std::mem::take(&mut self.left_out);
            self.began_ms = now_ms;
            self.lines = 0;
        }
        self.lines += 1;
        let may = self.lines <= LINES_MAX;
        self.left_out += u64::from(!may);
        (may, told)
    }
}

impl Engine {
    /// Whether a line caused by a client may be written.
    pub(in crate::engine) fn may_log_client(&mut self) -> bool {
        let (may, left_out) = self.observe.client_log.ask(self.env.now.mono_ms);
        if left_out > 0 {
            tracing::info!(
                left_out,
                "lines about clients were left out because there were too many"
            );
        }
        if !may {
            self.env.metrics.detail.client_log_lines_dropped.inc();
        }
        may
    }

    pub(in crate::engine) fn log_connected(&mut self, key: ConnKey, present: bool) {
        if !self.may_log_client() {
            return;
        }
        let Some(conn) = self.clients.conn(key) else {
            return;
        };
        let session = self.clients.session_of(key);
        let client_id = session.map_or("", |session| &*session.client_id);
        let (address, transport) = (conn.peer.address(), conn.peer.transport.name());
        let version = super::connection_gauges::name_of(conn.version);
        let user = session.and_then(user_of);
        tracing::info!(client_id, user, %address, transport, version, session_present = present, "connected");
    }

    pub(in crate::engine) fn log_disconnected(&mut self, key: ConnKey, cause: &Cause) {
        if !self.may_log_client() {
            return;
        }
        let Some(conn) = self.clients.conn(key) else {
            return;
        };
        let session = self.clients.session_of(key);
        let client_id = session.map_or("", |session| &*session.client_id);
        let address = conn.peer.address();
        let user = session.and_then(user_of);
        match cause {
            Cause::Goodbye => {
                tracing::info!(client_id, user, %address, reason = "the client sent DISCONNECT", "disconnected");
            }
            Cause::GoodbyeWithWill => {
                tracing::info!(client_id, user, %address, reason = "the client sent DISCONNECT and asked for its will", "disconnected");
            }
            Cause::Lost => {
                tracing::info!(client_id, user, %address, reason = "the connection was lost", "disconnected");
            }
            Cause::Reason(code) => {
                tracing::info!(client_id, user, %address, reason = ?code, "disconnected by the broker");
            }
            Cause::Protocol(error) => {
                tracing::info!(client_id, user, %address, reason = %error, "disconnected by the broker");
            }
            Cause::Refused => {}
        }
    }

    pub(in crate::engine) fn log_refused(
        &mut self,
        key: ConnKey,
        client_id: &str,
        reason: ReasonCode,
    ) {
        if !self.may_log_client() {
            return;
        }
        if let Some(conn) = self.clients.conn(key) {
            let address = conn.peer.address();
            tracing::info!(client_id, %address, ?reason, "a CONNECT was refused");
        }
    }
}

/// The user's name, if the client was authenticated.
fn user_of(session: &Session) -> Option<&str> {
    let rights = session.rights.as_ref()?;
    rights.user().map(|user| &**user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_budget_is_left_out_and_counted() {
        let mut log = ClientLog::default();
        let told = (0..500).filter(|_| log.ask(1).0).count();
        assert_eq!(told, LINES_MAX as usize);
        assert_eq!(log.ask(1 + WINDOW_MS), (true, 400));
        assert_eq!(log.ask(2 + WINDOW_MS), (true, 0));
    }
}
