//! What happened to clients of late: connects, ends of connections and sessions, refusals, and what operators did to
//! them. In memory only, in a bounded list; the admin listener shows it.
//!
//! The event loop notes events of connections and refusals, never messages. Equal events of a client that follow within
//! [`EQUAL_WITHIN_US`] are one entry with a count. When there is no room, whoever has most entries, and more than a
//! fair share, loses the oldest of them: a verified user, a network of clients without one, or all together whose
//! CONNECT was refused without one.
//! So neither a client in a loop nor a stranger who invents client ids pushes out what is known of others.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::clock::now_us;
use crate::peer::network_of;
use crate::words::words;

const ENTRIES_MAX: usize = 10_000;
const BYTES_MAX: usize = 2 << 20;
/// What the lists take for an entry, beside the entry itself.
const LISTED_BYTES: usize = 112;
const EQUAL_WITHIN_US: i64 = 600_000_000;
/// Characters of a name that are kept, because it may have 64 KiB.
const NAME_CHARS_MAX: usize = 64;
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
    /// The verified user; of [`What::Kicked`] the operator.
    pub user: Option<&'a str>,
    pub address: Option<SocketAddr>,
    /// Of MQTT.
    pub version: Option<&'static str>,
}

/// Equal events of a client.
#[derive(Debug)]
struct Entry {
    client: u64,
    owner: u64,
    equal: u64,
    client_id: Box<str>,
    is_cut: bool,
    what: What,
    act: Option<&'static str>,
    reason: &'static str,
    user: Option<Box<str>>,
    address: Option<SocketAddr>,
    version: Option<&'static str>,
    count: u64,
    first_us: i64,
    last_us: i64,
}

impl Entry {
    fn bytes(&self) -> usize {
        let user = self.user.as_ref().map_or(0, |user| user.len());
        size_of::<Self>() + LISTED_BYTES + self.client_id.len() + user
    }
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

#[derive(Debug, Default)]
struct List {
    /// By the number of their last event.
    entries: BTreeMap<u64, Box<Entry>>,
    /// Of the last event.
    number: u64,
    /// By their hash: the newest of equal entries.
    equal: FxHashMap<u64, u64>,
    /// Owner and number of each entry.
    owned: BTreeSet<(u64, u64)>,
    /// How many entries each owner has.
    counts: FxHashMap<u64, usize>,
    /// The same in the order of the counts.
    most: BTreeSet<(usize, u64)>,
    bytes: usize,
    since_us: i64,
    forgotten: u64,
}

impl Default for ClientEvents {
    fn default() -> Self {
        let list = List {
            since_us: now_us(),
            ..List::default()
        };
        Self {
            hashing: RandomState::new(),
            list: Mutex::new(list),
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
        if list.count_equal(equal, event.address, now_us) {
            return;
        }
        let (client_id, is_cut) = shorten(event.client_id);
        list.push(Box::new(Entry {
            client,
            owner,
            equal,
            client_id: client_id.into(),
            is_cut,
            what,
            act,
            reason,
            user: event.user.map(|user| shorten(user).0.into()),
            address: event.address,
            version: event.version,
            count: 1,
            first_us: now_us,
            last_us: now_us,
        }));
        while list.entries.len() > ENTRIES_MAX || list.bytes > BYTES_MAX {
            list.forget_one();
        }
    }

    /// Events of a client, or of all, that are older than those of the page before.
    pub fn page(&self, client_id: Option<&str>, before: Option<u64>, limit: usize) -> EventPage {
        let client = client_id.map(|client_id| self.client(client_id));
        let list = self.list.lock();
        let older = list.entries.range(..before.unwrap_or(u64::MAX)).rev();
        let mut found = older.filter(|(_, entry)| client.is_none_or(|one| entry.client == one));
        let (mut events, mut last) = (Vec::new(), None);
        for (number, entry) in found.by_ref().take(limit) {
            events.push(shown(entry));
            last = Some(*number);
        }
        EventPage {
            events,
            next: last.filter(|_| found.next().is_some()),
            since_us: list.since_us,
            forgotten: list.forgotten,
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

impl List {
    /// Counts an event if one like it was the last of its kind not long ago.
    fn count_equal(&mut self, equal: u64, address: Option<SocketAddr>, now_us: i64) -> bool {
        let Some(&number) = self.equal.get(&equal) else {
            return false;
        };
        let is_near = |entry: &Entry| now_us.saturating_sub(entry.last_us) < EQUAL_WITHIN_US;
        if !self
            .entries
            .get(&number)
            .is_some_and(|entry| is_near(entry))
        {
            return false;
        }
        let mut entry = self.take(number).expect("it was just there");
        entry.count += 1;
        entry.last_us = now_us;
        entry.address = address;
        self.push(entry);
        true
    }

    fn push(&mut self, entry: Box<Entry>) {
        self.number += 1;
        self.bytes += entry.bytes();
        self.equal.insert(entry.equal, self.number);
        self.owned.insert((entry.owner, self.number));
        let count = self.counts.entry(entry.owner).or_default();
        self.most.remove(&(*count, entry.owner));
        *count += 1;
        self.most.insert((*count, entry.owner));
        self.entries.insert(self.number, entry);
    }

    fn take(&mut self, number: u64) -> Option<Box<Entry>> {
        let entry = self.entries.remove(&number)?;
        self.bytes -= entry.bytes();
        if self.equal.get(&entry.equal) == Some(&number) {
            self.equal.remove(&entry.equal);
        }
        self.owned.remove(&(entry.owner, number));
        if let Some(count) = self.counts.get_mut(&entry.owner) {
            self.most.remove(&(*count, entry.owner));
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&entry.owner);
            } else {
                self.most.insert((*count, entry.owner));
            }
        }
        Some(entry)
    }

    /// Forgets one entry: the oldest of the owner with the most entries, if these are more than its fair share, and
    /// otherwise the oldest of all.
    fn forget_one(&mut self) {
        let is_over = |count: usize| count * self.counts.len() > self.entries.len();
        let most = self.most.last().filter(|(count, _)| is_over(*count));
        let oldest = match most {
            Some((_, owner)) => self.owned.range((*owner, 0)..).next(),
            None => None,
        };
        let oldest = oldest.map(|(_, number)| *number);
        let oldest = oldest.or_else(|| self.entries.keys().next().copied());
        if let Some(entry) = oldest.and_then(|number| self.take(number)) {
            self.forgotten += 1;
            self.since_us = self.since_us.max(entry.last_us);
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
        user: entry.user.clone(),
        address: entry.address,
        version: entry.version,
        count: entry.count,
        first_us: entry.first_us,
        last_us: entry.last_us,
    }
}

/// The beginning of a name, and whether there is more of it.
fn shorten(name: &str) -> (&str, bool) {
    let end = name.char_indices().nth(NAME_CHARS_MAX);
    end.map_or((name, false), |(end, _)| (&name[..end], true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected<'a>(client_id: &'a str, user: Option<&'a str>) -> ClientEvent<'a> {
        ClientEvent {
            client_id,
            what: What::Connected,
            act: None,
            reason: "new session",
            user,
            address: Some("192.0.2.7:4711".parse().unwrap()),
            version: Some("5"),
        }
    }

    fn refused(client_id: &str) -> ClientEvent<'_> {
        ClientEvent {
            what: What::Refused,
            act: Some("connect"),
            reason: "bad_credentials",
            ..connected(client_id, None)
        }
    }

    fn ids(page: &EventPage) -> Vec<&str> {
        page.events.iter().map(|row| &*row.client_id).collect()
    }

    #[test]
    fn events_come_back_newest_first_page_by_page_and_by_client() {
        let events = ClientEvents::default();
        for id in ["a", "b", "a", "c"] {
            events.note(&ClientEvent {
                reason: if id == "a" { "resumed" } else { "new session" },
                ..connected(id, None)
            });
        }
        let gone = ClientEvent {
            what: What::Disconnected,
            ..connected("a", None)
        };
        events.note(&gone);
        let all = events.page(None, None, 10);
        assert_eq!(ids(&all), ["a", "c", "a", "b"]);
        assert_eq!((all.events[2].count, all.next), (2, None));
        let first = events.page(None, None, 3);
        assert_eq!(ids(&first), ["a", "c", "a"]);
        let rest = events.page(None, first.next, 3);
        assert_eq!((ids(&rest), rest.next), (vec!["b"], None));
        assert_eq!(ids(&events.page(Some("a"), None, 9)), ["a", "a"]);
        assert_eq!(ids(&events.page(Some(""), None, 9)), [""; 0]);
    }

    #[test]
    fn equal_events_are_counted_while_they_follow_each_other() {
        let events = ClientEvents::default();
        let port = |port: u16| Some(SocketAddr::from(([192, 0, 2, 7], port)));
        for second in 0..1_000 {
            let event = ClientEvent {
                address: port(second),
                ..connected("loop", None)
            };
            events.note_at(&event, i64::from(second) * 1_000_000);
        }
        let page = events.page(Some("loop"), None, 10);
        let row = &page.events[0];
        assert_eq!((page.events.len(), row.count), (1, 1_000));
        assert_eq!((row.first_us, row.last_us), (0, 999_000_000));
        assert_eq!(row.address, port(999));
        events.note_at(&connected("loop", None), 999_000_000 + EQUAL_WITHIN_US);
        let counts = events.page(Some("loop"), None, 10).events;
        let counts: Vec<u64> = counts.iter().map(|row| row.count).collect();
        assert_eq!(counts, [1, 1_000], "much later it is another entry");
    }

    #[test]
    fn the_list_is_bounded_and_says_from_when_on_it_is_complete() {
        let events = ClientEvents::default();
        let begin = events.page(None, None, 1).since_us;
        for number in 0..2 * ENTRIES_MAX {
            let id = format!("client-{number}");
            events.note_at(&connected(&id, None), begin + number as i64);
        }
        let list = events.list.lock();
        assert!(list.entries.len() <= ENTRIES_MAX && list.bytes <= BYTES_MAX);
        let kept = list.entries.len();
        assert!(kept > ENTRIES_MAX / 2, "{kept}");
        assert_eq!(list.forgotten as usize, 2 * ENTRIES_MAX - kept);
        assert_eq!(list.since_us, begin + list.forgotten as i64 - 1);
        assert_eq!((list.equal.len(), list.owned.len()), (kept, kept));
        let bytes: usize = list.entries.values().map(|entry| entry.bytes()).sum();
        assert_eq!(list.bytes, bytes);
        assert_eq!((list.counts.len(), list.most.len()), (1, 1));
    }

    /// The promise to others; without it the client before the flood would be gone.
    #[test]
    fn a_flood_of_one_owner_pushes_out_its_own_events() {
        let floods: [fn(&str) -> ClientEvent<'_>; 2] =
            [refused, |id| connected(id, Some("mallory"))];
        for flood in floods {
            let events = ClientEvents::default();
            for number in 0..100 {
                events.note(&connected(&format!("pump-{number}"), Some("ann")));
                events.note(&connected(&format!("open-{number}"), None));
            }
            for number in 0..3 * ENTRIES_MAX {
                events.note(&flood(&format!("x{number}")));
            }
            for number in 0..100 {
                for id in [format!("pump-{number}"), format!("open-{number}")] {
                    assert_eq!(events.page(Some(&id), None, 1).events.len(), 1, "{id}");
                }
            }
        }
    }

    #[test]
    fn long_names_are_cut_and_still_told_apart() {
        let events = ClientEvents::default();
        let (one, other) = ("é".repeat(30_000), format!("{}x", "é".repeat(29_999)));
        events.note(&connected(&one, Some(&one)));
        events.note(&connected(&other, None));
        let page = events.page(Some(&one), None, 10);
        assert_eq!(page.events.len(), 1);
        let row = &page.events[0];
        assert_eq!((row.client_id.chars().count(), row.is_cut), (64, true));
        assert!(events.list.lock().bytes < 2_000);
    }
}
