//! A leader: aligns followers, commits, opens office, changes the in-sync set (R5, R6, R7, R9).

use std::collections::{BTreeMap, BTreeSet};

use super::{Alarm, Effect, Effects, Held, Office, Role, Shard, Timer};
use crate::commit::{Commit, Followed, Marks};
use crate::divergence::{self, Cut};
use crate::frames::{AlignPart, FollowPart, Frame, Told};
use crate::marks::{Member, Offset, PartitionId, Stamp, Trust};
use crate::rules::Rule;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Leading {
    pub commit: Commit,
    office: Desk,
    /// The lease on these is over.
    pub silent: BTreeSet<Member>,
    /// To be removed from the set: they lag, or their disk is full.
    pub slow: BTreeSet<Member>,
    pub full: BTreeSet<Member>,
    /// Removed for their lag, and not to come back yet.
    pub held_back: BTreeSet<Member>,
    /// Followers that are not sound, with the stamp of their stream.
    pub doubtful: BTreeMap<Member, Stamp>,
    /// Who is to lead next.
    pub successor: Option<Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Desk {
    Closed,
    Open,
    Paused,
}

impl Leading {
    /// Nobody that a record waits for is silent.
    fn has_lease(&self) -> bool {
        let waits_for = |member: &Member| self.commit.waits_for(member);
        !self.silent.iter().any(waits_for)
    }

    /// Nothing should wait for this member.
    pub fn is_out(&self, member: &Member) -> bool {
        self.silent.contains(member) || self.slow.contains(member) || self.full.contains(member)
    }

    #[cfg(test)]
    pub fn is_silent(&self, member: &Member) -> bool {
        self.silent.contains(member)
    }
}

fn held(one: &Held) -> divergence::Held<'_> {
    divergence::Held {
        history: &one.history,
        log_start: one.log_start,
        end: one.end,
    }
}

impl Shard {
    /// The log stands and the epoch is durable: begin it.
    pub(super) fn lead(&mut self, out: &mut Effects) {
        let Some((_, key)) = self.key.as_ref().filter(|(_, key)| key.epoch == self.epoch) else {
            return;
        };
        let marks = |held: &Held| Marks {
            end: held.end,
            synced: held.synced,
            high_watermark: held.high_watermark,
        };
        let marks: Vec<_> = self.partitions.iter().map(marks).collect();
        let others = key.in_sync_without(&self.place.me);
        self.role = Role::Leading(Leading {
            commit: Commit::new(
                self.epoch,
                others,
                self.place.min_in_sync,
                &marks,
                self.place.rules,
            ),
            office: Desk::Closed,
            silent: BTreeSet::new(),
            slow: BTreeSet::new(),
            full: BTreeSet::new(),
            held_back: BTreeSet::new(),
            doubtful: BTreeMap::new(),
            successor: None,
        });
        out.push(Effect::Lead { epoch: self.epoch });
        out.push(Effect::LeaderIs(Some(self.place.me.clone())));
        self.send_beacons(out);
        self.progress(out);
    }

    pub(super) fn leading(&mut self) -> Option<&mut Leading> {
        match &mut self.role {
            Role::Leading(leading) => Some(leading),
            _ => None,
        }
    }

    pub(super) fn send_beacons(&mut self, out: &mut Effects) {
        let Role::Leading(leading) = &self.role else {
            return;
        };
        let told = self.partitions.iter().enumerate().map(|(at, held)| Told {
            high_watermark: leading.commit.high_watermark(at),
            log_start: held.log_start,
        });
        let frame = Frame::Beacon {
            epoch: self.epoch,
            // Put in when it is sent: a shard has no clock.
            sent_ms: 0,
            is_stuck: false,
            told: told.collect(),
        };
        for to in self.links.keys().cloned() {
            let frame = frame.clone();
            out.push(Effect::Send { to, frame });
        }
        out.push(Effect::Arm(Timer::Beacon));
    }

    pub(super) fn follow(
        &mut self,
        from: Member,
        stamp: Stamp,
        trust: Trust,
        credit_bytes: u32,
        parts: &[FollowPart],
        out: &mut Effects,
    ) {
        if stamp.epoch < self.epoch {
            let frame = Frame::Refused { epoch: self.epoch };
            return out.push(Effect::Send { to: from, frame });
        }
        let Role::Leading(leading) = &mut self.role else {
            return;
        };
        let ends: Vec<_> = parts.iter().map(|part| part.end).collect();
        let Followed::New { doubt } = leading.commit.followed(&from, stamp, &ends) else {
            return;
        };
        leading.doubtful.remove(&from);
        if doubt || trust != Trust::Sound {
            leading.doubtful.insert(from.clone(), stamp);
        }
        let mut align = Vec::new();
        for (at, (ours, theirs)) in self.partitions.iter().zip(parts).enumerate() {
            let follower = divergence::Held {
                history: &theirs.history,
                log_start: theirs.log_start,
                end: theirs.end,
            };
            let (restart, from_offset) = match divergence::cut(follower, held(ours)) {
                _ if !self.place.rules.holds(Rule::AlignFirst) => (false, theirs.end.min(ours.end)),
                Cut::To(to) => (false, to),
                Cut::Restart(at) => (true, at),
                Cut::Impossible => return out.push(Effect::Alarm(Alarm::FollowerAhead(from))),
            };
            align.push(AlignPart {
                restart,
                from: from_offset,
                log_start: ours.log_start,
                high_watermark: leading.commit.high_watermark(at),
            });
        }
        let from_offsets = align.iter().map(|part| part.from).collect();
        let frame = Frame::Align {
            stamp,
            doubt,
            parts: align,
        };
        out.push(Effect::Send {
            to: from.clone(),
            frame,
        });
        out.push(Effect::Stream {
            to: from,
            stamp,
            from: from_offsets,
            credit_bytes,
        });
    }

    pub(super) fn synced(
        &mut self,
        from: &Member,
        stamp: Stamp,
        (has_room, credit_bytes): (bool, u32),
        parts: &[(PartitionId, Offset)],
        out: &mut Effects,
    ) {
        let partitions = self.place.partitions.clone();
        let ends: Vec<_> = self.partitions.iter().map(|held| held.end).collect();
        let Some(leading) = self.leading() else {
            return;
        };
        for (partition, to) in parts {
            if let Some(at) = partitions.iter().position(|one| one == partition) {
                leading.commit.synced(from, stamp, at, *to);
            }
        }
        if leading.commit.is_newest(from, stamp) {
            if has_room {
                leading.full.remove(from);
            } else {
                leading.full.insert(from.clone());
            }
            if leading.commit.has_all_below(from, &ends) {
                leading.slow.remove(from);
            }
            let to = from.clone();
            out.push(Effect::Credit {
                to,
                bytes: credit_bytes,
            });
        }
        self.progress(out);
    }

    pub(super) fn synced_here(&mut self, at: usize, to: Offset, out: &mut Effects) {
        let held = &mut self.partitions[at];
        held.synced = to.max(held.synced).min(held.end);
        let synced = held.synced;
        if let Some(leading) = self.leading() {
            leading.commit.synced_here(at, synced);
            self.progress(out);
        } else {
            self.synced_as_follower(at, out);
        }
    }

    /// Does whatever the newest facts allow.
    pub(super) fn progress(&mut self, out: &mut Effects) {
        let Role::Leading(leading) = &mut self.role else {
            return;
        };
        for (partition, to) in leading.commit.advance() {
            self.partitions[partition].high_watermark = to;
            out.push(Effect::CommitTo { partition, to });
        }
        self.run_office(out);
        let epoch = self.epoch;
        let Role::Leading(leading) = &mut self.role else {
            return;
        };
        let commit = &leading.commit;
        leading.doubtful.retain(|to, stamp| {
            let is_sound = stamp.epoch == epoch && commit.has_everything(to);
            if is_sound {
                let (to, frame) = (to.clone(), Frame::Sound { stamp: *stamp });
                out.push(Effect::Send { to, frame });
            }
            !is_sound
        });
        self.change_set(out);
    }

    fn run_office(&mut self, out: &mut Effects) {
        let past_start = !self.place.rules.holds(Rule::OfficePastStart);
        let Role::Leading(leading) = &mut self.role else {
            return;
        };
        let may_serve = leading.has_lease() && leading.successor.is_none();
        match leading.office {
            Desk::Open if !may_serve => {
                leading.office = Desk::Paused;
                out.push(Effect::Office(Office::Pause));
            }
            Desk::Closed | Desk::Paused
                if may_serve && (past_start || leading.commit.is_past_start()) =>
            {
                leading.office = Desk::Open;
                // Everybody in the set has what this log has: it lacks nothing that was acknowledged.
                if self.trust != Trust::Sound {
                    self.trust = Trust::Sound;
                    self.write_file(out);
                }
                let epoch = self.epoch;
                out.push(Effect::Office(Office::Open { epoch }));
            }
            _ => {}
        }
    }

    pub(super) fn silent(&mut self, member: Member, out: &mut Effects) {
        if let Some(leading) = self.leading() {
            leading.silent.insert(member);
            self.progress(out);
        }
    }

    pub(super) fn heard_again(&mut self, member: &Member, out: &mut Effects) {
        if let Some(leading) = self.leading() {
            leading.silent.remove(member);
            self.progress(out);
        }
    }

    pub(super) fn lagging(&mut self, member: Member, out: &mut Effects) {
        if let Some(leading) = self.leading().filter(|one| one.commit.waits_for(&member)) {
            leading.held_back.insert(member.clone());
            leading.slow.insert(member.clone());
            out.push(Effect::Arm(Timer::HoldBack(member)));
            self.progress(out);
        }
    }

    pub(super) fn held_back_over(&mut self, member: &Member, out: &mut Effects) {
        if let Some(leading) = self.leading() {
            leading.held_back.remove(member);
            self.progress(out);
        }
    }

    /// A link to a follower was lost: its stream is over.
    pub(super) fn follower_dropped(&mut self, peer: &Member, out: &mut Effects) {
        if let Some(leading) = self.leading() {
            leading.doubtful.remove(peer);
            if leading.successor.as_ref() == Some(peer) {
                leading.successor = None;
            }
            self.progress(out);
        }
    }

    pub(super) fn hand_over(&mut self, to: Member, out: &mut Effects) {
        if let Some(leading) = self.leading() {
            leading.successor = Some(to);
            out.push(Effect::Arm(Timer::HandOver));
            self.progress(out);
        }
    }

    pub(super) fn hand_over_failed(&mut self, out: &mut Effects) {
        // One that is on its way may still be written; the leader is deposed by it then, as by any other.
        if let Some(leading) = self.leading() {
            leading.successor = None;
            self.progress(out);
        }
    }

    /// Whether clients are served, for whoever asks about the leader.
    pub(super) fn is_serving(&self) -> bool {
        match &self.role {
            Role::Leading(leading) => leading.has_lease(),
            _ => false,
        }
    }
}
