//! Appending records whose idempotency key no record of their topic has.
//!
//! Keys are looked up in rounds without a lock held: who appends beside it, or only asks the queue, never waits for a
//! read of the disk. The last round finds that nobody has appended one of the keys meanwhile, and gives the offsets
//! under the lock under which that was found.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use ahash::RandomState;
use parking_lot::MutexGuard;

use crate::batch::record_batch::Batch;
use crate::batch::records::Records;
use crate::error::{AppendError, ReadError};
use crate::ids::Offset;
use crate::index::keys::{KeyEntry, KeyHashing, WantedKeys};
use crate::write::idempotency::IdempotencyKeys;
use crate::write::writer::Writer;

/// Where a record of [`Partition::append_unique`](crate::Partition::append_unique) is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueAppend {
    pub offset: Offset,
    /// A record with this idempotency key was there before; nothing was appended for it.
    pub duplicate: bool,
}

/// Records that are read to find the repeat of a key, so that nobody waits longer for keys whose hashes are equal. Only
/// in indexes that come from format 2 do keys of other topics count.
const CANDIDATES_MAX: usize = 256;
/// Memory for batches that one append has read to find repeats. A larger batch is kept alone.
const READ_BATCHES_BYTES: usize = 16 << 20;

impl Writer {
    pub fn append_unique(&self, records: Records) -> Result<Vec<UniqueAppend>, AppendError> {
        let keyed = keyed_records(&records);
        let mut found = vec![Found::Nowhere; records.len()];
        let mut firsts: HashMap<&str, u32, RandomState> = HashMap::default();
        for key in &keyed {
            // A key that these records have twice is appended once.
            let first = *firsts.entry(&key.name).or_insert(key.record);
            if first != key.record {
                found[key.record as usize] = Found::Earlier(first);
            }
        }
        let (mut keys, stored) = self.look_up(&keyed, &found)?;
        for (key, stored) in keyed.iter().zip(stored) {
            let found = &mut found[key.record as usize];
            if *found == Found::Nowhere
                && let Some(offset) = stored.or_else(|| keys.queued(&key.name))
            {
                *found = Found::At(offset);
            }
        }
        self.append_fresh(&mut keys, records, &keyed, &found)
    }

    /// Queues the records that were found nowhere, and notes their keys.
    fn append_fresh(
        &self,
        keys: &mut IdempotencyKeys,
        records: Records,
        keyed: &[TopicKey],
        found: &[Found],
    ) -> Result<Vec<UniqueAppend>, AppendError> {
        let is_repeat: Vec<bool> = found.iter().map(|of| *of != Found::Nowhere).collect();
        let (fresh, given) = if is_repeat.contains(&true) {
            (records.without(&is_repeat), Some(records))
        } else {
            (records, None)
        };
        let queued = self.enqueue(fresh).map_err(|mut error| {
            // The next try must see the repeats again: the records that they repeat may be gone by then.
            if let (AppendError::QueueFull { records, .. }, Some(given)) = (&mut error, given) {
                **records = given;
            }
            error
        });
        let mut next = queued?.start;
        let mut appended: Vec<UniqueAppend> = Vec::with_capacity(found.len());
        for of in found {
            let (offset, duplicate) = match of {
                Found::At(offset) => (*offset, true),
                Found::Earlier(first) => (appended[*first as usize].offset, true),
                Found::Nowhere => {
                    next = next.plus(1);
                    (Offset(next.0 - 1), false)
                }
            };
            appended.push(UniqueAppend { offset, duplicate });
        }
        for key in keyed {
            let UniqueAppend { offset, duplicate } = appended[key.record as usize];
            if !duplicate {
                keys.add_queued(&key.name, key.entry(offset));
            }
        }
        Ok(appended)
    }

    /// The first stored record of each key. No record below the high watermark has one of the others, and none gets it
    /// while the caller has the lock.
    fn look_up(
        &self,
        keyed: &[TopicKey],
        found: &[Found],
    ) -> Result<(MutexGuard<'_, IdempotencyKeys>, Vec<Option<Offset>>), AppendError> {
        let mut stored: Vec<Option<Offset>> = vec![None; keyed.len()];
        let mut read = ReadBatches::default();
        let mut range = Offset(0)..Offset(0);
        loop {
            let sought = (0..).zip(keyed).filter(|(number, key)| {
                stored[*number as usize].is_none() && found[key.record as usize] == Found::Nowhere
            });
            let wanted = WantedKeys::new(sought.map(|(at, key)| (at, key.topic(), key.key())));
            let hashed = wanted.hashed(KeyHashing::TopicAndKey);
            let mut candidates = vec![Vec::new(); keyed.len()];
            let mut keys = self.keys.lock();
            range = range.end..self.status.high_watermark();
            keys.settle(range.end);
            if wanted.is_empty() {
                return Ok((keys, stored));
            }
            keys.find(hashed, &range, &mut |number, offset| {
                candidates[number as usize].push(offset);
            });
            let in_files = range.start..range.end.min(keys.start());
            if in_files.is_empty() && candidates.iter().all(Vec::is_empty) {
                return Ok((keys, stored));
            }
            drop(keys);
            self.find_in_files(&wanted, in_files, &mut candidates)?;
            let numbers: Vec<u32> = wanted.numbers().collect();
            for number in numbers {
                let number = number as usize;
                let of = &mut candidates[number];
                of.sort_unstable();
                of.dedup();
                stored[number] = self.find_key(&keyed[number], of, &mut read)?;
            }
        }
    }

    /// Adds the candidates of segments that lie in `range`, in part or whole, to those of the wanted keys.
    fn find_in_files(
        &self,
        wanted: &WantedKeys<'_>,
        range: Range<Offset>,
        candidates: &mut [Vec<Offset>],
    ) -> Result<(), AppendError> {
        let mut hit = |number: u32, offset| candidates[number as usize].push(offset);
        for segment in self.segments.within(&range) {
            let searched = self.segments.find_keys(&segment, wanted, &mut hit);
            match searched {
                // It was removed meanwhile, and its keys with it.
                Err(_) if segment.base < self.status.log_start() => {}
                searched => searched.map_err(|error| self.unverified(error))?,
            }
        }
        Ok(())
    }

    /// The first candidate whose record still exists and has this topic and key.
    fn find_key(
        &self,
        key: &TopicKey,
        candidates: &[Offset],
        read: &mut ReadBatches,
    ) -> Result<Option<Offset>, AppendError> {
        for offset in candidates
            .iter()
            .filter(|offset| **offset >= self.status.log_start())
            .take(CANDIDATES_MAX)
        {
            if read.find(*offset).is_none() {
                match self.reader.read(*offset, 1) {
                    Ok(batches) => batches.into_iter().for_each(|batch| read.keep(batch)),
                    // Gone or damaged: not kept any more, so not a repeat.
                    Err(ReadError::OutOfRange { .. } | ReadError::Damaged { .. }) => {}
                    Err(error) => return Err(self.unverified(error)),
                }
            }
            let batch = read.find(*offset);
            if batch.is_some_and(|batch| key.is_of(batch, *offset)) {
                return Ok(Some(*offset));
            }
        }
        Ok(None)
    }

    fn unverified(&self, error: ReadError) -> AppendError {
        let reason = match error {
            ReadError::Io { path, source } => format!("{}: {source}", path.display()),
            other => other.to_string(),
        };
        AppendError::Unverified {
            partition: self.id(),
            reason,
        }
    }
}

/// The batches that one append has read. A producer that repeats a large batch has all of its keys in one batch here,
/// which is then read and checked once instead of once per record.
#[derive(Default)]
struct ReadBatches {
    by_base: BTreeMap<Offset, Batch>,
    bytes: usize,
}

impl ReadBatches {
    /// The batch that holds `offset`.
    fn find(&self, offset: Offset) -> Option<&Batch> {
        let (_, batch) = self.by_base.range(..=offset).next_back()?;
        (offset < batch.next_offset()).then_some(batch)
    }

    fn keep(&mut self, batch: Batch) {
        if self.bytes + batch.memory() > READ_BATCHES_BYTES {
            *self = Self::default();
        }
        self.bytes += batch.memory();
        self.by_base.insert(batch.base_offset(), batch);
    }
}

/// Where the idempotency key of a record was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nowhere,
    At(Offset),
    /// In an earlier one of the records.
    Earlier(u32),
}

/// The idempotency key of a record with its topic: a client without the right to write a topic must not use up the
/// topic's keys.
pub(super) struct TopicKey {
    /// Its number among the records.
    pub record: u32,
    /// Topic, NUL and key; a topic has no NUL.
    pub name: Box<str>,
    topic_bytes: usize,
    hash: u64,
}

impl TopicKey {
    fn new(record: u32, topic: &str, key: &str) -> Self {
        Self {
            record,
            name: [topic, "\0", key].concat().into(),
            topic_bytes: topic.len(),
            hash: KeyHashing::TopicAndKey.hash(topic, key),
        }
    }

    fn topic(&self) -> &str {
        &self.name[..self.topic_bytes]
    }

    fn key(&self) -> &str {
        &self.name[self.topic_bytes + 1..]
    }

    pub fn entry(&self, offset: Offset) -> KeyEntry {
        let hash = self.hash;
        KeyEntry { hash, offset }
    }

    /// Whether the record at `offset`, which is in the batch, has this key and topic.
    fn is_of(&self, batch: &Batch, offset: Offset) -> bool {
        let record = batch.record((offset.0 - batch.base_offset().0) as usize);
        record.idempotency_key == Some(self.key()) && record.topic == self.topic()
    }
}

pub(super) fn keyed_records(records: &Records) -> Vec<TopicKey> {
    let topics = records.topic_names();
    let key = |record: &u32| {
        let key = records.idempotency_key(*record as usize)?;
        let topic = topics.get(usize::from(records.entry(*record as usize).topic))?;
        Some(TopicKey::new(*record, topic, key))
    };
    records.keyed.iter().filter_map(key).collect()
}
