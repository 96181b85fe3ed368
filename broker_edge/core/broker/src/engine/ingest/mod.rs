//! Every append of this loop, and who waits until it is durable.

pub mod commits;
mod inline_commit_policy;
pub mod own;
mod queue_room;
mod receipts;
pub mod stage;

use std::time::{Duration, Instant};

use headwater_log::faults::{Sabotage, is_sabotaged};
use headwater_log::{Class, Offset, Partition, PartitionState, PublishId, RecordMeta, RecordsFull};
use headwater_mqtt::{Publish, QoS};

use super::effects::{Effect, Effects};
use super::env::Env;
use super::ids::{Commit, CommitSeq, PartitionIndex};
use super::routing::topics::Topic;
use super::session::Session;
use super::session::connection::Connection;
use super::session::received::InboundId;
use super::{ConnKey, SessionKey, Settings};

use own::OwnRecord;
use stage::{Outcome, Stage, Staged};

/// A partition's staged records are appended when they reach this size, not only at the end of the turn: they are
/// written while still in the processor's cache, and the buffer has a size that can be reused.
const APPEND_BYTES: usize = 256 << 10;
/// Limit on the bytes appended by a turn that commits on this thread. With more, the writer's thread builds larger
/// batches while the loop reads on.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// How long an accepted record may wait for disk space before its connection is closed.
const FULL_WAIT_MS: u64 = 5_000;
/// The internal partition, to which the state store appends.
const STATE: PartitionIndex = PartitionIndex(0);

/// How long an engine waits for what is queued before it begins.
const QUEUED_WAIT: Duration = Duration::from_secs(10);

pub struct Ingest {
    /// One per partition; nothing is staged for the internal partition.
    stages: Vec<Stage>,
    /// The number of the newest append of any partition.
    last: CommitSeq,
    turn_at: Instant,
}

impl Ingest {
    /// Waits until everything appended before is durable.
    pub fn new(partitions: &[Partition], settings: &Settings) -> Self {
        let records_max = settings.queued_records_max;
        await_queued(partitions);
        let mut last = CommitSeq(0);
        let mut next = || {
            last.0 += 1;
            last
        };
        let stages = partitions.iter().cloned();
        Self {
            stages: stages
                .map(|partition| Stage::new(partition, next(), records_max))
                .collect(),
            last,
            turn_at: Instant::now(),
        }
    }

    pub fn begin_turn(&mut self, at: Instant) {
        self.turn_at = at;
    }

    fn next(&mut self) -> CommitSeq {
        self.last.0 += 1;
        self.last
    }

    /// Stages a publish of a client; `session_of` finds its session.
    #[inline]
    pub fn push<'a>(
        &mut self,
        (key, conn): (ConnKey, &mut Connection),
        session_of: impl Fn(SessionKey) -> Option<&'a Session>,
        topic: &mut Topic,
        publish: &Publish<'_>,
    ) -> Result<Staged, RecordsFull> {
        let stage = &mut self.stages[topic.partition.index()];
        let session = || session_of(conn.session?);
        let stamp = stage.stamp();
        if topic.staged.0 != stamp {
            let index = stage.records.topic(&topic.name, topic.key.clone())?;
            topic.staged = (stamp, index);
        }
        if conn.client_stamp != stamp {
            let client_id = session().map_or("", |session| &*session.client_id);
            conn.client = stage.client(key, client_id)?;
            conn.client_stamp = stamp;
        }
        let mut meta = RecordMeta::new(topic.staged.1, conn.client, publish.qos.as_u8());
        meta.retain = publish.retain;
        if publish.qos == QoS::ExactlyOnce {
            meta.publish_id = publish_id(session(), publish);
        }
        let mut properties = Vec::new();
        if !publish.properties.is_empty() {
            properties.reserve_exact(publish.properties.as_bytes().len());
            publish.properties.copy_forwardable(&mut properties);
            meta.properties = &properties;
        }
        stage.records.push(meta, publish.payload)?;
        stage.tells_offsets |= conn.stream_ack;
        if publish.qos == QoS::ExactlyOnce {
            let packet_id = publish.packet_id.map_or(0, |id| id.get());
            stage
                .exactly_once
                .extend(conn.session.map(|session| (session, packet_id)));
        }
        Ok(stage.note(Some(key)))
    }

    /// Stages a record of the broker's own.
    fn push_own(&mut self, topic: &Topic, record: &OwnRecord<'_>) -> Result<Commit, RecordsFull> {
        let stage = &mut self.stages[topic.partition.index()];
        let index = stage.records.topic(&topic.name, topic.key.clone())?;
        let client = stage.records.client(record.client_id)?;
        let mut meta = RecordMeta::new(index, client, record.qos);
        meta.retain = record.retain;
        meta.key = record.key;
        meta.properties = record.properties;
        stage.records.push(meta, record.payload)?;
        Ok(stage.note(None).after)
    }

    /// The record just staged is a receipt of the session.
    pub fn note_receipt(&mut self, record: Commit, session: SessionKey) {
        self.stages[record.partition.index()].receipts.push(session);
    }

    /// Whether the queue of a partition is full: nothing may be staged.
    pub fn is_stalled(&self, partition: PartitionIndex) -> bool {
        self.stages[partition.index()].stalled
    }

    /// Whether a connection may stage one more record for a partition now.
    #[inline]
    pub fn admits(&mut self, partition: PartitionIndex, conn: ConnKey) -> bool {
        self.stages[partition.index()].admits(conn)
    }

    /// Makes a connection wait until it may stage records for a partition again.
    pub fn wait_for_room(&mut self, partition: PartitionIndex, conn: ConnKey) {
        self.stages[partition.index()].wait_for_room(conn);
    }

    /// Whether connections that wait for room may go on.
    pub fn has_room_for_waiting(&self) -> bool {
        self.stages.iter().any(Stage::has_room_for_waiting)
    }

    /// Takes the connections that have waited for room in the queue of a partition and may go on.
    pub fn take_waiting(&mut self) -> Vec<(PartitionIndex, ConnKey)> {
        let stages = self.stages.iter_mut().zip(0..);
        let waiting = stages.flat_map(|(stage, index)| {
            let of = move |conn| (PartitionIndex(index), conn);
            stage.take_waiting().map(of)
        });
        waiting.collect()
    }

    pub fn is_any_stalled(&self) -> bool {
        self.stages.iter().any(|stage| stage.stalled)
    }

    /// Whether as many records are staged as are appended before the end of the turn.
    #[inline]
    pub fn is_large(&self, partition: PartitionIndex) -> bool {
        self.stages[partition.index()].records.bytes() >= APPEND_BYTES
    }

    /// Appends one partition's staged records to the log. `inline` allows the commit to happen on this thread.
    pub fn append(&mut self, partition: PartitionIndex, inline: bool, effects: &mut Effects) {
        let (next, since) = (self.next(), self.turn_at);
        let outcome = self.stages[partition.index()].append(inline, next, since);
        if let Some(outcome) = outcome.filter(Outcome::has_effects) {
            effects.push(Effect::Appended(outcome));
        }
    }

    /// Number of publishers and bytes staged in all partitions, and whether these are few.
    fn staged(&self, env: &Env) -> (usize, bool) {
        let staged = self.stages.iter().filter(|s| !s.records.is_empty());
        let (publishers, bytes) = staged.fold((0, 0), |(publishers, bytes), stage| {
            let staged = stage.commits.waiting().len();
            (publishers + staged, bytes + stage.records.bytes())
        });
        let is_small =
            publishers <= env.settings.inline_publishers_max && bytes <= INLINE_BYTES_MAX;
        (publishers, is_small)
    }

    /// Whether the staged records of more than one publisher would be committed on this thread: then others may be
    /// about to publish as well.
    pub fn will_hold_up_several(&self, env: &Env) -> bool {
        let (publishers, is_small) = self.staged(env);
        publishers > 1 && is_small
    }

    /// Appends the staged records to the log. A small turn commits on this thread, because waking another thread and
    /// being woken by it costs more than a fast sync. If several partitions have records, the last is committed here
    /// while the others' threads sync.
    pub fn append_all(&mut self, env: &Env, effects: &mut Effects) {
        let Some(last) = self.stages.iter().rposition(|s| !s.records.is_empty()) else {
            return;
        };
        let (_, is_small) = self.staged(env);
        for index in 0..=last {
            if !self.stages[index].records.is_empty() {
                let inline = is_small && index == last;
                self.append(PartitionIndex(index as u16), inline, effects);
            }
        }
    }

    /// The publishers of an accepted append.
    pub fn publishers_of(&self, commit: Commit) -> &[ConnKey] {
        let stage = &self.stages[commit.partition.index()];
        stage.commits.waiting_for(commit.seq)
    }

    /// Notes what is durable, for the whole turn. Returns whether QoS 2 publishes come first among what is settled.
    pub fn look(&mut self, env: &Env) -> bool {
        for stage in &mut self.stages {
            stage.mark = mark_of(&stage.partition, env);
        }
        self.stages.iter().any(|stage| stage.commits.settles_qos2())
    }

    /// Whether anything is durable that was not when the engine last looked.
    pub fn is_settleable(&self, env: &Env) -> bool {
        let is_settleable =
            |stage: &Stage| stage.commits.is_settleable(mark_of(&stage.partition, env));
        self.stages.iter().any(is_settleable)
    }

    /// Settles the records of clients. Returns the connections that waited for them, and the partitions that have
    /// stopped for good with those that wait there in vain.
    pub fn settle(&mut self, env: &Env) -> (Vec<ConnKey>, Vec<(PartitionIndex, Vec<ConnKey>)>) {
        let mut waiting = Vec::new();
        let mut stopped = Vec::new();
        let durations = &env.metrics.detail.ack_latency;
        for (index, stage) in self.stages.iter_mut().enumerate().skip(1) {
            let commits = &mut stage.commits;
            if commits.waits()
                && !commits.settle(stage.mark, &mut waiting, durations)
                && let PartitionState::Stopped(reason) = stage.partition.state()
            {
                tracing::error!(
                    partition = stage.partition.name(),
                    reason,
                    "connections that wait for a stopped partition are closed"
                );
                stopped.push((PartitionIndex(index as u16), commits.abandon()));
            }
        }
        (waiting, stopped)
    }

    /// Every record below this offset is acknowledged or came from elsewhere than this loop.
    pub fn settled_below(&self, partition: PartitionIndex, env: &Env) -> Offset {
        let stage = &self.stages[partition.index()];
        stage.commits.settled_below(mark_of(&stage.partition, env))
    }

    /// The connections whose records have waited too long for a full disk. Those that wait for the internal partition
    /// are not among them: a new connection would wait as well.
    pub fn waits_on_full(&mut self, now_ms: u64) -> Vec<ConnKey> {
        let mut waiting = Vec::new();
        for stage in self.stages.iter_mut().skip(1) {
            if stage.has_waited_on_full(now_ms, FULL_WAIT_MS) {
                let conns = stage.release_waiting();
                if !conns.is_empty() {
                    tracing::warn!(
                        partition = stage.partition.name(),
                        "connections that wait for disk space are closed"
                    );
                }
                waiting.extend(conns);
            }
        }
        waiting
    }

    /// Whether an append is durable, or was refused.
    #[inline]
    pub fn is_settled(&self, commit: Commit) -> bool {
        self.stages[commit.partition.index()].commits.settled() >= commit.seq
    }

    /// Whether the publish of a packet id in use is acknowledged.
    pub fn is_acknowledged(&self, held: &InboundId) -> bool {
        held.record.is_none_or(|record| self.is_settled(record))
    }

    /// Makes a connection wait for an append.
    pub fn watch(&mut self, commit: Commit, conn: ConnKey) {
        let stage = &mut self.stages[commit.partition.index()];
        stage.commits.watch(commit.seq, conn);
    }

    /// The commit of values that were written at once; `end` is the offset behind them.
    pub fn state_written(&mut self, end: Offset) -> Commit {
        let next = self.next();
        let commits = &mut self.stages[STATE.index()].commits;
        let seq = match commits.newest() {
            Some((seq, newest)) if newest >= end => seq,
            _ => {
                let seq = commits.open();
                commits.accept(end..end, None, next);
                seq
            }
        };
        Commit {
            partition: STATE,
            seq,
        }
    }

    /// Settles the values that were written at once. Returns the connections that waited for them.
    pub fn settle_state(&mut self, env: &Env) -> Vec<ConnKey> {
        let stage = &mut self.stages[STATE.index()];
        let mark = stage.partition.high_watermark();
        let mut waiting = Vec::new();
        let durations = &env.metrics.detail.ack_latency;
        stage.commits.settle(mark, &mut waiting, durations);
        waiting
    }

    pub fn is_state_waited_for(&self) -> bool {
        self.stages[STATE.index()].commits.is_waited_for()
    }

    /// Lets the connections go that wait for values written at once.
    pub fn abandon_state(&mut self) -> Vec<ConnKey> {
        self.stages[STATE.index()].commits.abandon()
    }

    #[cfg(test)]
    pub fn stage_mut(&mut self, partition: PartitionIndex) -> &mut Stage {
        &mut self.stages[partition.index()]
    }
}

/// The offset below which a partition's records may be acknowledged. State has to be durable with every setting.
fn mark_of(partition: &Partition, env: &Env) -> Offset {
    if partition.class() == Class::Internal {
        partition.high_watermark()
    } else if is_sabotaged(Sabotage::AckBeforeSync) {
        Offset(u64::MAX)
    } else if env.settings.ack_written {
        partition.written()
    } else {
        partition.high_watermark()
    }
}

/// The id by which a restart recognizes a QoS 2 publish; `None` for a session that does not outlive its connection.
fn publish_id(session: Option<&Session>, publish: &Publish<'_>) -> Option<PublishId> {
    let session = session.filter(|session| session.stored)?;
    Some(PublishId {
        session: session.life,
        packet_id: publish.packet_id?.get(),
    })
}

/// What is restored has to cover what an earlier engine has queued on this log: only a crash would have ended that.
fn await_queued(partitions: &[Partition]) {
    let until = Instant::now() + QUEUED_WAIT;
    for partition in partitions {
        let end = partition.next_offset();
        while partition.high_watermark() < end
            && !matches!(partition.state(), PartitionState::Stopped(_))
        {
            if Instant::now() >= until {
                let partition = partition.name();
                tracing::error!(
                    partition,
                    "queued records do not become durable; MQTT starts without waiting for them"
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
