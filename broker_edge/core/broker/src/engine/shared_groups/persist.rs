//! Stores groups: `share/<filter>` holds the cursor of a group in each partition.
//!
//! It is written with each checkpoint, with the session of a member, and in the same append that removes a member's QoS
//! 2 delivery. So such a delivery is in exactly one state: with its member, done, or still to be given.

use std::collections::{BTreeMap, HashSet};

use headwater_log::Offset;

use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::routing::router::Options;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::window::{InflightState, Source};
use crate::engine::stored::share::{self, Group};
use crate::engine::stored::{KeyValue, Names, decode, encode};
use crate::engine::{Engine, SessionKey};

use super::tenants;

/// Cursors per append: with all their ranges they fit into one batch.
const CHUNK: usize = 32;

impl Engine {
    /// The cursor of a group as a key and value of the state store.
    pub(in crate::engine) fn group_value(&self, id: GroupId) -> Option<KeyValue> {
        let group = self.groups.get(id)?;
        let mut pending: BTreeMap<PartitionIndex, Vec<u64>> = BTreeMap::new();
        for (partition, offset) in group.returned.keys().chain(&group.aside) {
            pending.entry(*partition).or_default().push(offset.0);
        }
        for key in group.members.keys() {
            let Some(session) = self.clients.session(key) else {
                continue;
            };
            let of_group = session.window.unacked_from(0).filter(|(_, sent, flight)| {
                // Once it was sent, a QoS 2 delivery belongs to its member alone.
                sent.source == Source::Shared(id)
                    && matches!(
                        flight,
                        InflightState::AwaitsPuback | InflightState::Assigned
                    )
            });
            for (_, sent, _) in of_group {
                pending
                    .entry(sent.partition)
                    .or_default()
                    .push(sent.offset.0);
            }
        }
        let names = Names(&self.env.partitions);
        let mut places = BTreeMap::new();
        for partition in self.env.partitions_of(group.filter()) {
            let live_at = self.delivery.live_at(partition);
            let next = group.behind.next(partition).unwrap_or(live_at);
            let mut offsets = pending.remove(&partition).unwrap_or_default();
            // Deliveries restored into a window are above the cursor and skipped there.
            offsets.retain(|offset| *offset < next.0);
            offsets.sort_unstable();
            let place = share::Cursor::of(next.0, &offsets, group.skips.of(partition));
            places.insert(names.of(partition), place);
        }
        let past = names.offsets(group.past.iter().map(|(of, until)| (*of, *until)));
        let value = encode(&Group { places, past });
        Some((share::key(group.name()), value))
    }

    /// The groups whose cursors have to be in the same append as the sessions: those that are not stored, or are stored
    /// without the QoS 2 deliveries that are done.
    pub(in crate::engine) fn groups_to_store_with(&self, keys: &[SessionKey]) -> Vec<GroupId> {
        let mut ids: Vec<GroupId> = Vec::new();
        for session in keys.iter().filter_map(|key| self.clients.session(*key)) {
            ids.extend(session.groups());
        }
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| {
            self.groups
                .get(*id)
                .is_some_and(|group| !group.stored || group.has_completed)
        });
        ids
    }

    /// Notes that cursors are stored.
    pub(in crate::engine) fn groups_stored(&mut self, ids: &[GroupId]) {
        for id in ids {
            if let Some(group) = self.groups.get_mut(*id) {
                group.stored = true;
                group.has_completed = false;
            }
        }
    }

    /// Checkpoints the cursors of groups with acknowledgements since the last checkpoint; all cursors at a clean stop.
    pub(in crate::engine) fn checkpoint_groups(&mut self, all: bool) {
        let ids: Vec<GroupId> = self
            .groups
            .ids()
            .filter(|id| {
                let group = self.groups.get(*id);
                group.is_some_and(|group| group.stored && (group.dirty || all))
            })
            .collect();
        for chunk in ids.chunks(CHUNK) {
            let values: Vec<KeyValue> = chunk
                .iter()
                .filter_map(|id| self.group_value(*id))
                .collect();
            let failure =
                "cursors of shared groups cannot be stored now; the next checkpoint tries again";
            if !self.store.try_write(&values, failure) {
                return;
            }
            for id in chunk {
                if let Some(group) = self.groups.get_mut(*id) {
                    group.dirty = false;
                    group.has_completed = false;
                }
            }
        }
        let ended: Vec<KeyValue> = self
            .groups
            .ended
            .iter()
            .map(|name| (share::key(name), Vec::new()))
            .collect();
        if !ended.is_empty() && self.store.write(&ended).is_ok() {
            self.groups.ended.clear();
        }
    }

    /// Creates the group of a subscription that is being restored. It begins at its stored cursor.
    pub(in crate::engine) fn restore_group(
        &mut self,
        name: &str,
        tenant: Option<&str>,
        user: Option<&str>,
    ) {
        match self.membership().group_of(name, tenant, user) {
            Some((id, true)) => self.restore_places(id, &tenants::name_of(name, tenant)),
            Some((_, false)) => {}
            None => tracing::error!(
                name,
                "a stored shared group exceeds the limit and is skipped"
            ),
        }
    }

    /// Puts a restored session into its group.
    pub(in crate::engine) fn restore_member(
        &mut self,
        key: SessionKey,
        (name, tenant): (&str, Option<&str>),
        to: Options,
    ) {
        if let Some(id) = self.groups.by_name(&tenants::name_of(name, tenant)) {
            self.membership().join(key, id, to);
        }
    }

    fn restore_places(&mut self, id: GroupId, name: &str) {
        let Some(value) = self.store.state.get(&share::key(name)) else {
            return;
        };
        let stored: Group = match decode(&value) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%error, name, "the cursor of a shared group cannot be read, so the group begins at the live position");
                return;
            }
        };
        let partitions = self
            .env
            .partitions_of(tenants::filter_behind(name).unwrap_or_default());
        for partition in partitions {
            let place = stored
                .places
                .get(self.env.partitions[partition.index()].name());
            if let Some(group) = self.groups.get_mut(id) {
                group.stored = true;
                // A partition added after the cursor was stored is read from its beginning.
                let low = Offset(place.map_or(0, |place| place.low));
                group.behind.fall_behind(Cursor::new(partition, low));
                let done = place.map_or_else(Vec::new, share::Cursor::ranges);
                group.skips.set(partition, done);
                let past = stored
                    .past
                    .get(self.env.partitions[partition.index()].name());
                group
                    .past
                    .extend(past.map(|until| (partition, Offset(*until))));
            }
        }
    }

    /// Skips records that restored sessions have in their windows, and removes the cursors of groups without members.
    pub(in crate::engine) fn finish_restoring_groups(&mut self) {
        for (_, session) in self.clients.sessions.iter() {
            for (_, sent, _) in session.window.unacked_from(0) {
                if let Source::Shared(id) = sent.source
                    && let Some(group) = self.groups.get_mut(id)
                {
                    group.skips.add(sent.partition, sent.offset);
                    group.out += 1;
                }
            }
        }
        let names: HashSet<String> = self
            .groups
            .by_name
            .keys()
            .map(|name| share::key(name))
            .collect();
        let mut ended = Vec::new();
        self.store.state.for_each_prefix(share::PREFIX, |key, _| {
            if !names.contains(key) {
                ended.push((key.to_owned(), Vec::new()));
            }
        });
        if !ended.is_empty() {
            let failure =
                "cursors of ended shared groups cannot be removed from the state store now";
            self.store.try_write(&ended, failure);
        }
    }
}
