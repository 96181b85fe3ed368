//! Metrics of connections before MQTT, and of the expiry of certificates.

use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::encoding::{EncodeLabelSet, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Why a connection failed before MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectFailure {
    /// The limit of connections was reached.
    Limit,
    /// The limit of connections from this address was reached.
    PerIp,
    /// It was the oldest of too many connections without a CONNECT, or it held too much memory.
    Pending,
    Timeout,
    TooLarge,
    Tls,
    /// The client showed no valid certificate.
    Certificate,
    TlsOnPlain,
    PlainOnTls,
    HttpOnMqtt,
    MqttOnWebSocket,
    WebSocket,
    Proxy,
    /// The client disconnected before it sent a CONNECT.
    Lost,
    /// An unknown protocol.
    Other,
}

impl ConnectFailure {
    pub const ALL: [ConnectFailure; 15] = [
        ConnectFailure::Limit,
        ConnectFailure::PerIp,
        ConnectFailure::Pending,
        ConnectFailure::Timeout,
        ConnectFailure::TooLarge,
        ConnectFailure::Tls,
        ConnectFailure::Certificate,
        ConnectFailure::TlsOnPlain,
        ConnectFailure::PlainOnTls,
        ConnectFailure::HttpOnMqtt,
        ConnectFailure::MqttOnWebSocket,
        ConnectFailure::WebSocket,
        ConnectFailure::Proxy,
        ConnectFailure::Lost,
        ConnectFailure::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ConnectFailure::Limit => "limit",
            ConnectFailure::PerIp => "per_ip",
            ConnectFailure::Pending => "pending",
            ConnectFailure::Timeout => "timeout",
            ConnectFailure::TooLarge => "too_large",
            ConnectFailure::Tls => "tls",
            ConnectFailure::Certificate => "certificate",
            ConnectFailure::TlsOnPlain => "tls_on_plain",
            ConnectFailure::PlainOnTls => "plain_on_tls",
            ConnectFailure::HttpOnMqtt => "http_on_mqtt",
            ConnectFailure::MqttOnWebSocket => "mqtt_on_websocket",
            ConnectFailure::WebSocket => "websocket",
            ConnectFailure::Proxy => "proxy",
            ConnectFailure::Lost => "lost",
            ConnectFailure::Other => "other",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabel {
    reason: ConnectFailure,
}

impl EncodeLabelValue for ConnectFailure {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        self.name().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

#[derive(Default)]
pub struct TransportMetrics {
    failures: Family<FailureLabel, Counter>,
    pub pending: Gauge,
    pub handshakes: Counter,
    expiry: Family<ListenerLabel, Gauge>,
}

impl TransportMetrics {
    pub fn count_failure(&self, reason: ConnectFailure) {
        self.failures.get_or_create(&FailureLabel { reason }).inc();
    }

    /// Sets the expiry of a listener's certificate, in Unix seconds.
    pub fn set_expiry(&self, listener: &'static str, expires_s: i64) {
        let label = ListenerLabel { listener };
        self.expiry.get_or_create(&label).set(expires_s);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // Creates each reason, so that it is 0 rather than missing before the first event.
        for reason in ConnectFailure::ALL {
            drop(self.failures.get_or_create(&FailureLabel { reason }));
        }
        let mqtt = registry.sub_registry_with_prefix("mqtt");
        mqtt.register(
            "connects_failed",
            "Connections that ended before they sent a CONNECT",
            self.failures.clone(),
        );
        mqtt.register(
            "pending_connections",
            "Connections that have not sent their CONNECT yet",
            self.pending.clone(),
        );
        let tls = registry.sub_registry_with_prefix("tls");
        tls.register(
            "handshakes",
            "Successful TLS handshakes of MQTT clients",
            self.handshakes.clone(),
        );
        tls.register(
            "certificate_expiry_seconds",
            "Expiry of a listener's certificate, Unix time",
            self.expiry.clone(),
        );
    }
}
