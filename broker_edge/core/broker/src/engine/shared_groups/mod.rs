//! Shared subscriptions: groups of sessions, each record goes to one session.
//!
//! A group reads the log like a session: it has a cursor per partition and no queue. Unacknowledged deliveries are only
//! in the windows of members. Joining and leaving is decided here; `give` chooses the member for a record, `catch_up`
//! reads for a group that is behind, `give_back` handles records that members return, and `persist` stores the cursors.

mod audience;
mod callers;
mod catch_up;
mod fair_queue;
mod give;
mod give_back;
mod group_cursor;
mod members;
mod persist;
mod tenants;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use headwater_log::Offset;
use headwater_mqtt::ReasonCode;
use headwater_mqtt::packet::subscribe::RetainHandling;
use headwater_mqtt::topic::parse_shared;

use crate::auth::Access;

use super::containers::lazy_box::LazyBox;
use super::ids::{GroupId, PartitionIndex, PartitionOffset};
use super::quotas::Kind;
use super::routing::position::{Refusal, StartOffsets};
use super::routing::router::Options;
use super::routing::topics::EffectiveOptions;
use super::session::window::Source;
use super::session::{CatchUpCursor, Subscription};
use super::{Engine, SessionKey};

use audience::Audiences;
pub use callers::Verdicts;
use fair_queue::{FairQueue, Owner};
pub use group_cursor::DoneRanges;
use members::Members;

/// Records of a group that may be unacknowledged at members or wait to be given again; at the limit the group reads no
/// further.
const PENDING_MAX: usize = 100_000;
/// How many of those may be set aside because only full or disconnected members may receive them.
const ASIDE_MAX: usize = 50_000;
/// Records tried again when a member may have room; and records tried again each second and when a member connects.
const ASIDE_TRIED: usize = 4;
const ASIDE_TRIED_MORE: usize = 64;

/// The member of a record that was set aside.
const NOBODY: SessionKey = SessionKey::NONE;

/// `$share/<name>/<filter>`.
#[derive(Debug)]
pub struct Group {
    /// Prefixed with the group's tenant.
    name: Rc<str>,
    /// As its members write it.
    shown: Rc<str>,
    tenant: Option<Rc<str>>,
    /// The group's turns are shared with the other groups of this owner.
    owner: Owner,
    /// The end of the history at which the group began: older records are only given to members that may replay them.
    past: Vec<PartitionOffset>,
    members: Members,
    /// Partitions in which it is not part of the live stream.
    behind: Vec<CatchUpCursor>,
    /// Records returned by members, with the member that had each: given before anything new.
    returned: BTreeMap<PartitionOffset, SessionKey>,
    /// Records that only full or disconnected members may receive: others do not wait for them.
    aside: VecDeque<PartitionOffset>,
    /// Records that were done above the cursors at a restart.
    skips: DoneRanges,
    /// Deliveries in the windows of members.
    out: usize,
    /// In the list of groups with work to do.
    queued: bool,
    /// Acknowledgements came since the last checkpoint.
    dirty: bool,
    /// A QoS 2 delivery is done, and the state store does not know yet.
    has_completed: bool,
    /// The state store holds its cursor.
    stored: bool,
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    slots: Vec<Option<Box<Group>>>,
    free: Vec<GroupId>,
    by_name: HashMap<Rc<str>, GroupId>,
    /// Groups with records to give besides the live stream, each at most once.
    runnable: FairQueue,
    /// Groups that wait to repeat a read that failed temporarily.
    read_retries: Vec<GroupId>,
    /// Stored cursors of groups that have ended.
    ended: HashSet<Rc<str>>,
    /// Members of all groups; a session in several groups counts in each.
    members: usize,
    /// Groups created since the start.
    made: u64,
    audiences: Audiences,
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

    /// Number of rights checks since the last call.
    pub fn take_looks(&mut self) -> u64 {
        self.audiences.take_looks()
    }

    pub fn by_name(&self, name: &str) -> Option<GroupId> {
        self.by_name.get(name).copied()
    }

    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.slots.get(usize::from(id.0))?.as_deref()
    }

    fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
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
            self.audiences.forget_group(id);
            if group.stored {
                self.ended.insert(group.name);
            }
        }
    }

    /// Lets groups repeat reads that failed.
    pub fn read_again(&mut self) {
        for id in std::mem::take(&mut self.read_retries) {
            self.wake(id);
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

impl Group {
    fn new(name: Rc<str>, shown: &str, epoch: u64) -> Self {
        Self {
            name,
            shown: shown.into(),
            tenant: None,
            owner: "".into(),
            past: Vec::new(),
            members: Members::new(epoch),
            behind: Vec::new(),
            returned: BTreeMap::new(),
            aside: VecDeque::new(),
            skips: DoneRanges::default(),
            out: 0,
            queued: false,
            dirty: false,
            has_completed: false,
            stored: false,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The filter after the group's name.
    pub fn filter(&self) -> &str {
        filter_of(&self.shown).unwrap_or_default()
    }

    /// The access that a member needs to be given a record.
    #[inline]
    pub fn access_to(&self, partition: PartitionIndex, offset: Offset) -> Access {
        let mut past = self.past.iter();
        if past.any(|(of, until)| *of == partition && offset < *until) {
            Access::Replay
        } else {
            Access::Receive
        }
    }

    fn has_work(&self) -> bool {
        !self.behind.is_empty() || !self.returned.is_empty()
    }

    fn is_live(&self, partition: PartitionIndex) -> bool {
        let mut behind = self.behind.iter();
        behind.all(|behind| behind.partition != partition)
    }

    /// The offset from which the group continues in a partition; `live_at` is the position of the live stream.
    fn read_offset(&self, partition: PartitionIndex, live_at: Offset) -> Offset {
        let mut behind = self.behind.iter();
        behind
            .find(|behind| behind.partition == partition)
            .map_or(live_at, |behind| behind.next)
    }

    fn fall_behind(&mut self, partition: PartitionIndex, next: Offset) {
        if self.is_live(partition) {
            self.behind.push(CatchUpCursor {
                partition,
                next,
                qos0_from: Offset(0),
                sheds_qos0: false,
            });
        }
    }

    /// The options of a member's subscription.
    pub fn effective_of(&self, session: SessionKey) -> Option<&EffectiveOptions> {
        Some(&self.members.get(session)?.effective)
    }

    /// Sets a record aside, if there is room for it.
    fn set_aside(&mut self, at: PartitionOffset) -> bool {
        let has_room = self.aside.len() < ASIDE_MAX;
        if has_room {
            self.aside.push_back(at);
            self.dirty = true;
        }
        has_room
    }

    /// Lets records that were set aside be tried again, in turn.
    fn try_aside(&mut self, count: usize) {
        let count = count.min(self.aside.len());
        for at in self.aside.drain(..count) {
            self.returned.insert(at, NOBODY);
        }
    }

    fn is_full(&self) -> bool {
        self.out + self.returned.len() + self.aside.len() >= PENDING_MAX
    }

    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.out + self.returned.len() + self.aside.len()
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

impl Engine {
    /// Why nobody may subscribe to this group, if there is a reason.
    pub(super) fn check_group(&self, name: &str) -> Result<(), Refusal> {
        let groups_max = usize::from(self.env.settings.mqtt.max_shared_groups);
        if self.groups.by_name(name).is_some() || self.groups.len() < groups_max {
            return Ok(());
        }
        Err(Refusal {
            reason: ReasonCode::QuotaExceeded,
            sentence: format!("the broker keeps at most {groups_max} shared groups"),
        })
    }

    /// Adds a session to a group, which is created if needed, or replaces the session's options there.
    pub(super) fn put_shared(
        &mut self,
        key: SessionKey,
        name: &str,
        options: Options,
        retain_handling: RetainHandling,
        start: Option<&StartOffsets>,
    ) {
        let Some(session) = self.clients.session_mut(key) else {
            return;
        };
        let mut held = session.subscriptions.iter_mut();
        match held.find(|held| &*held.filter == name) {
            Some(held) => {
                held.options = options;
                held.retain_handling = retain_handling;
            }
            None => {
                self.quotas.add(session.account, Kind::Subscriptions, 1);
                session.subscriptions.push(Subscription {
                    filter: name.into(),
                    options,
                    retain_handling,
                    since: LazyBox::default(),
                });
            }
        }
        let tenant = self.tenant_for_groups(key).map(str::to_owned);
        let found = match self.group_held(key, name) {
            Some(id) => Some((id, false)),
            None => {
                let session = self.clients.session(key);
                let user = session.and_then(|session| session.owner());
                let user = user.map(str::to_owned);
                self.group_of(name, tenant.as_deref(), user.as_deref())
            }
        };
        let Some((id, is_new)) = found else {
            return;
        };
        if let (true, Some(start), Some(group)) = (is_new, start, self.groups.get_mut(id)) {
            for (partition, from) in &start.cursors {
                let live_at = self.delivery.dispatched[partition.index()];
                if *from < live_at {
                    group.fall_behind(*partition, *from);
                    group.past.push((*partition, live_at));
                }
            }
        }
        self.join_group(key, id, options);
        self.groups.wake(id);
    }

    /// The tenant's group for that filter, and whether it was just created.
    fn group_of(
        &mut self,
        shown: &str,
        tenant: Option<&str>,
        user: Option<&str>,
    ) -> Option<(GroupId, bool)> {
        if let Some(id) = self.groups.by_name(&tenants::name_of(shown, tenant)) {
            return Some((id, false));
        }
        let filter = filter_of(shown)?;
        let owner = fair_queue::owner_of(tenant, user);
        let id = self.groups.insert(shown, tenant, owner)?;
        self.routing.router.insert_group(filter, id);
        Some((id, true))
    }

    fn join_group(&mut self, key: SessionKey, id: GroupId, options: Options) {
        let now_ms = self.env.now.mono_ms;
        let (Some(session), Some(group)) = (self.clients.session_mut(key), self.groups.get_mut(id))
        else {
            return;
        };
        let effective = Rc::new(EffectiveOptions::of(std::iter::once(options)));
        let next_id = session.window.next_id();
        let is_new = group.members.join(key, effective, now_ms, next_id);
        if is_new {
            session.join(id);
            self.quotas.join(session.account, id);
            group.members.set_rights(key, session.rights.as_ref());
            // It may be the first member that may receive certain records.
            self.routing.router.advance();
        }
        if session.active_conn().is_some() {
            if group.members.present().is_empty() {
                // A member that had unsubscribed is back, and records may have been matched without the group.
                self.routing.router.advance();
            }
            group.members.arrive(key, now_ms, next_id);
        }
        self.groups.members += usize::from(is_new);
    }

    /// A session has unsubscribed. Records sent to it stay with it; the group ends with its last subscription.
    pub(super) fn leave_group(&mut self, key: SessionKey, name: &str) {
        let Some(id) = self.group_held(key, name) else {
            return;
        };
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        group.members.begin_leaving(key);
        // Once the group is deleted, its QoS 2 deliveries are no longer looked up by name.
        group.has_completed = true;
        if group.members.is_over() {
            self.end_group(id);
        } else {
            self.drop_leaver(id, key);
        }
    }

    /// Removes a member that has unsubscribed, once it has no unacknowledged deliveries.
    fn drop_leaver(&mut self, id: GroupId, key: SessionKey) {
        let session = self.clients.session_mut(key);
        if let Some(session) = session {
            if session.window.holds(Source::Shared(id)) {
                return;
            }
            session.leave(id);
            self.quotas.leave(session.account, id);
        }
        if let Some(group) = self.groups.get_mut(id) {
            let before = group.members.len();
            group.members.remove(key);
            self.groups.members -= before - group.members.len();
        }
    }

    fn end_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        let members: Vec<SessionKey> = group.members.keys().collect();
        let filter = group.filter().to_owned();
        for key in members {
            if let Some(session) = self.clients.session_mut(key) {
                session
                    .window
                    .reassign(Source::Shared(id), Source::Unattached);
                session.leave(id);
                self.quotas.leave(session.account, id);
            }
        }
        self.routing.router.remove_group(&filter, id);
        self.groups.remove(id);
    }

    /// A session ends: it leaves its groups, and its unacknowledged records go to other members.
    pub(super) fn leave_all_groups(&mut self, key: SessionKey) {
        self.give_back_shared(key, true);
        let (ids, account) = match self.clients.session_mut(key) {
            Some(session) => (session.take_groups(), session.account),
            None => return,
        };
        for id in ids {
            self.quotas.leave(account, id);
            let Some(group) = self.groups.get_mut(id) else {
                continue;
            };
            let before = group.members.len();
            group.members.remove(key);
            let (left, is_over) = (group.members.len(), group.members.is_over());
            self.groups.members -= before - left;
            if is_over {
                self.end_group(id);
            } else {
                self.groups.wake(id);
            }
        }
    }

    /// Wakes the groups of a session that have records to give: it may have room again.
    pub(super) fn wake_groups_of(&mut self, key: SessionKey) {
        if let Some(session) = self.clients.session(key) {
            for id in session.groups() {
                if let Some(group) = self.groups.get_mut(*id)
                    && group.members.has_full()
                {
                    group.members.unpark(key);
                }
                if let Some(group) = self.groups.get_mut(*id)
                    && !group.aside.is_empty()
                {
                    group.try_aside(ASIDE_TRIED);
                }
                self.groups.wake(*id);
            }
        }
    }

    /// A member can be given records: its groups continue, without the QoS 0 records of the time in which no member
    /// could.
    pub(super) fn activate_member(&mut self, key: SessionKey) {
        let now_ms = self.env.now.mono_ms;
        let Some(session) = self.clients.session(key) else {
            return;
        };
        let next_id = session.window.next_id();
        for id in session.groups() {
            let Some(group) = self.groups.get_mut(*id) else {
                continue;
            };
            if group.members.present().is_empty() {
                for behind in &mut group.behind {
                    behind.qos0_from = self.delivery.dispatched[behind.partition.index()];
                }
            }
            group.members.arrive(key, now_ms, next_id);
            group.try_aside(ASIDE_TRIED_MORE);
        }
    }

    /// A member was disconnected.
    fn depart_member(&mut self, key: SessionKey) {
        if let Some(session) = self.clients.session(key) {
            for id in session.groups() {
                if let Some(group) = self.groups.get_mut(*id) {
                    group.members.depart(key);
                }
            }
        }
    }
}
