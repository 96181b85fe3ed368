//! Readers that follow the log, and how many may.

use futures::StreamExt;
use serde_json::json;
use tonic::Code;

use crate::filled;
use crate::support::{DEADLINE, Sent, TestBroker, refused};

#[tokio::test(flavor = "multi_thread")]
async fn a_following_reader_gets_what_comes_and_hears_where_it_is_meanwhile() {
    let (broker, mut client) = filled(10).await;
    let marks = client.high_watermarks().await;
    let (partition, start) = *marks.last().unwrap();
    let topic = "devices/d1/telemetry";
    let mut reader = broker.client().await;
    let mut place = start;
    let mut follow = reader
        .stream(json!({"partition": partition, "start": start, "follow": true}))
        .await
        .unwrap();
    // Idle at first: an empty batch with the place.
    let (rows, next) = tokio::time::timeout(DEADLINE, follow.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!((rows.len(), next), (0, start));
    let mut sent = 0;
    let mut received = Vec::new();
    while sent < 20 {
        for (number, offset, _) in client
            .produce(&[Sent::new(topic, format!("{sent}")), Sent::new("x", "y")])
            .await
            .unwrap()
        {
            sent += u64::from(number == u64::from(partition) && offset >= start);
        }
    }
    while (received.len() as u64) < sent {
        let (rows, next) = tokio::time::timeout(DEADLINE, follow.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(
            rows.iter()
                .all(|row| row.offset >= place && row.offset < next)
        );
        place = next;
        received.extend(rows);
    }
    assert!(
        received
            .iter()
            .zip(start..)
            .all(|(row, offset)| row.offset == offset)
    );
    // A stop ends it with a status that says so, and does not wait for it.
    let stopping = std::time::Instant::now();
    drop(broker);
    let last = loop {
        match tokio::time::timeout(DEADLINE, follow.next()).await.unwrap() {
            Some(Ok(_)) => {}
            Some(Err(status)) => break status,
            None => panic!("a follower is told why it ends"),
        }
    };
    assert_eq!(last.code(), Code::Unavailable);
    assert!(stopping.elapsed() < DEADLINE);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_beyond_the_limit_are_refused_and_a_reader_that_leaves_makes_room() {
    let broker = TestBroker::start(&["flight.max_reads=1"]);
    let mut client = broker.client().await;
    let follow = client
        .stream(json!({"partition": 3, "start": 0, "follow": true}))
        .await
        .unwrap();
    let refused = refused(
        &client
            .read(json!({"partition": 3, "start": 0, "end": 0}))
            .await
            .unwrap_err(),
    );
    assert_eq!(
        (refused.code, &refused.body["error"]),
        (Code::Unavailable, &json!("unavailable"))
    );
    drop(follow);
    let started = std::time::Instant::now();
    while client
        .read(json!({"partition": 3, "start": 0, "end": 0}))
        .await
        .is_err()
    {
        assert!(
            started.elapsed() < DEADLINE,
            "the reader that left still holds its place"
        );
        tokio::task::yield_now().await;
    }
}
