//! Sessions and groups that catch up: several partitions, QoS 0, records that were done before a restart, and a group
//! that loses its member while it reads.

use std::collections::BTreeSet;

use headwater_log::Batch;
use headwater_mqtt::filter_matches;

use super::ids::{GroupId, Waiter};
use super::member::{GROUP, Member, settle, settle_disk};
use super::*;

const V5: Version = Version::V5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Session,
    Group,
}

impl Reader {
    const BOTH: [Self; 2] = [Self::Session, Self::Group];

    /// A client that is behind as soon as it is away: its own session is, or its group.
    fn subscribe(self, rig: &mut Rig, filter: &str, qos: QoS, window: u16) -> Member {
        let mut member = Member::new("m", V5);
        member.connect(rig, true, window);
        let filter = match self {
            Self::Session => filter.to_owned(),
            Self::Group => format!("$share/g/{filter}"),
        };
        member.subscribe_with(rig, &filter, qos, &[]);
        member
    }
}

/// Publishes one message with QoS 0 or 1, and waits for its PUBACK.
fn say(rig: &mut Rig, publisher: ConnKey, topic: &str, qos: QoS, text: &str) {
    let has_id = qos != QoS::AtMostOnce;
    let fields = PublishFields {
        version: V5,
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: PacketId::new(u16::from(has_id)),
        properties: &[],
        extra: &[],
    };
    rig.feed(publisher, |out| {
        fields.encode(out, text.as_bytes()).expect("a small packet");
    });
    if has_id {
        assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
    }
}

/// A topic of each partition, and how many records it gets.
const TOPICS: [(&str, usize); 3] = [("t", 40), ("devices/d/actions", 12), ("artifacts/a", 4)];

/// A session or group of this filter reads on with this window, after a restart of the broker or without.
fn assert_all_served(reader: Reader, filter: &str, window: u16, restarts: bool) {
    let case = format!("{reader:?} of {filter} with a window of {window}, restart: {restarts}");
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut member = reader.subscribe(&mut rig, filter, QoS::AtLeastOnce, window);
    member.lose(&mut rig);
    for (topic, count) in TOPICS {
        for n in 0..count {
            let text = format!("{topic} {n}");
            say(&mut rig, publisher, topic, QoS::AtLeastOnce, &text);
        }
    }
    if restarts {
        settle_disk(&mut rig, &mut []);
        rig.crash();
        rig = Rig::open(dir.path(), SyncMode::Never);
    }
    member.connect(&mut rig, true, window);
    loop {
        settle(&mut rig, &mut [&mut member]);
        assert!(member.unacked.len() <= usize::from(window), "{case}");
        if member.unacked.is_empty() {
            break;
        }
        member.ack(&mut rig, 1);
    }
    let wanted = TOPICS
        .iter()
        .filter(|(topic, _)| filter_matches(filter, topic));
    let total: usize = wanted.clone().map(|(_, count)| count).sum();
    assert_eq!(member.got.len(), total, "{case}: {:?}", member.got);
    for (topic, count) in wanted {
        let got = member.got.iter().filter(|text| text.starts_with(topic));
        let expected: Vec<String> = (0..*count).map(|n| format!("{topic} {n}")).collect();
        assert!(got.eq(&expected), "{case}");
        for (n, text) in expected.iter().enumerate().take(12) {
            let place = member.got.iter().position(|got| got == text);
            let latest = TOPICS.len() * (n + 3);
            assert!(place < Some(latest), "{case}: {text} at {place:?}");
        }
    }
    rig.crash();
}

#[test]
fn a_narrow_window_serves_all_partitions_in_turn_and_each_to_its_end() {
    for reader in Reader::BOTH {
        for (filter, window) in [("#", 1), ("#", 2), ("+", 1)] {
            for restarts in [false, true] {
                assert_all_served(reader, filter, window, restarts);
            }
        }
    }
}

#[test]
fn what_was_done_before_a_restart_is_skipped_until_its_own_partition_has_caught_up() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut member = Reader::Group.subscribe(&mut rig, "#", QoS::ExactlyOnce, 100);
    for (topic, count) in TOPICS {
        for n in 0..count {
            let text = format!("{topic} {n}");
            if n == 2 {
                qos2::publish(&mut rig, publisher, V5, 2, topic, &text);
                stored_state::assert_next(&mut rig, publisher, "Pubrec");
                qos2::answer(&mut rig, publisher, V5, 2, encode::pubrel);
                stored_state::assert_next(&mut rig, publisher, "Pubcomp");
            } else {
                say(&mut rig, publisher, topic, QoS::AtLeastOnce, &text);
            }
        }
    }
    settle_disk(&mut rig, &mut [&mut member]);
    let total: usize = TOPICS.iter().map(|(_, count)| count).sum();
    assert_eq!(member.unacked.len(), total);
    // Every second record of QoS 1 is done; those of QoS 2 stay in the window.
    let owed = std::mem::take(&mut member.unacked);
    let (done, left): (Vec<_>, Vec<_>) = owed
        .into_iter()
        .partition(|owed| owed.qos == QoS::AtLeastOnce && owed.id % 2 == 0);
    for owed in &done {
        qos2::answer(&mut rig, member.key(), V5, owed.id, encode::puback);
    }
    rig.pass_time(tick::CHECKPOINT_MS);
    settle_disk(&mut rig, &mut []);
    rig.crash();

    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut back = Member::new("m", V5);
    // The partitions catch up one after the other.
    back.connect(&mut rig, true, 3);
    loop {
        settle_disk(&mut rig, &mut [&mut back]);
        if back.unacked.is_empty() {
            break;
        }
        back.ack(&mut rig, 1);
    }
    let mut expected: Vec<String> = left.into_iter().map(|owed| owed.text).collect();
    expected.sort_unstable();
    back.got.sort_unstable();
    assert_eq!(back.got, expected, "each once");
    rig.crash();
}

#[test]
fn qos_0_while_away_is_skipped_by_the_lower_qos_and_in_a_group_by_that_of_the_record() {
    let (qos0, qos1) = (QoS::AtMostOnce, QoS::AtLeastOnce);
    let cases: [(Reader, QoS, &[&str]); 4] = [
        (Reader::Session, qos0, &[]),
        (Reader::Session, qos1, &["first", "last"]),
        (Reader::Group, qos0, &["first", "last"]),
        (Reader::Group, qos1, &["first", "last"]),
    ];
    for (reader, of_subscription, kept) in cases {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let publisher = rig.connect(ConnectFields::new(V5, "p"));
        let mut member = reader.subscribe(&mut rig, "#", of_subscription, 10);
        member.lose(&mut rig);
        for (qos, text) in [(qos1, "first"), (qos0, "passing"), (qos1, "last")] {
            say(&mut rig, publisher, "t", qos, text);
        }
        settle_disk(&mut rig, &mut []);
        member.connect(&mut rig, true, 10);
        for qos in [qos0, qos1] {
            say(&mut rig, publisher, "t", qos, "live");
        }
        settle_disk(&mut rig, &mut [&mut member]);
        let expected = [kept, &["live", "live"]].concat();
        assert_eq!(member.got, expected, "{reader:?} with {of_subscription:?}");
    }
}

#[test]
fn a_member_that_joins_others_costs_its_group_no_qos_0() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut away = Reader::Group.subscribe(&mut rig, "#", QoS::AtLeastOnce, 10);
    away.lose(&mut rig);
    let mut full = Member::new("full", V5);
    full.connect(&mut rig, false, 1);
    full.subscribe_with(&mut rig, "$share/g/#", QoS::AtLeastOnce, &[]);
    for text in ["taken", "waits"] {
        say(&mut rig, publisher, "t", QoS::AtLeastOnce, text);
    }
    say(&mut rig, publisher, "t", QoS::AtMostOnce, "behind it");
    settle_disk(&mut rig, &mut [&mut full]);
    assert_eq!(full.got, ["taken"]);
    away.connect(&mut rig, true, 10);
    settle_disk(&mut rig, &mut [&mut full, &mut away]);
    let got = [full.got, away.got].concat();
    assert_eq!(got, ["taken", "waits", "behind it"]);
}

#[test]
fn late_qos_0_is_dropped_behind_retained_messages_only() {
    const COUNT: usize = 500;
    for reader in Reader::BOTH {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let publisher = rig.connect(ConnectFields::new(V5, "p"));
        let mut member = reader.subscribe(&mut rig, "#", QoS::AtLeastOnce, 1);
        for text in ["0", "1"] {
            say(&mut rig, publisher, "t", QoS::AtLeastOnce, text);
        }
        settle_disk(&mut rig, &mut [&mut member]);
        // More than fits into the buffer of the connection.
        let filling = "x".repeat(1000);
        for n in 2..COUNT {
            let text = format!("{n} {filling}");
            say(&mut rig, publisher, "t", QoS::AtMostOnce, &text);
        }
        settle_disk(&mut rig, &mut []);
        // The log has its own clock.
        let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
        let first = telemetry.read(Offset(0), 1).expect("a sound log");
        rig.now.wall_us = first[0].record(0).time_us + 3_600_000_000;
        member.ack(&mut rig, 1);
        settle_disk(&mut rig, &mut []);
        settle_disk(&mut rig, &mut [&mut member]);
        let got = member.got.iter();
        let got: Vec<&str> = got.filter_map(|text| text.split(' ').next()).collect();
        let expected: Vec<String> = (0..COUNT).map(|n| n.to_string()).collect();
        assert!(got == expected, "{reader:?}: {got:?}");
        assert_eq!(rig.engine.env.metrics.mqtt.deliveries_dropped.get(), 0);
    }
}

/// How a group loses its only member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The session stays, and the group with it.
    Away,
    Unsubscribed,
    Over,
}

const RECORDS: usize = 100;
const LATER: usize = 20;
const EARLIEST: [Property<'static>; 1] = [Property::UserProperty {
    key: "stream-offset",
    value: "earliest",
}];

/// One millisecond and one turn; the clients acknowledge all that they have.
fn step(rig: &mut Rig, readers: &mut [&mut Member]) {
    rig.pass_time(1);
    for reader in readers {
        reader.ack(rig, 10);
    }
}

/// A broker whose log is no longer in memory, and two sessions that begin at its first record and at `LATER`.
fn rig_with_sessions(dir: &Path) -> (Rig, [Member; 2]) {
    let mut config = LogConfig::new(dir);
    config.sync = SyncMode::Never;
    config.tail_bytes = 64 << 10;
    let mut rig = Rig::open_with(config);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut sessions = ["one", "two"].map(|name| Member::new(name, V5));
    let filling = "x".repeat(8 << 10);
    for n in 0..RECORDS {
        for (session, from) in sessions.iter_mut().zip([0, LATER]) {
            if from == n {
                session.connect(&mut rig, true, 10);
                session.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
                session.lose(&mut rig);
            }
        }
        let text = format!("{n} {filling}");
        say(&mut rig, publisher, "t", QoS::AtLeastOnce, &text);
    }
    (rig, sessions)
}

/// Sessions and a group catch up together; the group loses its member after `turns` turns.
fn assert_goes_on(end: End, turns: usize) {
    let case = format!("{end:?} after {turns} turns");
    let dir = dir();
    let (mut rig, [mut one, mut two]) = rig_with_sessions(dir.path());
    let mut member = Member::new("m", V5);
    member.connect(&mut rig, end != End::Over, 10);
    one.connect(&mut rig, true, 10);
    two.connect(&mut rig, true, 10);
    member.subscribe_with(&mut rig, GROUP, QoS::AtLeastOnce, &EARLIEST);
    for _ in 0..turns {
        step(&mut rig, &mut [&mut one, &mut two, &mut member]);
    }
    member.take(&mut rig);
    assert!(member.acked.len() < RECORDS, "{case}: too late");
    let group = Waiter::Group(GroupId(0));
    let remembers = |rig: &Rig| rig.engine.catch_up.remembers(group);
    assert!(turns < 2 || remembers(&rig), "{case}: it reads the files");
    match end {
        End::Away | End::Over => member.lose(&mut rig),
        End::Unsubscribed => member.unsubscribe(&mut rig),
    }
    rig.turn();
    assert!(!remembers(&rig), "{case}: nobody reads for it");
    for _ in 0..10 * RECORDS {
        step(&mut rig, &mut [&mut one, &mut two]);
    }
    let acked = (one.acked.len(), two.acked.len());
    assert_eq!(acked, (RECORDS, RECORDS - LATER), "{case}");
    assert!(!rig.engine.has_more(), "{case}: nothing is left to do");
    if end == End::Away {
        member.connect(&mut rig, true, 10);
        for _ in 0..10 * RECORDS {
            step(&mut rig, &mut [&mut member]);
        }
        let numbers = member
            .acked
            .iter()
            .filter_map(|text| text.split(' ').next());
        let numbers: BTreeSet<String> = numbers.map(str::to_owned).collect();
        let expected = (0..RECORDS).map(|n| n.to_string()).collect();
        assert_eq!(numbers, expected, "{case}");
    }
    rig.crash();
}

#[test]
fn sessions_catch_up_after_a_group_that_lost_its_member_while_it_was_reading() {
    for end in [End::Away, End::Unsubscribed, End::Over] {
        for turns in [0, 1, 2, 3, 5] {
            assert_goes_on(end, turns);
        }
    }
}

#[test]
fn a_group_and_a_session_that_catch_up_together_read_the_files_once() {
    let dir = dir();
    let (mut rig, [mut one, _]) = rig_with_sessions(dir.path());
    let mut member = Member::new("m", V5);
    member.connect(&mut rig, true, 10);
    member.subscribe_with(&mut rig, GROUP, QoS::AtLeastOnce, &EARLIEST);
    one.connect(&mut rig, true, 10);
    for _ in 0..10 * RECORDS {
        step(&mut rig, &mut [&mut one, &mut member]);
    }
    assert_eq!((one.acked.len(), member.acked.len()), (RECORDS, RECORDS));
    let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
    let records = telemetry.read(Offset(0), usize::MAX).expect("a sound log");
    let bytes: usize = records.iter().map(Batch::bytes_len).sum();
    let read = rig.engine.env.metrics.mqtt.catch_up_read_bytes.get();
    assert!(read <= bytes as u64, "{read} of {bytes}");
    rig.crash();
}
