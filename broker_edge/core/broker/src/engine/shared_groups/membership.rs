//! Who is in a group: joining, leaving, and the ends of sessions and groups.

use std::rc::Rc;

use headwater_log::Offset;
use headwater_mqtt::ReasonCode;
use headwater_mqtt::packet::subscribe::RetainHandling;

use crate::engine::SessionKey;
use crate::engine::clients::Clients;
use crate::engine::containers::lazy_box::LazyBox;
use crate::engine::env::Env;
use crate::engine::ids::GroupId;
use crate::engine::observe::Observe;
use crate::engine::quotas::{Kind, Quotas};
use crate::engine::routing::Routing;
use crate::engine::routing::position::{Refusal, StartOffsets};
use crate::engine::routing::router::Options;
use crate::engine::routing::topics::EffectiveOptions;
use crate::engine::session::cursors::Cursor;
use crate::engine::session::window::Source;
use crate::engine::session::{Session, Subscription};

use super::group::ASIDE_TRIED_MORE;
use super::{Groups, fair_queue, filter_of, tenants};

/// Sessions that join and leave groups.
pub struct Membership<'a> {
    pub env: &'a Env,
    pub groups: &'a mut Groups,
    pub clients: &'a mut Clients,
    pub routing: &'a mut Routing,
    pub quotas: &'a mut Quotas,
    pub observe: &'a mut Observe,
}

impl Membership<'_> {
    /// Adds a session to a group, which is created if needed, or replaces the session's options there.
    pub fn put(
        &mut self,
        key: SessionKey,
        name: &str,
        options: Options,
        retain_handling: RetainHandling,
        start: Option<&StartOffsets>,
        live_at: &[Offset],
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
        let found = match self.groups.held(session, name) {
            Some(id) => Some((id, false)),
            None => {
                let rights = session.rights.clone();
                let tenant = rights.as_ref().and_then(|rights| rights.tenant());
                let user = rights.as_ref().and_then(|rights| rights.user());
                self.group_of(name, tenant.map(|name| &**name), user.map(|name| &**name))
            }
        };
        let Some((id, is_new)) = found else {
            return;
        };
        if let (true, Some(start), Some(group)) = (is_new, start, self.groups.get_mut(id)) {
            for (partition, from) in &start.cursors {
                let live_at = live_at[partition.index()];
                if *from < live_at {
                    group.behind.fall_behind(Cursor::new(*partition, *from));
                    group.past.push((*partition, live_at));
                }
            }
        }
        self.join(key, id, options);
        self.groups.wake(id);
    }

    /// The tenant's group for that filter, and whether it was just created.
    pub fn group_of(
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
        self.routing.insert_group(filter, id);
        Some((id, true))
    }

    pub fn join(&mut self, key: SessionKey, id: GroupId, options: Options) {
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
            self.routing.note_groups();
        }
        if session.active_conn().is_some() {
            if group.is_deserted() {
                // A member that had unsubscribed is back, and records may have been matched without the group.
                self.routing.note_groups();
            }
            group.members.arrive(key, now_ms, next_id);
        }
        self.groups.members += usize::from(is_new);
    }

    /// Puts a restored session into its group.
    pub fn join_restored(
        &mut self,
        key: SessionKey,
        (shown, tenant): (&str, Option<&str>),
        options: Options,
    ) {
        if let Some(id) = self.groups.by_name(&tenants::name_of(shown, tenant)) {
            self.join(key, id, options);
        }
    }

    /// A session has unsubscribed. Records sent to it stay with it; the group ends with its last subscription.
    pub fn leave(&mut self, key: SessionKey, name: &str) {
        let held = self.clients.session(key);
        let Some(id) = held.and_then(|session| self.groups.held(session, name)) else {
            return;
        };
        self.groups.depart(id, key);
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        group.members.begin_leaving(key);
        // Once the group is deleted, its QoS 2 deliveries are no longer looked up by name.
        group.has_completed = true;
        if group.members.is_over() {
            self.end(id);
        } else {
            self.drop_leaver(id, key);
        }
    }

    /// Removes a member that has unsubscribed, once it has no unacknowledged deliveries.
    pub(super) fn drop_leaver(&mut self, id: GroupId, key: SessionKey) {
        let session = self.clients.session_mut(key);
        if let Some(session) = session {
            if session.window.holds(Source::Shared(id)) {
                return;
            }
            session.leave(id);
            self.quotas.leave(session.account, id);
        }
        self.groups.remove_member(id, key);
    }

    fn end(&mut self, id: GroupId) {
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
        self.routing.remove_group(&filter, id);
        self.groups.remove(id);
    }

    /// A session ends: it leaves its groups, and its unacknowledged records go to other members.
    pub fn leave_all(&mut self, key: SessionKey) {
        self.give_back(key, true);
        let (ids, account) = match self.clients.session_mut(key) {
            Some(session) => (session.take_groups(), session.account),
            None => return,
        };
        for id in ids {
            self.quotas.leave(account, id);
            self.groups.remove_member(id, key);
            match self.groups.get(id) {
                Some(group) if group.members.is_over() => self.end(id),
                _ => self.groups.wake(id),
            }
        }
    }
}

impl Groups {
    /// Why a session may not join this group, if there is a reason.
    pub fn check(&self, session: &Session, filter: &str, env: &Env) -> Result<(), Refusal> {
        let groups_max = usize::from(env.settings.mqtt.max_shared_groups);
        if self.len() < groups_max || self.meant(session, filter).is_some() {
            return Ok(());
        }
        let sentence = format!("the broker keeps at most {groups_max} shared groups");
        Err(Refusal::new(ReasonCode::QuotaExceeded, sentence))
    }

    /// A member can be given records: its groups continue, without the QoS 0 records of the time in which no member
    /// could.
    pub fn arrive(&mut self, key: SessionKey, session: &Session, live_at: &[Offset], now_ms: u64) {
        let next_id = session.window.next_id();
        for id in session.groups() {
            let Some(group) = self.get_mut(*id) else {
                continue;
            };
            if group.is_deserted() {
                group.behind.skip_qos0(live_at);
            }
            group.members.arrive(key, now_ms, next_id);
            group.try_aside(ASIDE_TRIED_MORE);
        }
    }

    /// A member was disconnected, or has unsubscribed.
    pub(super) fn depart(&mut self, id: GroupId, key: SessionKey) {
        if let Some(group) = self.get_mut(id) {
            group.members.depart(key);
            if group.is_deserted() {
                self.deserted.push(id);
            }
        }
    }

    fn remove_member(&mut self, id: GroupId, key: SessionKey) {
        if let Some(group) = self.get_mut(id) {
            let before = group.members.len();
            group.members.remove(key);
            let left = group.members.len();
            self.members -= before - left;
        }
    }
}
