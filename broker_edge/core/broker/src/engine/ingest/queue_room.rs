//! Which publishes may join the queue of a partition.
//!
//! The log bounds the bytes of that queue, but a queue of small records is long in time: hundreds of thousands of them
//! fit, and whoever publishes one record waits for all of them. So the loop also bounds the records that it has queued.
//! Beyond that bound a connection may still have a small share, so one that publishes little never waits for those that
//! publish as fast as they can. Other appends to the partition (Flight) are few and large, and only their bytes count.

use std::collections::VecDeque;
use std::ops::Range;

use headwater_log::{Offset, Partition, PartitionState};
use rustc_hash::FxHashMap;

use crate::engine::ConnKey;

/// Records that a connection may have staged beyond the bound, from one round to the next.
pub const SHARE_RECORDS: u32 = 16;
/// One connection more is resumed for so much room: it may use all of that in one read.
const RESUME_RECORDS: u64 = 2048;
/// Connections are resumed when there is at least this part of the room: each go costs something.
const RESUME_PART: u64 = 16;

/// The room for records in the queue of one partition.
#[derive(Debug)]
pub struct QueueRoom {
    /// Records of this loop that may be queued.
    records_max: u64,
    /// The ends of this loop's appends that are not written yet, with the number of their records.
    appended: VecDeque<(Offset, u64)>,
    /// The records of all of them.
    queued: u64,
    /// What connections have staged beyond the bound in this round.
    shares: FxHashMap<ConnKey, u32>,
    /// The round ends when the records below this offset are written; `None` stands for the end of the next append.
    round_end: Option<Offset>,
    /// Connections that wait for room, in order. Some may be closed by now.
    waiting: VecDeque<ConnKey>,
}

impl QueueRoom {
    pub fn new(records_max: u64) -> Self {
        Self {
            records_max,
            appended: VecDeque::new(),
            queued: 0,
            shares: FxHashMap::default(),
            round_end: None,
            waiting: VecDeque::new(),
        }
    }

    /// Notes an append of this loop, and what is written.
    pub fn note(&mut self, appended: &Range<Offset>, written: Offset) {
        self.forget_below(written);
        let (end, records) = (appended.end, appended.end.0 - appended.start.0);
        self.appended.push_back((end, records));
        self.queued += records;
        self.round_end.get_or_insert(end);
    }

    /// Whether a connection may stage one more record beside the `staged` ones.
    #[inline]
    pub fn admits(&mut self, conn: ConnKey, staged: u64, partition: &Partition) -> bool {
        self.queued + staged < self.records_max || self.admits_beyond(conn, staged, partition)
    }

    #[cold]
    fn admits_beyond(&mut self, conn: ConnKey, staged: u64, partition: &Partition) -> bool {
        let written = partition.written();
        self.forget_below(written);
        if self.room(0, staged, partition) > 0 {
            return true;
        }
        if self.round_end.is_some_and(|end| end <= written) {
            self.shares.clear();
            self.round_end = self.appended.back().map(|(end, _)| *end);
        }
        let share = self.shares.entry(conn).or_default();
        *share += 1;
        *share <= SHARE_RECORDS
    }

    /// Makes a connection wait for room.
    pub fn wait(&mut self, conn: ConnKey) {
        self.waiting.push_back(conn);
    }

    /// Whether connections that wait may go on.
    pub fn has_room_for_waiting(&self, staged: u64, partition: &Partition) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let written = self.written_below(partition.written());
        let written: u64 = written.map(|(_, records)| records).sum();
        self.room(written, staged, partition) > self.records_max / RESUME_PART
    }

    /// Takes those that may go on: the ones that have waited longest.
    pub fn take_waiting(
        &mut self,
        staged: u64,
        partition: &Partition,
    ) -> impl Iterator<Item = ConnKey> {
        let mut count = 0;
        if !self.waiting.is_empty() {
            self.forget_below(partition.written());
            let room = self.room(0, staged, partition);
            if room > self.records_max / RESUME_PART {
                count = usize::try_from(room.div_ceil(RESUME_RECORDS)).unwrap_or(usize::MAX);
            }
        }
        self.waiting.drain(..count.min(self.waiting.len()))
    }

    fn written_below(&self, written: Offset) -> impl Iterator<Item = &(Offset, u64)> {
        let appended = self.appended.iter();
        appended.take_while(move |(end, _)| *end <= written)
    }

    fn forget_below(&mut self, written: Offset) {
        let count = self.written_below(written).count();
        for (_, records) in self.appended.drain(..count) {
            self.queued -= records;
        }
    }

    /// How many more records may be queued, if so many of those that are were written.
    fn room(&self, written: u64, staged: u64, partition: &Partition) -> u64 {
        // Otherwise nothing is written until then, and the log refuses what is appended.
        if partition.state() != PartitionState::Running {
            return self.records_max;
        }
        let max = self.records_max.saturating_add(written);
        max.saturating_sub(self.queued + staged)
    }
}
