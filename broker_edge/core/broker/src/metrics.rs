//! The broker's metrics, in Prometheus format.
//!
//! Names begin with `headwater_`, but those of the process; units are base units, and the only label that is not a fixed word is the partition,
//! whose number the configuration bounds. Metrics that the log counts itself are in `log`. Counters are plain atomics:
//! a loop adds once per turn, not once per record.
//!
//! A new counter of the loop: a field in `MqttMetrics` (with labels: `detail`), its name in
//! `engine/observe/turn_metrics`, a row in `docs/operating.md`, and `make reference`. A test finds one that is not
//! documented.

/// Declares a struct of metrics by the prefixes of their names, each with its name and its help, and `also` with an old
/// name.
macro_rules! metrics {
    (@under $registry:ident "") => {
        &mut *$registry
    };
    (@under $registry:ident $prefix:literal) => {
        $registry.sub_registry_with_prefix($prefix)
    };
    (
        $(#[$about:meta])*
        $pub:vis struct $Name:ident {
            $($prefix:tt {
                $($(#[$doc:meta])* $vis:vis $metric:ident: $Type:ty = $name:literal, $help:literal
                    $(, also $old:literal, $old_help:literal)?;)+
            })+
        }
    ) => {
        $(#[$about])*
        #[derive(Default)]
        $pub struct $Name {
            $($($(#[$doc])* $vis $metric: $Type,)+)+
        }

        impl $Name {
            pub(super) fn register(&self, registry: &mut Registry) {
                $({
                    let registry = metrics!(@under registry $prefix);
                    $(
                        registry.register($name, $help, self.$metric.clone());
                        $(registry.register($old, $old_help, self.$metric.clone());)?
                    )+
                })+
            }
        }
    };
}

mod auth;
mod cluster;
mod detail;
mod durations;
mod listeners;
mod log;
mod process;
mod text;
mod transport;

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::VERSION;
use crate::audit::Audit;
use crate::client_events::ClientEvents;

pub use auth::AuthMetrics;
pub use cluster::ClusterMetrics;
pub use detail::DetailMetrics;
pub use durations::Durations;
pub use listeners::{Closed, ListenerMetrics};
pub use log::LogMetrics;
pub use text::Format;
pub use transport::{ConnectFailure, GaugePart, TransportMetrics};

/// Names of labels with fixed words.
type Label<const N: usize = 1> = [(&'static str, &'static str); N];
/// The labels of a partition: its name, and a fixed word if there are two.
type OfPartition<const N: usize = 1> = [(&'static str, String); N];

fn of_partition(name: &str) -> OfPartition {
    [("partition", name.to_owned())]
}

/// All metrics of the broker. Gauges of partitions are set at each scrape.
#[derive(Default)]
pub struct Metrics {
    pub mqtt: MqttMetrics,
    pub flight: FlightMetrics,
    pub auth: AuthMetrics,
    /// The audit of refusals, which is not a metric; none of it becomes a label.
    pub audit: Audit,
    /// No metric either.
    pub events: ClientEvents,
    pub transport: TransportMetrics,
    pub detail: DetailMetrics,
    pub listeners: ListenerMetrics,
    partitions: PartitionMetrics,
    pub log: LogMetrics,
    /// Of a node of a cluster, as it has answered last; None if it did not.
    pub cluster: Mutex<Option<ClusterMetrics>>,
}

metrics! {
    /// Counted by the loops.
    pub struct MqttMetrics {
        "mqtt" {
            pub connections: Gauge = "connections", "Open connections";
            pub connections_opened: Counter = "connections_opened", "Connections accepted";
            pub connections_refused: Counter = "connections_refused", "Connections refused";
            pub sessions: Gauge = "sessions", "Sessions, including those of disconnected clients";
            pub session_bytes: Gauge =
                "session_bytes", "Bytes of filters, wills and long client ids that count towards mqtt.max_session_bytes";
            pub subscriptions: Gauge = "subscriptions", "Subscriptions of all sessions";
            pub send_waiting_bytes: Gauge =
                "send_waiting_bytes", "Bytes that wait for sockets and count towards mqtt.send_budget_bytes";
            pub packets_received: Counter = "packets_received", "Packets received";
            pub packets_sent: Counter = "packets_sent", "Packets sent";
            pub bytes_received: Counter = "received_bytes", "Bytes received";
            pub bytes_sent: Counter = "sent_bytes", "Bytes sent";
            pub publishes_received: Counter = "publishes_received", "Publishes received";
            pub publishes_acknowledged: Counter =
                "publishes_acknowledged", "Publishes acknowledged once durable";
            /// Publishes refused or dropped (space, queue, permission, protocol).
            pub publishes_refused: Counter = "publishes_refused", "Publishes refused or dropped";
            pub records_expired: Counter =
                "records_expired", "Records removed by retention before a session had read them";
            pub sessions_refused: Counter =
                "sessions_refused", "Sessions refused because the limit of sessions or of their bytes was reached";
            pub retained_refused: Counter =
                "retained_refused", "Publishes refused because the limit of retained messages was reached";
            pub shared_rights_checks: Counter =
                "shared_rights_checks", "Rights of members checked to find one that may receive a record of a shared group"
                , also "shared_looks", "Deprecated: use headwater_mqtt_shared_rights_checks_total";
            /// QoS 2 publishes that were already in the log: answered, not appended.
            pub publishes_repeated: Counter =
                "publishes_repeated", "QoS 2 publishes that were already in the log";
            pub deliveries: Counter = "deliveries", "Publishes sent to subscribers";
            pub deliveries_dropped: Counter =
                "deliveries_dropped", "Dropped deliveries: QoS 0 to slow subscribers, or over the subscriber's maximum packet size";
            pub shared_returned: Counter =
                "shared_returned", "Records of shared groups that a member returned";
            pub shared_groups: Gauge = "shared_groups", "Shared groups";
            /// Bytes of batches read from files for sessions and groups that are catching up.
            pub catch_up_read_bytes: Counter =
                "catch_up_read_bytes", "Bytes of batches read from files for sessions that are catching up";
            pub receipts: Counter = "receipts", "Receipts of commands appended";
            pub turns: Counter = "turns", "Turns of the event loops";
        }
    }
}

metrics! {
    /// Counted by the Flight service.
    pub struct FlightMetrics {
        "flight" {
            pub reads: Gauge = "reads", "Running reads";
            pub reads_refused: Counter =
                "reads_refused", "Reads refused because the limit of reads was reached";
            pub records_read: Counter = "records_read", "Records sent to readers";
            pub bytes_read: Counter = "read_bytes", "Payload bytes sent to readers";
            pub read_memory: Gauge =
                "read_memory_bytes", "Memory of rows that readers have not taken, and of rows being built for them";
            pub scans: Counter = "scans", "Pieces of the log scanned for readers";
            pub records_produced: Counter = "records_produced", "Records appended for producers";
            pub records_duplicate: Counter =
                "records_duplicate", "Rows of producers that were already in the log";
            pub errors: Counter = "errors", "Calls answered with an error";
        }
    }
}

metrics! {
    struct PartitionMetrics {
        "partition" {
            log_start: Family<OfPartition, Gauge> = "log_start_offset", "First offset in the partition";
            high_watermark: Family<OfPartition, Gauge> =
                "high_watermark_offset", "First offset that is not yet durable";
            bytes: Family<OfPartition, Gauge> = "size_bytes", "Bytes of the partition's batches";
            file_bytes: Family<OfPartition, Gauge> =
                "file_bytes", "Bytes of the partition's files, including preallocated space";
            held_offset: Family<OfPartition, Gauge> =
                "held_offset", "Lowest offset that a consumer group holds, or the high watermark";
            oldest_time: Family<OfPartition, Gauge<f64, AtomicU64>> =
                "oldest_time_seconds", "Time of the oldest record; NaN if there is none";
            queued_bytes: Family<OfPartition, Gauge> = "queued_bytes", "Bytes waiting to be written";
            running: Family<OfPartition, Gauge> = "running", "1 while the partition accepts appends";
        }
        "log" {
            gap_offsets: Family<OfPartition, Gauge> = "gap_offsets", "Damaged offsets from the log start on";
            damaged_bytes: Family<OfPartition, Gauge> =
                "damaged_bytes", "Damaged bytes found since the start, and those in .damaged files";
        }
    }
}

/// The metrics of a partition at a scrape.
#[derive(Clone, Debug)]
pub struct PartitionStats<'a> {
    pub name: &'a str,
    pub log_start: u64,
    pub high_watermark: u64,
    pub bytes: u64,
    pub file_bytes: u64,
    /// The lowest offset that a consumer group holds, or the high watermark.
    pub held_offset: u64,
    /// Unix seconds; `None` when the partition is empty.
    pub oldest_time_s: Option<f64>,
    pub queued_bytes: usize,
    pub running: bool,
    /// Damaged offsets from the log start on.
    pub gap_offsets: u64,
    pub damaged_bytes: u64,
}

impl Metrics {
    /// Sets the gauges of one partition.
    pub fn set_partition(&self, stats: &PartitionStats<'_>) {
        let label = of_partition(stats.name);
        let set = |family: &Family<OfPartition, Gauge>, value: u64| {
            family
                .get_or_create(&label)
                .set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&self.partitions.log_start, stats.log_start);
        set(&self.partitions.high_watermark, stats.high_watermark);
        set(&self.partitions.bytes, stats.bytes);
        set(&self.partitions.file_bytes, stats.file_bytes);
        set(&self.partitions.held_offset, stats.held_offset);
        let oldest = self.partitions.oldest_time.get_or_create(&label);
        oldest.set(stats.oldest_time_s.unwrap_or(f64::NAN));
        set(&self.partitions.queued_bytes, stats.queued_bytes as u64);
        set(&self.partitions.running, u64::from(stats.running));
        set(&self.partitions.gap_offsets, stats.gap_offsets);
        set(&self.partitions.damaged_bytes, stats.damaged_bytes);
    }

    /// All of them, and those of the process.
    pub fn registry(&self) -> Registry {
        let mut whole = Registry::default();
        process::register(&mut whole);
        let registry = whole.sub_registry_with_prefix("headwater");
        let build = Family::<Label, Gauge>::default();
        build.get_or_create(&[("version", VERSION)]).set(1);
        registry.register("build_info", "1, with the version of the broker", build);
        // Initialized so that they are 0 rather than missing before the first event.
        self.auth.start_at_zero();
        self.detail.start_at_zero();
        self.listeners.start_at_zero();
        self.transport.start_at_zero();
        self.mqtt.register(registry);
        self.flight.register(registry);
        self.auth.register(registry);
        self.partitions.register(registry);
        self.detail.register(registry);
        self.listeners.register(registry);
        self.log.register(registry);
        self.transport.register(registry);
        if let Some(cluster) = &*self.cluster.lock() {
            cluster.register(registry);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::{Metrics, PartitionStats};

    #[test]
    fn a_scrape_shows_counters_and_partitions_by_name() {
        let metrics = Metrics::default();
        metrics.mqtt.publishes_acknowledged.inc_by(3);
        metrics.set_partition(&PartitionStats {
            name: "telemetry-0",
            log_start: 1,
            high_watermark: 9,
            bytes: 512,
            file_bytes: 4096,
            held_offset: 9,
            oldest_time_s: None,
            queued_bytes: 0,
            running: true,
            gap_offsets: 7,
            damaged_bytes: 0,
        });
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &metrics.registry()).unwrap();
        assert!(
            text.contains("headwater_mqtt_publishes_acknowledged_total 3"),
            "{text}"
        );
        assert!(
            text.contains("headwater_partition_high_watermark_offset{partition=\"telemetry-0\"} 9"),
            "{text}"
        );
        assert!(
            text.contains("headwater_log_gap_offsets{partition=\"telemetry-0\"} 7"),
            "{text}"
        );
    }
}
