//! Records that could not be read: after a temporary error the reader waits and reads again.

use headwater_log::{Batch, ReadError};

use crate::engine::delivery::sender::Delivered;
use crate::engine::ids::{PartitionIndex, PartitionOffset, Waiter};

use super::CatchingUp;

/// The batch read last: records that are sent one by one are often neighbours.
#[derive(Default)]
pub(super) struct Recent(Option<(PartitionIndex, Batch)>);

impl Recent {
    pub(super) fn holds(&self, (partition, offset): PartitionOffset) -> bool {
        self.0.as_ref().is_some_and(|(of, batch)| {
            *of == partition && (batch.base_offset()..batch.next_offset()).contains(&offset)
        })
    }
}

impl CatchingUp<'_> {
    /// The batch that holds an offset: the one read last, if possible.
    pub(super) fn read_one(
        &self,
        (partition, offset): PartitionOffset,
        recent: &mut Recent,
    ) -> Result<Option<Batch>, ReadError> {
        if recent.holds((partition, offset)) {
            return Ok(recent.0.clone().map(|(_, batch)| batch));
        }
        let log = &self.env.partitions[partition.index()];
        let batches = match log.read_tail(offset, 1) {
            Some(batches) => batches,
            None => match self.catch_up.batch_cache.batch_at(partition, offset) {
                Some(batch) => vec![batch],
                None => log.read(offset, 1)?,
            },
        };
        *recent = Recent(batches.into_iter().next().map(|batch| (partition, batch)));
        let found = recent.holds((partition, offset));
        Ok(recent.0.clone().filter(|_| found).map(|(_, batch)| batch))
    }

    /// The session or group continues where it is at the next checkpoint: nothing is skipped for lack of a file
    /// descriptor.
    pub(super) fn retry_later(&mut self, waiter: Waiter, error: &ReadError) -> Delivered {
        tracing::error!(%error, ?waiter, "a reader waits until records can be read");
        self.catch_up.read_retries.push(waiter);
        Delivered::NoRoom
    }
}
