//! What retention keeps for consumer groups, what readers overtaken by retention are told, and how the broker continues
//! on a full disk.

use std::time::Instant;

use crate::common::{Client as Mqtt, Got};
use crate::support::{DEADLINE, Sent, TestBroker, refused};
use futures::StreamExt;
use headwater_mqtt::encode::ConnectFields;
use headwater_mqtt::packet::subscribe::SubscriptionOptions;
use headwater_mqtt::{Property, QoS, ReasonCode, Version};
use serde_json::{Value, json};
use tonic::Code;

/// Telemetry is partition 3 if it has one partition.
const TELEMETRY: u32 = 3;
const ROW_BYTES: usize = 16 << 10;

fn rows(count: usize) -> Vec<Sent> {
    (0..count)
        .map(|_| Sent::new("devices/d/telemetry", vec![1; ROW_BYTES]))
        .collect()
}

async fn bounds(client: &mut crate::support::Client) -> (u64, u64) {
    let offsets = client
        .act("offsets", json!({"partitions": [TELEMETRY]}))
        .await
        .expect("offsets");
    let row = &offsets["partitions"][TELEMETRY.to_string()];
    let number = |name: &str| row[name].as_u64().expect("an offset");
    (number("log_start"), number("high_watermark"))
}

/// Produces until the log starts at `offset` or later.
async fn overtake(client: &mut crate::support::Client, offset: u64) {
    let began = Instant::now();
    while bounds(client).await.0 < offset {
        assert!(began.elapsed() < DEADLINE, "retention does not come so far");
        client.produce(&rows(64)).await.expect("taken");
    }
}

/// The value of a metric, summed over its labels where `label` is among them.
fn metric(broker: &TestBroker, name: &str, label: &str) -> f64 {
    let (_, text) = broker.http("/metrics");
    let lines = text.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
            && line.contains(label)
    });
    lines
        .map(|line| {
            let number = line.rsplit(' ').next().expect("a value");
            number.parse::<f64>().expect("a number")
        })
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_retention_overtakes_are_told_and_skip_nothing() {
    let broker = TestBroker::start(&[
        "log.segment_bytes=1MiB",
        "log.classes.telemetry.partitions=1",
        "log.classes.telemetry.retention.bytes=14MiB",
    ]);
    let mut producer = broker.client().await;
    // More than is sent ahead to a reader that does not read.
    for _ in 0..12 {
        producer.produce(&rows(64)).await.expect("taken");
    }
    let (_, end) = bounds(&mut producer).await;
    let tickets = [
        json!({"partition": TELEMETRY, "start": 0, "batch_rows": 64, "follow": true}),
        json!({"partition": TELEMETRY, "start": 0, "batch_rows": 64, "end": end}),
    ];
    let mut readers = Vec::new();
    for ticket in &tickets {
        let mut client = broker.client().await;
        let stream = client.stream(ticket.clone()).await.expect("it begins");
        readers.push((client, stream));
    }
    overtake(&mut producer, end).await;
    for ((_client, mut stream), ticket) in readers.into_iter().zip(tickets) {
        let mut place = 0;
        let status = loop {
            let message = tokio::time::timeout(DEADLINE, stream.next()).await;
            match message.expect("an answer in time") {
                Some(Ok((rows, next))) => {
                    for row in rows {
                        assert_eq!(row.offset, place, "nothing is skipped");
                        place += 1;
                    }
                    assert_eq!(next, place);
                }
                Some(Err(status)) => break status,
                None => panic!("{ticket} ended as if it were complete, at {place} of {end}"),
            }
        };
        let refused = refused(&status);
        assert_eq!(refused.code, Code::OutOfRange);
        assert_eq!(refused.body["wanted"], place);
        assert!(refused.body["log_start"].as_u64().expect("a number") > place);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_retention_overtakes_shows_the_jump_and_it_is_counted() {
    let broker = TestBroker::start(&[
        "log.segment_bytes=1MiB",
        "log.classes.telemetry.partitions=1",
        "log.classes.telemetry.retention.bytes=8MiB",
        "mqtt.max_inflight=20",
    ]);
    let mut producer = broker.client().await;
    for _ in 0..4 {
        producer.produce(&rows(50)).await.expect("taken");
    }
    let mut replaying = Mqtt::connect(broker.broker().mqtt_address(), Version::V5, "replaying");
    let earliest = [Property::UserProperty {
        key: "stream-offset",
        value: "telemetry-0:0",
    }];
    let options = SubscriptionOptions::new(QoS::AtLeastOnce);
    replaying.subscribe_with("devices/+/telemetry", options, &earliest);
    overtake(&mut producer, 200).await;
    let mut place = None;
    let (from, to) = loop {
        let message = replaying.message();
        let offset = message.property("stream-offset").expect("it has its place");
        let offset: u64 = offset
            .strip_prefix("telemetry-0:")
            .and_then(|offset| offset.parse().ok())
            .expect("a place in telemetry-0");
        match place {
            Some(before) if offset != before + 1 => break (before + 1, offset),
            _ => place = Some(offset),
        }
    };
    assert!(to >= 200, "it goes on where the log starts: {from} to {to}");
    let expired = metric(&broker, "headwater_mqtt_records_expired_total", "");
    assert!(expired >= (to - from) as f64, "{expired} of {from} to {to}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_holds_up_to_the_hard_limit_and_not_after_its_removal() {
    let broker = TestBroker::start(&[
        "log.segment_bytes=1MiB",
        "log.classes.telemetry.partitions=1",
        "log.classes.telemetry.retention.bytes=4MiB",
        "log.classes.telemetry.retention.hard_bytes=12MiB",
    ]);
    let mut client = broker.client().await;
    client.produce(&rows(64)).await.expect("taken");
    let commit = json!({"group": "bronze", "reader_epoch": 1, "initial": {"3": 0}, "offsets": {"3": {"committed": 5, "scanned": 64}}});
    client.act("commit", commit).await.expect("committed");
    overtake(&mut client, 1).await;
    let began = Instant::now();
    let size = loop {
        let (_, status) = broker.http("/api/v1/status");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let telemetry = &status["partitions"][TELEMETRY as usize];
        let bytes = telemetry["bytes"].as_u64().expect("a size");
        assert_eq!(
            telemetry["held_by"],
            json!([{"group": "bronze", "next": 5}])
        );
        assert_eq!(telemetry["removed_segments"]["bytes"], 0);
        if bytes <= 12 << 20 {
            break bytes;
        }
        assert!(
            began.elapsed() < DEADLINE,
            "{bytes} are above the hard limit"
        );
    };
    assert!(size > 4 << 20, "what is left is held: {size}");
    assert!(
        metric(
            &broker,
            "headwater_log_removed_held_records_total",
            "telemetry-0"
        ) > 0.0
    );
    let held = metric(&broker, "headwater_partition_held_offset", "telemetry-0");
    assert!((held - 5.0).abs() < 0.5);

    let topics = client.act("topics", json!({"filters": ["$gaps"]})).await;
    let topics = topics.expect("topics");
    let topic = &topics["topics"][0];
    let (partition, end) = (&topic["partition"], &topic["next"]);
    let ticket = json!({"partition": partition, "filters": ["$gaps"], "start": 0, "end": end});
    let gaps = client.read(ticket).await.expect("read");
    let first: Value = serde_json::from_slice(&gaps[0].value).expect("JSON");
    assert_eq!(
        (
            &first["group"],
            &first["name"],
            &first["start"],
            &first["reason"]
        ),
        (
            &json!("bronze"),
            &json!("telemetry-0"),
            &json!(5),
            &json!("retention: hard_bytes")
        )
    );

    client
        .act("remove_group", json!({"group": "bronze"}))
        .await
        .expect("removed");
    let again = client
        .refusal("remove_group", json!({"group": "bronze"}))
        .await;
    assert_eq!(
        (again.code, &again.body["error"]),
        (Code::NotFound, &json!("not_found"))
    );
    let began = Instant::now();
    while metric(&broker, "headwater_partition_size_bytes", "telemetry-0") > (4 << 20) as f64 {
        assert!(began.elapsed() < DEADLINE, "nobody holds it any more");
    }
}

fn puback(got: Got) -> (ReasonCode, Vec<(String, String)>) {
    match got {
        Got::Puback {
            reason, properties, ..
        } => (reason, properties),
        other => panic!("expected a PUBACK, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn above_the_action_level_telemetry_is_refused_and_commands_go_on() {
    let broker = TestBroker::start(&[
        "log.segment_bytes=1MiB",
        "log.classes.telemetry.partitions=1",
        "log.disk.budget=64MiB",
        "log.disk.warn_at=25",
        "log.disk.act_at=50",
    ]);
    let mut client = broker.client().await;
    while metric(&broker, "headwater_partition_file_bytes", "telemetry-0") < (18 << 20) as f64 {
        client.produce(&rows(32)).await.expect("taken");
    }
    let began = Instant::now();
    let said = |(code, body): (u16, String)| code == 200 && body.contains("warned");
    while !said(broker.http("/readyz")) {
        assert!(
            began.elapsed() < DEADLINE,
            "no warning before anything is refused"
        );
    }
    let refusal = loop {
        assert!(began.elapsed() < DEADLINE, "32 MiB are never reached");
        if let Err(status) = client.produce(&rows(32)).await {
            break refused(&status);
        }
    };
    assert_eq!(
        (refusal.code, &refusal.body["error"]),
        (Code::ResourceExhausted, &json!("full"))
    );
    let (code, body) = broker.http("/readyz");
    assert_eq!(code, 503);
    assert!(
        body.contains("telemetry-0") && !body.contains("control-0"),
        "{body}"
    );
    let level = metric(&broker, "headwater_disk_level", "");
    assert!((level - 2.0).abs() < 0.1, "{level}");

    let address = broker.broker().mqtt_address();
    let mut device = Mqtt::connect(address, Version::V5, "d");
    device.send_publish("devices/d/telemetry", b"refused", 1, false, &[]);
    assert_eq!(puback(device.next()).0, ReasonCode::QuotaExceeded);
    device.send_publish("devices/d/actions", b"taken", 1, false, &[]);
    assert!(!puback(device.next()).0.is_error());
    client
        .produce(&[Sent::new("devices/d/actions", "taken")])
        .await
        .expect("commands go on");
    let (_, end) = bounds(&mut client).await;
    client
        .read(json!({"partition": TELEMETRY, "start": 0, "end": end}))
        .await
        .expect("reads go on");
}

/// Publishes twice: the first publish begins an interval, and the answer to the second shows what an acknowledgement
/// waits for. Returns its durability and whether the record was below the high watermark by then.
async fn second_puback(ack: &str) -> (String, bool) {
    let ack = format!("log.ack={ack}");
    let broker = TestBroker::start(&[
        "log.sync=interval",
        "log.sync_interval=3s",
        &ack,
        "log.classes.telemetry.partitions=1",
    ]);
    let mut client = broker.client().await;
    let stream_ack = [Property::UserProperty {
        key: "stream-ack",
        value: "1",
    }];
    let fields = ConnectFields {
        properties: &stream_ack,
        ..ConnectFields::new(Version::V5, "p")
    };
    let (mut publisher, _) = Mqtt::connect_with(broker.broker().mqtt_address(), fields);
    publisher.send_publish("devices/d/telemetry", b"first", 1, false, &[]);
    publisher.next();
    let began = Instant::now();
    while bounds(&mut client).await.1 < 1 {
        assert!(began.elapsed() < DEADLINE);
    }
    publisher.send_publish("devices/d/telemetry", b"second", 1, false, &[]);
    let (reason, properties) = puback(publisher.next());
    assert!(!reason.is_error());
    let property = |name: &str| {
        let found = properties.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!(property("stream-offset"), "telemetry-0:1");
    let is_synced = bounds(&mut client).await.1 == 2;
    (property("stream-durability"), is_synced)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_interval_a_puback_waits_for_the_sync_unless_it_says_written() {
    assert_eq!(second_puback("synced").await, ("synced".to_owned(), true));
    assert_eq!(
        second_puback("written").await,
        ("written".to_owned(), false)
    );
}
