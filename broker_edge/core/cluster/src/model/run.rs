//! Disks, links and the key: what actions and the effects of the shards do to them.

use super::*;

impl World {
    pub(super) fn start(&mut self, at: usize) {
        let rules = self.rules;
        let node = &mut self.nodes[at];
        node.disk.starts += 1;
        let place = Place {
            log_id: [0; 16],
            shard: ShardId(0),
            me: member(at),
            starts: Starts(node.disk.starts),
            partitions: vec![PartitionId(0)],
            min_in_sync: 2,
            credit_bytes: 64,
            rules,
        };
        // What recovery reads is in the page cache; it counts as synced only when recovery has synced it.
        let synced = match rules.holds(Rule::RecoverySyncs) {
            true => node.disk.durable,
            false => node.disk.log.len(),
        };
        let mut file = node.disk.file.clone();
        if let Some(file) = file
            .as_mut()
            .filter(|_| !rules.holds(Rule::SuspicionDurable))
        {
            file.trust = Trust::Sound;
        }
        let hint = file.as_ref().map_or(0, |file| file.hints[0].1.0 as usize);
        let high = hint.min(synced);
        let partitions = vec![held(&node.disk, synced, high)];
        let is_damaged = std::mem::take(&mut node.disk.is_damaged);
        let stopped_cleanly = std::mem::take(&mut node.disk.stopped_cleanly);
        let found = Found {
            file,
            stopped_cleanly,
            is_damaged,
            partitions,
        };
        let (shard, effects) = Shard::start(Arc::new(place), found);
        node.life = Some(Life {
            shard,
            high,
            synced,
            office: None,
            stands: vec![],
            reads: false,
            streams: BTreeMap::new(),
        });
        self.carry_out(at, effects);
        for other in (0..NODES).filter(|other| *other != at) {
            self.link(at, other);
        }
    }

    /// A new connection of two nodes that are up; whatever was on the old one is lost.
    pub(super) fn link(&mut self, one: usize, two: usize) {
        self.links.insert((one, two), VecDeque::new());
        self.links.insert((two, one), VecDeque::new());
        let lives = [one, two].map(|at| self.nodes[at].life.is_some());
        if lives == [true, true] {
            for (at, peer) in [(one, two), (two, one)] {
                if let Some(life) = &mut self.nodes[at].life {
                    life.streams.remove(&peer);
                }
                let starts = Starts(self.nodes[peer].disk.starts);
                let peer = member(peer);
                self.event(at, Event::Linked { peer, starts });
            }
        }
    }

    pub(super) fn crash(&mut self, at: usize, keep: usize) {
        let node = &mut self.nodes[at];
        if node.life.take().is_none() {
            return;
        }
        node.disk.log.truncate(keep);
        node.disk.durable = node.disk.durable.min(keep);
        for flight in self.flights.iter_mut().filter(|flight| flight.by == at) {
            flight.is_orphan = true;
        }
        for ((_, to), frames) in &mut self.links {
            if *to == at {
                frames.clear();
            }
        }
    }

    pub(super) fn append(&mut self, at: usize) {
        let Some(epoch) = self.nodes[at].life.as_ref().and_then(|life| life.office) else {
            return;
        };
        self.budget.appends = self.budget.appends.saturating_sub(1);
        self.appended += 1;
        let payload = self.appended;
        self.written(at, Record { epoch, payload });
    }

    /// The log has written a record behind its end.
    fn written(&mut self, at: usize, record: Record) {
        let log = &mut self.nodes[at].disk.log;
        let is_first = log.last().is_none_or(|last| last.epoch != record.epoch);
        let epoch = (Epoch(record.epoch.into()), Offset(log.len() as u64));
        log.push(record);
        let end = Offset(log.len() as u64);
        let epochs = if is_first { vec![epoch] } else { vec![] };
        self.event(
            at,
            Event::Written {
                partition: 0,
                end,
                epochs,
            },
        );
        self.pump(at);
    }

    pub(super) fn sync(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(life) = &mut node.life else { return };
        node.disk.durable = node.disk.log.len();
        life.synced = node.disk.durable;
        let to = Offset(life.synced as u64);
        self.event(at, Event::Synced { partition: 0, to });
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        let frame = self
            .links
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        if let Some(frame) = frame {
            let from = member(from);
            self.event(to, Event::Frame { from, frame });
        }
    }

    pub(super) fn land(&mut self, at: usize) {
        let flight = self.flights.remove(at);
        let is_newest = flight.expected == self.key.0;
        if is_newest {
            self.key = (Revision(self.key.0.0 + 1), flight.key.clone());
        }
        let outcome = match is_newest {
            true => CasOutcome::Done(self.key.0),
            false => CasOutcome::Conflict(self.key.0, self.key.1.clone()),
        };
        if !flight.is_orphan && self.nodes[flight.by].disk.starts == flight.starts {
            self.event(flight.by, Event::Cas(outcome));
        }
    }

    pub(super) fn unknown(&mut self, at: usize) {
        self.budget.unknowns = self.budget.unknowns.saturating_sub(1);
        self.flights[at].is_orphan = true;
        self.event(self.flights[at].by, Event::Cas(CasOutcome::Unknown));
    }

    pub(super) fn event(&mut self, at: usize, event: Event) {
        if let Some(life) = &mut self.nodes[at].life {
            let effects = life.shard.handle(event);
            self.carry_out(at, effects);
        }
    }

    /// Carries effects out in order; events that they cause come after the last of them.
    fn carry_out(&mut self, at: usize, effects: Vec<Effect>) {
        let mut events = VecDeque::new();
        for effect in effects {
            self.effect(at, effect, &mut events);
        }
        self.pump(at);
        for event in events {
            self.event(at, event);
        }
    }

    fn effect(&mut self, at: usize, effect: Effect, events: &mut VecDeque<Event>) {
        let node = &mut self.nodes[at];
        let Some(life) = &mut node.life else { return };
        match effect {
            Effect::Send { to, frame } => {
                // Nothing is done with these here.
                let is_idle = matches!(frame, Frame::BeaconAnswer { .. });
                if let Some(frames) = self.links.get_mut(&(at, index(&to))).filter(|_| !is_idle) {
                    frames.push_back(frame);
                }
            }
            Effect::WriteFile(file) => {
                node.disk.is_torn &= file.trust != Trust::Sound;
                node.disk.file = Some(file);
            }
            Effect::Stand { number, .. } => life.stands.push(number),
            Effect::Lead { epoch } => self.leads(at, epoch.0 as u8),
            Effect::Take { bytes, .. } => match bytes[..] {
                [offset, epoch, payload] if usize::from(offset) == node.disk.log.len() => {
                    self.written(at, Record { epoch, payload });
                }
                _ => events.push_back(Event::TakeRefused),
            },
            Effect::Truncate { to, .. } | Effect::Restart { at: to, .. } => {
                let to = (to.0 as usize).min(node.disk.log.len());
                node.disk.log.truncate(to);
                node.disk.durable = node.disk.durable.min(to);
                (life.synced, life.high) = (life.synced.min(to), life.high.min(to));
            }
            Effect::CommitTo { to, .. } => self.show(at, to.0 as usize),
            Effect::Stream {
                to, stamp, from, ..
            } => {
                life.streams.insert(index(&to), (stamp, from[0].0 as usize));
            }
            Effect::EndStreams => life.streams.clear(),
            Effect::Cas { expected, key } => {
                let (by, starts, is_orphan) = (at, node.disk.starts, false);
                self.flights.push(Flight {
                    by,
                    starts,
                    expected,
                    key,
                    is_orphan,
                });
            }
            Effect::ReadKey => life.reads = true,
            Effect::Office(Office::Open { epoch }) => {
                let is_old =
                    (0..self.shown.len()).any(|at| self.shown[at].is_some() && at >= life.high);
                life.office = Some(epoch.0 as u8);
                if is_old {
                    self.find(Finding::ServesOld);
                }
            }
            Effect::Office(_) => life.office = None,
            Effect::Stop(StopReason::Orderly | StopReason::DiskFailed) => {}
            Effect::Stop(_) => self.find(Finding::Stopped),
            Effect::Credit { .. }
            | Effect::LeaderIs(_)
            | Effect::Arm(_)
            | Effect::Disarm(_)
            | Effect::Alarm(_) => {}
        }
    }

    /// Puts what a leader has for its followers on the links.
    fn pump(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(life) = &mut node.life else { return };
        for (to, (stamp, next)) in &mut life.streams {
            let Some(frames) = self.links.get_mut(&(at, *to)) else {
                continue;
            };
            while let Some(record) = node.disk.log.get(*next) {
                frames.push_back(Frame::Batches {
                    stamp: *stamp,
                    partition: PartitionId(0),
                    told: Told {
                        high_watermark: Offset(life.high as u64),
                        log_start: Offset(0),
                    },
                    edges: Edges {
                        first: true,
                        last: true,
                    },
                    bytes: vec![*next as u8, record.epoch, record.payload],
                });
                *next += 1;
            }
        }
    }

    fn find(&mut self, finding: Finding) {
        self.finding.get_or_insert(finding);
    }

    fn leads(&mut self, at: usize, epoch: u8) {
        let life = (at, self.nodes[at].disk.starts);
        if *self.led.entry(epoch).or_insert(life) != life {
            self.find(Finding::TwoLeaders);
        }
    }

    /// A node shows what is below `to`.
    fn show(&mut self, at: usize, to: usize) {
        let node = &mut self.nodes[at];
        let Some(life) = &mut node.life else { return };
        let is_leading = life.shard.is_leading();
        let epoch = life.shard.epoch().0 as u8;
        for offset in life.high..to {
            let Some(record) = node.disk.log.get(offset) else {
                self.finding.get_or_insert(Finding::Lost);
                return;
            };
            if *self.shown[offset].get_or_insert(record.payload) != record.payload {
                self.finding.get_or_insert(Finding::TwoPayloads);
            }
            if is_leading {
                self.committed[offset].get_or_insert(epoch);
            }
        }
        life.high = life.high.max(to);
    }

    /// Looks at what no single step shows.
    pub(super) fn look(&mut self) {
        for at in 0..NODES {
            let node = &self.nodes[at];
            let has = |offset: usize, until: usize| {
                let record = node.disk.log[..until.min(node.disk.log.len())].get(offset);
                record.map(|record| record.payload) == self.shown[offset]
            };
            let committed = |before: u8| {
                let of = move |(_, epoch): &(usize, &Option<u8>)| {
                    epoch.is_some_and(|epoch| epoch < before)
                };
                self.committed
                    .iter()
                    .enumerate()
                    .filter(of)
                    .map(|(offset, _)| offset)
            };
            let leads = node.life.as_ref().filter(|life| life.shard.is_leading());
            let lost = leads.is_some_and(|life| {
                committed(life.shard.epoch().0 as u8).any(|offset| !has(offset, usize::MAX))
            });
            let is_sound = node
                .disk
                .file
                .as_ref()
                .is_some_and(|file| file.trust == Trust::Sound);
            let is_whole = is_sound && !node.disk.is_torn && !node.disk.is_damaged;
            let misses = is_whole
                && self.key.1.in_sync.contains(&member(at))
                && committed(u8::MAX).any(|offset| !has(offset, node.disk.durable));
            if lost {
                self.find(Finding::Lost);
            } else if misses {
                self.find(Finding::NotInSync);
            }
        }
    }
}

pub(super) fn held(disk: &Disk, synced: usize, high: usize) -> Held {
    let mut history = History::default();
    for (at, record) in disk.log.iter().enumerate() {
        history
            .appended(Epoch(record.epoch.into()), Offset(at as u64))
            .expect("epochs grow");
    }
    Held {
        log_start: Offset(0),
        end: Offset(disk.log.len() as u64),
        synced: Offset(synced as u64),
        high_watermark: Offset(high as u64),
        history,
    }
}
