//! A cluster of three nodes with everything that happens to it, one event after the other, in the order of true time.
//!
//! `node.rs` is a machine with its disk and clock, `links.rs` what is between two, `etcd.rs` the key, `client.rs` who
//! appends and reads, `faults.rs` what goes wrong, `checks.rs` what must hold.

mod checks;
mod client;
mod etcd;
mod faults;
mod links;
mod node;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::VecDeque;

use headwater_cluster::marks::Member;
use headwater_cluster::rules::{Rule, Rules};

use crate::sim::{Fault, Random};
use checks::Checks;
use etcd::Etcd;
pub use faults::Faults;
use links::Links;
use node::Node;

pub const NODES: usize = 3;
pub const PARTITIONS: usize = 2;
const TRACE_LINES: usize = 150;

/// What a run is about. Everything else follows from the seed.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub faults: Faults,
    /// How long things go wrong before everything is healed.
    pub trouble_ms: u64,
    pub sabotage: Sabotage,
}

/// What is done wrong on purpose, to show that the checks find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sabotage {
    None,
    /// Disks that only say that they have synced.
    NoSync,
    /// Clients are answered when the leader has synced.
    AckAtLeader,
    Rules(Vec<Rule>),
}

impl Sabotage {
    fn rules(&self) -> Rules {
        match self {
            Self::Rules(rules) => Rules::without_all(rules),
            _ => Rules::default(),
        }
    }
}

/// What happens next somewhere.
#[derive(Debug)]
pub(crate) enum Happening {
    /// The machine is on and its process starts.
    Start(usize),
    /// A timer of the replica is due.
    Tick {
        node: usize,
        life: u64,
    },
    /// The writer of a partition has its turn.
    Write {
        node: usize,
        life: u64,
        partition: usize,
    },
    /// Retention, indexes, spares.
    Maintain {
        node: usize,
        life: u64,
    },
    Deliver {
        from: usize,
        to: usize,
        link: u64,
    },
    Connect {
        one: usize,
        other: usize,
    },
    /// A node notices that its link is gone.
    Unlinked {
        node: usize,
        life: u64,
        peer: usize,
        link: u64,
    },
    Etcd(etcd::Step),
    Append,
    Trouble,
    Mend(faults::Mend),
}

pub(crate) struct World {
    plan: Plan,
    random: Random,
    now_ms: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: std::collections::BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    nodes: Vec<Node>,
    links: Links,
    etcd: Etcd,
    client: client::Client,
    checks: Checks,
    trace: VecDeque<String>,
    prints: bool,
    is_healed: bool,
}

/// What a run has seen, to know that it has seen anything.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub acknowledged: usize,
    pub epochs: usize,
    pub faults: usize,
    pub starts: u64,
    pub anew: usize,
    /// Reads of a leader for a follower that failed.
    pub unread: usize,
    /// No member of the set was sound at the end, and what each had did not show which of them has everything: a person
    /// decides.
    pub undecided: usize,
}

/// Runs it; an error is what must never happen, with what led to it.
pub fn run(plan: Plan) -> Result<Seen, String> {
    traced(plan, World::run)
}

/// Kills the leader of an otherwise healthy cluster.
pub fn lose_leader(plan: Plan) -> Result<Seen, String> {
    traced(plan, World::lose_leader)
}

/// Keeps a follower of an otherwise healthy cluster away, and fails one call of the leader when it is back.
pub fn fail_a_call_in_catch_up(plan: Plan, nth: u64) -> Result<Seen, String> {
    traced(plan, |world| world.fail_a_call_in_catch_up(nth))
}

fn traced(
    plan: Plan,
    run: impl FnOnce(&mut World) -> Result<Seen, String>,
) -> Result<Seen, String> {
    let mut world = World::new(plan);
    let result = run(&mut world);
    result.map_err(|violation| {
        let trace: Vec<_> = world.trace.iter().map(String::as_str).collect();
        let seed = world.plan.seed;
        let trace = trace.join("\n");
        format!("seed {seed}: {violation}\n{trace}\nseed {seed}: {violation}")
    })
}

type Checked = Result<(), String>;

impl World {
    fn new(plan: Plan) -> Self {
        let mut random = Random(plan.seed.wrapping_mul(0x9e37_79b9).wrapping_add(7));
        let nodes = (0..NODES)
            .map(|at| Node::new(at, &plan, &mut random))
            .collect();
        let prints = std::env::var_os("HEADWATER_SIM_PRINT").is_some();
        Self {
            random,
            now_ms: 0,
            queue: BinaryHeap::new(),
            happenings: std::collections::BTreeMap::new(),
            sequence: 0,
            nodes,
            links: Links::default(),
            etcd: Etcd::default(),
            client: client::Client::default(),
            checks: Checks::default(),
            trace: VecDeque::new(),
            prints,
            is_healed: false,
            plan,
        }
    }

    fn run(&mut self) -> Result<Seen, String> {
        self.begin()?;
        self.until(self.plan.trouble_ms)?;
        self.finish()
    }

    /// Nothing fails but the leader, once. The others go on without it.
    fn lose_leader(&mut self) -> Result<Seen, String> {
        self.begin()?;
        self.until(5000)?;
        let leader = self.serving().ok_or("nobody serves")?;
        self.note(|| format!("{} is killed", node::name(leader)));
        self.end(leader, false);
        let (before, deadline) = (self.checks.acknowledged.len(), self.now_ms + 30_000);
        while self.checks.acknowledged.len() < before + 20 {
            if self.now_ms > deadline {
                return Err(format!("nobody took over: {}", self.describe()));
            }
            self.step()?;
        }
        let next = self.serving().ok_or("nobody serves any more")?;
        self.check_office_of(next)?;
        self.finish()
    }

    fn fail_a_call_in_catch_up(&mut self, nth: u64) -> Result<Seen, String> {
        self.begin()?;
        self.until(3_000)?;
        let leader = self.serving().ok_or("nobody serves")?;
        let away = (leader + 1) % NODES;
        self.end(away, false);
        self.until(9_000)?;
        self.start(away)?;
        self.nodes[leader].files.fail_call(nth, Fault::Error);
        self.finish()
    }

    fn begin(&mut self) -> Checked {
        for at in 0..NODES {
            self.start(at)?;
        }
        self.etcd
            .create(self.nodes.iter().map(|node| node.member()).collect());
        for one in 0..NODES {
            for other in one + 1..NODES {
                self.after(1, Happening::Connect { one, other });
            }
        }
        for at in 0..NODES {
            self.after(1, Happening::Etcd(etcd::Step::Watched { node: at }));
        }
        self.after(50, Happening::Append);
        self.after(500, Happening::Trouble);
        Ok(())
    }

    fn until(&mut self, ms: u64) -> Checked {
        while self.now_ms < ms {
            self.step()?;
        }
        Ok(())
    }

    /// Heals everything, and waits until all are equal and one serves.
    fn finish(&mut self) -> Result<Seen, String> {
        self.heal();
        let deadline = self.now_ms + 180_000;
        while !self.is_quiet() {
            if self.now_ms > deadline && self.is_left_to_a_person() {
                return Ok(Seen {
                    undecided: 1,
                    ..self.seen()
                });
            }
            if self.now_ms > deadline {
                return Err(format!("it does not serve again: {}", self.describe()));
            }
            self.step()?;
        }
        self.check_end()?;
        Ok(self.seen())
    }

    fn seen(&self) -> Seen {
        Seen {
            acknowledged: self.checks.acknowledged.len(),
            epochs: self.checks.leaders.len(),
            faults: self.client.faults,
            starts: self.nodes.iter().map(|node| node.lives).sum(),
            anew: self.client.anew,
            unread: self.client.unread,
            undecided: 0,
        }
    }

    fn after(&mut self, delay_ms: u64, happening: Happening) {
        self.sequence += 1;
        let key = (self.now_ms + delay_ms, self.sequence);
        self.queue.push(Reverse(key));
        self.happenings.insert(key, happening);
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.random.below((most - least + 1) as usize) as u64
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>7} {}", self.now_ms, line());
        if self.prints {
            eprintln!("{line}");
        }
        self.trace.push_back(line);
        if self.trace.len() > TRACE_LINES {
            self.trace.pop_front();
        }
    }

    fn step(&mut self) -> Checked {
        let Some(Reverse(key)) = self.queue.pop() else {
            return Err("nothing happens any more".to_owned());
        };
        self.now_ms = key.0;
        let happening = self.happenings.remove(&key).expect("it was queued");
        match happening {
            Happening::Start(at) => self.start(at),
            Happening::Tick { node, life } => self.with_life(node, life, |node, now_ms| {
                let life = node.life.as_mut().expect("it lives");
                life.tick_at = None;
                life.replica.tick(now_ms);
            }),
            Happening::Write {
                node,
                life,
                partition,
            } => self.with_life(node, life, |node, now_ms| {
                let life = node.life.as_mut().expect("it lives");
                life.is_writing[partition] = false;
                life.replica.log().partitions()[partition].work();
                life.replica.look(now_ms);
            }),
            Happening::Maintain { node, life } => self.maintain(node, life),
            Happening::Deliver { from, to, link } => self.deliver(from, to, link),
            Happening::Connect { one, other } => self.connect(one, other),
            Happening::Unlinked {
                node,
                life,
                peer,
                link,
            } => self.unlinked(node, life, peer, link),
            Happening::Etcd(step) => self.etcd_step(step),
            Happening::Append => self.append(),
            Happening::Trouble => self.trouble(),
            Happening::Mend(mend) => {
                self.mend(mend);
                Ok(())
            }
        }
    }

    fn index_of(&self, member: &Member) -> Option<usize> {
        let name = member.node.as_str();
        (0..NODES).find(|at| node::name(*at) == name)
    }

    fn describe(&self) -> String {
        let nodes = self.nodes.iter().map(Node::describe);
        format!(
            "{}; etcd {}",
            nodes.collect::<Vec<_>>().join("; "),
            self.etcd.describe()
        )
    }
}
