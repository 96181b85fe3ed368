//! A member of a shared group that acknowledges only on request, and a client that publishes to the group.

use super::*;

pub(super) const V5: Version = Version::V5;
pub(super) const GROUP: &str = "$share/g/t";

/// A delivery that the client has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unacked {
    pub(super) id: u16,
    pub(super) qos: QoS,
    pub(super) text: String,
}

/// A client that acknowledges only on request.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) version: Version,
    pub(super) key: Option<ConnKey>,
    pub(super) unacked: Vec<Unacked>,
    /// Everything received, including QoS 0.
    pub(super) got: Vec<String>,
    /// Everything it has acknowledged.
    pub(super) acked: Vec<String>,
    pub(super) ids: Vec<u32>,
}

impl Member {
    pub(super) fn new(name: &str, version: Version) -> Self {
        Self {
            name: name.to_owned(),
            version,
            key: None,
            unacked: Vec::new(),
            got: Vec::new(),
            acked: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Connects with properties. Where the version has no properties, `lasts` needs none.
    pub(super) fn connect(&mut self, rig: &mut Rig, lasts: bool, receive_maximum: u16) {
        let mut fields = ConnectFields::new(self.version, &self.name);
        let mut properties = vec![Property::ReceiveMaximum(receive_maximum)];
        if lasts {
            properties.push(Property::SessionExpiryInterval(3600));
        }
        fields.clean_start = !lasts;
        // Clients that are silent while a test moves the clock must not be closed for it.
        fields.keep_alive_s = 0;
        if self.version.is_v5() {
            fields.properties = &properties;
        }
        self.unacked.clear();
        let key = rig.engine.open(crate::peer::Peer::nobody());
        rig.feed(key, |out| encode::connect(out, &fields));
        self.key = Some(key);
        self.await_answer(rig);
    }

    /// Runs turns until the broker has answered; also reads what follows the answer.
    pub(super) fn await_answer(&mut self, rig: &mut Rig) {
        loop {
            rig.turn();
            if self.take(rig) {
                return;
            }
            if !rig.engine.has_more() {
                // The answer to a persistent session waits for the disk.
                let _ = rig.moved.recv_timeout(DEADLINE);
            }
        }
    }

    pub(super) fn subscribe_with(
        &mut self,
        rig: &mut Rig,
        filter: &str,
        qos: QoS,
        properties: &[Property<'_>],
    ) {
        let options = SubscriptionOptions::new(qos);
        let (key, version) = (self.key(), self.version);
        let one = [Subscription { filter, options }];
        rig.feed(key, |out| {
            encode::subscribe(out, version, PacketId::FIRST, properties, &one);
        });
        self.await_answer(rig);
    }

    pub(super) fn subscribe(&mut self, rig: &mut Rig, qos: QoS) {
        self.subscribe_with(rig, GROUP, qos, &[]);
    }

    pub(super) fn unsubscribe(&mut self, rig: &mut Rig) {
        let (key, version) = (self.key(), self.version);
        self.take(rig);
        rig.feed(key, |out| {
            encode::unsubscribe(out, version, PacketId::FIRST, &[], &[GROUP]);
        });
        // The answer to a persistent session waits for the disk.
        self.await_answer(rig);
    }

    pub(super) fn key(&self) -> ConnKey {
        self.key.expect("connected")
    }

    /// Reads what was sent. Returns whether it included an answer to a CONNECT, SUBSCRIBE or UNSUBSCRIBE.
    pub(super) fn take(&mut self, rig: &mut Rig) -> bool {
        let Some(key) = self.key else { return false };
        let bytes = rig.engine.out(key).to_vec();
        rig.engine.written(key, bytes.len());
        let mut rest = bytes.as_slice();
        let mut answered = false;
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let body = &rest[header_len..total_len];
            match decode_from_server(self.version, first_byte, body).expect("well-formed") {
                ServerPacket::Publish(publish) => {
                    let text = String::from_utf8_lossy(publish.payload).into_owned();
                    self.got.push(text.clone());
                    self.ids
                        .extend(publish.properties.subscription_identifier());
                    if let Some(id) = publish.packet_id {
                        self.unacked.push(Unacked {
                            id: id.get(),
                            qos: publish.qos,
                            text,
                        });
                    }
                }
                ServerPacket::Unsuback(_) | ServerPacket::Connack(_) => answered = true,
                ServerPacket::Suback(suback) => {
                    assert!(suback.codes.iter().all(|code| !code.is_error()));
                    answered = true;
                }
                ServerPacket::Pubrel(ack) => {
                    let version = self.version;
                    rig.feed(key, |out| {
                        encode::pubcomp(out, version, ack.packet_id, ReasonCode::Success, &[]);
                    });
                }
                _ => {}
            }
            rest = &rest[total_len..];
        }
        answered
    }

    pub(super) fn ack(&mut self, rig: &mut Rig, count: usize) {
        self.take(rig);
        let (key, version) = (self.key(), self.version);
        for owed in self.unacked.drain(..count.min(self.unacked.len())) {
            let id = PacketId::new(owed.id).expect("not zero");
            rig.feed(key, |out| match owed.qos {
                QoS::ExactlyOnce => encode::pubrec(out, version, id, ReasonCode::Success, &[]),
                _ => encode::puback(out, version, id, ReasonCode::Success, &[]),
            });
            self.acked.push(owed.text);
        }
    }

    pub(super) fn lose(&mut self, rig: &mut Rig) {
        if let Some(key) = self.key.take() {
            rig.engine.remove(key);
        }
        self.unacked.clear();
    }
}

/// Runs turns until nothing is left to do.
pub(super) fn settle(rig: &mut Rig, members: &mut [&mut Member]) {
    loop {
        rig.turn();
        members.iter_mut().for_each(|member| {
            member.take(rig);
        });
        if !rig.engine.has_more() && !rig.engine.is_behind_log() {
            return;
        }
    }
}

/// The same, until the disk is idle too.
pub(super) fn settle_disk(rig: &mut Rig, members: &mut [&mut Member]) {
    loop {
        let quiet_at = rig.quiet_at();
        settle(rig, members);
        if quiet_at.is_some() && quiet_at == rig.quiet_at() {
            return;
        }
        rig.wait_for_disk();
    }
}

pub(super) struct Publisher {
    pub(super) key: ConnKey,
    pub(super) next: u16,
    pub(super) sent: usize,
}

impl Publisher {
    pub(super) fn new(rig: &mut Rig) -> Self {
        let mut fields = ConnectFields::new(V5, "publisher");
        fields.keep_alive_s = 0;
        let key = rig.connect(fields);
        Self {
            key,
            next: 0,
            sent: 0,
        }
    }

    /// Publishes numbered messages and waits until all are acknowledged.
    pub(super) fn publish(&mut self, rig: &mut Rig, count: usize, qos: QoS) -> Vec<String> {
        let texts: Vec<String> = (self.sent..self.sent + count)
            .map(|n| n.to_string())
            .collect();
        self.sent += count;
        for text in &texts {
            self.next = self.next % 60_000 + 1;
            let fields = PublishFields {
                version: V5,
                dup: false,
                qos,
                retain: false,
                topic: "t",
                packet_id: PacketId::new(self.next),
                properties: &[],
                extra: &[],
            };
            rig.feed(self.key, |out| {
                fields.encode(out, text.as_bytes()).expect("a small packet");
            });
        }
        rig.packets(self.key, V5, count);
        if qos == QoS::ExactlyOnce {
            for back in 0..count as u16 {
                let id = PacketId::new(self.next - back).expect("not zero");
                rig.feed(self.key, |out| {
                    encode::pubrel(out, V5, id, ReasonCode::Success, &[])
                });
            }
            rig.packets(self.key, V5, count);
        }
        texts
    }
}

pub(super) fn sorted(texts: impl IntoIterator<Item = String>) -> Vec<u64> {
    let mut numbers: Vec<u64> = texts
        .into_iter()
        .map(|text| text.parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    numbers
}

pub(super) fn members(rig: &mut Rig, count: usize, lasts: bool, window: u16) -> Vec<Member> {
    (0..count)
        .map(|n| {
            let mut member = Member::new(&format!("m{n}"), V5);
            member.connect(rig, lasts, window);
            member.subscribe(rig, QoS::ExactlyOnce);
            member
        })
        .collect()
}

pub(super) fn settle_all(rig: &mut Rig, all: &mut [Member]) {
    settle(rig, &mut all.iter_mut().collect::<Vec<_>>());
}
