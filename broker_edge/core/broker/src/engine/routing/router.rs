//! The subscription index: which subscribers a topic reaches.
//!
//! Filters without wildcards are looked up by hash; the others are in a tree of levels. The index has every
//! subscription of every session and every shared group; disconnected sessions are only counted. It knows nothing of
//! connections: the caller decides which sessions can be delivered to. Matching recurses once per level, so the caller
//! limits the levels of a filter.

use std::collections::HashMap;

use headwater_mqtt::QoS;

use crate::engine::SessionKey;
use crate::engine::ids::GroupId;

use super::entries::{Entries, Entry};

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

#[derive(Debug)]
struct Node<E> {
    levels: HashMap<Box<str>, Node<E>>,
    /// `+` at the next level.
    any: Option<Box<Node<E>>>,
    /// Filters that end here.
    here: Entries<E>,
    /// Filters that end with `#` below here.
    below: Entries<E>,
}

impl<E> Default for Node<E> {
    fn default() -> Self {
        Self {
            levels: HashMap::new(),
            any: None,
            here: Entries::default(),
            below: Entries::default(),
        }
    }
}

impl<E> Node<E> {
    fn is_empty(&self) -> bool {
        self.levels.is_empty()
            && self.any.is_none()
            && self.here.is_empty()
            && self.below.is_empty()
    }
}

/// Entries by filter. Most filters have one subscriber: a device's own topic.
#[derive(Debug)]
struct Index<E> {
    exact: HashMap<Box<str>, Entries<E>>,
    root: Node<E>,
}

impl<E> Default for Index<E> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            root: Node::default(),
        }
    }
}

impl<E: Entry> Index<E> {
    fn entries_of(&mut self, filter: &str) -> &mut Entries<E> {
        if has_wildcard(filter) {
            entries_below(&mut self.root, filter)
        } else if self.exact.contains_key(filter) {
            self.exact.get_mut(filter).expect("it was just there")
        } else {
            self.exact.entry(filter.into()).or_default()
        }
    }

    /// Calls `remove` on the entries of a filter and returns its result.
    fn remove(&mut self, filter: &str, remove: impl Fn(&mut Entries<E>) -> bool) -> bool {
        if has_wildcard(filter) {
            return remove_below(&mut self.root, filter, &remove);
        }
        let Some(entries) = self.exact.get_mut(filter) else {
            return false;
        };
        let removed = remove(entries);
        if entries.is_empty() {
            self.exact.remove(filter);
        }
        removed
    }

    fn for_each_match(&self, topic: &str, found: &mut impl FnMut(&Entries<E>)) {
        if let Some(entries) = self.exact.get(topic) {
            found(entries);
        }
        if topic.starts_with('$') {
            // Wildcards at the first level do not match topics that begin with `$` (MQTT-4.7.2-1).
            let (first, rest) = split_level(topic);
            if let Some(node) = self.root.levels.get(first) {
                visit(node, rest, found);
            }
        } else {
            visit(&self.root, Some(topic), found);
        }
    }
}

#[derive(Debug, Default)]
pub struct Router {
    plain: Index<Subscriber>,
    /// Shared groups, by their filter without `$share/<name>/`.
    shared: Index<GroupId>,
    groups: usize,
    /// Incremented by every change, which invalidates cached matches.
    epoch: u64,
    subscriptions: usize,
}

impl Router {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Invalidates cached matches although no filter changed: a session connected or disconnected.
    pub fn advance(&mut self) {
        self.epoch += 1;
    }

    /// Number of subscriptions of sessions, without shared ones.
    pub fn len(&self) -> usize {
        self.subscriptions
    }

    /// There is no subscription.
    pub fn is_empty(&self) -> bool {
        self.subscriptions == 0 && self.groups == 0
    }

    /// Adds a subscription, or replaces that session's subscription to the same filter.
    pub fn insert(&mut self, filter: &str, subscriber: Subscriber) {
        self.epoch += 1;
        let is_new = self.plain.entries_of(filter).insert(subscriber);
        self.subscriptions += usize::from(is_new);
    }

    pub fn remove(&mut self, filter: &str, session: SessionKey) {
        self.epoch += 1;
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
        self.epoch += 1;
        self.groups += usize::from(self.shared.entries_of(filter).insert(group));
    }

    pub fn remove_group(&mut self, filter: &str, group: GroupId) {
        self.epoch += 1;
        let number = group.number();
        let removed = self.shared.remove(filter, |entries| entries.remove(number));
        self.groups -= usize::from(removed);
    }

    /// Calls `found` for every subscription whose filter matches `topic` and whose session is connected. A session with
    /// overlapping filters is found more than once. Returns whether disconnected sessions match too.
    pub fn for_each_match(&self, topic: &str, found: &mut impl FnMut(&Subscriber)) -> bool {
        let mut has_away = false;
        self.plain.for_each_match(topic, &mut |entries| {
            has_away |= entries.has_away();
            entries.iter().for_each(&mut *found);
        });
        has_away
    }

    /// The same for the shared groups.
    pub fn for_each_group(&self, topic: &str, found: &mut impl FnMut(&GroupId)) {
        if self.groups > 0 {
            self.shared
                .for_each_match(topic, &mut |entries| entries.iter().for_each(&mut *found));
        }
    }
}

fn has_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| matches!(byte, b'+' | b'#'))
}

/// The first level, and the text after its slash.
fn split_level(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    }
}

fn entries_below<'a, E>(mut node: &'a mut Node<E>, filter: &str) -> &'a mut Entries<E> {
    let mut rest = Some(filter);
    while let Some(text) = rest {
        let (level, next) = split_level(text);
        match level {
            "#" => return &mut node.below,
            "+" => node = node.any.get_or_insert_default(),
            _ => node = node.levels.entry(level.into()).or_default(),
        }
        rest = next;
    }
    &mut node.here
}

/// Removes an entry of a filter and the nodes that are then unused.
fn remove_below<E>(
    node: &mut Node<E>,
    filter: &str,
    remove: &impl Fn(&mut Entries<E>) -> bool,
) -> bool {
    let (level, rest) = split_level(filter);
    if level == "#" {
        return remove(&mut node.below);
    }
    let child = if level == "+" {
        node.any.as_deref_mut()
    } else {
        node.levels.get_mut(level)
    };
    let Some(child) = child else { return false };
    let removed = match rest {
        Some(rest) => remove_below(child, rest, remove),
        None => remove(&mut child.here),
    };
    if child.is_empty() {
        if level == "+" {
            node.any = None;
        } else {
            node.levels.remove(level);
        }
    }
    removed
}

/// `rest` is `None` after the last level.
fn visit<E>(node: &Node<E>, rest: Option<&str>, found: &mut impl FnMut(&Entries<E>)) {
    found(&node.below);
    let Some(text) = rest else {
        found(&node.here);
        return;
    };
    let (level, next) = split_level(text);
    if let Some(child) = node.levels.get(level) {
        visit(child, next, found);
    }
    if let Some(child) = &node.any {
        visit(child, next, found);
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

    fn matches(router: &Router, topic: &str) -> Vec<u64> {
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
        let mut router = Router::default();
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
        let mut router = Router::default();
        for filter in ["a/b", "a/+"] {
            router.insert(filter, subscriber(1));
            router.insert(filter, subscriber(2));
            router.unlist(filter, SessionKey::from_bits(1));
            router.insert_away(filter);
        }
        assert_eq!((matches(&router, "a/b"), router.len()), (vec![2, 2], 6));
        assert!(router.for_each_match("a/b", &mut |_| {}));
        assert!(!router.for_each_match("a", &mut |_| {}));
        for filter in ["a/b", "a/+"] {
            router.relist(filter, subscriber(1));
            router.remove_away(filter);
        }
        assert_eq!((matches(&router, "a/b").len(), router.len()), (4, 4));
        assert!(!router.for_each_match("a/b", &mut |_| {}));
        for filter in ["a/b", "a/+"] {
            router.unlist(filter, SessionKey::from_bits(1));
            router.remove_away(filter);
            router.remove(filter, SessionKey::from_bits(2));
        }
        assert_eq!(router.len(), 0);
        assert!(router.plain.root.is_empty() && router.plain.exact.is_empty());
    }

    #[test]
    fn removing_every_subscription_leaves_nothing_behind() {
        let mut router = Router::default();
        for filter in ["a/b", "a/+/c", "a/#", "+"] {
            router.insert(filter, subscriber(1));
            router.insert(filter, subscriber(1));
        }
        assert_eq!(router.len(), 4);
        router.remove("a/+/c", SessionKey::from_bits(2));
        assert_eq!(router.len(), 4);
        for filter in ["a/b", "a/+/c", "a/#", "+", "+"] {
            router.remove(filter, SessionKey::from_bits(1));
        }
        assert_eq!(router.len(), 0);
        assert!(router.plain.root.is_empty() && router.plain.exact.is_empty());
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
        prop::collection::vec(level(), 1..4).prop_map(|levels| levels.join("/"))
    }

    fn filter() -> impl Strategy<Value = String> {
        let part = prop_oneof![3 => level(), 1 => Just("+".to_owned())];
        (prop::collection::vec(part, 1..4), any::<bool>()).prop_map(|(mut levels, all)| {
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
            filters in prop::collection::vec(filter(), 1..12),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            topics in prop::collection::vec(topic(), 1..8),
        ) {
            let mut router = Router::default();
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
