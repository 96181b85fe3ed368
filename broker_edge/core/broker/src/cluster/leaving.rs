//! The orderly end of a node: what clients left is stored, then the shard is given to a sound follower, then nobody
//! waits for this replica any more. Each step has its time, because what others do cannot be waited for without end.

use std::collections::BTreeSet;

use headwater_cluster::marks::Member;
use headwater_replica::Input;

use super::node::{Node, Parts};

/// A successor that is not ready within this time is given up by the state machine; then another is asked.
pub(super) const SUCCESSOR_MS: u64 = 2_100;
/// For everything. Then it stops as after a crash: others elect a leader themselves.
const ALL_MS: u64 = 8_000;
/// How long it waits until the leader has removed it from the in-sync set.
const REMOVAL_MS: u64 = 1_500;

pub(super) struct Leaving {
    since_ms: u64,
    asked: BTreeSet<Member>,
    asked_ms: Option<u64>,
    /// When it told its leader that it takes no more.
    told_ms: Option<u64>,
    is_done: bool,
}

impl Node {
    pub(super) fn begin_leaving(&mut self, now: u64) {
        self.leaving = Some(Leaving {
            since_ms: now,
            asked: BTreeSet::new(),
            asked_ms: None,
            told_ms: None,
            is_done: false,
        });
        if self.parts.desk.is_busy() {
            self.parts.desk.store();
        }
    }

    /// Does what is due of the orderly end.
    pub(super) fn leave_step(&mut self, now: u64) {
        let Some(leaving) = self.leaving.as_ref().filter(|leaving| !leaving.is_done) else {
            return;
        };
        let is_late = now >= leaving.since_ms + ALL_MS;
        let is_over = self.parts.replica.is_over();
        let is_done = match self.parts.replica.shard().is_leading() {
            _ if is_late || is_over => true,
            true => self.hand_over_step(now),
            false => self.removal_step(now),
        };
        if is_done && let Some(leaving) = &mut self.leaving {
            leaving.is_done = true;
            // An error means that nobody waits any more.
            let _ = self.parts.left.try_send(());
        }
    }

    /// A leader: asks one follower after the other. Whether there is nobody to ask.
    fn hand_over_step(&mut self, now: u64) -> bool {
        let Some(leaving) = &mut self.leaving else {
            return true;
        };
        let is_waiting = leaving.asked_ms.is_some_and(|at| now < at + SUCCESSOR_MS);
        if self.parts.desk.is_busy() || is_waiting {
            return false;
        }
        let next = successors(&self.parts).find(|member| !leaving.asked.contains(member));
        let Some(to) = next else {
            tracing::warn!("no other node could take over the log");
            return true;
        };
        leaving.asked.insert(to.clone());
        leaving.asked_ms = Some(now);
        tracing::info!(to = %to.node, "gives the log to another node");
        self.give(Input::HandOver { to }, now);
        false
    }

    /// A follower: tells its leader, and waits until records do not wait for this replica. Whether that is so.
    fn removal_step(&mut self, now: u64) -> bool {
        let replica = &self.parts.replica;
        let (shard, me) = (replica.shard(), replica.me());
        let is_needed = shard.key().is_some_and(|key| key.in_sync.contains(me));
        let can_be_removed = shard.key().is_some_and(|key| key.in_sync.len() > 2);
        if !is_needed || !can_be_removed {
            return true;
        }
        if !shard.is_aligned() {
            return false;
        }
        let Some(leaving) = &mut self.leaving else {
            return true;
        };
        let told_ms = leaving.told_ms;
        leaving.told_ms.get_or_insert(now);
        match told_ms {
            Some(at) => now >= at + REMOVAL_MS,
            None => {
                self.give(Input::TakesNoMore, now);
                false
            }
        }
    }
}

/// Who may lead next: the members of the in-sync set that are linked.
pub(super) fn successors(parts: &Parts) -> impl Iterator<Item = Member> + '_ {
    let (key, me) = (parts.replica.shard().key(), parts.replica.me());
    let in_sync = key.map(|key| key.in_sync_without(me));
    let members = in_sync.into_iter().flatten();
    members.filter(|member| parts.mesh.is_linked(&member.node))
}
