//! Starting and stopping: the listeners, refusals in one sentence, and the answers of the admin listener.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::support::{Sent, TestBroker};
use headwater_broker::Broker;
use serde_json::{Value, json};

fn refusal(config: headwater_broker::config::Config) -> String {
    match Broker::start(config) {
        Ok(_) => panic!("the broker must not start"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_busy_port_is_named() {
    let broker = TestBroker::start(&[]);
    let busy = broker.broker().flight_address();
    let config = broker.config(&[
        &format!("listeners.flight.bind={busy}"),
        "data_dir=elsewhere",
    ]);
    let text = refusal(config);
    assert!(
        text.starts_with(&format!("cannot listen on {busy} for flight: ")),
        "{text}"
    );
    assert!(
        text.ends_with("set listeners.flight.bind to a free address"),
        "{text}"
    );
    assert!(
        !std::path::Path::new("elsewhere").exists(),
        "nothing is created before the ports are there"
    );
}

#[test]
fn a_folder_in_use_and_a_folder_of_another_log_are_refused() {
    let mut broker = TestBroker::start(&[]);
    let folder = broker.dir.path().join("log").display().to_string();
    let text = refusal(broker.config(&[]));
    assert!(text.contains(&folder) && text.contains("in use"), "{text}");
    broker.stop();
    let other = "7d3c9a52-58a1-4f0e-9a63-2f1c8f6f2b11";
    let text = refusal(broker.config(&[&format!("log.id={other}")]));
    assert!(text.contains(&folder) && text.contains(other), "{text}");
    // Neither refusal harmed the log.
    broker.restart();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_tells_health_readiness_figures_and_status() {
    let broker = TestBroker::start(&[]);
    let mut client = broker.client().await;
    client
        .produce(&[Sent::new("devices/d1/telemetry", "1")])
        .await
        .unwrap();
    assert_eq!(broker.http("/healthz"), (200, "ok".to_owned()));
    assert_eq!(broker.http("/readyz"), (200, "ready".to_owned()));
    let (code, text) = broker.http("/metrics");
    assert_eq!(code, 200);
    assert!(
        text.contains("headwater_flight_records_produced_total 1"),
        "{text}"
    );
    assert!(
        text.contains("headwater_partition_running{partition=\"internal-0\"} 1"),
        "{text}"
    );
    let (code, text) = broker.http("/api/v1/status");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &status["log_id"]),
        (200, &json!(broker.broker().log_id().to_string()))
    );
    assert_eq!(status["partitions"].as_array().unwrap().len(), 5);
    assert_eq!(broker.http("/nothing").0, 404);
}

#[test]
fn a_clean_stop_frees_ports_and_folder_at_once() {
    let mut broker = TestBroker::start(&[]);
    let id = broker.broker().log_id();
    for _ in 0..3 {
        broker.restart();
        assert_eq!(broker.broker().log_id(), id);
    }
}

/// `headwaterd` on free ports and the folder of `broker`, which must be stopped.
fn spawn(broker: &TestBroker, more: &[&str]) -> Child {
    let data_dir = format!("data_dir={}", broker.dir.path().join("log").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwaterd"));
    for set in [
        "listeners.mqtt.bind=127.0.0.1:0",
        "listeners.flight.bind=127.0.0.1:0",
        "listeners.admin.bind=127.0.0.1:0",
    ] {
        command.args(["--set", set]);
    }
    command
        .args(["--set", &data_dir, "--set", "log.segment_bytes=256KiB"])
        .args(more);
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("headwaterd runs")
}

#[test]
fn the_program_prints_one_line_when_it_listens_and_stops_cleanly_on_a_signal() {
    let mut broker = TestBroker::start(&[]);
    broker.stop();
    for signal in ["-TERM", "-INT"] {
        let mut child = spawn(&broker, &[]);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 4, "{line}");
        assert_eq!(words[0], "ready");
        for (word, name) in words[1..].iter().zip(["mqtt=", "flight=", "admin="]) {
            let address = word.strip_prefix(name).unwrap_or_else(|| panic!("{line}"));
            std::net::TcpStream::connect(address).unwrap();
        }
        Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing else goes to stdout");
    }
}

#[test]
fn the_program_says_in_one_sentence_why_it_does_not_start() {
    let broker = TestBroker::start(&[]);
    let busy = format!("listeners.admin.bind={}", broker.broker().admin_address());
    let cases = [
        (vec!["--set", busy.as_str()], 1, "cannot listen on"),
        (vec![], 1, "in use"),
        (
            vec!["--set", "log.snyc=never"],
            5,
            "did you mean `log.sync`?",
        ),
        (
            vec!["--set", "listeners.mqtt.bind=0.0.0.0:0"],
            5,
            "auth.allow_anonymous: true",
        ),
    ];
    for (more, code, words) in cases {
        let output = spawn(&broker, &more).wait_with_output().unwrap();
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(code), 0),
            "{talk}"
        );
        let sentences: Vec<&str> = talk
            .lines()
            .filter(|line| line.starts_with("headwaterd: "))
            .collect();
        assert!(
            sentences.len() == 1 && sentences[0].contains(words),
            "{talk}"
        );
    }
}
