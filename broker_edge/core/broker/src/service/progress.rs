//! How the service waits for a partition: parked until the high watermark or the state moves, never polling.

use headwater_log::{Offset, Partition, PartitionState};
use tokio::sync::watch;

use super::error::Refusal;

/// One partition and the signal of its moves.
#[derive(Clone)]
pub(super) struct Progress {
    partition: Partition,
    moved: watch::Receiver<()>,
}

impl Progress {
    /// Watches `partition`. The log has no way to unwatch, so make one per partition and clone it.
    pub fn of(partition: &Partition) -> Progress {
        let (signal, moved) = watch::channel(());
        partition.watch(std::sync::Arc::new(move || {
            signal.send_replace(());
        }));
        Progress {
            partition: partition.clone(),
            moved,
        }
    }

    /// Waits until everything below `end` is durable.
    pub async fn reach(&self, end: Offset) -> Result<(), Refusal> {
        let mut moved = self.moved.clone();
        loop {
            moved.mark_unchanged();
            if self.partition.high_watermark() >= end {
                return Ok(());
            }
            if let PartitionState::Stopped(reason) = self.partition.state() {
                return Err(Refusal::stopped(&self.partition, &reason));
            }
            if moved.changed().await.is_err() {
                return Err(Refusal::unavailable("the broker is stopping"));
            }
        }
    }

    /// A receiver that is told of the moves from now on.
    pub fn moves(&self) -> watch::Receiver<()> {
        let mut moved = self.moved.clone();
        moved.mark_unchanged();
        moved
    }
}
