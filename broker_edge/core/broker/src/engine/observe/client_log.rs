//! Connects and disconnects of clients, logged at info level: client id, address, reason and the verified user, never
//! anything else that a client sent. All of them are also noted in [`crate::client_events`].
//!
//! Clients cause these lines, so they have a budget. Lines over the budget are counted, and the count is logged.

use headwater_mqtt::ReasonCode;

use crate::client_events::{ClientEvent, What};
use crate::engine::effects::Cause;
use crate::engine::{Connection, Session};

use super::{Observe, connection_gauges};

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

impl Observe {
    /// Whether a line caused by a client may be written.
    pub fn may_log_client(&mut self, now_ms: u64) -> bool {
        let (may, left_out) = self.client_log.ask(now_ms);
        if left_out > 0 {
            tracing::info!(
                left_out,
                "lines about clients were left out because there were too many"
            );
        }
        if !may {
            self.metrics.detail.client_log_lines_dropped.inc();
        }
        may
    }

    pub fn log_connected(
        &mut self,
        now_ms: u64,
        conn: &Connection,
        session: Option<&Session>,
        present: bool,
    ) {
        let reason = if present {
            "its session was there"
        } else {
            "new session"
        };
        self.note((What::Connected, reason), conn, session);
        if !self.may_log_client(now_ms) {
            return;
        }
        let (address, transport) = (conn.peer.address(), conn.peer.transport.name());
        let (client_id, user) = name_of(session);
        let version = connection_gauges::name_of(conn.version);
        tracing::info!(client_id, user, %address, transport, version, session_present = present, "connected");
    }

    pub fn log_disconnected(
        &mut self,
        now_ms: u64,
        conn: &Connection,
        session: Option<&Session>,
        cause: &Cause,
    ) {
        if let Some(event) = event_of(cause) {
            self.note(event, conn, session);
        }
        if !self.may_log_client(now_ms) {
            return;
        }
        let address = conn.peer.address();
        let (client_id, user) = name_of(session);
        let reason = match cause {
            Cause::Goodbye => "the client sent DISCONNECT",
            Cause::GoodbyeWithWill => "the client sent DISCONNECT and asked for its will",
            Cause::Lost => "the connection was lost",
            Cause::Reason(code) => {
                return tracing::info!(client_id, user, %address, reason = ?code, "disconnected by the broker");
            }
            Cause::Protocol(error) => {
                return tracing::info!(client_id, user, %address, reason = %error, "disconnected by the broker");
            }
            Cause::Refused => return,
        };
        tracing::info!(client_id, user, %address, reason, "disconnected");
    }

    fn note(
        &self,
        (what, reason): (What, &'static str),
        conn: &Connection,
        session: Option<&Session>,
    ) {
        let (client_id, user) = name_of(session);
        self.metrics.events.note(&ClientEvent {
            client_id,
            what,
            act: None,
            reason,
            topic: None,
            user,
            address: Some(conn.peer.address()),
            version: Some(connection_gauges::name_of(conn.version)),
        });
    }

    /// Notes a session that ends for another reason than the end of its connection.
    pub fn note_ended(&self, session: &Session, reason: &'static str) {
        let (client_id, user) = name_of(Some(session));
        self.metrics.events.note(&ClientEvent {
            client_id,
            what: What::SessionEnded,
            act: None,
            reason,
            topic: None,
            user,
            address: None,
            version: None,
        });
    }

    /// Notes a refused CONNECT that is not in the audit.
    pub fn note_refused(&self, conn: &Connection, client_id: &str, reason: ReasonCode) {
        self.metrics.events.note(&ClientEvent {
            client_id,
            what: What::Refused,
            act: Some("connect"),
            reason: reason.name(),
            topic: None,
            user: None,
            address: Some(conn.peer.address()),
            version: Some(connection_gauges::name_of(conn.version)),
        });
    }

    pub fn log_refused(
        &mut self,
        now_ms: u64,
        conn: &Connection,
        client_id: &str,
        reason: ReasonCode,
    ) {
        if self.may_log_client(now_ms) {
            let address = conn.peer.address();
            tracing::info!(client_id, %address, ?reason, "a CONNECT was refused");
        }
    }
}

fn event_of(cause: &Cause) -> Option<(What, &'static str)> {
    Some(match cause {
        Cause::Goodbye => (What::Disconnected, "by the client"),
        Cause::GoodbyeWithWill => (What::Disconnected, "by the client, with its will"),
        Cause::Lost => (What::Disconnected, "the connection was lost"),
        Cause::Reason(ReasonCode::SessionTakenOver) => {
            (What::TakenOver, "its client id has connected again")
        }
        Cause::Reason(code) => (What::Disconnected, code.name()),
        Cause::Protocol(error) => (What::Disconnected, error.what),
        Cause::Refused => return None,
    })
}

/// The client id, and the user's name if the client was authenticated.
fn name_of(session: Option<&Session>) -> (&str, Option<&str>) {
    let user = || session?.rights.as_ref()?.user();
    let client_id = session.map_or("", |session| &*session.client_id);
    (client_id, user().map(|user| &**user))
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
