//! What happened to clients of late: connects, ends of connections and sessions, refusals, and what operators did to
//! them. In memory only, in a bounded list; the admin listener shows it.
//!
//! The event loop notes events of connections and refusals, never messages. Equal events of a client that follow within
//! ten minutes are one entry with a count, and the topic of the newest. When there is no room, whoever has most of it,
//! and more than a fair share, loses the oldest entry: a verified user, a network of clients without one, or all
//! together whose CONNECT was refused without one. So neither a client in a loop nor a stranger who invents client ids
//! pushes out what is known of others.

mod list;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use parking_lot::Mutex;
use serde::Serialize;

use self::list::{Entry, List};
use crate::clock::now_us;
use crate::kept_text::cut_name;
use crate::peer::network_of;
use crate::words::words;

/// Bytes at each end of a client id by which clients are told apart, together with its length.
const ID_END_BYTES: usize = 512;

words! {
    pub enum What {
        Connected = "connected",
        Disconnected = "disconnected",
        TakenOver = "taken_over",
        Refused = "refused",
        SessionEnded = "session_ended",
        /// By an operator.
        Kicked = "kicked",
    }
}

/// An event as it is noted.
#[derive(Debug, Clone, Copy)]
pub struct ClientEvent<'a> {
    pub client_id: &'a str,
    pub what: What,
    /// What was refused, of a refusal.
    pub act: Option<&'static str>,
    pub reason: &'static str,
    /// The topic or filter that was refused, where there is one.
    pub topic: Option<&'a str>,
    /// The verified user; of [`What::Kicked`] the operator.
    pub user: Option<&'a str>,
    pub address: Option<SocketAddr>,
    /// Of MQTT.
    pub version: Option<&'static str>,
}

/// An entry as it is shown.
#[derive(Debug, Serialize)]
pub struct EventRow {
    pub client_id: Box<str>,
    /// The id is longer than what is shown of it.
    pub is_cut: bool,
    pub what: &'static str,
    pub act: Option<&'static str>,
    pub reason: &'static str,
    /// Of the last of them that had one.
    pub topic: Option<String>,
    /// The topic is longer than what is shown of it.
    pub is_topic_cut: bool,
    pub user: Option<Box<str>>,
    /// Of the last of them.
    pub address: Option<SocketAddr>,
    pub version: Option<&'static str>,
    pub count: u64,
    /// Unix microseconds.
    pub first_us: i64,
    pub last_us: i64,
}

/// The newest first.
#[derive(Debug, Serialize)]
pub struct EventPage {
    pub events: Vec<EventRow>,
    /// Where the next page begins.
    pub next: Option<u64>,
    /// Every event from then on is known.
    pub since_us: i64,
    /// Entries that had to make room.
    pub forgotten: u64,
}

/// The list. Every call takes its lock for a short, bounded time.
#[derive(Debug)]
pub struct ClientEvents {
    hashing: RandomState,
    list: Mutex<List>,
}

impl Default for ClientEvents {
    fn default() -> Self {
        Self {
            hashing: RandomState::new(),
            list: Mutex::new(List::new(now_us())),
        }
    }
}

impl ClientEvents {
    pub fn note(&self, event: &ClientEvent<'_>) {
        self.note_at(event, now_us());
    }

    fn note_at(&self, event: &ClientEvent<'_>, now_us: i64) {
        let client = self.client(event.client_id);
        let owner = self.owner(event);
        let ClientEvent {
            what, act, reason, ..
        } = *event;
        let host = event.address.map(|address| address.ip());
        let equal = (owner, client, what, act, reason, host, event.version);
        let equal = self.hashing.hash_one(equal);
        let mut list = self.list.lock();
        if list.count_equal(equal, (event.address, event.topic), now_us) {
            return;
        }
        let (client_id, is_cut) = cut_name(event.client_id);
        let mut entry = Box::new(Entry {
            client,
            owner,
            equal,
            client_id: client_id.into(),
            is_cut,
            what,
            act,
            reason,
            user: event.user.map(|user| cut_name(user).0.into()),
            address: event.address,
            version: event.version,
            topic: None,
            count: 1,
            first_us: now_us,
            last_us: now_us,
        });
        entry.keep_topic(event.topic);
        list.push(entry);
    }

    /// Events of a client, or of all, that are older than those of the page before.
    pub fn page(&self, client_id: Option<&str>, before: Option<u64>, limit: usize) -> EventPage {
        let client = client_id.map(|client_id| self.client(client_id));
        let list = self.list.lock();
        let older = list.older(before);
        let mut found = older.filter(|(_, entry)| client.is_none_or(|one| entry.client == one));
        let (mut events, mut last) = (Vec::new(), None);
        for (number, entry) in found.by_ref().take(limit) {
            events.push(shown(entry));
            last = Some(number);
        }
        EventPage {
            events,
            next: last.filter(|_| found.next().is_some()),
            since_us: list.since_us(),
            forgotten: list.forgotten(),
        }
    }

    fn client(&self, id: &str) -> u64 {
        let bytes = id.as_bytes();
        let ends = bytes.len().min(ID_END_BYTES);
        let (begin, end) = (&bytes[..ends], &bytes[bytes.len() - ends..]);
        self.hashing.hash_one((bytes.len(), begin, end))
    }

    fn owner(&self, event: &ClientEvent<'_>) -> u64 {
        let network = || event.address.map(|address| network_of(address.ip()));
        match event.user {
            Some(user) => self.hashing.hash_one(user),
            None if event.what == What::Refused && event.act == Some("connect") => 0,
            None => self.hashing.hash_one(network()),
        }
    }
}

fn shown(entry: &Entry) -> EventRow {
    EventRow {
        client_id: entry.client_id.clone(),
        is_cut: entry.is_cut,
        what: entry.what.name(),
        act: entry.act,
        reason: entry.reason,
        topic: entry.topic.as_ref().map(|topic| topic.text().to_owned()),
        is_topic_cut: entry.topic.as_ref().is_some_and(|topic| topic.is_cut()),
        user: entry.user.clone(),
        address: entry.address,
        version: entry.version,
        count: entry.count,
        first_us: entry.first_us,
        last_us: entry.last_us,
    }
}
