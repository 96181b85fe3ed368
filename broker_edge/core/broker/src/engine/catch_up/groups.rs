//! Groups that are not served by the live stream alone: records returned by members, and partitions in which the group
//! is behind.

use headwater_log::{Batch, Offset};
use headwater_mqtt::filter_matches;

use crate::engine::delivery::give::GiveOutcome;
use crate::engine::delivery::is_passing;
use crate::engine::delivery::sender::Sender;
use crate::engine::ids::{GroupId, Waiter};
use crate::engine::shared_groups::Group;

use super::CatchingUp;
use super::read_retry::Recent;
use super::readers::{Progress, Reading, index_in};

impl CatchingUp<'_> {
    /// Runs the groups with records to give, a bounded amount per turn.
    pub(super) fn run_groups(&mut self, steps: &mut usize) {
        for _ in 0..self.groups.runnable() {
            if *steps == 0 {
                return;
            }
            let Some(id) = self.groups.pop_runnable() else {
                return;
            };
            self.run_group_awake(id, steps);
        }
    }

    pub(super) fn run_group_awake(&mut self, id: GroupId, steps: &mut usize) {
        match self.run_group(id, steps) {
            Progress::Unfinished => self.groups.wake(id),
            Progress::Finished => self.catch_up.forget(Waiter::Group(id)),
            Progress::NoRoom | Progress::Waits => {}
        }
    }

    fn run_group(&mut self, id: GroupId, steps: &mut usize) -> Progress {
        let group = self.groups.get(id);
        if group.is_none_or(Group::is_deserted) {
            // The next member to connect wakes it.
            return Progress::NoRoom;
        }
        match self.give_returned(id, steps) {
            Progress::Finished => self.run_cursors(Waiter::Group(id), None, steps),
            other => other,
        }
    }

    /// Gives records returned by members to others, in log order.
    fn give_returned(&mut self, id: GroupId, steps: &mut usize) -> Progress {
        let mut recent = Recent::default();
        loop {
            let group = self.groups.get(id);
            let Some((at, from)) = group.and_then(Group::first_returned) else {
                return Progress::Finished;
            };
            if *steps == 0 {
                return Progress::Unfinished;
            }
            *steps -= 1;
            let (partition, offset) = at;
            let batch = match self.read_one(at, &mut recent) {
                Ok(batch) => batch,
                Err(error) if is_passing(&error) => {
                    self.retry_later(Waiter::Group(id), &error);
                    return Progress::Waits;
                }
                // Lost by retention or damage: nobody gets it any more.
                Err(_) => None,
            };
            let given = match &batch {
                Some(batch) => {
                    let record = batch.record((offset.0 - batch.base_offset().0) as usize);
                    lend!(self => Sender).give(id, batch, &record, partition, Some(from))
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
                group.end_returned(at);
            }
        }
    }

    /// Gives out the records of a batch from the cursor on, up to `until`. If one has to wait, the cursor stays at it and
    /// the reason is returned.
    pub(super) fn give_batch(
        &mut self,
        id: GroupId,
        reading: &mut Reading,
        (batch, until): (&Batch, Offset),
    ) -> Option<Progress> {
        let group = self.groups.get(id)?;
        let filter = group.filter();
        let wanted: Vec<bool> = batch
            .topics()
            .map(|topic| filter_matches(filter, topic.topic))
            .collect();
        let partition = reading.id.partition;
        for index in reading.first_in(batch)..index_in(batch, until) {
            if wanted.get(usize::from(batch.topic_index(index))) != Some(&true) {
                continue;
            }
            let record = batch.record(index);
            let group = self.groups.get(id)?;
            if group.skips(partition, record.offset)
                || (record.qos == 0 && record.offset < reading.cursor.qos0_from)
            {
                continue;
            }
            let given = if group.is_full() && record.qos > 0 {
                GiveOutcome::NoRoom
            } else {
                lend!(self => Sender).give(id, batch, &record, partition, None)
            };
            let is_aside =
                given == GiveOutcome::Aside && self.groups.set_aside(id, partition, &record);
            if given != GiveOutcome::Taken && !is_aside {
                reading.cursor.next = record.offset;
                return Some(match given {
                    GiveOutcome::Later => Progress::Unfinished,
                    _ => Progress::NoRoom,
                });
            }
        }
        reading.cursor.next = until.min(batch.next_offset());
        None
    }
}
