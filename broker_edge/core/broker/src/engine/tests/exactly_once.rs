//! QoS 2 in both directions: each message once in the log and once at the subscriber, through reconnects and restarts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, TestRunner};

use crate::engine::session::window::InflightState;

use super::peer::Peer;
use super::world::World;
use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(u8),
    PublishQos1,
    Turn,
    /// The publisher or the subscriber handles what it was sent.
    Work(bool),
    Lose(bool),
    Connect(bool),
    Kill,
    /// Another engine on the open log, after a clean stop of the first or without.
    Remake(bool),
    Wait,
    Second,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1_u8..4).prop_map(Step::Publish),
        2 => Just(Step::PublishQos1),
        10 => Just(Step::Turn),
        10 => any::<bool>().prop_map(Step::Work),
        2 => any::<bool>().prop_map(Step::Lose),
        4 => any::<bool>().prop_map(Step::Connect),
        1 => Just(Step::Kill),
        1 => any::<bool>().prop_map(Step::Remake),
        4 => Just(Step::Wait),
        1 => Just(Step::Second),
    ];
    prop::collection::vec(step, 30..150)
}

fn each_message_arrives_once(version: Version, replays: bool, steps: &[Step]) {
    let mut world = World::new();
    let mut publisher = Peer::new("publisher", version);
    let mut subscriber = Peer::new("subscriber", version);
    publisher.connect(&mut world.rig);
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut publisher, &mut subscriber]);
    let mut count = 0;
    if replays {
        // Enough records that the subscription replays for a while.
        for _ in 0..40 {
            publisher.publish(&mut world.rig, format!("m{count}"));
            count += 1;
        }
        world.settle(&mut [&mut publisher]);
    }
    world.rig.engine.env.settings.mqtt.max_inflight = 7;
    subscriber.subscribe(
        &mut world.rig,
        QoS::ExactlyOnce,
        replays.then_some("earliest"),
    );
    if !replays {
        world.settle(&mut [&mut publisher, &mut subscriber]);
    }
    for step in steps {
        let pick = |of_publisher: bool| if of_publisher { 0 } else { 1 };
        let mut peers = [&mut publisher, &mut subscriber];
        match *step {
            Step::Publish(messages) => {
                for _ in 0..messages {
                    peers[0].publish(&mut world.rig, format!("m{count}"));
                    count += 1;
                }
            }
            Step::PublishQos1 => {
                peers[0].publish_qos1(&mut world.rig, &format!("n{count}"));
                count += 1;
            }
            Step::Turn => world.rig.turn(),
            Step::Work(which) => {
                peers[pick(which)].work(&mut world.rig);
            }
            // A client that never got its SUBACK would have to subscribe again.
            Step::Lose(_) | Step::Connect(_) | Step::Kill | Step::Remake(_)
                if !peers[1].subscribed =>
            {
                while !peers[1].subscribed {
                    world.rig.turn();
                    peers[1].work(&mut world.rig);
                    let _ = world.rig.moved.recv_timeout(Duration::from_millis(2));
                }
            }
            Step::Lose(which) => peers[pick(which)].lose(&mut world.rig),
            Step::Connect(which) => {
                let peer = &mut peers[pick(which)];
                // A client that connects again takes over its own session.
                if let Some(key) = peer.key.take() {
                    world.rig.engine.remove(key);
                }
                peer.connect(&mut world.rig);
            }
            Step::Kill => world.kill(&mut peers),
            Step::Remake(leaves) => world = world.remade(leaves, &mut peers, |_| {}),
            Step::Wait => {
                let _ = world.rig.moved.recv_timeout(Duration::from_millis(2));
            }
            Step::Second => world.rig.pass_time(tick::CHECKPOINT_MS),
        }
    }
    for peer in [&mut publisher, &mut subscriber] {
        peer.lose(&mut world.rig);
        peer.connect(&mut world.rig);
    }
    world.settle(&mut [&mut publisher, &mut subscriber]);
    let (log, qos1): (Vec<String>, Vec<String>) = world
        .log()
        .into_iter()
        .partition(|text| text.starts_with('m'));
    let got_qos1: BTreeSet<&String> = subscriber.got_qos1.iter().collect();
    assert!(
        qos1.iter().all(|text| got_qos1.contains(text)),
        "QoS 1 arrives at least once"
    );
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for text in &log {
        *counts.entry(text).or_default() += 1;
    }
    let repeated: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(
        repeated.is_empty(),
        "more than once in the log: {repeated:?}"
    );
    let completed: BTreeSet<&String> = publisher.completed.iter().collect();
    let logged: BTreeSet<&String> = log.iter().collect();
    assert_eq!(
        completed, logged,
        "what was completed is what is in the log"
    );
    assert_eq!(
        subscriber.got, log,
        "the subscriber got each once and in order"
    );
    world.rig.crash();
}

#[test]
fn exactly_once_in_both_directions_through_reconnects_kills_and_other_engines() {
    for (version, replays) in [
        (Version::V311, false),
        (Version::V5, false),
        (Version::V5, true),
    ] {
        let mut runner = TestRunner::new(RunnerConfig {
            cases: std::env::var("QOS2_CASES").map_or(8, |text| text.parse().expect("a number")),
            failure_persistence: None,
            ..RunnerConfig::default()
        });
        runner
            .run(&steps(), |steps| {
                each_message_arrives_once(version, replays, &steps);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Deliveries that were given packet ids and not sent must not wait for room that they take themselves.
#[test]
fn a_client_that_comes_back_with_a_smaller_window_gets_what_was_assigned_in_the_larger_one() {
    let mut world = World::new();
    let mut publisher = Peer::new("publisher", Version::V5);
    let mut subscriber = Peer::new("subscriber", Version::V5);
    publisher.connect(&mut world.rig);
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut publisher, &mut subscriber]);
    for number in 0..40 {
        publisher.publish(&mut world.rig, format!("m{number}"));
    }
    world.settle(&mut [&mut publisher]);
    subscriber.subscribe(&mut world.rig, QoS::ExactlyOnce, Some("earliest"));
    let unsent = |world: &World| {
        let sessions = world.rig.engine.clients.sessions();
        sessions
            .flat_map(|(_, session)| session.window.unacked_from(0))
            .filter(|(_, _, flight)| *flight == InflightState::Assigned)
            .count()
    };
    // The packet ids of a turn become durable in a later turn, so none of these was sent.
    while unsent(&world) <= 7 {
        world.rig.turn();
        if unsent(&world) <= 7 && !subscriber.work(&mut world.rig) {
            let _ = world.rig.moved.recv_timeout(Duration::from_millis(2));
        }
    }
    subscriber.lose(&mut world.rig);
    world.rig.engine.env.settings.mqtt.max_inflight = 7;
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut publisher, &mut subscriber]);
    assert_eq!(subscriber.got, world.log());
    world.rig.crash();
}

/// Forgetting what a replay delivered and storing that it has finished are one write: a crash may come after any write.
#[test]
fn a_replay_that_is_over_is_not_delivered_again_after_a_kill() {
    let mut world = World::new();
    let mut publisher = Peer::new("publisher", Version::V5);
    let mut subscriber = Peer::new("subscriber", Version::V5);
    publisher.connect(&mut world.rig);
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut publisher, &mut subscriber]);
    for number in 0..5 {
        publisher.publish(&mut world.rig, format!("m{number}"));
    }
    world.settle(&mut [&mut publisher]);
    subscriber.subscribe(&mut world.rig, QoS::ExactlyOnce, Some("earliest"));
    world.settle(&mut [&mut publisher, &mut subscriber]);
    // Its delivery stores the session's deliveries again, before the next checkpoint of the cursors.
    publisher.publish(&mut world.rig, "m5".to_owned());
    world.settle(&mut [&mut publisher, &mut subscriber]);
    world.kill(&mut [&mut publisher, &mut subscriber]);
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut subscriber]);
    assert_eq!(subscriber.got, ["m0", "m1", "m2", "m3", "m4", "m5"]);
    world.rig.crash();
}

/// A refusal settles the appends before it; records that the partition abandoned must not count as settled.
#[test]
fn a_publish_that_a_stopped_partition_gave_up_is_refused_when_it_is_sent_again() {
    let dir = dir();
    let version = Version::V5;
    let mut rig = Rig::open(dir.path(), SyncMode::Always);
    let others = rig.clients(version, MANY);
    let mut peer = Peer::new("p", version);
    peer.connect(&mut rig);
    let first = peer.key.expect("connected");
    rig.packets(first, version, 1);
    peer.connected = true;
    rig.gate.set(Sync::Fail);
    for key in &others {
        rig.publish(*key, version, 1, "x");
    }
    peer.publish(&mut rig, "one".to_owned());
    assert_eq!(
        rig.packets(first, version, 1),
        ["disconnect UnspecifiedError"]
    );
    rig.engine.remove(first);
    let idle = rig.connect(ConnectFields::new(version, "idle"));
    rig.publish(idle, version, 1, "later");
    assert_eq!(rig.packets(idle, version, 1), ["refused UnspecifiedError"]);
    peer.connect(&mut rig);
    let second = peer.key.expect("connected");
    rig.packets(second, version, 1);
    peer.send_flight(&mut rig, 0, true);
    let answer = rig.packets(second, version, 1);
    assert!(answer[0].contains("UnspecifiedError"), "{answer:?}");
}
