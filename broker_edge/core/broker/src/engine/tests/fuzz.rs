//! Fuzzing of the session machine: honest and hostile connections together, a clock that jumps, a disk that fills, and
//! a broker that is killed, all without a socket.
//!
//! One execution feeds one packet. The short run is part of the tests; `make fuzz-machine` is the long one. Checked throughout:
//! nothing panics; packets sent to an honest client are well formed and, per publisher, in order; acknowledged messages
//! are in the log, in order, also after a kill; and memory stays within the settings. A failure prints the seed of its
//! run.

mod honest;
#[path = "../../../../mqtt/tests/it/fuzz/mutate.rs"]
mod mutate;

use std::collections::HashMap;

use headwater_log::Offset;

use super::world::small;
use super::*;
use honest::Honest;
use mutate::Mutator;

/// Executions of the short run.
const EXECUTIONS: u64 = 40_000;
/// After this many, a new broker starts on an empty folder, so that the disk of a long run stays small.
const EXECUTIONS_OF_A_LOG: u64 = 100_000;
const HOSTILE: usize = 6;
const HONEST: usize = 3;
/// How much a process may grow after it has warmed up.
const GROWTH_KIB_MAX: u64 = 24 << 10;
const RECEIVE_BUDGET: usize = 1 << 20;

/// A connection that sends the mutator's output.
#[derive(Default)]
struct Hostile {
    key: Option<ConnKey>,
    /// Sent and not yet read by the engine, as in the buffer of a socket.
    unread: Vec<u8>,
}

struct Run {
    rig: Rig,
    root: tempfile::TempDir,
    mutator: Mutator,
    seeds: Vec<Vec<u8>>,
    hostile: Vec<Hostile>,
    honest: Vec<Honest>,
    input: Vec<u8>,
    /// Per honest publisher: the numbers of its records below `scanned`, in ascending order.
    logged: HashMap<u8, Vec<u32>>,
    scanned: Offset,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mqtt/fuzz-corpus");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let text: Vec<String> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let lines = text
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let digits = line.split(' ').next().unwrap();
            (0..digits.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
                .collect()
        })
        .collect()
}

fn rig(root: &Path) -> Rig {
    let mut config = small(&root.join("log"));
    config.sync = SyncMode::Never;
    config.tail_bytes = 1 << 20;
    let settings = Settings {
        mqtt: MqttSettings {
            receive_budget_bytes: ByteSize(RECEIVE_BUDGET as u64),
            max_inflight: 10,
            receive_maximum: 20,
            max_subscriptions: 8,
            max_sessions: 30,
            max_retained: 20,
            ..MqttSettings::default()
        },
        ..Settings::default()
    };
    Rig::open_with_settings(config, 256 << 10, settings)
}

impl Run {
    fn new(mutator: Mutator, seeds: Vec<Vec<u8>>) -> Self {
        let root = dir();
        Self {
            rig: rig(root.path()),
            root,
            mutator,
            seeds,
            hostile: (0..HOSTILE).map(|_| Hostile::default()).collect(),
            honest: (0..HONEST).map(|n| Honest::new(n as u8)).collect(),
            input: Vec::new(),
            logged: HashMap::new(),
            scanned: Offset(0),
        }
    }

    fn step(&mut self) {
        match self.mutator.below(64) {
            0..40 => self.attack(),
            40..58 => {
                let n = self.mutator.below(HONEST);
                self.honest[n].act(&mut self.rig, &mut self.mutator);
            }
            58..60 => self.drop_one(),
            60 => self.pass(20),
            61 => self.pass(1500),
            62 if self.mutator.below(16) == 0 => self.pass(3_600_000),
            62 => {
                // Rarely, and not for long.
                let full = &self.rig.gate.is_full;
                if full.load(Ordering::Relaxed) || self.mutator.below(2000) == 0 {
                    full.fetch_xor(true, Ordering::Relaxed);
                }
            }
            63 if self.mutator.below(256) == 0 => self.kill(),
            _ => {}
        }
        if self.mutator.below(4) == 0 {
            self.turn();
        }
    }

    /// Feeds bytes to a hostile connection, in pieces or several packets at once.
    fn attack(&mut self) {
        let at = self.mutator.below(HOSTILE);
        let key = match self.hostile[at].key {
            Some(key) => key,
            None => {
                let key = self.rig.engine.open(crate::peer::Peer::nobody());
                let version = [Version::V31, Version::V311, Version::V5][self.mutator.below(3)];
                let id = format!("bad{}", self.mutator.below(40));
                let mut fields = ConnectFields::new(version, &id);
                fields.clean_start = self.mutator.below(2) == 0;
                let properties = [Property::SessionExpiryInterval(self.mutator.below(3) as u32)];
                fields.properties = if version.is_v5() { &properties } else { &[] };
                // Most connect; bytes of the others are refused before they are examined.
                if self.mutator.below(8) > 0 {
                    encode::connect(&mut self.hostile[at].unread, &fields);
                }
                self.hostile[at].key = Some(key);
                key
            }
        };
        self.mutator.next_input(&self.seeds, &mut self.input);
        self.hostile[at].unread.extend_from_slice(&self.input);
        let offered = self.mutator.below(self.hostile[at].unread.len() + 1).max(1);
        self.offer(at, key, offered);
        // When nothing reads, a peer can only fill the buffer of its socket.
        if self.hostile[at].unread.len() > 1 << 16 {
            self.rig.engine.lost(key);
        }
    }

    fn offer(&mut self, at: usize, key: ConnKey, count: usize) {
        let unread = &mut self.hostile[at].unread;
        let count = count.min(unread.len());
        let taken = self.rig.receive(key, &unread[..count]);
        unread.drain(..taken);
    }

    fn drop_one(&mut self) {
        if self.mutator.below(3) == 0 {
            let n = self.mutator.below(HONEST);
            self.honest[n].vanish(&mut self.rig);
        } else {
            let at = self.mutator.below(HOSTILE);
            if let Some(key) = self.hostile[at].key {
                self.rig.engine.lost(key);
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.rig.now.mono_ms += ms;
        self.rig.now.wall_us += i64::try_from(ms).unwrap() * 1000;
        self.turn();
    }

    fn turn(&mut self) {
        self.rig.turn();
        for at in 0..HOSTILE {
            let Some(key) = self.hostile[at].key else {
                continue;
            };
            // Some read everything, some a part, some nothing.
            let waiting = self.rig.engine.out(key).len();
            let taken = match at {
                0 => 0,
                1 => self.mutator.below(waiting + 1),
                _ => waiting,
            };
            self.rig.engine.written(key, taken);
        }
        for honest in &mut self.honest {
            honest.read(&mut self.rig, &mut self.mutator);
        }
        for key in self.rig.engine.take_closed() {
            for hostile in self
                .hostile
                .iter_mut()
                .filter(|hostile| hostile.key == Some(key))
            {
                *hostile = Hostile::default();
            }
            for honest in &mut self.honest {
                honest.closed(key);
            }
            self.rig.engine.remove(key);
        }
    }

    /// Kills the broker and starts another on its files.
    fn kill(&mut self) {
        self.verify();
        let mark = self.scanned;
        self.rig.gate.is_full.store(false, Ordering::Relaxed);
        for hostile in &mut self.hostile {
            *hostile = Hostile::default();
        }
        for honest in &mut self.honest {
            honest.lost();
        }
        let now = self.rig.now;
        let placeholder = rig(&self.root.path().join("meanwhile"));
        std::mem::replace(&mut self.rig, placeholder).crash();
        let placeholder = std::mem::replace(&mut self.rig, rig(self.root.path()));
        placeholder.crash();
        std::fs::remove_dir_all(self.root.path().join("meanwhile")).unwrap();
        self.rig.now = now;
        assert!(
            self.partition().high_watermark() >= mark,
            "the log lost records that were readable"
        );
    }

    fn partition(&self) -> headwater_log::Partition {
        self.rig
            .log
            .by_name("telemetry-0")
            .expect("there by default")
            .clone()
    }

    /// Reads the new records of the log and compares them with the acknowledgements.
    fn verify(&mut self) {
        let partition = self.partition();
        while self.scanned < partition.high_watermark() {
            for batch in partition
                .read(self.scanned, 1 << 20)
                .expect("nothing is damaged")
            {
                let first = usize::try_from(self.scanned.0 - batch.base_offset().0).unwrap();
                for record in (first..batch.len()).map(|index| batch.record(index)) {
                    if let Some((who, n)) = honest::parse(record.payload) {
                        let logged = self.logged.entry(who).or_default();
                        assert!(
                            logged.last().is_none_or(|last| *last < n),
                            "publisher {who}: {n} after {logged:?}"
                        );
                        logged.push(n);
                    }
                }
                self.scanned = batch.next_offset();
            }
        }
        for honest in &mut self.honest {
            let logged = self.logged.entry(honest.name).or_default();
            for n in honest.acknowledged.drain(..) {
                assert!(
                    logged.binary_search(&n).is_ok(),
                    "{n} of {} was acknowledged and is not in the log",
                    honest.name
                );
            }
            // Later numbers are higher.
            logged.drain(..logged.len().saturating_sub(1000));
        }
        let engine = &self.rig.engine;
        assert!(engine.clients.reserved_bytes() <= RECEIVE_BUDGET);
        // A closed connection exists until the end of the turn, when it is listed for removal; its client may have
        // reconnected any number of times before that.
        let given_up = engine
            .clients
            .connections()
            .filter(|(_, conn)| conn.phase == connection::Phase::Closed);
        let given_up = given_up.count();
        assert_eq!(
            engine.clients.closed().len(),
            given_up,
            "a connection that was given up would never be removed"
        );
        assert!(engine.connections() - given_up <= HOSTILE + HONEST);
        assert!(
            engine.clients.sessions_len() <= 31 + HOSTILE + HONEST,
            "{} sessions",
            engine.clients.sessions_len()
        );
        let held: usize = engine
            .clients
            .connections()
            .map(|(_, conn)| conn.unparsed.bytes.capacity())
            .sum();
        assert!(
            held <= RECEIVE_BUDGET + (HOSTILE + HONEST) * (128 << 10),
            "{held} bytes are held"
        );
        let out: usize = engine
            .clients
            .connections()
            .map(|(_, conn)| conn.out.len())
            .sum();
        assert!(
            out <= (HOSTILE + HONEST) * (4 << 20),
            "{out} bytes wait for sockets"
        );
    }
}

#[test]
fn no_bytes_and_no_order_of_events_break_the_session_machine() {
    let executions = number("HEADWATER_FUZZ_EXECUTIONS").unwrap_or(EXECUTIONS);
    let seed = number("HEADWATER_FUZZ_SEED").unwrap_or(0x1234_5678_9abc_def1);
    let seeds = corpus();
    let (mut before_kib, mut acknowledged, mut delivered, mut done) = (0, 0, 0, 0);
    while done < executions {
        let of_log = seed.wrapping_add(done);
        let in_hand = Told(of_log);
        let mut run = Run::new(Mutator::new(of_log), seeds.clone());
        for n in 0..EXECUTIONS_OF_A_LOG.min(executions - done) {
            run.step();
            if n % 500 == 0 {
                run.verify();
            }
        }
        run.rig.gate.is_full.store(false, Ordering::Relaxed);
        run.verify();
        done += EXECUTIONS_OF_A_LOG;
        acknowledged += run
            .honest
            .iter()
            .map(|honest| honest.count_acknowledged)
            .sum::<u64>();
        delivered += run
            .honest
            .iter()
            .map(|honest| honest.count_delivered)
            .sum::<u64>();
        run.rig.crash();
        std::mem::forget(in_hand);
        if before_kib == 0 || done <= executions / 10 {
            before_kib = resident_kib();
        }
    }
    let after_kib = resident_kib();
    eprintln!(
        "session machine: {executions} executions, {acknowledged} publishes acknowledged and found in the log, {delivered} \
         deliveries in order, resident {before_kib} KiB then {after_kib} KiB"
    );
    assert!(
        acknowledged > executions / 200 && delivered > executions / 200,
        "honest clients were served"
    );
    // A long run has the process to itself; in a short run other tests change its memory as well.
    assert!(
        executions <= EXECUTIONS || after_kib <= before_kib + GROWTH_KIB_MAX,
        "the process grew from {before_kib} to {after_kib} KiB"
    );
}

/// Prints the seed when a run panics.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("HEADWATER_FUZZ_SEED={} repeats it", self.0);
    }
}
