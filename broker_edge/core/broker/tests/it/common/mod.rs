//! A real broker on free ports and a small blocking MQTT client, for tests over TCP.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use headwater_broker::Broker;
use headwater_broker::config::Config;
use headwater_mqtt::encode::{self, ConnectFields, PublishFields};
use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::packet::{ServerPacket, decode_from_server};
use headwater_mqtt::{Frame, PacketId, Property, QoS, ReasonCode, Version, frame};

/// The longest time that a test waits for an expected event.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Raises the limit of open files to the hard limit, as `headwaterd` does, and returns it: all tests of this program
/// share it, and with many cores many of them run at a time. `None` is no limit.
pub fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the hard limit is allowed");
    limit.current
}

/// A broker with its data in `dir`.
pub fn start(dir: &Path) -> Broker {
    start_with(dir, |_| {})
}

pub fn start_with(dir: &Path, change: impl FnOnce(&mut Config)) -> Broker {
    try_start_with(dir, change)
        .expect("the broker starts on an empty folder or on what it left there")
}

pub fn try_start_with(
    dir: &Path,
    change: impl FnOnce(&mut Config),
) -> Result<Broker, headwater_broker::StartError> {
    raise_open_files();
    let mut config = Config {
        data_dir: dir.to_owned(),
        ..Config::default()
    };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    config.listeners.mqtt.bind.0 = vec![free];
    config.listeners.flight.bind.0 = free;
    config.listeners.admin.bind.0 = free;
    change(&mut config);
    Broker::start(config)
}

/// A packet from the broker, with the fields that tests check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Connack {
        present: bool,
        accepted: bool,
        code: u8,
        properties: Vec<(String, String)>,
    },
    Publish(Message),
    Puback {
        id: u16,
        reason: ReasonCode,
        properties: Vec<(String, String)>,
    },
    Suback {
        codes: Vec<ReasonCode>,
        properties: Vec<(String, String)>,
    },
    Unsuback,
    Pingresp,
    Disconnect(ReasonCode),
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub id: Option<u16>,
    /// User properties, in order.
    pub properties: Vec<(String, String)>,
    pub expiry_s: Option<u32>,
    pub ids: Vec<u32>,
}

impl Message {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("tests send text")
    }

    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub version: Version,
    received: Vec<u8>,
    /// Packets read while waiting for another one.
    aside: VecDeque<Got>,
    next_id: u16,
}

impl Client {
    /// Opens a connection and sends nothing.
    pub fn open(address: SocketAddr, version: Version) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream
            .set_read_timeout(Some(DEADLINE))
            .expect("a timeout above zero");
        stream.set_nodelay(true).expect("an open socket");
        Self {
            stream,
            version,
            received: Vec::new(),
            aside: VecDeque::new(),
            next_id: 0,
        }
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

    pub fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        encode(&mut out);
        self.stream.write_all(&out).expect("the broker reads");
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
    pub fn publish(&mut self, topic: &str, payload: &str) {
        self.publish_with(topic, payload, false, &[]);
    }

    pub fn publish_with(
        &mut self,
        topic: &str,
        payload: &str,
        retain: bool,
        properties: &[Property<'_>],
    ) {
        let id = self.send_publish(topic, payload.as_bytes(), 1, retain, properties);
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
        loop {
            if let Ok(Frame::Whole {
                first_byte,
                header_len,
                total_len,
            }) = frame::next(&self.received, 1 << 28)
            {
                let body = self.received[header_len..total_len].to_vec();
                self.received.drain(..total_len);
                return got(decode_from_server(self.version, first_byte, &body)
                    .expect("the broker sends well-formed packets"));
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Got::Closed,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if matches!(error.kind(), std::io::ErrorKind::ConnectionReset) => {
                    return Got::Closed;
                }
                Err(error) => panic!("nothing came in time: {error}"),
            }
        }
    }
}

fn users(properties: headwater_mqtt::Properties<'_>) -> Vec<(String, String)> {
    properties
        .user_properties()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn got(packet: ServerPacket<'_>) -> Got {
    match packet {
        ServerPacket::Connack(connack) => {
            let mut properties = users(connack.properties);
            if let Some(id) = connack.properties.assigned_client_identifier() {
                properties.push(("assigned".to_owned(), id.to_owned()));
            }
            let code = match connack.code {
                headwater_mqtt::packet::connack::ConnackCode::V3(code) => code.as_u8(),
                headwater_mqtt::packet::connack::ConnackCode::V5(code) => code.as_u8(),
            };
            Got::Connack {
                present: connack.session_present,
                accepted: connack.code.is_accepted(),
                code,
                properties,
            }
        }
        ServerPacket::Publish(publish) => Got::Publish(Message {
            topic: publish.topic.as_str().to_owned(),
            payload: publish.payload.to_vec(),
            qos: publish.qos.as_u8(),
            retain: publish.retain,
            dup: publish.dup,
            id: publish.packet_id.map(PacketId::get),
            properties: users(publish.properties),
            expiry_s: publish.properties.message_expiry_interval(),
            ids: publish.properties.subscription_identifiers().collect(),
        }),
        ServerPacket::Puback(Ack {
            packet_id,
            reason,
            properties,
        }) => Got::Puback {
            id: packet_id.get(),
            reason,
            properties: users(properties),
        },
        ServerPacket::Suback(suback) => {
            let mut properties = users(suback.properties);
            if let Some(reason) = suback.properties.reason_string() {
                properties.push(("reason".to_owned(), reason.to_owned()));
            }
            Got::Suback {
                codes: suback.codes.iter().collect(),
                properties,
            }
        }
        ServerPacket::Unsuback(_) => Got::Unsuback,
        ServerPacket::Pingresp => Got::Pingresp,
        ServerPacket::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
        other => panic!("the broker sent {other:?}"),
    }
}
