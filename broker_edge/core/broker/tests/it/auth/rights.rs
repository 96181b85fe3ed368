//! What a user may do and see: the same rules for MQTT, Flight and admin HTTP.

use super::flight::Flight;
use super::{ACL, basic, connect, http, start, start_for_two, write};
use std::net::SocketAddr;

use crate::common::start_with;
use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket};
use futures::{StreamExt, TryStreamExt, stream};
use headwater_broker::Broker;
use serde_json::{Value, json};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn flight_and_admin_ask_the_users_and_rights_of_mqtt() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let (mut root, code) = connect(&broker, "r", "root", "pw-root");
    assert_eq!(code, 0);
    root.publish("plants/1/a", "1");
    root.publish("plants/2/a", "2");

    let mut nobody = Flight::open(&broker, None).await;
    let mut wrong = Flight::open(&broker, Some(basic("eve"))).await;
    for flight in [&mut nobody, &mut wrong] {
        for action in ["version", "topics", "groups", "backup"] {
            assert_eq!(
                flight.code(action, json!({})).await,
                Code::Unauthenticated,
                "{action}"
            );
        }
    }
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    assert_eq!(reader.topics().await.unwrap(), ["plants/1/a"]);
    let mut seen = 0;
    for partition in 1..=4 {
        let ticket = json!({"partition": partition, "start": 0, "end": 0});
        seen += reader.rows(ticket).await.unwrap_or(0);
        let bounds = root_bounds(&broker, partition).await;
        let ticket = json!({"partition": partition, "start": 0, "end": bounds});
        seen += reader.rows(ticket).await.unwrap_or(0);
    }
    assert_eq!(seen, 1, "rows of other topics are left out");
    let others = json!({"partition": 3, "filters": ["plants/2/#"], "start": 0, "end": 0});
    assert_eq!(
        reader.rows(others).await.unwrap_err().code(),
        Code::PermissionDenied
    );
    assert_eq!(
        reader.code("remove_group", json!({"group": "g"})).await,
        Code::PermissionDenied
    );
    assert_eq!(
        reader.code("backup", json!({"name": "b"})).await,
        Code::PermissionDenied
    );
    assert_eq!(reader.code("groups", json!({})).await, Code::Ok);
    let mut writer = Flight::open(&broker, Some(basic("writer"))).await;
    assert_eq!(
        writer.code("topics", json!({})).await,
        Code::PermissionDenied
    );
    assert_eq!(
        writer.code("groups", json!({})).await,
        Code::PermissionDenied
    );
    let mut root = Flight::open(&broker, Some(basic("root"))).await;
    assert_eq!(
        root.code("remove_group", json!({"group": "g"})).await,
        Code::NotFound
    );

    let admin = broker.admin_address();
    assert_eq!(http(admin, "GET", "/healthz", None).0, 200);
    assert_eq!(http(admin, "GET", "/readyz", None).0, 200);
    for path in ["/metrics", "/api/v1/status", "/api/v1/clients", "/nowhere"] {
        assert_eq!(http(admin, "GET", path, None).0, 401, "{path}");
        assert_eq!(http(admin, "GET", path, Some("eve")).0, 401, "{path}");
    }
    assert_eq!(http(admin, "POST", "/api/v1/reload", None).0, 401);
    assert_eq!(http(admin, "GET", "/metrics", Some("writer")).0, 200);
    assert_eq!(http(admin, "GET", "/api/v1/status", Some("writer")).0, 403);
    assert_eq!(http(admin, "POST", "/api/v1/reload", Some("reader")).0, 403);
    assert_eq!(http(admin, "GET", "/api/v1/status", Some("root")).0, 200);
    let (_, metrics) = http(admin, "GET", "/metrics", Some("root"));
    assert!(
        metrics.contains("headwater_auth_denied_total{reason=\"bad_credentials\"}"),
        "{metrics}"
    );
}

fn body(admin: SocketAddr, path: &str, user: Option<&str>) -> Value {
    let (status, answer) = http(admin, "GET", path, user);
    assert_eq!(status, 200, "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn every_user_is_told_the_name_that_the_broker_has_verified() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let admin = broker.admin_address();
    let log_id = body(admin, "/api/v1/status", Some("root"))["log_id"].take();
    assert!(log_id.is_string());
    for (user, is_operator) in [("root", true), ("writer", false)] {
        let expected = json!({
            "log_id": log_id,
            "user": user,
            "tenant": null,
            "operator": is_operator,
            "viewer": is_operator,
        });
        assert_eq!(body(admin, "/api/v1/whoami", Some(user)), expected);
    }
    for user in [None, Some("eve")] {
        assert_eq!(http(admin, "GET", "/api/v1/whoami", user).0, 401);
    }
    assert_eq!(http(admin, "POST", "/api/v1/whoami", Some("root")).0, 405);
}

#[test]
fn a_broker_without_users_has_verified_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_with(dir.path(), |_| {});
    let found = body(broker.admin_address(), "/api/v1/whoami", None);
    assert_eq!(found["user"], Value::Null);
    assert_eq!(found["operator"], json!(true));
}

async fn root_bounds(broker: &Broker, partition: u32) -> u64 {
    let mut root = Flight::open(broker, Some(basic("root"))).await;
    let answer = root
        .act("offsets", json!({"partitions": [partition]}))
        .await
        .unwrap();
    answer[0]["partitions"][partition.to_string()]["high_watermark"]
        .as_u64()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_follows_ends_when_its_rights_are_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let ticket = json!({"partition": 3, "start": 0, "follow": true}).to_string();
    let request = reader.request(Ticket::new(ticket));
    let mut messages = reader.service.do_get(request).await.unwrap().into_inner();
    assert!(messages.next().await.unwrap().is_ok(), "the schema");
    write(
        dir.path(),
        "acl",
        &ACL.replace("topic replay plants/1/#", ""),
    );
    broker.reload().unwrap();
    let ended = loop {
        match messages.next().await {
            Some(Ok(_)) => {}
            Some(Err(status)) => break status,
            None => panic!("it ended without a reason"),
        }
    };
    assert_eq!(ended.code(), Code::PermissionDenied);
}

#[test]
fn metrics_can_be_opened_and_nothing_else_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |auth| auth.open_metrics = true);
    let admin = broker.admin_address();
    assert_eq!(http(admin, "GET", "/metrics", None).0, 200);
    assert_eq!(http(admin, "GET", "/api/v1/status", None).0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn flight_takes_no_call_that_a_web_page_can_make() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let mut root = Flight::open(&broker, Some(basic("root"))).await;
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let mut request = root.request(Action::new("version", "{}"));
        request.metadata_mut().insert(name, value.parse().unwrap());
        let refused = root.service.do_action(request).await.err().unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}");
    }
    assert_eq!(root.code("version", json!({})).await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_group_belongs_to_who_made_it() {
    let dir = tempfile::tempdir().unwrap();
    // Made before users were configured: it has no owner.
    let open = start_with(&dir.path().join("log"), |_| {});
    let mut anybody = Flight::open(&open, None).await;
    let old = json!({"group": "old", "reader_epoch": 1});
    anybody.act("commit", old.clone()).await.unwrap();
    drop(anybody);
    open.shutdown();

    let broker = start_for_two(dir.path(), |_| {});
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    let mut root = Flight::open(&broker, Some(basic("root"))).await;
    let commit = json!({"group": "bronze", "reader_epoch": 1, "initial": {"3": 0}});
    reader.act("commit", commit.clone()).await.unwrap();
    let fence = json!({"group": "bronze", "reader_epoch": u64::MAX});
    let of_group = json!({"group": "bronze"});
    let gap = json!({"group": "bronze", "partition": 3, "start": 0, "end": 1, "reason": "none"});
    let reset = json!({"group": "bronze", "offsets": {"3": 0}});
    for (action, body) in [
        ("commit", &fence),
        ("committed", &of_group),
        ("reset_group", &reset),
        ("remove_group", &of_group),
        ("gap", &gap),
    ] {
        let code = rival.code(action, body.clone()).await;
        assert_eq!(code, Code::PermissionDenied, "{action}");
    }
    let names = |answer: &[Value]| {
        let groups = answer[0]["groups"].as_array().unwrap().clone();
        groups
            .iter()
            .map(|group| group["group"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let listed = rival.act("groups", json!({})).await.unwrap();
    assert_eq!(names(&listed), ["old"]);
    rival.act("commit", old.clone()).await.unwrap();
    assert_eq!(
        reader.code("commit", old).await,
        Code::PermissionDenied,
        "the first to commit owns it"
    );
    let listed = root.act("groups", json!({})).await.unwrap();
    assert_eq!(names(&listed), ["bronze", "old"]);
    assert_eq!(root.code("commit", commit.clone()).await, Code::Ok);
    assert_eq!(reader.code("commit", commit).await, Code::Ok, "it stays");
    assert_eq!(reader.code("remove_group", of_group).await, Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_a_line_names_for_a_user_is_begun_by_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("acl");
    let broker = start_for_two(dir.path(), |_| {
        let acl = std::fs::read_to_string(&file).unwrap();
        let lines = "user reader\ngroup bronze\ngroup silver-*\nuser root\ngroup *\n";
        std::fs::write(&file, acl + lines).unwrap();
    });
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    for group in ["bronze", "silver-1"] {
        let commit = json!({"group": group, "reader_epoch": 1, "initial": {"3": 0}});
        let code = rival.code("commit", commit.clone()).await;
        assert_eq!(code, Code::PermissionDenied, "{group}");
        assert_eq!(reader.code("commit", commit).await, Code::Ok, "{group}");
    }
    let free = json!({"group": "silver", "reader_epoch": 1});
    assert_eq!(
        rival.code("commit", free).await,
        Code::Ok,
        "no line names it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_publish_nothing_is_refused_before_anything_is_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |_| {});
    let garbage = FlightData {
        flight_descriptor: Some(FlightDescriptor::new_cmd(r#"{"op": "produce"}"#)),
        data_header: vec![0xff; 64].into(),
        ..FlightData::default()
    };
    for (user, expected) in [
        ("reader", Code::PermissionDenied),
        ("root", Code::InvalidArgument),
    ] {
        let mut flight = Flight::open(&broker, Some(basic(user))).await;
        let request = flight.request(stream::iter([garbage.clone()]));
        let answered = match flight.service.do_put(request).await {
            Ok(answers) => answers.into_inner().try_collect::<Vec<_>>().await.map(drop),
            Err(status) => Err(status),
        };
        assert_eq!(answered.unwrap_err().code(), expected, "{user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_tells_whose_reader_found_it_and_nobody_reports_for_the_broker() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |_| {});
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    let gap = |reason: &str| json!({"partition": 3, "start": 0, "end": 1, "reason": reason});
    assert_eq!(
        rival.code("gap", gap("retention: size")).await,
        Code::InvalidArgument
    );
    assert_eq!(rival.code("gap", gap("damage")).await, Code::Ok);
    let mut root = Flight::open(&broker, Some(basic("root"))).await;
    let reports = root.values("$gaps").await;
    let users: Vec<_> = reports.iter().map(|report| &report["user"]).collect();
    assert_eq!(users, [&json!("rival")]);
    let mut reported = 1;
    while rival.code("gap", gap("damage")).await == Code::Ok {
        reported += 1;
        assert!(reported < 2_000, "nothing bounds them");
    }
    assert_eq!(root.code("gap", gap("damage")).await, Code::Ok);
}
