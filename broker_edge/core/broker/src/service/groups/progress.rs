//! Waits for a change of a partition's high watermark or state, without polling.

use std::sync::Arc;

use headwater_log::{Offset, Partition, PartitionState, Watcher};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout_at};

use crate::service::error::Refusal;

/// How long accepted records may wait for space before the caller is told.
const FULL_WAIT: Duration = Duration::from_secs(5);

/// One partition and the signal of its changes.
#[derive(Clone)]
pub struct Progress {
    partition: Partition,
    moved: watch::Receiver<()>,
    _on_move: Watcher,
}

impl Progress {
    /// Watches `partition`, as its clones do. Each watcher costs a call per commit, so create one and clone it.
    pub fn of(partition: &Partition) -> Progress {
        let (signal, moved) = watch::channel(());
        let on_move: Watcher = Arc::new(move || {
            signal.send_replace(());
        });
        partition.watch(&on_move);
        Progress {
            partition: partition.clone(),
            moved,
            _on_move: on_move,
        }
    }

    /// Waits until everything below `end` is durable; on a full disk only for a few seconds.
    pub async fn reach(&self, end: Offset) -> Result<(), Refusal> {
        let mut moved = self.moved.clone();
        let mut full_until = None;
        loop {
            moved.mark_unchanged();
            if self.partition.high_watermark() >= end {
                return Ok(());
            }
            match self.partition.state() {
                PartitionState::Running | PartitionState::Following => full_until = None,
                PartitionState::Full => {
                    full_until.get_or_insert(Instant::now() + FULL_WAIT);
                }
                PartitionState::Stopped(reason) => {
                    return Err(Refusal::stopped(&self.partition, &reason));
                }
            }
            let change = match full_until {
                None => moved.changed().await,
                Some(until) => match timeout_at(until, moved.changed()).await {
                    Ok(change) => change,
                    Err(_) => return Err(Refusal::queued_for_space(&self.partition)),
                },
            };
            if change.is_err() {
                return Err(Refusal::unavailable("the broker is stopping"));
            }
        }
    }

    /// A receiver of all changes from now on.
    pub fn moves(&self) -> watch::Receiver<()> {
        let mut moved = self.moved.clone();
        moved.mark_unchanged();
        moved
    }
}
