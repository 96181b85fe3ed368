//! The subscription index: which subscribers a topic reaches.
//!
//! It has every subscription of every session and every shared group; disconnected sessions are only counted. It knows
//! nothing of connections: the caller decides which sessions can be delivered to.

use headwater_mqtt::QoS;

use crate::engine::SessionKey;
use crate::engine::ids::GroupId;

use super::Routing;
use super::entries::{Entries, Entry};
use super::walk::Place;

/// So many subscriptions of one filter count as much as a visited node.
const ENTRIES_PER_WORK: u32 = 16;

/// The options of a SUBSCRIBE for one filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// As granted.
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// The subscription identifier; zero if the client gave none.
    pub id: u32,
    /// Deliveries carry their offset and time as user properties (MQTT 5).
    pub offsets: bool,
    /// Deliveries arrive on `$at/<partition>:<offset>/<topic>`.
    pub offset_topics: bool,
}

/// One subscription of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscriber {
    pub session: SessionKey,
    pub options: Options,
    /// The subscription is replaying: it exists, but is not part of the live stream yet.
    pub replaying: bool,
}

impl Entry for Subscriber {
    fn number(&self) -> u64 {
        self.session.to_bits()
    }
}

impl Entry for GroupId {
    fn number(&self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Routing {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Invalidates cached matches although no filter changed: a session connected or disconnected.
    pub fn note_session(&mut self, session: SessionKey, is_member: bool) {
        self.epoch += 1;
        self.costly.note_session(session);
        if is_member {
            self.costly.note_groups();
        }
    }

    /// The same for the members of a group.
    pub fn note_groups(&mut self) {
        self.epoch += 1;
        self.costly.note_groups();
    }

    /// The same for all sessions and groups.
    pub fn note_all(&mut self) {
        self.epoch += 1;
        self.costly.clear();
    }

    /// Number of subscriptions of sessions, without shared ones.
    pub fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// There is no subscription.
    pub fn is_empty(&self) -> bool {
        self.subscriptions == 0 && self.groups == 0
    }

    /// Adds a subscription, or replaces that session's subscription to the same filter.
    pub fn insert(&mut self, filter: &str, subscriber: Subscriber) {
        self.note_session(subscriber.session, false);
        let is_new = self.plain.entries_of(filter).insert(subscriber);
        self.subscriptions += usize::from(is_new);
    }

    pub fn remove(&mut self, filter: &str, session: SessionKey) {
        self.note_session(session, false);
        let number = session.to_bits();
        let removed = self.plain.remove(filter, |entries| entries.remove(number));
        self.subscriptions -= usize::from(removed);
    }

    /// The session of a subscription was disconnected. The caller has to invalidate cached matches.
    pub fn unlist(&mut self, filter: &str, session: SessionKey) {
        let entries = self.plain.entries_of(filter);
        if entries.remove(session.to_bits()) {
            entries.add_away();
        }
    }

    /// The client of a subscription's session is back. The caller has to invalidate cached matches.
    pub fn relist(&mut self, filter: &str, subscriber: Subscriber) {
        let entries = self.plain.entries_of(filter);
        let was_away = entries.remove_away();
        let is_new = entries.insert(subscriber);
        debug_assert!(was_away && is_new, "{filter} was not at rest");
        self.subscriptions += usize::from(is_new);
        self.subscriptions -= usize::from(was_away);
    }

    /// Adds the subscription of a disconnected session.
    pub fn insert_away(&mut self, filter: &str) {
        self.epoch += 1;
        self.plain.entries_of(filter).add_away();
        self.subscriptions += 1;
    }

    /// Removes the subscription of a disconnected session.
    pub fn remove_away(&mut self, filter: &str) {
        self.epoch += 1;
        let removed = self.plain.remove(filter, Entries::remove_away);
        self.subscriptions -= usize::from(removed);
    }

    pub fn insert_group(&mut self, filter: &str, group: GroupId) {
        self.note_groups();
        self.groups += usize::from(self.shared.entries_of(filter).insert(group));
    }

    pub fn remove_group(&mut self, filter: &str, group: GroupId) {
        self.note_groups();
        let number = group.number();
        let removed = self.shared.remove(filter, |entries| entries.remove(number));
        self.groups -= usize::from(removed);
    }

    /// Calls `found` for every subscription whose filter matches `topic` and whose session is connected. A session with
    /// overlapping filters is found more than once. Returns whether disconnected sessions match too.
    pub fn for_each_match(&self, topic: &str, found: &mut impl FnMut(&Subscriber)) -> bool {
        let mut has_away = false;
        let visits = self.plain.for_each_match(topic, &mut |entries| {
            has_away |= entries.has_away();
            entries.iter().for_each(&mut *found);
        });
        self.add_work(u64::from(visits));
        has_away
    }

    /// The same from a place on, until that was this much work. Returns the place to go on at, if there is more.
    pub fn match_from(
        &self,
        topic: &str,
        from: Option<&Place>,
        work_max: u32,
        found: &mut impl FnMut(&Entries<Subscriber>),
    ) -> Option<Place> {
        let mut counted = |entries: &Entries<Subscriber>| {
            found(entries);
            entries.iter().len() as u32 / ENTRIES_PER_WORK
        };
        let (work, place) = self.plain.match_from(topic, from, work_max, &mut counted);
        self.add_work(u64::from(work));
        place
    }

    /// Calls `found` for every shared group whose filter matches `topic`.
    pub fn for_each_group(&self, topic: &str, found: &mut impl FnMut(&GroupId)) {
        if self.groups > 0 {
            let visits = self
                .shared
                .for_each_match(topic, &mut |entries| entries.iter().for_each(&mut *found));
            self.add_work(u64::from(visits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subscriber(session: u64) -> Subscriber {
        let options = Options {
            qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            id: 0,
            offsets: false,
            offset_topics: false,
        };
        Subscriber {
            session: SessionKey::from_bits(session),
            options,
            replaying: false,
        }
    }

    fn matches(router: &Routing, topic: &str) -> Vec<u64> {
        let mut found = Vec::new();
        router.for_each_match(topic, &mut |subscriber| {
            found.push(subscriber.session.to_bits())
        });
        found.sort_unstable();
        found
    }

    #[test]
    fn the_parent_level_belongs_to_a_multi_level_wildcard_and_dollar_topics_to_no_leading_wildcard()
    {
        let mut router = Routing::default();
        for (session, filter) in ["a/#", "+/b", "#", "$SYS/#", "a/+/c", "/+", "a/b"]
            .iter()
            .enumerate()
        {
            router.insert(filter, subscriber(session as u64));
        }
        assert_eq!(matches(&router, "a"), [0, 2]);
        assert_eq!(matches(&router, "a/b"), [0, 1, 2, 6]);
        assert_eq!(matches(&router, "a/b/c"), [0, 2, 4]);
        assert_eq!(matches(&router, "$SYS/b"), [3]);
        assert_eq!(matches(&router, "/x"), [2, 5]);
    }

    #[test]
    fn a_subscription_whose_client_is_away_is_not_found_and_still_there() {
        let mut router = Routing::default();
        for filter in ["a/b", "a/+"] {
            router.insert(filter, subscriber(1));
            router.insert(filter, subscriber(2));
            router.unlist(filter, SessionKey::from_bits(1));
            router.insert_away(filter);
        }
        assert_eq!(
            (matches(&router, "a/b"), router.subscriptions()),
            (vec![2, 2], 6)
        );
        assert!(router.for_each_match("a/b", &mut |_| {}));
        assert!(!router.for_each_match("a", &mut |_| {}));
        for filter in ["a/b", "a/+"] {
            router.relist(filter, subscriber(1));
            router.remove_away(filter);
        }
        assert_eq!(
            (matches(&router, "a/b").len(), router.subscriptions()),
            (4, 4)
        );
        assert!(!router.for_each_match("a/b", &mut |_| {}));
        for filter in ["a/b", "a/+"] {
            router.unlist(filter, SessionKey::from_bits(1));
            router.remove_away(filter);
            router.remove(filter, SessionKey::from_bits(2));
        }
        assert_eq!(router.subscriptions(), 0);
        assert!(router.plain.is_empty());
    }

    #[test]
    fn removing_every_subscription_leaves_nothing_behind() {
        let mut router = Routing::default();
        for filter in ["a/b", "a/+/c", "a/#", "+"] {
            router.insert(filter, subscriber(1));
            router.insert(filter, subscriber(1));
        }
        assert_eq!(router.subscriptions(), 4);
        router.remove("a/+/c", SessionKey::from_bits(2));
        assert_eq!(router.subscriptions(), 4);
        for filter in ["a/b", "a/+/c", "a/#", "+", "+"] {
            router.remove(filter, SessionKey::from_bits(1));
        }
        assert_eq!(router.subscriptions(), 0);
        assert!(router.plain.is_empty());
    }

    fn level() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            Just("a".into()),
            Just("b".into()),
            Just("$c".into())
        ]
    }

    fn topic() -> impl Strategy<Value = String> {
        prop::collection::vec(level(), 1..7).prop_map(|levels| levels.join("/"))
    }

    fn filter() -> impl Strategy<Value = String> {
        let part = prop_oneof![3 => level(), 1 => Just("+".to_owned())];
        (prop::collection::vec(part, 1..7), any::<bool>()).prop_map(|(mut levels, all)| {
            if all {
                levels.pop();
                levels.push("#".to_owned());
            }
            levels.join("/")
        })
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_matching_each_filter_finds(
            filters in prop::collection::vec(filter(), 1..24),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            topics in prop::collection::vec(topic(), 1..8),
        ) {
            let mut router = Routing::default();
            let mut left: Vec<(u64, String)> = Vec::new();
            for (session, filter) in filters.iter().enumerate() {
                router.insert(filter, subscriber(session as u64));
                left.push((session as u64, filter.clone()));
            }
            for index in removed {
                let at = index.index(left.len());
                if left.len() > 1 {
                    let (session, filter) = left.remove(at);
                    router.remove(&filter, SessionKey::from_bits(session));
                }
            }
            for topic in topics.iter().filter(|topic| !topic.is_empty()) {
                let mut expected: Vec<u64> = left
                    .iter()
                    .filter(|(_, filter)| !filter.is_empty() && headwater_mqtt::filter_matches(filter, topic))
                    .map(|(session, _)| *session)
                    .collect();
                expected.sort_unstable();
                let found: Vec<u64> = matches(&router, topic)
                    .into_iter()
                    .filter(|session| left.iter().any(|(key, filter)| key == session && !filter.is_empty()))
                    .collect();
                prop_assert_eq!(found, expected, "topic {:?}", topic);
            }
        }
    }
}
