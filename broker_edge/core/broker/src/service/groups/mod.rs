//! Consumer groups: the initial and committed offsets of a group, and which reader may commit.
//!
//! A group is one value of the state store, `group/<name>`. A change is answered when it is durable. A reader with a
//! higher epoch fences earlier readers, until the group is removed. The user who commits to a group first owns it;
//! others need the right to it. `holds.rs` keeps retention from removing records that groups still need.

pub mod gaps;
pub mod group;
pub mod holds;
pub mod progress;
pub mod tenure;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use headwater_log::Offset;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::clock::now_us;
use crate::service::callers::caller::Caller;
use crate::service::error::Refusal;
use crate::service::limits::Limits;
use crate::service::request;
use crate::state::StateStore;
use group::{Group, KIND, Owner, fence, stored_groups};
use holds::GroupHolds;
use progress::Progress;
use tenure::Tenure;

const NAME_BYTES_MAX: usize = 249;
/// Readers use the epoch after the last reader's, or the time in microseconds.
const EPOCH_MAX: u64 = 1 << 62;
/// A commit that changes nothing is still written this often, to show that the group is alive.
const TOUCH_US: u64 = 60_000_000;
/// The most groups in one answer of `groups`, and about how many bytes.
const PAGE_GROUPS: usize = 1_000;
const PAGE_BYTES: usize = 1 << 20;

pub struct Groups {
    state: Arc<StateStore>,
    /// Of the partition of the state.
    progress: Progress,
    tenure: Tenure,
    holds: Arc<GroupHolds>,
    groups_max: usize,
    groups_per_user: usize,
    /// The owner of each group, so that quotas are checked without decoding all groups. Locked from reading a group
    /// until its new value is queued.
    owners: Mutex<HashMap<String, Owner>>,
}

/// Some groups by name, and the last name if there are more.
pub struct Page {
    pub groups: Vec<(String, Group)>,
    pub next: Option<String>,
}

impl Groups {
    pub fn new(
        state: Arc<StateStore>,
        (progress, tenure): (Progress, Tenure),
        holds: Arc<GroupHolds>,
        limits: &Limits,
    ) -> Groups {
        let owner = |(name, group): (String, Group)| (name, group.owner());
        let owners = stored_groups(&state).into_iter().map(owner).collect();
        Groups {
            state,
            progress,
            tenure,
            holds,
            groups_max: limits.groups_max,
            groups_per_user: limits.groups_per_user,
            owners: Mutex::new(owners),
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
            let mut owners = self.owners.lock();
            let stored = self.find(&body.group)?;
            let before = stored.clone().unwrap_or_default();
            before.must_be_used_by(&body.group, caller)?;
            if before.owner.is_none() {
                caller.must_begin_group(&body.group)?;
            }
            fence(&body.group, &before, body.reader_epoch)?;
            if body.reader_epoch > EPOCH_MAX {
                let message = format!(
                    "reader_epoch is above {EPOCH_MAX}: no later reader could have a higher one"
                );
                return Err(Refusal::invalid("reader_epoch", message));
            }
            if stored.is_none() {
                self.check_count(&owners, caller)?;
            }
            let mut group = before.clone();
            group.own(&body.group, caller, stored.is_some());
            group.reader_epoch = body.reader_epoch;
            for (number, offset) in initial {
                let place = group.partitions.entry(number).or_default();
                place.initial.get_or_insert(offset);
            }
            for (number, offsets) in offsets {
                let place = group.partitions.entry(number).or_default();
                // What was passed from a later place on says nothing of the records before it.
                let is_back = place.committed > Some(offsets.committed);
                let before = place.scanned.filter(|_| !is_back);
                place.committed = Some(offsets.committed);
                place.scanned = offsets.scanned.or(before);
            }
            let now_us = now_us();
            let is_touched = now_us.abs_diff(before.touched_us) >= TOUCH_US;
            let end = if group == before && !is_touched {
                self.state.end()
            } else {
                group.touched_us = now_us;
                let end = self.holds.change(|| self.write(&body.group, &group))?;
                if stored.is_none() || group.owner() != before.owner() {
                    owners.insert(body.group.clone(), group.owner());
                }
                end
            };
            self.holds.touch(&body.group);
            (group, end)
        };
        self.reach(end).await?;
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
        self.reach(self.state.end()).await?;
        Ok(group.to_json(&body.group))
    }

    /// A page of the groups that the caller may use, ordered by name.
    pub fn groups(&self, caller: &Caller, body: &request::Groups) -> Result<Value, Refusal> {
        let page = self.page(caller, body, "")?;
        let groups = page.groups.iter().map(|(name, group)| group.to_json(name));
        Ok(json!({"groups": groups.collect::<Vec<_>>(), "next": page.next}))
    }

    /// The same as values, of groups with this part in their names.
    pub fn page(
        &self,
        caller: &Caller,
        body: &request::Groups,
        contains: &str,
    ) -> Result<Page, Refusal> {
        let limit = body.limit.unwrap_or(PAGE_GROUPS);
        if !(1..=PAGE_GROUPS).contains(&limit) {
            let message = format!("limit {limit} is out of range: use 1 to {PAGE_GROUPS}");
            return Err(Refusal::invalid("limit", message));
        }
        let mut names = Vec::new();
        self.state.for_each_prefix(KIND, |key, _| {
            let name = &key[KIND.len()..];
            let is_behind = body.after.as_deref().is_none_or(|after| name > after);
            if is_behind && name.contains(contains) {
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
                next = groups
                    .last()
                    .map(|(name, _): &(String, Group)| name.clone());
                break;
            }
            bytes += group.to_json(&name).to_string().len();
            groups.push((name, group));
        }
        Ok(Page { groups, next })
    }

    async fn reach(&self, end: Offset) -> Result<(), Refusal> {
        self.tenure.reach(&self.progress, end).await
    }

    /// Waits until all changes of groups so far are durable.
    pub async fn durable(&self) -> Result<(), Refusal> {
        self.reach(self.state.end()).await
    }

    /// Moves a group: these partitions begin at the given offsets, as if they had been read up to there. Readers that
    /// run are fenced, so that none commits its own place over this one.
    pub async fn reset(
        &self,
        caller: &Caller,
        body: request::ResetGroup,
    ) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let offsets = by_number("offsets", Some(body.offsets))?;
        if offsets.is_empty() {
            let message = "name at least one partition, with the offset that it is moved to";
            return Err(Refusal::invalid("offsets", message));
        }
        for (number, offset) in &offsets {
            self.check_offset(*number, *offset)?;
        }
        let (group, end) = {
            // As in `commit`: nobody changes the group between its value and the new one.
            let _owners = self.owners.lock();
            let Some(mut group) = self.find(&body.group)? else {
                return Err(none(&body.group));
            };
            group.must_be_used_by(&body.group, caller)?;
            group.reader_epoch = (group.reader_epoch + 1).min(EPOCH_MAX);
            for (number, offset) in offsets {
                let at = Some(offset);
                let place = group.partitions.entry(number).or_default();
                (place.initial, place.committed, place.scanned) = (at, at, None);
            }
            group.touched_us = now_us();
            let end = self.holds.change(|| self.write(&body.group, &group))?;
            self.holds.touch(&body.group);
            (group, end)
        };
        self.reach(end).await?;
        Ok(group.to_json(&body.group))
    }

    /// Removes a group: it no longer holds anything, and the next commit to it starts a new group.
    pub async fn remove(&self, caller: &Caller, body: request::GroupOf) -> Result<Value, Refusal> {
        check_name(&body.group)?;
        let end = {
            let mut owners = self.owners.lock();
            let group = self.find(&body.group)?;
            let is_own = group
                .as_ref()
                .is_some_and(|group| group.is_owned_by(caller));
            if !is_own && !caller.may_group(&body.group) {
                caller.must_operate("remove_group")?;
            }
            if group.is_none() {
                return Err(none(&body.group));
            }
            let key = format!("{KIND}{}", body.group);
            let end = self.holds.change(|| self.state.delete(&key));
            let end = end.map_err(|error| Refusal::from_state(self.state.partition(), error))?;
            owners.remove(&body.group);
            end
        };
        self.reach(end).await?;
        Ok(json!({}))
    }

    /// Checks that the caller may report in the name of a group.
    ///
    /// # Errors
    /// The group belongs to another user.
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
        // An offset below the log start was valid once; it holds the same records as the log start does.
        if Offset(offset) > partition.high_watermark() {
            return Err(Refusal::out_of_range(partition, offset));
        }
        Ok(())
    }

    /// Checks that one more group is within the limits.
    fn check_count(&self, owners: &HashMap<String, Owner>, caller: &Caller) -> Result<(), Refusal> {
        let (user, tenant) = (caller.owner(), caller.tenant());
        let is_own = |owner: &&Owner| {
            let is_of_tenant = tenant.is_some() && owner.tenant.as_deref() == tenant;
            user.is_some() && (is_of_tenant || owner.user.as_deref() == user)
        };
        let own = owners.values().filter(is_own).count();
        if owners.len() >= self.groups_max {
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
            Refusal::internal(format!(
                "the stored state of group {name} is unreadable: {error}"
            ))
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

fn none(group: &str) -> Refusal {
    Refusal::not_found(format!("there is no consumer group {group}"))
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |c: char| !c.is_control() && !matches!(c, '+' | '#' | '/');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        let rule = format!(
            "a group name must have 1 to {NAME_BYTES_MAX} bytes and no `/`, `+`, `#` or control characters"
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
