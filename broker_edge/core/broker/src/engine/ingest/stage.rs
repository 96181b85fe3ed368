//! Moves records from a turn into the log, one stage per partition.
//!
//! What is staged gets the number of the next append, and an offset when that is accepted. The stage also counts how
//! long the disk has been full.

use std::ops::Range;
use std::time::Instant;

use headwater_log::{
    AppendError, ClientIndex, Offset, Partition, PartitionState, Records, RecordsFull,
};
use rustc_hash::FxHashMap;

use crate::engine::ids::{Commit, CommitSeq, PartitionIndex};
use crate::engine::{ConnKey, SessionKey};

use super::commits::{Commits, Published};
use super::inline_commit_policy::InlineCommitPolicy;
use super::queue_room::QueueRoom;

/// The result of an append that was not put off.
#[derive(Debug)]
pub struct Outcome {
    pub commit: Commit,
    /// The offset of the first record.
    pub result: Result<Offset, Box<Refused>>,
    /// Publishers may have been paused since the queue was full.
    pub was_stalled: bool,
    /// Some publishers get the offsets of their records.
    tells_offsets: bool,
}

impl Outcome {
    /// Whether anything follows from it. Nothing does from an ordinary append that was accepted.
    pub fn has_effects(&self) -> bool {
        self.result.is_err() || self.was_stalled || self.tells_offsets
    }
}

/// Records that will never be in the log.
#[derive(Debug)]
pub struct Refused {
    pub conns: Vec<ConnKey>,
    /// How many of them were publishes of clients.
    pub publishes: u64,
    /// The QoS 2 publishes among them.
    pub exactly_once: Vec<(SessionKey, u16)>,
    /// The sessions of the receipts among them.
    pub receipts: Vec<SessionKey>,
    pub error: AppendError,
}

/// A record that was staged.
#[derive(Debug, Clone, Copy)]
pub struct Staged {
    pub after: Commit,
    /// Its place in the append.
    pub index: u32,
}

pub struct Stage {
    pub partition: Partition,
    index: PartitionIndex,
    pub records: Records,
    pub commits: Commits<ConnKey>,
    /// Everything below may be acknowledged in this turn.
    pub mark: Offset,
    /// The staged records could not be appended yet.
    pub stalled: bool,
    /// The last append was refused; this is logged once, not in every turn.
    refusing: bool,
    /// Sessions and packet ids of the QoS 2 publishes in `records`.
    pub exactly_once: Vec<(SessionKey, u16)>,
    /// The sessions of the receipts in `records`.
    pub receipts: Vec<SessionKey>,
    /// Some publishers of `records` get their offsets.
    pub tells_offsets: bool,
    /// When accepted records began to wait for disk space.
    full_since_ms: Option<u64>,
    /// How many of `records` are publishes of clients.
    publishes: u64,
    clients: FxHashMap<ConnKey, ClientIndex>,
    /// Whether to commit on the loop's thread.
    pub inline_commits: InlineCommitPolicy,
    room: QueueRoom,
}

impl Stage {
    /// `records_max`: so many records of this loop may be queued.
    pub fn new(partition: Partition, open: CommitSeq, records_max: u64) -> Self {
        Self {
            index: PartitionIndex::of(partition.id()),
            partition,
            records: Records::new(),
            commits: Commits::new(open),
            mark: Offset(0),
            stalled: false,
            refusing: false,
            exactly_once: Vec::new(),
            receipts: Vec::new(),
            tells_offsets: false,
            full_since_ms: None,
            publishes: 0,
            clients: FxHashMap::default(),
            inline_commits: InlineCommitPolicy::default(),
            room: QueueRoom::new(records_max),
        }
    }

    /// Indexes into `records` are valid for this stamp; it changes with every append and is unique over all partitions.
    #[inline]
    pub fn stamp(&self) -> u64 {
        self.commits.open().0
    }

    fn commit(&self) -> Commit {
        Commit {
            partition: self.index,
            seq: self.commits.open(),
        }
    }

    /// Notes the record that the caller has just pushed to `records`; one without a connection is the broker's own.
    #[inline]
    pub fn note(&mut self, conn: Option<ConnKey>) -> Staged {
        if let Some(conn) = conn {
            self.publishes += 1;
            self.commits.wait(conn);
        }
        Staged {
            after: self.commit(),
            index: self.records.len() as u32 - 1,
        }
    }

    /// Whether a connection may stage one more record now.
    #[inline]
    pub fn admits(&mut self, conn: ConnKey) -> bool {
        !self.stalled && self.room.admits(conn, self.publishes, &self.partition)
    }

    /// Makes a connection wait until it may stage records again.
    pub fn wait_for_room(&mut self, conn: ConnKey) {
        self.room.wait(conn);
    }

    /// Whether connections that wait for room may go on.
    pub fn has_room_for_waiting(&self) -> bool {
        let room = &self.room;
        !self.stalled && room.has_room_for_waiting(self.publishes, &self.partition)
    }

    /// Takes the connections that have waited for room and may go on.
    pub fn take_waiting(&mut self) -> impl Iterator<Item = ConnKey> {
        let room = (!self.stalled).then_some(&mut self.room);
        let waiting = room.map(|room| room.take_waiting(self.publishes, &self.partition));
        waiting.into_iter().flatten()
    }

    /// The index of a connection's client id in `records`. Connections remember their last one; this table serves those
    /// that publish to several partitions in turn.
    pub fn client(&mut self, conn: ConnKey, client_id: &str) -> Result<ClientIndex, RecordsFull> {
        if let Some(index) = self.clients.get(&conn) {
            return Ok(*index);
        }
        let index = self.records.client(client_id)?;
        self.clients.insert(conn, index);
        Ok(index)
    }

    /// Appends the staged records to the log; `next` is the number of the append behind them, and `since` is when the
    /// turn began. `inline` allows the commit to happen on this thread. If the queue is full, the records stay staged,
    /// and no more may be staged until they are accepted.
    pub fn append(&mut self, inline: bool, next: CommitSeq, since: Instant) -> Option<Outcome> {
        if self.records.is_empty() {
            return None;
        }
        let records = std::mem::replace(&mut self.records, self.partition.take_records());
        let commit = self.commit();
        let result = match self.hand_over(records, inline) {
            Err(AppendError::QueueFull { records, .. }) => {
                self.records = *records;
                self.stalled = true;
                return None;
            }
            result => result,
        };
        self.clients.clear();
        self.note_refusing(result.as_ref().err());
        let publishes = std::mem::take(&mut self.publishes);
        let result = match result {
            Ok(offsets) => {
                let published = Published {
                    count: publishes,
                    since,
                    has_qos2: !self.exactly_once.is_empty(),
                };
                self.exactly_once.clear();
                self.receipts.clear();
                let base = offsets.start;
                self.room.note(&offsets, self.partition.written());
                let published = (publishes > 0).then_some(published);
                self.commits.accept(offsets, published, next);
                Ok(base)
            }
            Err(error) => Err(Box::new(Refused {
                conns: self.commits.refuse(next),
                publishes,
                exactly_once: std::mem::take(&mut self.exactly_once),
                receipts: std::mem::take(&mut self.receipts),
                error,
            })),
        };
        Some(Outcome {
            commit,
            result,
            was_stalled: std::mem::take(&mut self.stalled),
            tells_offsets: std::mem::take(&mut self.tells_offsets),
        })
    }

    fn note_refusing(&mut self, error: Option<&AppendError>) {
        let was_refusing = std::mem::replace(&mut self.refusing, error.is_some());
        match error {
            Some(error) if !was_refusing => tracing::warn!(%error, "publishes are refused"),
            None if was_refusing => tracing::info!(
                partition = self.partition.name(),
                "publishes are accepted again"
            ),
            _ => {}
        }
    }

    /// Only the log decides whether the queue has room, when it takes the records: other threads append as well.
    fn hand_over(&mut self, records: Records, inline: bool) -> Result<Range<Offset>, AppendError> {
        if !(inline && self.inline_commits.is_likely()) {
            self.inline_commits.note_left();
            return self.partition.append(records);
        }
        let began = Instant::now();
        let result = self.partition.append_inline(records);
        self.inline_commits.note(began.elapsed());
        result
    }

    /// Whether accepted records have waited for disk space for at least `limit_ms`. Called now and then.
    pub fn has_waited_on_full(&mut self, now_ms: u64, limit_ms: u64) -> bool {
        if !self.commits.waits() || self.partition.state() != PartitionState::Full {
            self.full_since_ms = None;
            return false;
        }
        let since_ms = *self.full_since_ms.get_or_insert(now_ms);
        now_ms.saturating_sub(since_ms) >= limit_ms
    }

    /// All connections that wait for this partition, when its disk is full. Their records may still be written, so
    /// these stay unsettled; their QoS 2 packet ids are acknowledged once the records are settled.
    pub fn release_waiting(&mut self) -> Vec<ConnKey> {
        self.full_since_ms = None;
        self.commits.release()
    }
}
