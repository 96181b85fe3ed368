//! The replica: what is given to it, what is taken from it, and the order in between.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use headwater_cluster::clocked::Clocked;
use headwater_cluster::frames::Frame;
use headwater_cluster::key::{Revision, ShardKey};
use headwater_cluster::marks::{Member, Offset, PartitionId, Starts};
use headwater_cluster::replica_file::ReplicaFile;
use headwater_cluster::shard::{Alarm, CasOutcome, Effect, Event, Office, Shard, StopReason};
use headwater_log::{Files, Log};

use crate::effects::Halt;
use crate::progress::Local;
use crate::stream::Stream;

/// A cut that found no space, and batches that are no batches, are tried again after this time.
const FOLLOW_AGAIN_MS: u64 = 500;

/// What others and etcd say.
#[derive(Debug, Clone)]
pub enum Input {
    /// A connection was made; the peer's `Hello` named this life.
    Linked {
        peer: Member,
        starts: Starts,
    },
    Unlinked {
        peer: Member,
    },
    /// The peer's host is alive and refused a connection: its process is gone.
    Gone {
        peer: Member,
    },
    Frame {
        from: Member,
        frame: Frame,
    },
    /// The key as etcd has it, by a watch or a linearizable read.
    Key {
        revision: Revision,
        key: ShardKey,
        was_read: bool,
    },
    Cas(CasOutcome),
    /// Whether etcd answers. Leaders learn it with the next beacon.
    ReachesEtcd(bool),
    /// Give the shard to this follower.
    HandOver {
        to: Member,
    },
    /// This node is about to stop: as if its disk were full, so that the leader does not wait for it.
    TakesNoMore,
}

/// What is to be done outside, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Before all batches that go over the same link.
    Send {
        to: Member,
        frame: Frame,
    },
    /// Write the key if it still has this revision.
    Cas {
        expected: Revision,
        key: ShardKey,
    },
    /// Read the key, linearizably.
    ReadKey,
    Office(Office),
    /// Where clients should go.
    LeaderIs(Option<Member>),
    Alarm(Alarm),
    /// What a follower needs cannot be read in the leader's own copy. It is tried again.
    CannotRead {
        partition: PartitionId,
        reason: String,
    },
    /// The leader has removed what comes next in the stream of this follower: a new link begins it anew.
    Disconnect(Member),
    /// The log is closed and this replica has ended. The next life is to begin these partitions there.
    BeginAnew(Vec<Option<Offset>>),
    /// This replica has ended.
    Stop(StopReason),
}

/// One life of a replica of the shard.
///
/// After every call the outputs are to be taken and carried out.
pub struct Replica {
    pub(crate) me: Member,
    pub(crate) starts: Starts,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) dir: PathBuf,
    pub(crate) log: Log,
    pub(crate) clocked: Clocked,
    /// As it was written last.
    pub(crate) file: ReplicaFile,
    pub(crate) locals: Vec<Local>,
    /// Of a leader, by follower.
    pub(crate) streams: BTreeMap<Member, Stream>,
    /// What the effects of an event have led to. Given when all effects of that event are done.
    pub(crate) events: VecDeque<Event>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) credit_bytes: u32,
    pub(crate) has_room: bool,
    /// It is about to stop, and has told its leader that it has no room.
    pub(crate) takes_no_more: bool,
    /// The log was found in doubt, and was not cut yet.
    pub(crate) has_doubts: bool,
    pub(crate) reaches_etcd: bool,
    /// Until then nothing is taken.
    pub(crate) follow_again_at_ms: Option<u64>,
    pub(crate) is_over: bool,
}

impl Replica {
    #[must_use]
    pub fn me(&self) -> &Member {
        &self.me
    }

    /// The number of this life.
    #[must_use]
    pub fn starts(&self) -> Starts {
        self.starts
    }

    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The state machine, to look at.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        self.clocked.shard()
    }

    /// Nothing is done any more: it has stopped, or is to begin anew.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// What is to be done, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub fn handle(&mut self, input: Input, now_ms: u64) {
        if self.is_over {
            return;
        }
        let event = match input {
            Input::Linked { peer, starts } => {
                self.streams.remove(&peer);
                Event::Linked { peer, starts }
            }
            Input::Unlinked { peer } => {
                self.streams.remove(&peer);
                Event::Unlinked { peer }
            }
            Input::Gone { peer } => Event::Gone { peer },
            Input::Frame { from, frame } => {
                self.note_log_starts(&frame);
                Event::Frame { from, frame }
            }
            Input::Key {
                revision,
                key,
                was_read,
            } => Event::Key {
                revision,
                key,
                was_read,
            },
            Input::Cas(outcome) => Event::Cas(outcome),
            Input::ReachesEtcd(reaches) => {
                self.reaches_etcd = reaches;
                return;
            }
            Input::HandOver { to } => Event::HandOver { to },
            Input::TakesNoMore => {
                self.takes_no_more = true;
                return self.look(now_ms);
            }
        };
        self.events.push_back(event);
        self.run(now_ms);
    }

    /// Everything that is due. To be called at [`deadline_ms`](Self::deadline_ms) or later, and before each turn in
    /// which a leader serves clients.
    pub fn tick(&mut self, now_ms: u64) {
        if self.is_over {
            return;
        }
        if self.follow_again_at_ms.is_some_and(|at| at <= now_ms) {
            self.follow_again_at_ms = None;
            self.events.push_back(Event::TakeRefused);
        }
        for stream in self.streams.values_mut() {
            stream.tick(now_ms);
        }
        let effects = self.clocked.tick(now_ms, self.reaches_etcd);
        self.carry_out_all(effects, now_ms);
        self.run(now_ms);
    }

    /// When to call [`tick`](Self::tick) at the latest. Nothing is due of a replica that has stopped.
    #[must_use]
    pub fn deadline_ms(&self, now_ms: u64) -> Option<u64> {
        if self.is_over {
            return None;
        }
        let timers = self.clocked.deadline_ms(now_ms).into_iter();
        let streams = self.streams.values().filter_map(Stream::deadline_ms);
        timers.chain(self.follow_again_at_ms).chain(streams).min()
    }

    /// An orderly end: writes and syncs what is queued, closes the log, and notes that nothing is missing. A leader
    /// should have handed over before.
    pub fn stop(&mut self, now_ms: u64) {
        if self.is_over {
            return;
        }
        self.log.shutdown();
        self.note_progress();
        self.events.push_back(Event::Stop);
        self.run(now_ms);
    }

    /// Gives events until there are none.
    pub(crate) fn run(&mut self, now_ms: u64) {
        while let Some(event) = self.events.pop_front() {
            let effects = self.clocked.handle(event, now_ms, self.reaches_etcd);
            self.carry_out_all(effects, now_ms);
            self.settle_doubts(now_ms);
            if self.is_over {
                self.events.clear();
            }
        }
    }

    /// The effects of a start.
    pub(crate) fn begin(&mut self, effects: Vec<Effect>, now_ms: u64) -> Result<(), String> {
        for effect in effects {
            if let Err(Halt::Failed(reason)) = self.carry_out(effect) {
                return Err(reason);
            }
        }
        self.run(now_ms);
        Ok(())
    }

    fn carry_out_all(&mut self, effects: Vec<Effect>, now_ms: u64) {
        let mut effects = effects.into_iter();
        while let Some(effect) = effects.next() {
            match self.carry_out(effect) {
                Ok(()) => {}
                Err(Halt::Failed(reason)) => {
                    tracing::error!(reason, "this replica stops");
                    self.events.clear();
                    // The state machine may have stopped already, and says nothing more.
                    match effects.any(|effect| matches!(effect, Effect::Stop(_))) {
                        true => self.end(StopReason::DiskFailed),
                        false => self.events.push_back(Event::Failed),
                    }
                    return;
                }
                Err(Halt::Later(reason)) => {
                    tracing::warn!(reason, "this replica follows again in a moment");
                    self.follow_again_at_ms = Some(now_ms + FOLLOW_AGAIN_MS);
                    return;
                }
                Err(Halt::BeginAnew { partition, at }) => {
                    let others = effects.filter_map(|effect| match effect {
                        Effect::Restart { partition, at } => Some((partition, at)),
                        _ => None,
                    });
                    let all = std::iter::once((partition, at)).chain(others).collect();
                    return self.begin_anew(all);
                }
            }
        }
    }

    /// An aligned replica has what its leader said: what is left of a partition in doubt is copied, and counts from
    /// there on.
    fn settle_doubts(&mut self, now_ms: u64) {
        let is_due = self.shard().is_aligned() && self.follow_again_at_ms.is_none();
        if self.is_over || !is_due || !self.has_doubts {
            return;
        }
        for at in 0..self.locals.len() {
            match self.settle_doubt(at) {
                Ok(()) => {}
                Err(Halt::BeginAnew { partition, at }) => {
                    return self.begin_anew(vec![(partition, at)]);
                }
                Err(Halt::Later(_)) => {
                    self.follow_again_at_ms = Some(now_ms + FOLLOW_AGAIN_MS);
                    return;
                }
                Err(Halt::Failed(reason)) => {
                    tracing::error!(reason, "this replica stops");
                    self.events.push_back(Event::Failed);
                    return;
                }
            }
        }
        self.has_doubts = false;
        self.note_progress();
    }

    pub(crate) fn end(&mut self, reason: StopReason) {
        self.is_over = true;
        self.outputs.push(Output::Stop(reason));
    }

    fn note_log_starts(&mut self, frame: &Frame) {
        if let Frame::Align { parts, .. } = frame {
            for (local, part) in self.locals.iter_mut().zip(parts) {
                local.leader_start = part.log_start;
            }
        }
    }
}
