//! Metrics that the log counts itself, copied into the registry at each scrape: bytes written by purpose, syncs,
//! removals, the disk budget. Labels are partitions and fixed words.

use std::sync::atomic::Ordering;

use headwater_log::{Cause, DiskUse, Stats};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::durations::Durations;
use super::{OfPartition, of_partition};

metrics! {
    pub struct LogMetrics {
        "log" {
            payload_bytes: Family<OfPartition, Counter> = "payload_bytes", "Payload bytes appended";
            sync_seconds: Family<OfPartition, Durations> = "sync_seconds", "Syncs of files";
            written_bytes: Family<OfPartition<2>, Counter> =
                "written_bytes", "Bytes written to files, by purpose";
            syncs: Family<OfPartition<2>, Counter> = "syncs", "Syncs of files and folders";
            removed_segments: Family<OfPartition<2>, Counter> =
                "removed_segments", "Segments removed, by cause";
            removed_records: Family<OfPartition<2>, Counter> = "removed_records", "Records removed, by cause";
            removed_held_records: Family<OfPartition<2>, Counter> =
                "removed_held_records", "Removed records that a consumer group had not finished";
        }
        "disk" {
            disk_used: Gauge = "used_bytes", "Bytes of all files of the log";
            disk_budget: Gauge = "budget_bytes", "Limit of the bytes of all files of the log, 0 for no limit";
            disk_level: Gauge = "level", "0 normal, 1 warned, 2 acting, 3 full";
        }
    }
}

impl LogMetrics {
    /// Sets the counters of one partition to the log's own totals.
    pub fn set_partition(&self, name: &str, stats: &Stats) {
        let to = |counter: &Counter, total: u64| counter.inner().store(total, Ordering::Relaxed);
        let [partition] = of_partition(name);
        let of = |label: &'static str, word: &str| [partition.clone(), (label, word.to_owned())];
        let own = [partition.clone()];
        to(&self.payload_bytes.get_or_create(&own), stats.payload_bytes);
        for (kind, total) in [
            ("batch", stats.batch_bytes),
            ("fill", stats.fill_bytes),
            ("index", stats.index_bytes),
            ("mark", stats.checkpoint_bytes),
            ("aside", stats.quarantine_bytes),
        ] {
            to(&self.written_bytes.get_or_create(&of("kind", kind)), total);
        }
        self.sync_seconds
            .get_or_create(&own)
            .set(&stats.sync_counts, stats.sync_ns);
        for (kind, total) in [("file", stats.syncs), ("folder", stats.folder_syncs)] {
            to(&self.syncs.get_or_create(&of("kind", kind)), total);
        }
        for (cause, removed) in Cause::ALL.into_iter().zip(stats.removed) {
            for (family, total) in [
                (&self.removed_segments, removed.segments),
                (&self.removed_records, removed.records),
                (&self.removed_held_records, removed.held_records),
            ] {
                to(&family.get_or_create(&of("cause", cause.name())), total);
            }
        }
    }

    /// Sets the gauges of the disk budget; 0 means no budget.
    pub fn set_disk(&self, disk: &DiskUse) {
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.disk_used.set(number(disk.used_bytes));
        self.disk_budget.set(number(disk.budget_bytes.unwrap_or(0)));
        self.disk_level.set(disk.level as i64);
    }
}
