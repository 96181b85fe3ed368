//! What a log is opened with: settings (plain values) apart from seams (file system, clock).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{Class, LogId};
use crate::state::disk_budget::DiskConfig;
use crate::vfs::clock::Clock;
use crate::vfs::files::Files;

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
    /// Bound of what is remembered of large batches that single records were read from, over all partitions together.
    pub heads_bytes: usize,
    /// Bound of what waits for a partition's writer; an append beyond it is refused with `QueueFull`.
    pub queue_bytes: usize,
    /// How often retention, idleness, index files and spare segments are looked at; None leaves that to calls of
    /// [`Log::maintain`](crate::Log::maintain).
    pub maintain_every: Option<Duration>,
    pub disk: DiskConfig,
    /// Whether retention begins with the log; else it waits for [`Log::hold_with`](crate::Log::hold_with), so that hooks
    /// and holders are there before the first segment goes.
    pub removes_at_once: bool,
    /// In the order in which partition numbers are given out; the last class takes topics that no filter matches.
    pub classes: Vec<ClassConfig>,
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
            heads_bytes: 8 << 20,
            queue_bytes: 8 << 20,
            maintain_every: Some(Duration::from_secs(1)),
            disk: DiskConfig::default(),
            removes_at_once: true,
            classes: Class::ALL.into_iter().map(ClassConfig::new).collect(),
        }
    }
}

/// One class of the log. Filters and retention may change between starts; partitions and template are fixed at creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassConfig {
    pub class: Class,
    pub partitions: u32,
    /// MQTT filters of the topics that belong here.
    pub filters: Vec<String>,
    /// Names the level that routes, such as `devices/{device}/#`. Other topics route by the whole topic.
    pub template: Option<String>,
    /// Size of a partition above which its oldest segments go.
    pub retention_bytes: Option<u64>,
    pub retention_age: Option<Duration>,
    /// Whether what a [`Holders`](crate::Holders) holds stays in spite of the two above.
    pub honours_holds: bool,
    /// Size of a partition above which its oldest segments go, held or not.
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

/// The outside world of a log.
#[derive(Clone)]
pub struct Seams {
    pub files: Arc<dyn Files>,
    pub clock: Arc<dyn Clock>,
}

impl Seams {
    #[must_use]
    pub fn system() -> Self {
        crate::faults::seams()
    }
}
