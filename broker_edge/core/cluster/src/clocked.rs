//! A shard with a clock: it turns the times of one node into the events of [`Shard`], which knows none.
//!
//! Times are milliseconds of the node's own clock, which counts while the machine is suspended, and are passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::frames::Frame;
use crate::lease::{self, Lease};
use crate::marks::{Epoch, Member, Offset};
use crate::shard::{Effect, Event, Found, Place, Shard, Timer};

pub const FOLLOW_MS: u64 = 1_000;
pub const ROUND_MS: u64 = 300;
pub const RETRY_MS: u64 = 250;
pub const LONG_MS: u64 = 30_000;
pub const HAND_OVER_MS: u64 = 2_000;
pub const HINTS_MS: u64 = 5_000;
/// A member that has not synced what the leader had this long ago is removed from the set.
pub const LAG_MS: u64 = 2_000;
pub const HOLD_BACK_MS: u64 = 10_000;
pub const HOLD_BACK_MS_MAX: u64 = 600_000;

/// How far a member has to come until it is known not to lag.
#[derive(Debug, Clone)]
struct Goal {
    ends: Vec<Offset>,
    since_ms: u64,
}

#[derive(Debug)]
pub struct Clocked {
    shard: Shard,
    deadlines_ms: BTreeMap<Timer, u64>,
    lease: Lease,
    silent: BTreeSet<Member>,
    /// In which epoch, and since when, the leader that is followed says that it is stuck.
    stuck: Option<(Epoch, u64)>,
    goals: BTreeMap<Member, Goal>,
    /// When the lease was looked at last.
    looked_ms: u64,
    /// How long each member was held back the last time.
    held_back_ms: BTreeMap<Member, u64>,
}

impl Clocked {
    #[must_use]
    pub fn start(place: Arc<Place>, found: Found, now_ms: u64) -> (Self, Vec<Effect>) {
        let (shard, effects) = Shard::start(place, found);
        let mut clocked = Self {
            shard,
            deadlines_ms: BTreeMap::new(),
            lease: Lease::default(),
            silent: BTreeSet::new(),
            stuck: None,
            goals: BTreeMap::new(),
            looked_ms: now_ms,
            held_back_ms: BTreeMap::new(),
        };
        let mut out = Vec::new();
        clocked.pass(effects, now_ms, true, &mut out);
        (clocked, out)
    }

    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Takes an event; `reaches_etcd` goes to the leader with the next answer to a beacon. Effects for timers are
    /// carried out in here.
    #[must_use]
    pub fn handle(&mut self, mut event: Event, now_ms: u64, reaches_etcd: bool) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Event::Frame {
            frame: Frame::Beacon {
                epoch, is_stuck, ..
            },
            ..
        } = &mut event
            && *epoch >= self.shard.epoch()
        {
            let since = self.stuck.filter(|(of, _)| of == epoch);
            self.stuck = is_stuck.then(|| since.unwrap_or((*epoch, now_ms)));
            // Without etcd another leader cannot be named, and this one goes on as soon as the member is heard again.
            *is_stuck &= reaches_etcd;
        }
        if let Event::Frame {
            from,
            frame: Frame::BeaconAnswer { epoch, sent_ms, .. },
        } = &event
            && *epoch == self.shard.epoch()
            && self.shard.is_leading()
        {
            self.lease.answered(from, *sent_ms, now_ms);
        }
        self.look_first(now_ms, reaches_etcd, &mut out);
        self.give(event, now_ms, reaches_etcd, &mut out);
        self.look(now_ms, reaches_etcd, &mut out);
        out
    }

    /// Everything that is due. To be called at [`deadline_ms`](Self::deadline_ms) or later, and before each turn in
    /// which a leader serves clients.
    #[must_use]
    pub fn tick(&mut self, now_ms: u64, reaches_etcd: bool) -> Vec<Effect> {
        let mut out = Vec::new();
        self.look_first(now_ms, reaches_etcd, &mut out);
        let due = self.deadlines_ms.iter().filter(|(_, at)| **at <= now_ms);
        for timer in due.map(|(timer, _)| timer.clone()).collect::<Vec<_>>() {
            // An earlier one may have ended or moved it.
            if self
                .deadlines_ms
                .get(&timer)
                .is_some_and(|at| *at <= now_ms)
            {
                self.deadlines_ms.remove(&timer);
                self.give(Event::Expired(timer), now_ms, reaches_etcd, &mut out);
            }
        }
        self.look(now_ms, reaches_etcd, &mut out);
        out
    }

    /// When to call [`tick`](Self::tick) at the latest.
    #[must_use]
    pub fn deadline_ms(&self, now_ms: u64) -> Option<u64> {
        let lags = self.goals.values().map(|goal| goal.since_ms + LAG_MS);
        let lease = self.lease.deadline_ms(&self.shard.waits_for(), now_ms);
        let timers = self.deadlines_ms.values().copied();
        timers.chain(lease).chain(lags).min()
    }

    fn give(&mut self, event: Event, now_ms: u64, reaches_etcd: bool, out: &mut Vec<Effect>) {
        let effects = self.shard.handle(event);
        self.pass(effects, now_ms, reaches_etcd, out);
    }

    /// Passes effects on and carries out those that are about times.
    fn pass(&mut self, effects: Vec<Effect>, now_ms: u64, reaches: bool, out: &mut Vec<Effect>) {
        for mut effect in effects {
            match &mut effect {
                Effect::Arm(timer) => {
                    let at = now_ms + self.length_ms(timer);
                    self.deadlines_ms.insert(timer.clone(), at);
                    continue;
                }
                Effect::Disarm(timer) => {
                    self.deadlines_ms.remove(timer);
                    continue;
                }
                Effect::Send {
                    frame:
                        Frame::Beacon {
                            sent_ms, is_stuck, ..
                        },
                    ..
                } => {
                    *sent_ms = now_ms;
                    *is_stuck = !self.silent.is_disjoint(&self.shard.waits_for());
                }
                Effect::Send {
                    frame: Frame::BeaconAnswer { reaches_etcd, .. },
                    ..
                } => {
                    *reaches_etcd = reaches;
                }
                Effect::Send {
                    frame:
                        Frame::Answer {
                            epoch, still_led, ..
                        },
                    ..
                } => {
                    // Who asks may reach etcd although this node does not.
                    let is_stuck = |(of, since): (Epoch, u64)| {
                        of == *epoch && since + lease::GRACE_MS <= now_ms
                    };
                    *still_led &= !self.stuck.is_some_and(is_stuck);
                }
                _ => {}
            }
            out.push(effect);
        }
    }

    fn length_ms(&mut self, timer: &Timer) -> u64 {
        match timer {
            Timer::Beacon => lease::BEACON_MS,
            Timer::Grace => lease::GRACE_MS,
            Timer::Follow => FOLLOW_MS,
            Timer::Round => ROUND_MS,
            Timer::Retry => RETRY_MS,
            Timer::Long => LONG_MS,
            Timer::HandOver => HAND_OVER_MS,
            Timer::Hints => HINTS_MS,
            Timer::HoldBack(member) => {
                let length = self
                    .held_back_ms
                    .entry(member.clone())
                    .or_insert(HOLD_BACK_MS / 2);
                *length = (*length * 2).min(HOLD_BACK_MS_MAX);
                *length
            }
        }
    }

    /// A leader whose lease has ended while it slept must not serve because of what comes next.
    fn look_first(&mut self, now_ms: u64, reaches_etcd: bool, out: &mut Vec<Effect>) {
        if now_ms != self.looked_ms && self.shard.is_leading() {
            self.look(now_ms, reaches_etcd, out);
        }
    }

    /// Tells a leader which members have fallen silent, are heard again, or lag.
    fn look(&mut self, now_ms: u64, reaches_etcd: bool, out: &mut Vec<Effect>) {
        self.looked_ms = now_ms;
        let members = self.shard.waits_for();
        if !self.shard.is_leading() {
            self.lease = Lease::default();
            self.silent.clear();
            self.goals.clear();
            return;
        }
        for member in &members {
            self.lease.begin(member, now_ms);
        }
        // A member that was removed for its silence counts as silent until it answers.
        let watched = members.union(&self.silent).cloned().collect();
        self.lease.retain(&watched);
        let silent = self.lease.silent(&watched, now_ms);
        let before = std::mem::replace(&mut self.silent, silent.clone());
        for member in silent.difference(&before).cloned() {
            self.give(Event::Silent(member), now_ms, reaches_etcd, out);
        }
        for member in before.difference(&silent).cloned() {
            self.give(Event::Heard(member), now_ms, reaches_etcd, out);
        }
        self.goals.retain(|member, _| members.contains(member));
        for member in members {
            if self.lags(&member, now_ms) {
                self.goals.remove(&member);
                self.give(Event::Lagging(member), now_ms, reaches_etcd, out);
            }
        }
    }

    fn lags(&mut self, member: &Member, now_ms: u64) -> bool {
        let ends = self.shard.ends();
        if self.shard.has_all_below(member, &ends) {
            self.goals.remove(member);
            return false;
        }
        let since_ms = now_ms;
        let goal = self.goals.entry(member.clone());
        let goal = goal.or_insert_with(|| Goal {
            ends: ends.clone(),
            since_ms,
        });
        if self.shard.has_all_below(member, &goal.ends) {
            *goal = Goal { ends, since_ms };
        }
        goal.since_ms + LAG_MS <= now_ms
    }
}

#[cfg(test)]
#[path = "clocked_tests.rs"]
mod tests;
