//! Metrics of connections before MQTT, and of the expiry of certificates.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Label;
use crate::words::words;

words! {
    /// Why a connection failed before MQTT.
    pub enum ConnectFailure {
        /// The limit of connections was reached.
        Limit = "limit",
        /// The limit of connections from this address was reached.
        PerIp = "per_ip",
        /// It was the oldest of too many connections without a CONNECT, or it held too much memory.
        Pending = "pending",
        Timeout = "timeout",
        TooLarge = "too_large",
        Tls = "tls",
        /// The client showed no valid certificate.
        Certificate = "certificate",
        TlsOnPlain = "tls_on_plain",
        PlainOnTls = "plain_on_tls",
        HttpOnMqtt = "http_on_mqtt",
        MqttOnWebSocket = "mqtt_on_websocket",
        WebSocket = "websocket",
        Proxy = "proxy",
        /// The client disconnected before it sent a CONNECT.
        Lost = "lost",
        /// This node serves no clients; MQTT 5 clients were told which one does.
        Standby = "standby",
        /// An unknown protocol.
        Other = "other",
    }
}

metrics! {
    pub struct TransportMetrics {
        "mqtt" {
            failures: Family<Label, Counter> =
                "connects_failed", "Connections that ended before they sent a CONNECT";
            pub pending: Gauge = "pending_connections", "Connections that have not sent their CONNECT yet";
        }
        "tls" {
            pub handshakes: Counter = "handshakes", "Successful TLS handshakes of MQTT clients";
            expiry: Family<Label, Gauge> =
                "certificate_expiry_seconds", "Expiry of a listener's certificate, Unix time";
        }
    }
}

/// What one of several loops adds to a gauge. Dropped, it takes that back.
pub struct GaugePart {
    gauge: Gauge,
    added: i64,
}

impl GaugePart {
    pub fn of(gauge: &Gauge) -> Self {
        let gauge = gauge.clone();
        Self { gauge, added: 0 }
    }

    pub fn set(&mut self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.gauge.inc_by(count - self.added);
        self.added = count;
    }
}

impl Drop for GaugePart {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl TransportMetrics {
    pub fn count_failure(&self, reason: ConnectFailure) {
        let label = [("reason", reason.name())];
        self.failures.get_or_create(&label).inc();
    }

    /// Sets the expiry of a listener's certificate, in Unix seconds.
    pub fn set_expiry(&self, listener: &'static str, expires_s: i64) {
        let label = [("listener", listener)];
        self.expiry.get_or_create(&label).set(expires_s);
    }

    pub(super) fn start_at_zero(&self) {
        for reason in ConnectFailure::ALL {
            drop(self.failures.get_or_create(&[("reason", reason.name())]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_gauge_add_up_and_leave_nothing() {
        let gauge = Gauge::default();
        let [mut one, mut other] = [(); 2].map(|()| GaugePart::of(&gauge));
        one.set(5);
        other.set(2);
        one.set(4);
        assert_eq!(gauge.get(), 6);
        drop(one);
        assert_eq!(gauge.get(), 2);
        drop(other);
        assert_eq!(gauge.get(), 0);
    }
}
