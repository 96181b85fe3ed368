//! Settings of the commit log: syncs, files, memory, and what is kept.

use std::path::PathBuf;

use super::declare::{Kind, age, bytes, choice, days, gib, kib, mib, ms, secs, settings, whole};
use super::units::{Age, ByteSize};

settings! {
    pub struct LogSettings {
        /// Log id that the folder must have. A new folder gets this id.
        id: Option<String> = None, Kind::LogId;
        /// When records are synced to disk.
        sync: Sync = Sync::Always;
        /// Time between two syncs with `sync: interval`.
        sync_interval: Age = secs(1), age(ms(1), days(1));
        /// When a publish over MQTT is acknowledged with `sync: interval`. Flight always waits for the sync.
        ack: Ack = Ack::Synced;
        /// A consumer group that has committed nothing for this long no longer holds back retention. Without a value a
        /// group holds its records until the group is removed.
        group_idle: Option<Age> = Some(days(7)), age(secs(60), days(36_500));
        /// Size of a segment file.
        segment_bytes: ByteSize = mib(64), bytes(kib(64), gib(4));
        /// Memory for the newest records, all partitions together.
        tail_bytes: ByteSize = mib(32), bytes(mib(1), gib(64));
        /// Memory for the filters of idempotency keys, 1.5 bytes a key, all partitions together.
        key_filter_bytes: ByteSize = mib(32), bytes(kib(64), gib(64));
        /// Memory for the headers of large batches.
        #[retired = "the broker does not cache the headers of batches"]
        heads_bytes: Option<ByteSize> = None, bytes(ByteSize(0), gib(64));
        /// Records that wait to be written, per partition. A record published over MQTT counts at least 128 bytes; beyond
        /// that each connection may still add a few.
        queue_bytes: ByteSize = mib(8), bytes(kib(64), gib(1));
        /// Folder for backups that are requested over Flight; it must be outside `data_dir`. Without it such requests
        /// are refused.
        backup_dir: Option<PathBuf> = None, Kind::Folder;
    }
    sections {
        /// The disk budget of the whole log.
        disk: Disk;
        /// Each class has its own partitions and its own retention.
        classes: Classes;
    }
}

choice! {
    pub enum Sync {
        /// before each acknowledgement
        Always = "always",
        /// every `sync_interval`
        Interval = "interval",
        /// not at all; for benchmarks only, because acknowledged records can be lost
        Never = "never",
    }
}

choice! {
    /// The point after which MQTT acknowledges.
    pub enum Ack {
        /// after the next sync
        Synced = "synced",
        /// after the write; a power cut loses records that were acknowledged since the last sync
        Written = "written",
    }
}

settings! {
    /// The disk budget of the whole log.
    pub struct Disk {
        /// Maximum size of all files of the log together. Without a value it is their present size plus the free space of
        /// the file system.
        budget: Option<ByteSize> = None, bytes(mib(64), ByteSize(1 << 50));
        /// Percentage of the budget at which the broker warns.
        warn_at: u8 = 80, whole(1, 99);
        /// Percentage of the budget at which the broker takes `action`.
        act_at: u8 = 95, whole(1, 99);
        /// What the broker does at `act_at`.
        action: DiskAction = DiskAction::Refuse;
    }
}

choice! {
    pub enum DiskAction {
        /// refuse new telemetry
        Refuse = "refuse",
        /// delete the oldest telemetry, including records that retention would keep
        Trim = "trim",
    }
}

settings! {
    pub struct Classes {}
    sections {
        /// Commands to devices and their receipts.
        control: ClassSettings = Classes::shipped_control();
        /// Firmware and other files for devices.
        artifacts: ClassSettings = Classes::class(1, &["artifacts/#"], None);
        /// All other topics.
        telemetry: ClassSettings = Classes::shipped_telemetry();
    }
}

settings! {
    /// The defaults here are only what a typed parse needs; the real ones differ by class, see [`Classes`].
    pub struct ClassSettings {
        /// Partitions of the class.
        #[effect = AtCreation]
        partitions: u32 = 1, whole(1, 1024);
        /// Topic filters of the class. `control` is matched first, `telemetry` last.
        filters: Vec<String> = Vec::new(), Kind::Filters;
        /// Topic pattern whose level in braces chooses the partition. Without it the whole topic does.
        template: Option<String> = None, Kind::Template;
    }
    sections {
        /// Retention applies to each partition separately and deletes the oldest segments first.
        retention: Retention;
    }
}

settings! {
    pub struct Retention {
        /// Size of a partition above which its oldest segments are deleted. Without a value no segment is deleted for
        /// its size.
        bytes: Option<ByteSize> = None, bytes(kib(128), ByteSize(1 << 50));
        /// Age at which a segment is deleted. Without a value no segment is deleted for its age.
        age: Option<Age> = None, age(secs(1), days(36_500));
        /// Whether a segment that a consumer group has not finished is kept in spite of `bytes` and `age`.
        hold_for_groups: bool = false;
        /// Size of a partition above which its oldest segments are deleted even if a group holds them. Without a value
        /// the group wins until the disk is full.
        hard_bytes: Option<ByteSize> = None, bytes(kib(128), ByteSize(1 << 50));
    }
}

/// The template of devices: one device, one partition.
const DEVICE: &str = "devices/{device}/#";

impl Classes {
    fn class(partitions: u32, filters: &[&str], template: Option<&str>) -> ClassSettings {
        ClassSettings {
            partitions,
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            template: template.map(str::to_owned),
            retention: Retention::default(),
        }
    }

    fn shipped_control() -> ClassSettings {
        ClassSettings {
            retention: Retention {
                bytes: None,
                age: Some(days(30)),
                hold_for_groups: true,
                hard_bytes: Some(gib(4)),
            },
            ..Self::class(
                1,
                &["devices/+/actions", "$receipts", "$gaps"],
                Some(DEVICE),
            )
        }
    }

    fn shipped_telemetry() -> ClassSettings {
        ClassSettings {
            retention: Retention {
                bytes: Some(gib(8)),
                age: Some(days(1)),
                hold_for_groups: true,
                hard_bytes: Some(gib(16)),
            },
            ..Self::class(2, &["#"], Some(DEVICE))
        }
    }
}
