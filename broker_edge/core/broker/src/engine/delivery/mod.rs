//! The live stream. What it fills for others, as the live offsets, is owned here: `catch_up` and `protocol` read it,
//! and this room may import neither.

pub mod dispatch;
pub mod encode;
pub mod give;
pub mod matches;
pub mod replies;
pub mod sender;
mod template;

use headwater_log::{Class, Offset, Partition, ReadError};

use super::env::Env;
use super::ids::{PartitionIndex, PartitionOffset};

use template::Templates;

/// How long to wait before repeating a read that failed temporarily.
pub const RETRY_MS: u64 = 1000;

pub struct Delivery {
    /// Per partition, the end of what was sent to the live sessions. It may be within a batch.
    live: Vec<Offset>,
    /// Per partition, when records that could not be read are read again.
    retry_at_ms: Vec<u64>,
    templates: Templates,
}

impl Delivery {
    pub fn new(partitions: &[Partition]) -> Self {
        Self {
            live: partitions.iter().map(Partition::high_watermark).collect(),
            retry_at_ms: vec![0; partitions.len()],
            templates: Templates::default(),
        }
    }

    /// The live offsets of all partitions.
    pub fn live(&self) -> &[Offset] {
        &self.live
    }

    #[inline]
    pub fn live_at(&self, partition: PartitionIndex) -> Offset {
        self.live[partition.index()]
    }

    /// The live offset of every partition in which a filter can match.
    pub fn live_in(&self, filter: &str, env: &Env) -> Vec<PartitionOffset> {
        let reached = env.partitions_of(filter).into_iter();
        reached
            .map(|partition| (partition, self.live_at(partition)))
            .collect()
    }

    /// Whether a partition has records to send now.
    fn is_due(&self, partition: &Partition, index: PartitionIndex, env: &Env) -> bool {
        partition.class() != Class::Internal
            && partition.high_watermark() > self.live_at(index)
            && self.retry_at_ms[index.index()] <= env.now.mono_ms
    }

    /// The partitions that have records to send now.
    fn due<'a>(&'a self, env: &'a Env) -> impl Iterator<Item = PartitionIndex> + 'a {
        let partitions = env.partitions.iter().zip(0..);
        let indexed = partitions.map(|(partition, index)| (partition, PartitionIndex(index)));
        indexed.filter_map(|(partition, index)| self.is_due(partition, index, env).then_some(index))
    }

    pub fn has_due(&self, env: &Env) -> bool {
        self.due(env).next().is_some()
    }
}

/// Whether the same read may succeed later.
pub fn is_passing(error: &ReadError) -> bool {
    let ReadError::Io { source, .. } = error else {
        return false;
    };
    matches!(
        source.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
    )
}
