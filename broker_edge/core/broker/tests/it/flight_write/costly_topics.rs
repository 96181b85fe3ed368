//! Records whose receivers cost the event loop much reach it in small parts.

use std::collections::BTreeSet;

use crate::common::Client as Mqtt;
use crate::support::{Sent, TestBroker};
use headwater_mqtt::Version;
use serde_json::json;

const LEVELS: u32 = 50;
const FILTERS: u64 = 1000;
const TOPICS: u64 = 100;

/// The levels of `number`, one for each bit, with `+` for those that are set; and a last level of its own.
fn branching(number: u64) -> String {
    let level = |bit: u32| {
        if number >> (bit % 10) & 1 == 1 {
            "+"
        } else {
            "l"
        }
    };
    let levels: Vec<&str> = (0..LEVELS).map(level).collect();
    format!("{}/end{number}", levels.join("/"))
}

/// How often the files of the log were synced.
fn syncs(broker: &TestBroker) -> u64 {
    let (_, text) = broker.http("/metrics");
    let lines = text.lines().filter(|line| {
        line.starts_with("headwater_log_syncs_total{") && line.contains("kind=\"file\"")
    });
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_for_which_thousands_of_filters_are_tried_are_appended_in_parts() {
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut subscriber = Mqtt::connect(broker.broker().mqtt_address(), Version::V5, "s");
    for number in 0..FILTERS {
        subscriber.subscribe(&branching(number), 1);
    }
    let topic = |number: u64| format!("{}z{number}", "l/".repeat(LEVELS as usize));
    let mut sent: Vec<Sent> = (0..TOPICS).map(|n| Sent::new(&topic(n), "x")).collect();
    // One that is delivered, as the last.
    let wanted = branching(5).replace('+', "l");
    sent.push(Sent::new(&wanted, "hello"));
    let mut client = broker.client().await;
    let before = syncs(&broker);
    let places = client.produce(&sent).await.unwrap();
    let parts = syncs(&broker) - before;
    // Each topic visits some 2000 nodes, so there is room for a few in one part.
    assert!(parts >= TOPICS / 10, "{parts} parts");
    let offsets: BTreeSet<u64> = places.iter().map(|(_, offset, _)| *offset).collect();
    assert_eq!(
        offsets.len(),
        sent.len(),
        "each row has an offset of its own"
    );
    assert_eq!(
        offsets.last(),
        Some(&places[places.len() - 1].1),
        "in order"
    );
    let message = subscriber.message();
    assert_eq!(
        (&*message.topic, &*message.payload),
        (&*wanted, &b"hello"[..])
    );
    // Others are not made slower.
    let before = syncs(&broker);
    let plain: Vec<Sent> = (0..TOPICS)
        .map(|n| Sent::new(&format!("d/{n}"), "x"))
        .collect();
    client.produce(&plain).await.unwrap();
    let whole = syncs(&broker) - before;
    assert!(whole <= 4, "{whole} parts");
    let end = sent.len() + plain.len();
    let ticket = json!({"partition": places[0].0, "start": 0, "end": end});
    let rows = client.read(ticket).await.unwrap();
    assert_eq!(rows.len(), end);
}
