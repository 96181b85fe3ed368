//! A client that follows the protocol and remembers what it was promised, so that the run can compare it with the log.

use headwater_mqtt::packet::ack::Ack;
use headwater_mqtt::{Publish, TopicName};

use super::mutate::Mutator;
use super::*;

/// No other client writes payloads that begin like this.
const MAGIC: &str = "honest-";

/// The honest client that published this, and the message's number.
pub(super) fn parse(payload: &[u8]) -> Option<(u8, u32)> {
    let rest = std::str::from_utf8(payload).ok()?.strip_prefix(MAGIC)?;
    let (who, n) = rest.split_once(' ')?;
    Some((who.parse().ok()?, n.parse().ok()?))
}

pub(super) struct Honest {
    pub(super) name: u8,
    client_id: String,
    version: Version,
    key: Option<ConnKey>,
    connected: bool,
    unread: Vec<u8>,
    next_number: u32,
    next_id: u16,
    /// Packet ids in use, with the numbers they publish.
    flights: HashMap<u16, u32>,
    /// Acknowledged since the last check of the log.
    pub(super) acknowledged: Vec<u32>,
    pub(super) count_acknowledged: u64,
    pub(super) count_delivered: u64,
    /// Per publisher, topic and QoS, the highest number that was delivered on this connection for the first time.
    delivered: HashMap<(u8, String, u8), u32>,
}

impl Honest {
    pub(super) fn new(name: u8) -> Self {
        Self {
            name,
            client_id: format!("{MAGIC}{name}"),
            version: [Version::V31, Version::V311, Version::V5][usize::from(name) % 3],
            key: None,
            connected: false,
            unread: Vec::new(),
            next_number: 0,
            next_id: 0,
            flights: HashMap::new(),
            acknowledged: Vec::new(),
            count_acknowledged: 0,
            count_delivered: 0,
            delivered: HashMap::new(),
        }
    }

    /// The broker has forgotten this connection.
    pub(super) fn lost(&mut self) {
        self.key = None;
        self.connected = false;
        self.unread.clear();
        self.flights.clear();
        self.delivered.clear();
    }

    pub(super) fn closed(&mut self, key: ConnKey) {
        if self.key == Some(key) {
            self.lost();
        }
    }

    pub(super) fn vanish(&mut self, rig: &mut Rig) {
        if let Some(key) = self.key {
            rig.engine.lost(key);
            self.lost();
        }
    }

    /// Connects, or publishes, or subscribes.
    pub(super) fn act(&mut self, rig: &mut Rig, mutator: &mut Mutator) {
        let Some(key) = self.key else {
            let key = rig.engine.open(crate::peer::Peer::nobody());
            let lasting = [Property::SessionExpiryInterval(1_000_000)];
            let mut fields = ConnectFields::new(self.version, &self.client_id);
            fields.clean_start = mutator.below(8) == 0;
            fields.keep_alive_s = 0;
            fields.properties = if self.version.is_v5() { &lasting } else { &[] };
            encode::connect(&mut self.unread, &fields);
            self.key = Some(key);
            self.offer(rig);
            return;
        };
        if !self.connected {
            return;
        }
        let version = self.version;
        if mutator.below(16) == 0 {
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][mutator.below(2)];
            let one = [Subscription {
                filter: "honest/#",
                options: SubscriptionOptions::new(qos),
            }];
            let id = PacketId::new(65_535).unwrap();
            encode::subscribe(&mut self.unread, version, id, &[], &one);
        } else if self.flights.len() < 15 {
            self.next_id = self.next_id % 60_000 + 1;
            if self.flights.contains_key(&self.next_id) {
                return;
            }
            self.next_number += 1;
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][mutator.below(2)];
            let fields = PublishFields {
                version,
                dup: false,
                qos,
                retain: false,
                topic: ["honest/a", "honest/b"][mutator.below(2)],
                packet_id: PacketId::new(self.next_id),
                properties: &[],
                extra: &[],
            };
            self.flights.insert(self.next_id, self.next_number);
            let payload = format!("{MAGIC}{} {}", self.name, self.next_number);
            fields.encode(&mut self.unread, payload.as_bytes()).unwrap();
        }
        let _ = key;
        self.offer(rig);
    }

    fn offer(&mut self, rig: &mut Rig) {
        if let Some(key) = self.key {
            let taken = rig.receive(key, &self.unread);
            self.unread.drain(..taken);
        }
    }

    /// Reads everything sent to it and answers most of it.
    pub(super) fn read(&mut self, rig: &mut Rig, mutator: &mut Mutator) {
        let Some(key) = self.key else { return };
        let bytes = rig.engine.out(key).to_vec();
        rig.engine.written(key, bytes.len());
        let mut rest = bytes.as_slice();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(self.version, first_byte, &rest[header_len..total_len]);
            self.take(
                packet.expect("the engine sends well-formed packets"),
                mutator,
            );
            rest = &rest[total_len..];
        }
        assert!(rest.is_empty(), "the engine sends whole packets");
        self.offer(rig);
    }

    fn take(&mut self, packet: ServerPacket<'_>, mutator: &mut Mutator) {
        let (version, ok) = (self.version, ReasonCode::Success);
        match packet {
            ServerPacket::Connack(connack) => {
                assert!(!self.connected, "one CONNACK a connection");
                self.connected = connack.code.is_accepted();
            }
            ServerPacket::Puback(ack) => {
                self.take_ack(&ack);
            }
            ServerPacket::Pubrec(ack) => {
                if self.take_ack(&ack) {
                    self.flights.insert(ack.packet_id.get(), 0);
                    encode::pubrel(&mut self.unread, version, ack.packet_id, ok, &[]);
                }
            }
            ServerPacket::Pubcomp(ack) => {
                assert_eq!(
                    self.flights.remove(&ack.packet_id.get()),
                    Some(0),
                    "a PUBCOMP of nothing"
                );
            }
            ServerPacket::Publish(publish) => {
                self.take_message(&publish);
                // Some messages stay unanswered until the next connection.
                let Some(id) = publish.packet_id.filter(|_| mutator.below(64) > 0) else {
                    return;
                };
                if publish.qos == QoS::AtLeastOnce {
                    encode::puback(&mut self.unread, version, id, ok, &[]);
                } else {
                    encode::pubrec(&mut self.unread, version, id, ok, &[]);
                }
            }
            ServerPacket::Pubrel(ack) => {
                encode::pubcomp(&mut self.unread, version, ack.packet_id, ok, &[])
            }
            ServerPacket::Suback(_) | ServerPacket::Disconnect(_) => {}
            other => panic!("nobody asked for {other:?}"),
        };
    }

    /// Notes an acknowledgement. Returns whether it was a success.
    fn take_ack(&mut self, ack: &Ack<'_>) -> bool {
        let n = self.flights.remove(&ack.packet_id.get());
        let n = n.expect("an acknowledgement of what was published");
        if ack.reason.is_error() {
            return false;
        }
        self.acknowledged.push(n);
        self.count_acknowledged += 1;
        true
    }

    fn take_message(&mut self, publish: &Publish<'_>) {
        assert!(publish.topic != TopicName::EMPTY && publish.topic.as_str().starts_with("honest/"));
        let Some((who, n)) = parse(publish.payload).filter(|_| !publish.dup) else {
            return;
        };
        self.count_delivered += 1;
        let stream = (who, publish.topic.as_str().to_owned(), publish.qos.as_u8());
        if let Some(last) = self.delivered.insert(stream, n) {
            assert!(last < n, "{n} of {who} after {last}");
        }
    }
}
