//! Consumer groups: where the readers of a group began, what they committed, and which reader may commit.
//!
//! A group is one value of the state store, `group/<name>`. Nothing is answered before it is durable. A reader with a
//! higher epoch fences the ones before it, until the group is removed. Who commits to a group first owns it; others
//! need the right to it. What groups hold back from retention is `holds.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_log::{Offset, Partition};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::Refusal;
use super::holds::GroupHolds;
use super::limits::Limits;
use super::progress::Progress;
use super::request;
use crate::state::StateStore;

pub(super) const KIND: &str = "group/";
const NAME_BYTES_MAX: usize = 249;
/// A commit that changes nothing is written all the same so often, to show that the group is alive.
const TOUCH_US: u64 = 60_000_000;
/// Groups in one answer of `groups`, and about how many bytes of them.
const PAGE_GROUPS: usize = 1_000;
const PAGE_BYTES: usize = 1 << 20;

pub(super) struct Groups {
    state: Arc<StateStore>,
    progress: Progress,
    holds: Arc<GroupHolds>,
    groups_max: usize,
    groups_per_user: usize,
    /// Held from reading a group to queueing its new value.
    changing: Mutex<()>,
}

/// The value in the state store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Group {
    pub reader_epoch: u64,
    /// Unix microseconds of a commit, not older than the last one by more than [`TOUCH_US`].
    pub touched_us: i64,
    /// The user who may always use it, empty for clients without a name. Nobody owns a group that an open broker made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The owner's tenant, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub partitions: BTreeMap<u32, Place>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Place {
    pub initial: Option<u64>,
    pub committed: Option<u64>,
    pub scanned: Option<u64>,
}

impl Groups {
    pub fn new(
        state: Arc<StateStore>,
        progress: Progress,
        holds: Arc<GroupHolds>,
        limits: &Limits,
    ) -> Groups {
        Groups {
            state,
            progress,
            holds,
            groups_max: limits.groups_max,
            groups_per_user: limits.groups_per_user,
            changing: Mutex::new(()),
        }
    }

    pub async fn commit(&self, caller: &Caller, body: request::Commit) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let initial = by_number("initial", body.initial)?;
        let offsets = by_number("offsets", body.offsets)?;
        for (number, offset) in &initial {
            self.check_offset(*number, *offset)?;
        }
        for (number, offsets) in &offsets {
            self.check_offset(*number, offsets.committed)?;
            self.check_offset(*number, offsets.scanned.unwrap_or(0))?;
        }
        let (group, end) = {
            let _changing = self.changing.lock();
            let stored = self.find(&body.group)?;
            let before = stored.clone().unwrap_or_default();
            before.must_be_used_by(&body.group, caller)?;
            fence(&body.group, &before, body.reader_epoch)?;
            if stored.is_none() {
                self.check_count(caller)?;
            }
            let mut group = before.clone();
            group.own(&body.group, caller, stored.is_some());
            group.reader_epoch = body.reader_epoch;
            for (number, offset) in initial {
                group
                    .partitions
                    .entry(number)
                    .or_default()
                    .initial
                    .get_or_insert(offset);
            }
            for (number, offsets) in offsets {
                let place = group.partitions.entry(number).or_default();
                place.committed = Some(offsets.committed);
                place.scanned = offsets.scanned.or(place.scanned);
            }
            let now_us = now_us();
            let is_touched = now_us.abs_diff(before.touched_us) >= TOUCH_US;
            let end = if group == before && !is_touched {
                self.state.end()
            } else {
                group.touched_us = now_us;
                self.write(&body.group, &group)?
            };
            self.holds.touch(&body.group);
            (group, end)
        };
        self.progress.reach(end).await?;
        Ok(group.to_json(&body.group))
    }

    pub async fn committed(
        &self,
        caller: &Caller,
        body: request::CommittedOf,
    ) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let group = self.find(&body.group)?.unwrap_or_default();
        if !caller.sees_all_groups() {
            group.must_be_used_by(&body.group, caller)?;
        }
        if let Some(reader_epoch) = body.reader_epoch {
            fence(&body.group, &group, reader_epoch)?;
        }
        self.progress.reach(self.state.end()).await?;
        Ok(group.to_json(&body.group))
    }

    /// A page of the groups that the caller may use, in the order of their names.
    pub async fn groups(&self, caller: &Caller, body: request::Groups) -> Result<Value, Refusal> {
        let limit = body.limit.unwrap_or(PAGE_GROUPS);
        if !(1..=PAGE_GROUPS).contains(&limit) {
            let message = format!("limit {limit} is not in 1 to {PAGE_GROUPS}");
            return Err(Refusal::invalid("limit", message));
        }
        let mut names = Vec::new();
        self.state.for_each_prefix(KIND, |key, _| {
            let name = &key[KIND.len()..];
            if body.after.as_deref().is_none_or(|after| name > after) {
                names.push(name.to_owned());
            }
        });
        let (mut groups, mut bytes) = (Vec::new(), 0);
        let mut next = None;
        for name in names {
            let Some(group) = self.find(&name)? else {
                continue;
            };
            if !caller.sees_all_groups() && !group.is_used_by(&name, caller) {
                continue;
            }
            if groups.len() >= limit || bytes >= PAGE_BYTES {
                next = groups.last().map(|group: &Value| group["group"].clone());
                break;
            }
            let group = group.to_json(&name);
            bytes += group.to_string().len();
            groups.push(group);
        }
        self.progress.reach(self.state.end()).await?;
        Ok(json!({"groups": groups, "next": next}))
    }

    /// Removes a group: it holds nothing any more, and who commits to it again begins anew.
    pub async fn remove(&self, caller: &Caller, body: request::GroupOf) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let end = {
            let _changing = self.changing.lock();
            let group = self.find(&body.group)?;
            let is_own = group
                .as_ref()
                .is_some_and(|group| group.is_owned_by(caller));
            if !is_own && !caller.may_group(&body.group) {
                caller.must_operate("remove_group")?;
            }
            if group.is_none() {
                let message = format!("there is no consumer group {}", body.group);
                return Err(Refusal::not_found(message));
            }
            let removed = self.state.delete(&format!("{KIND}{}", body.group));
            removed.map_err(|error| Refusal::from_state(self.state.partition(), error))?
        };
        self.progress.reach(end).await?;
        Ok(json!({}))
    }

    /// For reports in the name of a group.
    ///
    /// # Errors
    /// When the group belongs to another user.
    pub fn check_use(&self, caller: &Caller, name: &str) -> Result<(), Refusal> {
        check_name(name)?;
        let group = self.find(name)?.unwrap_or_default();
        group.must_be_used_by(name, caller)
    }

    fn check_offset(&self, number: u32, offset: u64) -> Result<(), Refusal> {
        let partition = self
            .holds
            .partition(number)
            .ok_or_else(|| Refusal::not_found(format!("there is no partition {number}")))?;
        // What lies below the log start was there once, and holds as much as the log start does.
        if Offset(offset) > partition.high_watermark() {
            return Err(Refusal::out_of_range(partition, offset));
        }
        Ok(())
    }

    /// Whether there may be one group more.
    fn check_count(&self, caller: &Caller) -> Result<(), Refusal> {
        let (owner, tenant) = (caller.owner(), caller.tenant());
        let (mut all, mut own) = (0, 0);
        self.state.for_each_prefix(KIND, |_, value| {
            all += 1;
            if owner.is_none() {
                return;
            }
            let Ok(group) = serde_json::from_slice::<Group>(value) else {
                return;
            };
            let is_of_tenant = tenant.is_some() && group.tenant.as_deref() == tenant;
            own += usize::from(is_of_tenant || group.owner.as_deref() == owner);
        });
        if all >= self.groups_max {
            let most = self.groups_max;
            return Err(Refusal::exhausted(format!(
                "the broker has {most} consumer groups, which is the limit flight.max_groups: remove some"
            )));
        }
        if own >= self.groups_per_user {
            let most = self.groups_per_user;
            return Err(Refusal::exhausted(format!(
                "this user or its tenant has {most} consumer groups, which is the limit flight.max_groups_per_user: \
                 remove some"
            )));
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Option<Group>, Refusal> {
        let Some(value) = self.state.get(&format!("{KIND}{name}")) else {
            return Ok(None);
        };
        let mut group: Group = serde_json::from_slice(&value).map_err(|error| {
            Refusal::internal(format!("the state of group {name} cannot be read: {error}"))
        })?;
        group.bound(self.holds.partitions());
        Ok(Some(group))
    }

    fn write(&self, name: &str, group: &Group) -> Result<headwater_log::Offset, Refusal> {
        let value = serde_json::to_vec(group).expect("a group is plain values");
        let written = self.state.put(&format!("{KIND}{name}"), &value);
        written.map_err(|error| Refusal::from_state(self.state.partition(), error))
    }
}

impl Group {
    fn to_json(&self, name: &str) -> Value {
        let mut value = json!({"group": name, "reader_epoch": self.reader_epoch, "partitions": self.partitions});
        if let Some(owner) = &self.owner {
            value["owner"] = json!(owner);
        }
        value
    }

    fn is_owned_by(&self, caller: &Caller) -> bool {
        self.owner.is_some() && self.owner.as_deref() == caller.owner()
    }

    fn is_used_by(&self, name: &str, caller: &Caller) -> bool {
        self.owner.is_none() || self.is_owned_by(caller) || caller.may_group(name)
    }

    fn must_be_used_by(&self, name: &str, caller: &Caller) -> Result<(), Refusal> {
        if self.is_used_by(name, caller) {
            return Ok(());
        }
        Err(Refusal::not_allowed(format!(
            "consumer group {name} belongs to another user: take another name, or write `group {name}` into this \
             user's section of the ACL file"
        )))
    }

    /// Gives a group without an owner to who commits to it.
    fn own(&mut self, name: &str, caller: &Caller, is_old: bool) {
        let Some(owner) = caller.owner().filter(|_| self.owner.is_none()) else {
            return;
        };
        self.owner = Some(owner.to_owned());
        self.tenant = caller.tenant().map(ToOwned::to_owned);
        if is_old {
            tracing::info!(
                group = name,
                user = owner,
                "a consumer group that nobody owned belongs to this user now"
            );
        }
    }

    /// Drops partitions that the log does not have, and brings offsets down to the high watermark: a log may have lost
    /// its end in a crash, and earlier versions took any number. Returns how many were dropped and brought down.
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

/// Brings what is stored of groups within the log, once at the start, and says so.
pub(super) fn bound_stored(state: &StateStore, partitions: &[Partition]) {
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
            "a consumer group named partitions that the log does not have, which were dropped, or offsets above its \
             end, which are the end now"
        );
        // Whoever reads the group bounds it again, so nothing depends on this write.
        if let Err(error) = state.put(&key, &value) {
            tracing::warn!(%error, group = name, "the bounded state of a consumer group is not stored");
        }
    }
}

pub(super) fn now_us() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        })
}

fn fence(name: &str, group: &Group, reader_epoch: u64) -> Result<(), Refusal> {
    if reader_epoch < group.reader_epoch {
        return Err(Refusal::fenced(name, group.reader_epoch, reader_epoch));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |c: char| !c.is_control() && !matches!(c, '+' | '#' | '/');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        let rule = format!(
            "a group's name has 1 to {NAME_BYTES_MAX} bytes and no `/`, `+`, `#` or control character"
        );
        return Err(Refusal::invalid("group", rule));
    }
    Ok(())
}

fn by_number<T>(
    field: &str,
    places: Option<BTreeMap<String, T>>,
) -> Result<Vec<(u32, T)>, Refusal> {
    places
        .into_iter()
        .flatten()
        .map(|(text, place)| Ok((request::number(field, &text)?, place)))
        .collect()
}
