//! What the log has done since the replica last looked. The marks are read; nothing is queued between the two.

use std::collections::VecDeque;

use headwater_cluster::marks::{Epoch, Offset};
use headwater_cluster::shard::{Event, Held};
use headwater_log::PartitionState;

use crate::chunks::Run;
use crate::replica::Replica;

/// What a replica keeps of a partition besides what the state machine does.
pub(crate) struct Local {
    /// As the state machine was told.
    pub written: Offset,
    pub synced: Offset,
    pub log_start: Offset,
    /// Epochs whose first batch is in the log's hands and was not yet told as written.
    pub epochs: VecDeque<(Epoch, Offset)>,
    pub run: Option<Run>,
    /// Ends of runs that the log has taken, and the bytes for which no credit was given back yet.
    pub owed: VecDeque<(Offset, u32)>,
    /// Where the log of the leader begins, by its newest `Align`.
    pub leader_start: Offset,
}

impl Local {
    pub fn at(held: &Held) -> Self {
        Self {
            written: held.end,
            synced: held.synced,
            log_start: held.log_start,
            epochs: VecDeque::new(),
            run: None,
            owed: VecDeque::new(),
            leader_start: Offset(0),
        }
    }

    /// Everything at or above `end` is gone, everything below is on the disk.
    pub fn cut_to(&mut self, end: Offset) {
        (self.written, self.synced) = (end, self.synced.min(end));
        self.epochs.clear();
    }
}

impl Replica {
    /// Tells the state machine how far the log is. To be called when a watcher of the log was called, and when the log
    /// was maintained.
    pub fn look(&mut self, now_ms: u64) {
        if !self.is_over {
            self.note_progress();
            self.run(now_ms);
        }
    }

    pub(crate) fn note_progress(&mut self) {
        let mut has_room = !self.takes_no_more;
        for (partition, one) in self.log.partitions().iter().enumerate() {
            if let PartitionState::Stopped(reason) = one.state() {
                tracing::error!(partition = one.name(), reason, "this replica stops");
                self.events.clear();
                self.events.push_back(Event::Failed);
                return;
            }
            has_room &= one.has_room();
            let local = &mut self.locals[partition];
            // In this order: what is synced is written.
            let synced = match one.doubt() {
                Some(_) => local.synced,
                None => Offset(one.synced().0),
            };
            let (end, to) = (Offset(one.written().0), Offset(one.log_start().0));
            if end > local.written {
                local.written = end;
                let begun = local.epochs.partition_point(|(_, first)| *first < end);
                let epochs = local.epochs.drain(..begun).collect();
                self.events.push_back(Event::Written {
                    partition,
                    end,
                    epochs,
                });
            }
            if synced > local.synced {
                local.synced = synced;
                let to = synced;
                self.events.push_back(Event::Synced { partition, to });
            }
            if to > local.log_start {
                local.log_start = to;
                self.events.push_back(Event::LogStart { partition, to });
            }
        }
        if has_room != self.has_room {
            self.has_room = has_room;
            self.events.push_back(Event::Room(has_room));
        }
    }
}
