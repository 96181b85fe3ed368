//! The audit: refusals in a bounded table by verified user, and a separate log (target `audit`) of refusals and of what
//! operators did.
//!
//! The event loop and the service report each refusal to it: of a login, a right, a quota, a limit or an origin. Users
//! are verified names, so clients cannot create rows by inventing names; all refusals without a verified user share one
//! row. A user's name is never a label of a metric. The log gets at most one line per user and second, and at most
//! [`LINES_PER_S_MAX`] in all; each line says how many refusals it covers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::now_us;
use crate::words::words;

/// The most users in the table. A new one replaces the user whose last refusal is the oldest.
pub const USERS_MAX: usize = 1024;
/// Kinds of refusals that are counted separately per user. The code has fewer, so this is only a safeguard.
const KINDS_MAX: usize = 64;
/// The most log lines per second.
const LINES_PER_S_MAX: u32 = 20;
/// The shortest time between two lines about one user.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Characters of a client id that are kept, because an id may have 64 KiB.
const CLIENT_ID_CHARS_MAX: usize = 64;

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
    /// `None` before a user is verified, and for clients without credentials.
    pub user: Option<&'a str>,
    pub address: Option<IpAddr>,
    pub client_id: Option<&'a str>,
}

#[derive(Debug, Default)]
struct Row {
    counts: Vec<KindCount>,
    /// Refusals of further kinds, beyond the limit.
    more: u64,
    last_us: i64,
    address: Option<IpAddr>,
    client_id: Option<Box<str>>,
    /// The earliest time for the next log line about this user.
    line_due: Option<Instant>,
    /// Refusals since the last line.
    unlogged: u64,
}

#[derive(Debug, Default)]
struct Table {
    users: HashMap<Arc<str>, Row>,
    unverified: Row,
    /// Refusals of users removed from the table.
    forgotten: u64,
    /// The start of the second in which `lines` were logged.
    second: Option<Instant>,
    lines: u32,
}

/// The table. Every call takes its lock for a short, bounded time.
#[derive(Debug, Default)]
pub struct Audit {
    table: Mutex<Table>,
}

/// The refusals of one user.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct UserRefusals {
    /// Null in the row for refusals without a verified user.
    pub user: Option<String>,
    pub refused: Vec<KindCount>,
    /// Unix microseconds.
    pub last_us: i64,
    /// The address of the last refusal.
    pub address: Option<IpAddr>,
    pub client_id: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindCount {
    pub door: &'static str,
    pub act: &'static str,
    pub reason: &'static str,
    pub count: u64,
}

/// The whole table, most recent first.
#[derive(Debug, Serialize)]
pub struct Refusals {
    pub users: Vec<UserRefusals>,
    /// Refusals of users that were removed from the table.
    pub forgotten: u64,
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
        let client_id = refused.client_id.map(shorten);
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
        let named = table
            .users
            .iter()
            .map(|(user, row)| row.shown(Some(user.to_string())));
        let mut users: Vec<UserRefusals> = named.collect();
        if table.unverified.last_us != 0 {
            users.push(table.unverified.shown(None));
        }
        let forgotten = table.forgotten;
        drop(table);
        users.sort_by_key(|user| std::cmp::Reverse(user.last_us));
        Refusals { users, forgotten }
    }
}

impl Table {
    fn row(&mut self, user: Option<&str>) -> &mut Row {
        match user {
            None => &mut self.unverified,
            Some(user) => {
                // The map's `entry` would allocate the name on every call.
                if !self.users.contains_key(user) {
                    self.make_room();
                    self.users.insert(user.into(), Row::default());
                }
                self.users.get_mut(user).expect("it was just there")
            }
        }
    }

    fn make_room(&mut self) {
        if self.users.len() < USERS_MAX {
            return;
        }
        let oldest = self.users.iter().min_by_key(|(_, row)| row.last_us);
        let oldest = oldest.map(|(user, _)| Arc::clone(user));
        if let Some(row) = oldest.and_then(|user| self.users.remove(&user)) {
            self.forgotten += row.total();
        }
    }

    fn count(&mut self, refused: &Refused<'_>) {
        let (door, act, reason) = (refused.door.name(), refused.act, refused.reason);
        let row = self.row(refused.user);
        let is_same = |kind: &KindCount| (kind.door, kind.act, kind.reason) == (door, act, reason);
        match row.counts.iter().position(is_same) {
            Some(at) => row.counts[at].count += 1,
            None if row.counts.len() < KINDS_MAX => row.counts.push(KindCount {
                door,
                act,
                reason,
                count: 1,
            }),
            None => row.more += 1,
        }
        row.unlogged += 1;
        row.last_us = now_us();
        row.address = refused.address;
        if row.client_id.as_deref() != refused.client_id {
            row.client_id = refused.client_id.map(|id| shorten(id).into());
        }
    }

    /// How many refusals the next line covers; `None` if no line may be logged now.
    fn line(&mut self, user: Option<&str>, now: Instant) -> Option<u64> {
        if self
            .second
            .is_none_or(|begin| now.duration_since(begin) >= LINE_EVERY)
        {
            self.second = Some(now);
            self.lines = 0;
        }
        let has_room = self.lines < LINES_PER_S_MAX;
        let row = self.row(user);
        if !has_room || row.line_due.is_some_and(|due| now < due) {
            return None;
        }
        row.line_due = Some(now + LINE_EVERY);
        let count = std::mem::take(&mut row.unlogged);
        self.lines += 1;
        Some(count)
    }
}

impl Row {
    fn total(&self) -> u64 {
        self.more + self.counts.iter().map(|kind| kind.count).sum::<u64>()
    }

    fn shown(&self, user: Option<String>) -> UserRefusals {
        UserRefusals {
            user,
            refused: self.counts.clone(),
            last_us: self.last_us,
            address: self.address,
            client_id: self.client_id.clone(),
        }
    }
}

fn shorten(client_id: &str) -> &str {
    let end = client_id.char_indices().nth(CLIENT_ID_CHARS_MAX);
    end.map_or(client_id, |(end, _)| &client_id[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<'a>(user: Option<&'a str>, reason: &'static str) -> Refused<'a> {
        Refused {
            door: Interface::Mqtt,
            act: "publish",
            reason,
            user,
            address: None,
            client_id: Some("pump-7"),
        }
    }

    #[test]
    fn refusals_are_counted_by_verified_user_and_kind() {
        let audit = Audit::default();
        for (user, reason) in [
            (Some("ann"), "acl"),
            (Some("ann"), "acl"),
            (Some("ann"), "quota_sessions"),
            (None, "bad_credentials"),
        ] {
            audit.refuse(&refused(user, reason));
        }
        let shown = audit.refusals();
        let of = |user: Option<&str>| {
            let row = shown.users.iter().find(|row| row.user.as_deref() == user);
            row.unwrap()
                .refused
                .iter()
                .map(|kind| (kind.reason, kind.count))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Some("ann")), [("acl", 2), ("quota_sessions", 1)]);
        assert_eq!(of(None), [("bad_credentials", 1)]);
    }

    #[test]
    fn the_table_is_bounded_and_what_goes_is_still_counted() {
        let audit = Audit::default();
        for number in 0..USERS_MAX + 10 {
            audit.refuse(&refused(Some(&format!("user-{number}")), "acl"));
        }
        let shown = audit.refusals();
        assert_eq!((shown.users.len(), shown.forgotten), (USERS_MAX, 10));
        let long = "é".repeat(1000);
        audit.refuse(&Refused {
            client_id: Some(&long),
            ..refused(None, "acl")
        });
        let shown = audit.refusals();
        let row = shown.users.iter().find(|row| row.user.is_none()).unwrap();
        let kept = row.client_id.as_deref().unwrap();
        assert_eq!(kept.chars().count(), CLIENT_ID_CHARS_MAX);
    }

    #[test]
    fn a_user_has_a_line_a_second_and_all_together_have_a_few() {
        let mut table = Table::default();
        let begin = Instant::now();
        let mut tell = |user: &str, after_ms| {
            table.count(&refused(Some(user), "acl"));
            table.line(Some(user), begin + Duration::from_millis(after_ms))
        };
        assert_eq!(tell("ann", 0), Some(1));
        assert_eq!(tell("ann", 10), None);
        assert_eq!(tell("ann", 999), None);
        assert_eq!(tell("ann", 1000), Some(3), "a line stands for those before");
        let names: Vec<String> = (0..LINES_PER_S_MAX).map(|n| format!("u{n}")).collect();
        let told = names.iter().filter(|name| tell(name, 1001).is_some());
        assert_eq!(told.count() as u32, LINES_PER_S_MAX - 1);
    }
}
