//! A small blocking MQTT client over any stream. It uses the codec of the broker; the tests of conformance have their
//! own (`conformance::wire`).

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::packet::decode_from_server;
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{Frame, PacketId, Property, QoS, ReasonCode, Version, frame};

use super::{Got, Message, tcp};

/// The protocol's limit.
const PACKET_BYTES_MAX: usize = 1 << 28;

/// A client of one version over an open stream.
pub struct Client<S = TcpStream> {
    pub stream: S,
    pub version: Version,
    received: Vec<u8>,
    /// Packets read while waiting for another one.
    aside: VecDeque<Got>,
    next_id: u16,
}

impl Client {
    /// Opens a connection and sends nothing.
    pub fn open(address: SocketAddr, version: Version) -> Self {
        Self::over(tcp(address), version)
    }

    /// A clean session.
    pub fn connect(address: SocketAddr, version: Version, client_id: &str) -> Self {
        let (client, present) = Self::connect_with(address, ConnectFields::new(version, client_id));
        assert!(!present);
        client
    }

    /// Connects and returns the session-present flag.
    pub fn connect_with(address: SocketAddr, fields: ConnectFields<'_>) -> (Self, bool) {
        let mut client = Self::open(address, fields.version);
        client.send(|out| encode::connect(out, &fields));
        match client.next() {
            Got::Connack {
                present,
                accepted: true,
                ..
            } => (client, present),
            other => panic!("expected an accepting CONNACK, got {other:?}"),
        }
    }

    /// A session that outlives its connection.
    pub fn resume(address: SocketAddr, version: Version, client_id: &str) -> (Self, bool) {
        let lasting = [Property::SessionExpiryInterval(3600)];
        let mut fields = ConnectFields::new(version, client_id);
        fields.clean_start = false;
        if version.is_v5() {
            fields.properties = &lasting;
        }
        Self::connect_with(address, fields)
    }
}

impl<S: Read + Write> Client<S> {
    /// Sends nothing.
    pub fn over(stream: S, version: Version) -> Self {
        Self {
            stream,
            version,
            received: Vec::new(),
            aside: VecDeque::new(),
            next_id: 0,
        }
    }

    pub fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        encode(&mut out);
        self.try_send(&out).expect("the broker reads");
    }

    /// For connections that the broker may close meanwhile.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    pub fn id(&mut self) -> PacketId {
        self.next_id += 1;
        PacketId::new(self.next_id).expect("tests send fewer than 65,535 packets")
    }

    /// Sends a PUBLISH without waiting.
    pub fn send_publish(
        &mut self,
        topic: &str,
        payload: &[u8],
        qos: u8,
        retain: bool,
        properties: &[Property<'_>],
    ) -> u16 {
        let qos = QoS::from_u8(qos).expect("a QoS");
        let id = (qos != QoS::AtMostOnce).then(|| self.id());
        let mut encoded = Vec::new();
        properties
            .iter()
            .for_each(|property| property.encode(&mut encoded));
        let version = self.version;
        let fields = PublishFields {
            version,
            dup: false,
            qos,
            retain,
            topic,
            packet_id: id,
            properties: &encoded,
            extra: &[],
        };
        self.send(|out| {
            fields.encode(out, payload).expect("a small packet");
        });
        id.map_or(0, PacketId::get)
    }

    /// Publishes with QoS 1 and waits for the acknowledgement.
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>) {
        self.publish_with(topic, payload, false, &[]);
    }

    pub fn publish_with(
        &mut self,
        topic: &str,
        payload: impl AsRef<[u8]>,
        retain: bool,
        properties: &[Property<'_>],
    ) {
        let id = self.send_publish(topic, payload.as_ref(), 1, retain, properties);
        let got = self.wait_for(|got| matches!(got, Got::Puback { .. }));
        assert!(
            matches!(&got, Got::Puback { id: acked, reason, .. } if *acked == id && !reason.is_error()),
            "{got:?}"
        );
    }

    pub fn subscribe(&mut self, filter: &str, qos: u8) {
        let qos = QoS::from_u8(qos).expect("a QoS");
        let (codes, _) = self.subscribe_with(filter, SubscriptionOptions::new(qos), &[]);
        assert_eq!(codes.len(), 1);
        assert!(!codes[0].is_error(), "{codes:?}");
    }

    pub fn subscribe_with(
        &mut self,
        filter: &str,
        options: SubscriptionOptions,
        properties: &[Property<'_>],
    ) -> (Vec<ReasonCode>, Vec<(String, String)>) {
        let (id, version) = (self.id(), self.version);
        self.send(|out| {
            encode::subscribe(
                out,
                version,
                id,
                properties,
                &[Subscription { filter, options }],
            )
        });
        match self.wait_for(|got| matches!(got, Got::Suback { .. })) {
            Got::Suback { codes, properties } => (codes, properties),
            other => panic!("expected a SUBACK, got {other:?}"),
        }
    }

    pub fn unsubscribe(&mut self, filter: &str) {
        let (id, version) = (self.id(), self.version);
        self.send(|out| encode::unsubscribe(out, version, id, &[], &[filter]));
        self.wait_for(|got| matches!(got, Got::Unsuback));
    }

    pub fn ack(&mut self, message: &Message) {
        let (version, id) = (
            self.version,
            message
                .id
                .and_then(PacketId::new)
                .expect("a QoS 1 delivery"),
        );
        self.send(|out| encode::puback(out, version, id, ReasonCode::Success, &[]));
    }

    /// The next message, acknowledged if its QoS requires it.
    pub fn message(&mut self) -> Message {
        let message = self.message_unacked();
        if message.qos == 1 {
            self.ack(&message);
        }
        message
    }

    pub fn message_unacked(&mut self) -> Message {
        match self.wait_for(|got| matches!(got, Got::Publish(_) | Got::Closed)) {
            Got::Publish(message) => message,
            other => panic!("expected a message, got {other:?}"),
        }
    }

    /// The texts of the next messages.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| self.message().text().to_owned())
            .collect()
    }

    /// Asserts that the broker has handled everything sent so far and that no message resulted.
    pub fn expect_silence(&mut self) {
        self.send(encode::pingreq);
        match self.wait_for(|got| matches!(got, Got::Publish(_) | Got::Pingresp | Got::Closed)) {
            Got::Pingresp => {}
            other => panic!("expected nothing, got {other:?}"),
        }
    }

    pub fn disconnect(mut self) {
        let version = self.version;
        self.send(|out| encode::disconnect(out, version, ReasonCode::Success, &[]));
        // The broker closes only after it has handled everything.
        while self.next() != Got::Closed {}
    }

    /// The next packet that satisfies `wanted`; others are stored.
    pub fn wait_for(&mut self, wanted: impl Fn(&Got) -> bool) -> Got {
        if let Some(at) = self.aside.iter().position(&wanted) {
            return self.aside.remove(at).expect("the place was just found");
        }
        loop {
            let got = self.read();
            if wanted(&got) {
                return got;
            }
            assert_ne!(
                got,
                Got::Closed,
                "the broker closed the connection; before: {:?}",
                self.aside
            );
            self.aside.push_back(got);
        }
    }

    /// The next packet.
    pub fn next(&mut self) -> Got {
        self.aside.pop_front().unwrap_or_else(|| self.read())
    }

    fn read(&mut self) -> Got {
        let Some(packet) = self.packet() else {
            return Got::Closed;
        };
        let body = match frame::next(&packet, PACKET_BYTES_MAX) {
            Ok(Frame::Whole { header_len, .. }) => &packet[header_len..],
            other => panic!("not a packet: {other:?}"),
        };
        decode_from_server(self.version, packet[0], body)
            .expect("the broker sends well-formed packets")
            .into()
    }

    /// The bytes of the next packet that was not read yet; `None` at the end of the connection.
    pub fn packet(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Ok(Frame::Whole { total_len, .. }) =
                frame::next(&self.received, PACKET_BYTES_MAX)
            {
                return Some(self.received.drain(..total_len).collect());
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    panic!("nothing came in time: {error}");
                }
                // A reset, or an alert of TLS.
                Err(_) => return None,
            }
        }
    }
}
