//! Builds and parses packets by hand, over a blocking connection to this suite's broker.
//!
//! Deliberately independent of the product's codec: an error on both sides of one codec would go unnoticed. It
//! implements only as much of the format as the tests need.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::tcp;

pub const CONNACK: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;
pub const SUBACK: u8 = 9;
pub const UNSUBACK: u8 = 11;
pub const PINGRESP: u8 = 13;
pub const DISCONNECT: u8 = 14;

/// Protocol levels: 3.1, 3.1.1 and 5.
pub const ALL: [u8; 3] = [3, 4, 5];
/// The two versions with a list of clauses.
pub const BOTH: [u8; 2] = [4, 5];

/// A variable byte integer in its shortest form.
pub fn varint(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out.push(if value > 0 { byte | 0x80 } else { byte });
        if value == 0 {
            return out;
        }
    }
}

pub fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    let mut out = u16::try_from(bytes.len())
        .expect("a short string")
        .to_be_bytes()
        .to_vec();
    out.extend_from_slice(bytes);
    out
}

/// A packet of these parts.
pub fn packet(first_byte: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut out = vec![first_byte];
    out.extend(varint(body.len()));
    out.extend(body);
    out
}

/// The properties of a packet of `version`, with their length; nothing before MQTT 5.
pub fn properties(version: u8, list: &[&[u8]]) -> Vec<u8> {
    if version < 5 {
        return Vec::new();
    }
    let body = list.concat();
    let mut out = varint(body.len());
    out.extend(body);
    out
}

pub fn user(key: &str, value: &str) -> Vec<u8> {
    [vec![0x26], text(key), text(value)].concat()
}

pub fn number(id: u8, value: u32) -> Vec<u8> {
    [vec![id], value.to_be_bytes().to_vec()].concat()
}

pub fn short(id: u8, value: u16) -> Vec<u8> {
    [vec![id], value.to_be_bytes().to_vec()].concat()
}

pub fn string(id: u8, value: &str) -> Vec<u8> {
    [vec![id], text(value)].concat()
}

/// A packet that the broker sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub first_byte: u8,
    pub body: Vec<u8>,
    version: u8,
}

impl Packet {
    pub fn kind(&self) -> u8 {
        self.first_byte >> 4
    }

    /// The packet identifier of packets other than CONNACK and PUBLISH that have one.
    pub fn id(&self) -> u16 {
        u16::from_be_bytes([self.body[0], self.body[1]])
    }

    /// The reason code of CONNACK, DISCONNECT and the acknowledgements of publishes; success if it is left out.
    pub fn reason(&self) -> u8 {
        let at = match self.kind() {
            CONNACK => 1,
            DISCONNECT => 0,
            _ => 2,
        };
        self.body.get(at).copied().unwrap_or(0)
    }

    /// The codes of SUBACK and UNSUBACK.
    pub fn codes(&self) -> &[u8] {
        if self.version < 5 {
            return &self.body[2..];
        }
        let (len, at) = read_varint(&self.body[2..]);
        &self.body[2 + at + len..]
    }

    /// Properties with their identifier and the bytes of their value, in order.
    pub fn properties(&self) -> Vec<(u8, Vec<u8>)> {
        if self.version < 5 {
            return Vec::new();
        }
        let at = match self.kind() {
            CONNACK | SUBACK | UNSUBACK => 2,
            PUBLISH => self.after_id(),
            DISCONNECT => 1,
            _ => 3,
        };
        if self.body.len() <= at {
            return Vec::new();
        }
        let (len, size) = read_varint(&self.body[at..]);
        read_properties(&self.body[at + size..at + size + len])
    }

    pub fn property(&self, id: u8) -> Option<Vec<u8>> {
        self.properties()
            .into_iter()
            .find(|(of, _)| *of == id)
            .map(|(_, value)| value)
    }

    /// The text of a string property.
    pub fn property_text(&self, id: u8) -> Option<String> {
        self.property(id)
            .map(|value| String::from_utf8(value[2..].to_vec()).expect("text"))
    }

    pub fn users(&self) -> Vec<(String, String)> {
        let take = |bytes: &[u8]| {
            let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
            (
                String::from_utf8(bytes[2..2 + len].to_vec()).expect("text"),
                2 + len,
            )
        };
        let users = self.properties().into_iter().filter(|(id, _)| *id == 0x26);
        users
            .map(|(_, value)| {
                let (key, at) = take(&value);
                (key, take(&value[at..]).0)
            })
            .collect()
    }

    fn after_id(&self) -> usize {
        let topic = 2 + usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        topic + if self.qos() > 0 { 2 } else { 0 }
    }

    pub fn qos(&self) -> u8 {
        self.first_byte >> 1 & 3
    }

    pub fn dup(&self) -> bool {
        self.first_byte & 8 != 0
    }

    pub fn retain(&self) -> bool {
        self.first_byte & 1 != 0
    }

    pub fn topic(&self) -> String {
        let len = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        String::from_utf8(self.body[2..2 + len].to_vec()).expect("a topic is text")
    }

    /// The packet identifier of a PUBLISH with QoS 1 or 2.
    pub fn publish_id(&self) -> u16 {
        let at = self.after_id() - 2;
        u16::from_be_bytes([self.body[at], self.body[at + 1]])
    }

    pub fn payload(&self) -> &[u8] {
        let at = self.after_id();
        if self.version < 5 {
            return &self.body[at..];
        }
        let (len, size) = read_varint(&self.body[at..]);
        &self.body[at + size + len..]
    }

    pub fn payload_text(&self) -> String {
        String::from_utf8_lossy(self.payload()).into_owned()
    }
}

/// Returns the value and its length in bytes.
fn read_varint(bytes: &[u8]) -> (usize, usize) {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (value, index + 1);
        }
    }
    panic!("the broker sent half a length");
}

pub fn read_properties(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut list = Vec::new();
    while let [id, rest @ ..] = bytes {
        let string = |at: usize| 2 + usize::from(u16::from_be_bytes([rest[at], rest[at + 1]]));
        let len = match id {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2a => 1,
            0x13 | 0x21..=0x23 => 2,
            0x02 | 0x11 | 0x18 | 0x27 => 4,
            0x0b => read_varint(rest).1,
            0x26 => string(0) + string(string(0)),
            _ => string(0),
        };
        list.push((*id, rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    list
}

/// One connection.
pub struct Peer {
    stream: TcpStream,
    pub version: u8,
    received: Vec<u8>,
    /// Packets read while waiting for another one.
    aside: VecDeque<Packet>,
    next_id: u16,
}

impl Peer {
    /// Opens a connection and sends nothing.
    pub fn open(address: SocketAddr, version: u8) -> Self {
        Self {
            stream: tcp(address),
            version,
            received: Vec::new(),
            aside: VecDeque::new(),
            next_id: 0,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The broker may close before it has read all of a refused packet.
        let _ = self.stream.write_all(bytes);
    }

    pub fn new_id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// The next packet; `None` when the broker has closed the connection.
    pub fn next(&mut self) -> Option<Packet> {
        self.aside.pop_front().or_else(|| self.read())
    }

    fn read(&mut self) -> Option<Packet> {
        loop {
            if let Some(end) = self.received[..]
                .iter()
                .skip(1)
                .take(4)
                .position(|byte| byte & 0x80 == 0)
            {
                let (len, size) = read_varint(&self.received[1..=end + 1]);
                if self.received.len() > size + len {
                    let bytes: Vec<u8> = self.received.drain(..1 + size + len).collect();
                    return Some(Packet {
                        first_byte: bytes[0],
                        body: bytes[1 + size..].to_vec(),
                        version: self.version,
                    });
                }
            }
            let mut chunk = [0; 1 << 16];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                    ) =>
                {
                    return None;
                }
                Err(error) => panic!("nothing came in time: {error}; aside: {:?}", self.aside),
            }
        }
    }

    /// The next packet of this kind; others are stored.
    #[track_caller]
    pub fn wait_for(&mut self, kind: u8) -> Packet {
        if let Some(at) = self.aside.iter().position(|packet| packet.kind() == kind) {
            return self.aside.remove(at).expect("the place was just found");
        }
        loop {
            match self.read() {
                Some(packet) if packet.kind() == kind => return packet,
                Some(packet) => self.aside.push_back(packet),
                None => panic!(
                    "the broker closed instead of sending kind {kind}; before: {:?}",
                    self.aside
                ),
            }
        }
    }

    /// Expects the broker to close the connection; an MQTT 5 client gets this reason first.
    #[track_caller]
    pub fn closed_with(&mut self, reason: u8) {
        if self.version == 5 {
            let packet = self.wait_for(DISCONNECT);
            assert_eq!(
                packet.reason(),
                reason,
                "{:#04x}, not {reason:#04x}",
                packet.reason()
            );
        }
        self.closed();
    }

    /// Expects the broker to close the connection without another packet.
    #[track_caller]
    pub fn closed(&mut self) {
        if let Some(packet) = self.next() {
            panic!("expected the end of the connection, got {packet:02x?}");
        }
    }

    /// Asserts that everything sent so far was handled and that no message resulted.
    #[track_caller]
    pub fn silent(&mut self) {
        self.send(&[0xc0, 0]);
        self.wait_for(PINGRESP);
        let message = self.aside.iter().find(|packet| packet.kind() == PUBLISH);
        assert_eq!(message, None, "expected no message");
    }

    /// Closes without a DISCONNECT.
    pub fn vanish(self) {}

    /// Sends a DISCONNECT and waits until the broker has closed.
    #[track_caller]
    pub fn goodbye(mut self) {
        self.send(&[0xe0, 0]);
        while self.next().is_some() {}
    }
}
