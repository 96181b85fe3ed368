//! A topic for which very many filters have to be tried: its receivers are searched over many turns, while sessions come,
//! go and change.

use proptest::prelude::*;

use super::gate::Sync;
use super::member::{Member, settle, settle_disk};
use super::*;
use crate::engine::delivery::matches::{effective_for, matches};
use crate::engine::routing::costly::{AT_ONCE_WORK, LATE_PARTS, PART_WORK};

const V5: Version = Version::V5;
const LEVELS: u32 = 14;
const SESSIONS: usize = 32;
/// All filters of [`LEVELS`] levels, each by its name or as `+`: every one of them matches.
const FILTERS: usize = 1 << LEVELS;

fn topic() -> String {
    vec!["l"; LEVELS as usize].join("/")
}

fn filter(number: usize) -> String {
    let level = |bit: u32| if number >> bit & 1 == 1 { "+" } else { "l" };
    (0..LEVELS).map(level).collect::<Vec<_>>().join("/")
}

fn subscribe_all(rig: &mut Rig, member: &mut Member, filters: &[String], qos: QoS) {
    let options = SubscriptionOptions::new(qos);
    let all: Vec<Subscription<'_>> = filters
        .iter()
        .map(|filter| Subscription { filter, options })
        .collect();
    rig.feed(member.key(), |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &all);
    });
    member.await_answer(rig);
}

fn unsubscribe_all(rig: &mut Rig, member: &mut Member, filters: &[String]) {
    let filters: Vec<&str> = filters.iter().map(|filter| &**filter).collect();
    rig.feed(member.key(), |out| {
        encode::unsubscribe(out, V5, PacketId::FIRST, &[], &filters);
    });
    member.await_answer(rig);
}

fn filters_of(number: usize) -> Vec<String> {
    let each = FILTERS / SESSIONS;
    (number * each..(number + 1) * each).map(filter).collect()
}

/// Sessions that have all filters together.
fn crowd(rig: &mut Rig) -> Vec<Member> {
    (0..SESSIONS)
        .map(|number| one_of_many(rig, number))
        .collect()
}

fn one_of_many(rig: &mut Rig, number: usize) -> Member {
    let mut member = Member::new(&format!("crowd{number}"), V5);
    member.connect(rig, true, 1000);
    let filters = filters_of(number % SESSIONS);
    subscribe_all(rig, &mut member, &filters, QoS::AtLeastOnce);
    member
}

fn publish(rig: &mut Rig, key: ConnKey, topic: &str, id: u16) {
    rig.publish_to(topic, false, key, V5, id, &id.to_string());
}

/// Whether a publish waits.
fn is_paused(rig: &Rig, key: ConnKey) -> bool {
    let conn = rig.engine.clients.conn(key).expect("it is open");
    !conn.unparsed.bytes.is_empty()
}

/// Lets the search go on until the paused publish is accepted; returns the number of turns.
fn search_on(rig: &mut Rig, key: ConnKey) -> usize {
    let mut turns = 0;
    while is_paused(rig, key) {
        rig.pass_time(1);
        let work = rig.engine.routing.work();
        assert!(work <= u64::from(AT_ONCE_WORK) + 64, "{work} in a turn");
        turns += 1;
        assert!(turns < 100_000, "the search does not end");
    }
    turns
}

fn open(dir: &Path) -> (Rig, ConnKey) {
    let mut rig = Rig::open(dir, SyncMode::Never);
    let mut fields = ConnectFields::new(V5, "publisher");
    fields.keep_alive_s = 0;
    let publisher = rig.connect(fields);
    (rig, publisher)
}

/// What members have got since, once nothing is on its way. They acknowledge everything.
fn got(rig: &mut Rig, members: &mut [Member]) -> Vec<Vec<String>> {
    loop {
        let mut all: Vec<&mut Member> = members.iter_mut().collect();
        all.retain(|member| member.key.is_some());
        settle_disk(rig, &mut all);
        if all.iter().all(|member| member.unacked.is_empty()) {
            break;
        }
        all.iter_mut()
            .for_each(|member| member.ack(rig, usize::MAX));
    }
    let taken = members
        .iter_mut()
        .map(|member| std::mem::take(&mut member.got));
    taken.collect()
}

#[test]
fn receivers_are_searched_over_many_turns_and_others_are_served_meanwhile() {
    let dir = dir();
    let (mut rig, publisher) = open(dir.path());
    let mut members = crowd(&mut rig);
    let other = rig.connect(ConnectFields::new(V5, "other"));
    // One that comes behind it waits with it.
    rig.feed(publisher, |out| {
        for (topic, id) in [(&*topic(), 1), ("plain", 2)] {
            let fields = PublishFields {
                version: V5,
                dup: false,
                qos: QoS::AtLeastOnce,
                retain: false,
                topic,
                packet_id: PacketId::new(id),
                properties: &[],
                extra: &[],
            };
            fields.encode(out, b"1").expect("a small packet");
        }
    });
    assert!(is_paused(&rig, publisher));
    publish(&mut rig, other, "t", 7);
    assert_eq!(rig.packets(other, V5, 1).len(), 1);
    assert!(
        is_paused(&rig, publisher),
        "the other one did not wait for it"
    );
    let turns = search_on(&mut rig, publisher);
    assert!(turns >= FILTERS / PART_WORK as usize, "{turns} turns");
    let answers = rig.packets(publisher, V5, 2);
    assert_eq!(answers[0], "puback 1");
    assert_eq!(answers[1], "puback 2");
    assert_eq!(got(&mut rig, &mut members), vec![["1"]; SESSIONS]);
    // What was found is kept, also when a session changes.
    unsubscribe_all(&mut rig, &mut members[3], &filters_of(3));
    publish(&mut rig, publisher, &topic(), 3);
    assert!(!is_paused(&rig, publisher));
    assert_eq!(rig.packets(publisher, V5, 1), ["puback 3"]);
    let all = got(&mut rig, &mut members);
    for (number, got) in all.iter().enumerate() {
        let expected: &[&str] = if number == 3 { &[] } else { &["3"] };
        assert_eq!(got, expected, "{number}");
    }
}

/// Sessions change before the publish is accepted, or after that and before its record is delivered.
#[test]
fn sessions_that_change_while_a_topic_is_searched_get_what_their_subscriptions_say() {
    for is_staged in [false, true] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        // A commit on the loop's thread would wait for the sync that is held.
        rig.engine.env.settings.inline_publishers_max = 0;
        let publisher = rig.connect(ConnectFields::new(V5, "publisher"));
        let mut members = crowd(&mut rig);
        let mut new = Member::new("new", V5);
        new.connect(&mut rig, true, 100);
        members.push(new);
        publish(&mut rig, publisher, &topic(), 1);
        rig.pass_time(1);
        if is_staged {
            rig.gate.set(Sync::Hold);
            search_on(&mut rig, publisher);
        } else {
            assert!(is_paused(&rig, publisher));
        }
        // Leaves, is away, comes back on another connection, joins.
        unsubscribe_all(&mut rig, &mut members[0], &filters_of(0));
        members[1].lose(&mut rig);
        members[2].connect(&mut rig, true, 1000);
        let end = members.len() - 1;
        subscribe_all(
            &mut rig,
            &mut members[end],
            &["l/#".to_owned()],
            QoS::AtLeastOnce,
        );
        search_on(&mut rig, publisher);
        rig.gate.set(Sync::Pass);
        assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
        let mut all = got(&mut rig, &mut members);
        assert!(all[0].is_empty() && all[1].is_empty(), "{all:?}");
        members[1].connect(&mut rig, true, 1000);
        all[1] = got(&mut rig, &mut members).swap_remove(1);
        // Whether one that joins gets what was published before is open.
        let joined = all.pop().expect("it is the last");
        assert!(is_staged || joined == ["1"], "{joined:?}");
        assert_eq!(all[1..], vec![["1"]; SESSIONS - 1]);
        publish(&mut rig, publisher, &topic(), 2);
        search_on(&mut rig, publisher);
        let all = got(&mut rig, &mut members);
        assert!(all[0].is_empty());
        assert_eq!(all[1..], vec![["2"]; SESSIONS]);
    }
}

#[test]
fn rights_that_are_reloaded_hold_for_a_topic_that_was_searched() {
    let dir = dir();
    let (mut rig, publisher) = open(dir.path());
    let mut members = crowd(&mut rig);
    publish(&mut rig, publisher, &topic(), 1);
    search_on(&mut rig, publisher);
    assert_eq!(got(&mut rig, &mut members), vec![["1"]; SESSIONS]);
    rig.engine.routing.note_all();
    publish(&mut rig, publisher, &topic(), 2);
    assert!(is_paused(&rig, publisher), "it is searched again");
    search_on(&mut rig, publisher);
    assert_eq!(got(&mut rig, &mut members), vec![["2"]; SESSIONS]);
}

#[test]
fn sessions_that_change_in_every_turn_do_not_hold_up_a_topic_for_good() {
    let dir = dir();
    let (mut rig, publisher) = open(dir.path());
    let mut members = crowd(&mut rig);
    members.extend((SESSIONS..2 * SESSIONS).map(|number| one_of_many(&mut rig, number)));
    let keys: Vec<SessionKey> = rig.engine.clients.sessions().map(|(key, _)| key).collect();
    publish(&mut rig, publisher, &topic(), 1);
    let mut turns = 0;
    while is_paused(&rig, publisher) {
        let routing = &mut rig.engine.routing;
        keys.iter()
            .for_each(|key| routing.note_session(*key, false));
        rig.pass_time(1);
        turns += 1;
        assert!(turns < 100, "it waits for good");
    }
    assert!(
        turns > FILTERS / PART_WORK as usize + LATE_PARTS as usize,
        "{turns} turns"
    );
    rig.engine.routing.note_session(keys[0], false);
    publish(&mut rig, publisher, &topic(), 2);
    assert!(!is_paused(&rig, publisher), "few changes take one part");
    assert_eq!(got(&mut rig, &mut members), vec![["1", "2"]; 2 * SESSIONS]);
}

/// What a session of the crowd does.
#[derive(Debug, Clone, Copy)]
enum Act {
    Comes,
    Goes,
    Subscribes(usize),
    Unsubscribes(usize),
    UnsubscribesAll,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Comes),
        1 => Just(Act::Goes),
        2 => (0..FILTERS).prop_map(Act::Subscribes),
        3 => (0..FILTERS).prop_map(Act::Unsubscribes),
        1 => Just(Act::UnsubscribesAll),
    ]
}

/// What it does, whether the search goes on then to its end, and whether all is searched anew after that.
fn step() -> impl Strategy<Value = (usize, Act, bool, bool)> {
    (
        0..SESSIONS,
        act(),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.2),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_is_kept_is_what_the_filters_of_each_session_say(
        steps in prop::collection::vec(step(), 10..40),
    ) {
        let dir = dir();
        let (mut rig, publisher) = open(dir.path());
        let mut members = crowd(&mut rig);
        publish(&mut rig, publisher, &topic(), 1);
        for (number, act, ends, begins) in steps {
            let member = &mut members[number];
            match (member.key, act) {
                (_, Act::Comes) => member.connect(&mut rig, true, 1000),
                (None, _) => {}
                (Some(_), Act::Goes) => member.lose(&mut rig),
                (Some(_), Act::Subscribes(at)) => {
                    subscribe_all(&mut rig, member, &[filter(at)], QoS::ExactlyOnce);
                }
                (Some(_), Act::Unsubscribes(at)) => unsubscribe_all(&mut rig, member, &[filter(at)]),
                (Some(_), Act::UnsubscribesAll) => {
                    unsubscribe_all(&mut rig, member, &filters_of(number));
                }
            }
            if ends {
                search_on(&mut rig, publisher);
                assert_as_the_filters_say(&mut rig);
                if begins {
                    rig.engine.routing.note_all();
                    publish(&mut rig, publisher, &topic(), 1);
                }
            }
        }
    }
}

fn assert_as_the_filters_say(rig: &mut Rig) {
    let engine = &mut rig.engine;
    let id = engine.routing.intern(&topic(), &rig.log);
    let partition = engine.routing.topic(id).expect("just there").partition;
    let clients = &engine.clients;
    let session_of = |key| clients.session(key);
    let found = loop {
        if let Some(found) = matches(&mut engine.routing, id, session_of, &engine.groups) {
            break found;
        }
    };
    let mut found: Vec<_> = found
        .targets
        .iter()
        .map(|target| (target.session, target.conn, target.effective.qos))
        .collect();
    found.sort_unstable_by_key(|(session, ..)| *session);
    let at = Offset(u64::MAX);
    let mut expected: Vec<_> = clients
        .sessions()
        .filter_map(|(key, session)| {
            let effective = effective_for(session, &topic(), partition, at, None)?;
            Some((key, session.active_conn()?, effective.qos))
        })
        .collect();
    expected.sort_unstable_by_key(|(session, ..)| *session);
    assert_eq!(found, expected);
}

/// Nobody has searched the topic before its record is in the log, as with a will.
#[test]
fn records_behind_one_whose_receivers_are_searched_wait_and_keep_their_order() {
    let dir = dir();
    let (mut rig, publisher) = open(dir.path());
    let mut members = crowd(&mut rig);
    let mut all = Member::new("all", V5);
    all.connect(&mut rig, true, 1000);
    subscribe_all(&mut rig, &mut all, &["#".to_owned()], QoS::AtLeastOnce);
    members.push(all);
    settle(&mut rig, &mut members.iter_mut().collect::<Vec<_>>());
    let mut records = headwater_log::Records::new();
    let client = records.client("flight").expect("room");
    for name in ["before", &topic(), "after"] {
        let topic = records.topic(name, 0..1).expect("room");
        let meta = headwater_log::RecordMeta::new(topic, client, 1);
        records.push(meta, name.as_bytes()).expect("room");
    }
    let partition = rig
        .log
        .by_name("telemetry-0")
        .expect("there by default")
        .clone();
    let end = partition.append(records).expect("room").end;
    while partition.high_watermark() < end {
        rig.moved.recv_timeout(DEADLINE).expect("it is written");
    }
    let index = PartitionIndex::of(partition.id());
    let mut turns = 0;
    while rig.engine.delivery.live_at(index) < end {
        rig.turn();
        let work = rig.engine.routing.work();
        assert!(work <= u64::from(AT_ONCE_WORK) + 64, "{work} in a turn");
        turns += 1;
        // Who changes meanwhile changes what is found.
        if turns == 2 {
            unsubscribe_all(&mut rig, &mut members[0], &filters_of(0));
        }
        assert!(turns < 1000, "the search does not end");
    }
    assert!(turns >= FILTERS / PART_WORK as usize, "{turns} turns");
    let mut got = got(&mut rig, &mut members);
    assert_eq!(got.pop().expect("the last"), ["before", &topic(), "after"]);
    assert!(got[0].is_empty());
    assert_eq!(got[1..], vec![[topic()]; SESSIONS - 1]);
    // A publish finds what was searched for the record.
    publish(&mut rig, publisher, &topic(), 1);
    assert!(!is_paused(&rig, publisher));
}

#[test]
fn a_producer_asks_again_for_a_topic_that_is_searched() {
    let dir = dir();
    let (mut rig, _) = open(dir.path());
    crowd(&mut rig);
    let mut asked = 0;
    let works = loop {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        let topics = vec![topic(), "plain".to_owned()];
        let is_costly = rig.engine.answer_weigh(WeighRequest { topics, answer });
        let works = answered.try_recv().expect("an answer");
        assert!(
            is_costly || !works.is_empty(),
            "others wait for the next turn"
        );
        if !works.is_empty() {
            break works;
        }
        asked += 1;
        assert!(asked < 1000, "the search does not end");
    };
    assert!(asked >= FILTERS / PART_WORK as usize, "{asked}");
    assert!(works[0] >= FILTERS as u64, "{works:?}");
}
