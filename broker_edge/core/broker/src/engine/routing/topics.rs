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

use crate::auth::Access;
use crate::engine::containers::slab::Slab;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::session::Session;
use crate::engine::shared_groups::{Groups, Verdicts};
use crate::engine::{ConnKey, SessionKey};

use super::router::{Options, Router};

/// Limit on cached topics; an entry takes about 200 bytes.
const TOPICS_MAX: usize = 100_000;
/// Limit on the bytes of their names, which publishers choose.
const NAMES_BYTES_MAX: usize = 16 << 20;

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

/// The receivers of a topic's records.
#[derive(Debug, Default)]
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
}

pub struct Topics {
    by_name: HashMap<Rc<str>, u32, RandomState>,
    table: Vec<Topic>,
    names_bytes: usize,
    generation: u32,
}

impl Default for Topics {
    fn default() -> Self {
        Self {
            by_name: HashMap::default(),
            table: Vec::new(),
            names_bytes: 0,
            generation: 1,
        }
    }
}

impl Topics {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn holds(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Changes when the table is emptied.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The entry of a topic name, created if needed.
    pub fn intern(&mut self, name: &str, log: &Log) -> TopicId {
        if let Some(index) = self.by_name.get(name) {
            return TopicId {
                index: *index,
                generation: self.generation,
            };
        }
        if self.table.len() >= TOPICS_MAX || self.names_bytes + name.len() > NAMES_BYTES_MAX {
            self.by_name.clear();
            self.table.clear();
            self.names_bytes = 0;
            self.generation = self.generation.wrapping_add(1).max(1);
        }
        let route = log.route(name);
        let index = self.table.len() as u32;
        self.names_bytes += name.len();
        let name: Rc<str> = name.into();
        self.by_name.insert(Rc::clone(&name), index);
        self.table.push(Topic {
            name,
            partition: PartitionIndex::of(route.partition),
            key: route.key,
            staged: (0, TopicIndex(0)),
            matched_at: u64::MAX,
            matches: Rc::default(),
        });
        TopicId {
            index,
            generation: self.generation,
        }
    }

    #[inline]
    pub fn get(&self, id: TopicId) -> Option<&Topic> {
        if id.generation == self.generation {
            self.table.get(id.index as usize)
        } else {
            None
        }
    }

    #[inline]
    pub fn get_mut(&mut self, id: TopicId) -> Option<&mut Topic> {
        if id.generation == self.generation {
            self.table.get_mut(id.index as usize)
        } else {
            None
        }
    }

    /// The receivers of this topic's records, matched again only when the subscriptions have changed.
    #[inline]
    pub fn matches(
        &mut self,
        id: TopicId,
        router: &Router,
        sessions: &Slab<Session>,
        groups: &Groups,
    ) -> Rc<Matches> {
        let Some(topic) = self.get_mut(id) else {
            return Rc::default();
        };
        if topic.matched_at != router.epoch() {
            let of = (&*topic.name, topic.partition);
            topic.matches = Rc::new(find(of, router, sessions, groups));
            topic.matched_at = router.epoch();
        }
        Rc::clone(&topic.matches)
    }
}

fn find(
    (topic, partition): (&str, PartitionIndex),
    router: &Router,
    sessions: &Slab<Session>,
    groups: &Groups,
) -> Matches {
    let mut found: Vec<(SessionKey, Options)> = Vec::new();
    let mut matches = Matches::default();
    let has_away = router.for_each_match(topic, &mut |subscriber| {
        matches.any = true;
        if !subscriber.replaying {
            found.push((subscriber.session, subscriber.options));
        }
    });
    matches.any |= has_away;
    let mut verdicts = Verdicts::default();
    router.for_each_group(topic, &mut |group| {
        matches.any = true;
        if groups.is_concerned(*group, (topic, partition), &mut verdicts) {
            matches.groups.push(*group);
        }
    });
    found.sort_unstable_by_key(|(session, _)| *session);
    for group in found.chunk_by(|a, b| a.0 == b.0) {
        let session = group[0].0;
        // Disconnected sessions are skipped first: checking rights costs more.
        let receiver = sessions
            .get(session)
            .filter(|session| session.active_conn().is_some())
            .filter(|session| session.may(Access::Receive, topic));
        if let Some(conn) = receiver.and_then(Session::active_conn) {
            let effective = EffectiveOptions::of(group.iter().map(|(_, options)| *options));
            matches.targets.push(Target {
                session,
                conn,
                effective,
            });
        }
    }
    matches
}

/// The effective options of catching-up sessions by topic, so that many filters are not matched again for each batch.
#[derive(Default)]
pub struct OptionsCache {
    epoch: u64,
    by_topic: HashMap<(SessionKey, TopicId), Option<Rc<EffectiveOptions>>, Xxh3DefaultBuilder>,
}

/// Limit on entries; above it the cache is cleared.
const OPTIONS_CACHE_MAX: usize = 50_000;

impl OptionsCache {
    /// Clears the cache when the subscriptions have changed.
    pub fn begin(&mut self, epoch: u64) {
        if self.epoch != epoch || self.by_topic.len() > OPTIONS_CACHE_MAX {
            self.by_topic.clear();
            self.epoch = epoch;
        }
    }

    pub fn get_or(
        &mut self,
        session: SessionKey,
        topic: TopicId,
        find: impl FnOnce() -> Option<Rc<EffectiveOptions>>,
    ) -> Option<Rc<EffectiveOptions>> {
        let found = self.by_topic.entry((session, topic)).or_insert_with(find);
        found.clone()
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
