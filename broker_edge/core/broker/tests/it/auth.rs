//! Authentication and rights over real sockets: MQTT, Flight and admin HTTP use the same users and the same ACL.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{Client, Got, start_with};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, RecordBatch, StringArray};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData, FlightDescriptor, HandshakeRequest, Ticket};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures::{StreamExt, TryStreamExt, stream};
use headwater_broker::Broker;
use headwater_broker::config::AuthSettings;
use headwater_mqtt::encode::{self, ConnectFields, WillFields};
use headwater_mqtt::packet::subscribe::{Subscription, SubscriptionOptions};
use headwater_mqtt::{PacketId, Property, QoS, ReasonCode, Version};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

const ACL: &str = "
user root
operator
topic readwrite #
topic replay #
user reader
topic replay plants/1/#
user writer
topic write plants/1/#
";

/// The password format of Mosquitto before 2.0, which is fast to check and keeps the tests fast.
fn line(user: &str) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA512);
    context.update(format!("pw-{user}").as_bytes());
    context.update(b"salt");
    let (salt, hash) = (STANDARD.encode("salt"), STANDARD.encode(context.finish()));
    format!("{user}:$6${salt}${hash}\n")
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

fn start(dir: &Path, change: impl FnOnce(&mut AuthSettings)) -> Broker {
    write(
        dir,
        "users",
        &["root", "reader", "writer"].map(line).concat(),
    );
    write(dir, "acl", ACL);
    start_with(&dir.join("log"), |config| {
        config.auth.password_file = Some(dir.join("users"));
        config.auth.acl_file = Some(dir.join("acl"));
        change(&mut config.auth);
    })
}

fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:pw-{user}")))
}

/// Sends a CONNECT with a password and returns the code of the answer.
fn connect(broker: &Broker, client_id: &str, user: &str, password: &str) -> (Client, u8) {
    let mut client = Client::open(broker.mqtt_address(), Version::V5);
    let mut fields = ConnectFields::new(Version::V5, client_id);
    fields.username = Some(user);
    fields.password = Some(password.as_bytes());
    client.send(|out| encode::connect(out, &fields));
    match client.next() {
        Got::Connack { code, .. } => (client, code),
        other => panic!("expected a CONNACK, got {other:?}"),
    }
}

fn http(admin: SocketAddr, method: &str, path: &str, user: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream
        .set_read_timeout(Some(crate::common::DEADLINE))
        .unwrap();
    let shown = user.map_or(String::new(), |user| {
        format!("Authorization: {}\r\n", basic(user))
    });
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{shown}Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

struct Flight {
    service: FlightServiceClient<Channel>,
    authorization: Option<String>,
}

impl Flight {
    async fn open(broker: &Broker, authorization: Option<String>) -> Flight {
        let address = format!("http://{}", broker.flight_address());
        let channel = Channel::from_shared(address)
            .unwrap()
            .connect()
            .await
            .unwrap();
        Flight {
            service: FlightServiceClient::new(channel),
            authorization,
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", value.parse().unwrap());
        }
        request
    }

    async fn act(&mut self, name: &str, body: Value) -> Result<Vec<Value>, Status> {
        let request = self.request(Action::new(name, body.to_string()));
        let answer = self.service.do_action(request).await?.into_inner();
        let results: Vec<arrow_flight::Result> = answer.try_collect().await?;
        Ok(results
            .iter()
            .map(|one| serde_json::from_slice(&one.body).unwrap())
            .collect())
    }

    /// Publishes one record.
    async fn put(&mut self, topic: &str, value: &[u8]) -> Result<Value, Status> {
        self.put_as(topic, value, false).await
    }

    async fn put_as(&mut self, topic: &str, value: &[u8], retain: bool) -> Result<Value, Status> {
        let columns: [(&str, ArrayRef); 3] = [
            ("topic", Arc::new(StringArray::from_iter_values([topic]))),
            ("value", Arc::new(BinaryArray::from_iter_values([value]))),
            ("retain", Arc::new(BooleanArray::from(vec![retain]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let messages = FlightDataEncoderBuilder::new()
            .with_max_flight_data_size(usize::MAX)
            .with_flight_descriptor(Some(FlightDescriptor::new_cmd(r#"{"op": "produce"}"#)))
            .build(stream::iter([Ok(batch)]))
            .map(|message| message.unwrap());
        let request = self.request(messages);
        let answers = self.service.do_put(request).await?.into_inner();
        let answers: Vec<_> = answers.try_collect().await?;
        Ok(serde_json::from_slice(&answers.last().unwrap().app_metadata).unwrap())
    }

    /// The values of a topic, as JSON.
    async fn values(&mut self, topic: &str) -> Vec<Value> {
        let filter = json!({"filters": [topic]});
        let found = self.act("topics", filter).await.unwrap()[0]["topics"][0].clone();
        let ticket = json!({
            "partition": found["partition"], "start": found["first"], "end": found["next"], "filters": [topic],
        });
        let request = self.request(Ticket::new(ticket.to_string()));
        let messages = self.service.do_get(request).await.unwrap().into_inner();
        let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
        let batches = FlightRecordBatchStream::new_from_flight_data(messages);
        let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
        let values = batches.iter().flat_map(|batch| {
            let values = batch.column_by_name("value").unwrap().as_binary::<i32>();
            values
                .iter()
                .map(|value| serde_json::from_slice(value.unwrap()).unwrap())
        });
        values.collect()
    }

    async fn code(&mut self, name: &str, body: Value) -> Code {
        self.act(name, body)
            .await
            .map_or_else(|status| status.code(), |_| Code::Ok)
    }

    /// The number of rows that a ticket returns.
    async fn rows(&mut self, ticket: Value) -> Result<usize, Status> {
        let request = self.request(Ticket::new(ticket.to_string()));
        let messages = self.service.do_get(request).await?.into_inner();
        let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
        let batches = FlightRecordBatchStream::new_from_flight_data(messages);
        let counts = batches
            .map_ok(|batch| batch.num_rows())
            .try_collect::<Vec<_>>()
            .await;
        counts
            .map(|counts| counts.iter().sum())
            .map_err(|error| match error {
                FlightError::Tonic(status) => *status,
                other => Status::internal(other.to_string()),
            })
    }

    async fn topics(&mut self) -> Result<Vec<String>, Status> {
        let answer = self.act("topics", json!({})).await?;
        let rows = answer[0]["topics"].as_array().unwrap().clone();
        Ok(rows
            .iter()
            .map(|row| row["topic"].as_str().unwrap().to_owned())
            .collect())
    }
}

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
async fn a_handshake_gives_a_bearer_token_that_ends_with_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let mut flight = Flight::open(&broker, Some(basic("reader"))).await;
    let hello = flight.request(stream::iter([HandshakeRequest::default()]));
    let answer = flight.service.handshake(hello).await.unwrap();
    let token = answer
        .metadata()
        .get("authorization")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(token.starts_with("Bearer headwater."));
    let mut bearer = Flight::open(&broker, Some(token)).await;
    assert_eq!(bearer.code("version", json!({})).await, Code::Ok);
    write(dir.path(), "users", &line("root"));
    broker.reload().unwrap();
    assert_eq!(
        bearer.code("version", json!({})).await,
        Code::Unauthenticated
    );
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
fn a_reload_over_http_revokes_a_live_connection_and_a_bad_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |_| {});
    let (mut writer, _) = connect(&broker, "w", "writer", "pw-writer");
    write(dir.path(), "users", "broken\n");
    let (status, answer) = http(
        broker.admin_address(),
        "POST",
        "/api/v1/reload",
        Some("root"),
    );
    assert!(
        status == 400 && answer.contains("users, line 1"),
        "{answer}"
    );
    writer.publish("plants/1/a", "still in");
    write(dir.path(), "users", &["root", "reader"].map(line).concat());
    let (status, answer) = http(
        broker.admin_address(),
        "POST",
        "/api/v1/reload",
        Some("root"),
    );
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        writer.next(),
        Got::Disconnect(ReasonCode::AdministrativeAction)
    );
    assert_eq!(writer.next(), Got::Closed);
    assert_eq!(connect(&broker, "w", "writer", "pw-writer").1, 0x86);
}

#[test]
fn a_token_is_a_password_and_its_end_is_the_end_of_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let x = URL_SAFE_NO_PAD.encode(key.public_key());
    let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x}]});
    write(dir.path(), "keys", &keys.to_string());
    let broker = start(dir.path(), |auth| {
        auth.token.keys_file = Some(dir.path().join("keys"))
    });
    let token = |life_s: i64| {
        let now_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({"sub": "writer", "exp": now_s.saturating_add_signed(life_s)});
        let signed = format!("{}.{}", part(json!({"alg": "EdDSA"})), part(claims));
        let tag = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
        format!("{signed}.{tag}")
    };
    let (mut client, code) = connect(&broker, "t", "whatever", &token(2));
    assert_eq!(code, 0);
    client.publish("plants/1/a", "in time");
    assert_eq!(connect(&broker, "u", "writer", &token(-10)).1, 0x86);
    assert_eq!(
        client.next(),
        Got::Disconnect(ReasonCode::MaximumConnectTime)
    );
}

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

#[test]
fn a_start_with_a_bad_file_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "users", "root:secret\n");
    let mut config = headwater_broker::config::Config {
        data_dir: dir.path().join("log"),
        ..Default::default()
    };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    config.listeners.mqtt.bind.0 = vec![free];
    config.listeners.flight.bind.0 = free;
    config.listeners.admin.bind.0 = free;
    config.auth.password_file = Some(dir.path().join("users"));
    let error = Broker::start(config).err().unwrap().to_string();
    assert!(
        error.contains("users, line 1") && !error.contains("secret"),
        "{error}"
    );
}

/// A member with a persistent session in a shared group, which disconnects again.
fn join_and_go(broker: &Broker, names: std::ops::Range<u32>) {
    let mut members: Vec<Client> = names
        .map(|n| {
            let mut client = Client::open(broker.mqtt_address(), Version::V5);
            let client_id = format!("member-{n}");
            let mut fields = ConnectFields::new(Version::V5, &client_id);
            fields.username = Some("reader");
            fields.password = Some(b"pw-reader");
            fields.properties = &[Property::SessionExpiryInterval(3600)];
            let filter = "$share/g/plants/#";
            let options = SubscriptionOptions::new(QoS::AtLeastOnce);
            client.send(|out| {
                encode::connect(out, &fields);
                let one = [Subscription { filter, options }];
                encode::subscribe(out, Version::V5, PacketId::FIRST, &[], &one);
            });
            client
        })
        .collect();
    for member in &mut members {
        let joined = member.wait_for(|got| matches!(got, Got::Suback { .. }));
        assert!(format!("{joined:?}").contains('1'), "{joined:?}");
    }
    for member in members {
        member.disconnect();
    }
}

#[test]
fn i8_three_thousand_members_that_are_away_cost_a_publisher_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "users", &["root", "reader"].map(line).concat());
    let acl = "user root\ntopic readwrite #\nuser reader\ntopic read plants/1/#\n";
    write(dir.path(), "acl", acl);
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(dir.path().join("users"));
        config.auth.acl_file = Some(dir.path().join("acl"));
        config.auth.open_metrics = true;
        config.log.sync = headwater_broker::config::Sync::Never;
    });
    for first in (0..3000).step_by(200) {
        join_and_go(&broker, first..first + 200);
    }
    let (mut publisher, _) = connect(&broker, "publisher", "root", "pw-root");
    for n in 0..500 {
        // They may subscribe to it, but none of them may receive it.
        publisher.publish("plants/2/x", &n.to_string());
    }
    let (_, text) = http(broker.admin_address(), "GET", "/metrics", None);
    let name = "headwater_mqtt_shared_rights_checks_total ";
    let looks = text.lines().find_map(|line| line.strip_prefix(name));
    let looks: u64 = looks.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    assert!(
        looks <= 3000,
        "the rights of {looks} members for 500 records"
    );
    broker.shutdown();
}

#[test]
fn metrics_can_be_opened_and_nothing_else_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start(dir.path(), |auth| auth.open_metrics = true);
    let admin = broker.admin_address();
    assert_eq!(http(admin, "GET", "/metrics", None).0, 200);
    assert_eq!(http(admin, "GET", "/api/v1/status", None).0, 401);
}

/// Users with argon2id passwords, which are slow to check.
fn write_slow_users(dir: &Path) {
    let slow = headwater_broker::auth::users::new_lines("root", "pw-root", false).unwrap();
    write(dir, "users", &(slow + &line("reader") + &line("writer")));
}

/// A channel from a chosen address of this machine.
async fn flight_from(broker: &Broker, site: u8, authorization: String) -> Flight {
    let address = format!("http://{}", broker.flight_address());
    let local = std::net::IpAddr::from([127, 0, 0, site]);
    let channel = Channel::from_shared(address)
        .unwrap()
        .local_address(Some(local))
        .connect()
        .await
        .unwrap();
    Flight {
        service: FlightServiceClient::new(channel),
        authorization: Some(authorization),
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_user_takes_so_many_connections_of_flight_and_leaves_the_others_to_others() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "users",
        &["root", "reader", "writer"].map(line).concat(),
    );
    write(dir.path(), "acl", ACL);
    let broker = start_with(&dir.path().join("log"), |config| {
        config.auth.password_file = Some(dir.path().join("users"));
        config.auth.acl_file = Some(dir.path().join("acl"));
        config.flight.max_connections = 4;
    });
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut flight = Flight::open(&broker, Some(basic("reader"))).await;
        assert_eq!(flight.code("version", json!({})).await, Code::Ok);
        held.push(flight);
    }
    let mut third = Flight::open(&broker, Some(basic("reader"))).await;
    let refused = third.act("version", json!({})).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused
            .message()
            .contains("flight.max_connections_per_user")
    );
    let mut root = Flight::open(&broker, Some(basic("root"))).await;
    assert_eq!(root.code("version", json!({})).await, Code::Ok);
    held.clear();
    // The slot is free as soon as the broker has seen the end of the connection.
    while third.code("version", json!({})).await != Code::Ok {}
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
async fn retained_messages_over_flight_count_for_their_user() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| config.mqtt.max_retained = 4);
    write(
        dir.path(),
        "acl",
        "user reader\ntopic write plants/#\nuser rival\ntopic write plants/#\n",
    );
    broker.reload().unwrap();
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    for number in 0..2 {
        let topic = format!("plants/{number}");
        reader.put_as(&topic, b"kept", true).await.unwrap();
    }
    let refused = reader.put_as("plants/2", b"kept", true).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("quota:retained"), "{refused}");
    // An existing retained message may be replaced, and messages without retain do not count; the other half is for
    // other users.
    reader.put_as("plants/1", b"anew", true).await.unwrap();
    reader.put("plants/2", b"passes").await.unwrap();
    rival.put_as("plants/2", b"kept", true).await.unwrap();
    // A freed slot can be used again as soon as the loop has seen it.
    reader.put_as("plants/0", b"", true).await.unwrap();
    while reader.put_as("plants/3", b"kept", true).await.is_err() {}
}

#[test]
fn wills_of_one_user_take_half_of_the_bytes_of_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| {
        config.mqtt.max_session_bytes = "200KiB".parse().unwrap();
    });
    let expiry = [Property::SessionExpiryInterval(600)];
    let delay = [Property::WillDelayInterval(600)];
    let leave_will = |client_id: &str| {
        let mut client = Client::open(broker.mqtt_address(), Version::V5);
        let mut fields = ConnectFields::new(Version::V5, client_id);
        fields.username = Some("root");
        fields.password = Some(b"pw-root");
        fields.clean_start = false;
        fields.properties = &expiry;
        fields.will = Some(WillFields {
            topic: "plants/1/will",
            payload: &[0; 40_000],
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: &delay,
        });
        client.send(|out| encode::connect(out, &fields));
        match client.next() {
            Got::Connack { code, .. } => code,
            other => panic!("expected a CONNACK, got {other:?}"),
        }
    };
    let codes = ["a", "b", "c", "b"].map(leave_will);
    assert_eq!(codes, [0, 0, 0x97, 0]);
    assert_eq!(connect(&broker, "other", "reader", "pw-reader").1, 0);
    let (_, body) = http(
        broker.admin_address(),
        "GET",
        "/api/v1/refusals",
        Some("root"),
    );
    assert!(body.contains("quota:session_bytes"), "{body}");
    broker.shutdown();
}

/// Two users who may replay the same topics, and an operator, on a broker with small limits.
fn start_for_two(dir: &Path, change: impl FnOnce(&mut headwater_broker::config::Config)) -> Broker {
    write(
        dir,
        "users",
        &["root", "reader", "rival"].map(line).concat(),
    );
    let acl = "user root\noperator\ntopic readwrite #\ntopic replay #\ntopic read $gaps\ntopic replay $gaps\n\
               user reader\ntopic replay plants/1/#\nuser rival\ntopic replay plants/1/#\n";
    write(dir, "acl", acl);
    start_with(&dir.join("log"), |config| {
        config.auth.password_file = Some(dir.join("users"));
        config.auth.acl_file = Some(dir.join("acl"));
        change(config);
    })
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
    for (action, body) in [
        ("commit", &fence),
        ("committed", &of_group),
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
async fn one_user_leaves_places_for_the_reads_and_groups_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| {
        config.flight.max_reads = 4;
        config.flight.max_groups = 4;
    });
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let mut rival = Flight::open(&broker, Some(basic("rival"))).await;
    let follow = || Ticket::new(json!({"partition": 3, "start": 0, "follow": true}).to_string());
    let mut streams = Vec::new();
    for _ in 0..2 {
        let request = rival.request(follow());
        streams.push(rival.service.do_get(request).await.unwrap());
    }
    let request = rival.request(follow());
    let refused = rival.service.do_get(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("flight.max_reads_per_user"));
    let request = reader.request(follow());
    streams.push(reader.service.do_get(request).await.unwrap());

    let group = |name: &str| json!({"group": name, "reader_epoch": 1});
    assert_eq!(rival.code("commit", group("a")).await, Code::Ok);
    assert_eq!(rival.code("commit", group("b")).await, Code::Ok);
    assert_eq!(
        rival.code("commit", group("c")).await,
        Code::ResourceExhausted
    );
    assert_eq!(reader.code("commit", group("d")).await, Code::Ok);
    let of_group = json!({"group": "a"});
    assert_eq!(rival.code("remove_group", of_group).await, Code::Ok);
    assert_eq!(rival.code("commit", group("c")).await, Code::Ok);
    assert_eq!(
        rival.code("commit", group("e")).await,
        Code::ResourceExhausted,
        "a place that is given back is taken once"
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

/// A TCP stream that has sent a GET and reads nothing of the answer.
fn begin_get(admin: SocketAddr, path: &str, user: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream
        .set_read_timeout(Some(crate::common::DEADLINE))
        .unwrap();
    let shown = basic(user);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {shown}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    stream
}

/// Publishes an artifact of `chunks` chunks as `root`, larger than the socket buffers.
async fn push_artifact(broker: &Broker, chunks: usize) {
    const CHUNK_BYTES: usize = 512 << 10;
    let mut root = Flight::open(broker, Some(basic("root"))).await;
    let payload = vec![7_u8; CHUNK_BYTES];
    let mut offsets = Vec::new();
    let mut partition = Value::Null;
    for _ in 0..chunks {
        let answer = root.put("artifacts/fw/1/chunks", &payload).await.unwrap();
        offsets.push(answer["offsets"][0].as_u64().unwrap());
        partition = answer["partitions"][0].clone();
    }
    let runs: Vec<_> = offsets.iter().map(|offset| json!([offset, 1])).collect();
    let manifest = json!({
        "v": 1,
        "artifact": {
            "name": "fw", "version": "1", "size": CHUNK_BYTES * chunks, "sha256": "ab".repeat(32),
            "chunk_size": CHUNK_BYTES, "chunks": vec![""; chunks],
        },
        "place": {"number": partition, "runs": runs},
    });
    let manifest = manifest.to_string();
    let pushed = root.put("artifacts/fw/1/manifest", manifest.as_bytes());
    pushed.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_of_one_user_leave_places_for_the_reads_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = start_for_two(dir.path(), |config| {
        config.flight.max_reads = 4;
    });
    let acl = "user root\noperator\ntopic readwrite #\ntopic replay #\n\
               user reader\ntopic replay plants/1/#\nuser rival\ntopic read artifacts/#\n";
    write(dir.path(), "acl", acl);
    let (status, _) = http(
        broker.admin_address(),
        "POST",
        "/api/v1/reload",
        Some("root"),
    );
    assert_eq!(status, 200);
    push_artifact(&broker, 40).await;

    let path = "/artifacts/fw/1";
    let mut downloads = Vec::new();
    let mut heads = Vec::new();
    for _ in 0..4 {
        let mut stream = begin_get(broker.admin_address(), path, "rival");
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        heads.push(String::from_utf8_lossy(&head[9..]).into_owned());
        downloads.push(stream);
    }
    assert_eq!(heads, ["200", "200", "503", "503"]);
    let mut reader = Flight::open(&broker, Some(basic("reader"))).await;
    let follow = Ticket::new(json!({"partition": 3, "start": 0, "follow": true}).to_string());
    let request = reader.request(follow);
    assert!(reader.service.do_get(request).await.is_ok());
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
