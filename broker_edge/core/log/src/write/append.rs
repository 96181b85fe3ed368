//! Appending: offsets are given under a short lock; the writer thread writes, or the caller when nobody else writes.
//! Appends that refuse repeated keys are `append_unique.rs`.

use std::collections::VecDeque;
use std::ops::Range;

use crate::batch::records::Records;
use crate::config::SyncMode;
use crate::error::AppendError;
use crate::failpoint;
use crate::ids::Offset;
use crate::state::status::PartitionState;
use crate::write::active::Halt;
use crate::write::append_unique::keyed_records;
use crate::write::queue::Queue;
use crate::write::writer::Writer;

/// MQTT's largest packet, with room for headers and keys.
const MAX_RECORD_BYTES: usize = (256 << 20) + (64 << 10);

impl Writer {
    pub fn append(&self, records: Records) -> Result<Range<Offset>, AppendError> {
        if records.keyed.is_empty() {
            return self.enqueue(records);
        }
        let keyed = keyed_records(&records);
        let mut keys = self.keys.lock();
        keys.settle(self.status.high_watermark());
        let range = self.enqueue(records)?;
        for key in keyed {
            let offset = range.start.plus(u64::from(key.record));
            keys.add_queued(&key.name, key.entry(offset));
        }
        Ok(range)
    }

    pub(super) fn enqueue(&self, records: Records) -> Result<Range<Offset>, AppendError> {
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
