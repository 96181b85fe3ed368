//! What the console is told of what happened to clients: in order, by client, counted, and bounded.

use std::net::SocketAddr;
use std::time::Instant;

use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};
use serde_json::{Value, json};

use super::console::{get, refused};
use crate::auth::{basic, line, write};
use crate::common::http::{ask, json as get_json, status};
use crate::common::{Client, DEADLINE, Got, start, start_with};

const HOST: &str = "Host: localhost";

fn events(admin: SocketAddr, query: &str) -> Vec<Value> {
    let page = get(admin, &format!("/api/v1/events?{query}"));
    page["events"].as_array().expect("a list").clone()
}

/// The events of a client as `what`, the oldest first, once there are so many. The loop notes them when it has time.
fn whats(admin: SocketAddr, client_id: &str, count: usize) -> Vec<String> {
    let until = Instant::now() + DEADLINE;
    loop {
        let mut found = events(admin, &format!("client_id={client_id}"));
        found.reverse();
        let name = |row: &Value| row["what"].as_str().expect("a word").to_owned();
        let names: Vec<String> = found.iter().map(name).collect();
        if names.len() >= count {
            return names;
        }
        assert!(Instant::now() < until, "{found:?}");
        std::thread::yield_now();
    }
}

#[test]
fn the_history_of_a_client_has_its_connects_takeovers_kicks_and_ends() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (admin, mqtt) = (broker.admin_address(), broker.mqtt_address());
    let (_first, _) = Client::resume(mqtt, Version::V5, "pump");
    let (_second, _) = Client::resume(mqtt, Version::V5, "pump");
    assert_eq!(
        whats(admin, "pump", 3),
        ["connected", "taken_over", "connected"]
    );
    let (code, _) = get_json(admin, "DELETE", "/api/v1/clients/pump?session=true");
    assert_eq!(code, 200);
    let all = whats(admin, "pump", 5);
    assert_eq!(all[3..], ["disconnected", "kicked"]);
    let other = Client::connect(mqtt, Version::V311, "other");
    other.disconnect();
    assert_eq!(whats(admin, "other", 2), ["connected", "disconnected"]);
    let newest = &events(admin, "limit=1")[0];
    assert_eq!(
        (&newest["client_id"], &newest["version"], &newest["reason"]),
        (&json!("other"), &json!("3.1.1"), &json!("by the client"))
    );
    assert_eq!(
        (&newest["count"], &newest["user"]),
        (&json!(1), &Value::Null)
    );
    assert!(
        newest["address"]
            .as_str()
            .is_some_and(|at| at.starts_with("127.0.0.1:"))
    );
    let kicked = &events(admin, "client_id=pump&limit=1")[0];
    assert_eq!(kicked["reason"], "by an operator, who ended its session");

    // Page by page it is the same.
    let whole = get(admin, "/api/v1/events");
    assert_eq!(whole["next"], Value::Null);
    assert!(whole["since_us"].as_i64() <= whole["events"][0]["first_us"].as_i64());
    let (mut paged, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(admin, &format!("/api/v1/events?limit=2{after}"));
        paged.extend(page["events"].as_array().expect("a list").clone());
        let Some(next) = page["next"].as_u64() else {
            break;
        };
        after = format!("&after={next}");
    }
    assert_eq!(json!(paged), whole["events"]);
    for (query, needed) in [
        ("limit=0", "write 1 to 1000"),
        ("limit=1001", "write 1 to 1000"),
        ("after=-1", "after"),
        ("client=x", "client"),
    ] {
        let sentence = refused(admin, &format!("/api/v1/events?{query}"), 400);
        assert!(sentence.contains(needed), "{query}: {sentence}");
    }
    broker.shutdown();
}

#[test]
fn a_client_in_a_loop_is_counted_and_leaves_what_is_known_of_others() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (admin, mqtt) = (broker.admin_address(), broker.mqtt_address());
    Client::connect(mqtt, Version::V5, "quiet").disconnect();
    for _ in 0..200 {
        Client::connect(mqtt, Version::V5, "loop").disconnect();
    }
    let until = Instant::now() + DEADLINE;
    let rows = loop {
        let rows = events(admin, "client_id=loop");
        if rows.len() == 2 && rows.iter().all(|row| row["count"] == 200) {
            break rows;
        }
        assert!(Instant::now() < until, "{rows:?}");
    };
    assert!(rows[0]["last_us"].as_i64() > rows[0]["first_us"].as_i64());
    assert_eq!(whats(admin, "quiet", 2), ["connected", "disconnected"]);
    broker.shutdown();
}

#[test]
fn hostile_ids_are_cut_and_found_by_the_whole_of_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (admin, mqtt) = (broker.admin_address(), broker.mqtt_address());
    let long = format!("<img src=x>\u{202e}{}", "ü".repeat(5_000));
    let other = format!("{long}!");
    for id in [&long, &other] {
        drop(Client::connect(mqtt, Version::V5, id));
    }
    let quoted = |id: &str| {
        id.bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect::<String>()
    };
    let found = events(admin, &format!("client_id={}", quoted(&other)));
    assert!(!found.is_empty());
    for row in &found {
        let shown = row["client_id"].as_str().expect("text");
        assert_eq!((shown.chars().count(), &row["is_cut"]), (64, &json!(true)));
        assert!(long.starts_with(shown));
    }
    assert!(events(admin, "client_id=nobody").is_empty());
    broker.shutdown();
}

#[test]
fn refusals_have_their_reasons_and_only_those_who_may_look_see_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write(
        dir.path(),
        "users",
        &["root", "eye", "pump"].map(line).concat(),
    );
    write(
        dir.path(),
        "acl",
        "user root\noperator\nuser eye\nviewer\nuser pump\ntopic write own/#\n",
    );
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(dir.path().join("users"));
        config.auth.acl_file = Some(dir.path().join("acl"));
    });
    let (admin, mqtt) = (broker.admin_address(), broker.mqtt_address());
    let mut fields = ConnectFields::new(Version::V5, "pump-7");
    fields.username = Some("pump");
    fields.password = Some(b"pw-pump");
    let (mut client, _) = Client::connect_with(mqtt, fields);
    for _ in 0..3 {
        client.send_publish("other/x", b"no", 1, false, &[]);
        client.wait_for(|got| matches!(got, Got::Puback { .. }));
    }
    fields.password = Some(b"wrong");
    let mut stranger = Client::open(mqtt, Version::V5);
    stranger.send(|out| encode::connect(out, &fields));
    stranger.wait_for(|got| {
        matches!(
            got,
            Got::Connack {
                accepted: false,
                ..
            }
        )
    });
    let seen = |user: &str| {
        let shown = format!("Authorization: {}", basic(user));
        ask(
            admin,
            "GET /api/v1/events?client_id=pump-7",
            &[HOST, &shown],
        )
    };
    let answer = seen("eye");
    assert_eq!(status(&answer), 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let page: Value = serde_json::from_str(body).expect("JSON");
    let rows = page["events"].as_array().expect("a list");
    let row = |act: &str| {
        let found = rows.iter().find(|row| row["act"] == act);
        found.unwrap_or_else(|| panic!("{act}: {rows:?}"))
    };
    let publish = row("publish");
    assert_eq!(
        (&publish["reason"], &publish["user"], &publish["count"]),
        (&json!("acl"), &json!("pump"), &json!(3))
    );
    assert_eq!(row("connect")["reason"], "bad_credentials");
    assert_eq!(row("connect")["user"], Value::Null, "nobody has proved it");
    assert_eq!(status(&seen("pump")), 403);
    assert_eq!(status(&ask(admin, "GET /api/v1/events", &[HOST])), 401);
    broker.shutdown();
}
