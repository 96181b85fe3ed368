//! Appending: offsets are given under a short lock; writing is the writer's, or the caller's when nobody else writes.

use std::collections::VecDeque;
use std::ops::Range;

use crate::batch::by_name::ByName;
use crate::batch::records::Records;
use crate::config::SyncMode;
use crate::error::{AppendError, ReadError};
use crate::failpoint;
use crate::ids::Offset;
use crate::partition::{PartitionState, UniqueAppend};
use crate::state::core::Core;
use crate::write::queue::Queue;
use crate::write::writer::Halt;

/// MQTT's largest packet, with room for what headers and keys add.
const MAX_RECORD_BYTES: usize = (256 << 20) + (64 << 10);

/// Records with one key, of as many topics, that are read to find a repeat. Whoever fills this up gets repeats appended,
/// and nobody waits longer.
const CANDIDATES_MAX: usize = 256;

impl Core {
    pub(crate) fn append(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        if records.keyed.is_empty() {
            return self.enqueue(records);
        }
        let keyed = keyed_records(&records);
        let mut keys = self.keys.lock();
        keys.settle(self.high_watermark());
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

    pub(crate) fn append_inline(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        // With an interval the writer thread keeps time; with keys their lock would be held over the sync.
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
            let is_free = !queue.busy && queue.items.is_empty() && !queue.seal;
            let range = queue.push(records, time_us);
            if !is_free {
                return Ok(range);
            }
            queue.busy = true;
            std::mem::swap(&mut work, &mut queue.items);
            range
        };
        let halt = self.write_taken(&mut work);
        let mut queue = self.queue.lock();
        // What found no space goes back to the front: the writer waits for space, the caller must not.
        while let Some(queued) = work.pop_back() {
            queue.items.push_front(queued);
        }
        queue.busy = false;
        if !queue.items.is_empty() || queue.seal || queue.closing {
            self.queue_changed.notify_one();
        }
        drop(queue);
        match halt {
            Some(Halt::Failed(reason)) => Err(AppendError::ReadOnly {
                partition: self.id(),
                reason,
            }),
            Some(Halt::Full) | None => Ok(range),
        }
    }

    /// Gives the records back, to be queued now or with the error that says to try them again.
    fn admit(&self, queue: &Queue, records: Records) -> Result<Records, AppendError> {
        let partition = self.id();
        if !self.is_running() {
            match self.state() {
                PartitionState::Running => {}
                PartitionState::Full => return Err(AppendError::Full { partition }),
                PartitionState::Stopped(reason) => {
                    return Err(AppendError::ReadOnly { partition, reason });
                }
            }
        }
        if queue.closing {
            let reason = "the log is shut down".to_owned();
            return Err(AppendError::ReadOnly { partition, reason });
        }
        if records.bytes() > MAX_RECORD_BYTES {
            check_sizes(&records, MAX_RECORD_BYTES)?;
        }
        // One append that is larger than the bound is let in alone: it could never come in otherwise.
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

    pub(crate) fn append_unique(&self, records: Records) -> Result<Vec<UniqueAppend>, AppendError> {
        let mut keys = self.keys.lock();
        // What is durable is read and compared below, so that a record that was removed does not count.
        keys.settle(self.high_watermark());
        let mut unique: Vec<Option<UniqueAppend>> = vec![None; records.len()];
        let mut firsts: Vec<(u32, TopicKey)> = Vec::new();
        for (index, key) in keyed_records(&records) {
            // The oldest record with the key counts, and what is durable is older than what is queued.
            let durable = keys.candidates(&key.key, self.high_watermark());
            let known = match self.find_key(&key, &durable)? {
                Some(offset) => Some(offset),
                None => keys.queued(&key.name()),
            };
            if let Some(offset) = known {
                unique[index as usize] = Some(UniqueAppend {
                    offset,
                    duplicate: true,
                });
            } else {
                firsts.push((index, key));
            }
        }
        // A key that these records have twice is appended once.
        let mut repeats: Vec<(u32, u32)> = Vec::new();
        let mut seen = ByName::default();
        firsts.retain(|(index, key)| {
            let name = key.name();
            match seen.get(&name) {
                Some(first) => {
                    repeats.push((*index, *first));
                    false
                }
                None => {
                    seen.insert(name, *index);
                    true
                }
            }
        });
        let mut drop: Vec<bool> = unique.iter().map(Option::is_some).collect();
        for (index, _) in &repeats {
            drop[*index as usize] = true;
        }
        let (fresh, given) = if drop.contains(&true) {
            (records.without(&drop), Some(records))
        } else {
            (records, None)
        };
        let queued = self.enqueue(fresh).map_err(|error| match (error, given) {
            // The next try must see the repeats again: what they repeat may be gone by then.
            (
                AppendError::QueueFull {
                    partition,
                    queued_bytes,
                    limit_bytes,
                    ..
                },
                Some(given),
            ) => AppendError::QueueFull {
                partition,
                queued_bytes,
                limit_bytes,
                records: Box::new(given),
            },
            (error, _) => error,
        });
        let mut next = queued?.start;
        for (slot, _) in unique.iter_mut().zip(&drop).filter(|(_, drop)| !**drop) {
            *slot = Some(UniqueAppend {
                offset: next,
                duplicate: false,
            });
            next = next.plus(1);
        }
        for (index, first) in repeats {
            unique[index as usize] = unique[first as usize].map(|first| UniqueAppend {
                duplicate: true,
                ..first
            });
        }
        for (index, key) in firsts {
            if let Some(place) = unique[index as usize] {
                keys.add_queued(&key.key, &key.name(), place.offset);
            }
        }
        Ok(unique.into_iter().flatten().collect())
    }

    /// The first of the candidates whose record is still there, has this topic and carries this key.
    fn find_key(
        &self,
        key: &TopicKey,
        candidates: &[Offset],
    ) -> Result<Option<Offset>, AppendError> {
        for offset in candidates
            .iter()
            .filter(|offset| **offset >= self.log_start())
            .take(CANDIDATES_MAX)
        {
            match self.read_record(*offset) {
                Ok(record) => {
                    let view = record.view();
                    if view.idempotency_key == Some(&*key.key) && view.topic == &*key.topic {
                        return Ok(Some(*offset));
                    }
                }
                // Gone or damaged: not retained any more, so not a repeat.
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
        Ok(None)
    }
}

/// An idempotency key and the topic that it counts for: who may not write a topic must not take a key from it.
struct TopicKey {
    topic: Box<str>,
    key: Box<str>,
}

impl TopicKey {
    /// Both in one; a topic has no NUL.
    fn name(&self) -> Box<str> {
        format!("{}\0{}", self.topic, self.key).into()
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
    use crate::batch::records::RecordMeta;
    use crate::{Class, ClassConfig, Log, LogConfig, Seams};

    /// The size for which records with these keys and so many bytes of payload are refused, if they are.
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
        let mut records = Records::new();
        let topic = records.topic("topic", 0..5).expect("room");
        let client = records.client("client").expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        records
            .push(meta, &vec![0; MAX_RECORD_BYTES + 1])
            .expect("room");
        let refused = log.partitions()[0].append(records);
        assert!(matches!(refused, Err(AppendError::TooLarge { .. })));
        assert_eq!(log.partitions()[0].next_offset(), Offset(0));
    }
}
