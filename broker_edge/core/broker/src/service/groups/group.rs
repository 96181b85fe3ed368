//! A consumer group as stored: one value of the state store, `group/<name>`. Checks its owner, and keeps its offsets
//! within the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_log::Partition;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::service::callers::caller::Caller;
use crate::service::error::Refusal;
use crate::state::StateStore;

pub const KIND: &str = "group/";

/// The value in the state store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    pub reader_epoch: u64,
    /// Unix microseconds of the last commit, or of one at most a minute before it.
    pub touched_us: i64,
    /// The user who may always use it; empty for clients without a name. `None` for a group made on a broker without
    /// users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The owner's tenant, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub partitions: BTreeMap<u32, GroupOffsets>,
}

/// The owner of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub user: Option<String>,
    pub tenant: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupOffsets {
    pub initial: Option<u64>,
    pub committed: Option<u64>,
    pub scanned: Option<u64>,
}

impl GroupOffsets {
    /// What lies below it is finished. Retention holds what does not: a reader with another filter may want what this
    /// one has passed.
    pub fn finished(&self) -> Option<u64> {
        self.committed.or(self.initial)
    }

    /// The first offset that the group has neither finished nor passed because its filter does not match.
    pub fn next(&self) -> Option<u64> {
        self.finished().max(self.scanned)
    }
}

impl Group {
    pub fn to_json(&self, name: &str) -> Value {
        let mut value = json!({"group": name, "reader_epoch": self.reader_epoch, "partitions": self.partitions});
        if let Some(owner) = &self.owner {
            value["owner"] = json!(owner);
        }
        value
    }

    pub fn owner(&self) -> Owner {
        Owner {
            user: self.owner.clone(),
            tenant: self.tenant.clone(),
        }
    }

    pub fn is_owned_by(&self, caller: &Caller) -> bool {
        self.owner.is_some() && self.owner.as_deref() == caller.owner()
    }

    pub fn is_used_by(&self, name: &str, caller: &Caller) -> bool {
        self.owner.is_none() || self.is_owned_by(caller) || caller.may_group(name)
    }

    pub fn must_be_used_by(&self, name: &str, caller: &Caller) -> Result<(), Refusal> {
        if self.is_used_by(name, caller) {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "consumer group {name} belongs to another user: use another name, or write `group {name}` into this \
             user's section of the ACL file"
        )))
    }

    /// Makes the caller, who commits to it, the owner of a group without one.
    pub fn own(&mut self, name: &str, caller: &Caller, is_old: bool) {
        let Some(owner) = caller.owner().filter(|_| self.owner.is_none()) else {
            return;
        };
        self.owner = Some(owner.to_owned());
        self.tenant = caller.tenant().map(ToOwned::to_owned);
        if is_old {
            tracing::info!(
                group = name,
                user = owner,
                "this user now owns a consumer group that had no owner"
            );
        }
    }

    /// Drops partitions that the log does not have, and lowers offsets to the high watermark: a log may have lost its
    /// end in a crash, and earlier versions accepted any number. Returns the number of dropped partitions and of
    /// lowered offsets.
    pub fn bound(&mut self, partitions: &[Partition]) -> (usize, usize) {
        let before = self.partitions.len();
        self.partitions
            .retain(|number, _| partitions.get(*number as usize).is_some());
        let mut lowered = 0;
        for (number, place) in &mut self.partitions {
            let Some(partition) = partitions.get(*number as usize) else {
                continue;
            };
            let end = partition.high_watermark().0;
            for offset in [&mut place.initial, &mut place.committed, &mut place.scanned] {
                if offset.is_some_and(|offset| offset > end) {
                    *offset = Some(end);
                    lowered += 1;
                }
            }
        }
        (before - self.partitions.len(), lowered)
    }
}

/// All stored groups with their names. An unreadable group is logged and returned empty.
///
/// The values are decoded after the store's lock is released, because the event loop writes its sessions there.
pub fn stored_groups(state: &StateStore) -> Vec<(String, Group)> {
    let mut values = Vec::new();
    state.for_each_prefix(KIND, |key, value| {
        values.push((key[KIND.len()..].to_owned(), Arc::clone(value)));
    });
    let read = |(name, value): (String, Arc<[u8]>)| {
        let group = serde_json::from_slice(&value).unwrap_or_else(|error| {
            tracing::error!(%error, group = name, "the stored state of a consumer group is unreadable; the group holds nothing");
            Group::default()
        });
        (name, group)
    };
    values.into_iter().map(read).collect()
}

/// At the start, brings stored groups within the log's bounds and logs each change.
pub fn bound_stored(state: &StateStore, partitions: &[Partition]) {
    let mut found = Vec::new();
    state.for_each_prefix(KIND, |key, value| {
        if let Ok(mut group) = serde_json::from_slice::<Group>(value) {
            let (dropped, lowered) = group.bound(partitions);
            if dropped + lowered > 0 {
                found.push((key.to_owned(), group, dropped, lowered));
            }
        }
    });
    for (key, group, dropped, lowered) in found {
        let value = serde_json::to_vec(&group).expect("a group is plain values");
        let name = &key[KIND.len()..];
        tracing::warn!(
            group = name,
            dropped,
            lowered,
            "a consumer group had partitions that the log does not have (now dropped) or offsets above its end (now lowered \
             to it)"
        );
        // Every read of the group bounds it again, so nothing depends on this write.
        if let Err(error) = state.put(&key, &value) {
            tracing::warn!(%error, group = name, "the corrected state of a consumer group could not be stored");
        }
    }
}

pub fn fence(name: &str, group: &Group, reader_epoch: u64) -> Result<(), Refusal> {
    if reader_epoch < group.reader_epoch {
        return Err(Refusal::fenced(name, group.reader_epoch, reader_epoch));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_on_behind_what_it_has_finished_and_what_it_has_scanned() {
        let place = |initial, committed, scanned| GroupOffsets {
            initial,
            committed,
            scanned,
        };
        for (place, finished, next) in [
            (place(None, None, None), None, None),
            (place(Some(5), None, None), Some(5), Some(5)),
            (place(Some(5), Some(7), None), Some(7), Some(7)),
            (place(Some(5), Some(7), Some(90)), Some(7), Some(90)),
            (place(Some(5), None, Some(90)), Some(5), Some(90)),
            // What it had scanned before it went on.
            (place(Some(5), Some(100), Some(90)), Some(100), Some(100)),
            // A replay from before the place where it began.
            (place(Some(5), Some(2), None), Some(2), Some(2)),
        ] {
            let found = (place.finished(), place.next());
            assert_eq!(found, (finished, next), "{place:?}");
        }
    }
}
