//! The gauges of what is there now: whatever comes and goes, they are the counts.

use std::collections::{BTreeMap, BTreeSet};

use crate::metrics::Metrics;
use crate::peer::{Peer, Transport};

use super::super::clients::charges::UNCOUNTED_BYTES;
use super::super::observe::connection_gauges::name_of;
use super::*;

const CLIENTS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];
const KINDS: [(Transport, Version); 4] = [
    (Transport::Mqtt, Version::V5),
    (Transport::Wss, Version::V5),
    (Transport::Mqtt, Version::V311),
    (Transport::Mqtts, Version::V31),
];
const FILTERS: [&str; 5] = ["a", "b/#", "$share/g/a", "$share/h/b", LONG];
/// Long enough that a session with it counts.
const LONG: &str = match std::str::from_utf8(&[b'f'; UNCOUNTED_BYTES as usize]) {
    Ok(long) => long,
    Err(_) => "",
};
const EXPIRY_MS: u64 = 60_000;

/// A client with a session, as it should be counted.
struct Client {
    /// Its connection and the kind of it, unless it is away.
    conn: Option<(ConnKey, usize)>,
    lasts: bool,
    filters: BTreeSet<&'static str>,
}

/// A broker with its clients, and connections that no client is admitted on.
struct Scene {
    rig: Rig,
    clients: BTreeMap<&'static str, Client>,
    strangers: Vec<ConnKey>,
    seed: u64,
}

impl Scene {
    fn open(dir: &Path, seed: u64) -> Self {
        Self {
            rig: Rig::open(dir, SyncMode::Never),
            clients: BTreeMap::new(),
            strangers: Vec::new(),
            seed,
        }
    }

    /// A number below `count`.
    fn pick(&mut self, count: usize) -> usize {
        let seed = self.seed.wrapping_mul(6_364_136_223_846_793_005);
        self.seed = seed.wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % count
    }

    fn connect(&mut self, name: &'static str, kind: usize, lasts: bool, clean: bool) {
        let (transport, version) = KINDS[kind];
        let expiry = [Property::SessionExpiryInterval(60)];
        let mut fields = ConnectFields::new(version, name);
        fields.keep_alive_s = 0;
        let lasts = lasts && version.is_v5();
        fields.clean_start = clean || !version.is_v5();
        if lasts {
            fields.properties = &expiry;
        }
        let mut peer = Peer::nobody();
        peer.transport = transport;
        let key = self.rig.engine.open(peer);
        self.rig.feed(key, |out| encode::connect(out, &fields));
        assert!(self.rig.packets(key, version, 1)[0].starts_with("connack"));
        let before = self.clients.remove(name);
        // A session that ends with its connection does not outlive a takeover.
        let kept =
            before.filter(|before| !fields.clean_start && (before.lasts || before.conn.is_none()));
        let client = Client {
            conn: Some((key, kind)),
            lasts,
            filters: kept.map_or_else(BTreeSet::new, |before| before.filters),
        };
        self.clients.insert(name, client);
    }

    fn lose(&mut self, name: &'static str, says_goodbye: bool) {
        let Some(client) = self.clients.get_mut(name) else {
            return;
        };
        let Some((key, kind)) = client.conn.take() else {
            return;
        };
        if !client.lasts {
            self.clients.remove(name);
        }
        if says_goodbye {
            let version = KINDS[kind].1;
            let reason = ReasonCode::NORMAL_DISCONNECTION;
            self.rig
                .feed(key, |out| encode::disconnect(out, version, reason, &[]));
        }
        self.rig.engine.remove(key);
    }

    fn subscribe(&mut self, name: &'static str, filter: &'static str, ends: bool) {
        let Some(client) = self.clients.get_mut(name) else {
            return;
        };
        let Some((key, kind)) = client.conn else {
            return;
        };
        let version = KINDS[kind].1;
        let one = [Subscription {
            filter,
            options: SubscriptionOptions::new(QoS::AtLeastOnce),
        }];
        if ends {
            client.filters.remove(filter);
            self.rig.feed(key, |out| {
                encode::unsubscribe(out, version, PacketId::FIRST, &[], &[filter]);
            });
        } else {
            client.filters.insert(filter);
            self.rig.feed(key, |out| {
                encode::subscribe(out, version, PacketId::FIRST, &[], &one);
            });
        }
        self.rig.packets(key, version, 1);
    }

    fn step(&mut self) {
        let name = CLIENTS[self.pick(CLIENTS.len())];
        match self.pick(12) {
            0..4 => {
                let (kind, bits) = (self.pick(KINDS.len()), self.pick(4));
                self.connect(name, kind, bits & 1 > 0, bits & 2 > 0);
            }
            4..6 => {
                let says_goodbye = self.pick(2) > 0;
                self.lose(name, says_goodbye);
            }
            6..10 => {
                let (filter, ends) = (FILTERS[self.pick(FILTERS.len())], self.pick(4) == 0);
                self.subscribe(name, filter, ends);
            }
            10 => match self.strangers.pop() {
                Some(key) => self.rig.engine.remove(key),
                None => {
                    let silent = self.rig.engine.open(Peer::nobody());
                    let wrong = self.rig.engine.open(Peer::nobody());
                    self.rig.feed(wrong, encode::pingreq);
                    self.strangers.push(silent);
                }
            },
            _ => {
                // A silent connection is closed as well.
                self.rig.pass_time(EXPIRY_MS);
                self.strangers.clear();
                self.clients.retain(|_, client| client.conn.is_some());
            }
        }
        self.rig.turn();
        for key in self.rig.engine.take_closed() {
            self.rig.engine.remove(key);
        }
        self.rig.turn();
    }

    fn counts(&self) -> [usize; 5] {
        let clients = self.clients.values();
        let connected = clients.clone().filter(|client| client.conn.is_some());
        let filters = || self.clients.values().flat_map(|client| &client.filters);
        let is_shared = |filter: &&&str| filter.starts_with("$share/");
        let groups: BTreeSet<_> = filters().filter(is_shared).collect();
        let bytes = self.clients.iter().map(|(name, client)| {
            let filters: usize = client.filters.iter().map(|filter| filter.len()).sum();
            (name.len() + filters).saturating_sub(UNCOUNTED_BYTES as usize)
        });
        [
            connected.count() + self.strangers.len(),
            self.clients.len(),
            filters().filter(|filter| !is_shared(filter)).count(),
            groups.len(),
            bytes.sum(),
        ]
    }

    /// Connected clients of each kind.
    fn by_kind(&self) -> [i64; KINDS.len()] {
        let mut counted = [0; KINDS.len()];
        for (_, kind) in self.clients.values().filter_map(|client| client.conn) {
            counted[kind] += 1;
        }
        counted
    }
}

fn gauges(metrics: &Metrics) -> [usize; 5] {
    let mqtt = &metrics.mqtt;
    let gauges = [
        &mqtt.connections,
        &mqtt.sessions,
        &mqtt.subscriptions,
        &mqtt.shared_groups,
        &mqtt.session_bytes,
    ];
    gauges.map(|gauge| usize::try_from(gauge.get()).expect("not negative"))
}

/// Connected clients of each kind, by the metrics.
fn told_by_kind(metrics: &Metrics) -> [i64; KINDS.len()] {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics.registry()).expect("a text");
    KINDS.map(|(transport, version)| {
        let (transport, version) = (transport.name(), name_of(version));
        let labels = format!("{{transport=\"{transport}\",version=\"{version}\"}} ");
        let name = format!("headwater_mqtt_clients{labels}");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().expect("a number"))
    })
}

#[test]
fn gauges_are_the_counts_after_many_opens_and_closes() {
    for seed in 1..=4 {
        let dir = dir();
        let mut scene = Scene::open(dir.path(), seed);
        let mut most = [0; 5];
        for step in 0..400 {
            scene.step();
            let counts = scene.counts();
            let metrics = &scene.rig.engine.env.metrics;
            assert_eq!(gauges(metrics), counts, "seed {seed}, step {step}");
            let told = told_by_kind(metrics);
            assert_eq!(told, scene.by_kind(), "seed {seed}, step {step}");
            most = std::array::from_fn(|n| most[n].max(counts[n]));
        }
        assert!(most.iter().all(|count| *count > 1), "seed {seed}: {most:?}");
        CLIENTS.iter().for_each(|name| scene.lose(name, false));
        scene.rig.pass_time(EXPIRY_MS);
        for key in scene.rig.engine.take_closed() {
            scene.rig.engine.remove(key);
        }
        scene.rig.turn();
        let metrics = &scene.rig.engine.env.metrics;
        assert_eq!(gauges(metrics), [0; 5], "seed {seed}");
    }
}

#[test]
fn the_gauges_of_two_engines_add_up_and_a_dropped_one_leaves_nothing_behind() {
    let dirs = [dir(), dir()];
    let [mut first, mut second] = [0, 1].map(|n| Scene::open(dirs[n].path(), n as u64 + 1));
    let metrics = Arc::clone(&first.rig.engine.env.metrics);
    let (log, state) = (second.rig.log.clone(), Arc::clone(&second.rig.state));
    let (shared, now) = (Arc::clone(&metrics), second.rig.now);
    second.rig.engine = Engine::new(Settings::default(), log, state, shared, now)
        .expect("the engine reads its log");
    let has_all = |scene: &Scene| scene.counts().iter().all(|count| *count > 0);
    let mut steps = 0;
    while steps < 100 || !has_all(&first) || !has_all(&second) {
        first.step();
        second.step();
        steps += 1;
    }
    first.rig.engine.set_drain(Some(Drain::ForNow));
    second.rig.engine.set_drain(Some(Drain::ForGood));
    let [one, other] = [&first, &second].map(|scene| (scene.counts(), scene.by_kind()));
    let both = std::array::from_fn(|n| one.0[n] + other.0[n]);
    assert_eq!(gauges(&metrics), both);
    let both = std::array::from_fn(|n| one.1[n] + other.1[n]);
    assert_eq!(told_by_kind(&metrics), both);
    assert_eq!(metrics.detail.draining.get(), 2);
    drop(second);
    assert_eq!((gauges(&metrics), told_by_kind(&metrics)), one);
    assert_eq!(metrics.detail.draining.get(), 1);
    drop(first);
    assert_eq!(gauges(&metrics), [0; 5]);
    assert_eq!(told_by_kind(&metrics), [0; KINDS.len()]);
    assert_eq!(metrics.detail.draining.get(), 0);
}
