//! What the key in etcd means for a replica, and its own compare-and-swaps of it (R1).

use super::{Alarm, CasOutcome, Effect, Effects, Role, Shard, StopReason};
use crate::key::{Revision, ShardKey};
use crate::marks::{Epoch, Trust};
use crate::rules::Rule;

/// A compare-and-swap on its way. There is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Cas {
    kind: CasKind,
    key: ShardKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CasKind {
    Elect,
    /// Another in-sync set, or the same once more.
    Set,
    HandOver,
}

/// etcd has an older epoch than it had before.
fn alarm_when_back(key: &ShardKey, before: Epoch, out: &mut Effects) {
    if key.epoch < before {
        out.push(Effect::Alarm(Alarm::MetadataWentBack {
            key: key.epoch,
            here: before,
        }));
    }
}

impl Shard {
    /// Writes the key if it is still the one that was seen last.
    pub(super) fn write_key(&mut self, kind: CasKind, key: ShardKey, out: &mut Effects) {
        let Some((expected, _)) = &self.key else {
            return;
        };
        out.push(Effect::Cas {
            expected: *expected,
            key: key.clone(),
        });
        self.cas = Some(Cas { kind, key });
    }

    pub(super) fn cas_ended(&mut self, outcome: CasOutcome, out: &mut Effects) {
        let Some(cas) = self.cas.take() else {
            return;
        };
        match outcome {
            CasOutcome::Done(revision) => {
                self.is_unclear = false;
                // A watch may have shown this one, or a newer one of another, before.
                if self
                    .key
                    .as_ref()
                    .is_none_or(|(newest, _)| *newest < revision)
                {
                    self.key = Some((revision, cas.key.clone()));
                }
                self.written(cas, out);
            }
            CasOutcome::Conflict(revision, key) => {
                // An earlier one with an unknown outcome may have been written: the set is not certain.
                self.is_unclear |= self.is_leading();
                let before = match cas.kind {
                    CasKind::Set => cas.key.epoch,
                    CasKind::Elect | CasKind::HandOver => Epoch(cas.key.epoch.0.saturating_sub(1)),
                };
                alarm_when_back(&key, before, out);
                self.key_seen(revision, key, true, out);
                self.begin_round(out);
            }
            CasOutcome::Unknown => {
                self.is_unclear = true;
                self.read_key(out);
            }
        }
    }

    fn written(&mut self, cas: Cas, out: &mut Effects) {
        let key = cas.key;
        match cas.kind {
            CasKind::Set if self.is_leading() && key.epoch == self.epoch => {
                self.set_written(&key, out)
            }
            CasKind::Elect | CasKind::HandOver if key.epoch > self.epoch => {
                self.newer_key(&key, out)
            }
            _ => self.settle(out),
        }
    }

    /// Asks for the key as it is from now on.
    pub(super) fn read_key(&mut self, out: &mut Effects) {
        self.reading_in.get_or_insert(self.epoch);
        out.push(Effect::ReadKey);
    }

    /// The answer to a read. It may be as old as the oldest that was not answered.
    pub(super) fn key_read(&mut self, revision: Revision, key: ShardKey, out: &mut Effects) {
        if let Some(epoch) = self.reading_in.take() {
            alarm_when_back(&key, epoch, out);
        }
        self.key_seen(revision, key, true, out);
    }

    pub(super) fn key_seen(
        &mut self,
        revision: Revision,
        key: ShardKey,
        was_read: bool,
        out: &mut Effects,
    ) {
        let newest = self.key.as_ref().map(|(newest, _)| *newest);
        if newest > Some(revision) || (newest == Some(revision) && !was_read) {
            return;
        }
        if !self.is_leading() && was_read {
            self.is_unclear = false;
        }
        self.key = Some((revision, key.clone()));
        if key.epoch > self.epoch {
            return self.newer_key(&key, out);
        }
        if key.epoch < self.epoch {
            return;
        }
        if self.is_leading() {
            if key.leader.as_ref() != Some(&self.life()) {
                return self.stop(StopReason::TwoLeaders, out);
            }
            if self.is_unclear && !self.place.rules.holds(Rule::RewriteAfterUnknown) {
                self.is_unclear = false;
                self.set_written(&key, out);
            }
            return self.progress(out);
        }
        self.settle(out);
    }

    /// A key of an epoch that is not durable here yet.
    fn newer_key(&mut self, key: &ShardKey, out: &mut Effects) {
        let names_me = key.leader.as_ref() == Some(&self.life());
        let is_sound = self.trust == Trust::Sound || !self.place.rules.holds(Rule::NamedOnlySound);
        if names_me && (is_sound || self.tried == Some(key.epoch)) {
            return self.take_office(key.epoch, out);
        }
        let leader = key.leader.as_ref().map(|leader| leader.member.clone());
        let leader = leader.filter(|leader| *leader != self.place.me);
        self.enter(key.epoch, leader, out);
    }

    fn take_office(&mut self, epoch: Epoch, out: &mut Effects) {
        self.leave(out);
        self.epoch = epoch;
        if self.place.rules.holds(Rule::EpochDurable) {
            self.write_file(out);
        }
        self.role = Role::Taking;
        self.stand(out);
    }

    /// Without a leader in its epoch, and with the key of that epoch: follow who is named there, or begin an election.
    pub(super) fn settle(&mut self, out: &mut Effects) {
        if !matches!(self.role, Role::Looking) {
            return self.begin_round(out);
        }
        let Some((_, key)) = self.key.as_ref().filter(|(_, key)| key.epoch == self.epoch) else {
            return;
        };
        let leader = key.leader.clone();
        match leader {
            Some(leader) if leader.member != self.place.me => {
                self.enter(self.epoch, Some(leader.member), out);
            }
            Some(leader) if self.may_lead_on(&leader) => self.take_office(self.epoch, out),
            _ => self.begin_round(out),
        }
    }

    /// A leader of an earlier life goes on in its epoch, which [`Rule::EpochByCas`] forbids.
    fn may_lead_on(&self, leader: &crate::key::Leader) -> bool {
        !self.place.rules.holds(Rule::EpochByCas)
            && leader.member == self.place.me
            && self.trust != Trust::Suspect
    }
}
