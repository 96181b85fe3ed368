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
            partitions: (0..PARTITIONS as u32).map(PartitionId).collect(),
            min_in_sync: 2,
            credit_bytes: 64,
            rules,
        };
        // What recovery reads is in the page cache; it counts as synced only when recovery has synced it.
        let synced = match rules.holds(Rule::RecoverySyncs) {
            true => node.disk.durable,
            false => [0usize, 1].map(|partition| node.disk.logs[partition].len()),
        };
        let mut file = node.disk.file.clone();
        if let Some(file) = file
            .as_mut()
            .filter(|_| !rules.holds(Rule::SuspicionDurable))
        {
            file.trust = Trust::Sound;
        }
        let hint = |partition: usize| {
            let hints = file.as_ref().map(|file| file.hints[partition].1);
            hints.unwrap_or_default().0 as usize
        };
        let high = [0usize, 1].map(|partition| hint(partition).min(synced[partition]));
        let partitions = partitions(&node.disk, synced, high);
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

    /// A crash in which one partition keeps only `keep` records, and the others keep all.
    pub(super) fn lose(&mut self, at: usize, partition: usize, keep: usize) {
        let mut kept = [usize::MAX; PARTITIONS];
        kept[partition] = keep;
        self.crash(at, kept);
    }

    pub(super) fn crash(&mut self, at: usize, keep: [usize; PARTITIONS]) {
        let node = &mut self.nodes[at];
        if node.life.take().is_none() {
            return;
        }
        for (partition, keep) in keep.into_iter().enumerate() {
            node.disk.logs[partition].truncate(keep);
            node.disk.durable[partition] = node.disk.durable[partition].min(keep);
        }
        for flight in self.flights.iter_mut().filter(|flight| flight.by == at) {
            flight.is_orphan = true;
        }
        for ((_, to), frames) in &mut self.links {
            if *to == at {
                frames.clear();
            }
        }
    }

    pub(super) fn append(&mut self, at: usize, partition: usize) {
        let Some(epoch) = self.nodes[at].life.as_ref().and_then(|life| life.office) else {
            return;
        };
        self.budget.appends = self.budget.appends.saturating_sub(1);
        self.appended += 1;
        let payload = self.appended;
        self.written(at, partition, Record { epoch, payload });
    }

    /// The log has written a record behind its end.
    fn written(&mut self, at: usize, partition: usize, record: Record) {
        let log = &mut self.nodes[at].disk.logs[partition];
        let is_first = log.last().is_none_or(|last| last.epoch != record.epoch);
        let epoch = (Epoch(record.epoch.into()), Offset(log.len() as u64));
        log.push(record);
        let end = Offset(log.len() as u64);
        let epochs = if is_first { vec![epoch] } else { vec![] };
        self.event(
            at,
            Event::Written {
                partition,
                end,
                epochs,
            },
        );
        self.pump(at);
    }

    pub(super) fn sync(&mut self, at: usize, partition: usize) {
        let node = &mut self.nodes[at];
        let Some(life) = &mut node.life else { return };
        node.disk.durable[partition] = node.disk.logs[partition].len();
        life.synced[partition] = node.disk.durable[partition];
        let to = Offset(life.synced[partition] as u64);
        self.event(at, Event::Synced { partition, to });
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
            Effect::Take {
                partition, bytes, ..
            } => {
                let end = node.disk.logs[partition].len();
                match bytes[..] {
                    [offset, epoch, payload] if usize::from(offset) == end => {
                        self.written(at, partition, Record { epoch, payload });
                    }
                    _ => events.push_back(Event::TakeRefused),
                }
            }
            Effect::Truncate { partition, to } | Effect::Restart { partition, at: to } => {
                let log = &mut node.disk.logs[partition];
                let to = (to.0 as usize).min(log.len());
                log.truncate(to);
                for mark in [&mut node.disk.durable, &mut life.synced, &mut life.high] {
                    mark[partition] = mark[partition].min(to);
                }
            }
            Effect::CommitTo { partition, to } => self.show(at, partition, to.0 as usize),
            Effect::Stream {
                to, stamp, from, ..
            } => {
                let from = [0usize, 1].map(|partition| from[partition].0 as usize);
                life.streams.insert(index(&to), (stamp, from));
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
                let is_old = (0..PARTITIONS).any(|partition| {
                    let shown = self.shown[partition].iter().flatten().count();
                    shown > life.high[partition]
                });
                life.office = Some(epoch.0 as u8);
                if is_old {
                    self.find(Finding::ServesOld);
                }
            }
            Effect::Office(_) => life.office = None,
            Effect::Stop(StopReason::Orderly | StopReason::DiskFailed) => {}
            Effect::Stop(_) => self.find(Finding::Stopped),
            // Nothing is removed here.
            Effect::RemoveBelow { .. }
            | Effect::Credit { .. }
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
            for (partition, next) in next.iter_mut().enumerate() {
                let high_watermark = Offset(life.high[partition] as u64);
                for record in node.disk.logs[partition].iter().skip(*next) {
                    frames.push_back(Frame::Batches {
                        stamp: *stamp,
                        partition: PartitionId(partition as u32),
                        told: Told {
                            high_watermark,
                            log_start: Offset(0),
                        },
                        edges: Edges {
                            first: true,
                            last: true,
                        },
                        bytes: vec![*next as u8, record.epoch, record.payload].into(),
                    });
                    *next += 1;
                }
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
    fn show(&mut self, at: usize, partition: usize, to: usize) {
        let node = &mut self.nodes[at];
        let Some(life) = &mut node.life else { return };
        let is_leading = life.shard.is_leading();
        let epoch = life.shard.epoch().0 as u8;
        for offset in life.high[partition]..to {
            let Some(record) = node.disk.logs[partition].get(offset) else {
                self.finding.get_or_insert(Finding::Lost);
                return;
            };
            let shown = &mut self.shown[partition][offset];
            if *shown.get_or_insert(record.payload) != record.payload {
                self.finding.get_or_insert(Finding::TwoPayloads);
            }
            if is_leading {
                self.committed[partition][offset].get_or_insert(epoch);
            }
        }
        life.high[partition] = life.high[partition].max(to);
    }

    /// Looks at what no single step shows.
    pub(super) fn look(&mut self) {
        for at in 0..NODES {
            let node = &self.nodes[at];
            let whole = [usize::MAX; PARTITIONS];
            let leads = node.life.as_ref().filter(|life| life.shard.is_leading());
            let lost = leads.is_some_and(|life| self.lacks(at, life.shard.epoch().0 as u8, whole));
            let file = node.disk.file.as_ref();
            let is_sound = file.is_some_and(|file| file.trust == Trust::Sound);
            let is_whole = is_sound && !node.disk.is_torn && !node.disk.is_damaged;
            let in_sync = self.key.1.in_sync.contains(&member(at));
            if lost {
                self.find(Finding::Lost);
            } else if is_whole && in_sync && self.lacks(at, u8::MAX, node.disk.durable) {
                self.find(Finding::NotInSync);
            }
        }
    }

    /// Whether a node lacks, below these offsets, a record that was committed before this epoch.
    fn lacks(&self, at: usize, before: u8, below: [usize; PARTITIONS]) -> bool {
        (0..PARTITIONS).any(|partition| {
            let log = &self.nodes[at].disk.logs[partition];
            let log = &log[..below[partition].min(log.len())];
            let committed = self.committed[partition].iter().zip(&self.shown[partition]);
            committed.enumerate().any(|(offset, (epoch, shown))| {
                let counts = epoch.is_some_and(|epoch| epoch < before);
                counts && log.get(offset).map(|record| record.payload) != *shown
            })
        })
    }
}

/// What the log says it has.
pub(super) fn partitions(
    disk: &Disk,
    synced: [usize; PARTITIONS],
    high: [usize; PARTITIONS],
) -> Vec<Held> {
    let held = |partition: usize| {
        let mut history = History::default();
        let log = &disk.logs[partition];
        for (at, record) in log.iter().enumerate() {
            let (epoch, at) = (Epoch(record.epoch.into()), Offset(at as u64));
            history.appended(epoch, at).expect("epochs grow");
        }
        Held {
            log_start: Offset(0),
            end: Offset(log.len() as u64),
            synced: Offset(synced[partition] as u64),
            high_watermark: Offset(high[partition] as u64),
            history,
        }
    };
    (0..PARTITIONS).map(held).collect()
}
