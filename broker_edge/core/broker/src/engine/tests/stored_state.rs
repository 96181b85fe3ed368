//! Waiting for the internal partition: no client is told of state before it is durable, and none waits once it never
//! will be.

use headwater_log::PartitionState;

use crate::state::Change;

use super::qos2::{LASTS, answer, lasting, publish};
use super::world::small;
use super::*;

const VERSION: Version = Version::V5;

/// One client of each kind that waits.
struct Waiting {
    /// Its QoS 2 packet id is released.
    publisher: ConnKey,
    /// A QoS 2 message is on its way to it.
    subscriber: ConnKey,
    /// Has sent a SUBSCRIBE.
    subscribing: ConnKey,
    /// Has sent a CONNECT.
    newcomer: ConnKey,
}

impl Waiting {
    fn keys(&self) -> [ConnKey; 4] {
        [
            self.publisher,
            self.subscriber,
            self.subscribing,
            self.newcomer,
        ]
    }
}

pub(super) fn subscribe(rig: &mut Rig, key: ConnKey, filter: &str) {
    let one = [Subscription {
        filter,
        options: SubscriptionOptions::new(QoS::ExactlyOnce),
    }];
    rig.feed(key, |out| {
        encode::subscribe(out, VERSION, PacketId::FIRST, &[], &one);
    });
}

pub(super) fn assert_next(rig: &mut Rig, key: ConnKey, packet: &str) {
    let packets = rig.packets(key, VERSION, 1);
    assert!(packets[0].starts_with(packet), "{packets:?}");
}

/// Publishes up to the PUBREC.
fn publish_received(rig: &mut Rig, key: ConnKey) {
    publish(rig, key, VERSION, 1, "v", "x");
    assert_next(rig, key, "Pubrec");
}

/// Makes all of them wait while the syncs of the internal partition are held.
fn waiting_for_state(rig: &mut Rig) -> Waiting {
    let publisher = rig.connect(lasting(VERSION, "publisher", &LASTS));
    let subscriber = rig.connect(lasting(VERSION, "subscriber", &LASTS));
    let subscribing = rig.connect(lasting(VERSION, "subscribing", &LASTS));
    let plain = rig.connect(ConnectFields::new(VERSION, "plain"));
    subscribe(rig, subscriber, "t");
    assert_next(rig, subscriber, "suback");
    // Once without waiting: a commit that is durable already does not count for a later one.
    publish_received(rig, publisher);
    answer(rig, publisher, VERSION, 1, encode::pubrel);
    assert_next(rig, publisher, "Pubcomp");
    publish_received(rig, publisher);

    rig.state_gate.set(Sync::Hold);
    answer(rig, publisher, VERSION, 1, encode::pubrel);
    subscribe(rig, subscribing, "u");
    let newcomer = rig.engine.open(crate::peer::Peer::nobody());
    let fields = lasting(VERSION, "newcomer", &LASTS);
    rig.feed(newcomer, |out| encode::connect(out, &fields));
    // A client without a stored session does not wait.
    publish(rig, plain, VERSION, 1, "t", "x");
    assert_next(rig, plain, "Pubrec");
    Waiting {
        publisher,
        subscriber,
        subscribing,
        newcomer,
    }
}

#[test]
fn nothing_that_rests_on_stored_state_is_sent_before_its_sync_returned() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let waiting = waiting_for_state(&mut rig);
    let mut early = Vec::new();
    for _ in 0..3 {
        rig.turn();
        for key in waiting.keys() {
            early.extend(rig.sent(key, VERSION));
        }
        let _ = rig.moved.recv_timeout(Duration::from_millis(50));
    }
    // Before anything may fail: a log whose syncs are held does not close.
    rig.state_gate.set(Sync::Pass);
    assert_eq!(early, [""; 0]);
    assert_next(&mut rig, waiting.publisher, "Pubcomp");
    assert_next(&mut rig, waiting.subscriber, "publish x");
    assert_next(&mut rig, waiting.subscribing, "suback");
    assert_next(&mut rig, waiting.newcomer, "connack");
}

#[test]
fn who_waits_for_state_that_cannot_become_durable_loses_its_connection() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let waiting = waiting_for_state(&mut rig);
    rig.turn();
    let internal = rig.log.partitions()[0].clone();
    rig.state_gate.set(Sync::Fail);
    while !matches!(internal.state(), PartitionState::Stopped(_)) {
        rig.moved.recv_timeout(DEADLINE).expect("the log stops");
    }
    rig.turn();
    let closed = rig.engine.take_closed();
    for key in waiting.keys() {
        assert!(closed.contains(&key), "{key:?} of {closed:?}");
        let told = rig.sent(key, VERSION);
        if key == waiting.newcomer {
            assert_eq!(told, [""; 0], "a CONNACK has to be first");
        } else {
            assert_eq!(told, ["disconnect UnspecifiedError"]);
        }
    }
    // Clients that need no state continue.
    let plain = rig.connect(ConnectFields::new(VERSION, "another"));
    rig.publish(plain, VERSION, 1, "x");
    assert_eq!(rig.packets(plain, VERSION, 1), ["puback 1"]);
}

/// Waits until the internal partition accepts nothing any more, and lets the engine notice.
fn stop_state(rig: &mut Rig) {
    let internal = rig.log.partitions()[0].clone();
    rig.state_gate.set(Sync::Fail);
    // Nothing may be in progress.
    let _ = rig.state.put("something", b"else");
    while !matches!(internal.state(), PartitionState::Stopped(_)) {
        rig.moved.recv_timeout(DEADLINE).expect("the log stops");
    }
    rig.turn();
}

/// The two kinds of waiting: for the commit of a release, and for the offset of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Release,
    Subscription,
}

const KINDS: [Kind; 2] = [Kind::Release, Kind::Subscription];

/// A client with nothing in progress, which could ask for either.
pub(super) fn idle(rig: &mut Rig, client_id: &str) -> ConnKey {
    let key = rig.connect(lasting(VERSION, client_id, &LASTS));
    publish_received(rig, key);
    key
}

fn ask(rig: &mut Rig, key: ConnKey, kind: Kind) {
    match kind {
        Kind::Release => answer(rig, key, VERSION, 1, encode::pubrel),
        Kind::Subscription => subscribe(rig, key, "u"),
    }
}

fn answer_to(kind: Kind) -> &'static str {
    match kind {
        Kind::Release => "Pubcomp",
        Kind::Subscription => "suback",
    }
}

#[test]
fn an_answer_that_waits_for_state_does_not_leave_with_what_settles_on_the_same_connection() {
    for kind in KINDS {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let key = idle(&mut rig, "c");
        rig.publish_to("v", false, key, VERSION, 5, "x");
        assert_eq!(rig.packets(key, VERSION, 1), ["puback 5"]);
        rig.state_gate.set(Sync::Hold);
        ask(&mut rig, key, kind);
        rig.turn();
        rig.publish_to("v", false, key, VERSION, 6, "x");
        let telemetry = rig.log.by_name("telemetry-0").expect("there by default");
        let telemetry = telemetry.clone();
        rig.turn();
        while telemetry.high_watermark() < telemetry.next_offset() {
            rig.wait_for_disk();
        }
        rig.turn();
        let early = rig.sent(key, VERSION);
        // Before anything may fail: a log whose syncs are held does not close.
        rig.state_gate.set(Sync::Pass);
        assert_eq!(early, [""; 0], "{kind:?}");
        let packets = rig.packets(key, VERSION, 2);
        assert!(packets[0].starts_with(answer_to(kind)), "{packets:?}");
        assert_eq!(packets[1], "puback 6");
    }
}

#[test]
fn a_round_counts_when_it_is_durable_itself_and_not_with_the_one_before() {
    let dir = dir();
    // No other file of the partition is synced at that time.
    let mut rig = Rig::open_with(LogConfig {
        maintain_every: None,
        ..LogConfig::new(dir.path())
    });
    let internal = rig.log.partitions()[0].clone();
    let keys = ["one", "two"].map(|client_id| idle(&mut rig, client_id));
    rig.state_gate.set(Sync::Hold);
    let mut ends = Vec::new();
    for key in keys {
        answer(&mut rig, key, VERSION, 1, encode::pubrel);
        rig.turn();
        ends.push(internal.next_offset());
        // The first is on its way alone before the second is appended.
        rig.state_gate.wait_until_held();
    }
    rig.state_gate.set(Sync::Once);
    while internal.high_watermark() < ends[0] {
        rig.moved.recv_timeout(DEADLINE).expect("the log moves");
    }
    let durable = internal.high_watermark();
    rig.turn();
    let told = keys.map(|key| rig.sent(key, VERSION));
    rig.state_gate.set(Sync::Pass);
    assert!(durable < ends[1], "the second is held");
    assert!(told[0][0].starts_with("Pubcomp"), "{told:?}");
    assert_eq!(told[1], [""; 0]);
    assert_next(&mut rig, keys[1], "Pubcomp");
}

#[test]
fn a_session_that_ends_with_its_connection_waits_for_no_state() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let lasting = idle(&mut rig, "lasting");
    let plain = rig.connect(ConnectFields::new(VERSION, "plain"));
    publish_received(&mut rig, plain);
    rig.state_gate.set(Sync::Hold);
    answer(&mut rig, lasting, VERSION, 1, encode::pubrel);
    rig.turn();
    answer(&mut rig, plain, VERSION, 1, encode::pubrel);
    rig.turn();
    let (early, told) = (rig.sent(lasting, VERSION), rig.sent(plain, VERSION));
    rig.state_gate.set(Sync::Pass);
    assert_eq!(early, [""; 0]);
    assert!(
        told.len() == 1 && told[0].starts_with("Pubcomp"),
        "{told:?}"
    );
    assert_next(&mut rig, lasting, "Pubcomp");
}

#[test]
fn state_that_becomes_durable_makes_a_turn_due_for_whoever_waits_for_it_alone() {
    for kind in KINDS {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let internal = rig.log.partitions()[0].clone();
        let key = idle(&mut rig, "c");
        rig.turn();
        assert!(!rig.engine.is_behind_log(), "{kind:?}: nobody waits");
        rig.state_gate.set(Sync::Hold);
        ask(&mut rig, key, kind);
        rig.turn();
        let early = rig.engine.is_behind_log();
        rig.state_gate.set(Sync::Pass);
        assert!(!early, "{kind:?}: it is not durable");
        while internal.high_watermark() < internal.next_offset() {
            rig.wait_for_disk();
        }
        assert!(rig.engine.is_behind_log(), "{kind:?}");
        rig.turn();
        let packets = rig.sent(key, VERSION);
        assert!(packets[0].starts_with(answer_to(kind)), "{packets:?}");
        assert!(!rig.engine.is_behind_log(), "{kind:?}: nobody waits");
    }
}

#[test]
fn whoever_waits_alone_for_state_that_cannot_become_durable_loses_its_connection_and_nobody_else() {
    for kind in KINDS {
        let dir = dir();
        let mut rig = Rig::open(dir.path(), SyncMode::Always);
        let key = idle(&mut rig, "c");
        let other = idle(&mut rig, "other");
        rig.state_gate.set(Sync::Hold);
        ask(&mut rig, key, kind);
        rig.turn();
        stop_state(&mut rig);
        assert_eq!(rig.engine.take_closed(), [key], "{kind:?}");
        assert_eq!(
            rig.sent(key, VERSION),
            ["disconnect UnspecifiedError"],
            "{kind:?}"
        );
        assert_eq!(rig.sent(other, VERSION), [""; 0], "{kind:?}");
    }
}

#[test]
fn who_changes_state_that_can_be_stored_no_more_loses_its_connection_and_nobody_else() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let keys = ["one", "two", "three"].map(|client_id| idle(&mut rig, client_id));
    stop_state(&mut rig);
    assert_eq!(rig.engine.take_closed(), [], "nobody waits");
    for key in &keys[..2] {
        answer(&mut rig, *key, VERSION, 1, encode::pubrel);
    }
    rig.turn();
    let mut closed = rig.engine.take_closed();
    closed.sort_unstable();
    assert_eq!(closed, keys[..2]);
    for key in &keys[..2] {
        let told = rig.sent(*key, VERSION);
        assert_eq!(told, ["disconnect UnspecifiedError"], "no PUBCOMP");
    }
    // The commit has ended: nothing is left to retry in each turn.
    rig.turn();
    assert_eq!(rig.engine.store.changes().unsettled(), 0);
    let sessions = rig.engine.clients.sessions();
    assert!(
        sessions
            .into_iter()
            .all(|(_, session)| !session.in_state_commit)
    );
    // Packets that need no state continue, even for a client with stored state.
    rig.publish_to("v", false, keys[2], VERSION, 5, "x");
    assert_eq!(rig.packets(keys[2], VERSION, 1), ["puback 5"]);
}

#[test]
fn state_that_finds_no_space_is_stored_when_there_is_some() {
    let dir = dir();
    let mut rig = Rig::open_with(small(dir.path()));
    let key = rig.connect(lasting(VERSION, "p", &LASTS));
    publish_received(&mut rig, key);
    let internal = rig.log.partitions()[0].clone();
    rig.state_gate.is_full.store(true, Ordering::Relaxed);
    // The internal partition has 8 MiB preallocated, and once more for the next segment.
    let filling = vec![7; 64 << 10];
    while internal.state() != PartitionState::Full {
        let change = Change {
            key: "filling",
            value: Some(&filling),
        };
        // The queue may be full before the partition is.
        if rig.state.write(&[change]).is_err() {
            let _ = rig.moved.recv_timeout(Duration::from_millis(20));
        }
    }
    answer(&mut rig, key, VERSION, 1, encode::pubrel);
    for _ in 0..3 {
        rig.turn();
        assert_eq!(rig.sent(key, VERSION), [""; 0]);
    }
    assert!(!rig.engine.take_closed().contains(&key));
    rig.state_gate.is_full.store(false, Ordering::Relaxed);
    while internal.state() == PartitionState::Full {
        rig.moved.recv_timeout(DEADLINE).expect("there is space");
    }
    assert_next(&mut rig, key, "Pubcomp");
}

#[test]
fn what_changes_in_a_turn_is_one_round_however_many_sessions_it_is() {
    let dir = dir();
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    // More than fits into one append.
    let names: Vec<String> = (0..600).map(|n| format!("c{n}")).collect();
    let mut keys = Vec::new();
    for name in &names {
        let key = rig.engine.open(crate::peer::Peer::nobody());
        let fields = lasting(VERSION, name, &LASTS);
        rig.feed(key, |out| encode::connect(out, &fields));
        keys.push(key);
    }
    for key in keys {
        assert_next(&mut rig, key, "connack");
    }
    let sessions: Vec<SessionKey> = rig.engine.clients.session_keys();
    assert_eq!(sessions.len(), names.len());
    let engine = &mut rig.engine;
    assert_eq!(engine.store.changes().unsettled(), 0);
    for key in &sessions {
        let session = engine.clients.session_mut(*key).expect("it is there");
        engine.store.change(*key, session);
    }
    lend!(engine => Checkpointing).write_state_commit();
    // One commit, so that none of them continues before all of it is durable.
    assert_eq!(engine.store.changes().unsettled(), 1);
}
