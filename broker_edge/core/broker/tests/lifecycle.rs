//! Starting and stopping: what listens, what is refused in one sentence, what the admin listener says.

#![allow(clippy::unwrap_used)]

mod support;

use headwater_broker::Broker;
use serde_json::{Value, json};
use support::{Sent, TestBroker};

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
