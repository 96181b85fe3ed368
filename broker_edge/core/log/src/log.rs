//! A log: the partitions of one folder, opened together.

use std::sync::Arc;

use crate::config::{LogConfig, Seams};
use crate::error::OpenError;
use crate::ids::{LogId, Offset, PartitionId};
use crate::partition::{Gap, Partition};
use crate::route::{Route, Router};

/// What opening found, per partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    pub created: bool,
    pub partitions: Vec<PartitionReport>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionReport {
    pub name: String,
    pub log_start: Offset,
    pub high_watermark: Offset,
    /// Bytes of an unfinished write that were cut off and kept aside.
    pub torn_bytes: u64,
    pub gaps: Vec<Gap>,
    pub rebuilt_indexes: usize,
    pub notes: Vec<String>,
}

#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    id: LogId,
    partitions: Vec<Partition>,
    router: Router,
}

#[allow(clippy::missing_errors_doc, unused_variables)]
impl Log {
    /// Opens or creates the log in `config.dir` and holds its lock until the last handle is gone.
    pub fn open(config: LogConfig, seams: Seams) -> Result<(Self, RecoveryReport), OpenError> {
        unimplemented!()
    }

    pub fn id(&self) -> LogId {
        self.0.id
    }

    /// All partitions; the index is the partition's number.
    pub fn partitions(&self) -> &[Partition] {
        &self.0.partitions
    }

    pub fn partition(&self, id: PartitionId) -> Option<&Partition> {
        self.0.partitions.get(id.0 as usize)
    }

    pub fn by_name(&self, name: &str) -> Option<&Partition> {
        self.0
            .partitions
            .iter()
            .find(|partition| partition.name() == name)
    }

    /// Where records of a topic go. Pure: keep the answer per topic.
    pub fn route(&self, topic: &str) -> Route {
        self.0.router.route(topic)
    }

    /// Writes and syncs what is queued, marks the clean stop and refuses further appends. Idempotent.
    pub fn shutdown(&self) {
        unimplemented!()
    }
}
