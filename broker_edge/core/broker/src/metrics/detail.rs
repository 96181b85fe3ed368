//! Details for operators: clients by transport and version, refusals by reason, pauses of reading by cause, durations
//! of acknowledgements and turns. Labels are fixed words, never text of a peer.

use std::borrow::Cow;
use std::fmt::Write;

use headwater_mqtt::ReasonCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Label;
use super::durations::Durations;
use crate::engine::Pause;

metrics! {
    pub struct DetailMetrics {
        "mqtt" {
            clients: Family<Label<2>, Gauge> = "clients", "Connected clients, by transport and version";
            refusals: Family<[(&'static str, Cow<'static, str>); 2], Counter> =
                "refusals", "Reason codes from 0x80 on, by packet, including those that an older client could not be told";
            pauses: Family<Label, Counter> = "pauses", "Pauses of reading from a connection, by cause";
            pub clients_accepted: Counter = "clients_accepted", "Accepted CONNECTs";
            pub sessions_expired: Counter =
                "sessions_expired", "Sessions that expired while their client was disconnected";
            pub topics_refused: Counter =
                "topics_refused", "Publishes refused because the limit of topics of their client was reached";
            pub publish_received_bytes: Counter =
                "publish_received_bytes", "Payload bytes of publishes received";
            pub publish_sent_bytes: Counter = "publish_sent_bytes", "Payload bytes of deliveries";
            /// Time from the turn that received a publish to its acknowledgement.
            pub ack_latency: Durations =
                "ack_latency_seconds", "Time from receiving a publish to acknowledging it";
            pub draining: Gauge = "draining", "1 while the broker is drained";
        }
        "loop" {
            pub turns: Durations =
                "turn_seconds", "Turns of the MQTT loop; the rate of the sum is its utilisation";
        }
        "" {
            pub client_log_lines_dropped: Counter =
                "client_log_lines_dropped", "Log lines about clients that were dropped because there were too many"
                , also "talk_lines_left_out", "Deprecated: use headwater_client_log_lines_dropped_total";
        }
        "admin" {
            pub admin_connections: Gauge = "connections", "Open connections of the admin listener";
            admin_requests: Family<Label, Counter> =
                "requests", "Requests to the admin listener, by class of status";
        }
    }
}

/// Classes of status of the admin listener.
const STATUS: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];
/// Refusals that are there from the start, so that their first is an increase; others appear when they happen.
const USUAL: [(&str, ReasonCode); 16] = [
    ("connack", ReasonCode::BadUserNameOrPassword),
    ("connack", ReasonCode::NotAuthorized),
    ("connack", ReasonCode::ClientIdentifierNotValid),
    ("connack", ReasonCode::QuotaExceeded),
    ("connack", ReasonCode::ServerUnavailable),
    ("connack", ReasonCode::UseAnotherServer),
    ("puback", ReasonCode::NotAuthorized),
    ("puback", ReasonCode::QuotaExceeded),
    ("suback", ReasonCode::NotAuthorized),
    ("suback", ReasonCode::QuotaExceeded),
    ("disconnect", ReasonCode::KeepAliveTimeout),
    ("disconnect", ReasonCode::MalformedPacket),
    ("disconnect", ReasonCode::ProtocolError),
    ("disconnect", ReasonCode::PacketTooLarge),
    ("disconnect", ReasonCode::QuotaExceeded),
    ("disconnect", ReasonCode::SessionTakenOver),
];

impl DetailMetrics {
    pub fn add_clients(&self, transport: &'static str, version: &'static str, more: i64) {
        let label = [("transport", transport), ("version", version)];
        self.clients.get_or_create(&label).inc_by(more);
    }

    pub fn refused(&self, packet: &'static str, reason: ReasonCode, count: u64) {
        let label = [
            ("packet", packet.into()),
            ("reason", snake_case(reason).into()),
        ];
        self.refusals.get_or_create(&label).inc_by(count);
    }

    pub fn paused(&self, cause: &'static str, count: u64) {
        self.pauses.get_or_create(&[("cause", cause)]).inc_by(count);
    }

    /// Counts an admin request by the first digit of its status, for example `2xx`.
    pub fn count_admin_request(&self, status: &'static str) {
        let label = [("status", status)];
        self.admin_requests.get_or_create(&label).inc();
    }

    pub(super) fn start_at_zero(&self) {
        for cause in Pause::CAUSES {
            drop(self.pauses.get_or_create(&[("cause", cause)]));
        }
        for status in STATUS {
            drop(self.admin_requests.get_or_create(&[("status", status)]));
        }
        for (packet, reason) in USUAL {
            self.refused(packet, reason, 0);
        }
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
