//! The thread of a node: it gives the replica what links, etcd and the log say, and carries out what the replica wants.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use headwater_cluster::marks::{Member, Node as Name, Offset, ShardId};
use headwater_cluster::shard::{Office, StopReason};
use headwater_log::Watcher;
use headwater_mesh::{Mesh, MeshEvent};
use headwater_replica::{Input, Output, Replica};

use super::clock::now_ms;
use super::desk::Desk;
use super::inbox::{Ending, Inbox};
use super::keys::NodeKey;
use super::leaving::Leaving;
use super::meta::Asker;
use super::reopening::Reopening;
use super::transfer::Transfer;
use super::wake::LogWaker;
use crate::broker::Elsewhere;

/// The first step of a cluster has one shard: the whole log.
pub const SHARD: ShardId = ShardId(0);
/// While the node is about to stop or gives the log away, it looks this often how far others are.
const LEAVING_EVERY_MS: u64 = 20;

/// Why a node has ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The log is closed. The next start begins these partitions there.
    BeginAnew(Vec<Option<Offset>>),
}

/// Called by a node that ends by itself.
pub type OnEnd = Arc<dyn Fn(Ended) + Send + Sync>;

/// What the thread is made of.
pub struct Parts {
    pub cluster: Name,
    pub replica: Replica,
    pub mesh: Mesh,
    pub desk: Desk,
    pub asker: Asker,
    pub inbox: Arc<Inbox>,
    pub ended: Option<OnEnd>,
    /// Told when the shard was given away, or nobody could take it.
    pub left: SyncSender<()>,
}

pub struct Node {
    pub(super) parts: Parts,
    pub(super) nodes: BTreeMap<Name, NodeKey>,
    pub(super) leader: Option<Member>,
    pub(super) reaches_etcd: bool,
    /// Offices that were to be opened in this life, after an election or a pause. Each has its line in the log.
    pub(super) elections: u64,
    pub(super) leaving: Option<Leaving>,
    pub(super) reopening: Reopening,
    pub(super) transfer: Option<Transfer>,
    /// A socket may take more at once.
    has_more: bool,
    is_over: bool,
}

impl Node {
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            nodes: BTreeMap::new(),
            leader: None,
            reaches_etcd: true,
            elections: 0,
            leaving: None,
            reopening: Reopening::default(),
            transfer: None,
            has_more: false,
            is_over: false,
        }
    }

    /// Runs until it is told to stop, or has to begin anew.
    pub fn run(mut self) {
        self.parts.inbox.wakes(self.parts.mesh.waker());
        let waker = Arc::new(LogWaker::new(self.parts.mesh.waker()));
        let own = Arc::clone(&waker);
        let moved: Watcher = Arc::new(move || own.moved());
        for partition in self.parts.replica.log().partitions() {
            partition.watch(&moved);
        }
        self.settle(now_ms());
        // What was there before anybody could wake this thread.
        self.take_news(now_ms());
        while !self.is_over {
            if let Err(error) = self.wait(&waker) {
                tracing::error!(%error, "the poll of the links failed, so this node stops");
                self.parts.replica.stop(now_ms());
                self.settle(now_ms());
                return;
            }
            self.turn(now_ms());
        }
    }

    /// It is about to stop, or an operator has named another leader.
    pub(super) fn gives_away(&self) -> bool {
        self.leaving.is_some() || self.transfer.is_some()
    }

    fn wait(&mut self, waker: &LogWaker) -> io::Result<()> {
        let now = now_ms();
        let replica = self.parts.replica.deadline_ms(now);
        let leaving = self.gives_away().then_some(now + LEAVING_EVERY_MS);
        let mesh = self.parts.mesh.deadline_ms();
        let due = [replica, mesh, leaving, self.reopening.due_ms()];
        let due = due.into_iter().flatten().min();
        let mut timeout = due.map(|due| Duration::from_millis(due.saturating_sub(now)));
        if !waker.begin_sleep() || self.has_more {
            timeout = Some(Duration::ZERO);
        }
        let waited = self.parts.mesh.wait(timeout);
        waker.end_sleep();
        waited
    }

    fn turn(&mut self, now: u64) {
        for event in self.parts.mesh.turn(now) {
            if let Some(input) = input_of(event) {
                self.give(input, now);
            }
        }
        self.take_news(now);
        self.parts.replica.look(now);
        self.settle(now);
        self.parts.replica.tick(now);
        self.settle(now);
        self.leave_step(now);
        self.transfer_step(now);
        self.reopen_step(now);
        let Parts { replica, mesh, .. } = &mut self.parts;
        self.has_more = mesh.flush(now, |to| Some((SHARD, replica.next_batches(to, now)?)));
        self.settle(now);
    }

    /// Gives one input, and does what it leads to before the next.
    pub(super) fn give(&mut self, input: Input, now: u64) {
        self.parts.replica.handle(input, now);
        self.settle(now);
    }

    fn take_news(&mut self, now: u64) {
        let news = self.parts.inbox.take();
        if let Some(reaches) = news.reaches_etcd {
            self.reaches_etcd = reaches;
            self.give(Input::ReachesEtcd(reaches), now);
        }
        if let Some(nodes) = news.nodes {
            self.know(nodes);
        }
        if let Some(outcome) = news.cas {
            self.give(Input::Cas(outcome), now);
        }
        for (found, was_read) in [(news.read, true), (news.watched, false)] {
            if let Some((revision, key)) = found {
                if self.parts.replica.is_over() {
                    // A stopped replica says nothing more; clients still go to whoever leads.
                    self.leader = key.leader.map(|leader| leader.member);
                    self.tell_elsewhere();
                    continue;
                }
                let input = Input::Key {
                    revision,
                    key,
                    was_read,
                };
                self.give(input, now);
            }
        }
        if news.has_failed {
            self.office_failed(now);
        }
        if let Some(asked) = news.transfer {
            self.begin_transfer(&asked);
        }
        for answer in news.asked {
            // An error means that nobody waits for it any more.
            let _ = answer.try_send(self.report());
        }
        match news.ending {
            Ending::None => {}
            Ending::HandOver if self.leaving.is_none() => {
                self.transfer = None;
                self.begin_leaving(now);
            }
            Ending::HandOver => {}
            Ending::Stop => self.stop(now),
        }
    }

    fn stop(&mut self, now: u64) {
        self.parts.replica.stop(now);
        self.settle(now);
        // What it says last: that it leads no more.
        self.parts.mesh.flush(now, |_| None);
        self.is_over = true;
    }

    fn know(&mut self, nodes: BTreeMap<Name, NodeKey>) {
        for (name, at) in &nodes {
            if self.nodes.get(name) != Some(at) {
                self.parts.mesh.know(name, &at.mesh);
            }
        }
        // Where a node was is not forgotten when its lease ends: it may live, and etcd be slow.
        self.nodes.extend(nodes);
        self.tell_elsewhere();
    }

    fn elsewhere(&self, leader: Option<&Member>) -> Elsewhere {
        let other = leader.filter(|leader| *leader != self.parts.replica.me());
        let at = other.and_then(|leader| self.nodes.get(&leader.node));
        Elsewhere {
            mqtt: at.map(|at| at.mqtt.as_str().into()),
            flight: at.map(|at| at.flight.as_str().into()),
        }
    }

    pub(super) fn tell_elsewhere(&self) {
        let next = self.transfers_to().or(self.leader.as_ref());
        self.parts.desk.tell(self.elsewhere(next));
    }

    /// Carries out what the replica wants, in order, until it wants nothing more.
    pub(super) fn settle(&mut self, now: u64) {
        loop {
            let outputs = self.parts.replica.take_outputs();
            if outputs.is_empty() {
                return;
            }
            // Who leads next comes behind the end of the office, and its clients want to know it.
            let next = outputs.iter().rev().find_map(|output| match output {
                Output::LeaderIs(leader) => Some(leader.clone()),
                _ => None,
            });
            for output in outputs {
                self.carry_out(output, next.as_ref(), now);
            }
        }
    }

    fn carry_out(&mut self, output: Output, next: Option<&Option<Member>>, now: u64) {
        match output {
            Output::Send { to, frame } => self.parts.mesh.send(&to, SHARD, frame, now),
            Output::Cas { expected, key } => self.parts.asker.cas(expected, key),
            Output::ReadKey => self.parts.asker.read(),
            Output::Office(office) => self.office(&office, next),
            Output::LeaderIs(leader) => {
                if leader != self.leader {
                    let name = leader.as_ref().map(|leader| leader.node.to_string());
                    let epoch = self.parts.replica.shard().epoch().0;
                    tracing::info!(leader = name, epoch, "the leader of the log");
                }
                self.leader = leader;
                self.tell_elsewhere();
            }
            Output::Alarm(alarm) => tracing::error!("{alarm}"),
            Output::CannotRead { partition, reason } => {
                tracing::error!(
                    partition = partition.0,
                    reason,
                    "a follower cannot be given records; they are read again soon"
                );
            }
            Output::Disconnect(peer) => self.parts.mesh.disconnect(&peer, now),
            Output::BeginAnew(partitions) => self.begin_anew(partitions),
            Output::Stop(reason) => {
                if reason != StopReason::Orderly {
                    tracing::error!("this replica has stopped: {reason}");
                }
            }
        }
    }

    fn office(&mut self, office: &Office, next: Option<&Option<Member>>) {
        match office {
            Office::Open { epoch } => {
                self.elections += 1;
                tracing::info!(epoch = epoch.0, "this node begins to serve clients");
                self.reopening.cancel();
                // One that is about to stop or gives the log away has stored what clients left.
                if !self.gives_away() {
                    self.parts.desk.open();
                }
            }
            Office::Pause if self.gives_away() => {}
            Office::Pause => {
                tracing::warn!(
                    "a node of the in-sync set is not heard, so no record is acknowledged for now"
                );
            }
            Office::Close => {
                self.reopening.cancel();
                self.transfer = None;
                let leader = next.cloned().flatten();
                self.parts.desk.leave(self.elsewhere(leader.as_ref()));
            }
        }
    }

    fn begin_anew(&mut self, partitions: Vec<Option<Offset>>) {
        tracing::warn!("parts of this copy have to be fetched anew, so this node starts once more");
        self.parts.desk.leave(Elsewhere::default());
        self.is_over = true;
        if let Some(ended) = &self.parts.ended {
            ended(Ended::BeginAnew(partitions));
        }
    }
}

fn input_of(event: MeshEvent) -> Option<Input> {
    Some(match event {
        MeshEvent::Linked { peer, starts } => Input::Linked { peer, starts },
        MeshEvent::Unlinked { peer } => Input::Unlinked { peer },
        MeshEvent::Gone { peer } => Input::Gone { peer },
        MeshEvent::Frame { from, shard, frame } if shard == SHARD => Input::Frame { from, frame },
        MeshEvent::Frame { .. } => return None,
    })
}
