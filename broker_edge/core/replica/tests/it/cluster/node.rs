//! A machine: its disk, its clock, and the process that runs on it or not.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater_cluster::marks::{DiskId, Epoch, Member, Node as NodeName, Starts};
use headwater_cluster::shard::{Alarm, Office, StopReason};
use headwater_log::{Class, ClassConfig, Clock, LogConfig, LogId, Seams, Secret, SyncMode};
use headwater_replica::{Output, Replica, Setup};

use super::{Checked, Happening, NODES, PARTITIONS, Plan, Sabotage, World, etcd};
use crate::sim::{Random, SimFiles};

pub fn name(at: usize) -> &'static str {
    ["a", "b", "c"][at]
}

/// Stands still until it is set.
#[derive(Default)]
pub(crate) struct SimClock(AtomicU64);

impl Clock for SimClock {
    fn now_us(&self) -> i64 {
        1_700_000_000_000_000 + self.0.load(Ordering::Relaxed) as i64 * 1000
    }

    fn steady(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) struct Node {
    at: usize,
    pub files: SimFiles,
    clock: Arc<SimClock>,
    clock_begin_ms: u64,
    /// Thousandths of true time.
    clock_rate: u64,
    member: Option<Member>,
    setup: Setup,
    pub life: Option<Life>,
    /// Of the process: numbers lives, also those that end in their start.
    pub lives: u64,
    /// A stopped process does nothing until then.
    pub paused_until_ms: u64,
    /// What a turn of a writer takes at least.
    pub slow_ms: u64,
}

/// A process.
pub(crate) struct Life {
    pub number: u64,
    pub replica: Replica,
    pub office: Option<Epoch>,
    pub is_paused: bool,
    pub linked: BTreeSet<usize>,
    pub is_writing: [bool; PARTITIONS],
    pub tick_at: Option<u64>,
    /// By partition: what a reader of this life reads next.
    pub read_to: [u64; PARTITIONS],
}

impl Node {
    pub fn new(at: usize, plan: &Plan, random: &mut Random) -> Self {
        let files = SimFiles::new(random.next());
        if plan.sabotage == Sabotage::NoSync {
            files.lie_about_syncs();
        }
        let sync = match plan.seed % 3 {
            0 => SyncMode::Interval(Duration::from_millis(20)),
            _ => SyncMode::Always,
        };
        let log = LogConfig {
            sync,
            segment_bytes: 16 << 10,
            tail_bytes: [0, 1 << 20][(plan.seed % 2) as usize],
            queue_bytes: 256 << 10,
            maintain_every: None,
            has_writers: false,
            classes: vec![
                ClassConfig::new(Class::Internal),
                ClassConfig::new(Class::Telemetry),
            ],
            ..LogConfig::new(Path::new("/data"))
        };
        let setup = Setup {
            log,
            log_id: LogId::from_bytes([7; 16]),
            secret: Secret::from_bytes([9; 8]),
            node: NodeName::new(name(at)).unwrap(),
            min_in_sync: 2,
            credit_bytes: [2_000, 100_000][(plan.seed / 2 % 2) as usize],
            starts_known: Starts(0),
            begin_anew_at: Vec::new(),
            rules: plan.sabotage.rules(),
        };
        Self {
            at,
            files,
            clock: Arc::default(),
            clock_begin_ms: random.below(1_000_000) as u64,
            clock_rate: 960 + random.below(81) as u64,
            member: None,
            setup,
            life: None,
            lives: 0,
            paused_until_ms: 0,
            slow_ms: 0,
        }
    }

    pub fn local_ms(&self, now_ms: u64) -> u64 {
        self.clock_begin_ms + now_ms * self.clock_rate / 1000
    }

    /// The true time at which this clock shows that.
    fn true_ms(&self, local_ms: u64) -> u64 {
        (local_ms.saturating_sub(self.clock_begin_ms) * 1000).div_ceil(self.clock_rate)
    }

    /// Of its disk, once it has started.
    pub fn member(&self) -> Member {
        self.member.clone().unwrap_or(Member {
            node: NodeName::new(name(self.at)).unwrap(),
            disk: DiskId(0),
        })
    }

    pub fn is_alive(&self, life: u64) -> bool {
        self.life.as_ref().is_some_and(|one| one.number == life)
    }

    pub fn describe(&self) -> String {
        let name = name(self.at);
        let Some(life) = &self.life else {
            return format!("{name} is off");
        };
        let shard = life.replica.shard();
        let marks = (0..PARTITIONS).map(|at| {
            let held = shard.partition(at);
            let (hw, synced, end) = (held.high_watermark, held.synced, held.end);
            format!("{hw}/{synced}/{end}")
        });
        let role = match (shard.is_leading(), shard.is_aligned()) {
            (true, _) => "leads",
            (_, true) => "follows",
            _ => "looks",
        };
        let marks: Vec<_> = marks.collect();
        format!(
            "{name} {role} e{} {:?} {}",
            shard.epoch(),
            shard.trust(),
            marks.join(" ")
        )
    }
}

impl World {
    /// Starts the process, if the machine has none.
    pub(super) fn start(&mut self, at: usize) -> Checked {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[at];
        if node.life.is_some() {
            return Ok(());
        }
        node.lives += 1;
        node.paused_until_ms = 0;
        let local_ms = node.local_ms(now_ms);
        node.clock.0.store(local_ms, Ordering::Relaxed);
        let seams: Seams = node.files.seams_with(node.clock.clone());
        let mut setup = node.setup.clone();
        setup.starts_known = node.setup.starts_known;
        let opened = Replica::start(setup, &seams, local_ms);
        if node.files.is_off() {
            drop(opened);
            return self.died(at, "in its start");
        }
        let (replica, report) = match opened {
            Ok(started) => started,
            Err(error) => {
                self.note(|| format!("{} does not start: {error}", name(at)));
                let delay_ms = self.between(200, 2000);
                self.nodes[at].files.kill();
                self.after(delay_ms, Happening::Start(at));
                return Ok(());
            }
        };
        node.setup.begin_anew_at.clear();
        let known = node.setup.starts_known.0 + 1;
        node.setup.starts_known = Starts(known.max(replica.starts().0));
        node.member = Some(replica.me().clone());
        let read_to =
            [0, 1].map(|partition: usize| replica.log().partitions()[partition].log_start().0);
        let life = Life {
            number: node.lives,
            replica,
            office: None,
            is_paused: false,
            linked: BTreeSet::new(),
            is_writing: [false; PARTITIONS],
            tick_at: None,
            read_to,
        };
        node.life = Some(life);
        let described = node.describe();
        let notes: Vec<_> = report
            .partitions
            .iter()
            .flat_map(|one| one.notes.clone())
            .collect();
        let number = node.lives;
        self.note(|| format!("{described} after its start {notes:?}"));
        let delay_ms = self.between(300, 1500);
        self.after(
            delay_ms,
            Happening::Maintain {
                node: at,
                life: number,
            },
        );
        for other in (0..NODES).filter(|other| *other != at) {
            let delay_ms = self.between(1, 60);
            let (one, other) = (at.min(other), at.max(other));
            self.after(delay_ms, Happening::Connect { one, other });
        }
        self.settle(at)
    }

    /// Does something in a life that may have ended meanwhile, and then what follows from it.
    pub(super) fn with_life(
        &mut self,
        at: usize,
        life: u64,
        f: impl FnOnce(&mut Node, u64),
    ) -> Checked {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[at];
        if !node.is_alive(life) {
            return Ok(());
        }
        let local_ms = node.local_ms(now_ms);
        node.clock.0.store(local_ms, Ordering::Relaxed);
        f(node, local_ms);
        self.settle(at)
    }

    pub(super) fn maintain(&mut self, at: usize, life: u64) -> Checked {
        if !self.nodes[at].is_alive(life) {
            return Ok(());
        }
        let delay_ms = self.between(300, 1500);
        self.after(delay_ms, Happening::Maintain { node: at, life });
        self.with_life(at, life, |node, now_ms| {
            let life = node.life.as_mut().expect("it lives");
            life.replica.log().maintain();
            life.replica.look(now_ms);
        })
    }

    /// Carries out what a replica wants, sends what it has, and looks at what can be seen of it.
    pub(super) fn settle(&mut self, at: usize) -> Checked {
        if self.nodes[at].files.is_off() {
            return self.died(at, "in the middle of something");
        }
        loop {
            let Some(life) = &mut self.nodes[at].life else {
                return Ok(());
            };
            let outputs = life.replica.take_outputs();
            if outputs.is_empty() {
                break;
            }
            for output in outputs {
                self.carry_out(at, output)?;
            }
        }
        if self.nodes[at].life.is_none() {
            return Ok(());
        }
        self.pump(at);
        self.schedule(at);
        self.settle_appends(at)?;
        self.check_node(at)
    }

    fn carry_out(&mut self, at: usize, output: Output) -> Checked {
        match output {
            Output::Send { to, frame } => {
                if let Some(to) = self.index_of(&to) {
                    self.send(at, to, &frame);
                }
            }
            Output::Cas { expected, key } => self.etcd_asked(at, etcd::Request::Cas(expected, key)),
            Output::ReadKey => self.etcd_asked(at, etcd::Request::Read),
            Output::Office(office) => self.office(at, office)?,
            Output::LeaderIs(_) => {}
            Output::Alarm(alarm) => {
                self.note(|| format!("{}: {alarm:?}", name(at)));
                self.client.is_undecided |= self.is_healed && alarm == Alarm::NobodyMayLead;
                if matches!(
                    alarm,
                    Alarm::FollowerAhead(_) | Alarm::MetadataWentBack { .. }
                ) {
                    return Err(format!("{}: {alarm:?}", name(at)));
                }
            }
            Output::CannotRead { partition, reason } => {
                self.client.unread += 1;
                self.note(|| {
                    format!(
                        "{} cannot read partition {}: {reason}",
                        name(at),
                        partition.0
                    )
                });
            }
            Output::Disconnect(peer) => {
                if let Some(peer) = self.index_of(&peer) {
                    self.break_link(at, peer);
                }
            }
            Output::BeginAnew(anew) => {
                self.note(|| format!("{} begins anew at {anew:?}", name(at)));
                self.client.anew += 1;
                self.nodes[at].setup.begin_anew_at = anew;
                self.end(at, false);
                let delay_ms = self.between(1, 100);
                self.after(delay_ms, Happening::Start(at));
            }
            Output::Stop(reason) => self.stopped(at, reason)?,
        }
        Ok(())
    }

    fn office(&mut self, at: usize, office: Office) -> Checked {
        self.note(|| format!("{}: {office:?}", name(at)));
        let Some(life) = &mut self.nodes[at].life else {
            return Ok(());
        };
        match office {
            Office::Open { epoch } => {
                (life.office, life.is_paused) = (Some(epoch), false);
                self.check_office(at, epoch)?;
            }
            Office::Pause => life.is_paused = true,
            Office::Close => {
                life.office = None;
                self.client.forget(at);
            }
        }
        Ok(())
    }

    fn stopped(&mut self, at: usize, reason: StopReason) -> Checked {
        self.note(|| format!("{} stops: {reason}", name(at)));
        self.end(at, false);
        let delay_ms = self.between(100, 3000);
        self.after(delay_ms, Happening::Start(at));
        match reason {
            StopReason::Orderly | StopReason::DiskFailed => Ok(()),
            _ => Err(format!("{} stops: {reason}", name(at))),
        }
    }

    /// The power went off during a call.
    fn died(&mut self, at: usize, when: &str) -> Checked {
        self.note(|| format!("{} dies {when}", name(at)));
        let is_power = self.random.chance(4);
        self.end(at, is_power);
        let delay_ms = self.between(100, 3000);
        self.after(delay_ms, Happening::Start(at));
        Ok(())
    }

    /// The process is gone, with the power or without.
    pub(super) fn end(&mut self, at: usize, is_power: bool) {
        let node = &mut self.nodes[at];
        match is_power {
            true => node.files.power_cut(),
            false => node.files.kill(),
        }
        let was = node.life.take();
        self.client.forget(at);
        let Some(life) = was else {
            return;
        };
        for peer in life.linked.clone() {
            self.links.end(at, peer);
            let other = self.nodes[peer].life.as_ref().map(|life| life.number);
            let Some(number) = other else {
                continue;
            };
            // A host that is on says at once that the process is gone.
            let delay_ms = match is_power {
                true => self.between(500, 6000),
                false => self.between(1, 20),
            };
            let link = self.links.number(at, peer);
            self.after(
                delay_ms,
                Happening::Unlinked {
                    node: peer,
                    life: number,
                    peer: at,
                    link,
                },
            );
        }
    }

    /// Makes sure that timers and writers have their turns.
    fn schedule(&mut self, at: usize) {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[at];
        let (slow_ms, local_ms) = (node.slow_ms, node.local_ms(now_ms));
        let Some(life) = &mut node.life else {
            return;
        };
        let number = life.number;
        let due = life.replica.deadline_ms(local_ms);
        let mut writers = Vec::new();
        for (partition, one) in life.replica.log().partitions().iter().enumerate() {
            let is_behind = one.queued_bytes() > 0 || one.synced() < one.written();
            if is_behind && !life.is_writing[partition] {
                life.is_writing[partition] = true;
                writers.push(partition);
            }
        }
        let mut tick = None;
        if let Some(due) = due {
            let true_ms = node.true_ms(due).max(now_ms + 1).max(node.paused_until_ms);
            let life = node.life.as_mut().expect("it was there");
            if life.tick_at.is_none_or(|at| at > true_ms) {
                life.tick_at = Some(true_ms);
                tick = Some(true_ms - now_ms);
            }
        }
        if let Some(delay_ms) = tick {
            self.after(
                delay_ms,
                Happening::Tick {
                    node: at,
                    life: number,
                },
            );
        }
        for partition in writers {
            let pause_ms = self.nodes[at].paused_until_ms.saturating_sub(now_ms);
            let delay_ms = pause_ms + slow_ms + self.between(1, 6);
            self.after(
                delay_ms,
                Happening::Write {
                    node: at,
                    life: number,
                    partition,
                },
            );
        }
    }

    pub(super) fn stop_orderly(&mut self, at: usize) -> Checked {
        let Some(number) = self.nodes[at].life.as_ref().map(|life| life.number) else {
            return Ok(());
        };
        self.with_life(at, number, |node, now_ms| {
            node.life.as_mut().expect("it lives").replica.stop(now_ms);
        })
    }
}
