//! Reads from the files for sessions that are far behind: one read at a time, lowest offset first, and each read serves
//! all sessions that wait for it.
//!
//! The session whose turn it is makes the read, so that a read error is its own; the other sessions waiting for the
//! same batch find it in the cache. The bytes read in a turn are limited, so that the live stream does not wait.

use headwater_log::{Batch, Offset, ReadError, TopicFilter};

use crate::engine::clients::timers::Timer;
use crate::engine::ids::PartitionIndex;
use crate::engine::{Engine, SessionKey};

use super::candidate_cache::{self, Reader};
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
pub(in crate::engine) enum Next {
    /// These batches.
    Batches(Vec<Batch>),
    /// Nothing for it below this offset.
    Nothing(Offset),
    /// It waits for a scheduled read.
    Waits,
}

impl Engine {
    /// Grants reads from the files to waiting sessions. The first read of a turn is made whatever other work there was.
    pub(super) fn schedule_reads(&mut self, steps: &mut usize) {
        if !self.catch_up.batch_cache.has_waiting() {
            return;
        }
        self.catch_up.batch_cache.release_idle(self.env.now.mono_ms);
        while *steps > 0
            && (self.catch_up.runnable.len() < WOKEN_MAX
                || self.catch_up.batch_cache.is_overdue(self.env.now.mono_ms))
            && let Some(key) = self.catch_up.batch_cache.next(self.env.now.mono_ms)
        {
            self.run_awake(key, steps);
            self.catch_up.batch_cache.revoke_grant();
            if let Some((partition, offset)) = self.catch_up.batch_cache.lowest_waiting() {
                self.will_read(partition, offset);
            }
        }
        if self.catch_up.batch_cache.has_no_room() && !self.catch_up.batch_cache.watched {
            self.catch_up.batch_cache.watched = true;
            let due_ms = self.env.now.mono_ms + LOOK_AGAIN_MS;
            self.clients.timers.set(due_ms, Timer::ScheduleReads);
        }
    }

    /// Whether a session waits for a read and the cache has room for it.
    pub(in crate::engine) fn may_schedule_reads(&self) -> bool {
        self.catch_up.batch_cache.has_waiting() && !self.catch_up.batch_cache.has_no_room()
    }

    /// Moves a reader to the next batch that may concern it, and returns the batch from memory if possible, otherwise
    /// from the files if it is the session's turn.
    pub(super) fn read_for(
        &mut self,
        key: SessionKey,
        reading: &mut Reading,
        until: Offset,
        only: Option<&str>,
        steps: &mut usize,
    ) -> Result<Next, ReadError> {
        let range = self.find_candidates(key, reading, until, only, steps)?;
        if range.start >= until || range.is_empty() {
            return Ok(Next::Nothing(range.start.min(until)));
        }
        reading.next = range.start;
        let place = (reading.partition, reading.next);
        let log = &self.env.partitions[reading.partition.index()];
        if let Some(batches) = log.read_tail(reading.next, READ_BYTES) {
            return Ok(Next::Batches(batches));
        }
        if let Some(batch) = self
            .catch_up
            .batch_cache
            .batch_at(reading.partition, reading.next)
        {
            return Ok(Next::Batches(vec![batch]));
        }
        if !self.catch_up.batch_cache.take_grant(key) {
            self.catch_up.batch_cache.wait(key, place);
            return Ok(Next::Waits);
        }
        let batches = log.read_range(range, READ_BYTES)?;
        let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
        *steps = steps.saturating_sub(READ_STEPS + bytes / STEP_BYTES);
        self.catch_up.batch_cache.note_read(bytes);
        self.keep_batches(reading.partition, &batches);
        self.wake_waiting(reading.partition, &batches);
        if let Some(last) = batches.last() {
            self.will_read(reading.partition, last.next_offset());
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
        key: SessionKey,
        reading: &Reading,
        until: Offset,
        only: Option<&str>,
        steps: &mut usize,
    ) -> Result<std::ops::Range<Offset>, ReadError> {
        let nothing = reading.next..reading.next;
        let Some(session) = self.clients.session(key) else {
            return Ok(nothing);
        };
        let log = &self.env.partitions[reading.partition.index()];
        let reader = Reader::new(key, reading.partition, reading.source);
        let names = candidate_cache::names_of(session, only);
        let matching = |topic: &str| candidate_cache::reads(session, only, topic);
        let wanted = match &names {
            Some(names) => TopicFilter::Topics(names),
            None => TopicFilter::Matching(&matching),
        };
        let mut range = nothing;
        for _ in 0..LOOKS_MAX {
            if range.start >= until || *steps == 0 {
                break;
            }
            range =
                self.catch_up
                    .candidate_cache
                    .find(reader, (range.start, until), log, wanted)?;
            if !range.is_empty() {
                break;
            }
            *steps -= 1;
        }
        Ok(range)
    }

    /// Caches batches read from the files for the next sessions that need them.
    pub(in crate::engine) fn keep_batches(&mut self, partition: PartitionIndex, batches: &[Batch]) {
        let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
        self.observe.turn_metrics.catch_up_read_bytes += bytes as u64;
        self.clients.payload_holders.note_read(bytes);
        self.catch_up.batch_cache.keep(partition, batches);
    }

    fn wake_waiting(&mut self, partition: PartitionIndex, batches: &[Batch]) {
        for batch in batches {
            let (from, until) = (batch.base_offset(), batch.next_offset());
            for session in self
                .catch_up
                .batch_cache
                .take_waiting(partition, from, until)
            {
                self.wake_session(session);
            }
        }
    }

    /// Forgets the cached state of a session that has caught up or is gone.
    pub(super) fn end_catch_up_reads(&mut self, key: SessionKey) {
        self.catch_up.batch_cache.resume(key);
        self.catch_up.candidate_cache.forget(key);
    }
}
