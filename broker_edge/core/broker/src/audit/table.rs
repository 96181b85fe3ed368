//! The table of refusals: a row for each verified user, and in it a count for each kind of refusal with its newest topic.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Refused;
use crate::clock::now_us;
use crate::kept_text::{KeptText, cut_name, cut_topic};

/// The most users in the table. A new one replaces the user whose last refusal is the oldest.
pub const USERS_MAX: usize = 1024;
/// Kinds of refusals that are counted separately per user. The code has fewer, so this is only a safeguard.
const KINDS_MAX: usize = 64;
/// The most log lines per second.
pub const LINES_PER_S_MAX: u32 = 20;
/// The shortest time between two lines about one user.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Kinds of refusals of a user that have a topic. Of more kinds, those with the newest refusals have one. So the topics
/// and client ids of all users take less than 5 MiB.
pub const EXAMPLES_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct Row {
    pub kinds: Vec<Kind>,
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
pub struct Kind {
    door: &'static str,
    pub act: &'static str,
    reason: &'static str,
    count: u64,
    last_us: i64,
    /// Of the newest refusal that was about a topic.
    pub example: Option<Box<Example>>,
}

/// What was refused to whom.
#[derive(Debug, Default)]
pub struct Example {
    pub topic: KeptText,
    /// Empty outside MQTT.
    pub client_id: KeptText,
}

#[derive(Debug, Default)]
pub struct Table {
    users: HashMap<Arc<str>, Row>,
    unverified: Row,
    /// Refusals of users removed from the table.
    forgotten: u64,
    /// The start of the second in which `lines` were logged.
    second: Option<Instant>,
    lines: u32,
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

impl Table {
    /// All rows, in no order.
    pub fn shown(&self) -> Vec<UserRefusals> {
        let named = self
            .users
            .iter()
            .map(|(user, row)| row.shown(Some(user.to_string())));
        let mut users: Vec<UserRefusals> = named.collect();
        if self.unverified.last_us != 0 {
            users.push(self.unverified.shown(None));
        }
        users
    }

    /// Refusals of users removed from the table.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

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

    pub fn count(&mut self, refused: &Refused<'_>) {
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
    pub fn line(&mut self, user: Option<&str>, now: Instant) -> Option<u64> {
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

    pub fn count(&mut self, refused: &Refused<'_>, now_us: i64) {
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
