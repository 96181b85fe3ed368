//! One connection before it reaches MQTT: the proxy's header, TLS, the WebSocket upgrade, and the CONNECT, in this
//! order and as far as its listener uses them.
//!
//! Received bytes are kept only until their stage is complete, and only up to the limit of a CONNECT. `arrivals`
//! decides when a connection may take its next step.

use std::net::SocketAddr;
use std::sync::Arc;

use headwater_mqtt::{Frame, ReasonCode, frame};
use rustls::ServerConnection;

use crate::metrics::ConnectFailure;
use crate::peer::{CertificateNames, Peer};
use crate::transport::first_bytes::{
    DetectedProtocol, connack_refusal, detect_protocol, http_refusal,
};
use crate::transport::upgrade::Upgrade;
use crate::transport::{ListenerProtocol, ReceiveResult, Stream, certificates, proxy, upgrade};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeStage {
    Proxy,
    /// TLS has not begun: a silent connection costs nothing yet.
    Hello,
    Tls,
    Upgrade,
    Connect,
}

pub struct Arrival {
    stream: Stream,
    speaks: Arc<ListenerProtocol>,
    pub address: SocketAddr,
    stage: HandshakeStage,
    certificate: Option<Arc<CertificateNames>>,
    is_foreign: bool,
    /// Received bytes, not enough for the stage yet.
    held: Vec<u8>,
    pub opened_ms: u64,
    /// In the queue of connections with work.
    pub is_queued: bool,
    /// The poll has reported that the peer closed its side.
    pub is_ending: bool,
}

/// The result of a step.
#[derive(Debug)]
pub enum Step {
    /// Nothing to do until the socket has more.
    Wait,
    /// There is more to read.
    Again,
    /// Its CONNECT is complete: the buffer begins with `len` bytes of MQTT. With `more`, there may be more to read.
    Open {
        len: usize,
        more: bool,
    },
    Failed(Failure),
}

/// Why a connection failed before MQTT.
#[derive(Debug)]
pub struct Failure {
    pub kind: ConnectFailure,
    /// Details for the log, possibly empty.
    pub detail: String,
    /// An answer was sent, so the socket should not be closed with a reset.
    pub is_answered: bool,
}

impl Failure {
    fn new(kind: ConnectFailure, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            is_answered: false,
        }
    }
}

impl Arrival {
    pub fn new(
        stream: Stream,
        speaks: Arc<ListenerProtocol>,
        address: SocketAddr,
        now_ms: u64,
    ) -> Self {
        let mut arrival = Self {
            stream,
            speaks,
            address,
            stage: HandshakeStage::Proxy,
            certificate: None,
            is_foreign: false,
            held: Vec::new(),
            opened_ms: now_ms,
            is_queued: false,
            is_ending: false,
        };
        if !arrival.speaks.proxy {
            arrival.next_stage();
        }
        arrival
    }

    /// Whether the next step may need the CPU time of a TLS handshake.
    pub fn is_costly(&self) -> bool {
        matches!(self.stage, HandshakeStage::Hello | HandshakeStage::Tls)
    }

    /// Whether it holds the state of an unfinished handshake.
    pub fn is_handshaking(&self) -> bool {
        self.stage == HandshakeStage::Tls
    }

    /// Whether the address is the client's own, not that of a proxy whose header is still to come.
    pub fn is_address_known(&self) -> bool {
        self.stage != HandshakeStage::Proxy
    }

    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    pub fn listener(&self) -> &'static str {
        self.speaks.name()
    }

    pub fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    pub fn into_stream(self) -> (Stream, Peer) {
        let mut peer = Peer::new(self.address, self.speaks.transport(), self.certificate);
        peer.foreign_origin = self.is_foreign;
        (self.stream, peer)
    }

    /// Receives once and advances as far as possible. `buffer` is larger than `connect_bytes_max`.
    pub fn step(&mut self, buffer: &mut [u8], connect_bytes_max: usize) -> Step {
        let held = std::mem::take(&mut self.held);
        buffer[..held.len()].copy_from_slice(&held);
        // Room for a whole CONNECT, a proxy's header before it, and the rest of a TLS record after it.
        let end = buffer.len().min(connect_bytes_max.max(64 << 10));
        let (count, more) = match self.stream.receive(&mut buffer[held.len()..end]) {
            Ok(ReceiveResult::Bytes { count, more }) => (count, more || self.is_ending),
            Ok(ReceiveResult::Nothing) => (0, false),
            Ok(ReceiveResult::Ended) => {
                return Step::Failed(Failure::new(ConnectFailure::Lost, ""));
            }
            Err(error) => return Step::Failed(self.failure_of(&error)),
        };
        let mut from = 0;
        let mut to = held.len() + count;
        loop {
            let before = self.stage;
            let advanced = match self.stage {
                HandshakeStage::Proxy => self.take_proxy(&buffer[from..to]),
                HandshakeStage::Hello => self.take_hello(&buffer[from..to]),
                HandshakeStage::Tls => self.finish_tls(),
                HandshakeStage::Upgrade => self.take_upgrade(&buffer[from..to], connect_bytes_max),
                HandshakeStage::Connect => {
                    match self.take_connect(&buffer[from..to], connect_bytes_max) {
                        Ok(true) => {
                            buffer.copy_within(from..to, 0);
                            let len = to - from;
                            return Step::Open { len, more };
                        }
                        Ok(false) => Ok(0),
                        Err(failure) => Err(failure),
                    }
                }
            };
            match advanced {
                Ok(taken) => from += taken,
                Err(failure) => return Step::Failed(failure),
            }
            if self.stage == before {
                break;
            }
            if before == HandshakeStage::Upgrade
                && let Some(websocket) = self.stream.websocket_mut()
            {
                match websocket.decode(&mut buffer[from..to]) {
                    Ok(decoded) => to = from + decoded.count,
                    Err(_) => {
                        let kind = ConnectFailure::WebSocket;
                        return Step::Failed(Failure::new(kind, "malformed packet framing"));
                    }
                }
            }
        }
        self.held = buffer[from..to].to_vec();
        if more { Step::Again } else { Step::Wait }
    }

    fn next_stage(&mut self) {
        self.stage = match self.stage {
            HandshakeStage::Proxy if self.speaks.tls.is_some() => HandshakeStage::Hello,
            HandshakeStage::Hello => HandshakeStage::Tls,
            HandshakeStage::Proxy | HandshakeStage::Tls if self.speaks.websocket => {
                HandshakeStage::Upgrade
            }
            HandshakeStage::Proxy
            | HandshakeStage::Tls
            | HandshakeStage::Upgrade
            | HandshakeStage::Connect => HandshakeStage::Connect,
        };
    }

    fn take_proxy(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        match proxy::parse(bytes) {
            Ok(proxy::Header::Incomplete) => Ok(0),
            Ok(proxy::Header::Whole { len, client }) => {
                self.address = client.unwrap_or(self.address);
                self.next_stage();
                Ok(len)
            }
            Err(reason) => Err(Failure::new(ConnectFailure::Proxy, reason)),
        }
    }

    /// Begins TLS with its first bytes.
    fn take_hello(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        match detect_protocol(bytes) {
            None => return Ok(0),
            Some(DetectedProtocol::Tls) => {}
            Some(other) => return Err(self.refuse_on_tls(other, bytes)),
        }
        let Some(context) = &self.speaks.tls else {
            return Err(Failure::new(
                ConnectFailure::Tls,
                "the listener does not use TLS",
            ));
        };
        let tls = ServerConnection::new(context.current())
            .map_err(|error| Failure::new(ConnectFailure::Tls, error.to_string()))?;
        self.stream.set_tls(tls);
        self.next_stage();
        self.stream
            .feed(bytes)
            .map_err(|error| self.failure_of(&error))?;
        Ok(bytes.len())
    }

    fn finish_tls(&mut self) -> Result<usize, Failure> {
        let Some(tls) = self.stream.tls_mut() else {
            return Err(Failure::new(ConnectFailure::Tls, "TLS has not begun"));
        };
        if !tls.is_handshaking() {
            let first = tls.peer_certificates().and_then(<[_]>::first);
            self.certificate = first.and_then(certificates::names_of).map(Arc::new);
            self.next_stage();
        }
        Ok(0)
    }

    fn take_upgrade(&mut self, bytes: &[u8], bytes_max: usize) -> Result<usize, Failure> {
        match detect_protocol(bytes) {
            None => return Ok(0),
            Some(DetectedProtocol::Http) => {}
            Some(other) => return Err(self.refuse_on_websocket(other, bytes)),
        }
        match upgrade::parse(bytes, &self.speaks.origins) {
            Upgrade::Incomplete if bytes.len() < bytes_max => Ok(0),
            Upgrade::Incomplete => Err(self.answer(
                &upgrade::too_large(),
                Failure::new(ConnectFailure::TooLarge, "the request is too large"),
            )),
            Upgrade::Accepted {
                len,
                answer,
                is_foreign,
            } => {
                self.is_foreign = is_foreign;
                // The first bytes sent on a socket always fit its buffer.
                let sent = self.stream.send(&answer);
                if !matches!(sent, Ok(count) if count == answer.len()) {
                    return Err(Failure::new(ConnectFailure::Lost, ""));
                }
                self.stream.set_websocket();
                self.next_stage();
                Ok(len)
            }
            Upgrade::Refused { reason, answer } => {
                Err(self.answer(&answer, Failure::new(ConnectFailure::WebSocket, reason)))
            }
        }
    }

    /// Returns true when the CONNECT is complete.
    fn take_connect(&mut self, bytes: &[u8], bytes_max: usize) -> Result<bool, Failure> {
        match detect_protocol(bytes) {
            None => return Ok(false),
            Some(DetectedProtocol::Mqtt) => {}
            Some(other) => return Err(self.refuse_on_mqtt(other)),
        }
        match frame::next(bytes, bytes_max) {
            Ok(Frame::Whole { .. }) => Ok(true),
            Ok(Frame::Incomplete { .. }) => Ok(false),
            Err(error) if error.reason == ReasonCode::PacketTooLarge => {
                let sentence = "the CONNECT is larger than mqtt.max_connect_bytes";
                let answer = connack_refusal(bytes, error.reason, sentence);
                Err(self.answer(&answer, Failure::new(ConnectFailure::TooLarge, sentence)))
            }
            Err(error) => Err(Failure::new(ConnectFailure::Other, error.to_string())),
        }
    }

    fn refuse_on_tls(&mut self, spoken: DetectedProtocol, bytes: &[u8]) -> Failure {
        let name = self.listener();
        let sentence = "This port accepts only TLS connections.";
        match spoken {
            DetectedProtocol::Mqtt => {
                let reason = ReasonCode::ImplementationSpecificError;
                let answer = connack_refusal(bytes, reason, sentence);
                let detail = format!(
                    "a client used plain MQTT on the port of listeners.{name}: enable TLS in the client, or use the \
                     port of listeners.mqtt"
                );
                self.answer(&answer, Failure::new(ConnectFailure::PlainOnTls, detail))
            }
            DetectedProtocol::Http => {
                let detail = format!("a client used plain HTTP on the port of listeners.{name}");
                let failure = Failure::new(ConnectFailure::HttpOnMqtt, detail);
                self.answer(&http_refusal(sentence), failure)
            }
            DetectedProtocol::Proxy => self.refuse_proxy(),
            DetectedProtocol::Tls | DetectedProtocol::Other => {
                Failure::new(ConnectFailure::Other, "")
            }
        }
    }

    fn refuse_on_websocket(&mut self, spoken: DetectedProtocol, bytes: &[u8]) -> Failure {
        let name = self.listener();
        match spoken {
            DetectedProtocol::Mqtt => {
                let sentence = "This port accepts only MQTT over WebSocket.";
                let reason = ReasonCode::ImplementationSpecificError;
                let answer = connack_refusal(bytes, reason, sentence);
                let detail = format!(
                    "a client used MQTT without WebSocket on the port of listeners.{name}: set the client's transport to \
                     websockets, or use the port of listeners.mqtt"
                );
                let failure = Failure::new(ConnectFailure::MqttOnWebSocket, detail);
                self.answer(&answer, failure)
            }
            DetectedProtocol::Tls => self.refuse_tls("wss"),
            DetectedProtocol::Proxy => self.refuse_proxy(),
            DetectedProtocol::Http | DetectedProtocol::Other => {
                Failure::new(ConnectFailure::Other, "")
            }
        }
    }

    fn refuse_on_mqtt(&mut self, spoken: DetectedProtocol) -> Failure {
        match spoken {
            DetectedProtocol::Tls => self.refuse_tls("mqtts"),
            DetectedProtocol::Http => {
                let detail = format!(
                    "a client used HTTP on the port of listeners.{}: health and metrics are at listeners.admin, \
                     WebSockets at listeners.ws, Flight at listeners.flight",
                    self.listener()
                );
                let failure = Failure::new(ConnectFailure::HttpOnMqtt, detail);
                self.answer(&http_refusal("This port speaks MQTT, not HTTP."), failure)
            }
            DetectedProtocol::Proxy => self.refuse_proxy(),
            DetectedProtocol::Mqtt | DetectedProtocol::Other => Failure::new(
                ConnectFailure::Other,
                "a connection must begin with a CONNECT",
            ),
        }
    }

    fn refuse_tls(&self, instead: &str) -> Failure {
        let detail = format!(
            "a client used TLS on the port of listeners.{}, which has no TLS: use the port of listeners.{instead}",
            self.listener()
        );
        Failure::new(ConnectFailure::TlsOnPlain, detail)
    }

    fn refuse_proxy(&self) -> Failure {
        let detail = format!(
            "a proxy sent a header on the port of listeners.{name}: set listeners.{name}.proxy_protocol",
            name = self.listener()
        );
        Failure::new(ConnectFailure::Proxy, detail)
    }

    /// Sends an answer, as far as the socket accepts it.
    fn answer(&mut self, answer: &[u8], mut failure: Failure) -> Failure {
        failure.is_answered = matches!(self.stream.send(answer), Ok(count) if count > 0);
        failure
    }

    fn failure_of(&self, error: &std::io::Error) -> Failure {
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
