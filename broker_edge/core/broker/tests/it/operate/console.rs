//! What the console asks a broker for once (docs/console.md): its files, topics, records, groups, rights and traces. Its
//! streams are in `streams`.

use std::io::{Read, Write};
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_mqtt::Version;
use serde_json::{Value, json};

use crate::common::http::{ask, json as get_json, status};
use crate::common::{Client, start, start_with, tcp};
use crate::support::TestBroker;

pub fn get(admin: SocketAddr, path: &str) -> Value {
    let (code, body) = get_json(admin, "GET", path);
    assert_eq!(code, 200, "{path}: {body}");
    body
}

/// The sentence of a refusal.
pub fn refused(admin: SocketAddr, path: &str, code: u16) -> String {
    let (found, body) = get_json(admin, "GET", path);
    assert_eq!(found, code, "{path}: {body}");
    body["message"].as_str().expect("a sentence").to_owned()
}

#[test]
fn the_files_of_the_page_are_compressed_tagged_and_for_everybody() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let users = dir.path().join("users");
    std::fs::write(&users, "").expect("a file");
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(users);
    });
    let admin = broker.admin_address();
    let page = ask(admin, "GET /", &["Host: localhost"]);
    assert_eq!(status(&page), 200);
    let files: Vec<&str> = page
        .split('"')
        .filter(|text| text.starts_with("ui/"))
        .collect();
    assert!(files.iter().any(|file| file.ends_with(".js")), "{page}");
    for file in files {
        let mut stream = tcp(admin);
        let request =
            format!("GET /{file} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is taken");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        assert!(head.starts_with("HTTP/1.1 200"), "{file}: {head}");
        assert!(head.contains("content-encoding: gzip"), "{file}: {head}");
        assert!(head.contains("cache-control: no-cache"), "{file}: {head}");
        assert_eq!(answer[end + 4..][..2], [0x1f, 0x8b], "{file}");
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        let held = format!("If-None-Match: {}", tag.expect("a tag"));
        let again = ask(admin, &format!("GET /{file}"), &["Host: localhost", &held]);
        assert_eq!(status(&again), 304, "{file}");
    }
    for (line, code) in [
        ("GET /ui/nothing.js", 404),
        ("GET /ui/../users", 404),
        ("GET /api/v1/console", 401),
        ("GET /api/v1/live", 401),
    ] {
        assert_eq!(
            status(&ask(admin, line, &["Host: localhost"])),
            code,
            "{line}"
        );
    }
    broker.shutdown();
}

#[test]
fn a_page_learns_what_it_may_show() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let told = get(admin, "/api/v1/console");
    assert_eq!(told["scope"], "broker");
    assert_eq!(told["has_users"], false);
    assert_eq!(told["operator"], true);
    assert_eq!(told["pages"][0], "overview");
    let flight = broker.flight_address().port();
    let port = admin.port();
    for (host, server) in [
        (
            format!("localhost:{port}"),
            json!(format!("grpc://localhost:{flight}")),
        ),
        (
            format!("[::1]:{port}"),
            json!(format!("grpc://[::1]:{flight}")),
        ),
        // A forwarded port, and a proxy.
        ("localhost:1".to_owned(), Value::Null),
        ("localhost".to_owned(), Value::Null),
    ] {
        let host = format!("Host: {host}");
        let answer = ask(admin, "GET /api/v1/console", &[&host]);
        let told = format!("\"server\":{server}");
        assert!(answer.contains(&told), "{host}: {answer}");
    }
    let telemetry = told["partitions"].as_array().expect("a list");
    assert!(telemetry.iter().any(|one| one["class"] == "telemetry"));
    broker.shutdown();
}

#[test]
fn topics_are_found_by_any_part_of_their_names_page_by_page() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "c");
    for number in 0..5 {
        client.publish(&format!("devices/{number}/telemetry"), "x");
        client.publish(&format!("devices/{number}/Über <b>"), "x");
    }
    let names = |path: &str| -> Vec<String> {
        let page = get(admin, path);
        let topics = page["topics"].as_array().expect("a list").clone();
        topics
            .iter()
            .map(|row| row["topic"].as_str().expect("a name").to_owned())
            .collect()
    };
    assert_eq!(names("/api/v1/topics?contains=devices/3").len(), 2);
    assert_eq!(
        names("/api/v1/topics?contains=%C3%9Cber%20%3Cb%3E").len(),
        5
    );
    assert_eq!(names("/api/v1/topics?contains=nothing"), [""; 0]);
    let mut all = Vec::new();
    let mut path = "/api/v1/topics?contains=telemetry&limit=2".to_owned();
    loop {
        let page = get(admin, &path);
        let rows = page["topics"].as_array().expect("a list").clone();
        assert!(rows.len() <= 2);
        all.extend(rows);
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/api/v1/topics?contains=telemetry&limit=2&after={next}");
    }
    let expected: Vec<String> = (0..5)
        .map(|number| format!("devices/{number}/telemetry"))
        .collect();
    assert_eq!(
        all.iter()
            .map(|row| row["topic"].as_str().expect("a name"))
            .collect::<Vec<_>>(),
        expected
    );
    assert!(
        all.iter()
            .all(|row| row["class"] == "telemetry" && row["next"].as_u64() > row["first"].as_u64())
    );
    for (path, needed) in [
        ("/api/v1/topics?limit=0", "limit: 0 is out of range"),
        ("/api/v1/topics?limit=1001", "write 1 to 1000"),
        ("/api/v1/topics?search=x", "search"),
    ] {
        let sentence = refused(admin, path, 400);
        assert!(sentence.contains(needed), "{sentence}");
    }
    broker.shutdown();
}

/// The partition of a topic, by its number.
fn partition_of(admin: SocketAddr, topic: &str) -> u64 {
    let page = get(admin, &format!("/api/v1/topics?contains={topic}"));
    page["topics"][0]["partition"]
        .as_u64()
        .expect("a partition")
}

#[test]
fn records_are_read_from_an_offset_a_time_the_beginning_and_the_end() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let mut client = Client::connect(broker.mqtt_address(), Version::V5, "meter-7");
    for number in 0..6 {
        client.publish("devices/1/telemetry", format!("n{number}"));
        client.publish("devices/1/status", "up");
    }
    let large = vec![7; 100_000];
    client.publish("devices/1/telemetry", &large);
    let partition = partition_of(admin, "devices/1/telemetry");
    let read = |more: &str| {
        get(
            admin,
            &format!("/api/v1/records?partition={partition}&{more}"),
        )
    };
    let values = |answer: &Value| -> Vec<String> {
        let records = answer["records"].as_array().expect("a list");
        let decode = |record: &Value| {
            STANDARD
                .decode(record["value"].as_str().expect("text"))
                .expect("base64")
        };
        records
            .iter()
            .map(|record| String::from_utf8_lossy(&decode(record)).into_owned())
            .collect()
    };
    let all = read("from=earliest&filter=devices/%2B/telemetry");
    assert_eq!(values(&all)[..6], ["n0", "n1", "n2", "n3", "n4", "n5"]);
    assert_eq!(all["next"], all["high_watermark"]);
    assert_eq!(all["gap"], Value::Null);
    let first = &all["records"][0];
    assert_eq!(first["topic"], "devices/1/telemetry");
    assert_eq!(first["client_id"], "meter-7");
    assert_eq!(first["qos"], 1);
    assert_eq!(
        (&first["size"], &first["is_cut"]),
        (&json!(2), &json!(false))
    );
    let cut = &all["records"][6];
    assert_eq!(
        (&cut["size"], &cut["is_cut"]),
        (&json!(100_000), &json!(true))
    );
    assert_eq!(values(&all)[6].len(), 64 << 10);
    // Page by page.
    let two = read("from=earliest&limit=2&filter=devices/1/telemetry");
    assert_eq!(values(&two), ["n0", "n1"]);
    let more = read(&format!(
        "from={}&limit=2&filter=devices/1/telemetry",
        two["next"]
    ));
    assert_eq!(values(&more), ["n2", "n3"]);
    // By time, and the newest.
    let third = &all["records"][2];
    let from_third = read(&format!(
        "time_us={}&filter=devices/1/telemetry",
        third["time_us"]
    ));
    assert_eq!(values(&from_third)[0], "n2");
    assert_eq!(values(&read("limit=3"))[1], "up");
    for (more, code, needed) in [
        ("from=99", 400, "outside"),
        ("from=soon", 400, "write a number, `earliest` or `latest`"),
        ("from=1&time_us=1", 400, "not both"),
        ("limit=501", 400, "write 1 to 500"),
        ("filter=a%23", 400, "#"),
    ] {
        let sentence = refused(
            admin,
            &format!("/api/v1/records?partition={partition}&{more}"),
            code,
        );
        assert!(sentence.contains(needed), "{more}: {sentence}");
    }
    assert!(refused(admin, "/api/v1/records?partition=9999", 404).contains("9999"));
    broker.shutdown();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_told_with_their_lag_in_seconds_and_what_they_have_lost() {
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut flight = broker.client().await;
    flight
        .produce(&[
            crate::support::Sent::new("devices/1/telemetry", "a"),
            crate::support::Sent::new("devices/1/telemetry", "b"),
        ])
        .await
        .expect("they are taken");
    let admin = broker.broker().admin_address();
    let partition = partition_of(admin, "devices/1/telemetry").to_string();
    for (name, committed) in [("behind", 1), ("done", 2)] {
        let commit = json!({"group": name, "reader_epoch": 1, "offsets": {&partition: {"committed": committed}}});
        flight.act("commit", commit).await.expect("it is taken");
    }
    let page = get(admin, "/api/v1/groups");
    let place = |number: usize| page["groups"][number]["partitions"][0].clone();
    assert_eq!(
        (&page["groups"][0]["group"], &page["groups"][1]["group"]),
        (&json!("behind"), &json!("done"))
    );
    assert_eq!(page["groups"][0]["is_idle"], false);
    assert_eq!(
        (&place(0)["next"], &place(0)["lag_records"]),
        (&json!(1), &json!(1))
    );
    assert!(place(0)["lag_s"].as_f64() >= Some(0.0), "{}", place(0));
    assert_eq!(
        (&place(1)["lag_records"], &place(1)["lag_s"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(place(0)["lost_records"], 0);
    let first = get(admin, "/api/v1/groups?limit=1");
    assert_eq!(first["next"], "behind");
    let rest = get(admin, "/api/v1/groups?limit=1&after=behind");
    assert_eq!(
        (&rest["groups"][0]["group"], &rest["next"]),
        (&json!("done"), &Value::Null)
    );
    let found = get(admin, "/api/v1/groups?contains=on");
    assert_eq!(found["groups"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["groups"][0]["group"], "done");
}

#[test]
fn a_question_about_access_is_answered_with_the_line_that_decides() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let acl = dir.path().join("acl");
    std::fs::write(&acl, "topic read public/#\n\ntopic deny public/secret\n").expect("a file");
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.acl_file = Some(acl);
        config.auth.open_metrics = true;
    });
    let admin = broker.admin_address();
    // With an ACL file nobody is an operator without a name.
    let sentence = refused(admin, "/api/v1/access?access=receive&topic=public/x", 403);
    assert!(sentence.contains("viewer"), "{sentence}");
    broker.shutdown();

    let broker = start(&dir.path().join("open"));
    let told = get(
        broker.admin_address(),
        "/api/v1/access?user=ann&access=publish&topic=a",
    );
    assert_eq!(
        (&told["allowed"], &told["line"], &told["file"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    for (query, needed) in [
        ("access=publish&topic=a/%23", "topic"),
        ("access=write&topic=a", "publish"),
        ("access=publish", "topic"),
    ] {
        let sentence = refused(
            broker.admin_address(),
            &format!("/api/v1/access?{query}"),
            400,
        );
        assert!(sentence.contains(needed), "{query}: {sentence}");
    }
    broker.shutdown();
}

#[test]
fn a_record_is_traced_to_its_batch_and_to_the_sessions_that_have_passed_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    let (mut reader, _) = Client::resume(broker.mqtt_address(), Version::V5, "reader");
    reader.subscribe("devices/+/telemetry", 1);
    let (mut other, _) = Client::resume(broker.mqtt_address(), Version::V5, "other");
    other.subscribe("alarms/#", 1);
    let mut publisher = Client::connect(broker.mqtt_address(), Version::V5, "meter-7");
    publisher.publish("devices/meter-7/telemetry", "20.5");
    reader.message();
    let page = get(admin, "/api/v1/topics?contains=meter-7");
    let name = page["topics"][0]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    let at = |offset: u64| get(admin, &format!("/api/v1/trace?at={name}:{offset}"));
    let trace = at(0);
    assert_eq!(trace["state"], "here");
    assert_eq!(trace["record"]["topic"], "devices/meter-7/telemetry");
    assert_eq!(trace["record"]["client_id"], "meter-7");
    assert_eq!(trace["record"]["value"], STANDARD.encode("20.5"));
    assert_eq!(trace["record"].get("is_hidden"), None);
    assert_eq!(trace["batch"]["first"], 0);
    let sessions = trace["sessions"].as_array().expect("a list");
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    assert_eq!(sessions[0]["client_id"], "reader");
    assert_eq!(sessions[0]["filter"], "devices/+/telemetry");
    assert_eq!(trace["sessions_left_out"], false);
    assert_eq!(at(1)["state"], "not_yet");
    assert_eq!(at(1)["record"], Value::Null);
    for (at, code, needed) in [
        ("telemetry-0", 400, "telemetry-0:4711"),
        ("telemetry-0:x", 400, "telemetry-0:4711"),
        ("telemetry-0:99999999999999999999", 400, "is too large"),
        ("nothing-9:1", 404, "nothing-9; there are "),
    ] {
        let sentence = refused(admin, &format!("/api/v1/trace?at={at}"), code);
        assert!(sentence.contains(needed), "{at}: {sentence}");
    }
    broker.shutdown();
}
