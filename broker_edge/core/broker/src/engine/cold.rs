//! Reads of sessions that are far behind: what was read last is kept for who stands near, and only so many read at a time.
//!
//! A window takes a small part of a batch, so a session reads the same batch again with each acknowledgement, and many
//! that come back together would push each other out of any memory. Therefore as many sessions read from the files at a
//! time as have room here; the others wait, and go on in the order of their places, so that neighbours share what is read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use headwater_log::{Batch, Offset};

use super::catch_up::{READ_BYTES, Reading};
use super::stage::PartitionIndex;
use super::{Engine, SessionKey};

/// Batches that are kept, all sessions together.
const KEPT_BYTES: usize = 32 << 20;
/// A session that has not read for so long, because its client acknowledges nothing, lets another read.
const IDLE_MS: u64 = 100;
/// Even the largest batches leave room for so many.
const READERS_MIN: usize = 4;

type Place = (PartitionIndex, Offset);

#[derive(Debug, Clone, Copy)]
struct Reader {
    session: SessionKey,
    read_at_ms: u64,
}

#[derive(Default)]
pub struct ColdReads {
    kept: BTreeMap<Place, Batch>,
    /// In order of age; a batch that was replaced is there twice.
    ages: VecDeque<Place>,
    bytes: usize,
    /// Of the last read.
    read_bytes: usize,
    readers: Vec<Reader>,
    waiting: BTreeSet<(PartitionIndex, Offset, SessionKey)>,
    /// Where the last of those that waited went on.
    last: Place,
}

impl ColdReads {
    /// The kept batch that holds an offset.
    pub fn batch_at(&self, partition: PartitionIndex, offset: Offset) -> Option<Batch> {
        let mut below = self.kept.range(..=(partition, offset));
        let ((of, _), batch) = below.next_back()?;
        (*of == partition && offset < batch.next_offset()).then(|| batch.clone())
    }

    /// Keeps what was read, and forgets what was read longest ago.
    pub fn keep(&mut self, partition: PartitionIndex, batches: &[Batch]) {
        self.read_bytes = batches.iter().map(Batch::bytes_len).sum();
        for batch in batches {
            let place = (partition, batch.base_offset());
            self.bytes += batch.bytes_len();
            if let Some(old) = self.kept.insert(place, batch.clone()) {
                self.bytes -= old.bytes_len();
            } else {
                self.ages.push_back(place);
            }
        }
        while self.bytes > KEPT_BYTES
            && self.kept.len() > 1
            && let Some(oldest) = self.ages.pop_front()
        {
            if let Some(batch) = self.kept.remove(&oldest) {
                self.bytes -= batch.bytes_len();
            }
        }
    }

    fn readers_max(&self) -> usize {
        (KEPT_BYTES / 2 / self.read_bytes.max(READ_BYTES)).max(READERS_MIN)
    }

    /// Whether a session may read from the files now; else it waits for its turn.
    fn admit(&mut self, session: SessionKey, reading: &Reading, now_ms: u64) -> bool {
        let mut readers = self.readers.iter_mut();
        if let Some(reader) = readers.find(|reader| reader.session == session) {
            reader.read_at_ms = now_ms;
            return true;
        }
        if self.readers.len() < self.readers_max() {
            let read_at_ms = now_ms;
            self.readers.push(Reader {
                session,
                read_at_ms,
            });
            return true;
        }
        self.waiting
            .insert((reading.partition, reading.next, session));
        false
    }

    fn note(&mut self, session: SessionKey, now_ms: u64) {
        let mut readers = self.readers.iter_mut();
        if let Some(reader) = readers.find(|reader| reader.session == session) {
            reader.read_at_ms = now_ms;
        }
    }

    /// A session has caught up, or is gone.
    pub fn release(&mut self, session: SessionKey) {
        self.readers.retain(|reader| reader.session != session);
    }

    /// The next that waits, in the order of places.
    fn next(&mut self) -> Option<SessionKey> {
        let (partition, offset) = self.last;
        let from = (partition, offset, SessionKey::from_bits(0));
        let next = self.waiting.range(from..).next().copied();
        let next = next.or_else(|| self.waiting.first().copied())?;
        self.waiting.remove(&next);
        self.last = (next.0, next.1);
        Some(next.2)
    }
}

impl Engine {
    /// What of the kept batches a reading goes on with.
    pub(super) fn kept_for(&mut self, key: SessionKey, reading: &Reading) -> Option<Vec<Batch>> {
        let mut found = Vec::new();
        let (mut next, mut bytes) = (reading.next, 0);
        while bytes < READ_BYTES
            && let Some(batch) = self.cold.batch_at(reading.partition, next)
        {
            next = batch.next_offset();
            bytes += batch.bytes_len();
            found.push(batch);
        }
        if found.is_empty() {
            return None;
        }
        self.cold.note(key, self.now.mono_ms);
        Some(found)
    }

    pub(super) fn may_read_cold(&mut self, key: SessionKey, reading: &Reading) -> bool {
        self.cold.admit(key, reading, self.now.mono_ms)
    }

    /// Keeps what was read from the files, for who needs it next.
    pub(super) fn keep_cold(&mut self, partition: PartitionIndex, batches: &[Batch]) {
        let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
        self.tally.catch_up_read_bytes += bytes as u64;
        self.holding.note_read(bytes);
        self.cold.keep(partition, batches);
    }

    /// Lets others read in the place of those that have stopped to.
    pub(super) fn admit_waiting(&mut self) {
        if self.cold.waiting.is_empty() {
            return;
        }
        let now_ms = self.now.mono_ms;
        self.cold
            .readers
            .retain(|reader| reader.read_at_ms + IDLE_MS > now_ms);
        let free = self.cold.readers_max();
        for _ in self.cold.readers.len()..free {
            match self.cold.next() {
                Some(session) => self.wake_session(session),
                None => return,
            }
        }
    }
}
