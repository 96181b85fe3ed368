//! The list of events: in the order of time, within a budget, and fair to owners when the budget is used up.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rustc_hash::FxHashMap;

use super::What;
use crate::kept_text::{KeptText, cut_topic};

pub const ENTRIES_MAX: usize = 10_000;
pub const BYTES_MAX: usize = 2 << 20;
/// What the lists take for an entry, beside the entry itself.
const LISTED_BYTES: usize = 112;
pub const EQUAL_WITHIN_US: i64 = 600_000_000;

/// Equal events of a client.
#[derive(Debug)]
pub struct Entry {
    pub client: u64,
    pub owner: u64,
    pub equal: u64,
    pub client_id: Box<str>,
    pub is_cut: bool,
    pub what: What,
    pub act: Option<&'static str>,
    pub reason: &'static str,
    pub user: Option<Box<str>>,
    pub address: Option<SocketAddr>,
    pub version: Option<&'static str>,
    /// Of the newest of them, where it is known. Most entries have none.
    pub topic: Option<Box<KeptText>>,
    pub count: u64,
    pub first_us: i64,
    pub last_us: i64,
}

impl Entry {
    fn bytes(&self) -> usize {
        let user = self.user.as_ref().map_or(0, |user| user.len());
        let topic = self.topic.as_ref();
        let topic = topic.map_or(0, |topic| size_of::<KeptText>() + topic.bytes());
        size_of::<Self>() + LISTED_BYTES + self.client_id.len() + user + topic
    }

    /// Keeps the topic of an event; an event without one leaves that of an earlier one.
    pub fn keep_topic(&mut self, topic: Option<&str>) {
        if let Some(topic) = topic {
            self.topic.get_or_insert_default().set(cut_topic(topic));
        }
    }
}

#[derive(Debug, Default)]
pub struct List {
    /// By the number of their last event.
    entries: BTreeMap<u64, Box<Entry>>,
    /// Of the last event.
    number: u64,
    /// By their hash: the newest of equal entries.
    equal: FxHashMap<u64, u64>,
    /// Owner and number of each entry.
    owned: BTreeSet<(u64, u64)>,
    /// The bytes of all entries of each owner: a share in bytes, because an entry with a long topic is worth several.
    taken: FxHashMap<u64, usize>,
    /// The same in the order of the bytes.
    most: BTreeSet<(usize, u64)>,
    bytes: usize,
    since_us: i64,
    forgotten: u64,
}

impl List {
    pub fn new(since_us: i64) -> Self {
        Self {
            since_us,
            ..Self::default()
        }
    }

    /// Every event from then on is known.
    pub fn since_us(&self) -> i64 {
        self.since_us
    }

    /// Entries that had to make room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Entries with their numbers that are older than the one with this number, the newest first.
    pub fn older(&self, than: Option<u64>) -> impl Iterator<Item = (u64, &Entry)> {
        let older = self.entries.range(..than.unwrap_or(u64::MAX)).rev();
        older.map(|(number, entry)| (*number, &**entry))
    }

    /// Counts an event if one like it was the last of its kind not long ago.
    pub fn count_equal(
        &mut self,
        equal: u64,
        (address, topic): (Option<SocketAddr>, Option<&str>),
        now_us: i64,
    ) -> bool {
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
        entry.keep_topic(topic);
        self.push(entry);
        true
    }

    /// Adds an entry as the newest. Others make room for it.
    pub fn push(&mut self, entry: Box<Entry>) {
        self.number += 1;
        let bytes = entry.bytes();
        self.bytes += bytes;
        self.equal.insert(entry.equal, self.number);
        self.owned.insert((entry.owner, self.number));
        let taken = self.taken.entry(entry.owner).or_default();
        self.most.remove(&(*taken, entry.owner));
        *taken += bytes;
        self.most.insert((*taken, entry.owner));
        self.entries.insert(self.number, entry);
        while self.entries.len() > ENTRIES_MAX || self.bytes > BYTES_MAX {
            self.forget_one();
        }
    }

    fn take(&mut self, number: u64) -> Option<Box<Entry>> {
        let entry = self.entries.remove(&number)?;
        let bytes = entry.bytes();
        self.bytes -= bytes;
        if self.equal.get(&entry.equal) == Some(&number) {
            self.equal.remove(&entry.equal);
        }
        self.owned.remove(&(entry.owner, number));
        if let Some(taken) = self.taken.get_mut(&entry.owner) {
            self.most.remove(&(*taken, entry.owner));
            *taken -= bytes;
            if *taken == 0 {
                self.taken.remove(&entry.owner);
            } else {
                self.most.insert((*taken, entry.owner));
            }
        }
        Some(entry)
    }

    /// Forgets one entry: the oldest of the owner with the most bytes, if these are more than its fair share, and
    /// otherwise the oldest of all.
    fn forget_one(&mut self) {
        let is_over = |bytes: usize| bytes * self.taken.len() > self.bytes;
        let most = self.most.last().filter(|(bytes, _)| is_over(*bytes));
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

    /// The sizes of everything that it has, for tests of its bounds.
    #[cfg(test)]
    pub fn check(&self) -> (usize, usize) {
        let kept = self.entries.len();
        assert!(kept <= ENTRIES_MAX && self.bytes <= BYTES_MAX);
        assert!(self.equal.len() <= kept && self.owned.len() == kept);
        assert_eq!(self.taken.len(), self.most.len());
        assert_eq!(self.taken.values().sum::<usize>(), self.bytes);
        let bytes: usize = self.entries.values().map(|entry| entry.bytes()).sum();
        assert_eq!(self.bytes, bytes);
        (kept, bytes)
    }
}
