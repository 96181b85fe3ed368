//! QoS 2 both ways: each message once in the log and once at the subscriber, whatever connections and brokers do.
//!
//! The clients here keep their side of the protocol across connections, as the standard asks for; a killed broker is a
//! new one on a copy of the files as they were at that moment, whatever its writers had got to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use headwater_mqtt::packet::ack::Ack;
use proptest::prelude::*;
use proptest::test_runner::{Config as RunnerConfig, TestRunner};

use super::*;

/// A client that remembers what the protocol has it remember.
pub(super) struct Peer {
    client_id: &'static str,
    version: Version,
    pub(super) key: Option<ConnKey>,
    pub(super) connected: bool,
    /// Its SUBACK has come.
    subscribed: bool,
    next_id: u16,
    /// Publishes in flight in order: packet id, text, and whether the PUBREC has come.
    pub(super) flights: Vec<(u16, String, bool)>,
    /// Packet ids of QoS 2 deliveries that are not released.
    held: BTreeSet<u16>,
    /// What the application got with QoS 2, and with less.
    pub(super) got: Vec<String>,
    got_qos1: Vec<String>,
    pub(super) completed: Vec<String>,
}

impl Peer {
    pub(super) fn new(client_id: &'static str, version: Version) -> Self {
        Self {
            client_id,
            version,
            key: None,
            connected: false,
            subscribed: false,
            next_id: 0,
            flights: Vec::new(),
            held: BTreeSet::new(),
            got: Vec::new(),
            got_qos1: Vec::new(),
            completed: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, rig: &mut Rig) {
        let key = rig.engine.open(crate::peer::Peer::nobody());
        let lasts = [Property::SessionExpiryInterval(3600)];
        let mut fields = ConnectFields::new(self.version, self.client_id);
        fields.clean_start = false;
        if self.version.is_v5() {
            fields.properties = &lasts;
        }
        rig.feed(key, |out| encode::connect(out, &fields));
        self.key = Some(key);
        self.connected = false;
    }

    /// The connection is gone without a word.
    pub(super) fn lose(&mut self, rig: &mut Rig) {
        if let Some(key) = self.key.take() {
            rig.engine.remove(key);
        }
        self.connected = false;
    }

    pub(super) fn subscribe(&mut self, rig: &mut Rig, qos: QoS, from: Option<&str>) {
        let (key, version) = (self.key.expect("connected"), self.version);
        let from = from.map(|value| Property::UserProperty {
            key: "stream-offset",
            value,
        });
        let properties: Vec<Property<'_>> = from.into_iter().collect();
        let options = SubscriptionOptions::new(qos);
        let one = [Subscription {
            filter: "t",
            options,
        }];
        rig.feed(key, |out| {
            encode::subscribe(out, version, PacketId::FIRST, &properties, &one);
        });
    }

    pub(super) fn publish(&mut self, rig: &mut Rig, text: String) {
        self.next_id = self.next_id % 50 + 1;
        if self.flights.iter().any(|(id, _, _)| *id == self.next_id) {
            return;
        }
        self.flights.push((self.next_id, text, false));
        if self.connected {
            self.send_flight(rig, self.flights.len() - 1, false);
        }
    }

    /// A message that is sent once and never again.
    fn publish_qos1(&mut self, rig: &mut Rig, text: &str) {
        if let (true, Some(key)) = (self.connected, self.key) {
            rig.publish(key, self.version, 1000, text);
        }
    }

    fn send_flight(&self, rig: &mut Rig, at: usize, dup: bool) {
        let (key, version) = (self.key.expect("connected"), self.version);
        let (id, text, released) = &self.flights[at];
        let packet_id = PacketId::new(*id);
        if *released {
            let id = packet_id.expect("not zero");
            rig.feed(key, |out| {
                encode::pubrel(out, version, id, ReasonCode::Success, &[])
            });
            return;
        }
        let fields = PublishFields {
            version,
            dup,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: "t",
            packet_id,
            properties: &[],
            extra: &[],
        };
        rig.feed(key, |out| {
            fields.encode(out, text.as_bytes()).expect("a small packet");
        });
    }

    /// Takes what the broker sent and answers it. Says whether there was anything.
    pub(super) fn work(&mut self, rig: &mut Rig) -> bool {
        let Some(key) = self.key else { return false };
        let bytes = rig.engine.out(key).to_vec();
        rig.engine.written(key, bytes.len());
        if rig.engine.take_closed().contains(&key) {
            panic!("{} was closed: {:?}", self.client_id, bytes);
        }
        let mut rest = bytes.as_slice();
        while let Ok(Frame::Whole {
            first_byte,
            header_len,
            total_len,
        }) = frame::next(rest, 1 << 28)
        {
            let packet = decode_from_server(self.version, first_byte, &rest[header_len..total_len])
                .expect("the engine encodes well-formed packets");
            self.take(rig, key, &packet);
            rest = &rest[total_len..];
        }
        !bytes.is_empty()
    }

    fn take(&mut self, rig: &mut Rig, key: ConnKey, packet: &ServerPacket<'_>) {
        let version = self.version;
        let id_of = |ack: &Ack<'_>| {
            assert!(!ack.reason.is_error(), "{ack:?}");
            ack.packet_id
        };
        match packet {
            ServerPacket::Connack(_) => {
                self.connected = true;
                (0..self.flights.len()).for_each(|at| self.send_flight(rig, at, true));
            }
            ServerPacket::Suback(suback) => {
                let codes: Vec<ReasonCode> = suback.codes.iter().collect();
                assert_eq!(codes, [ReasonCode::GrantedQos2], "{suback:?}");
                self.subscribed = true;
            }
            ServerPacket::Pubrec(ack) => {
                let id = id_of(ack);
                for flight in self
                    .flights
                    .iter_mut()
                    .filter(|flight| flight.0 == id.get())
                {
                    flight.2 = true;
                }
                rig.feed(key, |out| {
                    encode::pubrel(out, version, id, ReasonCode::Success, &[])
                });
            }
            ServerPacket::Pubcomp(ack) => {
                let id = ack.packet_id.get();
                if let Some(at) = self.flights.iter().position(|flight| flight.0 == id) {
                    let (_, text, released) = self.flights.remove(at);
                    assert!(released, "completed before it was received");
                    self.completed.push(text);
                }
            }
            ServerPacket::Publish(publish) => {
                let text = String::from_utf8_lossy(publish.payload).into_owned();
                let Some(id) = publish.packet_id else { return };
                if publish.qos == QoS::ExactlyOnce {
                    if self.held.insert(id.get()) {
                        self.got.push(text);
                    }
                    rig.feed(key, |out| {
                        encode::pubrec(out, version, id, ReasonCode::Success, &[])
                    });
                } else {
                    self.got_qos1.push(text);
                    rig.feed(key, |out| {
                        encode::puback(out, version, id, ReasonCode::Success, &[])
                    });
                }
            }
            ServerPacket::Pubrel(ack) => {
                let id = id_of(ack);
                self.held.remove(&id.get());
                rig.feed(key, |out| {
                    encode::pubcomp(out, version, id, ReasonCode::Success, &[])
                });
            }
            _ => {}
        }
    }
}

pub(super) fn small(dir: &Path) -> LogConfig {
    let mut config = LogConfig::new(dir);
    config.segment_bytes = 256 << 10;
    config
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary folder");
    for entry in fs::read_dir(from).expect("the folder of a log") {
        let entry = entry.expect("the folder of a log");
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_all(&path, &copy);
        } else {
            // A spare may be given its name meanwhile.
            let _ = fs::copy(&path, &copy);
        }
    }
}

/// A broker that can be killed.
pub(super) struct World {
    root: tempfile::TempDir,
    lives: usize,
    pub(super) rig: Rig,
}

impl World {
    pub(super) fn new() -> Self {
        let root = dir();
        let rig = Rig::open_with(small(&root.path().join("0")));
        Self {
            root,
            lives: 0,
            rig,
        }
    }

    pub(super) fn with(rig: Rig) -> Self {
        Self {
            root: dir(),
            lives: 0,
            rig,
        }
    }

    /// Ends the broker where it stands and starts another on what its files held.
    pub(super) fn kill(&mut self, peers: &mut [&mut Peer]) {
        for peer in peers {
            peer.key = None;
            peer.connected = false;
        }
        let place = |life: usize| self.root.path().join(life.to_string());
        let (from, to) = (place(self.lives), place(self.lives + 1));
        copy_all(&from, &to);
        self.lives += 1;
        let rig = Rig::open_with(small(&to));
        std::mem::replace(&mut self.rig, rig).crash();
        let _ = fs::remove_dir_all(from);
    }

    /// Turns until the peers have nothing left to say and the broker waits for nothing.
    pub(super) fn settle(&mut self, peers: &mut [&mut Peer]) {
        loop {
            let quiet_at = self.rig.quiet_at();
            self.rig.turn();
            let mut busy = false;
            for peer in peers.iter_mut() {
                busy |= peer.work(&mut self.rig);
            }
            if busy || self.rig.engine.has_more() || self.rig.engine.is_behind_log() {
                continue;
            }
            if quiet_at.is_none() || quiet_at != self.rig.quiet_at() {
                self.rig.wait_for_disk();
                continue;
            }
            let waits = peers
                .iter()
                .any(|peer| peer.key.is_some() && (!peer.connected || !peer.flights.is_empty()))
                || self.rig.engine.sessions.iter().any(|(_, session)| {
                    session.active && (session.has_work() || session.window.front().is_some())
                });
            if !waits {
                return;
            }
            if self.rig.moved.recv_timeout(DEADLINE).is_err() {
                self.tell_who_waits(peers);
            }
        }
    }

    fn tell_who_waits(&self, peers: &[&mut Peer]) -> ! {
        let peers: Vec<String> = peers
            .iter()
            .map(|peer| {
                let Peer {
                    client_id,
                    key,
                    connected,
                    flights,
                    held,
                    ..
                } = &**peer;
                format!(
                    "{client_id} {key:?} connected {connected} flights {flights:?} held {held:?}"
                )
            })
            .collect();
        let sessions: Vec<String> = self
            .rig
            .engine
            .sessions
            .iter()
            .map(|(_, session)| {
                format!(
                    "{} of {:?} active {} has work {} window {:?}",
                    session.client_id,
                    session.conn,
                    session.active,
                    session.has_work(),
                    session.window.front()
                )
            })
            .collect();
        let rounds = &self.rig.engine.rounds;
        panic!("somebody waits for ever: {peers:#?} {sessions:#?} {rounds:?}")
    }

    /// The payloads of the log, in order.
    pub(super) fn log(&self) -> Vec<String> {
        let partition = self
            .rig
            .log
            .by_name("telemetry-0")
            .expect("there by default");
        let mut texts = Vec::new();
        let mut next = partition.log_start();
        while next < partition.high_watermark() {
            for batch in partition.read(next, 1 << 20).expect("nothing is damaged") {
                next = batch.next_offset();
                texts.extend(
                    batch
                        .records()
                        .map(|record| String::from_utf8_lossy(record.payload).into_owned()),
                );
            }
        }
        texts
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(u8),
    PublishQos1,
    Turn,
    /// The publisher, or the subscriber, handles what it was sent.
    Work(bool),
    Lose(bool),
    Connect(bool),
    Kill,
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
        // So much that the subscription is still replaying for a while.
        for _ in 0..40 {
            publisher.publish(&mut world.rig, format!("m{count}"));
            count += 1;
        }
        world.settle(&mut [&mut publisher]);
    }
    world.rig.engine.settings.inflight_max = 7;
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
            // A client that was never told that it is subscribed would have to ask again.
            Step::Lose(_) | Step::Connect(_) | Step::Kill if !peers[1].subscribed => {
                while !peers[1].subscribed {
                    world.rig.turn();
                    peers[1].work(&mut world.rig);
                    let _ = world.rig.moved.recv_timeout(Duration::from_millis(2));
                }
            }
            Step::Lose(which) => peers[pick(which)].lose(&mut world.rig),
            Step::Connect(which) => {
                let peer = &mut peers[pick(which)];
                // A client that connects again takes its own session over.
                if let Some(key) = peer.key.take() {
                    world.rig.engine.remove(key);
                }
                peer.connect(&mut world.rig);
            }
            Step::Kill => world.kill(&mut peers),
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
fn exactly_once_in_both_directions_through_reconnects_and_kills() {
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

/// What was given packet ids and has not left must not wait for room that it takes itself.
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
        let sessions = world.rig.engine.sessions.iter();
        sessions
            .map(|(_, session)| session.extras.unsent.len())
            .sum::<usize>()
    };
    // The packet ids of a turn are durable in a later one, so none of these has left.
    while unsent(&world) <= 7 {
        world.rig.turn();
        if unsent(&world) <= 7 && !subscriber.work(&mut world.rig) {
            let _ = world.rig.moved.recv_timeout(Duration::from_millis(2));
        }
    }
    subscriber.lose(&mut world.rig);
    world.rig.engine.settings.inflight_max = 7;
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut publisher, &mut subscriber]);
    assert_eq!(subscriber.got, world.log());
    world.rig.crash();
}

/// Forgetting what a replay delivered and storing that it is over are one write: a crash may come after any of them.
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
    // Its delivery stores the session's deliveries anew, with no second passing for a checkpoint of the cursors.
    publisher.publish(&mut world.rig, "m5".to_owned());
    world.settle(&mut [&mut publisher, &mut subscriber]);
    world.kill(&mut [&mut publisher, &mut subscriber]);
    subscriber.connect(&mut world.rig);
    world.settle(&mut [&mut subscriber]);
    assert_eq!(subscriber.got, ["m0", "m1", "m2", "m3", "m4", "m5"]);
    world.rig.crash();
}

/// A refusal settles the tickets before it, which must not count for what the partition gave up.
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
