//! The streams of events that the console follows (docs/console.md): live numbers with alerts, and the tail.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_mqtt::Version;
use serde_json::{Value, json};

use super::console::{get, refused};
use super::session::{call, password_of, sign_in, start_for_all};
use crate::auth::{basic, connect};
use crate::common::http::json as get_json;
use crate::common::{Client, start, start_with, tcp};

/// A stream of events.
struct Stream {
    lines: BufReader<TcpStream>,
}

impl Stream {
    fn open(admin: SocketAddr, path: &str) -> Stream {
        Stream::open_with(admin, path, "Accept: text/event-stream")
    }

    fn open_with(admin: SocketAddr, path: &str, header: &str) -> Stream {
        let mut stream = tcp(admin);
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is taken");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).expect("a head"), 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let head = head.to_lowercase();
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert!(head.contains("x-accel-buffering: no"), "{head}");
        Stream { lines }
    }

    /// The data of the next event, which has this name; None at the end.
    fn next(&mut self, name: &str) -> Option<Value> {
        let mut named = false;
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).expect("an event in time") == 0 {
                return None;
            }
            // Between the events are the sizes of chunks, and comments.
            if let Some(event) = line.strip_prefix("event: ") {
                assert_eq!(event.trim(), name);
                named = true;
            } else if let Some(data) = line.strip_prefix("data: ") {
                assert!(named, "an event without a name");
                return Some(serde_json::from_str(data).expect("JSON"));
            }
        }
    }

    /// The next event for which `look` finds something.
    fn until<T>(&mut self, name: &str, mut look: impl FnMut(&Value) -> Option<T>) -> T {
        loop {
            let data = self.next(name).expect("the stream goes on");
            if let Some(found) = look(&data) {
                return found;
            }
        }
    }
}

#[test]
fn a_stream_tells_each_second_what_the_broker_does() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let mut stream = Stream::open(admin, "/api/v1/live");
    stream.next("stats").expect("the first at once");
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "c");
    client.publish("devices/1/telemetry", "20.5");
    let at_ms = stream.until("stats", |stats| {
        let sample = &stats["sample"];
        let is_in = sample["publishes_in"].as_f64() > Some(0.0);
        assert_eq!(stats["alerts"], json!([]));
        is_in.then(|| {
            assert!(sample["bytes_in"].as_f64() > Some(3.0), "{sample}");
            assert!(sample["ack_p99_s"].as_f64() > Some(0.0), "{sample}");
            stats["at_ms"].as_i64().expect("a time")
        })
    });
    let appended = stream.until("stats", |stats| {
        let offsets = stats["offsets"].as_array().expect("a pair each");
        let appended = offsets
            .iter()
            .map(|pair| pair[1].as_u64().expect("a number"));
        Some(appended.sum::<u64>()).filter(|sum| *sum > 0)
    });
    assert!(appended > 0);
    let history = get(admin, "/api/v1/live/history");
    assert!(history["end_ms"].as_i64() >= Some(at_ms));
    let series = |name: &str| history["series"][name].as_array().expect("numbers").clone();
    assert!(
        series("publishes_in")
            .iter()
            .any(|one| one.as_f64() > Some(0.0))
    );
    assert!(
        series("publishes_in")
            .iter()
            .all(|one| one.as_f64() >= Some(0.0))
    );
    assert_eq!(series("publishes_in").len(), series("ack_p99_s").len());
    // A stream ends when the broker stops, and does not keep it from stopping.
    broker.shutdown();
    while stream.next("stats").is_some() {}
}

#[test]
fn one_stream_too_many_is_told_and_a_closed_one_makes_room() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_with(dir.path(), |config| config.admin.max_streams = 2);
    let admin = broker.admin_address();
    let first = Stream::open(admin, "/api/v1/live");
    let _second = Stream::open(admin, "/api/v1/tail");
    for path in ["/api/v1/live", "/api/v1/tail"] {
        let sentence = refused(admin, path, 503);
        assert!(sentence.contains("admin.max_streams"), "{sentence}");
    }
    drop(first);
    let mut free = None;
    let until = std::time::Instant::now() + crate::common::DEADLINE;
    while free.is_none() && std::time::Instant::now() < until {
        let (code, _) = crate::common::http::text(admin, "HEAD", "/api/v1/live");
        free = (code == 200).then_some(());
    }
    assert_eq!(
        free,
        Some(()),
        "the place of a page that is gone is free again"
    );
    broker.shutdown();
}

#[test]
fn a_tail_shows_what_comes_and_says_how_much_it_passed_over() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "c");
    client.publish("devices/1/telemetry", "before");
    let mut tail = Stream::open(admin, "/api/v1/tail?filter=devices/%2B/telemetry");
    let first = tail.next("records").expect("it has begun");
    assert_eq!(first, json!({"records": [], "skipped": 0}));
    client.publish("devices/1/status", "up");
    client.publish("devices/1/telemetry", "after");
    let record = tail.until("records", |new| new["records"].get(0).cloned());
    assert_eq!(record["topic"], "devices/1/telemetry");
    assert_eq!(record["value"], STANDARD.encode("after"));
    // More at once than an event holds: each is shown or counted.
    for number in 0..500 {
        client.send_publish(
            "devices/1/telemetry",
            number.to_string().as_bytes(),
            0,
            false,
            &[],
        );
    }
    client.publish("devices/1/telemetry", "last");
    let mut counted = 0;
    tail.until("records", |new| {
        let records = new["records"].as_array().expect("a list");
        assert!(records.len() <= 50);
        counted += records.len() as u64 + new["skipped"].as_u64().expect("a number");
        (counted >= 501).then_some(())
    });
    assert_eq!(counted, 501);
    let sentence = refused(admin, "/api/v1/tail?filter=a%23", 400);
    assert!(sentence.contains('#'), "{sentence}");
    broker.shutdown();
}

#[test]
fn what_is_wrong_is_told_with_what_to_do_about_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let mut stream = Stream::open(admin, "/api/v1/live");
    let alerts = |stats: &Value| stats["alerts"].as_array().expect("a list").clone();
    assert_eq!(get_json(admin, "PUT", "/api/v1/drain").0, 200);
    let alert = stream.until("stats", |stats| alerts(stats).pop());
    assert_eq!(
        (&alert["name"], &alert["severity"]),
        (&json!("draining"), &json!("warning"))
    );
    for text in ["summary", "remedy"] {
        assert!(
            alert[text].as_str().is_some_and(|text| text.len() > 10),
            "{alert}"
        );
    }
    assert_eq!(get_json(admin, "DELETE", "/api/v1/drain").0, 200);
    stream.until("stats", |stats| alerts(stats).is_empty().then_some(()));
    broker.shutdown();
}

#[test]
fn the_streams_of_a_session_end_with_it_and_those_of_others_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start_for_all(dir.path(), |_| {});
    let admin = broker.admin_address();
    let [one, other] = [(); 2].map(|()| sign_in(&broker, &password_of("root")));
    let basic = format!("Authorization: {}", basic("root"));
    let open = |header: &str| {
        ["/api/v1/live", "/api/v1/tail"].map(|path| Stream::open_with(admin, path, header))
    };
    let [mut live, mut tail] = open(&one);
    let going_on = [open(&other), open(&basic)];
    assert_eq!(call(&broker, "DELETE /api/v1/session", &[&one]), 204);
    let mut ends = (0..60).map(|_| live.next("stats").is_none());
    assert!(ends.any(|is_end| is_end), "it tells what the broker does");
    let mut ends = (0..60).map(|_| tail.next("records").is_none());
    assert!(
        ends.any(|is_end| is_end),
        "it would show what others publish"
    );
    let (mut client, code) = connect(&broker, "c", "writer", "pw-writer");
    assert_eq!(code, 0);
    client.publish("plants/1", "20.5");
    for [mut live, mut tail] in going_on {
        live.until("stats", |stats| {
            let sample = &stats["sample"];
            (sample["publishes_in"].as_f64() > Some(0.0)).then_some(())
        });
        tail.until("records", |new| new["records"].get(0).map(|_| ()));
    }
    broker.shutdown();
}
