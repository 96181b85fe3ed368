//! The gauges of what is there now: whatever comes and goes, they are the counts.

use std::collections::{BTreeMap, BTreeSet};

use crate::peer::{Peer, Transport};

use super::super::observe::connection_gauges::name_of;
use super::super::quotas::session_bytes::UNCOUNTED_BYTES;
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

    fn gauges(&self) -> [usize; 5] {
        let mqtt = &self.rig.engine.env.metrics.mqtt;
        let gauges = [
            &mqtt.connections,
            &mqtt.sessions,
            &mqtt.subscriptions,
            &mqtt.shared_groups,
            &mqtt.session_bytes,
        ];
        gauges.map(|gauge| usize::try_from(gauge.get()).expect("not negative"))
    }

    /// Connected clients of each kind, counted and by the metrics.
    fn by_kind(&self) -> [[i64; KINDS.len()]; 2] {
        let mut counted = [0; KINDS.len()];
        for (_, kind) in self.clients.values().filter_map(|client| client.conn) {
            counted[kind] += 1;
        }
        let mut text = String::new();
        let registry = self.rig.engine.env.metrics.registry();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
        let told = KINDS.map(|(transport, version)| {
            let (transport, version) = (transport.name(), name_of(version));
            let labels = format!("{{transport=\"{transport}\",version=\"{version}\"}} ");
            let name = format!("headwater_mqtt_clients{labels}");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            line.map_or(0, |count| count.parse().expect("a number"))
        });
        [counted, told]
    }
}

#[test]
fn gauges_are_the_counts_after_many_opens_and_closes() {
    for seed in 1..=4 {
        let dir = dir();
        let mut scene = Scene {
            rig: Rig::open(dir.path(), SyncMode::Never),
            clients: BTreeMap::new(),
            strangers: Vec::new(),
            seed,
        };
        let mut most = [0; 5];
        for step in 0..400 {
            scene.step();
            let counts = scene.counts();
            assert_eq!(scene.gauges(), counts, "seed {seed}, step {step}");
            let [counted, told] = scene.by_kind();
            assert_eq!(told, counted, "seed {seed}, step {step}");
            most = std::array::from_fn(|n| most[n].max(counts[n]));
        }
        assert!(most.iter().all(|count| *count > 1), "seed {seed}: {most:?}");
        CLIENTS.iter().for_each(|name| scene.lose(name, false));
        scene.rig.pass_time(EXPIRY_MS);
        for key in scene.rig.engine.take_closed() {
            scene.rig.engine.remove(key);
        }
        scene.rig.turn();
        assert_eq!(scene.gauges(), [0; 5], "seed {seed}");
    }
}
