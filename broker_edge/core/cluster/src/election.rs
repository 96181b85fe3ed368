//! Who takes over a shard without a leader (R8). One decision on what the replicas answered; no state, no times.
//!
//! Every sound member of the in-sync set has all that was acknowledged, so any of them may lead, and the set keeps only
//! those that answered and are sound. A replica that may have lost bytes leads only when the whole set has answered and
//! nobody in it is sound: then the longest log of the set has what was acknowledged, if any has.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::ShardKey;
use crate::marks::{Epoch, Member, Offset, Trust};
use crate::rules::{Rule, Rules};

/// What a replica answered, or the candidate has itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Standing {
    pub trust: Trust,
    /// It hears the leader, or is the leader.
    pub still_led: bool,
    /// Last epoch and end of each partition, in the order of the shard.
    pub marks: Vec<(Epoch, Offset)>,
}

/// How many rounds in a row are left to a candidate that is preferred.
pub const DEFERRALS: u8 = 2;

/// How long answers were waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waited {
    Not,
    /// 300 ms: who lives has answered.
    Round,
    /// 30 s: a member that has not answered by then may never come back.
    Long,
}

#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    pub me: &'a Member,
    pub mine: Standing,
    pub key: &'a ShardKey,
    /// All of them were given in the epoch of the key.
    pub answers: &'a BTreeMap<Member, Standing>,
    pub waited: Waited,
    /// It leaves the shard to one that is preferred. That one may not reach etcd, or may be the leader that is asked
    /// about, so this ends after [`DEFERRALS`].
    pub defers: bool,
    pub leader_resigned: bool,
    pub min_in_sync: usize,
    pub rules: Rules,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Go on waiting for answers.
    Wait,
    /// Somebody hears the leader. Ask again later.
    StillLed,
    /// Another member should take over. Ask again when it has not.
    Another,
    /// No member may: each has lost something that another has, or all have less than was committed. A person decides.
    NobodyMay,
    /// Write the key with this set and an epoch above all known ones.
    Take { in_sync: BTreeSet<Member> },
}

impl Candidate<'_> {
    #[must_use]
    pub fn decide(&self) -> Decision {
        let members_only = self.rules.holds(Rule::CandidateInSync);
        if members_only && !self.key.in_sync.contains(self.me) {
            return Decision::Another;
        }
        if !self.leader_resigned && self.answers.values().any(|one| one.still_led) {
            return Decision::StillLed;
        }
        if self.waited == Waited::Not && !self.has_whole_set() {
            return Decision::Wait;
        }
        let is_sound = self.mine.trust == Trust::Sound;
        if is_sound || !self.rules.holds(Rule::CandidateSound) {
            self.decide_sound()
        } else {
            self.decide_doubtful()
        }
    }

    fn decide_sound(&self) -> Decision {
        // Only a preference: the longest log needs the fewest cuts. Ties go to the first in the order of names.
        let mine = (&self.mine.marks, std::cmp::Reverse(self.me));
        let is_better = |(member, standing): (&Member, &Standing)| {
            standing.trust == Trust::Sound && (&standing.marks, std::cmp::Reverse(member)) > mine
        };
        if self.defers && self.members().any(is_better) {
            return Decision::Another;
        }
        self.take()
    }

    fn decide_doubtful(&self) -> Decision {
        if self.members().any(|(_, one)| one.trust == Trust::Sound) {
            return Decision::Another;
        }
        let is_unproven = self.mine.trust == Trust::Unproven;
        // Nothing is committed in a set of one: what it must have is what the log had when it was alone.
        let is_alone = self.key.in_sync.len() < 2;
        if (is_alone && !is_unproven)
            || self.mine.marks.iter().map(|(_, end)| end.0).sum::<u64>() < self.key.committed
        {
            return Decision::NobodyMay;
        }
        if is_unproven && self.waited == Waited::Long {
            return self.decide_unproven();
        }
        if !self.has_whole_set() {
            return Decision::Wait;
        }
        let mine = &self.mine;
        let has_more = |one: &Standing| one.marks.iter().zip(&mine.marks).any(|(a, b)| a > b);
        let is_short = |one: &Standing| one.marks.iter().zip(&mine.marks).any(|(a, b)| a < b);
        let rank = (mine.trust, self.me);
        for (member, one) in self.members() {
            match (has_more(one), is_short(one)) {
                // Each has appended what was not committed when the power failed.
                (true, true) if is_unproven => return Decision::Wait,
                (true, true) if self.has_unproven() => return Decision::Another,
                (true, true) => return Decision::NobodyMay,
                (true, false) => return Decision::Another,
                (false, false) if self.defers && (one.trust, member) < rank => {
                    return Decision::Another;
                }
                _ => {}
            }
        }
        self.take()
    }

    /// A disk that has lost nothing has all that was acknowledged, whatever the others have. So it is a preference only
    /// which of them takes over, when the set has been waited for, and none of it has more everywhere.
    fn decide_unproven(&self) -> Decision {
        let mine = (&self.mine.marks, std::cmp::Reverse(self.me));
        let is_better = |(member, standing): (&Member, &Standing)| {
            standing.trust == Trust::Unproven && (&standing.marks, std::cmp::Reverse(member)) > mine
        };
        match self.defers && self.members().any(is_better) {
            true => Decision::Another,
            false => self.take(),
        }
    }

    /// The set keeps who answered and is sound, and the candidate; when they are too few, it stays as it is.
    fn take(&self) -> Decision {
        let sound = self.members().filter(|(_, one)| one.trust == Trust::Sound);
        let mut in_sync: BTreeSet<_> = sound.map(|(member, _)| member.clone()).collect();
        in_sync.insert(self.me.clone());
        if in_sync.len() < self.min_in_sync {
            in_sync.clone_from(&self.key.in_sync);
            in_sync.insert(self.me.clone());
        }
        Decision::Take { in_sync }
    }

    /// Answers of the other members of the in-sync set.
    fn members(&self) -> impl Iterator<Item = (&Member, &Standing)> {
        let of_set = |member: &Member| self.key.in_sync.contains(member) && member != self.me;
        self.answers
            .iter()
            .filter(move |(member, _)| of_set(member))
    }

    /// One that takes over after the long wait.
    fn has_unproven(&self) -> bool {
        let mut members = self.members();
        members.any(|(_, one)| one.trust == Trust::Unproven)
    }

    fn has_whole_set(&self) -> bool {
        self.members().count() == self.key.in_sync_without(self.me).len()
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
