//! Packet identifiers of deliveries: never zero and never one that is in use, through more than 65,535 deliveries, with
//! QoS 1 and 2 mixed, one delivery unanswered for long, and reconnects.

use std::collections::HashMap;

use headwater_mqtt::Publish;

use crate::engine::ingest::own::{OwnRecord, OwnRecords};

use super::world::small;
use super::*;

const VERSION: Version = Version::V5;
/// Deliveries of one round: fewer than the window, so that one may stay open besides them.
const EACH: usize = 90;
const ROUNDS: usize = 65_535 / EACH + 20;
/// How long one delivery stays unanswered: less than half of all identifiers, at which a window waits.
const OPEN_ROUNDS: usize = 300;

struct Subscriber {
    key: ConnKey,
    /// Identifiers in use, with the QoS.
    in_use: HashMap<u16, QoS>,
    open: Option<u16>,
    answers: Vec<u8>,
    received: usize,
}

impl Subscriber {
    fn connect(rig: &mut Rig) -> ConnKey {
        let lasting = [Property::SessionExpiryInterval(3600)];
        let mut fields = ConnectFields::new(VERSION, "subscriber");
        fields.clean_start = false;
        fields.properties = &lasting;
        let key = rig.engine.open(crate::peer::Peer::nobody());
        rig.feed(key, |out| encode::connect(out, &fields));
        key
    }

    /// Reads what was sent, and answers it.
    fn work(&mut self, rig: &mut Rig) {
        let bytes = rig.engine.out(self.key).to_vec();
        rig.engine.written(self.key, bytes.len());
        let mut rest = bytes.as_slice();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let body = &rest[header_len..total_len];
            match decode_from_server(VERSION, first_byte, body).expect("well formed") {
                ServerPacket::Publish(publish) => self.take(&publish),
                ServerPacket::Pubrel(ack) => {
                    assert!(
                        self.in_use.remove(&ack.packet_id.get()).is_some(),
                        "a PUBREL of nothing"
                    );
                    let (id, ok) = (ack.packet_id, ReasonCode::Success);
                    encode::pubcomp(&mut self.answers, VERSION, id, ok, &[]);
                }
                ServerPacket::Disconnect(disconnect) => panic!("{disconnect:?}"),
                _ => {}
            }
            rest = &rest[total_len..];
        }
        if !self.answers.is_empty() {
            let answers = std::mem::take(&mut self.answers);
            rig.feed(self.key, |out| out.extend_from_slice(&answers));
        }
    }

    fn take(&mut self, publish: &Publish<'_>) {
        let packet_id = publish.packet_id.expect("above QoS 0");
        let id = packet_id.get();
        let before = self.in_use.insert(id, publish.qos);
        if publish.dup {
            assert_eq!(
                before,
                Some(publish.qos),
                "{id} is repeated and was not open"
            );
        } else {
            assert_eq!(before, None, "{id} is in use");
            self.received += 1;
        }
        if self.open.is_none() && publish.qos == QoS::AtLeastOnce {
            self.open = Some(id);
        }
        if self.open != Some(id) {
            self.answer(packet_id, publish.qos);
        }
    }

    fn answer(&mut self, packet_id: PacketId, qos: QoS) {
        let ok = ReasonCode::Success;
        if qos == QoS::AtLeastOnce {
            self.in_use.remove(&packet_id.get());
            encode::puback(&mut self.answers, VERSION, packet_id, ok, &[]);
        } else {
            encode::pubrec(&mut self.answers, VERSION, packet_id, ok, &[]);
        }
    }

    /// Runs turns until everything was received and only the open delivery waits.
    fn settle(&mut self, rig: &mut Rig, received: usize) {
        loop {
            rig.turn();
            self.work(rig);
            let waiting = self.in_use.len() - usize::from(self.open.is_some());
            if self.received >= received && waiting == 0 && self.answers.is_empty() {
                return;
            }
            if !rig.engine.has_more() && !rig.engine.is_behind_log() {
                let _ = rig.moved.recv_timeout(Duration::from_millis(2));
            }
        }
    }
}

fn publish(rig: &mut Rig, count: usize) {
    rig.engine.begin(rig.now);
    for n in 0..count {
        let record = OwnRecord {
            topic: "t",
            client_id: "nobody",
            key: None,
            qos: 1 + (n % 2) as u8,
            retain: false,
            properties: &[],
            payload: b"x",
        };
        lend!(rig.engine => OwnRecords)
            .stage_own(&record)
            .expect("there is room");
    }
    rig.engine.drain();
}

#[test]
fn no_packet_id_is_given_twice_while_it_is_in_use() {
    let dir = dir();
    let mut config = small(dir.path());
    config.sync = SyncMode::Never;
    let mut rig = Rig::open_with(config);
    let key = Subscriber::connect(&mut rig);
    let one = [Subscription {
        filter: "t",
        options: SubscriptionOptions::new(QoS::ExactlyOnce),
    }];
    rig.packets(key, VERSION, 1);
    rig.feed(key, |out| {
        encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one);
    });
    rig.packets(key, VERSION, 1);
    let mut subscriber = Subscriber {
        key,
        in_use: HashMap::new(),
        open: None,
        answers: Vec::new(),
        received: 0,
    };
    for round in 1..=ROUNDS {
        publish(&mut rig, EACH);
        if round % 200 == 0 {
            // In the middle of the exchange: some deliveries were sent, some are between PUBREC and PUBCOMP.
            rig.turn();
            subscriber.work(&mut rig);
            rig.engine.lost(subscriber.key);
            rig.engine.remove(subscriber.key);
            subscriber.answers.clear();
            subscriber.key = Subscriber::connect(&mut rig);
        }
        subscriber.settle(&mut rig, round * EACH);
        if round % OPEN_ROUNDS == 0
            && let Some(id) = subscriber.open.take()
        {
            let id = PacketId::new(id).expect("it was given");
            subscriber.answer(id, QoS::AtLeastOnce);
        }
    }
    assert!(subscriber.received > 65_535);
}
