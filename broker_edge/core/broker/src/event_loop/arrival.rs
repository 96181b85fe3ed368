//! One connection before it reaches MQTT: the proxy's header, TLS, the WebSocket upgrade, and the CONNECT, in this
//! order and as far as its listener uses them.
//!
//! Received bytes are kept only until their stage is complete, and only up to the limit of a CONNECT. `arrivals`
//! decides when a connection may take its next step.

use std::net::SocketAddr;
use std::sync::Arc;

use headwater_mqtt::{Frame, ReasonCode, frame};
use rustls::ServerConnection;

use super::failure::{Expected, Failure, answer_to, wrong_protocol};
use crate::metrics::ConnectFailure;
use crate::peer::{CertificateNames, Peer};
use crate::transport::first_bytes::{DetectedProtocol, connack_refusal, detect_protocol};
use crate::transport::upgrade::Upgrade;
use crate::transport::{ListenerProtocol, ReceiveResult, Stream, certificates, proxy, upgrade};

/// What a connection may cost before its CONNECT, beside the CONNECT itself: a handshake of TLS with a long chain of
/// certificates is a third of it.
const COST_MAX: usize = 1 << 20;

/// The longest record of TLS that is not encrypted.
const TLS_RECORD_MAX: usize = 1 << 14;

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
    /// What was received cost so much, as in [`Stream::cost_of_receive`].
    pub cost: usize,
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
            cost: 0,
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
        let received = self.stream.receive(&mut buffer[held.len()..end]);
        let count = received.as_ref().map_or(0, |received| received.count());
        self.cost += self.stream.cost_of_receive(count);
        let (count, more) = match received {
            Ok(ReceiveResult::Bytes { count, more }) => (count, more || self.is_ending),
            Ok(ReceiveResult::Nothing) => (0, false),
            Ok(ReceiveResult::Ended) => {
                return Step::Failed(Failure::new(ConnectFailure::Lost, ""));
            }
            Err(error) => return Step::Failed(Failure::of_stream(&error)),
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
                    Ok(count) => to = from + count,
                    Err(_) => {
                        let kind = ConnectFailure::WebSocket;
                        return Step::Failed(Failure::new(kind, "malformed packet framing"));
                    }
                }
            }
        }
        if self.cost > connect_bytes_max + COST_MAX {
            let reason = "too much was sent before the CONNECT, such as pings of WebSocket";
            return Step::Failed(Failure::new(ConnectFailure::TooLarge, reason));
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

    /// Begins TLS with its first record: what is less holds its bytes alone, and no state of a handshake.
    fn take_hello(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        match detect_protocol(bytes) {
            None => return Ok(0),
            Some(DetectedProtocol::Tls) => {}
            Some(other) => return Err(self.refuse(Expected::Tls, other, bytes)),
        }
        if !is_whole_record(bytes) {
            return Ok(0);
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
            .map_err(|error| Failure::of_stream(&error))?;
        Ok(bytes.len())
    }

    fn finish_tls(&mut self) -> Result<usize, Failure> {
        let Some(tls) = self.stream.tls_mut() else {
            return Err(Failure::new(ConnectFailure::Tls, "TLS has not begun"));
        };
        if !tls.is_handshaking() {
            let context = self.speaks.tls.as_ref();
            let lists = context.and_then(|context| context.revocations());
            let chain = tls.peer_certificates().unwrap_or_default();
            self.certificate = certificates::names_of(chain, lists).map(Arc::new);
            self.next_stage();
        }
        Ok(0)
    }

    fn take_upgrade(&mut self, bytes: &[u8], bytes_max: usize) -> Result<usize, Failure> {
        match detect_protocol(bytes) {
            None => return Ok(0),
            Some(DetectedProtocol::Http) => {}
            Some(other) => return Err(self.refuse(Expected::WebSocket, other, bytes)),
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
            Some(other) => return Err(self.refuse(Expected::Mqtt, other, bytes)),
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

    fn refuse(&mut self, expected: Expected, spoken: DetectedProtocol, bytes: &[u8]) -> Failure {
        let failure = wrong_protocol(expected, spoken, self.listener());
        match answer_to(expected, spoken, bytes) {
            Some(answer) => self.answer(&answer, failure),
            None => failure,
        }
    }

    /// Sends an answer, as far as the socket accepts it.
    fn answer(&mut self, answer: &[u8], mut failure: Failure) -> Failure {
        failure.is_answered = matches!(self.stream.send(answer), Ok(count) if count > 0);
        failure
    }
}

/// Whether the first record of TLS is complete, or longer than one may be, which TLS refuses.
fn is_whole_record(bytes: &[u8]) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<5>() else {
        return false;
    };
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    length > TLS_RECORD_MAX || rest.len() >= length
}
