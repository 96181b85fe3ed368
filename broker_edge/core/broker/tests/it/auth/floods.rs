//! Many credentials to check at once: others do not wait, and nobody is refused for good.

use std::path::Path;

use super::flight::{Flight, flight_from};
use super::{basic, connect, http, line, start, write};
use crate::common::{Client, Got};
use arrow_flight::Action;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_mqtt::Version;
use headwater_mqtt::encode::{self, ConnectFields};
use serde_json::json;
use tonic::{Code, Request};

#[test]
fn a_flood_of_bad_credentials_is_refused_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |auth| auth.max_waiting = 16);
    let (mut good, _) = connect(&broker, "good", "root", "pw-root");
    let mut flood: Vec<Client> = (0..300)
        .map(|n| {
            let mut client = Client::open(broker.mqtt_address(), Version::V5);
            let client_id = format!("bad-{n}");
            let mut fields = ConnectFields::new(Version::V5, &client_id);
            fields.username = Some("root");
            fields.password = Some(b"guess");
            client.send(|out| encode::connect(out, &fields));
            client
        })
        .collect();
    good.publish("plants/1/a", "through");
    // A known user reconnects without waiting for any of them.
    assert_eq!(connect(&broker, "again", "root", "pw-root").1, 0);
    for client in &mut flood {
        match client.next() {
            Got::Connack { code, .. } => assert!(matches!(code, 0x86 | 0x89), "{code:#x}"),
            other => panic!("{other:?}"),
        }
    }
    good.publish("plants/1/a", "and after");
}

/// Users with argon2id passwords, which are slow to check.
fn write_slow_users(dir: &Path) {
    let slow = headwater_broker::auth::users::new_lines("root", "pw-root", false).unwrap();
    write(dir, "users", &(slow + &line("reader") + &line("writer")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_calls_with_bad_passwords_makes_nobody_else_wait() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |auth| auth.max_waiting = 64);
    write_slow_users(dir.path());
    broker.reload().unwrap();
    let flood = Flight::open(&broker, None).await;
    let (tell_busy, mut busy) = tokio::sync::mpsc::channel(1);
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..4200 {
        let (mut service, tell_busy) = (flood.service.clone(), tell_busy.clone());
        streams.spawn(async move {
            for guess in 0.. {
                let shown = STANDARD.encode(format!("root:guess-{stream}-{guess}"));
                let mut request = Request::new(Action::new("version", "{}"));
                let shown = format!("Basic {shown}").parse().unwrap();
                request.metadata_mut().insert("authorization", shown);
                let refused = service.do_action(request).await.err().unwrap();
                if refused.code() == Code::Unavailable {
                    let _ = tell_busy.try_send(());
                    // Leaves CPU time for the other clients of this process.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        });
    }
    busy.recv().await.expect("the flood takes all its places");
    // Each connects for the first time, so each needs a check.
    let admin = broker.admin_address();
    let (mqtt, http) = tokio::task::block_in_place(|| {
        let mqtt = connect(&broker, "good", "writer", "pw-writer").1;
        (mqtt, http(admin, "GET", "/metrics", Some("reader")).0)
    });
    assert_eq!((mqtt, http), (0, 200));
    let mut other = flight_from(&broker, 2, basic("root")).await;
    assert_eq!(other.code("version", json!({})).await, Code::Ok);
    streams.shutdown().await;
    let (_, metrics) =
        tokio::task::block_in_place(|| self::http(admin, "GET", "/metrics", Some("root")));
    let counted = "headwater_auth_denied_total{reason=\"busy\"}";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn many_devices_behind_one_address_all_get_in_when_they_try_again() {
    const DEVICES: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |auth| {
        auth.max_waiting = 8;
        auth.threads = 1;
    });
    let names: Vec<String> = (0..DEVICES).map(|n| format!("d{n}")).collect();
    let lines: String = names.iter().map(|name| line(name)).collect();
    write(dir.path(), "users", &lines);
    broker.reload().unwrap();
    std::thread::scope(|scope| {
        for part in names.chunks(DEVICES / 40) {
            let broker = &broker;
            scope.spawn(move || {
                for name in part {
                    loop {
                        match connect(broker, name, name, &format!("pw-{name}")).1 {
                            0 => break,
                            code => assert_eq!(code, 0x89, "busy, and nothing else"),
                        }
                    }
                }
            });
        }
    });
}
