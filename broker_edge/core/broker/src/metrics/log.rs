//! Metrics that the log counts itself, copied into the registry at each scrape: bytes written by purpose, syncs,
//! removals, the disk budget. Labels are partitions and fixed words.

use std::sync::atomic::Ordering;

use headwater_log::{Cause, DiskUse, Stats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::durations::Durations;

#[derive(Default)]
pub struct LogMetrics {
    payload_bytes: Family<Of, Counter>,
    written_bytes: Family<OfKind, Counter>,
    syncs: Family<OfKind, Counter>,
    sync_seconds: Family<Of, Durations>,
    removed_segments: Family<OfCause, Counter>,
    removed_records: Family<OfCause, Counter>,
    removed_held_records: Family<OfCause, Counter>,
    disk_used: Gauge,
    disk_budget: Gauge,
    disk_level: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    partition: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    partition: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCause {
    partition: String,
    cause: &'static str,
}

impl LogMetrics {
    /// Sets the counters of one partition to the log's own totals.
    pub fn set_partition(&self, name: &str, stats: &Stats) {
        let to = |counter: &Counter, total: u64| counter.inner().store(total, Ordering::Relaxed);
        let partition = || name.to_owned();
        let of = Of {
            partition: partition(),
        };
        to(&self.payload_bytes.get_or_create(&of), stats.payload_bytes);
        for (kind, total) in [
            ("batch", stats.batch_bytes),
            ("fill", stats.fill_bytes),
            ("index", stats.index_bytes),
            ("mark", stats.checkpoint_bytes),
            ("aside", stats.quarantine_bytes),
        ] {
            let label = OfKind {
                partition: partition(),
                kind,
            };
            to(&self.written_bytes.get_or_create(&label), total);
        }
        self.sync_seconds
            .get_or_create(&of)
            .set(&stats.sync_counts, stats.sync_ns);
        for (kind, total) in [("file", stats.syncs), ("folder", stats.folder_syncs)] {
            let label = OfKind {
                partition: partition(),
                kind,
            };
            to(&self.syncs.get_or_create(&label), total);
        }
        for (cause, removed) in Cause::ALL.into_iter().zip(stats.removed) {
            let label = OfCause {
                partition: partition(),
                cause: cause.name(),
            };
            to(
                &self.removed_segments.get_or_create(&label),
                removed.segments,
            );
            to(&self.removed_records.get_or_create(&label), removed.records);
            to(
                &self.removed_held_records.get_or_create(&label),
                removed.held_records,
            );
        }
    }

    /// Sets the gauges of the disk budget; 0 means no budget.
    pub fn set_disk(&self, disk: &DiskUse) {
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.disk_used.set(number(disk.used_bytes));
        self.disk_budget.set(number(disk.budget_bytes.unwrap_or(0)));
        self.disk_level.set(disk.level as i64);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let log = registry.sub_registry_with_prefix("log");
        log.register(
            "payload_bytes",
            "Payload bytes appended",
            self.payload_bytes.clone(),
        );
        log.register("sync_seconds", "Syncs of files", self.sync_seconds.clone());
        for (name, help, family) in [
            (
                "written_bytes",
                "Bytes written to files, by purpose",
                &self.written_bytes,
            ),
            ("syncs", "Syncs of files and folders", &self.syncs),
        ] {
            log.register(name, help, family.clone());
        }
        for (name, help, family) in [
            (
                "removed_segments",
                "Segments removed, by cause",
                &self.removed_segments,
            ),
            (
                "removed_records",
                "Records removed, by cause",
                &self.removed_records,
            ),
            (
                "removed_held_records",
                "Removed records that a consumer group had not finished",
                &self.removed_held_records,
            ),
        ] {
            log.register(name, help, family.clone());
        }
        let disk = registry.sub_registry_with_prefix("disk");
        for (name, help, gauge) in [
            (
                "used_bytes",
                "Bytes of all files of the log",
                &self.disk_used,
            ),
            (
                "budget_bytes",
                "Limit of the bytes of all files of the log, 0 for no limit",
                &self.disk_budget,
            ),
            (
                "level",
                "0 normal, 1 warned, 2 acting, 3 full",
                &self.disk_level,
            ),
        ] {
            disk.register(name, help, gauge.clone());
        }
    }
}
