//! Shared subscriptions: each record goes to one member, and none is lost with the member that had it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, TestRunner};

use super::*;

const V5: Version = Version::V5;
const GROUP: &str = "$share/g/t";

/// A delivery that the client has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owed {
    id: u16,
    qos: QoS,
    pub(super) text: String,
}

/// A client that acknowledges only when it is told to.
pub(super) struct Member {
    name: String,
    version: Version,
    key: Option<ConnKey>,
    pub(super) owed: Vec<Owed>,
    /// Everything that came, also with QoS 0.
    pub(super) got: Vec<String>,
    /// What it has acknowledged.
    pub(super) acked: Vec<String>,
    ids: Vec<u32>,
}

impl Member {
    pub(super) fn new(name: &str, version: Version) -> Self {
        Self {
            name: name.to_owned(),
            version,
            key: None,
            owed: Vec::new(),
            got: Vec::new(),
            acked: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Connects with properties; lasting without, where the version knows no properties.
    pub(super) fn connect(&mut self, rig: &mut Rig, lasts: bool, receive_maximum: u16) {
        let mut fields = ConnectFields::new(self.version, &self.name);
        let mut properties = vec![Property::ReceiveMaximum(receive_maximum)];
        if lasts {
            properties.push(Property::SessionExpiryInterval(3600));
        }
        fields.clean_start = !lasts;
        // Who says nothing while a test moves the clock is not to be closed for it.
        fields.keep_alive_s = 0;
        if self.version.is_v5() {
            fields.properties = &properties;
        }
        self.owed.clear();
        let key = rig.engine.open(crate::peer::Peer::nobody());
        rig.feed(key, |out| encode::connect(out, &fields));
        self.key = Some(key);
        self.await_answer(rig);
    }

    /// Turns until the broker has answered; what it sends behind its answer is taken too.
    fn await_answer(&mut self, rig: &mut Rig) {
        loop {
            rig.turn();
            if self.take(rig) {
                return;
            }
            if !rig.engine.has_more() {
                // The answer to a lasting session waits for the disk.
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

    fn subscribe(&mut self, rig: &mut Rig, qos: QoS) {
        self.subscribe_with(rig, GROUP, qos, &[]);
    }

    fn unsubscribe(&mut self, rig: &mut Rig) {
        let (key, version) = (self.key(), self.version);
        self.take(rig);
        rig.feed(key, |out| {
            encode::unsubscribe(out, version, PacketId::FIRST, &[], &[GROUP]);
        });
        // The answer of a lasting session waits for the disk.
        self.await_answer(rig);
    }

    pub(super) fn key(&self) -> ConnKey {
        self.key.expect("connected")
    }

    /// Takes what was sent. Says whether an answer to a CONNECT, SUBSCRIBE or UNSUBSCRIBE was among it.
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
                        self.owed.push(Owed {
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
        for owed in self.owed.drain(..count.min(self.owed.len())) {
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
        self.owed.clear();
    }
}

/// Turns until nothing is left to do at once.
fn settle(rig: &mut Rig, members: &mut [&mut Member]) {
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

/// The same, and until the disk has nothing left to say.
fn settle_disk(rig: &mut Rig, members: &mut [&mut Member]) {
    loop {
        let quiet_at = rig.quiet_at();
        settle(rig, members);
        if quiet_at.is_some() && quiet_at == rig.quiet_at() {
            return;
        }
        rig.wait_for_disk();
    }
}

struct Publisher {
    key: ConnKey,
    next: u16,
    sent: usize,
}

impl Publisher {
    fn new(rig: &mut Rig) -> Self {
        let mut fields = ConnectFields::new(V5, "publisher");
        fields.keep_alive_s = 0;
        let key = rig.connect(fields);
        Self {
            key,
            next: 0,
            sent: 0,
        }
    }

    /// Publishes under numbers and waits until all is acknowledged.
    fn publish(&mut self, rig: &mut Rig, count: usize, qos: QoS) -> Vec<String> {
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

fn sorted(texts: impl IntoIterator<Item = String>) -> Vec<u64> {
    let mut numbers: Vec<u64> = texts
        .into_iter()
        .map(|text| text.parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    numbers
}

fn members(rig: &mut Rig, count: usize, lasts: bool, window: u16) -> Vec<Member> {
    (0..count)
        .map(|n| {
            let mut member = Member::new(&format!("m{n}"), V5);
            member.connect(rig, lasts, window);
            member.subscribe(rig, QoS::ExactlyOnce);
            member
        })
        .collect()
}

fn settle_all(rig: &mut Rig, all: &mut [Member]) {
    settle(rig, &mut all.iter_mut().collect::<Vec<_>>());
}

#[test]
fn each_record_goes_to_one_member_and_they_take_turns() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 3, false, 100);
    let mut older = Member::new("older", Version::V311);
    older.connect(&mut rig, false, 0);
    older.subscribe(&mut rig, QoS::AtMostOnce);
    all.push(older);
    let texts = Publisher::new(&mut rig).publish(&mut rig, 40, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    for member in &all {
        assert_eq!(member.got.len(), 10, "{}", member.name);
        let numbers: Vec<u64> = member
            .got
            .iter()
            .map(|text| text.parse().expect("own"))
            .collect();
        assert!(numbers.is_sorted(), "order per member: {numbers:?}");
    }
    assert_eq!(
        sorted(all.iter().flat_map(|member| member.got.clone())),
        sorted(texts)
    );
    assert!(all[3].owed.is_empty(), "each member has its own QoS");
    rig.crash();
}

#[test]
fn what_a_lost_member_had_goes_to_others_and_each_of_it_once() {
    for lasts in [false, true] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let mut all = members(&mut rig, 3, lasts, 100);
        let texts = Publisher::new(&mut rig).publish(&mut rig, 30, QoS::AtLeastOnce);
        settle_all(&mut rig, &mut all);
        all[0].ack(&mut rig, 4);
        let lost: BTreeSet<String> = all[0].owed.iter().map(|owed| owed.text.clone()).collect();
        assert_eq!(lost.len(), 6);
        all[0].lose(&mut rig);
        settle_all(&mut rig, &mut all);
        let again: Vec<String> = all[1..]
            .iter()
            .flat_map(|member| member.got[10..].to_vec())
            .collect();
        assert_eq!(again.len(), lost.len());
        assert_eq!(again.into_iter().collect::<BTreeSet<_>>(), lost);
        assert_eq!(rig.engine.metrics.mqtt.shared_returned.get(), 6);
        // A lasting member that is back has nothing to be sent again.
        let mut back = Member::new("m0", V5);
        back.connect(&mut rig, lasts, 100);
        settle(&mut rig, &mut [&mut back]);
        assert_eq!(back.got, [""; 0]);
        for member in &mut all[1..] {
            member.ack(&mut rig, 100);
        }
        let acked = all.iter().flat_map(|member| member.acked.clone());
        assert_eq!(sorted(acked), sorted(texts));
        rig.crash();
    }
}

#[test]
fn qos_2_stays_with_its_member_and_is_given_up_with_its_session() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 4, QoS::ExactlyOnce);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    let first = all[0].got.clone();
    assert_eq!((first.len(), all[1].got.len()), (2, 2));
    all[0].lose(&mut rig);
    settle_all(&mut rig, &mut all);
    assert_eq!(all[1].got.len(), 2, "MQTT-4.8.2-4: it waits for its member");
    all[0].connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    assert_eq!(all[0].got[2..], first, "and is completed there");
    all[0].lose(&mut rig);
    let mut fields = ConnectFields::new(V5, "m0");
    fields.clean_start = true;
    rig.connect(fields);
    all[1].ack(&mut rig, 9);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    assert_eq!(all[1].got.len(), 2, "MQTT-4.8.2-5: nobody else gets it");
    rig.crash();
}

#[test]
fn a_slow_member_is_passed_over_and_its_records_go_to_others_in_the_end() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, false, 5);
    let mut publisher = Publisher::new(&mut rig);
    for _ in 0..10 {
        publisher.publish(&mut rig, 4, QoS::AtLeastOnce);
        settle_all(&mut rig, &mut all);
        all[1].ack(&mut rig, 100);
        settle_all(&mut rig, &mut all);
        all[1].ack(&mut rig, 100);
    }
    settle_all(&mut rig, &mut all);
    all[1].ack(&mut rig, 100);
    assert_eq!(all[0].got.len(), 5, "no more than its window");
    assert_eq!(all[1].acked.len(), 35, "the other has the rest");
    let after = rig.engine.settings.shared_redelivery_after_ms;
    let mut waited = 0;
    while waited <= 2 * after && all[1].got.len() < 40 {
        rig.pass_time(1000);
        waited += 1000;
        settle_all(&mut rig, &mut all);
        all[1].ack(&mut rig, 100);
    }
    assert!((after..=2 * after).contains(&waited), "{waited} ms");
    assert_eq!(sorted(all[1].acked.clone()), (0..40).collect::<Vec<_>>());
    // A late acknowledgement is taken and means nothing.
    all[0].ack(&mut rig, 100);
    publisher.publish(&mut rig, 2, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    assert_eq!(all[0].got.len() + all[1].got.len(), 47);
    assert_eq!(all[0].got.len(), 6, "it takes its turns again");
    rig.crash();
}

#[test]
fn a_crash_loses_nothing_of_a_group_of_lasting_sessions_and_repeats_nothing_checkpointed() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 20, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    all[1].ack(&mut rig, 100);
    all[0].ack(&mut rig, 3);
    rig.pass_time(tick::CHECKPOINT_MS);
    settle_disk(&mut rig, &mut []);
    let checkpointed: BTreeSet<u64> = sorted(all.iter().flat_map(|member| member.acked.clone()))
        .into_iter()
        .collect();
    assert_eq!(checkpointed.len(), 13);
    all[0].ack(&mut rig, 2);
    for member in &mut all {
        member.lose(&mut rig);
    }
    // Nobody is there, the group is.
    publisher.publish(&mut rig, 5, QoS::AtLeastOnce);
    settle_disk(&mut rig, &mut []);
    rig.crash();

    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("m1", V5);
    back.connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut [&mut back]);
    let got: BTreeSet<u64> = sorted(back.got.clone()).into_iter().collect();
    assert_eq!(got.len(), back.got.len(), "nothing twice: {:?}", back.got);
    assert!(got.is_disjoint(&checkpointed), "{got:?}");
    let both: Vec<u64> = got.union(&checkpointed).copied().collect();
    assert_eq!(both, (0..25).collect::<Vec<_>>());
    rig.crash();
}

#[test]
fn qos_2_of_a_group_stays_with_its_member_through_a_crash_and_what_was_received_does_not_come_again()
 {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 8, QoS::ExactlyOnce);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    let had: Vec<Vec<u64>> = all
        .iter()
        .map(|member| sorted(member.got.clone()))
        .collect();
    assert_eq!((had[0].len(), had[1].len()), (4, 4));
    all[0].ack(&mut rig, 3);
    settle_disk(&mut rig, &mut all.iter_mut().collect::<Vec<_>>());
    let received: BTreeSet<u64> = sorted(all[0].acked.clone()).into_iter().collect();
    rig.crash();
    let left = had[0].iter().copied().filter(|n| !received.contains(n));
    let mut expected = [left.collect::<Vec<_>>(), had[1].clone()];
    for life in 0..2 {
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let mut back: Vec<Member> = ["m0", "m1"].map(|name| Member::new(name, V5)).into();
        for member in &mut back {
            member.connect(&mut rig, true, 100);
        }
        settle_disk(&mut rig, &mut back.iter_mut().collect::<Vec<_>>());
        for (member, expected) in back.iter().zip(&expected) {
            assert_eq!(&sorted(member.got.clone()), expected, "life {life}");
        }
        for member in &mut back {
            member.ack(&mut rig, 100);
        }
        settle_disk(&mut rig, &mut back.iter_mut().collect::<Vec<_>>());
        expected = [Vec::new(), Vec::new()];
        rig.crash();
    }
}

#[test]
fn a_clean_stop_repeats_nothing_of_a_group() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, true, 100);
    Publisher::new(&mut rig).publish(&mut rig, 10, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    all[0].ack(&mut rig, 2);
    all[1].ack(&mut rig, 5);
    rig.engine.close_all();
    rig.engine.store_all();
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("m0", V5);
    back.connect(&mut rig, true, 100);
    settle_disk(&mut rig, &mut [&mut back]);
    assert_eq!(back.got.len(), 3);
    rig.crash();
}

#[test]
fn the_group_ends_with_its_last_subscription_and_a_position_counts_only_for_a_new_one() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 3, QoS::AtLeastOnce);
    let earliest = [
        Property::UserProperty {
            key: "stream-offset",
            value: "earliest",
        },
        Property::SubscriptionIdentifier(7),
    ];
    let mut first = Member::new("first", V5);
    first.connect(&mut rig, true, 100);
    first.subscribe_with(&mut rig, GROUP, QoS::AtLeastOnce, &earliest);
    settle(&mut rig, &mut [&mut first]);
    assert_eq!(first.got, ["0", "1", "2"]);
    assert_eq!(first.ids, [7; 3]);
    first.ack(&mut rig, 3);
    let mut second = Member::new("second", V5);
    second.connect(&mut rig, false, 100);
    second.subscribe_with(&mut rig, GROUP, QoS::AtLeastOnce, &earliest);
    settle(&mut rig, &mut [&mut first, &mut second]);
    assert_eq!(second.got, [""; 0], "the group has its place");
    second.unsubscribe(&mut rig);
    first.unsubscribe(&mut rig);
    assert_eq!(rig.engine.groups.len(), 0);
    rig.pass_time(tick::CHECKPOINT_MS);
    settle_disk(&mut rig, &mut []);
    let mut kept = Vec::new();
    rig.engine
        .state
        .for_each_prefix("share/", |key, _| kept.push(key.to_owned()));
    assert_eq!(kept, [""; 0], "the cursor went with the group");
    publisher.publish(&mut rig, 1, QoS::AtLeastOnce);
    second.subscribe(&mut rig, QoS::AtLeastOnce);
    settle(&mut rig, &mut [&mut first, &mut second]);
    assert_eq!(second.got, [""; 0], "a new group begins now");
    rig.crash();
}

#[test]
fn a_member_that_unsubscribes_keeps_what_it_has_until_its_connection_ends() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut all = members(&mut rig, 2, false, 100);
    let mut publisher = Publisher::new(&mut rig);
    publisher.publish(&mut rig, 10, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    all[0].unsubscribe(&mut rig);
    publisher.publish(&mut rig, 2, QoS::AtLeastOnce);
    settle_all(&mut rig, &mut all);
    assert_eq!((all[0].got.len(), all[1].got.len()), (5, 7));
    all[0].ack(&mut rig, 2);
    all[0].lose(&mut rig);
    settle_all(&mut rig, &mut all);
    assert_eq!(
        all[1].got.len(),
        10,
        "the three that it had not acknowledged"
    );
    rig.crash();
}

#[test]
fn shared_and_plain_subscriptions_of_a_session_each_deliver() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut one = Member::new("one", V5);
    one.connect(&mut rig, false, 100);
    for filter in ["t", GROUP, GROUP, "$share/other/+", "$share/g/#"] {
        one.subscribe_with(&mut rig, filter, QoS::AtLeastOnce, &[]);
    }
    assert_eq!(rig.engine.groups.len(), 3);
    Publisher::new(&mut rig).publish(&mut rig, 2, QoS::AtLeastOnce);
    settle(&mut rig, &mut [&mut one]);
    assert_eq!(sorted(one.got.clone()), [0, 0, 0, 0, 1, 1, 1, 1]);
    rig.crash();
}

#[test]
fn what_is_too_large_for_one_member_goes_to_another_and_else_is_counted() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let small = [Property::MaximumPacketSize(30)];
    let mut fields = ConnectFields::new(V5, "small");
    fields.properties = &small;
    let mut tight = Member::new("small", V5);
    tight.key = Some(rig.connect(fields));
    tight.subscribe(&mut rig, QoS::AtLeastOnce);
    let mut wide = Member::new("wide", V5);
    wide.connect(&mut rig, false, 100);
    wide.subscribe(&mut rig, QoS::AtLeastOnce);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let long = "x".repeat(40);
    for id in 1..=2 {
        rig.publish(publisher, V5, id, &long);
    }
    rig.packets(publisher, V5, 2);
    settle(&mut rig, &mut [&mut tight, &mut wide]);
    assert_eq!((tight.got.len(), wide.got.len()), (0, 2));
    wide.lose(&mut rig);
    settle(&mut rig, &mut [&mut tight]);
    assert_eq!(tight.got.len(), 0);
    assert_eq!(rig.engine.metrics.mqtt.deliveries_dropped.get(), 2);
    rig.crash();
}

#[test]
fn i7_a_group_waits_at_its_bound_of_outstanding_records_and_goes_on_behind_it() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    rig.engine.settings.inflight_max = u16::MAX;
    rig.engine.settings.out_buffer_bytes = 64 << 20;
    let mut all = members(&mut rig, 4, false, u16::MAX);
    let mut publisher = Publisher::new(&mut rig);
    for _ in 0..110 {
        publisher.publish(&mut rig, 1000, QoS::AtLeastOnce);
        settle_all(&mut rig, &mut all);
    }
    let id = rig.engine.groups.by_name(GROUP).expect("it is there");
    assert_eq!(
        rig.engine.groups.get(id).expect("it is there").pending(),
        100_000
    );
    let value = rig.engine.group_value_len(id);
    assert!(value < 64 << 10, "the stored cursor has {value} bytes");
    for _ in 0..2 {
        for member in &mut all {
            member.ack(&mut rig, usize::MAX);
        }
        settle_all(&mut rig, &mut all);
    }
    let acked = all.iter().flat_map(|member| member.acked.clone());
    assert_eq!(sorted(acked), (0..110_000).collect::<Vec<_>>());
    rig.crash();
}

/// What may happen to a group.
#[derive(Debug, Clone)]
enum Event {
    Publish(usize),
    Join(usize, bool),
    Leave(usize),
    Lose(usize),
    Ack(usize, usize),
    Pass(u64),
    Kill,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let member = 0usize..4;
    let event = prop_oneof![
        4 => (1usize..6).prop_map(Event::Publish),
        3 => (member.clone(), any::<bool>()).prop_map(|(n, lasts)| Event::Join(n, lasts)),
        1 => member.clone().prop_map(Event::Leave),
        2 => member.clone().prop_map(Event::Lose),
        4 => (member, 1usize..8).prop_map(|(n, count)| Event::Ack(n, count)),
        1 => (500u64..40_000).prop_map(Event::Pass),
        1 => Just(Event::Kill),
    ];
    prop::collection::vec(event, 1..40)
}

/// Plays events beside a lasting member, so that the group never ends, and checks what became of each record.
fn nothing_is_lost(events: &[Event], may_disconnect: bool) {
    let root = dir();
    let mut rig = Rig::open_with(exactly_once::small(root.path()));
    let mut keeper = Member::new("keeper", V5);
    keeper.connect(&mut rig, true, 3);
    keeper.subscribe(&mut rig, QoS::AtLeastOnce);
    let mut all: Vec<Member> = (0..4).map(|n| Member::new(&format!("m{n}"), V5)).collect();
    let mut publisher = Publisher::new(&mut rig);
    let mut published: Vec<String> = Vec::new();
    let mut kills = 0;
    for event in events {
        match event {
            Event::Publish(count) => {
                published.extend(publisher.publish(&mut rig, *count, QoS::AtLeastOnce));
            }
            Event::Join(n, lasts) if all[*n].key.is_none() => {
                all[*n].connect(&mut rig, *lasts, 4);
                all[*n].subscribe(&mut rig, QoS::AtLeastOnce);
            }
            Event::Leave(n) if may_disconnect && all[*n].key.is_some() => {
                all[*n].unsubscribe(&mut rig);
                all[*n].lose(&mut rig);
            }
            Event::Lose(n) if may_disconnect => all[*n].lose(&mut rig),
            Event::Ack(n, count) if all[*n].key.is_some() => all[*n].ack(&mut rig, *count),
            Event::Pass(ms) if may_disconnect => rig.pass_time(*ms),
            Event::Kill if may_disconnect && kills < 3 => {
                kills += 1;
                rig.crash();
                rig = Rig::open_with(exactly_once::small(root.path()));
                let sent = publisher.sent;
                publisher = Publisher::new(&mut rig);
                publisher.sent = sent;
                for member in all.iter_mut().chain([&mut keeper]) {
                    member.key = None;
                }
                keeper.connect(&mut rig, true, 3);
            }
            _ => {}
        }
        settle_all(&mut rig, &mut all);
        keeper.take(&mut rig);
        keeper.ack(&mut rig, 1);
    }
    for member in &mut all {
        if member.key.is_none() {
            member.connect(&mut rig, true, 4);
            member.subscribe(&mut rig, QoS::AtLeastOnce);
        }
    }
    let mut busy = true;
    while busy {
        settle_all(&mut rig, &mut all);
        let before =
            all.iter().map(|member| member.acked.len()).sum::<usize>() + keeper.acked.len();
        for member in all.iter_mut().chain([&mut keeper]) {
            member.ack(&mut rig, usize::MAX);
        }
        let after = all.iter().map(|member| member.acked.len()).sum::<usize>() + keeper.acked.len();
        busy = after > before || rig.engine.has_more();
    }
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for text in all.iter().chain([&keeper]).flat_map(|member| &member.acked) {
        *times.entry(text.clone()).or_default() += 1;
    }
    for text in &published {
        let count = times.get(text).copied().unwrap_or(0);
        assert!(count > 0, "{text} is lost: {events:?}");
        assert!(
            may_disconnect || count == 1,
            "{text} came {count} times without a reason: {events:?}"
        );
    }
    let id = rig
        .engine
        .groups
        .by_name(GROUP)
        .expect("the keeper is in it");
    assert_eq!(rig.engine.groups.get(id).expect("it is there").pending(), 0);
    rig.crash();
}

#[test]
fn whoever_comes_and_goes_every_record_is_acknowledged_by_somebody() {
    let config = RunnerConfig {
        cases: 24,
        failure_persistence: None,
        ..RunnerConfig::default()
    };
    let mut runner = TestRunner::new(config.clone());
    runner
        .run(&events(), |events| {
            nothing_is_lost(&events, true);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    let mut runner = TestRunner::new(config);
    runner
        .run(&events(), |events| {
            nothing_is_lost(&events, false);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
