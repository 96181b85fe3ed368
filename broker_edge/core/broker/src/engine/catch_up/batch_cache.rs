//! Batches read from the files for sessions and groups that are far behind, and those that wait to read (`scheduler`
//! does the reads). What is said of sessions here holds for groups.
//!
//! A window takes a small part of a batch, so a session needs the same batch again with each acknowledgement, and many
//! sessions that come back together need the same batches. Therefore the cache keeps the batches above the lowest
//! offset at which a session stands, and the lowest waiting session reads first. When the cache is full, sessions ahead
//! wait until the lowest have caught up with them, so that all meet at the same offset and share every read. Sessions
//! ahead do not wait for ever: some reads rotate through the log whatever the cache holds, as many as time and the
//! bytes sent allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use headwater_log::{Batch, Offset};
use rustc_hash::FxHashMap;

use crate::engine::SessionKey;
use crate::engine::ids::{PartitionIndex, PartitionOffset, Waiter};

/// Limit on the cached batches, for all sessions together.
const KEPT_BYTES: usize = 32 << 20;
/// A session that has not read on for this long, because its client acknowledges nothing, no longer keeps a batch in
/// the cache. The time adapts to the clients, within these bounds, and starts at `IDLE_MS`.
const IDLE_MS_MIN: u64 = 50;
const IDLE_MS_MAX: u64 = 2_000;
const IDLE_MS: u64 = 200;
/// One read in this many rotates; the others are for the lowest session.
const ROUND_EVERY: u32 = 4;
/// Reads allowed while the cache is full: this many bytes per millisecond, and this many for each byte sent.
const SPARE_BYTES_PER_MS: u64 = 8 << 10;
const SPARE_BYTES_PER_SENT: u64 = 2;
const SPARE_BYTES_MAX: u64 = 8 << 20;
/// Some session reads at least this often, however much other work there is.
const OVERDUE_MS: u64 = 100;

/// A session or group, and the offset at which it wants to continue.
type WaitingRead = (PartitionIndex, Offset, Waiter);

/// The waiter that sorts first.
fn least() -> Waiter {
    Waiter::Session(SessionKey::from_bits(0))
}

#[derive(Debug)]
struct CachedBatch {
    batch: Batch,
    /// Number of sessions that stand in this batch.
    holders: u32,
}

/// A session that stands in a cached batch because it had no room for the next record.
#[derive(Debug, Clone, Copy)]
struct StalledReader {
    batch: PartitionOffset,
    at_ms: u64,
    /// The session keeps the batch in the cache.
    holds: bool,
}

#[derive(Debug)]
pub struct BatchCache {
    kept: BTreeMap<PartitionOffset, CachedBatch>,
    /// Oldest first; may still name batches that were evicted.
    ages: VecDeque<PartitionOffset>,
    bytes: usize,
    /// Batches in which a session stands.
    held: BTreeSet<PartitionOffset>,
    stalled: FxHashMap<Waiter, StalledReader>,
    /// When to check whether a session still stands where it stopped.
    stalled_due: VecDeque<(u64, Waiter)>,
    idle_ms: u64,
    waiting: BTreeSet<WaitingRead>,
    /// The position of the last rotating read.
    rotation: PartitionOffset,
    reads: u32,
    /// Bytes that may be read although the cache is full, as of `spare_at_ms`.
    spare_bytes: u64,
    spare_at_ms: u64,
    /// The session that may read now.
    granted: Option<Waiter>,
    /// When a session was last granted a read.
    granted_at_ms: u64,
    /// Whether a timer is set to check again.
    pub watched: bool,
}

impl Default for BatchCache {
    fn default() -> Self {
        Self {
            kept: BTreeMap::new(),
            ages: VecDeque::new(),
            bytes: 0,
            held: BTreeSet::new(),
            stalled: FxHashMap::default(),
            stalled_due: VecDeque::new(),
            idle_ms: IDLE_MS,
            waiting: BTreeSet::new(),
            rotation: PartitionOffset::default(),
            reads: 0,
            spare_bytes: 0,
            spare_at_ms: 0,
            granted: None,
            granted_at_ms: 0,
            watched: false,
        }
    }
}

impl BatchCache {
    /// The cached batch that holds an offset.
    pub fn batch_at(&self, partition: PartitionIndex, offset: Offset) -> Option<Batch> {
        let (_, kept) = self.kept_at(partition, offset)?;
        Some(kept.batch.clone())
    }

    fn kept_at(
        &self,
        partition: PartitionIndex,
        offset: Offset,
    ) -> Option<(PartitionOffset, &CachedBatch)> {
        let mut below = self.kept.range(..=(partition, offset));
        let (at, kept) = below.next_back()?;
        (at.0 == partition && offset < kept.batch.next_offset()).then_some((*at, kept))
    }

    /// Caches what was read. Evicts batches below all sessions first, then the ones read longest ago.
    pub fn keep(&mut self, partition: PartitionIndex, batches: &[Batch]) {
        for batch in batches {
            let at = (partition, batch.base_offset());
            if self.kept.contains_key(&at) {
                continue;
            }
            self.bytes += batch.bytes_len();
            self.ages.push_back(at);
            let batch = batch.clone();
            self.kept.insert(at, CachedBatch { batch, holders: 0 });
        }
        let newest = batches.last().map(Batch::base_offset);
        while self.bytes > KEPT_BYTES
            && let Some(lowest) = self.below_all().filter(|at| Some(at.1) != newest)
        {
            self.forget(lowest);
        }
        for _ in 0..self.ages.len() {
            if self.bytes <= KEPT_BYTES {
                break;
            }
            let Some(oldest) = self.ages.pop_front() else {
                break;
            };
            if self.held.contains(&oldest) {
                self.ages.push_back(oldest);
            } else {
                self.forget(oldest);
            }
        }
        // If more is held than fits, some session has to read again.
        while self.bytes > KEPT_BYTES
            && self.kept.len() > 1
            && let Some(oldest) = self.ages.pop_front()
        {
            self.forget(oldest);
        }
        if self.ages.len() > 2 * self.kept.len() + 64 {
            let kept = &self.kept;
            self.ages.retain(|at| kept.contains_key(at));
        }
    }

    fn forget(&mut self, at: PartitionOffset) {
        self.held.remove(&at);
        if let Some(kept) = self.kept.remove(&at) {
            self.bytes -= kept.batch.bytes_len();
        }
    }

    /// The lowest cached batch, if all sessions stand above it.
    fn below_all(&self) -> Option<PartitionOffset> {
        let lowest = *self.kept.first_key_value()?.0;
        self.held
            .first()
            .is_none_or(|floor| lowest < *floor)
            .then_some(lowest)
    }

    /// A session has no room and stops in the batch that holds `offset`.
    pub fn stop(&mut self, waiter: Waiter, (partition, offset): PartitionOffset, now_ms: u64) {
        let Some((batch, _)) = self.kept_at(partition, offset) else {
            return self.resume(waiter);
        };
        let at_ms = now_ms;
        if let Some(stop) = self.stalled.get_mut(&waiter)
            && stop.batch == batch
            && stop.holds
        {
            let took_ms = at_ms.saturating_sub(std::mem::replace(&mut stop.at_ms, at_ms));
            return self.learn(took_ms);
        }
        self.resume_at(waiter, now_ms);
        if let Some(kept) = self.kept.get_mut(&batch) {
            kept.holders += 1;
            self.held.insert(batch);
            let holds = true;
            self.stalled.insert(
                waiter,
                StalledReader {
                    batch,
                    at_ms,
                    holds,
                },
            );
            self.stalled_due.push_back((now_ms + self.idle_ms, waiter));
        }
    }

    #[cfg(test)]
    pub fn stands(&self, waiter: Waiter) -> bool {
        self.stalled.contains_key(&waiter) || self.granted == Some(waiter)
    }

    /// A session continues from where it stopped.
    pub fn resume_at(&mut self, waiter: Waiter, now_ms: u64) {
        if let Some(stop) = self.stalled.get(&waiter) {
            self.learn(now_ms.saturating_sub(stop.at_ms));
            self.resume(waiter);
        }
    }

    /// A session no longer stands where it stopped.
    pub fn resume(&mut self, waiter: Waiter) {
        if let Some(stop) = self.stalled.remove(&waiter)
            && stop.holds
        {
            self.release(stop.batch);
        }
    }

    fn release(&mut self, batch: PartitionOffset) {
        if let Some(kept) = self.kept.get_mut(&batch) {
            // The batch may have been evicted and read again since.
            kept.holders = kept.holders.saturating_sub(1);
            if kept.holders == 0 {
                self.held.remove(&batch);
            }
        }
    }

    /// Adapts to the time a client took to make room: quickly up, slowly down.
    fn learn(&mut self, took_ms: u64) {
        let wanted = (2 * took_ms).clamp(IDLE_MS_MIN, IDLE_MS_MAX);
        if wanted > self.idle_ms {
            self.idle_ms += (wanted - self.idle_ms).div_ceil(4);
        } else {
            self.idle_ms -= (self.idle_ms - wanted) / 256;
        }
    }

    /// Sessions whose clients have acknowledged nothing for a while release their batches.
    pub fn release_idle(&mut self, now_ms: u64) {
        while let Some((due_ms, waiter)) = self.stalled_due.front().copied()
            && due_ms <= now_ms
        {
            self.stalled_due.pop_front();
            let idle_ms = self.idle_ms;
            let Some(stop) = self.stalled.get_mut(&waiter).filter(|stop| stop.holds) else {
                continue;
            };
            if stop.at_ms + idle_ms > now_ms {
                self.stalled_due.push_back((stop.at_ms + idle_ms, waiter));
                continue;
            }
            stop.holds = false;
            let batch = stop.batch;
            self.release(batch);
            // Many clients that never acknowledge must not delay the others for long.
            self.idle_ms = IDLE_MS_MIN.max(self.idle_ms - self.idle_ms / 64);
        }
    }

    /// A session wants to continue at an offset and waits for a read there.
    pub fn wait(&mut self, waiter: Waiter, (partition, offset): PartitionOffset) {
        self.waiting.insert((partition, offset, waiter));
    }

    /// The next session that may read.
    pub fn next(&mut self, now_ms: u64) -> Option<Waiter> {
        let passed_ms = now_ms.saturating_sub(std::mem::replace(&mut self.spare_at_ms, now_ms));
        self.add_spare(passed_ms.saturating_mul(SPARE_BYTES_PER_MS));
        if self.has_no_room() {
            return None;
        }
        let (partition, offset) = self.rotation;
        let from = (partition, offset, least());
        let waiting = &self.waiting;
        let lowest = *waiting.first()?;
        let goes_round = self.reads % ROUND_EVERY == ROUND_EVERY - 1 || self.is_full();
        let next = if goes_round {
            let next = waiting.range(from..).next().copied().unwrap_or(lowest);
            self.rotation = (next.0, next.1.plus(1));
            next
        } else {
            lowest
        };
        self.reads = self.reads.wrapping_add(1);
        self.waiting.remove(&next);
        self.granted = Some(next.2);
        self.granted_at_ms = now_ms;
        Some(next.2)
    }

    /// The lowest offset that a waiting session wants.
    pub fn lowest_waiting(&self) -> Option<PartitionOffset> {
        let (partition, offset, _) = self.waiting.first()?;
        Some((*partition, *offset))
    }

    /// Counts bytes read from the files.
    pub fn note_read(&mut self, bytes: usize) {
        if self.is_full() {
            self.spare_bytes = self.spare_bytes.saturating_sub(bytes as u64);
        }
    }

    /// Counts bytes sent.
    pub fn note_sent(&mut self, bytes: u64) {
        self.add_spare(bytes.saturating_mul(SPARE_BYTES_PER_SENT));
    }

    fn add_spare(&mut self, bytes: u64) {
        self.spare_bytes = SPARE_BYTES_MAX.min(self.spare_bytes.saturating_add(bytes));
    }

    /// Another read would evict a batch that a session still needs.
    fn is_full(&self) -> bool {
        self.bytes > KEPT_BYTES / 4 * 3 && !self.held.is_empty() && self.below_all().is_none()
    }

    /// Whether the session may read from the files now. The grant is used up.
    pub fn take_grant(&mut self, waiter: Waiter) -> bool {
        self.granted.take_if(|granted| *granted == waiter).is_some()
    }

    pub fn revoke_grant(&mut self) {
        self.granted = None;
    }

    /// Removes and returns the sessions that wait for an offset between two offsets.
    pub fn take_waiting(
        &mut self,
        partition: PartitionIndex,
        from: Offset,
        until: Offset,
    ) -> Vec<Waiter> {
        let range = (partition, from, least())..(partition, until, least());
        let found: Vec<WaitingRead> = self.waiting.range(range).copied().collect();
        for who in &found {
            self.waiting.remove(who);
        }
        found.into_iter().map(|(_, _, waiter)| waiter).collect()
    }

    /// No session has read for a while, so one must, however much other work there is.
    pub fn is_overdue(&self, now_ms: u64) -> bool {
        self.granted_at_ms + OVERDUE_MS <= now_ms
    }

    /// The cache is in full use, and no spare reads are allowed now.
    pub fn has_no_room(&self) -> bool {
        self.is_full() && self.spare_bytes == 0
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
#[path = "batch_cache_tests.rs"]
mod tests;
