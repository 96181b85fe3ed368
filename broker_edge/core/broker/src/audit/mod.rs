//! The audit: refusals in a bounded table by verified user, and a separate log (target `audit`) of refusals and of what
//! operators did.
//!
//! The event loop and the service report each refusal to it: of a login, a right, a quota, a limit or an origin. Users
//! are verified names, so clients cannot create rows by inventing names; all refusals without a verified user share
//! one row. For each kind of refusal a row has the newest topic that was refused, with the client that it was refused
//! to: the question that whoever asks why has to ask. A user's name is never a label of a metric. The log gets at most
//! one line per user and second, and at most [`table::LINES_PER_S_MAX`] in all; each line says how many refusals it covers.

mod table;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;

pub use self::table::Refusals;
use self::table::Table;
use crate::kept_text::cut_name;
use crate::words::words;

words! {
    /// The listener at which something was refused.
    pub enum Interface {
        Mqtt = "mqtt",
        WebSocket = "websocket",
        Flight = "flight",
        Admin = "admin",
    }
}

/// What an operator did. Each one is a line, because operators are few and known.
#[derive(Debug, Clone, Copy)]
pub struct Operated<'a> {
    pub door: &'static str,
    /// The action with what it was done to, for example `PUT /api/v1/drain`.
    pub act: &'a str,
    /// `ok`, or why it failed.
    pub result: &'a str,
    /// `None` on a broker without users, and for a signal.
    pub user: Option<&'a str>,
    pub address: Option<IpAddr>,
}

/// Characters of an action that are logged.
const ACT_CHARS_MAX: usize = 512;

/// Logs what an operator did.
pub fn operated(done: &Operated<'_>) {
    let Operated {
        door, result, user, ..
    } = *done;
    let act: String = done.act.chars().take(ACT_CHARS_MAX).collect();
    let address = done.address.map(|address| address.to_string());
    tracing::info!(
        target: "audit",
        door,
        act,
        result,
        user,
        address,
        "audit: operated"
    );
}

/// One refusal.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    pub door: Interface,
    /// The refused action: `connect`, `publish`, `subscribe`, `call`, …
    pub act: &'static str,
    /// Why it was refused: `acl`, `busy`, `quota_sessions`, `origin`, …
    pub reason: &'static str,
    /// The topic or filter, where the refusal is about one.
    pub topic: Option<&'a str>,
    /// `None` before a user is verified, and for clients without credentials.
    pub user: Option<&'a str>,
    pub address: Option<IpAddr>,
    pub client_id: Option<&'a str>,
}

/// The table. Every call takes its lock for a short, bounded time.
#[derive(Debug, Default)]
pub struct Audit {
    table: Mutex<Table>,
}

impl Audit {
    /// Counts a refusal, and logs it within the rate limits.
    pub fn refuse(&self, refused: &Refused<'_>) {
        let now = Instant::now();
        let count = {
            let mut table = self.table.lock();
            table.count(refused);
            table.line(refused.user, now)
        };
        let Some(count) = count else { return };
        let (door, act, reason) = (refused.door.name(), refused.act, refused.reason);
        let address = refused.address.map(|address| address.to_string());
        let client_id = refused.client_id.map(|id| cut_name(id).0);
        tracing::warn!(
            target: "audit",
            door,
            act,
            reason,
            user = refused.user,
            address,
            client_id,
            count,
            // The text format does not show the target.
            "audit: refused"
        );
    }

    pub fn refusals(&self) -> Refusals {
        let table = self.table.lock();
        let mut users = table.shown();
        let forgotten = table.forgotten();
        drop(table);
        users.sort_by_key(|user| std::cmp::Reverse(user.last_us));
        Refusals { users, forgotten }
    }
}
