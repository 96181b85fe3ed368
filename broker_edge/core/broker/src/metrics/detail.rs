//! Details for operators: clients by transport and version, refusals by reason, pauses of reading by cause, durations
//! of acknowledgements and turns. Labels are fixed words, never text of a peer.

use std::fmt::Write;

use headwater_mqtt::ReasonCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::durations::Durations;
use crate::engine::PauseCause;

#[derive(Default)]
pub struct DetailMetrics {
    clients: Family<OfKind, Gauge>,
    refusals: Family<OfReason, Counter>,
    pauses: Family<OfCause, Counter>,
    /// Accepted CONNECTs.
    pub clients_accepted: Counter,
    pub sessions_expired: Counter,
    /// Publishes refused because the limit of topics of their client was reached.
    pub topics_refused: Counter,
    pub publish_received_bytes: Counter,
    pub publish_sent_bytes: Counter,
    /// Time from the turn that received a publish to its acknowledgement.
    pub ack_latency: Durations,
    pub turns: Durations,
    /// 1 while the broker is drained.
    pub draining: Gauge,
    /// Log lines about clients that were dropped because there were too many.
    pub client_log_lines_dropped: Counter,
    pub admin_connections: Gauge,
    pub admin_requests: Family<OfStatus, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    transport: &'static str,
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    packet: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCause {
    cause: &'static str,
}

/// The first digit of the status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfStatus {
    pub status: &'static str,
}

impl DetailMetrics {
    pub fn set_clients(&self, transport: &'static str, version: &'static str, count: i64) {
        let kind = OfKind { transport, version };
        self.clients.get_or_create(&kind).set(count);
    }

    pub fn refused(&self, packet: &'static str, reason: ReasonCode, count: u64) {
        let of = OfReason {
            packet,
            reason: snake_case(reason),
        };
        self.refusals.get_or_create(&of).inc_by(count);
    }

    pub fn paused(&self, cause: &'static str, count: u64) {
        self.pauses.get_or_create(&OfCause { cause }).inc_by(count);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // Initialized so that it is 0 rather than missing before the first event.
        for (_, cause) in PauseCause::ALL {
            self.pauses.get_or_create(&OfCause { cause }).inc_by(0);
        }
        let mqtt = registry.sub_registry_with_prefix("mqtt");
        mqtt.register(
            "clients",
            "Connected clients, by transport and version",
            self.clients.clone(),
        );
        mqtt.register(
            "refusals",
            "Reason codes from 0x80 on, by packet, including those that an older client could not be told",
            self.refusals.clone(),
        );
        mqtt.register(
            "pauses",
            "Pauses of reading from a connection, by cause",
            self.pauses.clone(),
        );
        for (name, help, counter) in [
            (
                "clients_accepted",
                "Accepted CONNECTs",
                &self.clients_accepted,
            ),
            (
                "sessions_expired",
                "Sessions that expired while their client was disconnected",
                &self.sessions_expired,
            ),
            (
                "topics_refused",
                "Publishes refused because the limit of topics of their client was reached",
                &self.topics_refused,
            ),
            (
                "publish_received_bytes",
                "Payload bytes of publishes received",
                &self.publish_received_bytes,
            ),
            (
                "publish_sent_bytes",
                "Payload bytes of deliveries",
                &self.publish_sent_bytes,
            ),
        ] {
            mqtt.register(name, help, counter.clone());
        }
        mqtt.register(
            "ack_latency_seconds",
            "Time from receiving a publish to acknowledging it",
            self.ack_latency.clone(),
        );
        mqtt.register(
            "draining",
            "1 while the broker is drained",
            self.draining.clone(),
        );
        let event_loop = registry.sub_registry_with_prefix("loop");
        event_loop.register(
            "turn_seconds",
            "Turns of the MQTT loop; the rate of the sum is its utilisation",
            self.turns.clone(),
        );
        for (name, help) in [
            (
                "client_log_lines_dropped",
                "Log lines about clients that were dropped because there were too many",
            ),
            (
                "talk_lines_left_out",
                "Deprecated: use headwater_client_log_lines_dropped_total",
            ),
        ] {
            registry.register(name, help, self.client_log_lines_dropped.clone());
        }
        let admin = registry.sub_registry_with_prefix("admin");
        admin.register(
            "connections",
            "Open connections of the admin listener",
            self.admin_connections.clone(),
        );
        admin.register(
            "requests",
            "Requests to the admin listener, by class of status",
            self.admin_requests.clone(),
        );
    }
}

/// `QuotaExceeded` as `quota_exceeded`.
fn snake_case(reason: ReasonCode) -> String {
    let mut text = String::new();
    for letter in format!("{reason:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{}", letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_labelled_by_its_name() {
        assert_eq!(snake_case(ReasonCode::QuotaExceeded), "quota_exceeded");
    }
}
