//! A well-behaved client on top of `wire`: CONNECT, PUBLISH, SUBSCRIBE and the required answers.

use crate::conformance::address;
use crate::conformance::wire::{
    CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, Peer, SUBACK, UNSUBACK, number,
    packet, properties, text,
};

/// The fields of a CONNECT.
pub struct Connect {
    pub version: u8,
    pub client_id: String,
    pub clean: bool,
    pub keep_alive_s: u16,
    /// Encoded properties, without their length.
    pub properties: Vec<u8>,
    pub will: Option<Will>,
    pub username: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
    /// Flags to set in addition to those that follow from the fields.
    pub extra_flags: u8,
}

pub struct Will {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub properties: Vec<u8>,
}

impl Will {
    pub fn new(topic: &str, payload: &str) -> Self {
        Self {
            topic: topic.into(),
            payload: payload.into(),
            qos: 1,
            retain: false,
            properties: Vec::new(),
        }
    }
}

impl Connect {
    pub fn new(version: u8, client_id: &str) -> Self {
        Self {
            version,
            client_id: client_id.to_owned(),
            clean: true,
            keep_alive_s: 60,
            properties: Vec::new(),
            will: None,
            username: None,
            password: None,
            extra_flags: 0,
        }
    }

    /// A session that outlives its connection, resumed if it exists.
    pub fn lasting(version: u8, client_id: &str) -> Self {
        Self {
            clean: false,
            properties: number(0x11, 3600),
            ..Self::new(version, client_id)
        }
    }

    pub fn with(mut self, property: &[u8]) -> Self {
        self.properties.extend_from_slice(property);
        self
    }

    pub fn encode(&self) -> Vec<u8> {
        let v = self.version;
        let will = self.will.as_ref();
        let flags = u8::from(self.clean) << 1
            | will.map_or(0, |will| 4 | will.qos << 3 | u8::from(will.retain) << 5)
            | u8::from(self.password.is_some()) << 6
            | u8::from(self.username.is_some()) << 7
            | self.extra_flags;
        let mut body = text(if v == 3 { "MQIsdp" } else { "MQTT" });
        body.extend([v, flags]);
        body.extend(self.keep_alive_s.to_be_bytes());
        body.extend(properties(v, &[&self.properties]));
        body.extend(text(&self.client_id));
        if let Some(will) = will {
            body.extend(properties(v, &[&will.properties]));
            body.extend(text(&will.topic));
            body.extend(text(&will.payload));
        }
        self.username
            .iter()
            .chain(&self.password)
            .for_each(|field| body.extend(text(field)));
        packet(0x10, &[&body])
    }

    /// Sends it and returns the CONNACK, whatever its code.
    #[track_caller]
    pub fn answer(&self) -> (Peer, Packet) {
        let mut peer = Peer::open(address(), self.version);
        peer.send(&self.encode());
        let connack = peer.next().expect("a CONNACK");
        assert_eq!(connack.kind(), CONNACK, "{connack:02x?}");
        (peer, connack)
    }

    /// Sends it, expects success, and returns the session present flag.
    #[track_caller]
    pub fn enter(&self) -> (Peer, bool) {
        let (peer, connack) = self.answer();
        assert_eq!(connack.reason(), 0, "{connack:02x?}");
        (peer, connack.body[0] == 1)
    }

    /// Expects the connection to be closed without a CONNACK, or for MQTT 5 with this reason in one.
    #[track_caller]
    pub fn refused(&self, reason: u8) {
        refused(self.version, &self.encode(), reason);
    }
}

/// Sends these bytes as the first packet. Expects a CONNACK with `reason` in MQTT 5, no answer in earlier versions, and
/// the end of the connection.
#[track_caller]
pub fn refused(version: u8, bytes: &[u8], reason: u8) {
    let mut peer = Peer::open(address(), version);
    peer.send(bytes);
    if version == 5 {
        let connack = peer.next().expect("a CONNACK with the reason");
        assert_eq!(
            (connack.kind(), connack.reason()),
            (CONNACK, reason),
            "{connack:02x?}"
        );
        assert_eq!(connack.body[0], 0, "no session is present");
    }
    peer.closed();
}

/// A clean session.
#[track_caller]
pub fn connect(version: u8, client_id: &str) -> Peer {
    let (peer, present) = Connect::new(version, client_id).enter();
    assert!(!present);
    peer
}

/// A PUBLISH with QoS 0 and no properties.
pub fn publish_0(version: u8, topic: &str, payload: &str) -> Vec<u8> {
    packet(
        0x30,
        &[&text(topic), &properties(version, &[]), payload.as_bytes()],
    )
}

impl Peer {
    /// Sends a PUBLISH; `flags` are its low four bits.
    pub fn send_publish(
        &mut self,
        flags: u8,
        id: u16,
        topic: &str,
        list: &[&[u8]],
        payload: &[u8],
    ) {
        let id = if flags & 6 == 0 {
            Vec::new()
        } else {
            id.to_be_bytes().to_vec()
        };
        let bytes = packet(
            0x30 | flags,
            &[&text(topic), &id, &properties(self.version, list), payload],
        );
        self.send(&bytes);
    }

    /// Publishes with QoS 1 and waits for the acknowledgement.
    #[track_caller]
    pub fn publish(&mut self, topic: &str, payload: &str) {
        self.publish_with(2, topic, &[], payload);
    }

    /// Publishes with QoS 1; bit 0 of `flags` retains.
    #[track_caller]
    pub fn publish_with(&mut self, flags: u8, topic: &str, list: &[&[u8]], payload: &str) {
        let id = self.new_id();
        self.send_publish(flags | 2, id, topic, list, payload.as_bytes());
        let ack = self.wait_for(PUBACK);
        assert_eq!(ack.id(), id);
        assert!(ack.reason() < 0x80, "{ack:02x?}");
    }

    /// The complete exchange of a QoS 2 publish.
    #[track_caller]
    pub fn publish_2(&mut self, topic: &str, payload: &str) {
        let id = self.new_id();
        self.send_publish(4, id, topic, &[], payload.as_bytes());
        assert_eq!(self.wait_for(PUBREC).id(), id);
        self.ack(PUBREL, id);
        assert_eq!(self.wait_for(PUBCOMP).id(), id);
    }

    /// An acknowledgement with success.
    pub fn ack(&mut self, kind: u8, id: u16) {
        let flags = if kind == PUBREL { 2 } else { 0 };
        self.send(&packet(kind << 4 | flags, &[&id.to_be_bytes()]));
    }

    /// Subscribes to filters, each with its options, and returns the SUBACK.
    #[track_caller]
    pub fn subscribe_all(&mut self, list: &[&[u8]], filters: &[(&str, u8)]) -> Packet {
        let id = self.new_id();
        let mut body = [id.to_be_bytes().to_vec(), properties(self.version, list)].concat();
        for (filter, options) in filters {
            body.extend(text(filter));
            body.push(*options);
        }
        self.send(&packet(0x82, &[&body]));
        let suback = self.wait_for(SUBACK);
        assert_eq!(suback.id(), id);
        suback
    }

    #[track_caller]
    pub fn subscribe(&mut self, filter: &str, options: u8) {
        let suback = self.subscribe_all(&[], &[(filter, options)]);
        assert_eq!(suback.codes(), [options & 3], "{filter}");
    }

    #[track_caller]
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Packet {
        let id = self.new_id();
        let mut body = [id.to_be_bytes().to_vec(), properties(self.version, &[])].concat();
        filters.iter().for_each(|filter| body.extend(text(filter)));
        self.send(&packet(0xa2, &[&body]));
        let unsuback = self.wait_for(UNSUBACK);
        assert_eq!(unsuback.id(), id);
        unsuback
    }

    /// The next message, after sending the answers that it requires.
    #[track_caller]
    pub fn message(&mut self) -> Packet {
        let message = self.message_unacked();
        match message.qos() {
            1 => self.ack(PUBACK, message.publish_id()),
            2 => {
                self.ack(PUBREC, message.publish_id());
                assert_eq!(self.wait_for(PUBREL).id(), message.publish_id());
                self.ack(PUBCOMP, message.publish_id());
            }
            _ => {}
        }
        message
    }

    #[track_caller]
    pub fn message_unacked(&mut self) -> Packet {
        self.wait_for(PUBLISH)
    }

    #[track_caller]
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.message().payload_text()).collect()
    }
}
