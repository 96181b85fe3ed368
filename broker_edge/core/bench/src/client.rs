//! One client: its socket, its unsent output and unparsed input, and its messages in flight.
//!
//! It sends the answers that the protocol requires and counts into a [`Counters`]. Its caller decides what to publish and
//! when.

use std::io;

use headwater_mqtt::packet::connack::{Connack, ConnackCode};
use headwater_mqtt::packet::{ServerPacket, decode_from_server};
use headwater_mqtt::{Frame, PacketId, Publish, QoS, ReasonCode, Version, encode, frame};

use crate::BenchError;
use crate::latency::Latency;
use crate::net::PACKET_BYTES_MAX;
use crate::plan::TIME_BYTES;
use crate::stream::Stream;

const IDS_MAX: u16 = u16::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Connecting,
    /// CONNECT was sent.
    Greeting,
    Open,
    Closed,
}

/// What all clients have seen together.
#[derive(Debug)]
pub struct Counters {
    pub opened: u64,
    pub subscribed: u64,
    pub acked: u64,
    /// Publishes that the broker answered with an error.
    pub refused: u64,
    pub delivered: u64,
    pub delivered_bytes: u64,
    pub pongs: u64,
    pub closed: usize,
    /// Why the first connection was closed, if the broker said so.
    pub close_reason: Option<String>,
    /// Why the first connection that failed before its CONNACK did.
    pub failure: Option<io::Error>,
    /// Why the broker refused a connection or a subscription.
    pub refusal: Option<(&'static str, String)>,
    pub acks: Latency,
    pub deliveries: Latency,
}

impl Counters {
    pub fn new() -> Self {
        Self {
            opened: 0,
            subscribed: 0,
            acked: 0,
            refused: 0,
            delivered: 0,
            delivered_bytes: 0,
            pongs: 0,
            closed: 0,
            close_reason: None,
            failure: None,
            refusal: None,
            acks: Latency::new(),
            deliveries: Latency::new(),
        }
    }

    /// The number of events that a measurement waits for; it never shrinks.
    pub fn progress(&self) -> u64 {
        self.opened + self.subscribed + self.acked + self.delivered + self.pongs
    }
}

/// Packet ids, and the due times of the messages that use them.
#[derive(Debug, Default)]
struct Ids {
    free: Vec<u16>,
    due_ns: Vec<u64>,
    limit: u16,
}

impl Ids {
    fn in_flight(&self) -> usize {
        self.due_ns.len() - self.free.len()
    }

    fn take(&mut self, due_ns: u64) -> Option<PacketId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.due_ns.len() < usize::from(self.limit) => {
                self.due_ns.push(0);
                self.due_ns.len() as u16
            }
            None => return None,
        };
        self.due_ns[usize::from(id) - 1] = due_ns;
        PacketId::new(id)
    }

    /// Frees the id and returns when its message was due; `None` for an id that is not in use.
    fn end(&mut self, id: PacketId) -> Option<u64> {
        let due_ns = self.due_ns.get_mut(usize::from(id.get()) - 1)?;
        self.free.push(id.get());
        Some(*due_ns)
    }
}

#[derive(Debug)]
pub struct Client {
    pub stream: Stream,
    pub state: State,
    version: Version,
    /// Received bytes of an incomplete packet.
    input: Vec<u8>,
    pub output: Vec<u8>,
    output_sent: usize,
    /// The socket did not accept all bytes of the last write; a layer may keep some of them.
    pub blocked: bool,
    ids: Ids,
}

impl Client {
    pub fn new(stream: Stream, version: Version) -> Self {
        Self {
            stream,
            state: State::Connecting,
            version,
            input: Vec::new(),
            output: Vec::new(),
            output_sent: 0,
            blocked: false,
            ids: Ids {
                limit: IDS_MAX,
                ..Ids::default()
            },
        }
    }

    /// Messages without an answer yet.
    pub fn in_flight(&self) -> usize {
        self.ids.in_flight()
    }

    /// Bytes that the socket has not accepted yet.
    pub fn backlog(&self) -> usize {
        self.output.len() - self.output_sent
    }

    /// A packet id for a message that was due at `due_ns`; `None` when no more may be in flight.
    pub fn take_id(&mut self, due_ns: u64) -> Option<PacketId> {
        self.ids.take(due_ns)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while self.output_sent < self.output.len() {
            let Some(count) = self.stream.send(&self.output[self.output_sent..])? else {
                self.blocked = true;
                return Ok(());
            };
            self.output_sent += count;
        }
        self.output.clear();
        self.output_sent = 0;
        self.blocked = !self.stream.flush()?;
        Ok(())
    }

    /// Reads until the socket is empty, or to its end if the broker has closed it (`is_over`), of which there is no
    /// second event. Calls `now_ns` once per read. Returns false when the connection has ended.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        counters: &mut Counters,
        now_ns: &impl Fn() -> u64,
        is_over: bool,
    ) -> Result<bool, BenchError> {
        let is_empty_when_short = self.stream.is_plain() && !is_over;
        loop {
            let count = match self.stream.receive(buffer) {
                Ok(Some(0)) => {
                    if self.state == State::Greeting {
                        self.note_failure(closed_early(&self.input), counters);
                    }
                    return Ok(false);
                }
                Err(error) => {
                    self.note_failure(error, counters);
                    return Ok(false);
                }
                Ok(Some(count)) => count,
                Ok(None) => return Ok(true),
            };
            let now_ns = now_ns();
            if self.input.is_empty() {
                let used = match self.parse(&buffer[..count], counters, now_ns) {
                    Ok(used) => used,
                    Err(error) => return self.invalid(error, &buffer[..count], counters),
                };
                self.input.extend_from_slice(&buffer[used..count]);
            } else {
                let mut input = std::mem::take(&mut self.input);
                input.extend_from_slice(&buffer[..count]);
                let used = match self.parse(&input, counters, now_ns) {
                    Ok(used) => used,
                    Err(error) => return self.invalid(error, &input, counters),
                };
                input.drain(..used);
                self.input = input;
            }
            if self.state == State::Closed {
                return Ok(false);
            }
            if count < buffer.len() && is_empty_when_short {
                return Ok(true);
            }
        }
    }

    /// Notes why the connection has ended.
    fn note_failure(&self, error: io::Error, counters: &mut Counters) {
        if self.state == State::Greeting {
            counters.failure.get_or_insert(error);
        } else {
            counters
                .close_reason
                .get_or_insert_with(|| error.to_string());
        }
    }

    /// Notes why the connection has ended when a send failed: before its CONNACK, what the broker said before it closed.
    pub fn send_failed(&mut self, error: io::Error, buffer: &mut [u8], counters: &mut Counters) {
        if self.state == State::Greeting {
            // Whatever this read finds is noted; nothing is in flight whose latency could count.
            let _ = self.read(buffer, counters, &|| 0, true);
        }
        self.note_failure(error, counters);
    }

    /// Handles bytes that are no MQTT; the first ones may show another protocol.
    fn invalid(
        &self,
        error: BenchError,
        bytes: &[u8],
        counters: &mut Counters,
    ) -> Result<bool, BenchError> {
        match other_protocol(bytes) {
            Some(sentence) if self.state == State::Greeting => {
                self.note_failure(io::Error::other(sentence), counters);
                Ok(false)
            }
            _ => Err(error),
        }
    }

    /// Handles all whole packets; returns their total length.
    fn parse(
        &mut self,
        bytes: &[u8],
        counters: &mut Counters,
        now_ns: u64,
    ) -> Result<usize, BenchError> {
        let broken = |error: headwater_mqtt::DecodeError| BenchError::Protocol(error.to_string());
        let mut at = 0;
        loop {
            match frame::next(&bytes[at..], PACKET_BYTES_MAX).map_err(broken)? {
                Frame::Incomplete { .. } => return Ok(at),
                Frame::Whole {
                    first_byte,
                    header_len,
                    total_len,
                } => {
                    let body = &bytes[at + header_len..at + total_len];
                    let packet =
                        decode_from_server(self.version, first_byte, body).map_err(broken)?;
                    self.handle(packet, counters, now_ns);
                    at += total_len;
                }
            }
        }
    }

    fn handle(&mut self, packet: ServerPacket<'_>, counters: &mut Counters, now_ns: u64) {
        let version = self.version;
        let fine = ReasonCode::Success;
        match packet {
            ServerPacket::Puback(ack) => self.acked(ack.packet_id, ack.reason, counters, now_ns),
            ServerPacket::Pubcomp(ack) => self.acked(ack.packet_id, ack.reason, counters, now_ns),
            ServerPacket::Pubrec(ack) if ack.reason.is_error() => {
                self.acked(ack.packet_id, ack.reason, counters, now_ns);
            }
            ServerPacket::Pubrec(ack) => {
                encode::pubrel(&mut self.output, version, ack.packet_id, fine, &[]);
            }
            ServerPacket::Pubrel(ack) => {
                encode::pubcomp(&mut self.output, version, ack.packet_id, fine, &[]);
            }
            ServerPacket::Publish(publish) => self.delivered(&publish, counters, now_ns),
            ServerPacket::Connack(connack) => match refusal_of(&connack) {
                Some(reason) => counters.refusal = Some(("a connection", reason)),
                None => {
                    self.ids.limit = connack.properties.receive_maximum().unwrap_or(IDS_MAX);
                    self.state = State::Open;
                    counters.opened += 1;
                }
            },
            ServerPacket::Suback(suback) => {
                match suback.codes.iter().find(|code| code.is_error()) {
                    Some(code) => counters.refusal = Some(("a subscription", format!("{code:?}"))),
                    None => counters.subscribed += 1,
                }
            }
            ServerPacket::Pingresp => counters.pongs += 1,
            ServerPacket::Disconnect(disconnect) => {
                counters
                    .close_reason
                    .get_or_insert_with(|| format!("{:?}", disconnect.reason));
                self.state = State::Closed;
            }
            ServerPacket::Unsuback(_) | ServerPacket::Auth(_) => {}
        }
    }

    #[inline]
    fn acked(&mut self, id: PacketId, reason: ReasonCode, counters: &mut Counters, now_ns: u64) {
        let Some(due_ns) = self.ids.end(id) else {
            return;
        };
        counters.acked += 1;
        counters.refused += u64::from(reason.is_error());
        counters.acks.record(now_ns.saturating_sub(due_ns));
    }

    #[inline]
    fn delivered(&mut self, publish: &Publish<'_>, counters: &mut Counters, now_ns: u64) {
        counters.delivered += 1;
        counters.delivered_bytes += publish.payload.len() as u64;
        if let Some(time) = publish.payload.first_chunk::<TIME_BYTES>() {
            let due_ns = u64::from_le_bytes(*time);
            counters.deliveries.record(now_ns.saturating_sub(due_ns));
        }
        let (version, fine) = (self.version, ReasonCode::Success);
        if let Some(id) = publish.packet_id {
            if publish.qos == QoS::AtLeastOnce {
                encode::puback(&mut self.output, version, id, fine, &[]);
            } else {
                encode::pubrec(&mut self.output, version, id, fine, &[]);
            }
        }
    }
}

/// Why a CONNACK refuses the connection, and what to check; `None` when it accepts.
fn refusal_of(connack: &Connack<'_>) -> Option<String> {
    let name = match connack.code {
        ConnackCode::V5(reason) if reason.is_error() => format!("{reason:?}"),
        ConnackCode::V3(code) if code.as_u8() != 0 => format!("{code:?}"),
        _ => return None,
    };
    let hint = match name.as_str() {
        "BadUserNameOrPassword" | "NotAuthorized" => {
            " (check --user and --password-from, or --token-from)"
        }
        "ServerUnavailable" => " (it may be too busy, or the port expects TLS or WebSocket)",
        _ => "",
    };
    let said = connack.properties.reason_string();
    let said = said.map(|text| format!(": {}", text.escape_debug()));
    Some(format!("{name}{hint}{}", said.unwrap_or_default()))
}

/// The reason of a connection that ended before its CONNACK; `input` is the beginning of an answer.
fn closed_early(input: &[u8]) -> io::Error {
    let sentence = other_protocol(input).unwrap_or(
        "the broker closed the connection without an answer to CONNECT: check the port, and whether it expects TLS, \
         WebSocket or a client certificate",
    );
    io::Error::new(io::ErrorKind::UnexpectedEof, sentence)
}

/// What speaks another protocol than MQTT, judged by the first bytes of its answer.
fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        // An alert of TLS.
        [0x15, 0x03, ..] => Some("the port expects TLS: write mqtts:// (or wss://) for it"),
        [b'H', b'T', b'T', b'P', ..] => {
            Some("the port expects HTTP: write ws:// (or wss://) if it is one for WebSocket")
        }
        _ => None,
    }
}
