//! Shared subscriptions: groups of sessions, each record goes to one session.
//!
//! A group reads the log like a session: it has a cursor per partition and no queue. Unacknowledged deliveries are only
//! in the windows of members. `membership` decides who is in a group, `give_back` handles records that members return,
//! and `persist` has the stored form of the cursors; `session_store` writes it.

pub mod audience;
mod callers;
mod fair_queue;
mod give_back;
mod group;
mod group_cursor;
pub mod members;
pub mod membership;
mod persist;
mod tenants;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use headwater_log::RecordView;
use headwater_mqtt::topic::parse_shared;

use super::SessionKey;
use super::ids::{GroupId, PartitionIndex};
use super::session::Session;

use audience::Audiences;
pub use callers::Verdicts;
use fair_queue::{FairQueue, Owner};
use group::ASIDE_TRIED;
pub use group::Group;

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    slots: Vec<Option<Box<Group>>>,
    free: Vec<GroupId>,
    by_name: HashMap<Rc<str>, GroupId>,
    /// Groups with records to give besides the live stream, each at most once.
    runnable: FairQueue,
    /// Stored cursors of groups that have ended.
    ended: HashSet<Rc<str>>,
    /// Members of all groups; a session in several groups counts in each.
    members: usize,
    /// Groups created since the start.
    made: u64,
    audiences: Audiences,
    /// Groups that ended or lost their last present member since these were last taken: nobody reads for them.
    deserted: Vec<GroupId>,
}

impl Groups {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Members of all groups; a session in several groups counts in each.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Gives the turn its budget of rights checks.
    pub fn begin_turn(&mut self) {
        self.audiences.begin_turn();
    }

    /// The rights of members have changed.
    pub fn forget_audiences(&mut self) {
        self.audiences.forget();
    }

    /// Counts checks of rights.
    pub fn charge(&mut self, looks: usize) {
        self.audiences.charge(looks);
    }

    /// Sets a record aside, so that it is not lost; QoS 0 is not kept.
    pub fn set_aside(
        &mut self,
        id: GroupId,
        partition: PartitionIndex,
        record: &RecordView<'_>,
    ) -> bool {
        let group = self.get_mut(id);
        record.qos > 0 && group.is_some_and(|group| group.set_aside((partition, record.offset)))
    }

    /// Number of rights checks since the last call.
    pub fn take_looks(&mut self) -> u64 {
        self.audiences.take_looks()
    }

    pub fn by_name(&self, name: &str) -> Option<GroupId> {
        self.by_name.get(name).copied()
    }

    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.slots.get(usize::from(id.0))?.as_deref()
    }

    pub fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.slots.get_mut(usize::from(id.0))?.as_deref_mut()
    }

    fn ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        let slots = self.slots.iter().zip(0..);
        let used = slots.filter_map(|(slot, id)| slot.as_ref().map(|_| GroupId(id)));
        used.collect::<Vec<_>>().into_iter()
    }

    /// `None` if there is no number left.
    fn insert(&mut self, shown: &str, tenant: Option<&str>, owner: Owner) -> Option<GroupId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let id = GroupId(u16::try_from(self.slots.len()).ok()?);
                self.slots.push(None);
                id
            }
        };
        let name: Rc<str> = tenants::name_of(shown, tenant).into();
        self.made += 1;
        let mut group = Group::new(Rc::clone(&name), shown, self.made << 32);
        group.tenant = tenant.map(Into::into);
        group.owner = owner;
        // The cursor of an earlier group with this name is still stored: it is replaced, not removed.
        group.stored = self.ended.remove(&name);
        group.dirty = group.stored;
        group.has_completed = group.stored;
        self.by_name.insert(name, id);
        self.slots[usize::from(id.0)] = Some(Box::new(group));
        Some(id)
    }

    fn remove(&mut self, id: GroupId) {
        let slot = self.slots.get_mut(usize::from(id.0));
        if let Some(group) = slot.and_then(Option::take) {
            self.by_name.remove(&group.name);
            self.free.push(id);
            self.members -= group.members.len();
            self.deserted.push(id);
            self.audiences.forget_group(id);
            if group.stored {
                self.ended.insert(group.name);
            }
        }
    }

    /// Number of groups with records to give.
    pub fn runnable(&self) -> usize {
        self.runnable.len()
    }

    /// The group whose turn it is.
    pub fn pop_runnable(&mut self) -> Option<GroupId> {
        let id = self.runnable.pop()?;
        if let Some(group) = self.get_mut(id) {
            group.queued = false;
        }
        Some(id)
    }

    /// A group is live in a partition: nothing of it was done before its cursor came there.
    pub fn end_skips(&mut self, id: GroupId, partition: PartitionIndex) {
        if let Some(group) = self.get_mut(id) {
            group.skips.clear(partition);
        }
    }

    pub fn take_deserted(&mut self) -> Vec<GroupId> {
        std::mem::take(&mut self.deserted)
    }

    /// The group that a session has joined with a filter.
    fn held(&self, session: &Session, filter: &str) -> Option<GroupId> {
        let mut ids = session.groups().iter().copied();
        ids.find(|id| self.get(*id).is_some_and(|group| &*group.shown == filter))
    }

    /// The group that a session's shared filter refers to, if there is one.
    pub fn meant(&self, session: &Session, filter: &str) -> Option<GroupId> {
        let of_tenant = || self.by_name(&tenants::name_of(filter, tenants::of(session)));
        self.held(session, filter).or_else(of_tenant)
    }

    /// Wakes the groups of a session that have records to give: it may have room again.
    pub fn wake_for(&mut self, key: SessionKey, session: &Session) {
        for id in session.groups() {
            if let Some(group) = self.get_mut(*id) {
                if group.members.has_full() {
                    group.members.unpark(key);
                }
                group.try_aside(ASIDE_TRIED);
            }
            self.wake(*id);
        }
    }

    /// Makes a group with records to give run in the next catch-up.
    pub fn wake(&mut self, id: GroupId) {
        if let Some(group) = self.get_mut(id)
            && !group.queued
            && group.has_work()
        {
            group.queued = true;
            let owner = Rc::clone(&group.owner);
            self.runnable.push(owner, id);
        }
    }
}

/// Whether a subscription is shared.
#[inline]
pub fn is_shared(filter: &str) -> bool {
    filter.starts_with("$share/")
}

/// The filter after the group's name; `None` for a filter that is not shared.
pub fn filter_of(filter: &str) -> Option<&str> {
    parse_shared(filter)
        .ok()
        .flatten()
        .map(|shared| shared.filter)
}
