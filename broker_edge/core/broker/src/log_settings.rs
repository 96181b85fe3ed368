//! The settings of the log, in the log's own words.

use headwater_log::{
    Class, ClassConfig, DiskAction as LogDiskAction, DiskConfig, LogConfig, SyncMode,
};

use crate::config::{Ack, ClassSettings, Config, Disk, DiskAction, LogSettings, Sync};

/// The settings of the log. The internal class comes first, because it is always partition 0.
pub fn log_config(config: &Config) -> LogConfig {
    let settings = &config.log;
    let classes = &settings.classes;
    LogConfig {
        dir: config.data_dir.clone(),
        // The settings were checked to contain a UUID.
        expected_id: settings.id.as_deref().and_then(|id| id.parse().ok()),
        sync: match settings.sync {
            Sync::Always => SyncMode::Always,
            Sync::Interval => SyncMode::Interval(settings.sync_interval.0),
            Sync::Never => SyncMode::Never,
        },
        segment_bytes: settings.segment_bytes.0,
        tail_bytes: settings.tail_bytes.as_usize(),
        key_filter_bytes: settings.key_filter_bytes.as_usize(),
        queue_bytes: settings.queue_bytes.as_usize(),
        maintain_every: Some(std::time::Duration::from_secs(1)),
        disk: disk_config(&settings.disk),
        removes_at_once: false,
        replica: None,
        has_writers: true,
        classes: vec![
            ClassConfig::new(Class::Internal),
            class_config(Class::Control, &classes.control),
            class_config(Class::Artifacts, &classes.artifacts),
            class_config(Class::Telemetry, &classes.telemetry),
        ],
    }
}

/// What a record of MQTT counts at least in `log.queue_bytes`.
const QUEUED_RECORD_BYTES_MIN: u64 = 128;

/// The records of MQTT that may wait to be written, per partition.
pub fn queued_records_max(log: &LogSettings) -> u64 {
    log.queue_bytes.0 / QUEUED_RECORD_BYTES_MIN
}

/// Whether MQTT acknowledges records that are written but not yet synced. With `sync: never` nothing is ever synced.
pub fn acks_written(log: &LogSettings) -> bool {
    match log.sync {
        Sync::Always => false,
        Sync::Interval => log.ack == Ack::Written,
        Sync::Never => true,
    }
}

fn disk_config(disk: &Disk) -> DiskConfig {
    DiskConfig {
        budget_bytes: disk.budget.map(|budget| budget.0),
        warn_percent: disk.warn_at,
        act_percent: disk.act_at,
        action: match disk.action {
            DiskAction::Refuse => LogDiskAction::Refuse,
            DiskAction::Trim => LogDiskAction::Trim,
        },
    }
}

fn class_config(class: Class, settings: &ClassSettings) -> ClassConfig {
    ClassConfig {
        class,
        partitions: settings.partitions,
        filters: settings.filters.clone(),
        template: settings.template.clone(),
        retention_bytes: settings.retention.bytes.map(|bytes| bytes.0),
        retention_age: settings.retention.age.map(|age| age.0),
        honours_holds: settings.retention.hold_for_groups,
        retention_hard_bytes: settings.retention.hard_bytes.map(|bytes| bytes.0),
    }
}
