//! Stores groups: `share/<filter>` holds the cursor of a group in each partition.
//!
//! It is written with each checkpoint, with the session of a member, and in the same append that removes a member's QoS
//! 2 delivery. So such a delivery is in exactly one state: with its member, done, or still to be given.

use std::collections::{BTreeMap, HashSet};

use headwater_log::Offset;
use serde::{Deserialize, Serialize};

use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::routing::router::Options;
use crate::engine::session::window::{InflightState, Source};
use crate::engine::session_store::persist::to_json;
use crate::engine::{Engine, SessionKey};

use super::group_cursor::StoredCursor;
use super::tenants;

/// Cursors per append: with all their ranges they fit into one batch.
const CHUNK: usize = 32;
const PREFIX: &str = "share/";

/// Value of `share/<filter>`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct StoredGroup {
    /// By partition name.
    places: BTreeMap<String, StoredCursor>,
    /// The end of the history at which the group began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    past: BTreeMap<String, u64>,
}

/// The key of a group's cursor.
fn key_of(name: &str) -> String {
    format!("{PREFIX}{}", name.strip_prefix("$share/").unwrap_or(name))
}

impl Engine {
    /// The cursor of a group as a key and value of the state store.
    fn group_value(&self, id: GroupId) -> Option<(String, Vec<u8>)> {
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
        let mut places = BTreeMap::new();
        for partition in self.partitions_of(group.filter()) {
            let next = group.read_offset(partition, self.delivery.dispatched[partition.index()]);
            let mut offsets = pending.remove(&partition).unwrap_or_default();
            // Deliveries restored into a window are above the cursor and skipped there.
            offsets.retain(|offset| *offset < next.0);
            offsets.sort_unstable();
            let place = StoredCursor::of(next.0, &offsets, group.skips.of(partition));
            places.insert(self.name_of(partition), place);
        }
        let past = group.past.iter();
        let past = past
            .map(|(partition, until)| (self.name_of(*partition), until.0))
            .collect();
        let value = to_json(&StoredGroup { places, past });
        Some((key_of(group.name()), value))
    }

    #[cfg(test)]
    pub(in crate::engine) fn group_value_len(&self, id: GroupId) -> usize {
        self.group_value(id).map_or(0, |(_, value)| value.len())
    }

    /// The group cursors that have to be in the same append as the session: those that are not stored, or are stored
    /// without the QoS 2 deliveries that are done.
    pub(in crate::engine) fn group_values_with(
        &self,
        keys: &[SessionKey],
    ) -> Vec<(GroupId, String, Vec<u8>)> {
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
        let value = |id| self.group_value(id).map(|(key, value)| (id, key, value));
        ids.into_iter().filter_map(value).collect()
    }

    /// Notes that cursors are stored.
    pub(in crate::engine) fn groups_stored(&mut self, ids: impl Iterator<Item = GroupId>) {
        for id in ids {
            if let Some(group) = self.groups.get_mut(id) {
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
            let values: Vec<(String, Vec<u8>)> = chunk
                .iter()
                .filter_map(|id| self.group_value(*id))
                .collect();
            if let Err(error) = self.write_values(&values) {
                tracing::warn!(%error, "cursors of shared groups cannot be stored now; the next checkpoint tries again");
                return;
            }
            for id in chunk {
                if let Some(group) = self.groups.get_mut(*id) {
                    group.dirty = false;
                    group.has_completed = false;
                }
            }
        }
        let ended: Vec<(String, Vec<u8>)> = self
            .groups
            .ended
            .iter()
            .map(|name| (key_of(name), Vec::new()))
            .collect();
        if !ended.is_empty() && self.write_values(&ended).is_ok() {
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
        match self.group_of(name, tenant, user) {
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
            self.join_group(key, id, to);
        }
    }

    fn restore_places(&mut self, id: GroupId, name: &str) {
        let Some(value) = self.store.state.get(&key_of(name)) else {
            return;
        };
        let stored: StoredGroup = match serde_json::from_slice(&value) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%error, name, "the cursor of a shared group cannot be read, so the group begins at the live position");
                return;
            }
        };
        let partitions = self.partitions_of(tenants::filter_behind(name).unwrap_or_default());
        for partition in partitions {
            let place = stored
                .places
                .get(self.env.partitions[partition.index()].name());
            if let Some(group) = self.groups.get_mut(id) {
                group.stored = true;
                // A partition added after the cursor was stored is read from its beginning.
                group.fall_behind(partition, Offset(place.map_or(0, |place| place.low)));
                let done = place.map_or_else(Vec::new, StoredCursor::ranges);
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
            .map(|name| key_of(name))
            .collect();
        let mut ended = Vec::new();
        self.store.state.for_each_prefix(PREFIX, |key, _| {
            if !names.contains(key) {
                ended.push((key.to_owned(), Vec::new()));
            }
        });
        if !ended.is_empty()
            && let Err(error) = self.write_values(&ended)
        {
            tracing::warn!(%error, "cursors of ended shared groups cannot be removed from the state store now");
        }
    }
}
