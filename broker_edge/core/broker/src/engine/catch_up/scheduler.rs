//! Reads from the files for readers that are far behind: one read at a time, lowest offset first, and each read serves
//! all sessions and groups that wait for it.
//!
//! The reader whose turn it is makes the read, so that a read error is its own; the others waiting for the same batch
//! find it in the cache. The bytes read in a turn are limited, so that the live stream does not wait.

use std::cell::Cell;

use headwater_log::{Batch, Offset, ReadError, TopicFilter};

use crate::engine::clients::Clients;
use crate::engine::clients::timers::Timer;
use crate::engine::ids::{PartitionIndex, Waiter};
use crate::engine::observe::Count;
use crate::engine::shared_groups::Groups;

use super::CatchingUp;
use super::candidate_cache::{MATCHED_BYTES_MAX, ReaderId, Wanted};
use super::readers::{READ_BYTES, READ_STEPS, Reading, STEP_BYTES};

/// With this many sessions that have something to send, nothing more is read: a read would evict what they need.
const WOKEN_MAX: usize = 64;
/// When to check again while the cache is in full use.
const LOOK_AGAIN_MS: u64 = 100;
/// Read-ahead requested from the disk while the loop does other work: a read that waits for the disk blocks all
/// clients.
const READ_AHEAD_BYTES: u64 = 2 << 20;
/// Index lookups that one reader makes at a time.
const LOOKS_MAX: usize = 8;

/// What a reader continues with.
pub(super) enum Next {
    /// These batches.
    Batches(Vec<Batch>),
    /// Nothing for it below this offset.
    Nothing(Offset),
    /// It waits for a scheduled read.
    Waits,
}

impl CatchingUp<'_> {
    /// Grants reads from the files to those that wait. The first read of a turn is made whatever other work there was.
    pub(super) fn schedule_reads(&mut self, steps: &mut usize) {
        if !self.catch_up.batch_cache.has_waiting() {
            return;
        }
        self.catch_up.batch_cache.release_idle(self.env.now.mono_ms);
        while *steps > 0
            && (self.catch_up.runnable.len() < WOKEN_MAX
                || self.catch_up.batch_cache.is_overdue(self.env.now.mono_ms))
            && let Some(waiter) = self.catch_up.batch_cache.next(self.env.now.mono_ms)
        {
            match waiter {
                Waiter::Session(key) => self.run_awake(key, steps),
                Waiter::Group(id) => self.run_group_awake(id, steps),
            }
            self.catch_up.batch_cache.revoke_grant();
            if let Some((partition, offset)) = self.catch_up.batch_cache.lowest_waiting() {
                self.will_read(partition, offset);
            }
        }
        if self.catch_up.batch_cache.has_no_room() && !self.catch_up.batch_cache.watched {
            self.catch_up.batch_cache.watched = true;
            let due_ms = self.env.now.mono_ms + LOOK_AGAIN_MS;
            self.clients.set_timer(due_ms, Timer::ScheduleReads);
        }
    }

    /// Moves a reader to the next batch that may concern it, and returns the batch from memory if possible, otherwise
    /// from the files if it is the reader's turn.
    pub(super) fn read_for(
        &mut self,
        reading: &mut Reading,
        until: Offset,
        steps: &mut usize,
    ) -> Result<Next, ReadError> {
        let range = self.find_candidates(reading, until, steps)?;
        if range.start >= until || range.is_empty() {
            return Ok(Next::Nothing(range.start.min(until)));
        }
        let from = range.start;
        reading.cursor.next = from;
        let ReaderId {
            waiter, partition, ..
        } = reading.id;
        let log = &self.env.partitions[partition.index()];
        if let Some(batches) = log.read_tail(from, READ_BYTES) {
            return Ok(Next::Batches(batches));
        }
        let cache = &mut self.catch_up.batch_cache;
        if let Some(batch) = cache.batch_at(partition, from) {
            return Ok(Next::Batches(vec![batch]));
        }
        if !cache.take_grant(waiter) {
            cache.wait(waiter, (partition, from));
            return Ok(Next::Waits);
        }
        let batches = log.read_range(range, READ_BYTES)?;
        let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
        *steps = steps.saturating_sub(READ_STEPS + bytes / STEP_BYTES);
        self.observe.count(Count::CatchUpReadBytes, bytes as u64);
        self.clients.note_read(bytes);
        cache.note_read(bytes);
        cache.keep(partition, &batches);
        self.wake_waiting(partition, &batches);
        if let Some(last) = batches.last() {
            self.will_read(partition, last.next_offset());
        }
        Ok(Next::Batches(batches))
    }

    fn will_read(&self, partition: PartitionIndex, from: Offset) {
        let log = &self.env.partitions[partition.index()];
        log.will_read(from, READ_AHEAD_BYTES);
    }

    /// The next range of offsets that may concern a reader.
    fn find_candidates(
        &mut self,
        reading: &Reading,
        until: Offset,
        steps: &mut usize,
    ) -> Result<std::ops::Range<Offset>, ReadError> {
        let mut range = reading.cursor.next..reading.cursor.next;
        let Some(wanted) = wanted_by(self.clients, self.groups, reading.id) else {
            return Ok(range);
        };
        let log = &self.env.partitions[reading.id.partition.index()];
        let names = wanted.names();
        let left = Cell::new(MATCHED_BYTES_MAX);
        let matching = |topic: &str| wanted.may_have(topic, &left);
        let topics = match &names {
            Some(names) => TopicFilter::Topics(names),
            None => TopicFilter::Matching(&matching),
        };
        for _ in 0..LOOKS_MAX {
            if range.start >= until || *steps == 0 {
                break;
            }
            let cache = &mut self.catch_up.candidate_cache;
            range = cache.find(reading.id, (range.start, until), log, topics)?;
            if !range.is_empty() {
                break;
            }
            *steps -= 1;
        }
        Ok(range)
    }

    fn wake_waiting(&mut self, partition: PartitionIndex, batches: &[Batch]) {
        for batch in batches {
            let (from, until) = (batch.base_offset(), batch.next_offset());
            let cache = &mut self.catch_up.batch_cache;
            for waiter in cache.take_waiting(partition, from, until) {
                self.wake(waiter);
            }
        }
    }

    pub(super) fn wake(&mut self, waiter: Waiter) {
        self.catch_up.wake(waiter, self.clients, self.groups);
    }
}

/// The topics of a reader; `None` if it is gone.
fn wanted_by<'a>(clients: &'a Clients, groups: &'a Groups, id: ReaderId) -> Option<Wanted<'a>> {
    match id.waiter {
        Waiter::Group(id) => Some(Wanted::Filter(groups.get(id)?.filter())),
        Waiter::Session(key) => Wanted::of(clients.session(key)?, id.replay),
    }
}
