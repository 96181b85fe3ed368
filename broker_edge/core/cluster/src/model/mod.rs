//! A model of a cluster that drives the code of this crate: three nodes, their disks, links, and a key in etcd.
//! The shard has two partitions; a budget says how many of them get records.
//!
//! Each node is a [`Shard`]; the world around it is small and hostile. What a node has not synced may be lost in a
//! crash, links break and lose what is on them, a compare-and-swap may be reported as unknown and land later, and every
//! deadline may come at any time. What is checked is what a client could notice: see [`Finding`].

mod act;
mod check;
mod controls;
mod heal;
mod run;
mod walk;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::divergence::History;
use crate::frames::{Edges, Frame, Told};
use crate::key::{Revision, ShardKey};
use crate::marks::{
    DiskId, Epoch, Member, Node as Name, Offset, PartitionId, ShardId, Stamp, Starts, Trust,
};
use crate::replica_file::ReplicaFile;
use crate::rules::{Rule, Rules};
use crate::shard::{
    CasOutcome, Effect, Event, Found, Held, Office, Place, Shard, StopReason, Timer,
};

const NODES: usize = 3;
const PARTITIONS: usize = 2;

/// What a client could notice, or a person after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Finding {
    /// A leader lacks a record that was committed in an earlier epoch, or has another at its offset.
    Lost,
    /// Two payloads were shown at one offset.
    TwoPayloads,
    /// Two lives led one epoch.
    TwoLeaders,
    /// A sound member of the in-sync set has a committed record not on its disk.
    NotInSync,
    /// A leader serves while its high watermark is below one that was shown.
    ServesOld,
    /// A replica stopped because its leader wanted to cut what it must not.
    Stopped,
}

/// How much the world may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// That get records: 1 or 2.
    pub partitions: u8,
    pub appends: u8,
    pub epochs: u8,
    pub crashes: u8,
    pub breaks: u8,
    /// A crash that also loses what was synced, and the node notices it.
    pub rots: u8,
    /// A crash that also loses what was synced, and nobody notices.
    pub tears: u8,
    /// Orderly ends.
    pub stops: u8,
    /// A crash after which the disk looks damaged, though nothing synced is lost.
    pub doubts: u8,
    /// Frames that overtake the one before them.
    pub overtakes: u8,
    /// Outcomes that are not known.
    pub unknowns: u8,
    /// Members that are reported as silent.
    pub silences: u8,
    pub hand_overs: u8,
    /// Timers of followers and leaders that come without need.
    pub timers: u8,
}

/// A record as it lies in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Record {
    epoch: u8,
    payload: u8,
}

/// What survives a crash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Disk {
    logs: [Vec<Record>; PARTITIONS],
    /// The first record of each that a crash may lose.
    durable: [usize; PARTITIONS],
    file: Option<ReplicaFile>,
    starts: u64,
    is_damaged: bool,
    stopped_cleanly: bool,
    /// Lost synced records without a trace, until it is sound again.
    is_torn: bool,
}

/// What does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Life {
    shard: Shard,
    high: [usize; PARTITIONS],
    /// What the log says is synced.
    synced: [usize; PARTITIONS],
    office: Option<u8>,
    /// The log is to say what it has, once it stands.
    stands: Vec<u64>,
    /// The key is to be read.
    reads: bool,
    streams: BTreeMap<usize, (Stamp, [usize; PARTITIONS])>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    disk: Disk,
    life: Option<Life>,
}

/// A compare-and-swap on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Flight {
    by: usize,
    starts: u64,
    expected: Revision,
    key: ShardKey,
    /// Whoever sent it no longer waits for the outcome.
    is_orphan: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    nodes: [Node; NODES],
    key: (Revision, ShardKey),
    flights: Vec<Flight>,
    links: BTreeMap<(usize, usize), VecDeque<Frame>>,
    budget: Budget,
    rules: Rules,
    appended: u8,
    /// By offset: what was shown, and the epoch in which a leader committed it.
    shown: [Vec<Option<u8>>; PARTITIONS],
    committed: [Vec<Option<u8>>; PARTITIONS],
    /// The life that led each epoch.
    led: BTreeMap<u8, (usize, u64)>,
    finding: Option<Finding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Action {
    /// A node, and a partition of it.
    Append(usize, usize),
    Sync(usize, usize),
    /// The first frame from one to the other.
    Deliver(usize, usize),
    /// Everything on the way from one to the other.
    DeliverAll(usize, usize),
    /// The second frame comes first.
    Overtake(usize, usize),
    Break(usize, usize),
    Watch(usize),
    Read(usize),
    Stand(usize),
    Land(usize),
    Unknown(usize),
    /// It loses as many unsynced records of each partition, at most.
    Crash(usize, [u8; PARTITIONS]),
    /// A node, a partition of it, and the number of records that it keeps there.
    Rot(usize, usize, usize),
    Tear(usize, usize, usize),
    Doubt(usize),
    Stop(usize),
    Start(usize),
    Grace(usize),
    Round(usize),
    Retry(usize),
    Long(usize),
    Follow(usize),
    Beacon(usize),
    Silent(usize, usize),
    Heard(usize, usize),
    HandOver(usize, usize),
}

fn member(node: usize) -> Member {
    Member {
        node: Name::new(["a", "b", "c"][node]).expect("a name"),
        disk: DiskId(node as u64),
    }
}

fn index(member: &Member) -> usize {
    member.disk.0 as usize
}

impl World {
    /// Three empty nodes that follow node 0 in epoch 1; it serves clients.
    pub(crate) fn new(rules: Rules, budget: Budget) -> Self {
        let file = |node: usize| ReplicaFile {
            log_id: [0; 16],
            disk: DiskId(node as u64),
            shard: ShardId(0),
            epoch: Epoch(0),
            trust: Trust::Sound,
            starts: Starts(0),
            stopped_cleanly: false,
            hints: (0..PARTITIONS as u32)
                .map(|at| (PartitionId(at), Offset(0)))
                .collect(),
        };
        let node = |node: usize| Node {
            disk: Disk {
                logs: [vec![], vec![]],
                durable: [0; PARTITIONS],
                file: Some(file(node)),
                starts: 0,
                is_damaged: false,
                stopped_cleanly: true,
                is_torn: false,
            },
            life: None,
        };
        let all: std::collections::BTreeSet<_> = (0..NODES).map(member).collect();
        let key = ShardKey {
            replicas: all.clone(),
            leader: None,
            epoch: Epoch(0),
            in_sync: all,
            committed: 0,
        };
        let mut world = Self {
            nodes: [0, 1, 2].map(node),
            key: (Revision(1), key),
            flights: vec![],
            links: BTreeMap::new(),
            budget,
            rules,
            appended: 0,
            shown: [vec![None; 8], vec![None; 8]],
            committed: [vec![None; 8], vec![None; 8]],
            led: BTreeMap::new(),
            finding: None,
        };
        for node in 0..NODES {
            world.start(node);
        }
        (0..NODES).for_each(|node| world.act(Action::Read(node)));
        world.do_all(&[Action::Round(0), Action::Land(0), Action::Stand(0)]);
        for _ in 0..3 {
            for node in 1..NODES {
                world.do_all(&[
                    Action::DeliverAll(0, node),
                    Action::Stand(node),
                    Action::Watch(node),
                ]);
                world.do_all(&[Action::DeliverAll(node, 0)]);
            }
        }
        assert!(world.serves(0), "node 0 leads: {world:?}");
        world
    }

    pub(crate) fn finding(&self) -> Option<Finding> {
        self.finding
    }

    fn do_all(&mut self, actions: &[Action]) {
        for action in actions {
            self.act(*action);
        }
    }

    fn serves(&self, node: usize) -> bool {
        self.nodes[node]
            .life
            .as_ref()
            .is_some_and(|life| life.office.is_some())
    }
}
