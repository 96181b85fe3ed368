//! Interned topics: the lookup result of a topic name, cached while the name is in use.
//!
//! An entry holds the route of its topic and the cached list of live subscribers. The table is a bounded cache: when it
//! is full it is emptied and fills again with use; earlier identifiers then find nothing.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use ahash::RandomState;
use headwater_log::{Log, TopicIndex};
use headwater_mqtt::QoS;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::{ConnKey, SessionKey};

use super::Routing;
use super::router::Options;
use super::work::{ids_of, work_of_deliveries};

/// Limit on cached topics; an entry takes about 200 bytes.
const TOPICS_MAX: usize = 100_000;
/// Limit on the bytes of their names, which publishers choose.
const NAMES_BYTES_MAX: usize = 16 << 20;
/// Limit on the bytes of the cached receivers of all topics. One topic may have very many receivers, and each may have
/// many identifiers. Above it all of them are found again with use.
const MATCHES_BYTES_MAX: usize = 64 << 20;

/// An entry of the table, valid until the table is emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TopicId {
    index: u32,
    /// Zero belongs to no table, so the default finds nothing.
    generation: u32,
}

/// One session that currently gets the records of a topic.
#[derive(Debug, Clone)]
pub struct Target {
    pub session: SessionKey,
    pub conn: ConnKey,
    pub effective: EffectiveOptions,
}

impl Target {
    /// The number of its subscription identifiers.
    pub fn ids(&self) -> usize {
        self.effective.ids.as_ref().map_or(0, |ids| ids.len())
    }
}

/// The receivers of a topic's records.
#[derive(Debug, Default, Clone)]
pub struct Matches {
    pub targets: Vec<Target>,
    /// Shared groups; each gives a record to one of its members.
    pub groups: Vec<GroupId>,
    /// Some session has a matching subscription, even if it is disconnected or replaying.
    pub any: bool,
}

impl Matches {
    /// Whether a record may be delivered now.
    pub fn is_wanted(&self) -> bool {
        !self.targets.is_empty() || !self.groups.is_empty()
    }

    /// The work of delivering a record to all of them.
    pub fn delivery_work(&self) -> u64 {
        work_of_deliveries(self.targets.len(), self.ids())
    }

    fn ids(&self) -> usize {
        self.targets.iter().map(Target::ids).sum()
    }

    /// The memory that it takes.
    fn bytes(&self) -> usize {
        self.targets.capacity() * size_of::<Target>()
            + self.groups.capacity() * size_of::<GroupId>()
            + self.ids() * size_of::<u32>()
    }
}

#[derive(Debug)]
pub struct Topic {
    pub name: Rc<str>,
    pub partition: PartitionIndex,
    /// The routing level within the name.
    pub key: Range<u16>,
    /// The index of this topic in the `Records` with that stamp.
    pub staged: (u64, TopicIndex),
    matched_at: u64,
    matches: Rc<Matches>,
    /// The work of finding them.
    work: u64,
    delivery_work: u64,
}

impl Topic {
    /// The work of finding its receivers, when that was last done.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// The work of delivering one of its records to the receivers that were last found.
    pub fn delivery_work(&self) -> u64 {
        self.delivery_work
    }

    /// The subscription identifiers that so many deliveries of one of its records carry.
    pub fn ids(&self, receivers: usize) -> usize {
        ids_of(self.delivery_work, receivers)
    }
}

pub struct Topics {
    by_name: HashMap<Rc<str>, u32, RandomState>,
    table: Vec<Topic>,
    names_bytes: usize,
    matches_bytes: usize,
    generation: u32,
}

impl Default for Topics {
    fn default() -> Self {
        Self {
            by_name: HashMap::default(),
            table: Vec::new(),
            names_bytes: 0,
            matches_bytes: 0,
            generation: 1,
        }
    }
}

impl Topics {
    /// Forgets the receivers of all topics if `bytes` more do not fit.
    fn make_room(&mut self, bytes: usize) {
        if self.matches_bytes + bytes <= MATCHES_BYTES_MAX {
            return;
        }
        for topic in &mut self.table {
            topic.matches = Rc::default();
            topic.matched_at = u64::MAX;
        }
        self.matches_bytes = 0;
    }
}

impl Routing {
    /// Number of interned topics.
    pub fn topics_len(&self) -> usize {
        self.topics.table.len()
    }

    pub fn holds_topic(&self, name: &str) -> bool {
        self.topics.by_name.contains_key(name)
    }

    /// Changes when the table of topics is emptied.
    pub fn generation(&self) -> u32 {
        self.topics.generation
    }

    /// The entry of a topic name, created if needed.
    pub fn intern(&mut self, name: &str, log: &Log) -> TopicId {
        let topics = &mut self.topics;
        if let Some(index) = topics.by_name.get(name) {
            return TopicId {
                index: *index,
                generation: topics.generation,
            };
        }
        if topics.table.len() >= TOPICS_MAX || topics.names_bytes + name.len() > NAMES_BYTES_MAX {
            topics.by_name.clear();
            topics.table.clear();
            topics.names_bytes = 0;
            topics.matches_bytes = 0;
            topics.generation = topics.generation.wrapping_add(1).max(1);
        }
        let route = log.route(name);
        let index = topics.table.len() as u32;
        topics.names_bytes += name.len();
        let name: Rc<str> = name.into();
        topics.by_name.insert(Rc::clone(&name), index);
        topics.table.push(Topic {
            name,
            partition: PartitionIndex::of(route.partition),
            key: route.key,
            staged: (0, TopicIndex(0)),
            matched_at: u64::MAX,
            matches: Rc::default(),
            work: 0,
            delivery_work: 0,
        });
        TopicId {
            index,
            generation: topics.generation,
        }
    }

    #[inline]
    pub fn topic(&self, id: TopicId) -> Option<&Topic> {
        let table = &self.topics.table;
        (id.generation == self.topics.generation).then(|| table.get(id.index as usize))?
    }

    #[inline]
    pub fn topic_mut(&mut self, id: TopicId) -> Option<&mut Topic> {
        let table = &mut self.topics.table;
        (id.generation == self.topics.generation).then(|| table.get_mut(id.index as usize))?
    }

    /// The receivers of this topic's records, unless they have to be found again.
    #[inline]
    pub fn known_matches(&self, id: TopicId) -> Option<Rc<Matches>> {
        let Some(topic) = self.topic(id) else {
            return Some(Rc::default());
        };
        (topic.matched_at == self.epoch).then(|| Rc::clone(&topic.matches))
    }

    /// Keeps the receivers that were found for a topic with this much work, until the subscriptions change.
    pub fn keep_matches(&mut self, id: TopicId, found: Matches, work: u64) -> Rc<Matches> {
        let found = Rc::new(found);
        let epoch = self.epoch;
        self.topics.make_room(found.bytes());
        let before = self.topic_mut(id).map_or(0, |topic| {
            topic.matched_at = epoch;
            (topic.work, topic.delivery_work) = (work, found.delivery_work());
            std::mem::replace(&mut topic.matches, Rc::clone(&found)).bytes()
        });
        self.topics.matches_bytes += found.bytes();
        self.topics.matches_bytes -= before;
        found
    }

    /// Notes what a costly topic takes; its receivers are kept elsewhere.
    pub fn note_costly(&mut self, id: TopicId, delivery_work: u64, work: u64) {
        if let Some(topic) = self.topic_mut(id) {
            (topic.work, topic.delivery_work) = (work, delivery_work);
        }
    }

    /// The memory of all cached receivers, counted anew.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        let table = self.topics.table.iter();
        let sum = table.map(|topic| topic.matches.bytes()).sum();
        assert_eq!(sum, self.topics.matches_bytes);
        sum
    }

    /// Whether the receivers of this topic have to be found again.
    #[inline]
    pub fn is_unmatched(&self, id: TopicId) -> bool {
        self.topic(id)
            .is_some_and(|topic| topic.matched_at != self.epoch)
    }
}

/// The effective options of catching-up sessions by topic, so that many filters are not matched again for each batch.
#[derive(Default)]
pub struct OptionsCache {
    epoch: u64,
    by_topic: HashMap<(SessionKey, TopicId), Option<Rc<EffectiveOptions>>, Xxh3DefaultBuilder>,
    /// Subscription identifiers in it.
    ids: usize,
}

/// Pairs of a session and a topic; with more the cache is cleared.
const OPTIONS_CACHE_MAX: usize = 50_000;
/// Subscription identifiers of all pairs together; with more the cache is cleared.
const OPTIONS_CACHE_IDS_MAX: usize = 1 << 20;

impl OptionsCache {
    /// Clears the cache when the subscriptions have changed.
    pub fn begin(&mut self, epoch: u64) {
        if self.epoch != epoch || self.is_full() {
            self.by_topic.clear();
            self.ids = 0;
            self.epoch = epoch;
        }
    }

    pub fn get_or(
        &mut self,
        session: SessionKey,
        topic: TopicId,
        find: impl FnOnce() -> Option<Rc<EffectiveOptions>>,
    ) -> Option<Rc<EffectiveOptions>> {
        if self.is_full() {
            self.by_topic.clear();
            self.ids = 0;
        }
        let ids = &mut self.ids;
        let found = self.by_topic.entry((session, topic)).or_insert_with(|| {
            let found = find();
            let options = found.as_deref();
            *ids += options
                .and_then(|options| options.ids.as_ref())
                .map_or(0, |ids| ids.len());
            found
        });
        found.clone()
    }

    fn is_full(&self) -> bool {
        self.by_topic.len() > OPTIONS_CACHE_MAX || self.ids > OPTIONS_CACHE_IDS_MAX
    }
}

/// The effective options of one session's overlapping subscriptions: one delivery, with the highest QoS and every
/// identifier.
#[derive(Debug, Clone)]
pub struct EffectiveOptions {
    pub qos: QoS,
    /// Every matching subscription is `no local`.
    pub no_local: bool,
    pub retain_as_published: bool,
    pub offsets: bool,
    pub offset_topics: bool,
    pub ids: Option<Box<[u32]>>,
}

impl EffectiveOptions {
    /// The defaults if there is no subscription.
    pub fn of(options: impl Iterator<Item = Options>) -> Self {
        let mut effective = Self {
            qos: QoS::AtMostOnce,
            no_local: true,
            retain_as_published: false,
            offsets: false,
            offset_topics: false,
            ids: None,
        };
        let mut ids = Vec::new();
        for option in options {
            effective.qos = effective.qos.max(option.qos);
            effective.no_local &= option.no_local;
            effective.retain_as_published |= option.retain_as_published;
            effective.offsets |= option.offsets;
            effective.offset_topics |= option.offset_topics;
            if option.id != 0 {
                ids.push(option.id);
            }
        }
        if !ids.is_empty() {
            effective.ids = Some(ids.into());
        }
        effective
    }

    /// The delivery differs from others of the same version and QoS in more than packet id and flags.
    pub fn is_special(&self) -> bool {
        self.no_local || self.offsets || self.offset_topics || self.ids.is_some()
    }
}
