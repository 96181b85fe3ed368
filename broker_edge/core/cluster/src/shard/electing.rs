//! A shard without a leader: who asks, who answers, who writes the key (R8).

use std::collections::BTreeMap;

use super::keys::CasKind;
use super::{Alarm, Effect, Effects, Role, Shard, Timer};
use crate::election::{Candidate, DEFERRALS, Decision, Standing, Waited};
use crate::frames::Frame;
use crate::marks::{Epoch, FollowNumber, Member, Offset, Trust};
use crate::rules::Rule;

/// One time of asking.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Round {
    number: FollowNumber,
    answers: BTreeMap<Member, Standing>,
    is_over: bool,
    /// Once it is over, the answers that come late are not asked for again before the next.
    has_ended: bool,
    /// How many rounds in a row were left to another candidate, up to [`DEFERRALS`].
    deferred: u8,
}

impl Round {
    /// The long wait changes who is preferred.
    pub fn waited_long(&mut self) {
        self.deferred = 0;
    }

    pub fn is_open(&self) -> bool {
        !self.has_ended
    }
}

impl Shard {
    /// The leader is not heard: it is silent, has resigned, or its process is gone.
    pub(super) fn leader_lost(&mut self, has_resigned: bool, out: &mut Effects) {
        let Role::Following(following) = &mut self.role else {
            return;
        };
        following.is_led = false;
        following.has_resigned |= has_resigned;
        self.begin_round(out);
    }

    pub(super) fn resigned(&mut self, from: &Member, epoch: Epoch, out: &mut Effects) {
        let is_leader = matches!(&self.role, Role::Following(one) if one.leader == *from);
        if epoch == self.epoch && is_leader {
            self.leader_lost(true, out);
        }
    }

    pub(super) fn gone(&mut self, peer: &Member, out: &mut Effects) {
        if matches!(&self.role, Role::Following(one) if one.leader == *peer) {
            self.leader_lost(false, out);
        }
        let is_linked = self.links.contains_key(peer);
        if let Some(leading) = self
            .leading()
            .filter(|one| !is_linked && one.commit.waits_for(peer))
        {
            // Its records need not wait until its lease is over.
            leading.slow.insert(peer.clone());
            self.progress(out);
        }
    }

    /// A link was lost: what was said over it is not continued.
    pub(super) fn dropped(&mut self, peer: &Member, out: &mut Effects) {
        self.asked.remove(peer);
        self.follower_dropped(peer, out);
        if matches!(&self.role, Role::Following(one) if one.leader == *peer) {
            self.follow_again(out);
        }
    }

    /// Asks everybody, if this replica may take over and nobody leads as far as it knows.
    pub(super) fn begin_round(&mut self, out: &mut Effects) {
        let is_leaderless = match &self.role {
            Role::Looking => true,
            Role::Following(following) => !following.is_led,
            _ => false,
        };
        let is_busy = self.standing.is_some() || self.cas.is_some();
        let is_open = self.round.as_ref().is_some_and(Round::is_open);
        if !is_leaderless || is_busy || is_open {
            return;
        }
        let me = &self.place.me;
        let may_lead = |in_sync: bool| in_sync || !self.place.rules.holds(Rule::CandidateInSync);
        let Some((_, key)) = self
            .key
            .as_ref()
            .filter(|(_, key)| key.epoch == self.epoch && may_lead(key.in_sync.contains(me)))
        else {
            // The key of the epoch is still to come, or others have to take over.
            return;
        };
        if self.is_unclear {
            return self.read_key(out);
        }
        let names_me = key
            .leader
            .as_ref()
            .is_some_and(|leader| leader.member == *me);
        if matches!(self.role, Role::Looking) && key.leader.is_some() && !names_me {
            return;
        }
        let is_first = self.round.is_none();
        let deferred = self.round.as_ref().map_or(0, |round| round.deferred);
        let number = self.next_number();
        self.round = Some(Round {
            number,
            answers: BTreeMap::new(),
            is_over: false,
            has_ended: false,
            deferred,
        });
        for to in self.links.keys() {
            self.send_ask(to, out);
        }
        out.push(Effect::Arm(Timer::Round));
        if is_first && !self.waited_long {
            out.push(Effect::Arm(Timer::Long));
        }
    }

    /// Asks a peer in the round that is open, if there is one.
    pub(super) fn send_ask(&self, to: &Member, out: &mut Effects) {
        if let Some(round) = self.round.as_ref().filter(|round| round.is_open()) {
            let frame = Frame::Ask {
                epoch: self.epoch,
                number: round.number,
                leader_resigned: self.has_resigned(),
            };
            let to = to.clone();
            out.push(Effect::Send { to, frame });
        }
    }

    fn has_resigned(&self) -> bool {
        matches!(&self.role, Role::Following(following) if following.has_resigned)
    }

    pub(super) fn ask(
        &mut self,
        from: Member,
        epoch: Epoch,
        number: FollowNumber,
        leader_resigned: bool,
        out: &mut Effects,
    ) {
        if epoch < self.epoch {
            let frame = Frame::Refused { epoch: self.epoch };
            return out.push(Effect::Send { to: from, frame });
        }
        if epoch > self.epoch && self.place.rules.holds(Rule::AskMakesDurable) {
            self.enter(epoch, None, out);
        }
        if self.standing.is_some() {
            self.asked.insert(from, (number, leader_resigned));
        } else {
            self.send_answer(from, number, leader_resigned, out);
        }
    }

    pub(super) fn send_answer(
        &mut self,
        to: Member,
        number: FollowNumber,
        leader_resigned: bool,
        out: &mut Effects,
    ) {
        let still_led = match &self.role {
            Role::Following(following) => following.is_led && !leader_resigned,
            Role::Taking => true,
            _ => self.is_serving(),
        };
        let frame = Frame::Answer {
            epoch: self.epoch,
            number,
            trust: self.trust,
            still_led,
            marks: self.marks(),
        };
        out.push(Effect::Send { to, frame });
    }

    pub(super) fn answer(
        &mut self,
        from: Member,
        (epoch, number): (Epoch, FollowNumber),
        (trust, still_led, marks): (Trust, bool, Vec<(Epoch, Offset)>),
        out: &mut Effects,
    ) {
        let in_epoch = epoch == self.epoch || !self.place.rules.holds(Rule::AskMakesDurable);
        let count = self.partitions.len();
        let Some(round) = self.round.as_mut().filter(|round| {
            in_epoch && round.number == number && !round.has_ended && marks.len() == count
        }) else {
            return;
        };
        let standing = Standing {
            trust,
            still_led,
            marks,
        };
        round.answers.insert(from, standing);
        self.decide(out);
    }

    pub(super) fn round_over(&mut self, out: &mut Effects) {
        if let Some(round) = &mut self.round {
            round.is_over = true;
            self.decide(out);
        }
    }

    fn decide(&mut self, out: &mut Effects) {
        let Some((_, key)) = self.key.as_ref().filter(|(_, key)| key.epoch == self.epoch) else {
            return;
        };
        let Some(round) = self
            .round
            .as_ref()
            .filter(|_| self.standing.is_none() && self.cas.is_none())
        else {
            return;
        };
        let waited = match round.is_over {
            false => Waited::Not,
            true if self.waited_long => Waited::Long,
            true => Waited::Round,
        };
        let candidate = Candidate {
            me: &self.place.me,
            mine: Standing {
                trust: self.trust,
                still_led: false,
                marks: self.marks(),
            },
            key,
            answers: &round.answers,
            waited,
            defers: round.deferred < DEFERRALS,
            leader_resigned: self.has_resigned(),
            min_in_sync: self.place.min_in_sync,
            rules: self.place.rules,
        };
        let decision = candidate.decide();
        let mut wanted = key.clone();
        match decision {
            Decision::Wait if !round.is_over => {}
            Decision::Take { in_sync } => {
                wanted.leader = Some(self.life());
                wanted.epoch = Epoch(self.epoch.0 + 1);
                wanted.in_sync = in_sync;
                let shown: u64 = self
                    .partitions
                    .iter()
                    .map(|held| held.high_watermark.0)
                    .sum();
                wanted.committed = shown.max(wanted.committed);
                self.tried = Some(wanted.epoch);
                self.round = None;
                self.write_key(CasKind::Elect, wanted, out);
            }
            Decision::Wait | Decision::StillLed | Decision::Another | Decision::NobodyMay => {
                if decision == Decision::NobodyMay {
                    out.push(Effect::Alarm(Alarm::NobodyMayLead));
                }
                if let Some(round) = &mut self.round {
                    round.has_ended = true;
                    round.deferred = match decision {
                        Decision::Another => DEFERRALS.min(round.deferred + 1),
                        Decision::StillLed => 0,
                        _ => round.deferred,
                    };
                }
                out.push(Effect::Arm(Timer::Retry));
            }
        }
    }
}
