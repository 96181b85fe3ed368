//! The broker's metrics, in Prometheus format.
//!
//! Names begin with `headwater_`, units are base units, and the only label that is not a fixed word is the partition,
//! whose number the configuration bounds. Metrics that the log counts itself are in `log`. Counters are plain atomics:
//! a loop adds once per turn, not once per record.

mod auth;
mod detail;
mod durations;
mod listeners;
mod log;
mod transport;

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::Audit;

pub use auth::AuthMetrics;
pub use detail::{DetailMetrics, OfStatus};
pub use durations::Durations;
pub use listeners::{Closed, ListenerMetrics};
pub use log::LogMetrics;
pub use transport::{ConnectFailure, TransportMetrics};

/// All metrics of the broker. Gauges of partitions are set at each scrape.
#[derive(Default)]
pub struct Metrics {
    pub mqtt: MqttMetrics,
    pub flight: FlightMetrics,
    pub auth: AuthMetrics,
    /// The audit of refusals, which is not a metric; none of it becomes a label.
    pub audit: Audit,
    pub transport: TransportMetrics,
    pub detail: DetailMetrics,
    pub listeners: ListenerMetrics,
    partitions: PartitionMetrics,
    pub log: LogMetrics,
}

/// Counted by the loops.
#[derive(Default)]
pub struct MqttMetrics {
    pub connections: Gauge,
    pub connections_opened: Counter,
    pub connections_refused: Counter,
    pub sessions: Gauge,
    /// Bytes of filters, wills and long client ids that count towards the limit.
    pub session_bytes: Gauge,
    pub subscriptions: Gauge,
    pub packets_received: Counter,
    pub packets_sent: Counter,
    pub bytes_received: Counter,
    pub bytes_sent: Counter,
    /// Publishes received from clients.
    pub publishes_received: Counter,
    /// Publishes acknowledged once durable.
    pub publishes_acknowledged: Counter,
    /// Records that retention removed before a session had read them.
    pub records_expired: Counter,
    /// Publishes refused or dropped (space, queue, permission, protocol).
    pub publishes_refused: Counter,
    /// Clients refused because the limit of sessions, or of bytes held by sessions, was reached.
    pub sessions_refused: Counter,
    /// Publishes refused because the limit of retained messages was reached.
    pub retained_refused: Counter,
    /// Rights of members that were checked to find one that may receive a record of a shared group.
    pub shared_rights_checks: Counter,
    /// QoS 2 publishes that were already in the log: answered, not appended.
    pub publishes_repeated: Counter,
    /// Deliveries written to subscribers.
    pub deliveries: Counter,
    /// Dropped deliveries: QoS 0 to slow subscribers, or over the subscriber's maximum packet size.
    pub deliveries_dropped: Counter,
    /// Records of shared groups that a member returned.
    pub shared_returned: Counter,
    pub shared_groups: Gauge,
    /// Bytes of batches read from files for sessions and groups that are catching up.
    pub catch_up_read_bytes: Counter,
    pub receipts: Counter,
    pub turns: Counter,
}

/// Counted by the Flight service.
#[derive(Default)]
pub struct FlightMetrics {
    pub reads: Gauge,
    pub reads_refused: Counter,
    pub records_read: Counter,
    pub bytes_read: Counter,
    /// Memory of messages that readers have not taken, and of messages being built for them.
    pub read_memory: Gauge,
    /// Pieces of the log scanned for readers.
    pub scans: Counter,
    pub records_produced: Counter,
    pub records_duplicate: Counter,
    pub errors: Counter,
}

#[derive(Default)]
struct PartitionMetrics {
    log_start: Family<PartitionLabel, Gauge>,
    high_watermark: Family<PartitionLabel, Gauge>,
    bytes: Family<PartitionLabel, Gauge>,
    file_bytes: Family<PartitionLabel, Gauge>,
    held_offset: Family<PartitionLabel, Gauge>,
    oldest_time: Family<PartitionLabel, Gauge<f64, AtomicU64>>,
    queued_bytes: Family<PartitionLabel, Gauge>,
    running: Family<PartitionLabel, Gauge>,
    gap_offsets: Family<PartitionLabel, Gauge>,
    damaged_bytes: Family<PartitionLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabel {
    partition: String,
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
        let label = PartitionLabel {
            partition: stats.name.to_owned(),
        };
        let set = |family: &Family<PartitionLabel, Gauge>, value: u64| {
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

    /// The registry that [`encode`](prometheus_client::encoding::text::encode) turns into text.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("headwater");
        self.mqtt
            .register(registry.sub_registry_with_prefix("mqtt"));
        self.flight
            .register(registry.sub_registry_with_prefix("flight"));
        self.auth
            .register(registry.sub_registry_with_prefix("auth"));
        self.partitions
            .register(registry.sub_registry_with_prefix("partition"));
        self.partitions
            .register_damage(registry.sub_registry_with_prefix("log"));
        self.detail.register(&mut registry);
        self.listeners.register(&mut registry);
        self.log.register(&mut registry);
        self.transport.register(&mut registry);
        registry
    }
}

macro_rules! register {
    ($registry:ident, $($metric:expr, $name:literal, $help:literal;)*) => {
        $($registry.register($name, $help, $metric.clone());)*
    };
}

impl MqttMetrics {
    fn register(&self, registry: &mut Registry) {
        register! { registry,
            self.connections, "connections", "Open connections";
            self.connections_opened, "connections_opened", "Connections accepted";
            self.connections_refused, "connections_refused", "Connections refused";
            self.sessions, "sessions", "Sessions, including those of disconnected clients";
            self.session_bytes, "session_bytes", "Bytes of filters, wills and long client ids that count towards mqtt.max_session_bytes";
            self.subscriptions, "subscriptions", "Subscriptions of all sessions";
            self.packets_received, "packets_received", "Packets received";
            self.packets_sent, "packets_sent", "Packets sent";
            self.bytes_received, "received_bytes", "Bytes received";
            self.bytes_sent, "sent_bytes", "Bytes sent";
            self.publishes_received, "publishes_received", "Publishes received";
            self.publishes_acknowledged, "publishes_acknowledged", "Publishes acknowledged once durable";
            self.publishes_refused, "publishes_refused", "Publishes refused or dropped";
            self.records_expired, "records_expired", "Records removed by retention before a session had read them";
            self.sessions_refused, "sessions_refused", "Sessions refused because the limit of sessions or of their bytes was reached";
            self.retained_refused, "retained_refused", "Publishes refused because the limit of retained messages was reached";
            self.shared_rights_checks, "shared_rights_checks", "Rights of members checked to find one that may receive a record of a shared group";
            self.shared_rights_checks, "shared_looks", "Deprecated: use headwater_mqtt_shared_rights_checks_total";
            self.publishes_repeated, "publishes_repeated", "QoS 2 publishes that were already in the log";
            self.deliveries, "deliveries", "Publishes sent to subscribers";
            self.deliveries_dropped, "deliveries_dropped", "Dropped deliveries: QoS 0 to slow subscribers, or over the subscriber's maximum packet size";
            self.shared_returned, "shared_returned", "Records of shared groups that a member returned";
            self.shared_groups, "shared_groups", "Shared groups";
            self.catch_up_read_bytes, "catch_up_read_bytes", "Bytes of batches read from files for sessions that are catching up";
            self.receipts, "receipts", "Receipts of commands appended";
            self.turns, "turns", "Turns of the event loops";
        }
    }
}

impl FlightMetrics {
    fn register(&self, registry: &mut Registry) {
        register! { registry,
            self.reads, "reads", "Running reads";
            self.reads_refused, "reads_refused", "Reads refused because the limit of reads was reached";
            self.records_read, "records_read", "Records sent to readers";
            self.bytes_read, "read_bytes", "Payload bytes sent to readers";
            self.read_memory, "read_memory_bytes", "Memory of rows that readers have not taken, and of rows being built for them";
            self.scans, "scans", "Pieces of the log scanned for readers";
            self.records_produced, "records_produced", "Records appended for producers";
            self.records_duplicate, "records_duplicate", "Rows of producers that were already in the log";
            self.errors, "errors", "Calls answered with an error";
        }
    }
}

impl PartitionMetrics {
    fn register(&self, registry: &mut Registry) {
        register! { registry,
            self.log_start, "log_start_offset", "First offset in the partition";
            self.high_watermark, "high_watermark_offset", "First offset that is not yet durable";
            self.bytes, "size_bytes", "Bytes of the partition's batches";
            self.file_bytes, "file_bytes", "Bytes of the partition's files, including preallocated space";
            self.held_offset, "held_offset", "Lowest offset that a consumer group holds, or the high watermark";
            self.oldest_time, "oldest_time_seconds", "Time of the oldest record; NaN if there is none";
            self.queued_bytes, "queued_bytes", "Bytes waiting to be written";
            self.running, "running", "1 while the partition accepts appends";
        }
    }

    fn register_damage(&self, registry: &mut Registry) {
        register! { registry,
            self.gap_offsets, "gap_offsets", "Damaged offsets from the log start on";
            self.damaged_bytes, "damaged_bytes", "Damaged bytes found since the start, and those in .damaged files";
        }
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
