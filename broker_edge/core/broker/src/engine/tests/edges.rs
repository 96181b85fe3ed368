//! Deliveries in extreme cases: after time jumps, restarts, with narrow windows and after long absences.

use std::time::{SystemTime, UNIX_EPOCH};

use super::member::Member;
use super::world::copy_all;
use super::*;

const V5: Version = Version::V5;

fn publish_with(
    rig: &mut Rig,
    key: ConnKey,
    topic: &str,
    id: u16,
    text: &str,
    properties: &[Property<'_>],
) {
    let mut encoded = Vec::new();
    properties
        .iter()
        .for_each(|property| property.encode(&mut encoded));
    let fields = PublishFields {
        version: V5,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic,
        packet_id: PacketId::new(id),
        properties: &encoded,
        extra: &[],
    };
    rig.feed(key, |out| {
        fields.encode(out, text.as_bytes()).expect("a small packet");
    });
}

/// Text, remaining expiry, topic and alias of each delivery on a connection.
pub(super) fn deliveries(
    rig: &mut Rig,
    key: ConnKey,
) -> Vec<(String, Option<u32>, String, Option<u16>)> {
    let bytes = rig.engine.out(key).to_vec();
    rig.engine.written(key, bytes.len());
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while let Ok(Frame::Whole {
        first_byte,
        header_len,
        total_len,
    }) = frame::next(rest, 1 << 28)
    {
        let body = &rest[header_len..total_len];
        if let ServerPacket::Publish(publish) =
            decode_from_server(V5, first_byte, body).expect("well-formed")
        {
            found.push((
                String::from_utf8_lossy(publish.payload).into_owned(),
                publish.properties.message_expiry_interval(),
                String::from_utf8_lossy(publish.topic.as_bytes()).into_owned(),
                publish.topic_alias.map(|alias| alias.get()),
            ));
        }
        rest = &rest[total_len..];
    }
    found
}

fn turns(rig: &mut Rig) {
    loop {
        rig.turn();
        if !rig.engine.has_more() && !rig.engine.is_behind_log() {
            return;
        }
    }
}

#[test]
fn what_expired_while_its_subscriber_and_the_broker_were_away_is_not_sent_and_the_rest_says_what_is_left()
 {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut away = Member::new("away", V5);
    away.connect(&mut rig, true, 100);
    away.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    away.lose(&mut rig);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    for (id, text, expiry) in [(1, "short", 10), (2, "long", 100)] {
        let property = [Property::MessageExpiryInterval(expiry)];
        publish_with(&mut rig, publisher, "t", id, text, &property);
    }
    assert_eq!(rig.packets(publisher, V5, 2).len(), 2);
    rig.crash();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    rig.now.wall_us = i64::try_from(wall.as_micros()).expect("a time") + 40_000_000;
    let mut fields = ConnectFields::new(V5, "away");
    fields.clean_start = false;
    let lasts = [Property::SessionExpiryInterval(3600)];
    fields.properties = &lasts;
    let key = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(key, |out| encode::connect(out, &fields));
    let mut got = Vec::new();
    while got.is_empty() {
        turns(&mut rig);
        got = deliveries(&mut rig, key);
        if got.is_empty() {
            let _ = rig.moved.recv_timeout(DEADLINE);
        }
    }
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!(got[0].0, "long");
    let left = got[0].1.expect("it says when it expires");
    assert!(
        (55..=60).contains(&left),
        "{left} s of 100 are left after 40"
    );
    rig.crash();
}

#[test]
fn a_session_misses_nothing_new_after_a_partition_was_put_back_from_an_older_copy() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut away = Member::new("away", V5);
    away.connect(&mut rig, true, 100);
    away.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    let (data, copy) = (dir.path().join("telemetry-0"), dir.path().join("copy"));
    copy_all(&data, &copy);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    for id in 1..=3 {
        rig.publish(publisher, V5, id, "seen");
    }
    rig.packets(publisher, V5, 3);
    while away.acked.len() < 3 {
        turns(&mut rig);
        away.take(&mut rig);
        away.ack(&mut rig, away.unacked.len());
    }
    // The session's cursor is stored once a second.
    rig.pass_time(2000);
    away.lose(&mut rig);
    rig.crash();
    std::fs::remove_dir_all(&data).expect("removed");
    std::fs::rename(&copy, &data).expect("put back");
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    away.connect(&mut rig, true, 100);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    rig.publish(publisher, V5, 1, "new");
    rig.packets(publisher, V5, 1);
    turns(&mut rig);
    away.take(&mut rig);
    assert_eq!(away.got.last().map(String::as_str), Some("new"));
    rig.crash();
}

#[test]
fn a_client_that_allows_aliases_is_sent_each_name_once_and_an_unknown_one_in_full() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let mut fields = ConnectFields::new(V5, "c");
    let allows = [Property::TopicAliasMaximum(2)];
    fields.properties = &allows;
    let client = rig.connect(fields);
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let one = [Subscription {
        filter: "plant/#",
        options,
    }];
    rig.feed(client, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one);
    });
    assert_eq!(rig.packets(client, V5, 1), ["suback"]);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let topics = [
        "plant/1", "plant/1", "plant/2", "plant/3", "plant/2", "plant/3",
    ];
    for (id, topic) in (1..).zip(topics) {
        publish_with(&mut rig, publisher, topic, id, "x", &[]);
        assert_eq!(rig.packets(publisher, V5, 1).len(), 1);
    }
    turns(&mut rig);
    let named: Vec<(String, Option<u16>)> = deliveries(&mut rig, client)
        .into_iter()
        .map(|(_, _, topic, alias)| (topic, alias))
        .collect();
    let expected = [
        ("plant/1", Some(1)),
        ("", Some(1)),
        ("plant/2", Some(2)),
        ("plant/3", None),
        ("", Some(2)),
        ("plant/3", None),
    ];
    let expected: Vec<(String, Option<u16>)> = expected
        .map(|(topic, alias)| (topic.to_owned(), alias))
        .to_vec();
    assert_eq!(named, expected);
    rig.crash();
}

#[test]
fn a_window_of_one_gets_everything_that_waits_in_order_and_once() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let mut narrow = Member::new("narrow", V5);
    narrow.connect(&mut rig, true, 1);
    narrow.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let count = 10_000;
    for n in 0..count {
        rig.publish(publisher, V5, n % 1000 + 1, &n.to_string());
        if n % 1000 == 999 {
            rig.packets(publisher, V5, 1000);
        }
    }
    while narrow.acked.len() < usize::from(count) {
        turns(&mut rig);
        narrow.take(&mut rig);
        assert_eq!(narrow.unacked.len(), 1, "never more than its window");
        narrow.ack(&mut rig, 1);
    }
    turns(&mut rig);
    narrow.take(&mut rig);
    let expected: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    assert_eq!(narrow.got, expected);
    rig.crash();
}

#[test]
fn many_sessions_that_come_back_together_share_what_is_read_for_them() {
    const SESSIONS: usize = 80;
    const RECORDS: usize = 3000;
    let dir = dir();
    let mut config = world::small(dir.path());
    config.sync = SyncMode::Never;
    config.tail_bytes = 256 << 10;
    let mut rig = Rig::open_with(config);
    let mut all: Vec<Member> = (0..SESSIONS)
        .map(|n| Member::new(&format!("s{n}"), V5))
        .collect();
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let body = "x".repeat(1000);
    let mut expected = vec![0; SESSIONS];
    for n in 0..RECORDS {
        // The sessions disconnect one after the other, so that their cursors are spread over the log; some have many
        // filters.
        if n % (RECORDS / SESSIONS) == 0 && n / (RECORDS / SESSIONS) < SESSIONS {
            let member = &mut all[n / (RECORDS / SESSIONS)];
            member.connect(&mut rig, true, 10);
            let filter = format!("t/{}", n / (RECORDS / SESSIONS) % 8);
            member.subscribe_with(&mut rig, &filter, QoS::AtLeastOnce, &[]);
            for extra in 0..n % 16 {
                let filter = format!("no/{extra}/+");
                member.subscribe_with(&mut rig, &filter, QoS::AtLeastOnce, &[]);
            }
            member.lose(&mut rig);
        }
        let text = format!("{n} {body}");
        publish_with(
            &mut rig,
            publisher,
            &format!("t/{}", n % 8),
            n as u16 % 60_000 + 1,
            &text,
            &[],
        );
        rig.packets(publisher, V5, 1);
        let begun = (n / (RECORDS / SESSIONS)).min(SESSIONS - 1);
        (0..=begun)
            .filter(|s| s % 8 == n % 8)
            .for_each(|s| expected[s] += 1);
    }
    for member in &mut all {
        member.connect(&mut rig, true, 10);
    }
    let mut idle_turns = 0;
    while idle_turns < 200
        && all
            .iter()
            .zip(&expected)
            .any(|(member, count)| member.acked.len() < *count)
    {
        rig.pass_time(1);
        let before: usize = all.iter().map(|member| member.acked.len()).sum();
        for member in &mut all {
            member.ack(&mut rig, 10);
        }
        let after: usize = all.iter().map(|member| member.acked.len()).sum();
        idle_turns = if after > before { 0 } else { idle_turns + 1 };
    }
    let got: Vec<usize> = all.iter().map(|member| member.got.len()).collect();
    assert_eq!(got, expected, "each has its records, and once");
    let announced = rig.gate.announced.load(Ordering::Relaxed);
    assert!(
        announced > 0,
        "the disk is asked before the loop waits for it"
    );
    let delivered: usize = all
        .iter()
        .flat_map(|member| &member.got)
        .map(String::len)
        .sum();
    let read = rig.engine.env.metrics.mqtt.catch_up_read_bytes.get();
    assert!(read > 0, "the files were read");
    assert!(
        read < delivered as u64,
        "{read} bytes were read to deliver {delivered}"
    );
    let logged = (RECORDS * body.len()) as u64;
    assert!(
        read < 4 * logged,
        "{read} bytes were read of a log of {logged}, each batch of which is for many"
    );
    rig.crash();
}

#[test]
fn a_session_catches_up_until_it_has_all_that_came_while_it_was_away() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut member = Member::new("s", V5);
    member.connect(&mut rig, true, 10);
    member.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    member.lose(&mut rig);
    for id in 1..=30 {
        publish_with(&mut rig, publisher, "t", id, "x", &[]);
        rig.packets(publisher, V5, 1);
    }
    assert!(!rig.engine.is_catching_up(publisher));
    member.connect(&mut rig, true, 10);
    assert!(rig.engine.is_catching_up(member.key()));
    while member.acked.len() < 30 {
        rig.turn();
        member.ack(&mut rig, 10);
    }
    rig.turn();
    assert_eq!(member.got.len(), 30);
    assert!(!rig.engine.is_catching_up(member.key()));
    let unknown = rig.engine.open(crate::peer::Peer::nobody());
    assert!(!rig.engine.is_catching_up(unknown), "it has no session yet");
}

#[test]
fn the_live_stream_is_there_to_be_sent_before_anybody_catches_up() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut late = Member::new("late", V5);
    late.connect(&mut rig, true, 1);
    late.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    late.lose(&mut rig);
    for text in ["1", "2"] {
        rig.publish(publisher, V5, 1, text);
        assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
    }
    let live = rig.connect(ConnectFields::new(V5, "live"));
    rig.subscribe(live, V5);
    late.connect(&mut rig, true, 1);
    assert_eq!(late.got, ["1"]);
    assert_eq!(
        rig.engine.take_touched_before_late(),
        [],
        "nobody can go on: one write is enough"
    );
    rig.engine.take_touched();

    late.ack(&mut rig, 1);
    rig.publish(publisher, V5, 1, "3");
    rig.engine.commit_live();
    assert_eq!(rig.engine.take_touched_before_late(), [live, publisher]);
    assert_eq!(rig.sent(live, V5), ["publish 3"]);
    assert_eq!(rig.sent(publisher, V5), ["puback 1"]);

    rig.engine.commit_late();
    assert_eq!(rig.engine.take_touched(), [late.key()]);
    late.take(&mut rig);
    assert_eq!(late.got, ["1", "2"]);
}

#[test]
fn the_cursors_of_many_sessions_are_stored_a_part_at_a_time() {
    const SESSIONS: usize = 600;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Never);
    let publisher = rig.connect(ConnectFields::new(V5, "p"));
    let mut members: Vec<Member> = (0..SESSIONS)
        .map(|n| Member::new(&format!("s{n}"), V5))
        .collect();
    for member in &mut members {
        member.connect(&mut rig, true, 10);
        member.subscribe_with(&mut rig, "t", QoS::AtLeastOnce, &[]);
    }
    let cursors = |rig: &Rig| {
        let mut found = Vec::new();
        let mut note = |_: &str, value: &std::sync::Arc<[u8]>| found.push(value.clone());
        rig.state.for_each_prefix("cursor/", &mut note);
        found
    };
    let before = cursors(&rig);
    assert_eq!(before.len(), SESSIONS);
    let changed = |rig: &Rig| {
        let now = cursors(rig);
        now.iter().zip(&before).filter(|(a, b)| a != b).count()
    };
    publish_with(&mut rig, publisher, "t", 1, "x", &[]);
    rig.packets(publisher, V5, 1);
    for member in &mut members {
        member.ack(&mut rig, 1);
    }
    rig.turn();
    assert_eq!(changed(&rig), 0, "it is not due yet");
    rig.pass_time(1000);
    let first = changed(&rig);
    assert!(0 < first && first < SESSIONS / 2, "{first} in one turn");
    for _ in 0..4 {
        rig.pass_time(1);
    }
    assert_eq!(changed(&rig), SESSIONS, "a few turns later");
}
