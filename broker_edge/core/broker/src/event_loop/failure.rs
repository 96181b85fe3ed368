//! Why a connection failed before MQTT, and what a client with the wrong protocol is told.

use headwater_mqtt::ReasonCode;

use crate::metrics::ConnectFailure;
use crate::transport::first_bytes::{DetectedProtocol, connack_refusal, http_refusal};

#[derive(Debug)]
pub struct Failure {
    pub kind: ConnectFailure,
    /// Details for the log, possibly empty.
    pub detail: String,
    /// An answer was sent, so the socket should not be closed with a reset.
    pub is_answered: bool,
}

impl Failure {
    pub fn new(kind: ConnectFailure, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            is_answered: false,
        }
    }

    /// Of bytes that break the rules of TLS or WebSocket, or of a socket that failed.
    pub fn of_stream(error: &std::io::Error) -> Self {
        let tls = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let mut failure = match tls {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
                Failure::new(ConnectFailure::Certificate, error.to_string())
            }
            Some(rustls::Error::AlertReceived(_)) => Failure::new(
                ConnectFailure::Tls,
                format!(
                    "{error}; the client does not trust the certificate or does not know its name"
                ),
            ),
            Some(_) => Failure::new(ConnectFailure::Tls, error.to_string()),
            None if error.kind() == std::io::ErrorKind::InvalidData => {
                Failure::new(ConnectFailure::WebSocket, error.to_string())
            }
            None => Failure::new(ConnectFailure::Lost, ""),
        };
        // The TLS alert or the WebSocket close code counts as an answer.
        failure.is_answered = tls.is_some() || failure.kind == ConnectFailure::WebSocket;
        failure
    }
}

/// The protocol that a listener expects at this point.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    Tls,
    WebSocket,
    Mqtt,
}

/// The failure of a client that used another protocol on the port of a listener.
pub fn wrong_protocol(expected: Expected, spoken: DetectedProtocol, listener: &str) -> Failure {
    let (kind, detail) = match (expected, spoken) {
        (Expected::Tls, DetectedProtocol::Mqtt) => (
            ConnectFailure::PlainOnTls,
            format!(
                "a client used plain MQTT on the port of listeners.{listener}: enable TLS in the client, or use the port \
                 of listeners.mqtt"
            ),
        ),
        (Expected::Tls, DetectedProtocol::Http) => (
            ConnectFailure::HttpOnMqtt,
            format!("a client used plain HTTP on the port of listeners.{listener}"),
        ),
        (Expected::WebSocket, DetectedProtocol::Mqtt) => (
            ConnectFailure::MqttOnWebSocket,
            format!(
                "a client used MQTT without WebSocket on the port of listeners.{listener}: set the client's transport to \
                 websockets, or use the port of listeners.mqtt"
            ),
        ),
        (Expected::WebSocket | Expected::Mqtt, DetectedProtocol::Tls) => {
            let instead = match expected {
                Expected::WebSocket => "wss",
                _ => "mqtts",
            };
            let detail = format!(
                "a client used TLS on the port of listeners.{listener}, which has no TLS: use the port of \
                 listeners.{instead}"
            );
            (ConnectFailure::TlsOnPlain, detail)
        }
        (Expected::Mqtt, DetectedProtocol::Http) => (
            ConnectFailure::HttpOnMqtt,
            format!(
                "a client used HTTP on the port of listeners.{listener}: health and metrics are at listeners.admin, \
                 WebSockets at listeners.ws, Flight at listeners.flight"
            ),
        ),
        (_, DetectedProtocol::Proxy) => (
            ConnectFailure::Proxy,
            format!(
                "a proxy sent a header on the port of listeners.{listener}: set listeners.{listener}.proxy_protocol"
            ),
        ),
        (Expected::Mqtt, DetectedProtocol::Mqtt | DetectedProtocol::Other) => {
            let detail = "a connection must begin with a CONNECT".to_owned();
            (ConnectFailure::Other, detail)
        }
        (Expected::Tls | Expected::WebSocket, _) => (ConnectFailure::Other, String::new()),
    };
    Failure::new(kind, detail)
}

/// What such a client is told in its own protocol, if it is told anything. `bytes` are its first.
pub fn answer_to(expected: Expected, spoken: DetectedProtocol, bytes: &[u8]) -> Option<Vec<u8>> {
    const ONLY_TLS: &str = "This port accepts only TLS connections.";
    let connack = |sentence: &str| {
        let reason = ReasonCode::ImplementationSpecificError;
        connack_refusal(bytes, reason, sentence)
    };
    Some(match (expected, spoken) {
        (Expected::Tls, DetectedProtocol::Mqtt) => connack(ONLY_TLS),
        (Expected::Tls, DetectedProtocol::Http) => http_refusal(ONLY_TLS),
        (Expected::WebSocket, DetectedProtocol::Mqtt) => {
            connack("This port accepts only MQTT over WebSocket.")
        }
        (Expected::Mqtt, DetectedProtocol::Http) => {
            http_refusal("This port speaks MQTT, not HTTP.")
        }
        _ => return None,
    })
}
