//! The filters of one session that catches up, in an index of their own: a session may have a thousand of them, and a
//! batch ten thousand topics.

use rustc_hash::FxHashSet;

use headwater_log::Offset;

use crate::auth::Access;
use crate::engine::SessionKey;
use crate::engine::ids::PartitionIndex;
use crate::engine::routing::entries::Entry;
use crate::engine::routing::index::Index;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::Session;
use crate::engine::shared_groups::is_shared;

/// The place of a subscription in its session.
#[derive(Debug, Clone, Copy)]
struct Place(u32);

impl Entry for Place {
    fn number(&self) -> u64 {
        u64::from(self.0)
    }
}

/// The filters of one session, as of an epoch of the subscriptions.
#[derive(Default)]
pub(super) struct OwnFilters {
    of: Option<(SessionKey, u64)>,
    index: Index<Place>,
}

impl OwnFilters {
    /// Takes the filters of another session, or of another epoch. Returns the work, in visited nodes of an index.
    pub fn take(&mut self, of: (SessionKey, u64), session: &Session) -> usize {
        if self.of == Some(of) {
            return 0;
        }
        let replays = session.extras.replays.iter();
        let replaying: FxHashSet<&str> = replays
            .map(|replay| &*replay.filter)
            .filter(|filter| session.is_replaying(filter))
            .collect();
        *self = Self {
            of: Some(of),
            index: Index::default(),
        };
        for (held, place) in session.subscriptions.iter().zip(0..) {
            if !is_shared(&held.filter) && !replaying.contains(&*held.filter) {
                self.index.entries_of(&held.filter).insert(Place(place));
            }
        }
        session.subscriptions.len()
    }

    /// The effective options of the session's subscriptions for a topic at an offset, and the work of finding them.
    pub fn effective_for(
        &self,
        session: &Session,
        topic: &str,
        (partition, at): (PartitionIndex, Offset),
    ) -> (Option<EffectiveOptions>, usize) {
        let mut places = Vec::new();
        let visits = self.index.for_each_match(topic, &mut |entries| {
            places.extend(entries.iter().map(|place| place.0));
        });
        let work = visits as usize + places.len();
        // In the order of the SUBSCRIBEs, as their identifiers are sent.
        places.sort_unstable();
        let held = places.iter().filter_map(|place| {
            let held = session.subscriptions.iter().nth(*place as usize)?;
            (held.begins_at(partition) <= at).then_some(held.options)
        });
        let mut held = held.peekable();
        let is_wanted = held.peek().is_some() && session.may(Access::Receive, topic);
        (is_wanted.then(|| EffectiveOptions::of(held)), work)
    }
}
