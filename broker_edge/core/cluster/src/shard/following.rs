//! A follower: aligns with the leader of its epoch, takes its batches, says what it has synced (R2, R3, R4, R10).

use bytes::Bytes;

use super::{Effect, Effects, Role, Shard, StopReason, Timer};
use crate::frames::{AlignPart, Edges, FollowPart, Frame, Told};
use crate::marks::{Epoch, FollowNumber, Member, Offset, PartitionId, Stamp, Trust};
use crate::rules::Rule;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Following {
    pub leader: Member,
    stage: Stage,
    /// Of the newest `Follow`.
    number: FollowNumber,
    /// What this replica said in this epoch that it has synced.
    claimed: Vec<Offset>,
    /// What the leader said, in this epoch, is committed.
    told: Vec<Offset>,
    /// Where the leader said that its log begins.
    told_start: Vec<Offset>,
    /// The leader was heard within the grace and has not resigned.
    pub is_led: bool,
    pub has_resigned: bool,
    /// It has beaconed in this epoch, so it takes a `Follow`.
    is_heard: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    /// The log does not stand yet, or there is no link.
    Apart,
    /// `Follow` was sent. Until its `Align` nothing is taken.
    Asked,
    Aligned,
}

impl Following {
    pub fn new(leader: Member, partitions: usize) -> Self {
        Self {
            leader,
            stage: Stage::Apart,
            number: FollowNumber(0),
            claimed: vec![Offset(0); partitions],
            told: vec![Offset(0); partitions],
            told_start: vec![Offset(0); partitions],
            is_led: true,
            has_resigned: false,
            is_heard: false,
        }
    }

    pub fn is_aligned(&self) -> bool {
        self.stage == Stage::Aligned
    }
}

impl Shard {
    /// What is followed, when this frame is of its leader and carries the stamp of the newest `Follow`.
    fn current(&mut self, from: &Member, stamp: Stamp) -> Option<&mut Following> {
        let (epoch, starts) = (self.epoch, self.place.starts);
        let any_stamp = !self.place.rules.holds(Rule::AlignOfNewestFollow);
        match &mut self.role {
            Role::Following(following)
                if following.leader == *from
                    && stamp.epoch == epoch
                    && (any_stamp
                        || (stamp.starts, stamp.follow) == (starts, following.number)) =>
            {
                Some(following)
            }
            _ => None,
        }
    }

    /// The log stands, so nothing of an earlier stream is queued: begin one if the leader can be reached.
    pub(super) fn send_follow(&mut self, out: &mut Effects) {
        let Role::Following(following) = &self.role else {
            return;
        };
        if self.standing.is_some() || !self.links.contains_key(&following.leader) {
            return;
        }
        let number = self.next_number();
        let Role::Following(following) = &mut self.role else {
            return;
        };
        (following.stage, following.number) = (Stage::Asked, number);
        let part = |held: &super::Held| FollowPart {
            log_start: held.log_start,
            end: held.end,
            history: held.history.clone(),
        };
        let stamp = Stamp {
            epoch: self.epoch,
            starts: self.place.starts,
            follow: number,
        };
        let frame = Frame::Follow {
            stamp,
            trust: self.trust,
            credit_bytes: self.place.credit_bytes,
            parts: self.partitions.iter().map(part).collect(),
        };
        let to = following.leader.clone();
        out.extend([Effect::Send { to, frame }, Effect::Arm(Timer::Follow)]);
    }

    pub(super) fn follow_unanswered(&mut self, out: &mut Effects) {
        if matches!(&self.role, Role::Following(following) if following.stage == Stage::Asked) {
            self.send_follow(out);
        }
    }

    /// Ends the stream and begins another when the log stands.
    pub(super) fn follow_again(&mut self, out: &mut Effects) {
        if let Role::Following(following) = &mut self.role {
            following.stage = Stage::Apart;
            if self.standing.is_none() {
                self.stand(out);
            }
        }
    }

    pub(super) fn leader_linked(&mut self, peer: &Member, out: &mut Effects) {
        if matches!(&self.role, Role::Following(one) if one.leader == *peer && one.stage == Stage::Apart)
        {
            self.send_follow(out);
        }
    }

    pub(super) fn beacon(
        &mut self,
        from: Member,
        epoch: Epoch,
        (sent_ms, is_stuck): (u64, bool),
        told: &[Told],
        out: &mut Effects,
    ) {
        if epoch < self.epoch {
            let frame = Frame::Refused { epoch: self.epoch };
            out.push(Effect::Send { to: from, frame });
            return;
        }
        let is_new = epoch > self.epoch || matches!(self.role, Role::Looking);
        if epoch > self.epoch {
            self.enter(epoch, Some(from.clone()), out);
        } else if is_new {
            self.role = Role::Following(Following::new(from.clone(), self.partitions.len()));
            out.push(Effect::LeaderIs(Some(from.clone())));
            self.send_follow(out);
        }
        let Role::Following(following) = &mut self.role else {
            return self.stop(StopReason::TwoLeaders, out);
        };
        if following.leader != from {
            return self.stop(StopReason::TwoLeaders, out);
        }
        let is_first = !std::mem::replace(&mut following.is_heard, true);
        let is_early = is_first && following.stage == Stage::Asked;
        // A leader that says it is stuck does not put off the time at which this replica asks.
        if !following.has_resigned && (is_new || !is_stuck) {
            following.is_led = true;
            self.round = None;
            self.waited_long = false;
            out.extend([Timer::Round, Timer::Retry, Timer::Long].map(Effect::Disarm));
            out.push(Effect::Arm(Timer::Grace));
        }
        let is_aligned =
            following.is_aligned() || !self.place.rules.holds(Rule::ToldOnlyWhenAligned);
        if is_aligned && told.len() == self.partitions.len() {
            for (partition, told) in told.iter().enumerate() {
                self.told(partition, *told, out);
            }
        }
        if is_early && !is_new {
            // This replica knew of the epoch before the leader had opened it, and was not listened to.
            self.send_follow(out);
        }
        // Whether etcd is reached is known outside, and is put in there.
        let frame = Frame::BeaconAnswer {
            epoch,
            sent_ms,
            reaches_etcd: true,
        };
        out.push(Effect::Send { to: from, frame });
    }

    pub(super) fn align(
        &mut self,
        from: &Member,
        stamp: Stamp,
        doubt: bool,
        parts: &[AlignPart],
        out: &mut Effects,
    ) {
        let newest_only = self.place.rules.holds(Rule::AlignOfNewestFollow);
        let count = self.partitions.len();
        let Some(following) = self.current(from, stamp) else {
            return;
        };
        if (newest_only && following.stage != Stage::Asked) || parts.len() != count {
            return;
        }
        let claimed = following.claimed.clone();
        let trust = if doubt { Trust::Suspect } else { self.trust };
        for (at, part) in parts.iter().enumerate() {
            let held = &self.partitions[at];
            if trust != Trust::Suspect && part.from < held.high_watermark {
                return self.stop(StopReason::CutBelowHighWatermark, out);
            }
            if trust == Trust::Sound && part.from < claimed[at] {
                return self.stop(StopReason::CutBelowSynced, out);
            }
        }
        if trust != self.trust {
            self.trust = trust;
            self.write_file(out);
        }
        self.tried = None;
        for (at, part) in parts.iter().enumerate() {
            self.cut(at, *part, out);
        }
        let Role::Following(following) = &mut self.role else {
            return;
        };
        following.stage = Stage::Aligned;
        out.push(Effect::Disarm(Timer::Follow));
        for (at, part) in parts.iter().enumerate() {
            let told = Told {
                high_watermark: part.high_watermark,
                log_start: part.log_start,
            };
            self.told(at, told, out);
        }
        self.sound_by_itself(out);
        let all: Vec<_> = (0..count).collect();
        self.send_synced(&all, out);
    }

    fn cut(&mut self, at: usize, part: AlignPart, out: &mut Effects) {
        let from = match self.place.rules.holds(Rule::CutAtDivergence) {
            true => part.from,
            false => self.partitions[at].high_watermark,
        };
        let held = &mut self.partitions[at];
        if part.restart {
            out.push(Effect::Restart {
                partition: at,
                at: from,
            });
            held.history.clear();
            (held.log_start, held.end) = (from, from);
            (held.synced, held.high_watermark) = (from, from);
        } else if from < held.end {
            out.push(Effect::Truncate {
                partition: at,
                to: from,
            });
            held.history.cut(from);
            held.end = from;
            held.synced = held.synced.min(from);
            held.high_watermark = held.high_watermark.min(from);
        }
    }

    pub(super) fn batches(
        &mut self,
        from: &Member,
        stamp: Stamp,
        partition: PartitionId,
        (told, edges, bytes): (Told, Edges, Bytes),
        out: &mut Effects,
    ) {
        let Some(at) = self
            .place
            .partitions
            .iter()
            .position(|one| *one == partition)
        else {
            return;
        };
        let following = self.current(from, stamp);
        if !following.is_some_and(|one| one.is_aligned()) {
            return;
        }
        out.push(Effect::Take {
            partition: at,
            epoch: stamp.epoch,
            edges,
            bytes,
        });
        self.told(at, told, out);
    }

    /// Shows what the leader says is committed and this disk has (R10), and removes what the leader has removed.
    fn told(&mut self, at: usize, told: Told, out: &mut Effects) {
        let Role::Following(following) = &mut self.role else {
            return;
        };
        let newest = &mut following.told[at];
        *newest = told.high_watermark.max(*newest);
        let held = &mut self.partitions[at];
        if told.log_start > following.told_start[at] {
            following.told_start[at] = told.log_start;
            out.push(Effect::RemoveBelow {
                partition: at,
                to: told.log_start,
            });
        }
        let to = held.synced.min(*newest);
        if to > held.high_watermark {
            held.high_watermark = to;
            out.push(Effect::CommitTo { partition: at, to });
        }
    }

    pub(super) fn synced_as_follower(&mut self, at: usize, out: &mut Effects) {
        let Role::Following(following) = &self.role else {
            return;
        };
        if !following.is_aligned() {
            return;
        }
        let told = Told {
            high_watermark: following.told[at],
            log_start: Offset(0),
        };
        self.told(at, told, out);
        self.send_synced(&[at], out);
    }

    pub(super) fn room(&mut self, has_room: bool, out: &mut Effects) {
        self.has_room = has_room;
        if matches!(&self.role, Role::Following(following) if following.is_aligned()) {
            self.send_synced(&[], out);
        }
    }

    fn send_synced(&mut self, partitions: &[usize], out: &mut Effects) {
        let Role::Following(following) = &mut self.role else {
            return;
        };
        let mut parts = Vec::new();
        for at in partitions {
            let synced = self.partitions[*at].synced;
            following.claimed[*at] = synced.max(following.claimed[*at]);
            parts.push((self.place.partitions[*at], synced));
        }
        let stamp = Stamp {
            epoch: self.epoch,
            starts: self.place.starts,
            follow: following.number,
        };
        let frame = Frame::Synced {
            stamp,
            has_room: self.has_room,
            // Put in when it is sent: a shard does not know what of the bytes that came is on the disk.
            credit_bytes: 0,
            parts,
        };
        let to = following.leader.clone();
        out.push(Effect::Send { to, frame });
    }

    /// The leader has seen that nothing is missing here.
    pub(super) fn sound(&mut self, from: &Member, stamp: Stamp, out: &mut Effects) {
        if self
            .current(from, stamp)
            .is_some_and(|one| one.is_aligned())
            && self.trust != Trust::Sound
        {
            self.trust = Trust::Sound;
            self.write_file(out);
        }
    }

    /// Takes suspicion back by what the follower knows itself, which [`Rule::SoundByLeader`] forbids.
    fn sound_by_itself(&mut self, out: &mut Effects) {
        let has_all = self
            .partitions
            .iter()
            .all(|one| one.synced >= one.high_watermark);
        if !self.place.rules.holds(Rule::SoundByLeader) && has_all && self.trust != Trust::Sound {
            self.trust = Trust::Sound;
            self.write_file(out);
        }
    }
}
