//! One client: its socket, its unsent output and unparsed input, and its messages in flight.
//!
//! It sends the answers that the protocol requires and counts into a [`Counters`]. Its caller decides what to publish and
//! when.

use std::io;

use headwater_mqtt::packet::connack::ConnackCode;
use headwater_mqtt::packet::{ServerPacket, decode_from_server};
use headwater_mqtt::{Frame, PacketId, Publish, QoS, ReasonCode, Version, encode, frame};
use mio::net::TcpStream;

use crate::BenchError;
use crate::latency::Latency;
use crate::net;
use crate::plan::TIME_BYTES;

/// Larger packets from a broker are an error.
const PACKET_BYTES_MAX: usize = 32 << 20;
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
    pub stream: TcpStream,
    pub state: State,
    version: Version,
    /// Received bytes of an incomplete packet.
    input: Vec<u8>,
    pub output: Vec<u8>,
    output_sent: usize,
    /// The socket did not accept all bytes of the last write.
    pub blocked: bool,
    ids: Ids,
}

impl Client {
    pub fn new(stream: TcpStream, version: Version) -> Self {
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
            let Some(count) = net::send(&mut self.stream, &self.output[self.output_sent..])? else {
                self.blocked = true;
                return Ok(());
            };
            self.output_sent += count;
        }
        self.blocked = false;
        self.output.clear();
        self.output_sent = 0;
        Ok(())
    }

    /// Reads until the socket is empty. Calls `now_ns` once per read. Returns false when the connection has ended.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        counters: &mut Counters,
        now_ns: &impl Fn() -> u64,
    ) -> Result<bool, BenchError> {
        loop {
            let count = match net::receive(&mut self.stream, buffer) {
                Ok(Some(0)) | Err(_) => return Ok(false),
                Ok(Some(count)) => count,
                Ok(None) => return Ok(true),
            };
            let now_ns = now_ns();
            if self.input.is_empty() {
                let used = self.parse(&buffer[..count], counters, now_ns)?;
                self.input.extend_from_slice(&buffer[used..count]);
            } else {
                let mut input = std::mem::take(&mut self.input);
                input.extend_from_slice(&buffer[..count]);
                let used = self.parse(&input, counters, now_ns)?;
                input.drain(..used);
                self.input = input;
            }
            if self.state == State::Closed {
                return Ok(false);
            }
            if count < buffer.len() {
                return Ok(true);
            }
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
            ServerPacket::Connack(connack) => match connack.code {
                ConnackCode::V5(reason) if reason.is_error() => {
                    counters.refusal = Some(("a connection", format!("{reason:?}")));
                }
                ConnackCode::V3(code) if code.as_u8() != 0 => {
                    counters.refusal = Some(("a connection", format!("{code:?}")));
                }
                _ => {
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
