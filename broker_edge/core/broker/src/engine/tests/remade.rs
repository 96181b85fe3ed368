//! Engines that follow one another on one open log, and engines on two logs of one process.

use std::collections::HashSet;
use std::sync::Weak;

use super::member::{Member, V5};
use super::peer::Peer;
use super::world::World;
use super::*;
use crate::auth::AuthService;
use crate::config::AuthSettings;
use crate::numbers::Numbers;

const ROUNDS: usize = 1_000;
const RETAINED_TOPICS: usize = 7;

/// What must be gone with an engine.
struct Left {
    retained: Weak<Mutex<Retained>>,
    wake: Weak<dyn Fn() + Send + std::marker::Sync>,
}

/// Clients of every kind, and what the broker has promised them.
struct Load {
    auth_service: Arc<AuthService>,
    left: Left,
    publisher: Peer,
    subscriber: Peer,
    members: [Member; 2],
    /// What was acknowledged with QoS 1; the last of each topic is retained.
    acked: Vec<String>,
    retained: [usize; RETAINED_TOPICS],
    seen: HashSet<String>,
    sent: usize,
    chance: Numbers,
}

fn open_files(dir: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("Linux");
    let names = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    names.filter(|name| name.starts_with(dir)).count()
}

fn subscribe(rig: &mut Rig, key: ConnKey, filter: &str) {
    let options = SubscriptionOptions::new(QoS::AtMostOnce);
    let one = [Subscription { filter, options }];
    rig.feed(key, |out| {
        encode::subscribe(out, V5, PacketId::FIRST, &[], &one)
    });
}

/// Has the engine follow the files of users, and returns what must be gone with it.
fn attach(rig: &mut Rig, auth_service: &Arc<AuthService>) -> Left {
    let wake: Watcher = Arc::new(|| {});
    let left = Left {
        retained: Arc::downgrade(&rig.engine.retained),
        wake: Arc::downgrade(&wake),
    };
    rig.engine.set_auth(Arc::clone(auth_service), wake);
    left
}

impl Load {
    fn new(world: &mut World) -> Self {
        let auth_service = AuthService::start(&AuthSettings::default(), true).expect("no files");
        let left = attach(&mut world.rig, &auth_service);
        let mut publisher = Peer::new("publisher", Version::V311);
        let mut subscriber = Peer::new("subscriber", V5);
        publisher.connect(&mut world.rig);
        subscriber.connect(&mut world.rig);
        world.settle(&mut [&mut publisher, &mut subscriber]);
        subscriber.subscribe(&mut world.rig, QoS::ExactlyOnce, None);
        let members = ["one", "two"].map(|name| {
            let mut member = Member::new(name, V5);
            member.connect(&mut world.rig, true, 5);
            member.subscribe(&mut world.rig, QoS::AtLeastOnce);
            member
        });
        world.settle(&mut [&mut publisher, &mut subscriber]);
        assert!(subscriber.subscribed);
        Self {
            auth_service,
            left,
            publisher,
            subscriber,
            members,
            acked: Vec::new(),
            retained: [0; RETAINED_TOPICS],
            seen: HashSet::new(),
            sent: 0,
            chance: Numbers(0x5eed_0003),
        }
    }

    /// A client without an id of its own, which sets a retained message.
    fn visit(&mut self, rig: &mut Rig, number: usize) {
        let guest = rig.connect(ConnectFields::new(V5, ""));
        let session = rig.engine.clients.session_of(guest).expect("accepted");
        for given in [session.client_id.to_string(), session.life.to_string()] {
            assert!(self.seen.insert(given.clone()), "{given} was given before");
        }
        let topic = number % RETAINED_TOPICS;
        rig.publish_to(
            &format!("r/{topic}"),
            true,
            guest,
            V5,
            1,
            &number.to_string(),
        );
        assert_eq!(rig.packets(guest, V5, 1), ["puback 1"]);
        self.acked.push(number.to_string());
        self.retained[topic] = number;
        let unacknowledged = PublishFields {
            version: V5,
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "t",
            packet_id: None,
            properties: &[],
            extra: &[],
        };
        rig.feed(guest, |out| {
            unacknowledged.encode(out, b"q").expect("a small packet");
        });
    }

    /// All but the last guest keep their sessions, each with a life of its own.
    fn check_lives(world: &World) {
        let sessions = world.rig.engine.clients.sessions();
        let lives: Vec<u64> = sessions.map(|(_, session)| session.life).collect();
        assert_eq!(lives.iter().collect::<HashSet<_>>().len(), lives.len());
        assert_eq!(lives.len(), 4);
    }

    /// Everybody is back and does a part of what there is to do; then another engine takes over.
    fn round(&mut self, mut world: World, number: usize) -> World {
        for peer in [&mut self.publisher, &mut self.subscriber] {
            peer.connect(&mut world.rig);
        }
        self.visit(&mut world.rig, number);
        let member = &mut self.members[number % 2];
        member.connect(&mut world.rig, true, 5);
        for _ in 0..self.chance.below(4) {
            self.publisher
                .publish(&mut world.rig, format!("m{}", self.sent));
            self.sent += 1;
        }
        for _ in 0..self.chance.below(6) {
            world.rig.turn();
            self.publisher.work(&mut world.rig);
            self.subscriber.work(&mut world.rig);
        }
        let acks = self.chance.below(4);
        self.members[number % 2].ack(&mut world.rig, acks);
        if self.chance.below(4) == 0 {
            world.rig.pass_time(tick::CHECKPOINT_MS);
        }
        self.replace(world, number.is_multiple_of(2))
    }

    fn replace(&mut self, world: World, leaves: bool) -> World {
        let before = [
            Arc::strong_count(&world.rig.state),
            Arc::strong_count(&self.auth_service),
        ];
        let mut peers = [&mut self.publisher, &mut self.subscriber];
        let metrics = Arc::clone(&world.rig.engine.env.metrics);
        assert!(metrics.mqtt.sessions.get() > 0 && metrics.mqtt.subscriptions.get() > 0);
        let mut world = world.remade(leaves, &mut peers, |_| {
            let gauges = [
                &metrics.mqtt.connections,
                &metrics.mqtt.sessions,
                &metrics.mqtt.session_bytes,
                &metrics.mqtt.subscriptions,
                &metrics.mqtt.shared_groups,
            ];
            assert_eq!(gauges.map(|gauge| gauge.get()), [0; 5]);
        });
        self.members.iter_mut().for_each(|member| member.key = None);
        assert!(self.left.retained.upgrade().is_none(), "a hook is left");
        assert!(self.left.wake.upgrade().is_none(), "a watcher is left");
        self.left = attach(&mut world.rig, &self.auth_service);
        let after = [
            Arc::strong_count(&world.rig.state),
            Arc::strong_count(&self.auth_service),
        ];
        assert_eq!(before, after);
        Self::check_lives(&world);
        world
    }

    /// Lets everybody finish, and compares what they have with the log.
    fn check(&mut self, world: &mut World) {
        self.publisher.connect(&mut world.rig);
        self.subscriber.connect(&mut world.rig);
        world.settle(&mut [&mut self.publisher, &mut self.subscriber]);
        for member in &mut self.members {
            member.connect(&mut world.rig, true, 5);
        }
        loop {
            member::settle_all(&mut world.rig, &mut self.members);
            if self.members.iter().all(|member| member.unacked.is_empty()) {
                break;
            }
            for member in &mut self.members {
                member.ack(&mut world.rig, usize::MAX);
            }
        }
        let mut log = world.log();
        let logged: HashSet<&String> = log.iter().collect();
        assert!(self.acked.iter().all(|text| logged.contains(text)));
        log.retain(|text| text.starts_with('m'));
        assert_eq!(self.subscriber.got, log, "each once and in order");
        let mut completed = self.publisher.completed.clone();
        for texts in [&mut completed, &mut log] {
            texts.sort_unstable();
        }
        assert_eq!(completed, log, "what was completed is in the log, once");
        let acked: HashSet<&String> = self.members.iter().flat_map(|of| &of.acked).collect();
        assert!(log.iter().all(|text| acked.contains(text)));
        let guest = world.rig.connect(ConnectFields::new(V5, ""));
        subscribe(&mut world.rig, guest, "r/#");
        let mut expected = self
            .retained
            .map(|number| format!("publish {number}"))
            .to_vec();
        let mut got = world.rig.packets(guest, V5, 1 + expected.len());
        assert_eq!(got.remove(0), "suback");
        expected.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, expected);
    }
}

#[test]
fn a_thousand_engines_on_one_log_leave_nothing_behind_and_keep_every_promise() {
    let dir = dir();
    // Maintenance opens files for a moment, at its own times.
    let mut world = World::with(Rig::open_with(LogConfig {
        maintain_every: None,
        ..LogConfig::new(dir.path())
    }));
    let mut load = Load::new(&mut world);
    let files = open_files(dir.path());
    for number in 0..ROUNDS {
        world = load.round(world, number);
    }
    load.check(&mut world);
    assert_eq!(open_files(dir.path()), files);
}

#[test]
fn what_an_engine_has_queued_is_known_to_the_next() {
    let dir = dir();
    let mut world = World::with(Rig::open(dir.path(), SyncMode::Always));
    let others = world.rig.clients(V5, MANY);
    let mut peer = Peer::new("p", V5);
    peer.connect(&mut world.rig);
    world.settle(&mut [&mut peer]);
    world.rig.gate.set(Sync::Hold);
    for key in &others {
        world.rig.publish(*key, V5, 1, "x");
    }
    peer.publish(&mut world.rig, "once".to_owned());
    world.rig.turn();
    let gate = Arc::clone(&world.rig.gate);
    // The disk goes on while the next engine is made.
    let mut disk = None;
    let mut world = world.remade(false, &mut [&mut peer], |_| {
        disk = Some(std::thread::spawn(move || gate.set(Sync::Pass)));
    });
    disk.map(std::thread::JoinHandle::join)
        .expect("it was called")
        .expect("no panic");
    peer.connect(&mut world.rig);
    world.settle(&mut [&mut peer]);
    assert_eq!(peer.completed, ["once"]);
    let log = world.log();
    assert_eq!(log.iter().filter(|text| *text == "once").count(), 1);
}

#[test]
fn engines_on_two_logs_share_only_the_gauges() {
    let dirs = [dir(), dir()];
    let mut rigs = dirs
        .each_ref()
        .map(|dir| Rig::open(dir.path(), SyncMode::Never));
    let shared = Arc::new(Metrics::default());
    for rig in &mut rigs {
        // For the next engine.
        rig.engine.env.metrics = Arc::clone(&shared);
    }
    let mut texts = ["a", "b"].into_iter().cycle();
    for round in 0..4 {
        for rig in &mut rigs {
            let text = texts.next().expect("a cycle");
            let subscriber = rig.connect(ConnectFields::new(V5, "s"));
            subscribe(rig, subscriber, "#");
            if round == 0 {
                assert_eq!(rig.packets(subscriber, V5, 1), ["suback"]);
            } else {
                let retained = format!("publish {text}");
                assert_eq!(
                    rig.packets(subscriber, V5, 2),
                    ["suback".to_owned(), retained]
                );
            }
            let publisher = rig.connect(ConnectFields::new(V5, "p"));
            rig.publish_to("r", true, publisher, V5, 1, text);
            assert_eq!(rig.packets(publisher, V5, 1), ["puback 1"]);
            assert_eq!(rig.packets(subscriber, V5, 1), [format!("publish {text}")]);
        }
        if round > 0 {
            let connected = rigs.each_ref().map(|rig| rig.engine.connections());
            assert_eq!(connected, [2, 2]);
            assert_eq!(shared.mqtt.connections.get(), 4);
        }
        rigs = rigs.map(|rig| rig.remade(round % 2 == 0, |_| {}));
    }
}
