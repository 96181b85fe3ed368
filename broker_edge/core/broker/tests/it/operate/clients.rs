//! `/api/v1/clients`: lists in pages, and a kick closes the connection and ends the session as requested.

use headwater_mqtt::encode::ConnectFields;
use headwater_mqtt::{ReasonCode, Version};
use serde_json::Value;

use crate::common::http::json;
use crate::common::{Client, Got, start};

fn ids(page: &Value) -> Vec<&str> {
    let rows = page["clients"].as_array().expect("a list");
    rows.iter()
        .filter_map(|row| row["client_id"].as_str())
        .collect()
}

#[test]
fn clients_are_listed_by_id_page_by_page() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (mqtt, admin) = (broker.mqtt_address(), broker.admin_address());
    let mut connected: Vec<Client> = (0..25)
        .map(|n| Client::connect(mqtt, Version::V311, &format!("dev-{n:02}")))
        .collect();
    let (away, _) = Client::resume(mqtt, Version::V5, "away/1");
    away.disconnect();
    connected[7].subscribe("t/7", 1);
    connected[3].publish("t/7", "hello");
    connected[7].message();

    let mut seen: Vec<String> = Vec::new();
    let mut path = "/api/v1/clients?limit=10".to_owned();
    loop {
        let (status, page) = json(admin, "GET", &path);
        assert_eq!(status, 200, "{page}");
        assert!(ids(&page).len() <= 10);
        seen.extend(ids(&page).iter().map(|id| (*id).to_owned()));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/api/v1/clients?limit=10&after={next}");
    }
    let mut expected: Vec<String> = (0..25).map(|n| format!("dev-{n:02}")).collect();
    expected.insert(0, "away/1".to_owned());
    assert_eq!(seen, expected);

    let (_, page) = json(admin, "GET", "/api/v1/clients?filter=v-0&limit=1000");
    assert_eq!(ids(&page).len(), 10, "{page}");
    let (_, page) = json(admin, "GET", "/api/v1/clients?connected=false");
    assert_eq!(ids(&page), ["away/1"]);
    assert_eq!(page["clients"][0]["session_expiry_s"], 3600);
    assert_eq!(page["clients"][0]["address"], Value::Null);

    let (_, page) = json(admin, "GET", "/api/v1/clients?filter=dev-03");
    let row = &page["clients"][0];
    assert_eq!(row["total"]["received_messages"], 1, "{row}");
    assert!(row["total"]["received_bytes"].as_u64() > Some(20), "{row}");
    assert_eq!(row["version"], "3.1.1");
    assert_eq!(row["transport"], "mqtt");
    let address = connected[3].stream.local_addr().expect("an open socket");
    assert_eq!(row["address"], address.to_string());

    let (_, detail) = json(admin, "GET", "/api/v1/clients/dev-07");
    assert_eq!(detail["filters"][0]["filter"], "t/7");
    assert_eq!(detail["total"]["sent_messages"], 1, "{detail}");
    assert_eq!(detail["lag_records"], 0, "{detail}");
    assert_eq!(detail["cursors"][0]["live"], true, "{detail}");
    broker.shutdown();
}

#[test]
fn what_is_asked_wrongly_or_of_nobody_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let admin = broker.admin_address();
    for (method, path, status, error) in [
        ("GET", "/api/v1/clients/nobody", 404, "not_found"),
        ("DELETE", "/api/v1/clients/nobody", 404, "not_found"),
        ("GET", "/api/v1/clients?limit=0", 400, "invalid_argument"),
        ("GET", "/api/v1/clients?limit=1001", 400, "invalid_argument"),
        ("GET", "/api/v1/clients?limt=1", 400, "invalid_argument"),
        (
            "DELETE",
            "/api/v1/clients/x?session=2",
            400,
            "invalid_argument",
        ),
        ("GET", "/api/v1/client?id=nobody", 404, "not_found"),
        ("DELETE", "/api/v1/client?id=nobody", 404, "not_found"),
        ("GET", "/api/v1/client", 400, "invalid_argument"),
        ("DELETE", "/api/v1/client", 400, "invalid_argument"),
        (
            "GET",
            "/api/v1/client?id=x&session=true",
            400,
            "invalid_argument",
        ),
    ] {
        let (found, body) = json(admin, method, path);
        assert_eq!(found, status, "{method} {path}: {body}");
        assert_eq!(body["error"], error, "{method} {path}");
        assert!(body["message"].as_str().is_some_and(|text| text.len() > 10));
    }
    broker.shutdown();
}

#[test]
fn a_kicked_client_is_told_and_its_session_ends_only_when_that_is_asked_for() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path());
    let (mqtt, admin) = (broker.mqtt_address(), broker.admin_address());
    let (mut client, _) = Client::resume(mqtt, Version::V5, "a b");
    let (status, done) = json(admin, "DELETE", "/api/v1/clients/a%20b");
    assert_eq!((status, &done["was_connected"]), (200, &Value::Bool(true)));
    assert_eq!(
        client.next(),
        Got::Disconnect(ReasonCode::AdministrativeAction)
    );
    assert_eq!(client.next(), Got::Closed);
    let (mut client, present) = Client::resume(mqtt, Version::V5, "a b");
    assert!(present, "a kick alone keeps the session");

    let (_, done) = json(admin, "DELETE", "/api/v1/clients/a%20b?session=true");
    assert_eq!(done["session_ended"], true);
    while client.next() != Got::Closed {}
    let (_, present) = Client::resume(mqtt, Version::V5, "a b");
    assert!(!present);

    let (_steps, _) = Client::resume(mqtt, Version::V5, "..");
    let (_, detail) = json(admin, "GET", "/api/v1/client?id=..");
    assert_eq!(detail["client_id"], "..", "no part of a path for browsers");
    let (_, done) = json(admin, "DELETE", "/api/v1/client?id=..&session=true");
    assert_eq!(done["session_ended"], true);

    let mut passing = Client::open(mqtt, Version::V311);
    passing.send(|out| {
        headwater_mqtt::encode::connect(out, &ConnectFields::new(Version::V311, "old"));
    });
    assert!(matches!(
        passing.next(),
        Got::Connack { accepted: true, .. }
    ));
    json(admin, "DELETE", "/api/v1/clients/old");
    assert_eq!(passing.next(), Got::Closed, "older versions are not told");
    broker.shutdown();
}
