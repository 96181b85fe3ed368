//! Records that could not be read: after a temporary error the reader waits and reads again.

use headwater_log::{Batch, Offset, ReadError};

use crate::engine::delivery::deliver::Delivered;
use crate::engine::ids::PartitionIndex;
use crate::engine::{Engine, SessionKey};

impl Engine {
    /// The batch that holds an offset, and the record's index in it.
    pub(in crate::engine) fn read_one(
        &self,
        partition: PartitionIndex,
        offset: Offset,
    ) -> Result<Option<(Batch, usize)>, ReadError> {
        let log = &self.env.partitions[partition.index()];
        let batches = match log.read_tail(offset, 1) {
            Some(batches) => batches,
            None => match self.catch_up.batch_cache.batch_at(partition, offset) {
                Some(batch) => vec![batch],
                None => log.read(offset, 1)?,
            },
        };
        let found = batches.into_iter().next().and_then(|batch| {
            let index = usize::try_from(offset.0.checked_sub(batch.base_offset().0)?).ok()?;
            (index < batch.len()).then_some((batch, index))
        });
        Ok(found)
    }

    /// The session continues from its current offset at the next checkpoint: nothing is skipped for lack of a file
    /// descriptor.
    pub(super) fn retry_later(&mut self, key: SessionKey, error: &ReadError) -> Delivered {
        tracing::error!(%error, "a session waits until records can be read");
        self.catch_up.read_retries.push(key);
        Delivered::NoRoom
    }

    pub(in crate::engine) fn read_again(&mut self) {
        for key in std::mem::take(&mut self.catch_up.read_retries) {
            self.wake_session(key);
        }
    }
}

/// How long to wait before repeating a read that failed temporarily.
pub(in crate::engine) const RETRY_MS: u64 = 1000;

/// Whether the same read may succeed later.
pub(in crate::engine) fn is_passing(error: &ReadError) -> bool {
    let ReadError::Io { source, .. } = error else {
        return false;
    };
    matches!(
        source.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
    )
}
