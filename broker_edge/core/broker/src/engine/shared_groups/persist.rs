//! What is stored of groups: `share/<filter>` holds the cursor of a group in each partition.
//!
//! It is written with each checkpoint, with the session of a member, and in the same append that removes a member's QoS
//! 2 delivery. So such a delivery is in exactly one state: with its member, done, or still to be given.

use std::collections::{BTreeMap, HashSet};

use headwater_log::Offset;

use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::env::Env;
use crate::engine::ids::{GroupId, PartitionIndex};
use crate::engine::session::cursors::Cursor;
use crate::engine::session::window::{InflightState, Source};
use crate::engine::stored::share::{self, Group};
use crate::engine::stored::{KeyValue, Names, decode, encode};

use super::Groups;

impl Groups {
    /// The cursors of a group as a key and value of the state store. `live` holds the positions of the live stream.
    pub fn value(
        &self,
        id: GroupId,
        live: &[Offset],
        clients: &Clients,
        env: &Env,
    ) -> Option<KeyValue> {
        let group = self.get(id)?;
        let mut pending: BTreeMap<PartitionIndex, Vec<u64>> = BTreeMap::new();
        for (partition, offset) in group.returned.keys().chain(&group.aside) {
            pending.entry(*partition).or_default().push(offset.0);
        }
        for key in group.members.keys() {
            let Some(session) = clients.session(key) else {
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
        let names = Names(&env.partitions);
        let mut places = BTreeMap::new();
        for partition in env.partitions_of(group.filter()) {
            let live_at = live[partition.index()];
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
    pub fn to_store_with(&self, keys: &[SessionKey], clients: &Clients) -> Vec<GroupId> {
        let mut ids: Vec<GroupId> = Vec::new();
        for session in keys.iter().filter_map(|key| clients.session(*key)) {
            ids.extend(session.groups());
        }
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| {
            self.get(*id)
                .is_some_and(|group| !group.stored || group.has_completed)
        });
        ids
    }

    /// The stored groups with acknowledgements since the last checkpoint, or all stored groups.
    pub fn to_checkpoint(&self, all: bool) -> Vec<GroupId> {
        let is_due = |id: &GroupId| {
            self.get(*id)
                .is_some_and(|group| group.stored && (group.dirty || all))
        };
        self.ids().filter(is_due).collect()
    }

    /// Notes that cursors are stored.
    pub fn note_stored(&mut self, ids: &[GroupId]) {
        for id in ids {
            if let Some(group) = self.get_mut(*id) {
                group.stored = true;
                group.has_completed = false;
            }
        }
    }

    /// The same for a checkpoint: no later one has to store them before they change.
    pub fn note_checkpointed(&mut self, ids: &[GroupId]) {
        self.note_stored(ids);
        for id in ids {
            if let Some(group) = self.get_mut(*id) {
                group.dirty = false;
            }
        }
    }

    /// The values that remove the stored cursors of groups that have ended.
    pub fn ended_values(&self) -> Vec<KeyValue> {
        let ended = self.ended.iter();
        ended.map(|name| (share::key(name), Vec::new())).collect()
    }

    /// They are removed.
    pub fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// Lets a group that is being restored begin at its stored cursors.
    pub fn restore_cursors(&mut self, id: GroupId, value: &[u8], env: &Env) {
        let Some(group) = self.get_mut(id) else {
            return;
        };
        let stored: Group = match decode(value) {
            Ok(stored) => stored,
            Err(error) => {
                let name = group.name();
                tracing::error!(%error, name, "the cursor of a shared group cannot be read, so the group begins at the live position");
                return;
            }
        };
        group.stored = true;
        for partition in env.partitions_of(group.filter()) {
            let name = env.partitions[partition.index()].name();
            let place = stored.places.get(name);
            // A partition added after the cursor was stored is read from its beginning.
            let low = Offset(place.map_or(0, |place| place.low));
            group.behind.fall_behind(Cursor::new(partition, low));
            let done = place.map_or_else(Vec::new, share::Cursor::ranges);
            group.skips.set(partition, done);
            let past = stored.past.get(name);
            group
                .past
                .extend(past.map(|until| (partition, Offset(*until))));
        }
    }

    /// Skips records that restored sessions have in their windows.
    pub fn skip_restored(&mut self, clients: &Clients) {
        for (_, session) in clients.sessions() {
            for (_, sent, _) in session.window.unacked_from(0) {
                if let Source::Shared(id) = sent.source
                    && let Some(group) = self.get_mut(id)
                {
                    group.skips.add(sent.partition, sent.offset);
                    group.out += 1;
                }
            }
        }
    }

    /// The keys of the stored cursors of all groups.
    pub fn keys(&self) -> HashSet<String> {
        self.by_name.keys().map(|name| share::key(name)).collect()
    }
}
