//! Groups that are not served by the live stream alone: records returned by members, and partitions in which the group
//! is behind.

use headwater_log::{Batch, Offset};

use headwater_mqtt::filter_matches;

use crate::engine::Engine;
use crate::engine::catch_up::read_retry::{RETRY_MS, is_passing};
use crate::engine::catch_up::readers::{Progress, READ_BYTES, READ_STEPS, Reading};
use crate::engine::ids::{GroupId, PartitionOffset};
use crate::engine::session::CatchUpCursor;
use crate::engine::session::window::Source;

use super::give::GiveOutcome;

impl Engine {
    /// Runs the groups with records to give, a bounded amount per turn.
    pub(in crate::engine) fn run_groups(&mut self, steps: &mut usize) {
        for _ in 0..self.groups.runnable.len() {
            if *steps == 0 {
                return;
            }
            let Some(id) = self.groups.runnable.pop() else {
                return;
            };
            if let Some(group) = self.groups.get_mut(id) {
                group.queued = false;
            }
            if self.run_group(id, steps) == Progress::Unfinished {
                self.groups.wake(id);
            }
        }
    }

    fn run_group(&mut self, id: GroupId, steps: &mut usize) -> Progress {
        let group = self.groups.get(id);
        if group.is_none_or(|group| group.members.present().is_empty()) {
            // The next member to connect wakes it.
            return Progress::NoRoom;
        }
        match self.give_returned(id, steps) {
            Progress::Finished => self.give_behind(id, steps),
            other => other,
        }
    }

    /// Gives records returned by members to others, in log order.
    fn give_returned(&mut self, id: GroupId, steps: &mut usize) -> Progress {
        let mut recent: Option<(PartitionOffset, Batch)> = None;
        loop {
            let Some(group) = self.groups.get(id) else {
                return Progress::Finished;
            };
            let Some((&at, &from)) = group.returned.first_key_value() else {
                return Progress::Finished;
            };
            if *steps == 0 {
                return Progress::Unfinished;
            }
            *steps -= 1;
            let (partition, offset) = at;
            let near = recent.take().filter(|((of, _), batch)| {
                *of == partition && (batch.base_offset()..batch.next_offset()).contains(&offset)
            });
            let batch = match near {
                Some((_, batch)) => Some(batch),
                None => match self.read_one(partition, offset) {
                    Ok(found) => found.map(|(batch, _)| batch),
                    Err(error) if is_passing(&error) => return self.retry_group(id, &error),
                    // Lost by retention or damage: nobody gets it any more.
                    Err(_) => None,
                },
            };
            let given = match &batch {
                Some(batch) => {
                    let record = batch.record((offset.0 - batch.base_offset().0) as usize);
                    self.give(id, batch, &record, partition, Some(from))
                }
                None => GiveOutcome::Taken,
            };
            match given {
                GiveOutcome::Taken => {}
                GiveOutcome::Later => return Progress::Unfinished,
                GiveOutcome::Aside => {
                    let group = self.groups.get_mut(id);
                    if !group.is_some_and(|group| group.set_aside(at)) {
                        return Progress::NoRoom;
                    }
                }
                GiveOutcome::NoRoom | GiveOutcome::Nobody => return Progress::NoRoom,
            }
            if let Some(group) = self.groups.get_mut(id) {
                group.returned.remove(&at);
                group.dirty = true;
            }
            recent = batch.map(|batch| (at, batch));
        }
    }

    fn give_behind(&mut self, id: GroupId, steps: &mut usize) -> Progress {
        let Some(group) = self.groups.get_mut(id) else {
            return Progress::Finished;
        };
        // The next time another partition goes first, so that narrow windows serve all of them.
        if group.behind.len() > 1 {
            group.behind.rotate_left(1);
        }
        let mut index = 0;
        let mut result = Progress::Finished;
        loop {
            let Some(behind) = self
                .groups
                .get(id)
                .and_then(|group| group.behind.get(index))
                .copied()
            else {
                return result;
            };
            let mut reading = reading_of(id, behind);
            let progress = self.read_group(id, &mut reading, steps);
            let Some(group) = self.groups.get_mut(id) else {
                return Progress::Finished;
            };
            match progress {
                Progress::Finished => {
                    group.behind.swap_remove(index);
                    group.skips.clear(behind.partition);
                }
                Progress::Unfinished | Progress::NoRoom => {
                    group.behind[index].next = reading.next;
                    if progress == Progress::NoRoom || *steps == 0 {
                        return progress;
                    }
                    index += 1;
                    result = Progress::Unfinished;
                }
            }
        }
    }

    /// Reads on from one position, with at most one read, and gives out the matching records.
    fn read_group(&mut self, id: GroupId, reading: &mut Reading, steps: &mut usize) -> Progress {
        let until = self.delivery.dispatched[reading.partition.index()];
        if reading.next >= until {
            return Progress::Finished;
        }
        if *steps == 0 {
            return Progress::Unfinished;
        }
        if self.groups.get(id).is_none_or(super::Group::is_full) {
            return Progress::NoRoom;
        }
        *steps = steps.saturating_sub(READ_STEPS);
        self.begin_at_log_start(reading);
        let Some(group) = self.groups.get(id) else {
            return Progress::Finished;
        };
        let partition = &self.env.partitions[reading.partition.index()];
        let in_memory = partition.read_tail(reading.next, READ_BYTES).or_else(|| {
            let kept = self
                .catch_up
                .batch_cache
                .batch_at(reading.partition, reading.next);
            kept.map(|batch| vec![batch])
        });
        let read = match in_memory {
            Some(batches) => Ok((batches, reading.next)),
            None => {
                let filter = group.filter();
                let wanted = |topic: &str| filter_matches(filter, topic);
                let read = partition.read_matching(reading.next, until, READ_BYTES, &wanted);
                if let Ok((batches, _)) = &read {
                    self.keep_batches(reading.partition, batches);
                }
                read
            }
        };
        let (batches, scanned) = match read {
            Ok(read) => read,
            Err(error) if is_passing(&error) => return self.retry_group(id, &error),
            Err(error) => {
                reading.skip(&error, until);
                return reading.progress(until);
            }
        };
        let is_due = |batch: &&Batch| batch.base_offset() < until;
        for batch in batches.iter().take_while(is_due) {
            if let Some(progress) = self.give_batch(id, reading, batch) {
                return progress;
            }
        }
        reading.next = reading.next.max(scanned);
        reading.progress(until)
    }

    /// Gives out the records of a batch from the cursor on. If one has to wait, the cursor stays at it and the reason
    /// is returned.
    fn give_batch(
        &mut self,
        id: GroupId,
        reading: &mut Reading,
        batch: &Batch,
    ) -> Option<Progress> {
        let group = self.groups.get(id)?;
        let filter = group.filter();
        let wanted: Vec<bool> = batch
            .topics()
            .map(|topic| filter_matches(filter, topic.topic))
            .collect();
        let first =
            usize::try_from(reading.next.0.saturating_sub(batch.base_offset().0)).unwrap_or(0);
        for index in first..batch.len() {
            if !wanted
                .get(usize::from(batch.topic_index(index)))
                .is_some_and(|wanted| *wanted)
            {
                continue;
            }
            let record = batch.record(index);
            let group = self.groups.get(id)?;
            if group.skips.contains(reading.partition, record.offset)
                || (record.qos == 0 && record.offset < reading.qos0_from)
            {
                continue;
            }
            let given = if group.is_full() && record.qos > 0 {
                GiveOutcome::NoRoom
            } else {
                self.give(id, batch, &record, reading.partition, None)
            };
            let is_aside =
                given == GiveOutcome::Aside && self.set_aside(id, reading.partition, &record);
            if given != GiveOutcome::Taken && !is_aside {
                reading.next = record.offset;
                return Some(match given {
                    GiveOutcome::Later => Progress::Unfinished,
                    _ => Progress::NoRoom,
                });
            }
        }
        reading.next = batch.next_offset();
        None
    }

    fn retry_group(&mut self, id: GroupId, error: &headwater_log::ReadError) -> Progress {
        tracing::error!(%error, retry_ms = RETRY_MS, "a shared group waits until records can be read");
        self.groups.read_retries.push(id);
        Progress::NoRoom
    }
}

fn reading_of(id: GroupId, behind: CatchUpCursor) -> Reading {
    Reading {
        partition: behind.partition,
        next: behind.next,
        until: Offset(u64::MAX),
        source: Source::Shared(id),
        qos0_from: behind.qos0_from,
        sheds_qos0: behind.sheds_qos0,
    }
}
