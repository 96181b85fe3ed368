//! Readers that follow the log, and the limits on their number.

use futures::StreamExt;
use serde_json::json;
use tonic::Code;

use super::filled;
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
    // Idle at first: an empty batch with the position.
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
    // A stop of the broker ends it with a status that says so, and does not wait for it.
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

/// A metric of Flight.
fn figure(broker: &TestBroker, name: &str) -> u64 {
    let (_, metrics) = broker.http("/metrics");
    let name = format!("headwater_flight_{name} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn following_readers_do_not_look_at_each_record_that_is_for_others() {
    const READERS: u32 = 16;
    const RECORDS: u32 = 400;
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let ticket = json!({"partition": 3, "start": 0, "follow": true, "filters": ["for/me"]});
    let mut follows = Vec::new();
    for _ in 0..READERS {
        follows.push(Box::pin(client.stream(ticket.clone()).await.unwrap()));
    }
    let begun = std::time::Instant::now();
    for _ in 0..RECORDS {
        client
            .produce(&[Sent::new("for/others", "1")])
            .await
            .unwrap();
    }
    let elapsed_ms = u32::try_from(begun.elapsed().as_millis()).unwrap();
    let scans = figure(&broker, "scans_total");
    // Each of them may scan about every 20 ms, and a few times at first.
    let most = u64::from(READERS * (elapsed_ms / 10 + 10));
    assert!(scans <= most, "{scans} looks in {elapsed_ms} ms");
    client.produce(&[Sent::new("for/me", "2")]).await.unwrap();
    for follow in &mut follows {
        let row = loop {
            let answer = tokio::time::timeout(DEADLINE, follow.next()).await;
            let (rows, next) = answer.unwrap().unwrap().unwrap();
            if let [row] = &rows[..] {
                assert_eq!(next, u64::from(RECORDS) + 1);
                break row.clone();
            }
        };
        assert_eq!((row.topic.as_str(), row.value), ("for/me", b"2".to_vec()));
    }
}

/// Many records, so that a reader that takes nothing blocks only its own user.
async fn large(broker: &TestBroker, megabytes: usize) -> (u32, u64) {
    let mut client = broker.client().await;
    let batch: Vec<Sent> = (0..64)
        .map(|_| Sent::new("plant/line", vec![7; 16 << 10]))
        .collect();
    for _ in 0..megabytes {
        client.produce(&batch).await.unwrap();
    }
    client.high_watermarks().await[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_takes_nothing_loses_its_place_and_goes_on_where_it_was() {
    let broker = TestBroker::start(&[
        "flight.max_reads=1",
        "flight.stall_timeout=1s",
        "log.classes.telemetry.partitions=1",
    ]);
    let (partition, end) = large(&broker, 40).await;
    let mut stalled = broker.client().await;
    let ticket = |start: u64| json!({"partition": partition, "start": start, "end": end});
    let mut stream = stalled.stream(ticket(0)).await.unwrap();
    let mut other = broker.client().await;
    let started = std::time::Instant::now();
    let nothing = json!({"partition": partition, "start": 0, "end": 0});
    while let Err(status) = other.read(nothing.clone()).await {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(started.elapsed() < DEADLINE, "the stalled reader stays");
        tokio::task::yield_now().await;
    }
    let (mut next, mut rows) = (0, 0);
    let status = loop {
        match tokio::time::timeout(DEADLINE, stream.next()).await.unwrap() {
            Some(Ok((batch, place))) => {
                assert!(
                    batch
                        .iter()
                        .zip(next..)
                        .all(|(row, offset)| row.offset == offset)
                );
                rows += batch.len() as u64;
                next = place;
            }
            Some(Err(status)) => break status,
            None => panic!("the reader is told that it lost its place"),
        }
    };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        refused(&status).body["message"]
            .as_str()
            .unwrap()
            .contains("flight.stall_timeout")
    );
    assert_eq!(rows, next);
    // The slot of the empty read is free only when its task has ended.
    let started = std::time::Instant::now();
    let rest = loop {
        match other.read(ticket(next)).await {
            Ok(rest) => break rest,
            Err(status) => assert_eq!(status.code(), Code::Unavailable),
        }
        assert!(started.elapsed() < DEADLINE, "the empty read stays");
        tokio::task::yield_now().await;
    };
    assert_eq!(rest.len() as u64, end - next);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_take_nothing_stay_within_the_budget_and_others_go_on() {
    const STALLED: usize = 15;
    const BUDGET: u64 = 16 << 20;
    let broker = TestBroker::start(&[
        "flight.max_reads=16",
        "flight.read_budget_bytes=16MiB",
        "flight.stall_timeout=10m",
        "log.classes.telemetry.partitions=1",
    ]);
    let mut client = broker.client().await;
    let batch = vec![Sent::new("plant/line", vec![7; 16 << 10]); 8];
    for _ in 0..160 {
        client.produce(&batch).await.unwrap();
    }
    let (partition, end) = client.high_watermarks().await[0];
    let ticket = json!({"partition": partition, "start": 0, "end": end});
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut reader = broker.client().await;
        stalled.push(Box::pin(reader.stream(ticket.clone()).await.unwrap()));
    }
    let started = std::time::Instant::now();
    while figure(&broker, "read_memory_bytes") < BUDGET / 2 {
        assert!(started.elapsed() < DEADLINE, "little is read ahead");
        tokio::task::yield_now().await;
    }
    let mut stream = Box::pin(client.stream(ticket.clone()).await.unwrap());
    let (mut rows, mut most) = (0, 0);
    while let Some(answer) = tokio::time::timeout(DEADLINE, stream.next()).await.unwrap() {
        rows += answer.unwrap().0.len() as u64;
        most = most.max(figure(&broker, "read_memory_bytes"));
    }
    assert_eq!(rows, end, "a reader beside them gets everything");
    // A record or a batch of the log may be this much larger than its loan.
    let beyond = (STALLED as u64 + 1) * (512 << 10);
    assert!(most <= BUDGET + beyond, "{most} bytes");
    // Each stalled reader also continues when it is read.
    for mut stream in stalled {
        let mut rows = 0;
        while let Some(answer) = tokio::time::timeout(DEADLINE, stream.next()).await.unwrap() {
            rows += answer.unwrap().0.len() as u64;
        }
        assert_eq!(rows, end);
    }
    let waiting = std::time::Instant::now();
    while figure(&broker, "read_memory_bytes") > 0 {
        assert!(waiting.elapsed() < DEADLINE, "memory is not given back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_batches_larger_than_their_share_of_the_budget_do_not_stop_each_other() {
    const READERS: usize = 32;
    let broker = TestBroker::start(&[
        "flight.read_budget_bytes=16MiB",
        "flight.stall_timeout=10s",
        "log.classes.telemetry.partitions=1",
    ]);
    let mut client = broker.client().await;
    // Nearly a megabyte, which is one batch of the log: it is read as a whole, and sent in eight messages.
    let batch = vec![Sent::new("plant/line", vec![7; 16 << 10]); 60];
    for _ in 0..4 {
        client.produce(&batch).await.unwrap();
    }
    let (partition, end) = client.high_watermarks().await[0];
    let ticket = json!({"partition": partition, "start": 0, "end": end});
    let reads = (0..READERS).map(|_| async {
        let mut reader = broker.client().await;
        reader
            .read(ticket.clone())
            .await
            .map(|rows| rows.len() as u64)
    });
    for rows in futures::future::join_all(reads).await {
        assert_eq!(rows.unwrap(), end, "all of them take what they are sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_topics_count_when_messages_are_cut() {
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let long = "a".repeat(60_000);
    let sent: Vec<Sent> = (0..200)
        .map(|number| Sent::new(&format!("{long}{number}"), "1"))
        .collect();
    for part in sent.chunks(20) {
        client.produce(part).await.unwrap();
    }
    let ticket = json!({"partition": 3, "start": 0, "end": 200, "batch_rows": 65_536});
    let mut stream = Box::pin(client.stream(ticket).await.unwrap());
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap().0;
        let bytes: usize = batch
            .iter()
            .map(|row| row.topic.len() + row.key.len())
            .sum();
        assert!(bytes < 3 << 20, "{bytes} bytes in a message");
        rows += batch.len();
    }
    assert_eq!(rows, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_takes_a_little_now_and_then_keeps_its_place() {
    let broker = TestBroker::start(&[
        "flight.stall_timeout=1s",
        "flight.read_budget_bytes=16MiB",
        "log.classes.telemetry.partitions=1",
    ]);
    let (partition, end) = large(&broker, 12).await;
    let mut client = broker.client().await;
    let ticket = json!({"partition": partition, "start": 0, "end": end, "batch_rows": 64});
    let mut stream = client.stream(ticket).await.unwrap();
    let mut rows = 0;
    let started = std::time::Instant::now();
    while let Some(batch) = tokio::time::timeout(DEADLINE, stream.next()).await.unwrap() {
        rows += batch.unwrap().0.len() as u64;
        // In total longer than the timeout, but never that long without taking something.
        if started.elapsed() < std::time::Duration::from_secs(3) {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    }
    assert_eq!(rows, end);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_that_would_take_seconds_on_long_topics_is_refused() {
    let broker = TestBroker::start(&["log.classes.telemetry.partitions=1"]);
    let mut client = broker.client().await;
    let long = format!("a/{}", "a".repeat(60_000));
    let sent: Vec<Sent> = (0..20)
        .map(|number| Sent::new(&format!("{long}{number}"), "1"))
        .collect();
    client.produce(&sent).await.unwrap();
    client.produce(&[Sent::new("b/1", "1")]).await.unwrap();
    let pattern = "a/.*a.{800}c.*";
    for (action, body) in [
        ("topics", json!({"pattern": pattern})),
        ("plan", json!({"from": {"3": 0}, "pattern": pattern})),
    ] {
        let refused = client.refusal(action, body).await;
        assert_eq!(refused.code, Code::InvalidArgument, "{action}");
        assert_eq!(refused.body["field"], "pattern");
    }
    let ticket = json!({"partition": 3, "start": 0, "end": 21, "pattern": pattern});
    let status = client.read(ticket).await.unwrap_err();
    assert_eq!(refused(&status).body["field"], "pattern");
    // Topics outside its reach do not count against a pattern.
    let plan = json!({"from": {"3": 0}, "pattern": "b/.{0,800}"});
    let answer = client.act("plan", plan).await.unwrap();
    assert_eq!(answer["partitions"]["3"]["records"], 1);
}
