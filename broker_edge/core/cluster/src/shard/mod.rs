//! One replica of a shard as a state machine: events in, effects out, in order. No I/O, no clock, no threads.
//!
//! Frames, facts about the log, what etcd has and deadlines come in as [`Event`]s; the caller carries out the
//! [`Effect`]s of one before it gives the next. When a deadline comes is the caller's choice: safety does not depend on
//! it. Batches do not pass through here at a leader: it says from where and with which stamp they are to be sent.

mod electing;
mod events;
mod following;
mod keys;
mod leading;
mod membership;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use events::{Alarm, CasOutcome, Effect, Event, Found, Held, Office, Place, StopReason, Timer};

use crate::frames::Frame;
use crate::key::{Leader, Revision, ShardKey};
use crate::marks::{Epoch, FollowNumber, Member, Offset, Starts, Trust};
use crate::replica_file::ReplicaFile;
use crate::rules::Rule;
use electing::Round;
use following::Following;
use keys::Cas;
use leading::Leading;

type Effects = Vec<Effect>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shard {
    place: Arc<Place>,
    /// As the replica file has them.
    epoch: Epoch,
    trust: Trust,
    partitions: Vec<Held>,
    role: Role,
    /// The newest value of the key that was seen.
    key: Option<(Revision, ShardKey)>,
    cas: Option<Cas>,
    /// The epoch when the oldest read of the key was asked for that is not answered.
    reading_in: Option<Epoch>,
    /// A compare-and-swap may still be on its way. A leader fences it by another one, others read the key first.
    is_unclear: bool,
    /// The epoch of the newest key with this replica as leader that it tried to write and can still answer for.
    tried: Option<Epoch>,
    round: Option<Round>,
    /// The whole set has been waited for in vain.
    waited_long: bool,
    links: BTreeMap<Member, Starts>,
    /// An answer to `Stand` with this number is expected; what the log has is not known until then.
    standing: Option<u64>,
    /// Who asked meanwhile.
    asked: BTreeMap<Member, (FollowNumber, bool)>,
    /// Of `Follow`, `Ask` and `Stand`. Unique over all lives, so an answer to an earlier life matches nothing.
    counter: u64,
    has_room: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Role {
    /// It does not know who leads its epoch, or nobody does.
    Looking,
    Following(Following),
    /// It has won its epoch and waits for the log to stand.
    Taking,
    Leading(Leading),
    Stopped,
}

impl Shard {
    /// Takes an event and says what to do.
    #[must_use]
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        if matches!(self.role, Role::Stopped) {
            return out;
        }
        match event {
            Event::Linked { peer, starts } => self.linked(peer, starts, &mut out),
            Event::Unlinked { peer } => self.unlinked(&peer, &mut out),
            Event::Gone { peer } => self.gone(&peer, &mut out),
            Event::Frame { from, frame } => self.frame(from, frame, &mut out),
            Event::Stood { number, partitions } => self.stood(number, partitions, &mut out),
            Event::Written {
                partition,
                end,
                epochs,
            } => {
                let held = &mut self.partitions[partition];
                held.end = end;
                for (epoch, first) in epochs {
                    // The log refuses batches out of order, so this fails only when it was told twice.
                    let _ = held.history.appended(epoch, first);
                }
            }
            Event::Synced { partition, to } => self.synced_here(partition, to, &mut out),
            Event::LogStart { partition, to } => self.partitions[partition].log_start = to,
            Event::TakeRefused => self.follow_again(&mut out),
            Event::Room(has_room) => self.room(has_room, &mut out),
            Event::Key {
                revision,
                key,
                was_read,
            } => match was_read {
                true => self.key_read(revision, key, &mut out),
                false => self.key_seen(revision, key, false, &mut out),
            },
            Event::Cas(outcome) => self.cas_ended(outcome, &mut out),
            Event::Silent(member) => self.silent(member, &mut out),
            Event::Heard(member) => self.heard_again(&member, &mut out),
            Event::Lagging(member) => self.lagging(member, &mut out),
            Event::Expired(timer) => self.expired(timer, &mut out),
            Event::HandOver { to } => self.hand_over(to, &mut out),
            Event::Failed => self.stop(StopReason::DiskFailed, &mut out),
            Event::Stop => {
                out.push(Effect::WriteFile(self.file(true)));
                self.stop(StopReason::Orderly, &mut out);
            }
        }
        out
    }

    fn frame(&mut self, from: Member, frame: Frame, out: &mut Effects) {
        if !self.links.contains_key(&from) {
            return;
        }
        match frame {
            Frame::Beacon {
                epoch,
                sent_ms,
                is_stuck,
                told,
            } => self.beacon(from, epoch, (sent_ms, is_stuck), &told, out),
            Frame::Follow {
                stamp,
                trust,
                credit_bytes,
                parts,
            } => {
                self.follow(from, stamp, trust, credit_bytes, &parts, out);
            }
            Frame::Align {
                stamp,
                doubt,
                parts,
            } => self.align(&from, stamp, doubt, &parts, out),
            Frame::Batches {
                stamp,
                partition,
                told,
                edges,
                bytes,
            } => {
                self.batches(&from, stamp, partition, (told, edges, bytes), out);
            }
            Frame::Synced {
                stamp,
                has_room,
                credit_bytes,
                parts,
            } => {
                self.synced(&from, stamp, (has_room, credit_bytes), &parts, out);
            }
            Frame::Sound { stamp } => self.sound(&from, stamp, out),
            Frame::Ask {
                epoch,
                number,
                leader_resigned,
            } => {
                self.ask(from, epoch, number, leader_resigned, out);
            }
            Frame::Answer {
                epoch,
                number,
                trust,
                still_led,
                marks,
            } => {
                self.answer(from, (epoch, number), (trust, still_led, marks), out);
            }
            Frame::Refused { epoch } if epoch > self.epoch => {
                self.enter(epoch, None, out);
            }
            Frame::Resign { epoch } => self.resigned(&from, epoch, out),
            // Of the link itself, or of no use here: the first half sends no gaps.
            Frame::Hello(_)
            | Frame::BeaconAnswer { .. }
            | Frame::Refused { .. }
            | Frame::Gap { .. } => {}
        }
    }

    fn linked(&mut self, peer: Member, starts: Starts, out: &mut Effects) {
        let before = self.links.insert(peer.clone(), starts);
        if before.is_some() {
            self.dropped(&peer, out);
        }
        let leader = self.key.as_ref().and_then(|(_, key)| key.leader.as_ref());
        let has_restarted = leader.is_some_and(|one| one.member == peer && one.starts < starts);
        if has_restarted {
            self.gone(&peer, out);
        }
        self.leader_linked(&peer, out);
        self.send_ask(&peer, out);
    }

    fn unlinked(&mut self, peer: &Member, out: &mut Effects) {
        if self.links.remove(peer).is_some() {
            self.dropped(peer, out);
        }
    }

    /// Makes a newer epoch durable, or begins the present one anew, and follows its leader when it is known.
    fn enter(&mut self, epoch: Epoch, leader: Option<Member>, out: &mut Effects) {
        self.leave(out);
        if epoch > self.epoch {
            self.epoch = epoch;
            if self.place.rules.holds(Rule::EpochDurable) {
                self.write_file(out);
            }
        }
        out.push(Effect::LeaderIs(leader.clone()));
        if let Some(leader) = leader {
            self.role = Role::Following(Following::new(leader, self.partitions.len()));
            out.push(Effect::Arm(Timer::Grace));
        } else {
            self.read_key(out);
        }
        self.stand(out);
    }

    /// Ends whatever the replica was in its epoch.
    fn leave(&mut self, out: &mut Effects) {
        if let Role::Leading(_) = self.role {
            out.extend([
                Effect::Office(Office::Close),
                Effect::EndStreams,
                Effect::Disarm(Timer::Beacon),
            ]);
        }
        self.role = Role::Looking;
        self.round = None;
        self.waited_long = false;
        out.extend(
            [
                Timer::Grace,
                Timer::Follow,
                Timer::Round,
                Timer::Retry,
                Timer::Long,
            ]
            .map(Effect::Disarm),
        );
    }

    fn stand(&mut self, out: &mut Effects) {
        self.counter += 1;
        self.standing = Some(self.counter);
        out.push(Effect::Stand {
            number: self.counter,
            epoch: self.epoch,
        });
    }

    fn stood(&mut self, number: u64, partitions: Vec<Held>, out: &mut Effects) {
        if self.standing != Some(number) {
            return;
        }
        self.standing = None;
        self.partitions = partitions;
        for (member, (number, leader_resigned)) in std::mem::take(&mut self.asked) {
            self.send_answer(member, number, leader_resigned, out);
        }
        match self.role {
            Role::Following(_) => {
                self.send_follow(out);
                // The leader may have been given up while the log did not stand.
                self.begin_round(out);
            }
            Role::Taking => self.lead(out),
            Role::Looking => self.settle(out),
            Role::Leading(_) | Role::Stopped => {}
        }
    }

    fn expired(&mut self, timer: Timer, out: &mut Effects) {
        match timer {
            Timer::Beacon => self.send_beacons(out),
            Timer::Grace => self.leader_lost(false, out),
            Timer::Follow => self.follow_unanswered(out),
            Timer::Round => self.round_over(out),
            Timer::Retry => self.begin_round(out),
            Timer::Long => {
                self.waited_long = true;
                if let Some(round) = &mut self.round {
                    round.waited_long();
                }
            }
            Timer::HoldBack(member) => self.held_back_over(&member, out),
            Timer::HandOver => self.hand_over_failed(out),
            Timer::Hints => {
                self.write_file(out);
                out.push(Effect::Arm(Timer::Hints));
            }
        }
    }

    fn stop(&mut self, reason: StopReason, out: &mut Effects) {
        if let Role::Leading(_) = self.role {
            let epoch = self.epoch;
            for to in self.links.keys().cloned() {
                let frame = Frame::Resign { epoch };
                out.push(Effect::Send { to, frame });
            }
        }
        self.leave(out);
        self.role = Role::Stopped;
        out.extend([Effect::LeaderIs(None), Effect::Stop(reason)]);
    }

    fn write_file(&self, out: &mut Effects) {
        out.push(Effect::WriteFile(self.file(false)));
    }

    fn file(&self, stopped_cleanly: bool) -> ReplicaFile {
        let marks = self.partitions.iter().map(|held| held.high_watermark);
        ReplicaFile {
            log_id: self.place.log_id,
            disk: self.place.disk(),
            shard: self.place.shard,
            epoch: self.epoch,
            trust: self.trust,
            starts: self.place.starts,
            stopped_cleanly,
            hints: self.place.partitions.iter().copied().zip(marks).collect(),
        }
    }

    /// The life of this replica, as a key names it.
    fn life(&self) -> Leader {
        Leader {
            member: self.place.me.clone(),
            starts: self.place.starts,
        }
    }

    fn marks(&self) -> Vec<(Epoch, Offset)> {
        let of = |held: &Held| (held.history.last().unwrap_or_default(), held.end);
        self.partitions.iter().map(of).collect()
    }

    fn next_number(&mut self) -> FollowNumber {
        self.counter += 1;
        FollowNumber(self.counter)
    }
}
