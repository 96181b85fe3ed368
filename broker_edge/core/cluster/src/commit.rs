//! What is committed, as the leader of one epoch works it out (R5, R6, R7).
//!
//! A record is committed when everybody that the leader waits for has synced it. The leader waits for at least the
//! in-sync set in etcd: it waits for a joining member before the compare-and-swap that adds it, and for a leaving one
//! until a compare-and-swap without it has succeeded. A successful compare-and-swap excludes older ones of the same key
//! that are still on their way, so the set of the newest success is exact.

use std::collections::{BTreeMap, BTreeSet};

use crate::marks::{Epoch, FollowNumber, Member, Offset, Stamp, Starts};
use crate::rules::{Rule, Rules};

/// The marks of one partition of the leader when its epoch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marks {
    pub end: Offset,
    pub synced: Offset,
    pub high_watermark: Offset,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Partition {
    /// The leader's end when the epoch began. Below it are records of earlier epochs that may have been acknowledged.
    start: Offset,
    synced: Offset,
    /// Never goes back.
    high_watermark: Offset,
}

/// What another replica said in this epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Follower {
    newest: (Starts, FollowNumber),
    /// Since its newest `Follow`; `None` until the first answer for a partition.
    synced: Vec<Option<Offset>>,
    /// The highest that this disk ever said. A later end below it is proof of a loss.
    claimed: Vec<Offset>,
}

/// What a `Follow` means to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Followed {
    /// Not newer than one that came before, or of another epoch. It is dropped.
    Old,
    New {
        /// An end is below what this disk had synced in this epoch.
        doubt: bool,
    },
}

/// The commit rule of one epoch. Partitions are numbers from 0 in the order of the shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit {
    epoch: Epoch,
    partitions: Vec<Partition>,
    /// All that a record waits for, but the leader itself. A superset of the in-sync set in etcd.
    waits_for: BTreeSet<Member>,
    /// Members of the in-sync set in etcd beside the leader.
    others: usize,
    /// With fewer of them nothing is committed.
    others_min: usize,
    followers: BTreeMap<Member, Follower>,
    rules: Rules,
}

impl Commit {
    /// The leader's view when it has won `epoch`. `others` is the in-sync set of the key without the leader. A set of
    /// fewer than `min_in_sync` is that of a log that was alone until now: it takes a second copy first.
    #[must_use]
    pub fn new(
        epoch: Epoch,
        others: BTreeSet<Member>,
        min_in_sync: usize,
        marks: &[Marks],
        rules: Rules,
    ) -> Self {
        let partitions = marks
            .iter()
            .map(|marks| Partition {
                start: marks.end,
                synced: marks.synced,
                high_watermark: marks.high_watermark,
            })
            .collect();
        Self {
            epoch,
            partitions,
            others: others.len(),
            others_min: min_in_sync.saturating_sub(1),
            waits_for: others,
            followers: BTreeMap::new(),
            rules,
        }
    }

    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    #[must_use]
    pub fn high_watermark(&self, partition: usize) -> Offset {
        self.partitions[partition].high_watermark
    }

    /// Whether a record waits for this member.
    #[must_use]
    pub fn waits_for(&self, member: &Member) -> bool {
        self.waits_for.contains(member)
    }

    #[must_use]
    pub fn waits_for_all(&self) -> &BTreeSet<Member> {
        &self.waits_for
    }

    /// What the member has synced of a partition, as far as it has said since its newest `Follow`.
    #[must_use]
    pub fn synced_of(&self, member: &Member, partition: usize) -> Option<Offset> {
        self.followers.get(member)?.synced[partition]
    }

    /// Everything below `to` is on the leader's own disk.
    pub fn synced_here(&mut self, partition: usize, to: Offset) {
        let synced = &mut self.partitions[partition].synced;
        *synced = to.max(*synced);
    }

    /// A follower begins a stream with these ends. What it said before no longer counts.
    pub fn followed(&mut self, member: &Member, stamp: Stamp, ends: &[Offset]) -> Followed {
        let newest = (stamp.starts, stamp.follow);
        let count = self.partitions.len();
        if stamp.epoch != self.epoch || ends.len() != count {
            return Followed::Old;
        }
        let Some(follower) = self.followers.get_mut(member) else {
            let follower = Follower {
                newest,
                synced: vec![None; count],
                claimed: vec![Offset(0); count],
            };
            self.followers.insert(member.clone(), follower);
            return Followed::New { doubt: false };
        };
        if newest <= follower.newest {
            return Followed::Old;
        }
        follower.newest = newest;
        if self.rules.holds(Rule::FollowTakesBack) {
            follower.synced = vec![None; count];
        }
        let doubt = ends
            .iter()
            .zip(&follower.claimed)
            .any(|(end, had)| end < had);
        Followed::New { doubt }
    }

    /// Whether this is the stamp of the newest `Follow` of the member.
    #[must_use]
    pub fn is_newest(&self, member: &Member, stamp: Stamp) -> bool {
        let newest = self.followers.get(member).map(|one| one.newest);
        stamp.epoch == self.epoch && newest == Some((stamp.starts, stamp.follow))
    }

    /// A follower says that it is aligned and has everything below `to` on its disk. Returns whether that counts.
    pub fn synced(&mut self, member: &Member, stamp: Stamp, partition: usize, to: Offset) -> bool {
        if self.rules.holds(Rule::OnlyNewestStamp) && !self.is_newest(member, stamp) {
            return false;
        }
        let Some(follower) = self.followers.get_mut(member) else {
            return false;
        };
        let (Some(synced), Some(claimed)) = (
            follower.synced.get_mut(partition),
            follower.claimed.get_mut(partition),
        ) else {
            return false;
        };
        *synced = (*synced).max(Some(to));
        *claimed = to.max(*claimed);
        true
    }

    /// Moves the high watermarks, and returns those that moved.
    pub fn advance(&mut self) -> Vec<(usize, Offset)> {
        let mut moved = Vec::new();
        if self.others < self.others_min {
            return moved;
        }
        let by_all = self.rules.holds(Rule::CommitByAll);
        for (at, partition) in self.partitions.iter_mut().enumerate() {
            let slowest = self
                .waits_for
                .iter()
                .filter(|_| by_all)
                .try_fold(partition.synced, |low, member| {
                    Some(low.min(self.followers.get(member)?.synced[at]?))
                });
            if let Some(to) = slowest.filter(|to| *to > partition.high_watermark) {
                partition.high_watermark = to;
                moved.push((at, to));
            }
        }
        moved
    }

    /// Everything of earlier epochs is committed: the leader may answer clients (R9).
    #[must_use]
    pub fn is_past_start(&self) -> bool {
        self.partitions
            .iter()
            .all(|one| one.high_watermark >= one.start)
    }

    /// The member has on its disk all that may have been acknowledged, in every partition (R7). It may join the set,
    /// and it is sound.
    #[must_use]
    pub fn has_everything(&self, member: &Member) -> bool {
        let past_start = self.rules.holds(Rule::JoinAtStart);
        let past_high = self.rules.holds(Rule::JoinAtHighWatermark);
        let count = match self.rules.holds(Rule::EveryPartition) {
            true => self.partitions.len(),
            false => 1,
        };
        let has_all = |one: &Partition, synced: Offset| {
            (!past_start || synced >= one.start) && (!past_high || synced >= one.high_watermark)
        };
        self.followers.get(member).is_some_and(|follower| {
            let pairs = self.partitions.iter().zip(&follower.synced);
            pairs
                .take(count)
                .all(|(one, synced)| synced.is_some_and(|synced| has_all(one, synced)))
        })
    }

    /// The member has synced everything below these ends.
    #[must_use]
    pub fn has_all_below(&self, member: &Member, ends: &[Offset]) -> bool {
        self.followers.get(member).is_some_and(|follower| {
            let pairs = follower.synced.iter().zip(ends);
            pairs.into_iter().all(|(synced, end)| *synced >= Some(*end))
        })
    }

    /// From here on a record waits for this member too. To be called before the compare-and-swap that adds it is sent.
    pub fn wait_for(&mut self, member: Member) {
        self.waits_for.insert(member);
    }

    /// A compare-and-swap that wrote this set has succeeded; `others` is the set without the leader. A member leaves,
    /// or stops joining, in no other way: after an unknown outcome the key is rewritten first.
    pub fn set_written(&mut self, others: BTreeSet<Member>) {
        self.others = others.len();
        self.waits_for = others;
    }

    /// Removes a member before the key says so: for the model, with [`Rule::WaitUntilRemoved`] switched off.
    #[cfg(any(test, feature = "sabotage"))]
    pub(crate) fn forget(&mut self, member: &Member) {
        self.waits_for.remove(member);
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
