//! Starts etcd with one or three members in a temporary folder, on ports that are free.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use headwater_etcd::{Client, Error, Options, Patience, Revision, Tls, Update, User, Watch};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// Ends a test that hangs; nothing is expected to take so long.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Another process may take a port between its choice and its use.
const ATTEMPTS: usize = 5;

/// For members that answer: a loaded machine is no fault.
pub const PATIENT: Patience = Patience {
    connect: Duration::from_secs(20),
    request: Duration::from_secs(20),
    progress: Duration::from_secs(20),
};

/// The members of a cluster. They end with this value.
pub struct Etcd {
    pub members: Vec<Member>,
    folder: TempDir,
}

pub struct Member {
    pub url: String,
    pub port: u16,
    command: Vec<String>,
    child: Child,
}

impl Etcd {
    pub fn start(members: usize) -> Self {
        Self::start_with(members, "http", &[])
    }

    pub fn start_with(members: usize, scheme: &str, arguments: &[&str]) -> Self {
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            match Self::try_start(members, scheme, arguments) {
                Ok(etcd) => return etcd,
                Err(log) => said = log,
            }
        }
        panic!("etcd has not started:\n{said}");
    }

    fn try_start(count: usize, scheme: &str, arguments: &[&str]) -> Result<Self, String> {
        let folder = TempDir::new().expect("a folder");
        let held: Vec<_> = (0..2 * count)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
            .collect();
        let ports: Vec<_> = held
            .iter()
            .map(|one| one.local_addr().expect("bound").port())
            .collect();
        drop(held);
        let (clients, peers) = ports.split_at(count);
        let named = peers.iter().enumerate();
        let cluster: Vec<_> = named
            .map(|(n, port)| format!("m{n}=http://127.0.0.1:{port}"))
            .collect();
        let mut started = Vec::new();
        for n in 0..count {
            let (url, peer) = (
                format!("{scheme}://127.0.0.1:{}", clients[n]),
                format!("http://127.0.0.1:{}", peers[n]),
            );
            let data = folder.path().join(format!("m{n}")).display().to_string();
            let name = format!("m{n}");
            let mut command: Vec<String> = [
                "--name",
                &name,
                "--data-dir",
                &data,
                "--unsafe-no-fsync",
                "--heartbeat-interval",
                "50",
                "--election-timeout",
                "500",
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster",
                &cluster.join(","),
            ]
            .map(str::to_owned)
            .to_vec();
            command.extend(arguments.iter().map(|&one| one.to_owned()));
            let (child, ready) = spawn(&command);
            started.push((
                Member {
                    url,
                    port: clients[n],
                    command,
                    child,
                },
                ready,
            ));
        }
        let mut members = Vec::new();
        for (member, ready) in started {
            ready.recv_timeout(DEADLINE).expect("etcd says something")?;
            members.push(member);
        }
        Ok(Self { members, folder })
    }

    pub fn client(&self) -> Client {
        client(&self.urls(), None, None, PATIENT)
    }

    pub fn urls(&self) -> Vec<&str> {
        self.members
            .iter()
            .map(|member| member.url.as_str())
            .collect()
    }

    /// Forgets the changes below this revision.
    pub fn compact(&self, at: Revision) {
        let ask = format!(r#"{{"revision":"{}"}}"#, at.0);
        self.members[0].post("kv/compaction", &ask);
    }

    /// Deletes what a member that does not run has stored.
    pub fn empty(&self, member: usize) {
        std::fs::remove_dir_all(self.folder.path().join(format!("m{member}"))).expect("removed");
    }
}

impl Member {
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// After [`Self::kill`], on the same ports and folder.
    pub fn start_again(&mut self) {
        let (child, ready) = spawn(&self.command);
        self.child = child;
        let ready = ready.recv_timeout(DEADLINE).expect("etcd says something");
        ready.expect("etcd starts again");
    }

    /// Returns once it has stopped: until then it may still answer.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child");
        let (_, status) = stopped.expect("it was waited for");
        assert!(status.stopped(), "{status:?}");
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// A request to the JSON door, for what the client itself never asks for.
    pub fn post(&self, path: &str, body: &str) -> String {
        self.ask("", path, body)
    }

    /// With a token of a user.
    pub fn post_as(&self, token: &str, path: &str, body: &str) -> String {
        self.ask(&format!("Authorization: {token}\r\n"), path, body)
    }

    fn ask(&self, fields: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let length = body.len();
        write!(
            stream,
            "POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\n{fields}\
             Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        answer
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child, and one message: it serves, or what it has said before it ended.
fn spawn(arguments: &[String]) -> (Child, mpsc::Receiver<Result<(), String>>) {
    let mut command = Command::new("etcd");
    // Variables of the environment would be settings, and those of Debian's service name its port.
    let names = std::env::vars().map(|(name, _)| name);
    for name in names.filter(|name| name.starts_with("ETCD_")) {
        command.env_remove(name);
    }
    let spawned = command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.unwrap_or_else(|error| {
        panic!("cannot start etcd: {error}; install it (Debian: apt-get install etcd-server)")
    });
    let said = child.stderr.take().expect("a pipe");
    let (sender, receiver) = mpsc::channel();
    // Reads on for as long as the child lives: a full pipe would stop it.
    std::thread::spawn(move || {
        let mut log = String::new();
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if line.contains("ready to serve client requests") {
                let _ = sender.send(Ok(()));
            }
            log.push_str(&line);
            log.push('\n');
        }
        let _ = sender.send(Err(log));
    });
    (child, receiver)
}

pub fn client(urls: &[&str], tls: Option<Tls>, user: Option<User>, patience: Patience) -> Client {
    let endpoints = urls.iter().map(|url| url.parse().expect("an endpoint"));
    let options = Options {
        endpoints: endpoints.collect(),
        tls,
        user,
        patience,
    };
    Client::new(options).expect("options")
}

/// Runs a test on a runtime of its own, for at most [`DEADLINE`].
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let done = tokio::time::timeout(DEADLINE, test).await;
        done.expect("the test has not hung")
    })
}

/// The next update that is no failure.
pub async fn update(watch: &mut impl Watch) -> Update {
    loop {
        match watch.next().await {
            Update::Failed(_) => {}
            update => return update,
        }
    }
}

/// The sentence of an error. It names the member first.
pub fn sentence<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let text = result.expect_err("refused").to_string();
    assert!(text.starts_with("etcd at http"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    text
}
