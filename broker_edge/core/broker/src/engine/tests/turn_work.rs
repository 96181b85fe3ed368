//! A turn ends within a batch when its topics cost much: what others get meanwhile, and what becomes of the rest. So does
//! the reading of small packets that cost more than their bytes.

use headwater_log::{RecordMeta, Records};

use super::costly::branching;
use super::member::{Member, settle};
use super::*;
use crate::engine::routing::work::READ_PACKETS_MAX;
use crate::engine::session::pauses::Pause;

type EncodePacket = fn(&mut Vec<u8>);

const V5: Version = Version::V5;
/// Filters that share their levels in all combinations: a topic visits some thousand nodes.
const FILTERS: u64 = 1000;
const TOPICS: usize = 40;

fn costly_topic(number: usize) -> String {
    format!("{}z{number}", "l/".repeat(60))
}

/// Appends one batch, as a Flight producer would: a record of each topic, in order.
fn append_batch(rig: &Rig, topics: &[String]) {
    let mut records = Records::new();
    let client = records.client("flight").expect("room");
    for (topic, number) in topics.iter().zip(0..) {
        let topic = records.topic(topic, 0..1).expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        let text = format!("{number}");
        records.push(meta, text.as_bytes()).expect("room");
    }
    let partition = telemetry(rig);
    let end = partition.append(records).expect("room").end;
    while partition.high_watermark() < end {
        rig.moved.recv_timeout(DEADLINE).expect("it is written");
    }
}

fn telemetry(rig: &Rig) -> headwater_log::Partition {
    let partition = rig.log.by_name("telemetry-0").expect("there by default");
    partition.clone()
}

fn live_at(rig: &Rig) -> u64 {
    let partition = PartitionIndex::of(telemetry(rig).id());
    rig.engine.delivery.live_at(partition).0
}

fn subscribe_branching(rig: &mut Rig) {
    let mut costly = Member::new("costly", V5);
    costly.connect(rig, false, 10);
    for number in 0..FILTERS {
        costly.subscribe_with(rig, &branching(number), QoS::AtMostOnce, &[]);
    }
}

/// Filters that all match [`levels_topic`], each with an identifier of its own: one for each choice of `l` or `+` at
/// these levels.
fn subscribe_levels(rig: &mut Rig, reader: &mut Member, levels: usize) {
    for number in 0..1 << levels {
        let level = |at: usize| if number >> at & 1 == 0 { "l" } else { "+" };
        let filter = (0..levels).map(level).collect::<Vec<_>>().join("/");
        let id = [Property::SubscriptionIdentifier(number + 1)];
        reader.subscribe_with(rig, &filter, QoS::AtMostOnce, &id);
    }
}

fn levels_topic(levels: usize) -> String {
    vec!["l"; levels].join("/")
}

fn all(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// Acknowledges what comes until the broker has nothing more to send.
fn take_all(rig: &mut Rig, member: &mut Member) {
    loop {
        settle(rig, &mut [member]);
        if member.unacked.is_empty() {
            return;
        }
        member.ack(rig, usize::MAX);
    }
}

fn one_partition(dir: &Path) -> Rig {
    let mut config = LogConfig::new(dir);
    config.sync = SyncMode::Never;
    let classes = config.classes.iter_mut();
    for class in classes.filter(|class| class.class == Class::Telemetry) {
        class.partitions = 1;
    }
    Rig::open_with(config)
}

#[test]
fn a_batch_of_costly_topics_is_sent_over_several_turns_to_each_receiver_once_and_in_order() {
    let dir = dir();
    let mut rig = one_partition(dir.path());
    subscribe_branching(&mut rig);
    // One that takes all, one whose window is always full, one that comes in the middle and goes, and one that wants the
    // first two topics and in the middle, while it is behind, all of them.
    let mut members = ["wide", "narrow", "late", "more"].map(|name| Member::new(name, V5));
    let [wide, narrow, late, more] = &mut members;
    wide.connect(&mut rig, true, 1000);
    narrow.connect(&mut rig, true, 1);
    late.connect(&mut rig, true, 1000);
    more.connect(&mut rig, true, 1);
    for number in 0..2 {
        more.subscribe_with(&mut rig, &costly_topic(number), QoS::AtLeastOnce, &[]);
    }
    for member in [&mut *wide, &mut *narrow] {
        member.subscribe_with(&mut rig, "#", QoS::AtLeastOnce, &[]);
    }
    settle(&mut rig, &mut [wide, narrow]);
    let begin = live_at(&rig);
    append_batch(&rig, &(0..TOPICS).map(costly_topic).collect::<Vec<_>>());
    let (mut turns, mut middle, mut late_from) = (0, 0, 0);
    let end = begin + TOPICS as u64;
    while live_at(&rig) < end {
        let before = live_at(&rig);
        rig.turn();
        let sent = live_at(&rig) - before;
        assert!((1..=8).contains(&sent), "{sent} records in a turn");
        assert!(rig.engine.routing.work() < 2 * (1 << 14), "in a turn");
        turns += 1;
        if turns == 3 {
            middle = live_at(&rig);
            more.subscribe_with(&mut rig, "l/#", QoS::AtLeastOnce, &[]);
            late_from = live_at(&rig);
            late.subscribe_with(&mut rig, "#", QoS::AtLeastOnce, &[]);
            late.lose(&mut rig);
        }
    }
    // Not more turns than these are counted: those that wait for a SUBACK send the rest, if its commit takes long.
    assert!((begin + 3..end).contains(&middle), "{turns} turns");
    take_all(&mut rig, wide);
    take_all(&mut rig, narrow);
    assert_eq!((&wide.got, &narrow.got), (&all(TOPICS), &all(TOPICS)));
    let before = late.got.len();
    late.connect(&mut rig, true, 1000);
    take_all(&mut rig, late);
    let index = |offset: u64| (offset - begin) as usize;
    assert!(middle > begin + 2 && late_from < end, "in the middle");
    // Nothing was acknowledged, so all of it comes again.
    assert_eq!(late.got[before..], all(TOPICS)[index(late_from)..]);
    take_all(&mut rig, more);
    let mut expected = all(2);
    expected.extend_from_slice(&all(TOPICS)[index(middle)..]);
    assert_eq!(more.got, expected);
}

#[test]
fn a_session_with_many_filters_catches_up_over_many_turns() {
    let dir = dir();
    let mut rig = one_partition(dir.path());
    let mut member = Member::new("many", V5);
    member.connect(&mut rig, true, 1000);
    let wanted: Vec<String> = (0..20)
        .map(|number| branching(number).replace('+', "l"))
        .collect();
    for number in 0..FILTERS {
        member.subscribe_with(&mut rig, &branching(number), QoS::AtLeastOnce, &[]);
    }
    member.lose(&mut rig);
    // As many that it does not want.
    let others = (0..TOPICS).map(costly_topic);
    let topics: Vec<String> = others.chain(wanted).collect();
    append_batch(&rig, &topics);
    rig.turn();
    let mut fields = ConnectFields::new(V5, "many");
    fields.clean_start = false;
    let properties = [Property::SessionExpiryInterval(3600)];
    fields.properties = &properties;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    member.key = Some(key);
    let partition = PartitionIndex::of(telemetry(&rig).id());
    let next = |rig: &Rig| {
        let session = rig.engine.clients.by_id("many").expect("it is there");
        let next = session.behind.next(partition).map(|offset| offset.0);
        next.unwrap_or(live_at(rig))
    };
    let mut turns = 0;
    while next(&rig) < live_at(&rig) {
        let before = next(&rig);
        rig.turn();
        let read = next(&rig) - before;
        assert!(read <= 4, "{read} topics in a turn");
        turns += usize::from(read > 0);
        if !rig.engine.has_more() {
            rig.wait_for_disk();
        }
    }
    assert!(turns >= topics.len() / 4, "{turns} turns");
    take_all(&mut rig, &mut member);
    let expected: Vec<String> = all(topics.len()).split_off(TOPICS);
    assert_eq!(member.got, expected);
}

/// So many bytes are read from a connection at once while others are paused.
const READ_BYTES: usize = 64 << 10;

fn refused_publish(out: &mut Vec<u8>) {
    let fields = PublishFields {
        version: V5,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "$SYS/x",
        packet_id: PacketId::new(7),
        properties: &[],
        extra: &[],
    };
    fields.encode(out, b"x").expect("a small packet");
}

fn subscribe_anew(out: &mut Vec<u8>) {
    let options = SubscriptionOptions::new(QoS::AtMostOnce);
    let one = [Subscription {
        filter: "t",
        options,
    }];
    encode::subscribe(out, V5, PacketId::FIRST, &[], &one);
    encode::unsubscribe(out, V5, PacketId::FIRST, &[], &["t"]);
}

#[test]
fn small_packets_wait_for_the_turns_of_others_when_they_cost_more_than_their_bytes() {
    // How a packet is answered, and how often at most it is handled in a read.
    let kinds: [(&str, EncodePacket, u64); 3] = [
        ("pingresp", encode::pingreq, READ_PACKETS_MAX / 8),
        ("puback 7", refused_publish, READ_PACKETS_MAX / 24),
        ("suback", subscribe_anew, READ_PACKETS_MAX / 128),
    ];
    for (answer, packet, most) in kinds {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Never);
        let key = rig.connect(ConnectFields::new(V5, "flood"));
        let other = rig.connect(ConnectFields::new(V5, "other"));
        let mut bytes = Vec::new();
        let mut count = 0;
        while bytes.len() < READ_BYTES {
            packet(&mut bytes);
            count += 1;
        }
        rig.engine.begin(rig.now);
        rig.engine.receive(key, &bytes, true);
        let left = |rig: &Rig| {
            let conn = rig.engine.clients.conn(key).expect("it is open");
            conn.unparsed.bytes.len()
        };
        assert!(left(&rig) > 0, "{answer}");
        let conn = rig.engine.clients.conn(key).expect("it is open");
        assert!(conn.pauses.has(Pause::Work), "{answer}");
        let turn_work = rig.engine.work_of_receive();
        assert!(turn_work < READ_PACKETS_MAX + 512, "{turn_work}");
        rig.publish(other, V5, 1, "x");
        assert_eq!(rig.packets(other, V5, 1), ["puback 1"]);
        let handled = |rig: &Rig| (bytes.len() - left(rig)) * count / bytes.len();
        let mut before = handled(&rig);
        assert!(before as u64 <= most + 1, "{before} of {answer}");
        let mut turns = 0;
        while left(&rig) > 0 {
            rig.pass_time(1);
            turns += 1;
            assert!(turns < count, "{answer} does not go on");
            let answered = rig.engine.out(key).to_vec().len();
            rig.engine.written(key, answered);
            let now = handled(&rig);
            assert!((now - before) as u64 <= most + 1, "{answer}");
            before = now;
        }
    }
}

#[test]
fn publishes_that_are_delivered_with_many_identifiers_wait_for_the_turns_of_others() {
    const LEVELS: usize = 7;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let mut reader = Member::new("reader", V5);
    reader.connect(&mut rig, true, 1000);
    subscribe_levels(&mut rig, &mut reader, LEVELS);
    let topic = levels_topic(LEVELS);
    let key = rig.connect(ConnectFields::new(V5, "flood"));
    // From now on its receivers are known.
    rig.publish_to(&topic, false, key, V5, 1, "x");
    assert_eq!(rig.packets(key, V5, 1), ["puback 1"]);
    let fields = PublishFields {
        version: V5,
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: &topic,
        packet_id: None,
        properties: &[],
        extra: &[],
    };
    let mut one = Vec::new();
    fields.encode(&mut one, b"").expect("a small packet");
    let flood = one.repeat(READ_BYTES / one.len());
    rig.engine.begin(rig.now);
    rig.engine.receive(key, &flood, true);
    let conn = rig.engine.clients.conn(key).expect("it is open");
    assert!(conn.pauses.has(Pause::Work));
    let handled = (flood.len() - conn.unparsed.bytes.len()) / one.len();
    let identifiers = handled << LEVELS;
    assert!(identifiers < 1 << 18, "{identifiers} identifiers in a read");
    let other = rig.connect(ConnectFields::new(V5, "other"));
    rig.publish(other, V5, 1, "x");
    assert_eq!(rig.packets(other, V5, 1), ["puback 1"]);
}

#[test]
fn a_run_whose_deliveries_carry_many_identifiers_is_sent_over_several_turns() {
    const LEVELS: usize = 8;
    const RECORDS: usize = 400;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let mut readers: Vec<Member> = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
        .map(|name| Member::new(name, V5))
        .into();
    for reader in &mut readers {
        reader.connect(&mut rig, true, 1000);
        subscribe_levels(&mut rig, reader, LEVELS);
    }
    append_batch(&rig, &vec![levels_topic(LEVELS); RECORDS]);
    let mut turns = 0;
    let mut received = 0;
    while received < RECORDS {
        rig.turn();
        let sent = readers
            .iter()
            .map(|reader| rig.sent(reader.key(), V5).len());
        let sent: usize = sent.sum();
        turns += usize::from(sent > 0);
        received += sent / readers.len();
        // Identifiers that a turn encodes.
        assert!(sent << LEVELS <= 540_000, "{sent} deliveries in a turn");
        if sent == 0 {
            rig.wait_for_disk();
        }
    }
    assert!(turns > 1);
}

#[test]
fn deliveries_that_are_encoded_one_by_one_are_sent_over_several_turns() {
    const READERS: usize = 30;
    const RECORDS: usize = 8000;
    for topics in [1, 2] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Never);
        let mut readers: Vec<Member> = (0..READERS)
            .map(|number| Member::new(&number.to_string(), V5))
            .collect();
        for reader in &mut readers {
            reader.connect(&mut rig, true, 1000);
            for (filter, id) in [("l/#", 1), ("l/+", 2)] {
                let id = [Property::SubscriptionIdentifier(id)];
                reader.subscribe_with(&mut rig, filter, QoS::AtMostOnce, &id);
            }
        }
        // With two topics that take turns, each run has one record.
        let batch: Vec<_> = (0..RECORDS)
            .map(|at| format!("l/{}", at % topics))
            .collect();
        append_batch(&rig, &batch);
        let (mut turns, mut received) = (0, 0);
        while received < RECORDS * READERS {
            rig.turn();
            let sent: usize = readers
                .iter()
                .map(|reader| rig.sent(reader.key(), V5).len())
                .sum();
            turns += usize::from(sent > 0);
            received += sent;
            assert!(sent <= 160_000, "{sent} deliveries in a turn");
            if sent == 0 {
                rig.wait_for_disk();
            }
        }
        assert!(turns > 1);
    }
}
