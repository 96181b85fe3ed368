//! A client that keeps its protocol state across connections, as the standard requires.

use std::collections::BTreeSet;

use headwater_mqtt::packet::ack::Ack;

use super::*;

/// A client with the state that the protocol requires.
pub(super) struct Peer {
    pub(super) client_id: &'static str,
    pub(super) version: Version,
    pub(super) key: Option<ConnKey>,
    pub(super) connected: bool,
    /// Its SUBACK has arrived.
    pub(super) subscribed: bool,
    pub(super) next_id: u16,
    /// Publishes in flight in order: packet id, text, and whether the PUBREC has arrived.
    pub(super) flights: Vec<(u16, String, bool)>,
    /// Packet ids of QoS 2 deliveries that are not released.
    pub(super) held: BTreeSet<u16>,
    /// What the application got with QoS 2, and with a lower QoS.
    pub(super) got: Vec<String>,
    pub(super) got_qos1: Vec<String>,
    pub(super) completed: Vec<String>,
}

impl Peer {
    pub(super) fn new(client_id: &'static str, version: Version) -> Self {
        Self {
            client_id,
            version,
            key: None,
            connected: false,
            subscribed: false,
            next_id: 0,
            flights: Vec::new(),
            held: BTreeSet::new(),
            got: Vec::new(),
            got_qos1: Vec::new(),
            completed: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, rig: &mut Rig) {
        let key = rig.engine.open(crate::peer::Peer::nobody());
        let lasts = [Property::SessionExpiryInterval(3600)];
        let mut fields = ConnectFields::new(self.version, self.client_id);
        fields.clean_start = false;
        if self.version.is_v5() {
            fields.properties = &lasts;
        }
        rig.feed(key, |out| encode::connect(out, &fields));
        self.key = Some(key);
        self.connected = false;
    }

    /// The connection is lost without a DISCONNECT.
    pub(super) fn lose(&mut self, rig: &mut Rig) {
        if let Some(key) = self.key.take() {
            rig.engine.remove(key);
        }
        self.connected = false;
    }

    pub(super) fn subscribe(&mut self, rig: &mut Rig, qos: QoS, from: Option<&str>) {
        let (key, version) = (self.key.expect("connected"), self.version);
        let from = from.map(|value| Property::UserProperty {
            key: "stream-offset",
            value,
        });
        let properties: Vec<Property<'_>> = from.into_iter().collect();
        let options = SubscriptionOptions::new(qos);
        let one = [Subscription {
            filter: "t",
            options,
        }];
        rig.feed(key, |out| {
            encode::subscribe(out, version, PacketId::FIRST, &properties, &one);
        });
    }

    pub(super) fn publish(&mut self, rig: &mut Rig, text: String) {
        self.next_id = self.next_id % 50 + 1;
        if self.flights.iter().any(|(id, _, _)| *id == self.next_id) {
            return;
        }
        self.flights.push((self.next_id, text, false));
        if self.connected {
            self.send_flight(rig, self.flights.len() - 1, false);
        }
    }

    /// A message that is sent once and never again.
    pub(super) fn publish_qos1(&mut self, rig: &mut Rig, text: &str) {
        if let (true, Some(key)) = (self.connected, self.key) {
            rig.publish(key, self.version, 1000, text);
        }
    }

    pub(super) fn send_flight(&self, rig: &mut Rig, at: usize, dup: bool) {
        let (key, version) = (self.key.expect("connected"), self.version);
        let (id, text, released) = &self.flights[at];
        let packet_id = PacketId::new(*id);
        if *released {
            let id = packet_id.expect("not zero");
            rig.feed(key, |out| {
                encode::pubrel(out, version, id, ReasonCode::Success, &[])
            });
            return;
        }
        let fields = PublishFields {
            version,
            dup,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: "t",
            packet_id,
            properties: &[],
            extra: &[],
        };
        rig.feed(key, |out| {
            fields.encode(out, text.as_bytes()).expect("a small packet");
        });
    }

    /// Reads what the broker sent and answers it. Returns whether there was anything.
    pub(super) fn work(&mut self, rig: &mut Rig) -> bool {
        let Some(key) = self.key else { return false };
        let bytes = rig.engine.out(key).to_vec();
        rig.engine.written(key, bytes.len());
        if rig.engine.take_closed().contains(&key) {
            panic!("{} was closed: {:?}", self.client_id, bytes);
        }
        let mut rest = bytes.as_slice();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(self.version, first_byte, &rest[header_len..total_len])
                .expect("the engine encodes well-formed packets");
            self.take(rig, key, &packet);
            rest = &rest[total_len..];
        }
        !bytes.is_empty()
    }

    fn take(&mut self, rig: &mut Rig, key: ConnKey, packet: &ServerPacket<'_>) {
        let version = self.version;
        let id_of = |ack: &Ack<'_>| {
            assert!(!ack.reason.is_error(), "{ack:?}");
            ack.packet_id
        };
        match packet {
            ServerPacket::Connack(_) => {
                self.connected = true;
                (0..self.flights.len()).for_each(|at| self.send_flight(rig, at, true));
            }
            ServerPacket::Suback(suback) => {
                let codes: Vec<ReasonCode> = suback.codes.iter().collect();
                assert_eq!(codes, [ReasonCode::GrantedQos2], "{suback:?}");
                self.subscribed = true;
            }
            ServerPacket::Pubrec(ack) => {
                let id = id_of(ack);
                for flight in self
                    .flights
                    .iter_mut()
                    .filter(|flight| flight.0 == id.get())
                {
                    flight.2 = true;
                }
                rig.feed(key, |out| {
                    encode::pubrel(out, version, id, ReasonCode::Success, &[])
                });
            }
            ServerPacket::Pubcomp(ack) => {
                let id = ack.packet_id.get();
                if let Some(at) = self.flights.iter().position(|flight| flight.0 == id) {
                    let (_, text, released) = self.flights.remove(at);
                    assert!(released, "completed before it was received");
                    self.completed.push(text);
                }
            }
            ServerPacket::Publish(publish) => {
                let text = String::from_utf8_lossy(publish.payload).into_owned();
                let Some(id) = publish.packet_id else { return };
                if publish.qos == QoS::ExactlyOnce {
                    if self.held.insert(id.get()) {
                        self.got.push(text);
                    }
                    rig.feed(key, |out| {
                        encode::pubrec(out, version, id, ReasonCode::Success, &[])
                    });
                } else {
                    self.got_qos1.push(text);
                    rig.feed(key, |out| {
                        encode::puback(out, version, id, ReasonCode::Success, &[])
                    });
                }
            }
            ServerPacket::Pubrel(ack) => {
                let id = id_of(ack);
                self.held.remove(&id.get());
                rig.feed(key, |out| {
                    encode::pubcomp(out, version, id, ReasonCode::Success, &[])
                });
            }
            _ => {}
        }
    }
}
