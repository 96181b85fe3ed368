//! Who is in sync: the one compare-and-swap of a leader that is due (R6, R7), and to whom it hands over.

use super::keys::CasKind;
use super::leading::Leading;
use super::{Effects, Role, Shard};
use crate::key::{Leader, ShardKey};
use crate::marks::{Epoch, Member};
use crate::rules::Rule;

impl Shard {
    /// Begins the compare-and-swap that is due, one at a time.
    pub(super) fn change_set(&mut self, out: &mut Effects) {
        let Some((kind, wanted)) = self.next_change() else {
            return;
        };
        let before = self.key.as_ref().map(|(_, key)| key.in_sync.clone());
        let before = before.unwrap_or_default();
        let rules = self.place.rules;
        if let Role::Leading(leading) = &mut self.role {
            let joining = wanted.in_sync.difference(&before);
            for member in joining.filter(|_| rules.holds(Rule::WaitBeforeAdding)) {
                leading.commit.wait_for(member.clone());
            }
            #[cfg(any(test, feature = "sabotage"))]
            for member in before.difference(&wanted.in_sync) {
                if !rules.holds(Rule::WaitUntilRemoved) {
                    leading.commit.forget(member);
                }
            }
        }
        self.write_key(kind, wanted, out);
    }

    /// What this leader wants in its key, if that is another value or has to be written once more.
    fn next_change(&self) -> Option<(CasKind, ShardKey)> {
        let Role::Leading(leading) = &self.role else {
            return None;
        };
        let (_, key) = self.key.as_ref()?;
        let is_mine = key.epoch == self.epoch && key.leader.as_ref() == Some(&self.life());
        if self.cas.is_some() || !is_mine {
            return None;
        }
        let mut wanted = key.clone();
        wanted.committed = self
            .partitions
            .iter()
            .map(|held| held.high_watermark.0)
            .sum();
        if self.is_unclear && self.place.rules.holds(Rule::RewriteAfterUnknown) {
            return Some((CasKind::Set, wanted));
        }
        if let Some(leader) = self.successor_is_ready(leading, key) {
            wanted.leader = Some(leader);
            wanted.epoch = Epoch(self.epoch.0 + 1);
            return Some((CasKind::HandOver, wanted));
        }
        let at_minimum = key.in_sync.len() <= self.place.min_in_sync;
        let others = || key.others(&self.place.me);
        let leaving =
            others().find(|member| key.in_sync.contains(*member) && leading.is_out(member));
        if let Some(member) = leaving.filter(|_| !at_minimum) {
            wanted.in_sync.remove(member);
            return Some((CasKind::Set, wanted));
        }
        // A member that was to join is silent. Its way back: the set once more, without it.
        let is_joining =
            |member: &Member| leading.commit.waits_for(member) && !key.in_sync.contains(member);
        if others().any(|member| is_joining(member) && leading.is_out(member)) {
            return Some((CasKind::Set, wanted));
        }
        let may_join = |member: &Member| {
            !key.in_sync.contains(member)
                && !leading.is_out(member)
                && self.links.contains_key(member)
                && (at_minimum || !leading.held_back.contains(member))
                && leading.commit.has_everything(member)
        };
        let member = others().find(|member| may_join(member))?;
        wanted.in_sync.insert(member.clone());
        Some((CasKind::Set, wanted))
    }

    /// A compare-and-swap of this leader has written this set.
    pub(super) fn set_written(&mut self, key: &ShardKey, out: &mut Effects) {
        let others = key.in_sync_without(&self.place.me);
        if let Some(leading) = self.leading() {
            leading.slow.retain(|member| others.contains(member));
            leading.commit.set_written(others);
            self.progress(out);
        }
    }

    /// The successor may lead: it is sound, in the set, and has everything.
    fn successor_is_ready(&self, leading: &Leading, key: &ShardKey) -> Option<Leader> {
        let member = leading.successor.as_ref()?;
        let ends: Vec<_> = self.partitions.iter().map(|held| held.end).collect();
        let is_ready = key.in_sync.contains(member)
            && !leading.doubtful.contains_key(member)
            && leading.commit.has_everything(member)
            && leading.commit.has_all_below(member, &ends);
        let starts = *self.links.get(member)?;
        is_ready.then(|| Leader {
            member: member.clone(),
            starts,
        })
    }
}
