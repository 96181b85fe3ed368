//! A group commit: queued appends become batches, which are written together, synced once and then shown to readers.
//!
//! Small appends share a batch; a large append becomes a batch in its own buffer.

use std::collections::VecDeque;
use std::io;

use crate::batch::assembler::{BatchAssembler, BatchStamp, seal};
use crate::batch::buffers::Chunk;
use crate::batch::layout::BATCH_AFTER_UNSYNCED;
use crate::batch::record_batch::Batch;
use crate::config::SyncMode;
use crate::failpoint;
use crate::vfs::files::{PAGE_BYTES, Padded};
use crate::write::active::{Active, Halt};
use crate::write::queue::QueuedAppend;
use crate::write::writer::Writer;

/// Bytes of the batches of one sync; further appends wait for the next.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// Batches that have a place in the active segment but are not yet shown to readers.
#[derive(Default)]
pub(crate) struct Group {
    /// With their positions.
    pub batches: Vec<(Batch, u64)>,
    pub bytes: usize,
    /// The appends that these batches complete.
    pub completed: Vec<QueuedAppend>,
    /// Batches of a leader.
    pub is_taken: bool,
}

impl Group {
    /// Further batches wait for the next sync.
    pub fn is_large(&self) -> bool {
        self.bytes >= GROUP_BYTES_MAX
    }
}

/// The next batch: which part of the queue it takes.
struct Next<'a> {
    plan: BatchAssembler<'a>,
    /// Per append, the number of the record after the last one taken.
    ends: Vec<usize>,
    stands_alone: bool,
}

impl<'a> Next<'a> {
    fn of(work: &'a VecDeque<QueuedAppend>) -> Self {
        let mut next = Self {
            plan: BatchAssembler::default(),
            ends: Vec::new(),
            stands_alone: false,
        };
        for queued in work {
            let stands_alone = queued.stands_alone();
            if stands_alone && !next.ends.is_empty() {
                break;
            }
            let taken = &queued.records;
            let end = next.plan.take(taken, queued.done, queued.time_us);
            if end == queued.done {
                break;
            }
            next.ends.push(end);
            if stands_alone || end < taken.len() {
                // A split append goes on in the next batch.
                next.stands_alone = stands_alone && end == taken.len();
                break;
            }
        }
        next
    }
}

impl Writer {
    pub(super) fn write_batches(
        &self,
        active: &mut Active,
        work: &mut VecDeque<QueuedAppend>,
    ) -> Result<(), Halt> {
        let mut group = Group::default();
        while !work.is_empty() {
            let next = Next::of(work);
            if let Err(halt) = self.secure(active, &mut group, next.plan.bytes() as u64) {
                if !matches!(halt, Halt::Failed(_)) {
                    self.flush(active, &mut group)?;
                }
                return Err(halt);
            }
            let place = BatchStamp {
                base_offset: active.next,
                epoch: self.context.epoch(),
                flags: if active.unsynced {
                    BATCH_AFTER_UNSYNCED
                } else {
                    0
                },
            };
            let Next { plan, ends, .. } = next;
            // The batch is the bytes from `start` on.
            let (bytes, start) = if next.stands_alone {
                let mut head = Vec::with_capacity(plan.bytes() - plan.payload_bytes());
                plan.encode_head(&place, &mut head);
                self.behind(&head, work)
            } else {
                let buffer = self.tail.buffers.take(plan.bytes());
                (plan.encode(&self.context.identity, &place, buffer), 0)
            };
            for end in ends {
                match work.front_mut() {
                    Some(queued) if end < queued.records.len() => queued.done = end,
                    _ => group.completed.extend(work.pop_front()),
                }
            }
            group.bytes += bytes.len() - start;
            let batch = Batch::from_encoded(Chunk::new(bytes, &self.tail.buffers), start);
            group.batches.push(self.place_batch(active, batch));
            if group.is_large() {
                self.flush(active, &mut group)?;
            }
        }
        self.flush(active, &mut group)
    }

    /// Completes a batch in the buffer of the first append's payloads.
    fn behind(&self, head: &[u8], work: &mut VecDeque<QueuedAppend>) -> (Vec<u8>, usize) {
        let first = work.front_mut().expect("a batch was planned from it");
        let (mut bytes, start) = std::mem::take(&mut first.records.payloads).behind(head);
        seal(&self.context.identity, &mut bytes[start..]);
        (bytes, start)
    }

    /// Gives a batch its place behind the last one.
    pub(super) fn place_batch(&self, active: &mut Active, batch: Batch) -> (Batch, u64) {
        debug_assert_eq!(batch.base_offset(), active.next);
        let position = active.position;
        active.position += batch.bytes_len() as u64;
        active.next = batch.next_offset();
        active.unsynced = true;
        self.context
            .counters
            .batch(batch.bytes_len(), batch.payloads().len());
        (batch, position)
    }

    /// Writes the batches of `group`, which lie one behind the other up to the active position, and zeros up to the end
    /// of a page that is secured: the bytes there are zeros or stale, and the system need not read them to complete the
    /// page. A write that is synced next goes past the page cache.
    fn write_group(&self, active: &mut Active, group: &Group) -> io::Result<()> {
        let position = group.batches[0].1;
        let parts: Vec<&[u8]> = group.batches.iter().map(|(one, _)| one.bytes()).collect();
        let page_end = active.position.next_multiple_of(PAGE_BYTES);
        let is_secured = self.context.sync != SyncMode::Never && page_end <= active.filled;
        let is_direct = is_secured && self.context.sync == SyncMode::Always;
        let end = if is_secured {
            page_end
        } else {
            active.position
        };
        let padded = Padded {
            before: active.last_page.before(position).filter(|_| is_direct),
            parts: &parts,
            pad: (end - active.position) as usize,
        };
        active.file.write_padded_at(&padded, position)?;
        active.last_page.note(&parts, position);
        Ok(())
    }

    /// Writes and syncs as the settings say, and shows the batches of `group` to readers.
    pub(super) fn flush(&self, active: &mut Active, group: &mut Group) -> Result<(), Halt> {
        if group.batches.is_empty() {
            return Ok(());
        }
        active.is_checkpointed = false;
        self.write_group(active, group)
            .map_err(|error| Halt::failed("writing the active segment", &error))?;
        failpoint!("batch-written");
        active.wrote_at = self.context.steady();
        active.segment.note_write(active.wrote_at);
        if self.context.is_replica {
            return self.announce(active, group);
        }
        if self.context.sync == SyncMode::Always {
            self.sync_file(active)?;
            failpoint!("batch-synced");
            active.unsynced = false;
        }
        let batches = group.batches.drain(..).inspect(|(batch, _)| {
            self.tail.push(self.id(), batch.clone());
        });
        active.segment.push_all(batches);
        group.bytes = 0;
        // Before the watchers run: a caller that was refused for a full queue tries again when the high watermark
        // moves.
        self.queue.lock().give_back(group.completed.drain(..));
        self.status.set_written(active.next);
        match self.context.sync {
            SyncMode::Interval(_) => self.sync_when_due(active)?,
            SyncMode::Always | SyncMode::Never => {
                self.status.set_synced(active.next);
                self.status.set_high_watermark(active.next);
                failpoint!("batch-shown");
                self.status.tell_watchers();
            }
        }
        // After the readers were woken: nobody waits for the index.
        active.topics = active
            .segment
            .with_builder(|builder| builder.topic_count())
            .unwrap_or(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::batch::record_batch::tests::fill;
    use crate::{Class, ClassConfig, Log, LogConfig, Records, Seams};

    /// A reader that sees the high watermark reads up to it by the tail and the index.
    #[test]
    fn the_high_watermark_moves_once_the_index_and_the_tail_know_the_batch() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = LogConfig {
            maintain_every: None,
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir.path())
        };
        let (log, _) = Log::open(config, Seams::system()).expect("it opens");
        let partition = &log.partitions()[0];
        let active = partition.owners().shared.segments.active();
        let held = active.index.lock();
        let syncs = partition.stats().syncs;
        let records = fill(Records::new(), ["payload"]);
        let range = partition.append(records).expect("queued");
        while partition.stats().syncs == syncs {
            std::thread::yield_now();
        }
        // It waits for the index now, or is on its way there.
        for _ in 0..10_000 {
            assert_eq!(partition.high_watermark(), range.start);
            std::thread::yield_now();
        }
        drop(held);
        while partition.high_watermark() < range.end {
            std::thread::yield_now();
        }
        assert_eq!(partition.read(range.start, 100).expect("there").len(), 1);
    }
}
