//! The settings of a log: plain values. File system and clock are separate, in `vfs`.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::OpenError;
use crate::ids::{Class, Epoch, LogId, Offset, Secret};

/// Room for a header and a few batches; smaller segments would only waste files.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;

/// When the bytes of a batch are forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Before the high watermark moves over them. The default.
    Always,
    /// At least this often; [`written`](crate::Partition::written) runs ahead of the high watermark meanwhile.
    Interval(Duration),
    /// Never: a power cut loses acknowledged records. For negative controls and benchmarks only.
    Never,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
    pub dir: PathBuf,
    /// Refuse a folder of another log; a new folder is created with this id, else with a random one.
    pub expected_id: Option<LogId>,
    pub sync: SyncMode,
    /// A segment is sealed when the next batch would make it larger than this.
    pub segment_bytes: u64,
    /// Bound of the newest batches kept in memory, over all partitions together.
    pub tail_bytes: usize,
    /// Bound of the filters of idempotency keys kept in memory, over all partitions together. Keys of segments without
    /// one are looked up in the index files alone.
    pub key_filter_bytes: usize,
    /// Bound of the queue of a partition's writer; an append beyond it is refused with `QueueFull`.
    pub queue_bytes: usize,
    /// How often the maintenance thread runs (retention, checkpoints, index files, spare segments); None leaves that to
    /// calls of [`Log::maintain`](crate::Log::maintain).
    pub maintain_every: Option<Duration>,
    pub disk: DiskConfig,
    /// Whether retention begins when the log is opened; else it waits for [`Log::hold_with`](crate::Log::hold_with), so
    /// that hooks and holders are there before the first segment is removed.
    pub removes_at_once: bool,
    /// The log is one of several copies: records are committed by [`Partition::commit_to`](crate::Partition::commit_to)
    /// and not by the sync alone. None for a log alone.
    pub replica: Option<ReplicaConfig>,
    /// In the order in which partition numbers are given out; the last class takes topics that no filter matches.
    pub classes: Vec<ClassConfig>,
    /// Whether each partition is written by a thread of its own. Else by [`Partition::work`](crate::Partition::work),
    /// for tests that decide themselves what happens next.
    pub has_writers: bool,
}

impl LogConfig {
    /// The defaults of `broker.yaml` for `dir`: one internal, one control, one artifacts and one telemetry partition.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            expected_id: None,
            sync: SyncMode::Always,
            segment_bytes: 64 << 20,
            tail_bytes: 32 << 20,
            key_filter_bytes: 32 << 20,
            queue_bytes: 8 << 20,
            maintain_every: Some(Duration::from_secs(1)),
            disk: DiskConfig::default(),
            removes_at_once: true,
            replica: None,
            has_writers: true,
            classes: Class::ALL.into_iter().map(ClassConfig::new).collect(),
        }
    }

    /// Refuses settings that no log can have.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let wrong = |reason: String| Err(OpenError::Settings { reason });
        if self.classes.is_empty() {
            return wrong("a log needs at least one class".to_owned());
        }
        for (at, class) in self.classes.iter().enumerate() {
            let (name, before) = (class.class, &self.classes[..at]);
            if class.partitions == 0 {
                return wrong(format!("class {name} needs at least one partition"));
            }
            if before.iter().any(|other| other.class == name) {
                return wrong(format!("class {name} is there twice"));
            }
        }
        if self.replica.is_some() && self.sync == SyncMode::Never {
            return wrong("a replica must sync: what it answers for is on its disk".to_owned());
        }
        let bytes = self.segment_bytes;
        if bytes < SEGMENT_BYTES_MIN {
            return wrong(format!(
                "segment_bytes is {bytes}, the least is {SEGMENT_BYTES_MIN}"
            ));
        }
        Ok(())
    }
}

/// What a replica knows when it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// The node of the cluster. A new folder is marked as its own; that of another node, or of a log alone, is refused.
    pub node: String,
    /// By partition number: an offset below which everything was committed, as noted some time ago; 0 for partitions
    /// that are not named.
    pub committed: Vec<Offset>,
    /// By partition number: remove all that is there and begin at this offset, because what is there has a hole or too
    /// little to be cut.
    pub begin_anew_at: Vec<Option<Offset>>,
    /// Of the cluster's log, whose id is `LogConfig::expected_id`: a new folder is created with it, another is refused.
    pub secret: Option<Secret>,
    /// The newest epoch in which it has taken batches, as far as that is known; 0 for a new one. It starts as a
    /// follower in this epoch, or in that of its newest batch.
    pub epoch: Epoch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Bound of all files of the log together. None: what they use plus the free space of the file system.
    pub budget_bytes: Option<u64>,
    pub warn_percent: u8,
    pub act_percent: u8,
    pub action: DiskAction,
}

impl Default for DiskConfig {
    /// No bound but the file system's, a warning at 80 % and telemetry refused at 95 %.
    fn default() -> Self {
        Self {
            budget_bytes: None,
            warn_percent: 80,
            act_percent: 95,
            action: DiskAction::Refuse,
        }
    }
}

/// What happens at [`DiskLevel::Acting`](crate::DiskLevel::Acting).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskAction {
    /// Telemetry is refused.
    Refuse,
    /// The oldest telemetry is removed, even where retention would keep it.
    Trim,
}

/// One class of the log. Filters and retention may change between starts; partitions and template are fixed at
/// creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassConfig {
    pub class: Class,
    pub partitions: u32,
    /// MQTT filters of the topics that belong here.
    pub filters: Vec<String>,
    /// Names the level that routes, such as `devices/{device}/#`. Other topics route by the whole topic.
    pub template: Option<String>,
    /// Size of a partition above which its oldest segments are removed.
    pub retention_bytes: Option<u64>,
    pub retention_age: Option<Duration>,
    /// Whether records that a [`Holders`](crate::Holders) holds stay in spite of the two settings above.
    pub honours_holds: bool,
    /// Size of a partition above which its oldest segments are removed, held or not.
    pub retention_hard_bytes: Option<u64>,
}

impl ClassConfig {
    /// One partition, the default filters and template of the class, unlimited retention.
    #[must_use]
    pub fn new(class: Class) -> Self {
        let filters: &[&str] = match class {
            Class::Internal => &["$state/#"],
            Class::Control => &["devices/+/actions", "$receipts", "$gaps"],
            Class::Artifacts => &["artifacts/#"],
            Class::Telemetry => &["#"],
        };
        let template = matches!(class, Class::Control | Class::Telemetry)
            .then(|| "devices/{device}/#".to_owned());
        Self {
            class,
            partitions: 1,
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            template,
            retention_bytes: None,
            retention_age: None,
            honours_holds: false,
            retention_hard_bytes: None,
        }
    }
}
