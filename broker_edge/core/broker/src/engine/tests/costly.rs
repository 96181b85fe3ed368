//! Clients whose filters and topics make the broker work or write much for few bytes, and what others get meanwhile.

use super::hostile::subscribe_to;
use super::*;
use crate::engine::delivery::matches::matches;
use crate::engine::routing::topics::{EffectiveOptions, Matches, Target};
use crate::engine::session::pauses::Pause;

const VERSION: Version = Version::V5;
/// Filters of one client that share their levels in all combinations, so that a topic visits all of them.
const FILTERS: u64 = 1000;
const LEVELS: u32 = 60;
/// The most that is read from a connection at once.
const READ_BYTES: usize = 256 << 10;

/// The levels of `number`, one for each bit, with `+` for those that are set; and a last level of its own.
pub(super) fn branching(number: u64) -> String {
    let level = |bit: u32| {
        if number >> (bit % 10) & 1 == 1 {
            "+"
        } else {
            "l"
        }
    };
    let levels: Vec<&str> = (0..LEVELS).map(level).collect();
    format!("{}/end{number}", levels.join("/"))
}

fn publish_all(topics: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for topic in topics {
        let fields = PublishFields {
            version: VERSION,
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            properties: &[],
            extra: &[],
        };
        fields.encode(&mut bytes, b"").expect("a small packet");
    }
    bytes
}

#[test]
fn publishes_for_which_thousands_of_filters_are_tried_wait_for_the_turns_of_others() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let subscriber = rig.connect(ConnectFields::new(VERSION, "subscriber"));
    for number in 0..FILTERS {
        subscribe_to(&mut rig, subscriber, &branching(number), QoS::AtMostOnce);
    }
    let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
    let other = rig.connect(ConnectFields::new(VERSION, "other"));
    let topics: Vec<String> = (0..400)
        .map(|number| format!("{}z{number}", "l/".repeat(LEVELS as usize)))
        .collect();
    let bytes = publish_all(&topics);
    rig.engine.begin(rig.now);
    rig.engine.receive(publisher, &bytes, true);
    let left = |rig: &Rig| {
        let conn = rig.engine.clients.conn(publisher).expect("it is open");
        (conn.unparsed.bytes.len(), conn.pauses.has(Pause::Work))
    };
    assert!(left(&rig).1, "it is paused");
    assert!(left(&rig).0 > bytes.len() * 9 / 10, "{:?}", left(&rig));
    // Others are not.
    rig.publish(other, VERSION, 1, "x");
    assert_eq!(rig.packets(other, VERSION, 1), ["puback 1"]);
    let mut turns = 0;
    while left(&rig).0 > 0 {
        rig.pass_time(1);
        turns += 1;
        assert!(turns < topics.len(), "{:?}", left(&rig));
    }
    assert!(turns > 20, "{turns} turns");
}

/// A publisher that others' filters make costly keeps what it has sent while it is paused. Ten thousand may do so.
#[test]
fn connections_that_are_paused_for_their_work_keep_little_each() {
    const PUBLISHERS: usize = 20;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let subscriber = rig.connect(ConnectFields::new(VERSION, "subscriber"));
    for number in 0..FILTERS {
        subscribe_to(&mut rig, subscriber, &branching(number), QoS::AtMostOnce);
    }
    let publishers: Vec<ConnKey> = (0..PUBLISHERS)
        .map(|number| rig.connect(ConnectFields::new(VERSION, &format!("publisher{number}"))))
        .collect();
    let mut held = 0;
    for (number, publisher) in publishers.iter().enumerate() {
        let topics: Vec<String> = (0..2000)
            .map(|topic| format!("{}z{number}-{topic}", "l/".repeat(LEVELS as usize)))
            .collect();
        let bytes = publish_all(&topics);
        assert!(bytes.len() > READ_BYTES);
        rig.receive(*publisher, &bytes[..READ_BYTES]);
        let conn = rig.engine.clients.conn(*publisher).expect("it is open");
        assert!(conn.pauses.has(Pause::Work), "{number}");
        held += conn.unparsed.bytes.capacity();
    }
    // The first one was read before anybody was paused.
    assert!(
        held <= READ_BYTES + (PUBLISHERS - 1) * (64 << 10),
        "{held} bytes"
    );
}

/// Filters that match nothing retained have to be looked up all the same, each among all of it.
#[test]
fn many_filters_are_looked_up_among_the_retained_messages_over_many_turns() {
    const FILTERS: usize = 200;
    for (topics, long) in [(1100, 1), (20, 60_000)] {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Never);
        let publisher = rig.connect(ConnectFields::new(VERSION, "retains"));
        for number in 0..topics {
            let topic = format!("{}{number}/b", "a".repeat(long));
            rig.publish_to(&topic, true, publisher, VERSION, 1, "x");
            rig.packets(publisher, VERSION, 1);
        }
        let key = rig.connect(ConnectFields::new(VERSION, "subscriber"));
        let filters: Vec<String> = (0..FILTERS).map(|number| format!("+/c{number}")).collect();
        let options = SubscriptionOptions::new(QoS::AtMostOnce);
        let all: Vec<Subscription<'_>> = filters
            .iter()
            .map(|filter| Subscription { filter, options })
            .collect();
        rig.feed(key, |out| {
            encode::subscribe(out, VERSION, PacketId::FIRST, &[], &all)
        });
        let left = |rig: &Rig| {
            let session = rig.engine.clients.session_key(key).expect("it is there");
            let session = rig.engine.clients.session(session).expect("it is there");
            session.extras.retained.len()
        };
        rig.packets(key, VERSION, 1);
        let (mut before, mut most, mut turns) = (left(&rig).min(FILTERS), 0, 0);
        while before > 0 {
            rig.turn();
            most = most.max(before - left(&rig));
            before = left(&rig);
            turns += 1;
            assert!(turns < 10 * FILTERS, "{before} are left");
        }
        assert!(
            turns > 4 && most <= 32,
            "{turns} turns, {most} in one of them"
        );
    }
}

#[test]
fn a_usual_publisher_is_not_paused_for_its_work() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let subscriber = rig.connect(ConnectFields::new(VERSION, "subscriber"));
    for filter in ["#", "+/telemetry", "devices/+/telemetry/#", "a/b/c"] {
        subscribe_to(&mut rig, subscriber, filter, QoS::AtMostOnce);
    }
    let publisher = rig.connect(ConnectFields::new(VERSION, "publisher"));
    let topics: Vec<String> = (0..2000)
        .map(|number| format!("devices/{number}/telemetry/x"))
        .collect();
    rig.engine.begin(rig.now);
    rig.engine.receive(publisher, &publish_all(&topics), true);
    let conn = rig.engine.clients.conn(publisher).expect("it is open");
    assert!(conn.unparsed.bytes.is_empty() && !conn.pauses.is_paused());
}

#[test]
fn the_receivers_of_very_many_topics_are_not_all_kept() {
    const IDS: usize = 1 << 18;
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let subscriber = rig.connect(ConnectFields::new(VERSION, "subscriber"));
    subscribe_to(&mut rig, subscriber, "#", QoS::AtMostOnce);
    let session = rig
        .engine
        .clients
        .session_key(subscriber)
        .expect("it is connected");
    let routing = &mut rig.engine.routing;
    for number in 0..100 {
        let id = routing.intern(&format!("topic/{number}"), &rig.log);
        let mut effective = EffectiveOptions::of(std::iter::empty());
        effective.ids = Some(vec![1; IDS].into());
        let target = Target {
            session,
            conn: subscriber,
            effective,
        };
        let found = Matches {
            targets: vec![target],
            ..Matches::default()
        };
        let found = routing.keep_matches(id, found, 0);
        assert!(found.is_wanted());
    }
    assert!(
        routing.kept_bytes() <= 64 << 20,
        "{} bytes",
        routing.kept_bytes()
    );
    // A topic whose receivers are not kept is matched again.
    let id = routing.intern("topic/0", &rig.log);
    let clients = &rig.engine.clients;
    let found = matches(routing, id, |key| clients.session(key), &rig.engine.groups);
    assert_eq!(found.expect("few filters").targets.len(), 1);
}

#[test]
fn large_sessions_whose_tenant_has_had_very_much_stored_wait_and_small_ones_do_not() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let lasting = |client_id| {
        let mut fields = ConnectFields::new(Version::V311, client_id);
        fields.clean_start = false;
        fields
    };
    let large = rig.connect(lasting("large"));
    let small = rig.connect(lasting("small"));
    for number in 0..100 {
        subscribe_to(&mut rig, large, &format!("a/{number}"), QoS::AtMostOnce);
    }
    let ask = |rig: &mut Rig, key: ConnKey, filter: &str| {
        let options = SubscriptionOptions::new(QoS::AtLeastOnce);
        let one = [Subscription { filter, options }];
        rig.feed(key, |out| {
            encode::subscribe(out, Version::V311, PacketId::FIRST, &[], &one)
        });
        rig.turn();
    };
    let now_ms = rig.now.mono_ms;
    rig.engine.quotas.note_stored_bytes(None, 300 << 20, now_ms);
    ask(&mut rig, large, "a/0");
    ask(&mut rig, small, "a/0");
    assert_eq!(rig.packets(small, Version::V311, 1), ["suback"]);
    assert_eq!(rig.sent(large, Version::V311), Vec::<String>::new());
    // Nor does the large one have itself stored by connecting again.
    let again = rig.engine.open(crate::peer::Peer::nobody());
    rig.feed(again, |out| encode::connect(out, &lasting("large")));
    assert_eq!(rig.packets(again, Version::V311, 1), ["connack false"]);
    assert!(
        rig.engine.clients.session_of(again).is_none(),
        "it is refused"
    );
    rig.connect(lasting("small"));
    rig.pass_time(20_000);
    assert_eq!(rig.packets(large, Version::V311, 1), ["suback"]);
}

/// A client whose session takes some 12 KB each time that it is stored.
fn with_long_filters(rig: &mut Rig) -> ConnKey {
    let mut fields = ConnectFields::new(Version::V311, "pipelining");
    fields.clean_start = false;
    let key = rig.connect(fields);
    let filters: Vec<String> = (0..10)
        .map(|number| format!("{number}/{}", "f".repeat(1000)))
        .collect();
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let all: Vec<Subscription<'_>> = filters
        .iter()
        .map(|filter| Subscription { filter, options })
        .collect();
    rig.feed(key, |out| {
        encode::subscribe(out, Version::V311, PacketId::FIRST, &[], &all);
    });
    assert_eq!(rig.packets(key, Version::V311, 1), ["suback"]);
    rig.pass_time(tick::CHECKPOINT_MS);
    key
}

/// Sends pairs of SUBSCRIBE and UNSUBSCRIBE at once.
fn change_often(rig: &mut Rig, key: ConnKey, pairs: usize) {
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    let filter = "t/new";
    rig.feed(key, |out| {
        for _ in 0..pairs {
            let one = [Subscription { filter, options }];
            encode::subscribe(out, Version::V311, PacketId::FIRST, &[], &one);
            encode::unsubscribe(out, Version::V311, PacketId::FIRST, &[], &[filter]);
        }
    });
}

#[test]
fn a_session_of_which_much_was_stored_is_stored_once_for_each_sync() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = with_long_filters(&mut rig);
    let other = rig.connect(ConnectFields::new(Version::V311, "other"));
    let internal = rig.log.partitions()[0].clone();
    let before = internal.next_offset();
    rig.state_gate.set(Sync::Hold);
    change_often(&mut rig, key, 50);
    for _ in 0..5 {
        rig.turn();
    }
    let stored = internal.next_offset().0 - before.0;
    // Others do not wait.
    subscribe_to(&mut rig, other, "t", QoS::AtMostOnce);
    rig.state_gate.set(Sync::Pass);
    assert_eq!(stored, 2, "one session with its cursor");
    assert_eq!(rig.packets(key, Version::V311, 100).len(), 100);
    assert_eq!(internal.next_offset().0 - before.0, 200);
}

#[test]
fn a_small_session_that_is_stored_often_waits_for_its_tenant() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let key = with_long_filters(&mut rig);
    let now_ms = rig.now.mono_ms;
    rig.engine.quotas.note_stored_bytes(None, 300 << 20, now_ms);
    change_often(&mut rig, key, 2);
    let mut answers = rig.packets(key, Version::V311, 1);
    for checkpoint in 1..4 {
        for _ in 0..5 {
            rig.turn();
            answers.extend(rig.sent(key, Version::V311));
        }
        assert_eq!(answers.len(), checkpoint, "{answers:?}");
        rig.pass_time(tick::CHECKPOINT_MS);
        answers.extend(rig.packets(key, Version::V311, 1));
    }
    assert_eq!(answers.len(), 4);
}

#[test]
fn topics_of_a_producer_are_weighed_in_parts_that_others_do_not_wait_for() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let subscriber = rig.connect(ConnectFields::new(VERSION, "subscriber"));
    for number in 0..FILTERS {
        subscribe_to(&mut rig, subscriber, &branching(number), QoS::AtMostOnce);
    }
    let weigh = |rig: &mut Rig, topics: &[String]| {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        let topics = topics.to_vec();
        let is_costly = rig.engine.answer_weigh(WeighRequest { topics, answer });
        (answered.try_recv().expect("an answer"), is_costly)
    };
    let topics: Vec<String> = (0..100)
        .map(|number| format!("{}z{number}", "l/".repeat(LEVELS as usize)))
        .collect();
    let (works, is_costly) = weigh(&mut rig, &topics);
    assert!(is_costly && works.len() < 10, "{works:?}");
    assert!(works.iter().all(|work| *work > FILTERS), "{works:?}");
    // What was found is kept, and weighs the same.
    let (again, _) = weigh(&mut rig, &topics);
    assert_eq!(again[..works.len()], works);
    let plain: Vec<String> = (0..100).map(|number| format!("d/{number}")).collect();
    let (works, is_costly) = weigh(&mut rig, &plain);
    assert!(!is_costly && works.len() == 100 && works.iter().all(|work| *work < 10));
}
