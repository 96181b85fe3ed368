//! The broker's log on stderr: connects and disconnects, and never the contents of client messages.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use headwater_mqtt::encode::{self, ConnectFields, WillFields};
use headwater_mqtt::{QoS, Version};
use serde_json::Value;

use crate::common::http::ask;
use crate::common::{Client, Got};

const SECRETS: [&str; 5] = [
    "pass-4711",
    "payload-4711",
    "will-4711",
    "retained-4711",
    "aGVsbG86cGFzcy00NzEx",
];

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &std::path::Path) -> (Process, SocketAddr, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwaterd"));
    command.args(["--log-format", "json", "--set"]);
    command.arg(format!("data_dir={}", dir.display()));
    for listener in ["mqtt", "flight", "admin"] {
        command.arg("--set");
        command.arg(format!("listeners.{listener}.bind=127.0.0.1:0"));
    }
    command.env("HEADWATER_LOG_LEVEL", "trace");
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut process = Process(child.expect("the broker is built"));
    let stdout = process.0.stdout.take().expect("it is piped");
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("a line when it listens");
    let address = |prefix: &str| {
        let word = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix(prefix));
        let address = word.and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("no {prefix} in {line:?}"))
    };
    (process, address("mqtt="), address("admin="))
}

/// Collects its output, so that a full pipe never blocks it.
fn listen(process: &mut Process) -> std::thread::JoinHandle<String> {
    let mut stderr = process.0.stderr.take().expect("it is piped");
    std::thread::spawn(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).expect("it talks in UTF-8");
        said
    })
}

fn use_it(mqtt: SocketAddr, admin: SocketAddr) {
    let mut fields = ConnectFields::new(Version::V5, "device-4711");
    fields.username = Some("hello");
    fields.password = Some(b"pass-4711");
    fields.will = Some(WillFields {
        topic: "w",
        payload: b"will-4711",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: &[],
    });
    let mut client = Client::open(mqtt, Version::V5);
    client.send(|out| encode::connect(out, &fields));
    assert!(matches!(client.next(), Got::Connack { accepted: true, .. }));
    client.subscribe("t/#", 1);
    client.publish("t/1", "payload-4711");
    client.publish_with("t/2", "retained-4711", true, &[]);
    client.message();
    client.message();
    // A packet of the reserved type.
    client.send(|out| out.extend_from_slice(&[0x00, 0x00]));
    while client.next() != Got::Closed {}
    let authorization = format!("Authorization: Basic {}", SECRETS[4]);
    let headers = ["Host: localhost", &authorization];
    let answer = ask(admin, "GET /api/v1/clients", &headers);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn clients_are_named_when_they_come_and_go_and_nothing_that_they_sent_is_said_at_any_level() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut process, mqtt, admin) = start(dir.path());
    let listening = listen(&mut process);
    use_it(mqtt, admin);
    drop(process);
    let said = listening.join().expect("the listening thread ends");
    for secret in SECRETS {
        let line = said.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{line:?}");
    }
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    let find = |message: &str| {
        let of_client =
            |line: &&Value| line["message"] == message && line["client_id"] == "device-4711";
        let line = lines.iter().find(of_client);
        line.unwrap_or_else(|| panic!("no line {message:?} in\n{said}"))
    };
    let connected = find("connected");
    assert_eq!(connected["level"], "INFO");
    assert_eq!(connected["version"], "5");
    assert!(
        connected["address"]
            .as_str()
            .is_some_and(|address| address.starts_with("127.0.0.1:"))
    );
    let gone = find("disconnected by the broker");
    assert!(
        gone["reason"]
            .as_str()
            .is_some_and(|reason| reason.len() > 5),
        "{gone}"
    );
}
