//! Appending: offsets are given under a short lock; the writer thread writes, or the caller when nobody else writes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::batch::by_name::ByName;
use crate::batch::record_batch::Batch;
use crate::batch::records::Records;
use crate::config::SyncMode;
use crate::error::{AppendError, ReadError};
use crate::failpoint;
use crate::ids::Offset;
use crate::state::status::PartitionState;
use crate::write::active::Halt;
use crate::write::queue::Queue;
use crate::write::writer::Writer;

/// MQTT's largest packet, with room for headers and keys.
const MAX_RECORD_BYTES: usize = (256 << 20) + (64 << 10);

/// Where a record of [`Partition::append_unique`](crate::Partition::append_unique) is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueAppend {
    pub offset: Offset,
    /// A record with this idempotency key was there before; nothing was appended for it.
    pub duplicate: bool,
}

/// Records with one key that are read to find a repeat; each may have another topic. A client that exceeds this gets
/// repeats appended, and nobody waits longer.
const CANDIDATES_MAX: usize = 256;
/// Memory for batches that one append has read to find repeats. A larger batch is kept alone.
const READ_BATCHES_BYTES: usize = 16 << 20;

impl Writer {
    pub fn append(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        if records.keyed.is_empty() {
            return self.enqueue(records);
        }
        let keyed = keyed_records(&records);
        let mut keys = self.keys.lock();
        keys.settle(self.status.high_watermark());
        let range = self.enqueue(records)?;
        for (index, key) in keyed {
            keys.add_queued(&key.key, &key.name(), range.start.plus(u64::from(index)));
        }
        Ok(range)
    }

    fn enqueue(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        let time_us = self.context.seams.clock.now_us();
        let mut queue = self.queue.lock();
        let records = self.admit(&queue, records)?;
        if records.is_empty() {
            return Ok(queue.next..queue.next);
        }
        let range = queue.push(records, time_us);
        failpoint!("batch-queued");
        if !queue.busy {
            self.queue_changed.notify_one();
        }
        Ok(range)
    }

    pub fn append_inline(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        // With an interval the writer thread keeps the time; with keys, the lock of the keys would be held during the
        // sync.
        if !records.keyed.is_empty() || matches!(self.context.sync, SyncMode::Interval(_)) {
            return self.append(records);
        }
        let time_us = self.context.seams.clock.now_us();
        let mut work = VecDeque::new();
        let range = {
            let mut queue = self.queue.lock();
            let records = self.admit(&queue, records)?;
            if records.is_empty() {
                return Ok(queue.next..queue.next);
            }
            let is_free = !queue.busy && queue.turns_wanted == 0 && !queue.has_work();
            let range = queue.push(records, time_us);
            if !is_free {
                return Ok(range);
            }
            queue.busy = true;
            std::mem::swap(&mut work, &mut queue.items);
            range
        };
        let halt = self.write_taken(&mut work, Self::write_batches);
        let mut queue = self.queue.lock();
        // Records that found no space go back to the front: the writer waits for space, the caller must not.
        while let Some(queued) = work.pop_back() {
            queue.items.push_front(queued);
        }
        self.end_turn_of(&mut queue);
        drop(queue);
        match halt {
            Some(Halt::Failed(reason)) => Err(AppendError::ReadOnly {
                partition: self.id(),
                reason,
            }),
            Some(Halt::Full | Halt::Uncommitted) | None => Ok(range),
        }
    }

    /// Returns the records when they may be queued now, else the error.
    fn admit(&self, queue: &Queue, records: Records) -> Result<Records, AppendError> {
        let partition = self.id();
        match self.status.state() {
            PartitionState::Running => {}
            PartitionState::Full => return Err(AppendError::Full { partition }),
            PartitionState::Following => return Err(AppendError::NotLeader { partition }),
            PartitionState::Stopped(reason) => {
                return Err(AppendError::ReadOnly { partition, reason });
            }
        }
        if queue.closing {
            let reason = "the log is shut down".to_owned();
            return Err(AppendError::ReadOnly { partition, reason });
        }
        if records.bytes() > MAX_RECORD_BYTES {
            check_sizes(&records, MAX_RECORD_BYTES)?;
        }
        // A single append that is larger than the bound is accepted when the queue is empty: else it never could be.
        let queued_bytes = queue.bytes;
        let limit_bytes = self.context.queue_bytes;
        if queued_bytes > 0 && queued_bytes + records.bytes() > limit_bytes {
            return Err(AppendError::QueueFull {
                partition,
                queued_bytes,
                limit_bytes,
                records: Box::new(records),
            });
        }
        Ok(records)
    }

    pub fn append_unique(&self, records: Records) -> Result<Vec<UniqueAppend>, AppendError> {
        let mut keys = self.keys.lock();
        // Durable records are read and compared below, so that a record that was removed does not count.
        keys.settle(self.status.high_watermark());
        let mut found = vec![Found::Nowhere; records.len()];
        let mut firsts: ByName<u32> = ByName::default();
        let keyed = keyed_records(&records);
        let mut read = ReadBatches::default();
        for (index, key) in &keyed {
            let name = key.name();
            found[*index as usize] = if let Some(first) = firsts.get(&name) {
                Found::Earlier(*first) // A key that these records have twice is appended once.
            } else {
                // The oldest record with the key counts, and durable records are older than queued ones.
                let durable = keys.candidates(&key.key, self.status.high_watermark());
                let known = self.find_key(key, &durable, &mut read)?;
                let known = known.or_else(|| keys.queued(&name));
                if known.is_none() {
                    firsts.insert(name, *index);
                }
                known.map_or(Found::Nowhere, Found::At)
            };
        }
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
                Found::At(offset) => (offset, true),
                Found::Earlier(first) => (appended[first as usize].offset, true),
                Found::Nowhere => {
                    next = next.plus(1);
                    (Offset(next.0 - 1), false)
                }
            };
            appended.push(UniqueAppend { offset, duplicate });
        }
        for (index, key) in &keyed {
            let UniqueAppend { offset, duplicate } = appended[*index as usize];
            if !duplicate {
                keys.add_queued(&key.key, &key.name(), offset);
            }
        }
        Ok(appended)
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
                    Err(ReadError::Io { path, source }) => {
                        let reason = format!("{}: {source}", path.display());
                        return Err(AppendError::Unverified {
                            partition: self.id(),
                            reason,
                        });
                    }
                }
            }
            let batch = read.find(*offset);
            if batch.is_some_and(|batch| key.is_of(batch, *offset)) {
                return Ok(Some(*offset));
            }
        }
        Ok(None)
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

/// An idempotency key with its topic: a client without the right to write a topic must not use up the topic's keys.
struct TopicKey {
    topic: Box<str>,
    key: Box<str>,
}

impl TopicKey {
    /// Topic and key as one name; a topic has no NUL.
    fn name(&self) -> Box<str> {
        format!("{}\0{}", self.topic, self.key).into()
    }

    /// Whether the record at `offset`, which is in the batch, has this key and topic.
    fn is_of(&self, batch: &Batch, offset: Offset) -> bool {
        let record = batch.record((offset.0 - batch.base_offset().0) as usize);
        record.idempotency_key == Some(&*self.key) && record.topic == &*self.topic
    }
}

fn keyed_records(records: &Records) -> Vec<(u32, TopicKey)> {
    let topics = records.topic_names();
    let key = |index: &u32| {
        let key = records.idempotency_key(*index as usize)?;
        let topic = topics.get(usize::from(records.entry(*index as usize).topic))?;
        let (topic, key) = ((*topic).into(), key.into());
        Some((*index, TopicKey { topic, key }))
    };
    records.keyed.iter().filter_map(key).collect()
}

fn check_sizes(records: &Records, limit_bytes: usize) -> Result<(), AppendError> {
    for index in 0..records.len() {
        let (payload_start, extension_start) = records.ends_before(index);
        let (payload_end, extension_end) = records.ends_before(index + 1);
        let size = payload_end - payload_start + extension_end - extension_start;
        if size > limit_bytes {
            return Err(AppendError::TooLarge {
                size_bytes: size as u64,
                limit_bytes: limit_bytes as u64,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::record_batch::tests::fill;
    use crate::batch::records::RecordMeta;
    use crate::{Class, ClassConfig, Log, LogConfig, Seams};

    /// The size for which records with these keys and payload sizes are refused, if they are.
    fn refused(records_of: &[(Option<&str>, usize)], limit_bytes: usize) -> Option<u64> {
        let mut records = Records::new();
        let topic = records.topic("topic", 0..5).expect("room");
        let client = records.client("client").expect("room");
        for (idempotency_key, bytes) in records_of {
            let meta = RecordMeta {
                idempotency_key: *idempotency_key,
                ..RecordMeta::new(topic, client, 1)
            };
            records.push(meta, &vec![7; *bytes]).expect("room");
        }
        match check_sizes(&records, limit_bytes) {
            Ok(()) => None,
            Err(AppendError::TooLarge { size_bytes, .. }) => Some(size_bytes),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_limit_is_of_each_record_with_what_stands_beside_its_payload() {
        let several = [(None, 900), (None, 1000), (Some("key"), 800), (None, 10)];
        assert_eq!(refused(&several, 1000), None);
        assert_eq!(refused(&several, 999), Some(1000));
        assert!(refused(&[(Some("key"), 1000)], 1000) > Some(1000));
    }

    #[test]
    fn a_record_that_no_packet_can_have_brought_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = LogConfig {
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir.path())
        };
        let (log, _) = Log::open(config, Seams::system()).expect("it opens");
        let records = fill(Records::new(), [vec![0_u8; MAX_RECORD_BYTES + 1]]);
        let refused = log.partitions()[0].append(records);
        assert!(matches!(refused, Err(AppendError::TooLarge { .. })));
        assert_eq!(log.partitions()[0].next_offset(), Offset(0));
    }
}
