//! The audit: refusals in a bounded table by verified user, and a separate log (target `audit`) of refusals and of what
//! operators did.
//!
//! The event loop and the service report each refusal to it: of a login, a right, a quota, a limit or an origin. Users
//! are verified names, so clients cannot create rows by inventing names; all refusals without a verified user share
//! one row. For each kind of refusal a row has the newest topic that was refused, with the client that it was refused
//! to: the question that whoever asks why has to ask. A user's name is never a label of a metric. The log gets at most
//! one line per user and second, and at most [`LINES_PER_S_MAX`] in all; each line says how many refusals it covers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::now_us;
use crate::kept_text::{KeptText, cut_name, cut_topic};
use crate::words::words;

/// The most users in the table. A new one replaces the user whose last refusal is the oldest.
pub const USERS_MAX: usize = 1024;
/// Kinds of refusals that are counted separately per user. The code has fewer, so this is only a safeguard.
const KINDS_MAX: usize = 64;
/// The most log lines per second.
const LINES_PER_S_MAX: u32 = 20;
/// The shortest time between two lines about one user.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Kinds of refusals of a user that have a topic. Of more kinds, those with the newest refusals have one. So the topics
/// and client ids of all users take less than 5 MiB.
const EXAMPLES_MAX: usize = 8;

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

#[derive(Debug, Default)]
struct Row {
    kinds: Vec<Kind>,
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

/// Equal refusals of one user.
#[derive(Debug)]
struct Kind {
    door: &'static str,
    act: &'static str,
    reason: &'static str,
    count: u64,
    last_us: i64,
    /// Of the newest refusal that was about a topic.
    example: Option<Box<Example>>,
}

/// What was refused to whom.
#[derive(Debug, Default)]
struct Example {
    topic: KeptText,
    /// Empty outside MQTT.
    client_id: KeptText,
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
    /// Unix microseconds.
    pub last_us: i64,
    /// Of the newest refusal that was about a topic or filter.
    pub topic: Option<String>,
    pub is_topic_cut: bool,
    /// The client to which this topic was refused.
    pub client_id: Option<String>,
    pub is_client_id_cut: bool,
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
        let now_us = now_us();
        let row = self.row(refused.user);
        row.count(refused, now_us);
        row.unlogged += 1;
        row.last_us = now_us;
        row.address = refused.address;
        let client_id = refused.client_id.map(|id| cut_name(id).0);
        if row.client_id.as_deref() != client_id {
            row.client_id = client_id.map(Into::into);
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
        self.more + self.kinds.iter().map(|kind| kind.count).sum::<u64>()
    }

    fn count(&mut self, refused: &Refused<'_>, now_us: i64) {
        let (door, act, reason) = (refused.door.name(), refused.act, refused.reason);
        let is_same = |kind: &Kind| (kind.door, kind.act, kind.reason) == (door, act, reason);
        let at = match self.kinds.iter().position(is_same) {
            Some(at) => at,
            None if self.kinds.len() < KINDS_MAX => {
                self.kinds.push(Kind {
                    door,
                    act,
                    reason,
                    count: 0,
                    last_us: now_us,
                    example: None,
                });
                self.kinds.len() - 1
            }
            None => {
                self.more += 1;
                return;
            }
        };
        self.kinds[at].count += 1;
        self.kinds[at].last_us = now_us;
        if let Some(topic) = refused.topic {
            let kept = self.kinds[at].example.take();
            let mut example = kept.unwrap_or_else(|| self.spare_example());
            example.topic.set(cut_topic(topic));
            let client_id = refused.client_id.unwrap_or_default();
            example.client_id.set(cut_name(client_id));
            self.kinds[at].example = Some(example);
        }
    }

    /// A new one, or that of the kind whose last refusal is the oldest.
    fn spare_example(&mut self) -> Box<Example> {
        let with_example = self.kinds.iter().filter(|kind| kind.example.is_some());
        if with_example.count() < EXAMPLES_MAX {
            return Box::default();
        }
        let with_example = self.kinds.iter_mut().filter(|kind| kind.example.is_some());
        let oldest = with_example.min_by_key(|kind| kind.last_us);
        oldest
            .and_then(|kind| kind.example.take())
            .unwrap_or_default()
    }

    fn shown(&self, user: Option<String>) -> UserRefusals {
        UserRefusals {
            user,
            refused: self.kinds.iter().map(Kind::shown).collect(),
            last_us: self.last_us,
            address: self.address,
            client_id: self.client_id.clone(),
        }
    }
}

impl Kind {
    fn shown(&self) -> KindCount {
        let example = self.example.as_deref();
        let client_id = example.map(|example| &example.client_id);
        let client_id = client_id.filter(|client_id| !client_id.text().is_empty());
        KindCount {
            door: self.door,
            act: self.act,
            reason: self.reason,
            count: self.count,
            last_us: self.last_us,
            topic: example.map(|example| example.topic.text().to_owned()),
            is_topic_cut: example.is_some_and(|example| example.topic.is_cut()),
            client_id: client_id.map(|client_id| client_id.text().to_owned()),
            is_client_id_cut: client_id.is_some_and(KeptText::is_cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept_text::{NAME_CHARS_MAX, TOPIC_BYTES_MAX};

    fn refused<'a>(user: Option<&'a str>, reason: &'static str) -> Refused<'a> {
        Refused {
            door: Interface::Mqtt,
            act: "publish",
            reason,
            topic: Some("a/b"),
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
        assert_eq!(kept.chars().count(), NAME_CHARS_MAX);
    }

    fn kinds_of(audit: &Audit, user: &str) -> Vec<KindCount> {
        let users = audit.refusals().users;
        let row = users
            .into_iter()
            .find(|row| row.user.as_deref() == Some(user));
        row.unwrap().refused
    }

    #[test]
    fn each_kind_has_its_newest_topic_with_the_client_that_it_was_refused_to() {
        let audit = Audit::default();
        let long = "é".repeat(30_000);
        for (act, client_id, topic) in [
            ("publish", Some("pump-1"), Some("a/1")),
            ("publish", Some("pump-2"), Some("a/2")),
            ("subscribe", None, Some(&*long)),
            ("publish", Some("pump-3"), None),
            ("connect", Some("pump-4"), None),
        ] {
            audit.refuse(&Refused {
                act,
                topic,
                client_id,
                ..refused(Some("ann"), "acl")
            });
        }
        let kinds = kinds_of(&audit, "ann");
        let example = |at: usize| {
            let kind = &kinds[at];
            (kind.act, kind.topic.as_deref(), kind.client_id.as_deref())
        };
        assert_eq!(example(0), ("publish", Some("a/2"), Some("pump-2")));
        let cut = &long[..TOPIC_BYTES_MAX];
        assert_eq!(example(1), ("subscribe", Some(cut), None));
        assert_eq!(example(2), ("connect", None, None));
        let cuts = kinds.iter().map(|kind| kind.is_topic_cut);
        assert_eq!(cuts.collect::<Vec<_>>(), [false, true, false]);
        assert!(kinds.iter().all(|kind| !kind.is_client_id_cut));
    }

    #[test]
    fn only_the_kinds_with_the_newest_refusals_of_a_user_have_a_topic() {
        let acts: [&'static str; EXAMPLES_MAX + 2] =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let mut row = Row::default();
        let long = "x".repeat(60_000);
        for round in 0..3 {
            for (number, act) in acts.into_iter().enumerate() {
                let refused = Refused {
                    act,
                    topic: Some(&long),
                    client_id: Some(&long),
                    ..refused(None, "acl")
                };
                row.count(&refused, (round * acts.len() + number) as i64);
            }
        }
        let with_topic = row.kinds.iter().filter(|kind| kind.example.is_some());
        let with_topic: Vec<_> = with_topic.map(|kind| kind.act).collect();
        assert_eq!(with_topic, acts[2..]);
        let examples = row.kinds.iter().filter_map(|kind| kind.example.as_ref());
        let bytes: usize = examples
            .map(|example| example.topic.bytes() + example.client_id.bytes())
            .sum();
        assert_eq!(bytes, EXAMPLES_MAX * (TOPIC_BYTES_MAX + NAME_CHARS_MAX));
    }

    #[test]
    fn a_flood_of_refusals_uses_the_buffer_of_the_first() {
        let mut row = Row::default();
        let topics = ["x".repeat(TOPIC_BYTES_MAX), "y".repeat(9)];
        let mut places = Vec::new();
        for number in 0..100 {
            let refused = Refused {
                topic: Some(&topics[number % 2]),
                ..refused(None, "acl")
            };
            row.count(&refused, number as i64);
            let example = row.kinds[0].example.as_deref().unwrap();
            places.push((example.topic.text().as_ptr(), std::ptr::from_ref(example)));
        }
        places.dedup();
        assert_eq!(places.len(), 1);
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
