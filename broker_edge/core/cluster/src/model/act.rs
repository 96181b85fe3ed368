//! What may happen in the world, and what the world does then.

use super::run::partitions;
use super::*;

impl World {
    /// The node sees the key as it is now.
    fn show_key(&mut self, at: usize, was_read: bool) {
        let (revision, key) = self.key.clone();
        self.event(
            at,
            Event::Key {
                revision,
                key,
                was_read,
            },
        );
    }

    /// Everything that may happen next.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut out = Vec::new();
        if self.finding.is_some() {
            return out;
        }
        let budget = &self.budget;
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(life) = &node.life else {
                out.push(Action::Start(at));
                continue;
            };
            for partition in 0..PARTITIONS {
                let length = node.disk.logs[partition].len();
                let has_room = length < self.shown[partition].len();
                let is_used = partition < budget.partitions.into();
                if life.office.is_some() && budget.appends > 0 && has_room && is_used {
                    out.push(Action::Append(at, partition));
                }
                let (synced, durable) = (life.synced[partition], node.disk.durable[partition]);
                if synced < length || durable < synced {
                    out.push(Action::Sync(at, partition));
                }
            }
            if life.reads {
                out.push(Action::Read(at));
            }
            if !life.stands.is_empty() {
                out.push(Action::Stand(at));
            }
            if budget.doubts > 0 {
                out.push(Action::Doubt(at));
            }
            if budget.stops > 0 {
                out.push(Action::Stop(at));
            }
            if self.key.0 > life.shard.revision() {
                out.push(Action::Watch(at));
            }
            self.losses(at, node, &mut out);
            self.timers(at, life, &mut out);
        }
        for ((from, to), frames) in &self.links {
            if !frames.is_empty() {
                out.push(Action::DeliverAll(*from, *to));
            }
            if frames.len() > 1 {
                out.push(Action::Deliver(*from, *to));
                if budget.overtakes > 0 {
                    out.push(Action::Overtake(*from, *to));
                }
            }
            if from < to && budget.breaks > 0 {
                out.push(Action::Break(*from, *to));
            }
        }
        for (at, flight) in self.flights.iter().enumerate() {
            out.push(Action::Land(at));
            if budget.unknowns > 0 && !flight.is_orphan {
                out.push(Action::Unknown(at));
            }
        }
        out
    }

    fn losses(&self, at: usize, node: &Node, out: &mut Vec<Action>) {
        let unsynced =
            |partition: usize| node.disk.logs[partition].len() - node.disk.durable[partition];
        if self.budget.crashes > 0 {
            for first in 0..=unsynced(0) {
                let crash = |second: usize| Action::Crash(at, [first as u8, second as u8]);
                out.extend((0..=unsynced(1)).map(crash));
            }
        }
        for partition in 0..PARTITIONS {
            let durable = node.disk.durable[partition];
            let is_used = partition < self.budget.partitions.into();
            if self.budget.rots > 0 && is_used {
                out.extend((0..=durable).map(|keep| Action::Rot(at, partition, keep)));
            }
            if self.budget.tears > 0 && is_used {
                out.extend((0..durable).map(|keep| Action::Tear(at, partition, keep)));
            }
        }
    }

    fn timers(&self, at: usize, life: &Life, out: &mut Vec<Action>) {
        let shard = &life.shard;
        let more_epochs = self.key.1.epoch.0 < u64::from(self.budget.epochs);
        if more_epochs && shard.hears().is_some() {
            out.push(Action::Grace(at));
        }
        if more_epochs && shard.is_asking() {
            out.push(Action::Round(at));
        }
        if more_epochs && shard.is_between_rounds() {
            out.push(Action::Retry(at));
            // Who gives up waiting for the whole set may lose what a disk has torn off without a trace.
            if !self.nodes.iter().any(|node| node.disk.is_torn) {
                out.push(Action::Long(at));
            }
        }
        if self.budget.timers > 0 {
            out.extend([Action::Beacon(at), Action::Follow(at)]);
        }
        for other in (0..NODES).filter(|other| *other != at && shard.is_leading()) {
            if self.budget.silences > 0 {
                out.push(Action::Silent(at, other));
            }
            if shard.is_silent(&member(other)) {
                out.push(Action::Heard(at, other));
            }
            if self.budget.hand_overs > 0 && more_epochs {
                out.push(Action::HandOver(at, other));
            }
        }
    }

    /// Does it, if it can be done.
    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Append(at, partition) => self.append(at, partition),
            Action::Sync(at, partition) => self.sync(at, partition),
            Action::Deliver(from, to) => self.deliver(from, to),
            Action::DeliverAll(from, to) => {
                let count = self.links.get(&(from, to)).map_or(0, VecDeque::len);
                (0..count).for_each(|_| self.deliver(from, to));
            }
            Action::Overtake(from, to) => {
                self.budget.overtakes = self.budget.overtakes.saturating_sub(1);
                if let Some(frames) = self.links.get_mut(&(from, to)).filter(|one| one.len() > 1) {
                    frames.swap(0, 1);
                    self.deliver(from, to);
                }
            }
            Action::Break(one, two) => {
                self.budget.breaks = self.budget.breaks.saturating_sub(1);
                if self.links.contains_key(&(one, two)) {
                    self.link(one, two);
                }
            }
            Action::Watch(at) => self.show_key(at, false),
            Action::Read(at) => {
                let reads = |life: &mut Life| std::mem::take(&mut life.reads);
                if self.nodes[at].life.as_mut().is_some_and(reads) {
                    self.show_key(at, true);
                }
            }
            Action::Stand(at) => {
                let node = &mut self.nodes[at];
                let Some(life) = &mut node.life else { return };
                for number in std::mem::take(&mut life.stands) {
                    let life = self.nodes[at].life.as_ref().expect("it is up");
                    let partitions = partitions(&self.nodes[at].disk, life.synced, life.high);
                    self.event(at, Event::Stood { number, partitions });
                }
            }
            Action::Stop(at) => {
                self.budget.stops = self.budget.stops.saturating_sub(1);
                (0..PARTITIONS).for_each(|partition| self.sync(at, partition));
                self.event(at, Event::Stop);
                self.crash(at, [usize::MAX; PARTITIONS]);
                self.nodes[at].disk.stopped_cleanly = true;
            }
            Action::Doubt(at) => {
                self.budget.doubts = self.budget.doubts.saturating_sub(1);
                let durable = self.nodes[at].disk.durable;
                self.crash(at, durable);
                self.nodes[at].disk.is_damaged = true;
            }
            Action::Land(at) if at < self.flights.len() => self.land(at),
            Action::Unknown(at) if at < self.flights.len() => self.unknown(at),
            Action::Land(_) | Action::Unknown(_) => {}
            Action::Crash(at, lost) => {
                self.budget.crashes = self.budget.crashes.saturating_sub(1);
                let disk = &self.nodes[at].disk;
                let keep = [0usize, 1].map(|partition| {
                    let end = disk.logs[partition].len();
                    end.saturating_sub(lost[partition].into())
                        .max(disk.durable[partition])
                });
                self.crash(at, keep);
            }
            Action::Rot(at, partition, keep) => {
                self.budget.rots = self.budget.rots.saturating_sub(1);
                self.lose(at, partition, keep);
                self.nodes[at].disk.is_damaged = true;
            }
            Action::Tear(at, partition, keep) => {
                self.budget.tears = self.budget.tears.saturating_sub(1);
                self.lose(at, partition, keep);
                self.nodes[at].disk.is_torn = true;
            }
            Action::Start(at) if self.nodes[at].life.is_none() => self.start(at),
            Action::Start(_) => {}
            Action::Grace(at) => self.event(at, Event::Expired(Timer::Grace)),
            Action::Round(at) => self.event(at, Event::Expired(Timer::Round)),
            Action::Retry(at) => self.event(at, Event::Expired(Timer::Retry)),
            Action::Long(at) => self.event(at, Event::Expired(Timer::Long)),
            Action::Follow(at) => {
                self.budget.timers = self.budget.timers.saturating_sub(1);
                self.event(at, Event::Expired(Timer::Follow));
            }
            Action::Beacon(at) => {
                self.budget.timers = self.budget.timers.saturating_sub(1);
                self.event(at, Event::Expired(Timer::Beacon));
            }
            Action::Silent(at, other) => {
                self.budget.silences = self.budget.silences.saturating_sub(1);
                self.event(at, Event::Silent(member(other)));
            }
            Action::Heard(at, other) => self.event(at, Event::Heard(member(other))),
            Action::HandOver(at, to) => {
                self.budget.hand_overs = self.budget.hand_overs.saturating_sub(1);
                self.event(at, Event::HandOver { to: member(to) });
            }
        }
        self.look();
    }
}
