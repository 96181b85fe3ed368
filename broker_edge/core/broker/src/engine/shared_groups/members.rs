//! The members of a group. The cost of a record must not depend on their number: disconnected members and members
//! without room are not visited. Members that can take records stand in a line, in the order of their turns.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::auth::{Caller, Rights};
use crate::engine::SessionKey;
use crate::engine::routing::topics::EffectiveOptions;

use super::callers::Callers;

/// A session in a group.
#[derive(Debug)]
pub struct Member {
    pub effective: Rc<EffectiveOptions>,
    /// It has unsubscribed and only keeps the records in its window.
    pub is_leaving: bool,
    /// When its unacknowledged deliveries were last checked, and the next packet id then.
    pub asked_at_ms: u64,
    pub asked_id: u16,
    /// Its index among the connected members.
    present_at: Option<usize>,
    /// Identifies its place in the line; zero if it is not in line.
    ticket: u64,
    /// The key of its rights in `callers`, once they are known.
    caller: Option<Option<Caller>>,
}

impl Member {
    /// Whether it is in the line.
    pub fn is_ready(&self) -> bool {
        self.ticket != 0
    }
}

/// All members of a group.
#[derive(Debug, Default)]
pub struct Members {
    by_session: FxHashMap<SessionKey, Member>,
    callers: Callers,
    leaving: FxHashSet<SessionKey>,
    /// Connected members that accept deliveries, in no order.
    present: Vec<SessionKey>,
    /// Those of them that are not known to be full, with their tickets. An entry is stale if its member now has another
    /// ticket; stale entries are dropped at the front.
    line: VecDeque<(SessionKey, u64)>,
    ready: usize,
    tickets: u64,
    /// Changes when a member joins, leaves, connects or disconnects.
    epoch: u64,
    /// The index of the next connected member, for records that full members may take.
    turn: usize,
}

impl Members {
    /// `epoch` is higher than those of all earlier groups.
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.by_session.len()
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn get(&self, key: SessionKey) -> Option<&Member> {
        self.by_session.get(&key)
    }

    pub fn get_mut(&mut self, key: SessionKey) -> Option<&mut Member> {
        self.by_session.get_mut(&key)
    }

    pub fn keys(&self) -> impl Iterator<Item = SessionKey> {
        self.by_session.keys().copied()
    }

    /// The disconnected members that keep their subscription.
    pub fn away(&self) -> impl Iterator<Item = SessionKey> {
        let away = |(_, member): &(_, &Member)| !member.is_leaving && member.present_at.is_none();
        self.by_session.iter().filter(away).map(|(key, _)| *key)
    }

    pub fn present(&self) -> &[SessionKey] {
        &self.present
    }

    /// Number of members in the line.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Whether a connected member has no room.
    pub fn has_full(&self) -> bool {
        self.ready < self.present.len()
    }

    /// Whether every subscription is gone.
    pub fn is_over(&self) -> bool {
        self.leaving.len() == self.by_session.len()
    }

    /// Whether another member than this one is connected.
    pub fn has_other(&self, not: SessionKey) -> bool {
        self.present.iter().take(2).any(|key| *key != not)
    }

    /// Adds a session, or updates its options. Returns whether it is new.
    pub fn join(
        &mut self,
        key: SessionKey,
        effective: Rc<EffectiveOptions>,
        now_ms: u64,
        next_id: u16,
    ) -> bool {
        self.epoch += 1;
        if let Some(member) = self.by_session.get_mut(&key) {
            member.effective = effective;
            if std::mem::take(&mut member.is_leaving) {
                self.leaving.remove(&key);
            }
            return false;
        }
        let member = Member {
            effective,
            is_leaving: false,
            asked_at_ms: now_ms,
            asked_id: next_id,
            present_at: None,
            ticket: 0,
            caller: None,
        };
        self.by_session.insert(key, member);
        true
    }

    /// Sets the rights of a member's client.
    pub fn set_rights(&mut self, key: SessionKey, rights: Option<&Arc<Rights>>) {
        if let Some(member) = self.by_session.get_mut(&key) {
            let before = member.caller.replace(self.callers.enter(rights));
            if let Some(before) = before {
                self.callers.leave(&before);
            }
        }
    }

    /// The rights of all members have to be set again.
    pub fn forget_rights(&mut self) {
        self.callers = Callers::default();
        for member in self.by_session.values_mut() {
            member.caller = None;
        }
    }

    /// The rights of the members.
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// A member has unsubscribed.
    pub fn begin_leaving(&mut self, key: SessionKey) {
        self.depart(key);
        if let Some(member) = self.by_session.get_mut(&key)
            && !std::mem::replace(&mut member.is_leaving, true)
        {
            self.leaving.insert(key);
        }
    }

    pub fn remove(&mut self, key: SessionKey) {
        self.depart(key);
        let Some(member) = self.by_session.remove(&key) else {
            return;
        };
        if member.is_leaving {
            self.leaving.remove(&key);
        }
        if let Some(caller) = &member.caller {
            self.callers.leave(caller);
        }
    }

    pub fn leavers(&self) -> Vec<SessionKey> {
        self.leaving.iter().copied().collect()
    }

    /// A member can be given records from now on.
    pub fn arrive(&mut self, key: SessionKey, now_ms: u64, next_id: u16) {
        let at = self.present.len();
        if let Some(member) = self.by_session.get_mut(&key)
            && !member.is_leaving
            && member.present_at.is_none()
        {
            member.present_at = Some(at);
            (member.asked_at_ms, member.asked_id) = (now_ms, next_id);
            self.present.push(key);
            self.epoch += 1;
            self.unpark(key);
        }
    }

    /// A member was disconnected.
    pub fn depart(&mut self, key: SessionKey) {
        self.park(key);
        let Some(member) = self.by_session.get_mut(&key) else {
            return;
        };
        if let Some(at) = member.present_at.take() {
            self.epoch += 1;
            self.present.swap_remove(at);
            let moved = self.present.get(at).copied();
            if let Some(moved) = moved.and_then(|key| self.by_session.get_mut(&key)) {
                moved.present_at = Some(at);
            }
        }
    }

    /// A member has no room: it leaves the line until it is unparked.
    pub fn park(&mut self, key: SessionKey) {
        if let Some(member) = self.by_session.get_mut(&key)
            && std::mem::take(&mut member.ticket) != 0
        {
            self.ready -= 1;
            self.trim_front();
        }
    }

    /// A member may have room again.
    pub fn unpark(&mut self, key: SessionKey) {
        if let Some(member) = self.by_session.get_mut(&key)
            && member.present_at.is_some()
            && member.ticket == 0
        {
            self.ready += 1;
            self.line_up(key);
        }
    }

    /// The member whose turn it is.
    pub fn front(&self) -> Option<SessionKey> {
        self.line.front().map(|(key, _)| *key)
    }

    /// The members in the line, in the order of their turns.
    pub fn line(&self) -> impl Iterator<Item = SessionKey> {
        let stands = |(key, ticket): &&(SessionKey, u64)| {
            let member = self.by_session.get(key);
            member.is_some_and(|member| member.ticket == *ticket)
        };
        self.line.iter().filter(stands).map(|(key, _)| *key)
    }

    /// A member has had its turn.
    pub fn pass_turn(&mut self, key: SessionKey) {
        if self.get(key).is_some_and(Member::is_ready) {
            self.line_up(key);
        }
    }

    /// The next of the connected members, including full ones.
    pub fn next_present(&mut self) -> Option<SessionKey> {
        let at = self.turn.checked_rem(self.present.len())?;
        self.turn = at + 1;
        self.present.get(at).copied()
    }

    fn line_up(&mut self, key: SessionKey) {
        self.tickets += 1;
        let ticket = self.tickets;
        if let Some(member) = self.by_session.get_mut(&key) {
            member.ticket = ticket;
            self.line.push_back((key, ticket));
        }
        self.trim_front();
        if self.line.len() > 2 * self.ready + 16 {
            let by_session = &self.by_session;
            self.line.retain(|(key, ticket)| {
                by_session
                    .get(key)
                    .is_some_and(|member| member.ticket == *ticket)
            });
        }
    }

    /// Drops stale entries at the front.
    fn trim_front(&mut self) {
        while let Some((key, ticket)) = self.line.front() {
            if self
                .by_session
                .get(key)
                .is_some_and(|member| member.ticket == *ticket)
            {
                return;
            }
            self.line.pop_front();
        }
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
