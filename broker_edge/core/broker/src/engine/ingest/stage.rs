//! Moves records from a turn into the log, one stage per partition.
//!
//! A record gets a *ticket* when it is staged and an offset when its append is accepted. The stage remembers which
//! tickets got which offsets until they are below the high watermark, and which connections wait for them. It sends no
//! acknowledgements; it reports which connections may send theirs.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use headwater_log::{
    AppendError, ClientIndex, Offset, Partition, PartitionState, Records, RecordsFull,
};
use rustc_hash::FxHashMap;

use crate::engine::ids::Ticket;
use crate::engine::{ConnKey, SessionKey};

use super::inline_commit_policy::InlineCommitPolicy;

/// An accepted append whose records are not durable yet.
#[derive(Debug)]
struct Appended {
    tickets: Range<u64>,
    base: Offset,
    end: Offset,
    /// Some of them are QoS 2 publishes.
    has_qos2: bool,
    conns: Vec<ConnKey>,
}

/// The result of an append.
#[derive(Debug)]
pub enum Outcome {
    Nothing,
    Accepted {
        first: Ticket,
        base: Offset,
    },
    /// The queue is full: the records stay staged, and no more may be staged until they are accepted.
    Stalled,
    /// The records from this ticket on will never be in the log.
    Refused {
        first: Ticket,
        conns: Vec<ConnKey>,
        /// How many of the records were publishes of clients.
        publishes: u64,
        /// The QoS 2 publishes among them.
        exactly_once: Vec<(SessionKey, u16)>,
        error: AppendError,
    },
}

pub struct Stage {
    pub partition: Partition,
    pub records: Records,
    /// Indexes into `records` are valid for this stamp; it changes with every append and is unique over all partitions.
    pub stamp: u64,
    /// The staged records could not be appended yet.
    pub stalled: bool,
    /// The last append was refused; this is logged once, not in every turn.
    pub refusing: bool,
    /// The partition's records could not be read: the live stream waits until then.
    pub pull_after_ms: u64,
    /// Sessions and packet ids of the QoS 2 publishes in `records`.
    pub exactly_once: Vec<(SessionKey, u16)>,
    /// The partition's size at the last mark of the packet ids in use.
    pub marked_bytes: u64,
    /// When accepted records began to wait for disk space.
    full_since_ms: Option<u64>,
    first: u64,
    next: u64,
    settled: u64,
    appended: VecDeque<Appended>,
    /// Connections with records in `records`; one may be there more than once.
    conns: Vec<ConnKey>,
    /// How many of `records` are publishes of clients.
    publishes: u64,
    clients: FxHashMap<ConnKey, ClientIndex>,
    /// Whether to commit on the loop's thread.
    pub inline_commits: InlineCommitPolicy,
}

impl Stage {
    pub fn new(partition: Partition, stamp: u64) -> Self {
        Self {
            partition,
            records: Records::new(),
            stamp,
            stalled: false,
            refusing: false,
            pull_after_ms: 0,
            exactly_once: Vec::new(),
            marked_bytes: 0,
            full_since_ms: None,
            first: 0,
            next: 0,
            settled: 0,
            appended: VecDeque::new(),
            conns: Vec::new(),
            publishes: 0,
            clients: FxHashMap::default(),
            inline_commits: InlineCommitPolicy::default(),
        }
    }

    /// The ticket of the next record.
    pub fn next_ticket(&self) -> Ticket {
        Ticket(self.next)
    }

    /// Issues the ticket of the record that the caller has just pushed to `records`.
    #[inline]
    pub fn ticket(&mut self, conn: Option<ConnKey>) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        if let Some(conn) = conn {
            self.publishes += 1;
            if self.conns.last() != Some(&conn) {
                self.conns.push(conn);
            }
        }
        ticket
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

    /// Connections that staged records since the last append.
    pub fn publishers(&self) -> &[ConnKey] {
        &self.conns
    }

    /// Connections of the newest accepted append.
    pub fn last_publishers(&self) -> &[ConnKey] {
        self.appended.back().map_or(&[], |appended| &appended.conns)
    }

    /// Everything below this ticket is durable, or was refused.
    #[inline]
    pub fn settled(&self) -> Ticket {
        Ticket(self.settled)
    }

    /// Whether [`Stage::settle`] would settle anything.
    pub fn is_settleable(&self, mark: Offset) -> bool {
        self.appended.front().is_some_and(|front| front.end <= mark)
    }

    /// Whether the next records to settle include QoS 2 publishes.
    pub fn settles_qos2(&self) -> bool {
        self.appended.front().is_some_and(|front| front.has_qos2)
    }

    /// Whether accepted records wait for the high watermark.
    pub fn waits(&self) -> bool {
        !self.appended.is_empty()
    }

    /// Appends the staged records to the log. `inline` allows the commit to happen on this thread.
    pub fn append(&mut self, inline: bool, stamp: u64) -> Outcome {
        if self.records.is_empty() {
            return Outcome::Nothing;
        }
        let records = std::mem::replace(&mut self.records, self.partition.take_records());
        let first = Ticket(self.first);
        match self.hand_over(records, inline) {
            Ok(offsets) => {
                self.stamp = stamp;
                self.clients.clear();
                self.stalled = false;
                let has_qos2 = !self.exactly_once.is_empty();
                self.exactly_once.clear();
                self.publishes = 0;
                self.appended.push_back(Appended {
                    has_qos2,
                    tickets: self.first..self.next,
                    base: offsets.start,
                    end: offsets.end,
                    conns: std::mem::take(&mut self.conns),
                });
                self.first = self.next;
                Outcome::Accepted {
                    first,
                    base: offsets.start,
                }
            }
            Err(AppendError::QueueFull { records, .. }) => {
                self.records = *records;
                self.stalled = true;
                Outcome::Stalled
            }
            Err(error) => {
                self.stamp = stamp;
                self.clients.clear();
                self.stalled = false;
                self.first = self.next;
                let conns = std::mem::take(&mut self.conns);
                self.settle_refused();
                Outcome::Refused {
                    first,
                    conns,
                    publishes: std::mem::take(&mut self.publishes),
                    exactly_once: std::mem::take(&mut self.exactly_once),
                    error,
                }
            }
        }
    }

    /// Makes a connection wait for a ticket issued to another one.
    pub fn watch(&mut self, ticket: Ticket, conn: ConnKey) {
        if ticket.0 >= self.first {
            self.conns.push(conn);
        } else if let Some(last) = self.appended.back_mut() {
            last.conns.push(conn);
        }
    }

    /// Every ticket with an offset below this one is settled; `mark` is the log's own mark.
    pub fn settled_below(&self, mark: Offset) -> Offset {
        let first = self.appended.front().map(|appended| appended.base);
        first.map_or(mark, |base| base.min(mark))
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

    /// Refused tickets count as settled, after those that still wait.
    fn settle_refused(&mut self) {
        match self.appended.back_mut() {
            Some(last) => last.tickets.end = self.next,
            None => self.settled = self.next,
        }
    }

    /// Settles the records below `mark` and adds the connections that waited for them to `waiting`. Returns whether
    /// there were any.
    pub fn settle(&mut self, mark: Offset, waiting: &mut Vec<ConnKey>) -> bool {
        let before = self.settled;
        while let Some(front) = self.appended.front()
            && front.end <= mark
        {
            self.settled = front.tickets.end;
            waiting.extend_from_slice(&front.conns);
            self.appended.pop_front();
        }
        self.settled > before
    }

    /// Whether accepted records have waited for disk space for at least `limit_ms`. Called now and then.
    pub fn has_waited_on_full(&mut self, now_ms: u64, limit_ms: u64) -> bool {
        if !self.waits() || self.partition.state() != PartitionState::Full {
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
        let mut conns = std::mem::take(&mut self.conns);
        for appended in &mut self.appended {
            conns.append(&mut appended.conns);
        }
        conns
    }

    /// All connections that wait for this partition, when it has stopped for good.
    pub fn abandon(&mut self) -> Vec<ConnKey> {
        let mut conns = std::mem::take(&mut self.conns);
        for appended in self.appended.drain(..) {
            conns.extend(appended.conns);
        }
        conns
    }
}
