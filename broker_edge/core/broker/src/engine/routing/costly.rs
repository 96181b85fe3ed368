//! Topics for which very many filters have to be tried. Their receivers are found in parts, so that the loop turns to
//! others in between, and kept: of a session that has changed since, only its own filters are tried again.
//!
//! Subscriptions come and go while a topic is searched. The search finds the sessions whose subscriptions were there all
//! the time; the others are among the changes since it began.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::engine::SessionKey;

use super::topics::{Matches, Target};
use super::walk::Place;

/// A topic that takes no more work is matched at once. The unit is a visited node of the subscription index.
pub const AT_ONCE_WORK: u32 = 1 << 13;
/// The work of a part of a search: a few milliseconds.
pub const PART_WORK: u32 = 1 << 12;
/// After so many parts that did not take all changes, the parts become twice as large, so that clients which change
/// their subscriptions all the time cannot hold up a topic for good.
pub const LATE_PARTS: u32 = 8;
/// How often they become larger at most.
const DOUBLINGS_MAX: u32 = 10;
/// Topics that are searched at the same time. The others wait, except for those that a partition waits for.
const SEARCHES_MAX: usize = 8;
/// Limits on the topics that are kept and on the memory of their receivers. Those used last stay.
const TOPICS_MAX: usize = 256;
const BYTES_MAX: usize = 64 << 20;
/// A search that nobody has asked for in this time is given up.
const SEARCH_IDLE_MS: u64 = 1_000;
/// A topic that was not used in this time is forgotten.
const IDLE_MS: u64 = 60_000;
/// Changed sessions that are remembered. With more, the topic that has not taken them for longest is forgotten.
const CHANGES_MAX: usize = 1 << 17;

/// A topic, and what is known of its receivers.
#[derive(Debug)]
pub struct CostlyTopic {
    name: Rc<str>,
    /// `None` once it has ended.
    pub search: Option<Box<Search>>,
    /// Changes of sessions up to this one were taken.
    pub as_of: u64,
    /// The same for the shared groups; `None` before they were first found.
    pub groups_as_of: Option<u64>,
    matches: Rc<Matches>,
    /// The index of each target.
    indexes: FxHashMap<SessionKey, usize>,
    /// Subscription identifiers of all targets.
    ids: usize,
    /// What the search has taken.
    pub work: u64,
    /// How many parts in a row have left changes.
    pub late: u32,
    used_ms: u64,
}

/// A search that has not ended.
#[derive(Debug, Default)]
pub struct Search {
    pub place: Option<Place>,
    /// All matching filters were found.
    pub is_walked: bool,
    found: FxHashSet<SessionKey>,
    /// Found sessions that were not looked at yet.
    left: Vec<SessionKey>,
}

impl Search {
    pub fn find(&mut self, session: SessionKey) {
        if self.found.insert(session) {
            self.left.push(session);
        }
    }

    pub fn next(&mut self) -> Option<SessionKey> {
        self.left.pop()
    }

    pub fn has_ended(&self) -> bool {
        self.is_walked && self.left.is_empty()
    }
}

impl CostlyTopic {
    pub fn matches(&self) -> &Rc<Matches> {
        &self.matches
    }

    pub fn matches_mut(&mut self) -> &mut Matches {
        Rc::make_mut(&mut self.matches)
    }

    /// The work of the next part.
    pub fn part_work(&self) -> u32 {
        PART_WORK << (self.late / LATE_PARTS).min(DOUBLINGS_MAX)
    }

    /// Replaces what is known of a session.
    pub fn put(&mut self, session: SessionKey, target: Option<Target>) {
        let targets = &mut Rc::make_mut(&mut self.matches).targets;
        let before = self.indexes.get(&session).map(|index| &targets[*index]);
        self.ids -= before.map_or(0, Target::ids);
        self.ids += target.as_ref().map_or(0, Target::ids);
        match (self.indexes.get(&session).copied(), target) {
            (Some(index), Some(target)) => targets[index] = target,
            (Some(index), None) => {
                targets.swap_remove(index);
                self.indexes.remove(&session);
                if let Some(moved) = targets.get(index) {
                    self.indexes.insert(moved.session, index);
                }
            }
            (None, Some(target)) => {
                self.indexes.insert(session, targets.len());
                targets.push(target);
            }
            (None, None) => {}
        }
    }

    fn bytes(&self) -> usize {
        let search = self.search.as_ref();
        let found = search.map_or(0, |search| search.found.len() + search.left.len());
        self.matches.targets.capacity() * size_of::<Target>()
            + self.ids * size_of::<u32>()
            + (self.indexes.len() * 3 + found * 2) * size_of::<u64>()
    }
}

/// Sessions by their last change, while there are topics that have to take it.
#[derive(Debug, Default)]
struct Changes {
    last: u64,
    numbers: FxHashMap<SessionKey, u64>,
    sessions: BTreeMap<u64, SessionKey>,
}

impl Changes {
    fn note(&mut self, session: SessionKey) {
        self.last += 1;
        if let Some(before) = self.numbers.insert(session, self.last) {
            self.sessions.remove(&before);
        }
        self.sessions.insert(self.last, session);
    }

    fn forget_until(&mut self, number: u64) {
        while let Some(first) = self.sessions.first_entry()
            && *first.key() <= number
        {
            self.numbers.remove(&first.remove());
        }
    }
}

#[derive(Debug, Default)]
pub struct CostlyTopics {
    topics: FxHashMap<Rc<str>, Box<CostlyTopic>>,
    changes: Changes,
    /// Incremented by every change of the shared groups.
    group_changes: u64,
    now_ms: u64,
}

impl CostlyTopics {
    /// Begins a turn.
    #[inline]
    pub fn begin_turn(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        if !self.topics.is_empty() {
            self.forget_idle();
        }
    }

    fn forget_idle(&mut self) {
        let now_ms = self.now_ms;
        self.topics.retain(|_, topic| {
            let idle_ms = match topic.search {
                Some(_) => SEARCH_IDLE_MS,
                None => IDLE_MS,
            };
            now_ms - topic.used_ms <= idle_ms
        });
        if self.changes.numbers.len() > CHANGES_MAX {
            let topics = self.topics.values();
            let oldest = topics.min_by_key(|topic| topic.as_of);
            if let Some(name) = oldest.map(|topic| Rc::clone(&topic.name)) {
                self.topics.remove(&name);
            }
        }
        let taken = self.topics.values().map(|topic| topic.as_of).min();
        self.changes.forget_until(taken.unwrap_or(u64::MAX));
    }

    /// Takes a topic out to go on with it; [`CostlyTopics::put`] puts it back.
    pub fn take(&mut self, name: &str) -> Option<Box<CostlyTopic>> {
        if self.topics.is_empty() {
            return None;
        }
        self.topics.remove(name)
    }

    /// Begins the search for a topic, unless enough others are searched. One that deliveries wait for is always begun.
    pub fn begin(&self, name: &Rc<str>, is_due: bool) -> Option<Box<CostlyTopic>> {
        let searches = self.topics.values().filter(|topic| topic.search.is_some());
        if !is_due && searches.count() >= SEARCHES_MAX {
            return None;
        }
        Some(Box::new(CostlyTopic {
            name: Rc::clone(name),
            search: Some(Box::default()),
            as_of: self.changes.last,
            groups_as_of: None,
            matches: Rc::default(),
            indexes: FxHashMap::default(),
            ids: 0,
            work: 0,
            late: 0,
            used_ms: self.now_ms,
        }))
    }

    pub fn put(&mut self, mut topic: Box<CostlyTopic>) {
        topic.used_ms = self.now_ms;
        let others = self.topics.values().map(|topic| topic.bytes());
        let mut kept = topic.bytes() + others.sum::<usize>();
        while kept > BYTES_MAX || self.topics.len() >= TOPICS_MAX {
            let ended = self.topics.values().filter(|topic| topic.search.is_none());
            let Some(oldest) = ended.min_by_key(|topic| topic.used_ms) else {
                break;
            };
            let name = Rc::clone(&oldest.name);
            kept -= self.topics.remove(&name).map_or(0, |topic| topic.bytes());
        }
        self.topics.insert(Rc::clone(&topic.name), topic);
    }

    /// Forgets all topics: every session may have changed.
    pub fn clear(&mut self) {
        self.topics.clear();
        self.changes.forget_until(u64::MAX);
    }

    /// The subscriptions of a session have changed, or its connection.
    #[inline]
    pub fn note_session(&mut self, session: SessionKey) {
        if !self.topics.is_empty() {
            self.changes.note(session);
        }
    }

    pub fn note_groups(&mut self) {
        self.group_changes += 1;
    }

    pub fn group_changes(&self) -> u64 {
        self.group_changes
    }

    /// The first session that has changed since, and the number of its change.
    pub fn changed_after(&self, number: u64) -> Option<(u64, SessionKey)> {
        let after = (Bound::Excluded(number), Bound::Unbounded);
        let (number, session) = self.changes.sessions.range(after).next()?;
        Some((*number, *session))
    }
}
