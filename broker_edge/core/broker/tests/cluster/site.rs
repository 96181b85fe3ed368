//! Three nodes on free ports, with their folders and their etcd.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headwater_broker::cluster::keys::{Keys, Meta};
use headwater_cluster::marks::Node as Name;
use headwater_etcd::{CasOutcome, MetaStore};
use headwater_log::LogId;
use headwater_mqtt::encode::{self, ConnectFields};
use headwater_mqtt::{ReasonCode, Version};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Client, DEADLINE, http};
use crate::etcd::{self, Etcd};

pub const CLUSTER: &str = "berlin";
pub const NAMES: [&str; 3] = ["n1", "n2", "n3"];
/// Between two looks at something that has no event.
const LOOK: Duration = Duration::from_millis(10);

pub struct Site {
    pub etcd: Etcd,
    pub dir: TempDir,
    pub nodes: Vec<Node>,
}

/// A process, while it runs.
pub struct Node {
    pub name: &'static str,
    running: Option<Running>,
    said: Arc<Said>,
}

/// All that a node has said on stderr, in all its lives.
#[derive(Default)]
struct Said {
    text: Mutex<String>,
    grew: Condvar,
}

struct Running {
    child: Child,
    mqtt: SocketAddr,
    admin: SocketAddr,
    /// Stopped by a signal: it takes connections and answers nothing.
    is_frozen: AtomicBool,
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Waits for something that has no event to wait for.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "{what} did not happen");
        std::thread::sleep(LOOK);
    }
}

impl Site {
    /// An etcd without a cluster.
    pub fn unmade() -> Self {
        Self {
            etcd: Etcd::start(1),
            dir: tempfile::tempdir().unwrap(),
            nodes: NAMES.map(Node::new).into(),
        }
    }

    /// A cluster that was made, and whose nodes do not run.
    pub fn made() -> Self {
        let site = Self::unmade();
        let meta = Meta::new(LogId::from_bytes([7; 16]), &NAMES.map(name));
        let key = Keys::new(&name(CLUSTER)).meta();
        let made = etcd::run(site.etcd.client().put_if_absent(&key, meta.encode(), None));
        assert!(matches!(made, CasOutcome::Done(_)), "{made:?}");
        let file = site.dir.path().join("secret");
        std::fs::write(&file, "0011223344556677\n").unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        site
    }

    /// All nodes run, and one of them serves clients.
    pub fn start() -> Self {
        let mut site = Self::made();
        (0..3).for_each(|at| site.start_node(at));
        site.leader();
        site
    }

    pub fn folder(&self, at: usize) -> PathBuf {
        self.dir.path().join(NAMES[at])
    }

    /// Without waiting until it is ready.
    pub fn spawn(
        &self,
        at: usize,
        more: &[String],
    ) -> (Child, BufReader<std::process::ChildStdout>) {
        let more = [&self.of_member(at), more].concat();
        self.spawn_with(at, &more)
    }

    /// What a broker alone has not.
    fn of_member(&self, at: usize) -> Vec<String> {
        let secret = self.dir.path().join("secret").display().to_string();
        vec![
            format!("cluster.name={CLUSTER}"),
            format!("cluster.node={}", NAMES[at]),
            format!("cluster.secret_file={secret}"),
            format!("cluster.etcd.endpoints=[{}]", self.etcd.urls().join(",")),
            "cluster.listen=127.0.0.1:0".to_owned(),
        ]
    }

    fn of_broker(&self, at: usize) -> Vec<String> {
        let data = self.folder(at).display().to_string();
        let mut set = vec![
            format!("data_dir={data}"),
            "log.segment_bytes=256KiB".to_owned(),
        ];
        for key in ["listeners.mqtt", "listeners.flight", "listeners.admin"] {
            set.push(format!("{key}.bind=127.0.0.1:0"));
        }
        set
    }

    fn spawn_with(
        &self,
        at: usize,
        more: &[String],
    ) -> (Child, BufReader<std::process::ChildStdout>) {
        let set = [&self.of_broker(at), more].concat();
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwaterd"));
        for one in &set {
            command.args(["--set", one]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let said = Arc::clone(&self.nodes[at].said);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                said.text.lock().extend([line.as_str(), "\n"]);
                said.grew.notify_all();
            }
        });
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (child, stdout)
    }

    pub fn start_node(&mut self, at: usize) {
        let started = self.spawn(at, &[]);
        self.await_ready(at, started);
    }

    /// As a broker alone.
    pub fn start_alone(&mut self, at: usize) {
        let started = self.spawn_with(at, &[]);
        self.await_ready(at, started);
    }

    /// `headwaterd cluster init` with the settings of a node: its exit code, and what it has said.
    pub fn init(&self, at: usize) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwaterd"));
        command.args(["cluster", "init", "--nodes", &NAMES.join(",")]);
        for one in [self.of_broker(at), self.of_member(at)].concat() {
            command.args(["--set", &one]);
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    }

    fn await_ready(
        &mut self,
        at: usize,
        (child, mut stdout): (Child, BufReader<std::process::ChildStdout>),
    ) {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = |key: &str| -> SocketAddr {
            let mut words = line.split_whitespace();
            let word = words.find_map(|word| word.strip_prefix(key));
            let word = word.unwrap_or_else(|| panic!("{line:?}: {}", self.nodes[at].said()));
            word.parse().unwrap()
        };
        let running = Running {
            mqtt: address("mqtt="),
            admin: address("admin="),
            child,
            is_frozen: AtomicBool::new(false),
        };
        self.nodes[at].running = Some(running);
    }

    /// The one that serves clients.
    pub fn leader(&self) -> usize {
        until("nobody serves clients, which", || {
            let mut running = (0..3).filter(|at| self.nodes[*at].running.is_some());
            running.find(|at| self.nodes[*at].serves())
        })
    }

    pub fn followers(&self) -> Vec<usize> {
        let leader = self.leader();
        (0..3).filter(|at| *at != leader).collect()
    }

    /// Waits until as many nodes are in sync, as the leader has it.
    pub fn until_in_sync(&self, count: usize) {
        until("the in-sync set", || {
            let report = self.nodes[self.leader()].report()?;
            (report["in_sync"].as_array()?.len() == count).then_some(())
        });
    }
}

impl Node {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            running: None,
            said: Arc::default(),
        }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub fn mqtt(&self) -> SocketAddr {
        self.running().mqtt
    }

    pub fn said(&self) -> String {
        self.said.text.lock().clone()
    }

    /// Waits until it has said what `look` finds.
    pub fn until_said<T>(&self, what: &str, mut look: impl FnMut(&str) -> Option<T>) -> T {
        let by = Instant::now() + DEADLINE;
        let mut text = self.said.text.lock();
        loop {
            if let Some(found) = look(&text) {
                return found;
            }
            let waited = self.said.grew.wait_until(&mut text, by);
            assert!(!waited.timed_out(), "{} did not say {what}", self.name);
        }
    }

    /// Waits until it has said this.
    pub fn until_says(&self, text: &str) {
        self.until_said(text, |said| said.contains(text).then_some(()));
    }

    pub fn serves(&self) -> bool {
        self.get("/readyz").is_some_and(|(code, _)| code == 200)
    }

    /// None while it does not answer.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let running = self.running.as_ref()?;
        if running.is_frozen.load(Ordering::Relaxed) {
            return None;
        }
        std::net::TcpStream::connect(running.admin).ok()?;
        Some(http::text(running.admin, "GET", path))
    }

    /// Asks it to give the log to another node.
    pub fn elect(&self, to: &str) -> (u16, Value) {
        let path = format!("/api/v1/cluster/leader?node={to}");
        http::json(self.running().admin, "PUT", &path)
    }

    pub fn report(&self) -> Option<Value> {
        let (code, text) = self.get("/api/v1/cluster")?;
        (code == 200).then(|| serde_json::from_str(&text).unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.running().child);
        kill_process(pid, signal).unwrap();
    }

    /// Its process keeps its connections and does nothing. Returns when the last of its threads stands still, which is
    /// not yet so when the signal is sent.
    pub fn freeze(&self) {
        self.running().is_frozen.store(true, Ordering::Relaxed);
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.running().child);
        let stopped = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
        assert!(stopped.is_some_and(|status| status.stopped()));
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
        self.running().is_frozen.store(false, Ordering::Relaxed);
    }

    /// As a crash of the process.
    pub fn kill(&mut self) {
        let mut running = self.running.take().expect("it runs");
        running.child.kill().unwrap();
        running.child.wait().unwrap();
    }

    /// With SIGTERM. Returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        let mut running = self.running.take().expect("it runs");
        running.child.wait().unwrap().code()
    }

    /// The bytes of the answer to a CONNECT.
    pub fn connack(&self, version: Version) -> Vec<u8> {
        let mut client = Client::open(self.mqtt(), version);
        client.send(|out| encode::connect(out, &ConnectFields::new(version, "asks")));
        client.packet().expect("an answer")
    }

    /// The server that a standby names to an MQTT 5 client.
    pub fn names_server(&self) -> Option<String> {
        let answer = self.connack(Version::V5);
        if answer[3] != ReasonCode::UseAnotherServer as u8 {
            return None;
        }
        // Properties: one, the reference, with a length of two bytes.
        Some(String::from_utf8(answer[8..].to_vec()).unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.name, self.said());
        }
    }
}
