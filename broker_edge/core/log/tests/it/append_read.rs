//! Every appended record is read back at its offset, from memory and from the files, before and after a restart.

use std::path::Path;
use std::time::Duration;

use crate::support::memory::MemoryFiles;
use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{
    AppendError, LogConfig, Offset, Partition, ReadError, RecordMeta, Records, Seams, SyncMode,
    Watcher,
};

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("value {n}")).collect()
}

#[test]
fn an_append_is_read_back_at_its_offset_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    {
        let log = open(dir.path());
        assert_eq!(append(telemetry(&log), &numbered(10)), Offset(0));
        assert_eq!(append(telemetry(&log), &["more"]), Offset(10));
        assert_eq!(read_all(telemetry(&log)).len(), 11);
    }
    let log = open(dir.path());
    let found = read_all(telemetry(&log));
    assert_eq!(found.len(), 11);
    assert_eq!(found[10], (10, b"more".to_vec()));
    assert_eq!(append(telemetry(&log), &["after"]), Offset(11));
    assert!(telemetry(&log).epoch().0 > 1);
}

#[test]
fn many_segments_read_like_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = without_tail(dir.path());
    let mut expected = Vec::new();
    {
        let log = open_with(config.clone(), Seams::system());
        for round in 0..40 {
            let payloads: Vec<Vec<u8>> = (0..20).map(|n| vec![(round + n) as u8; 500]).collect();
            append(telemetry(&log), &payloads);
            expected.extend(payloads);
        }
        let found: Vec<_> = read_all(telemetry(&log))
            .into_iter()
            .map(|(_, payload)| payload)
            .collect();
        assert_eq!(found, expected);
    }
    assert!(files_of(dir.path(), ".seg").len() > 4);
    let log = open_with(config, Seams::system());
    let found = read_all(telemetry(&log));
    assert!(
        found
            .iter()
            .enumerate()
            .all(|(at, (offset, payload))| at as u64 == *offset && *payload == expected[at])
    );
    assert_eq!(found.len(), expected.len());
}

/// A large append becomes a batch in its own buffer; small, split and oversized appends do not.
#[test]
fn appends_of_every_size_read_back_in_order_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        segment_bytes: 8 << 20,
        ..config(dir.path())
    };
    let log = open_with(config.clone(), Seams::system());
    let partition = telemetry(&log);
    let mut expected = Vec::new();
    // Records and their sizes; sizes repeat, so that the buffers prepared for them are used.
    let sizes = [
        (64, 1024),
        (64, 1024),
        (64, 1030),
        (1, 10),
        (1, 10),
        (64, 1024),
        (1, 200_000),
        (1, 200_000),
        (1000, 1024),
        (1000, 1024),
        (1, 3 << 20),
        (1, 3 << 20),
        (1500, 1024),
        (40, 1000),
    ];
    for (round, (count, bytes)) in sizes.into_iter().enumerate() {
        let mut records = partition.take_records();
        let topic = records.topic("devices/1/telemetry", 8..9).expect("room");
        let client = records.client("1").expect("room");
        for n in 0..count {
            let payload = vec![(round * 31 + n) as u8; bytes];
            let meta = RecordMeta::new(topic, client, 1);
            records.push(meta, &payload).expect("room");
            expected.push(payload);
        }
        let range = partition.append_inline(records).expect("it is taken");
        await_durable(partition, range.end);
    }
    let payloads = |partition: &Partition| -> Vec<Vec<u8>> {
        read_all(partition).into_iter().map(|(_, p)| p).collect()
    };
    assert!(payloads(partition) == expected);
    drop(log);
    let log = open_with(config, Seams::system());
    assert!(payloads(telemetry(&log)) == expected);
}

/// A large append makes a batch of its own buffer, which has no room for appends queued before it.
#[test]
fn a_large_append_between_small_ones_of_one_sync_reads_back_in_order() {
    let files = SimFiles::new(1);
    let settings = || LogConfig {
        segment_bytes: 1 << 20,
        ..config(Path::new("/data"))
    };
    let log = open_with(settings(), files.seams());
    let partition = telemetry(&log);
    let large = |byte| {
        let mut records = partition.take_records();
        let topic = records.topic("large", 0..5).expect("room");
        let client = records.client("client").expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, &vec![byte; 64 << 10]).expect("room");
        records
    };
    // After a large append the next one is expected to be as large, and gets room for its header.
    let first = partition.append(large(1)).expect("taken");
    await_durable(partition, first.end);
    let second = large(2);
    files.hold("sync_data", "telemetry-0");
    partition.append(records(1, &["held"])).expect("taken");
    files.await_held();
    partition.append(records(1, &["before"])).expect("taken");
    partition.append(second).expect("taken");
    let last = partition.append(records(1, &["behind"])).expect("taken");
    files.let_go();
    await_durable(partition, last.end);
    let expected = [
        (0, vec![1; 64 << 10]),
        (1, b"held".to_vec()),
        (2, b"before".to_vec()),
        (3, vec![2; 64 << 10]),
        (4, b"behind".to_vec()),
    ];
    assert!(read_all(partition) == expected);
    files.power_cut();
    drop(log);
    let log = open_with(settings(), files.seams());
    assert!(read_all(telemetry(&log)) == expected);
}

#[test]
fn every_field_of_a_record_survives() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let partition = telemetry(&log);
    let mut records = Records::new();
    let topic = records.topic("devices/ab/telemetry", 8..10).expect("room");
    let other = records.topic("plain", 0..5).expect("room");
    let client = records.client("ab").expect("room");
    records
        .push(RecordMeta::new(other, client, 0), b"first")
        .expect("room");
    let meta = RecordMeta {
        topic,
        client,
        qos: 2,
        retain: true,
        key: Some(b"own key"),
        idempotency_key: Some("a/b/1"),
        properties: &[1, 1, 35, 0, 1],
        headers: &[("unit", b"C"), ("unit", b""), ("", b"x")],
        publish_id: None,
    };
    records.push(meta, b"second").expect("room");
    let range = partition.append(records).expect("taken");
    await_durable(partition, range.end);
    let batches = partition.read(Offset(0), 1 << 20).expect("a read");
    let record = batches[0].record(1);
    assert_eq!(
        (record.offset, record.topic, record.key),
        (Offset(1), "devices/ab/telemetry", &b"own key"[..])
    );
    assert_eq!(
        (record.client_id, record.qos, record.retain, record.purged),
        ("ab", 2, true, false)
    );
    assert_eq!(record.idempotency_key, Some("a/b/1"));
    assert_eq!(record.properties, [1, 1, 35, 0, 1]);
    let headers: Vec<_> = record.headers.collect();
    assert_eq!(headers, [("unit", &b"C"[..]), ("unit", b""), ("", b"x")]);
    assert_eq!(record.payload, b"second");
    assert_eq!(batches[0].record(0).key, b"plain");
    assert_eq!(batches[0].payloads(), b"firstsecond");
    assert_eq!(batches[0].topic_index(1), topic.0);
}

#[test]
fn inline_appends_are_durable_on_return_and_mix_with_queued_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let partition = telemetry(&log);
    for round in 0..50_u64 {
        let range = partition
            .append_inline(records(1, &["inline"]))
            .expect("taken");
        assert_eq!(range.start, Offset(round * 2));
        await_durable(partition, range.end);
        let range = partition.append(records(2, &["queued"])).expect("taken");
        await_durable(partition, range.end);
    }
    assert_eq!(read_all(partition).len(), 100);
    let log2 = tempfile::tempdir().expect("a folder");
    let log2 = open(log2.path());
    let range = telemetry(&log2)
        .append_inline(records(1, &["alone"]))
        .expect("taken");
    assert_eq!(telemetry(&log2).high_watermark(), range.end);
}

#[test]
fn appends_from_many_threads_get_dense_offsets_in_their_own_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let partition = telemetry(&log).clone();
            scope.spawn(move || {
                for n in 0..200_u32 {
                    let payload = [thread.to_le_bytes(), n.to_le_bytes()].concat();
                    let records = records(thread, &[payload]);
                    let range = if n % 2 == 0 {
                        partition.append_inline(records)
                    } else {
                        partition.append(records)
                    };
                    range.expect("taken");
                }
            });
        }
    });
    let partition = telemetry(&log);
    await_durable(partition, Offset(800));
    let found = read_all(partition);
    assert_eq!(found.len(), 800);
    for thread in 0..4_u32 {
        let own = found
            .iter()
            .filter(|(_, payload)| payload[..4] == thread.to_le_bytes());
        assert!(
            own.enumerate()
                .all(|(n, (_, payload))| payload[4..] == (n as u32).to_le_bytes())
        );
    }
}

#[test]
fn the_queue_is_bounded_and_takes_again_once_it_drained() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        queue_bytes: 20_000,
        ..config(dir.path())
    };
    let log = open_with(config, Seams::system());
    let partition = telemetry(&log);
    let (mut taken, mut refused) = (0, 0);
    while refused == 0 {
        match partition.append(records(1, &[vec![0; 4000]])) {
            Ok(_) => taken += 1,
            Err(AppendError::QueueFull {
                queued_bytes,
                limit_bytes,
                ..
            }) => {
                assert!(queued_bytes <= limit_bytes);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    await_durable(partition, Offset(taken));
    await_that("the queue to drain", || partition.queued_bytes() == 0);
    append(partition, &[vec![0; 4000]]);
}

/// Every refused append returns the records unchanged, so that the caller can retry with them.
#[test]
fn what_a_full_queue_refuses_comes_back_whole() {
    let sim = sim::SimFiles::new(1);
    let config = LogConfig {
        queue_bytes: 20_000,
        ..config(Path::new("/data"))
    };
    let log = open_with(config, sim.seams());
    let partition = telemetry(&log);
    let known = partition
        .append_unique(keyed("known", b"0"))
        .expect("taken")[0]
        .offset;
    await_durable(partition, known.plus(1));
    sim.hold("sync_data", "telemetry");
    let end = partition
        .append(records(1, &[vec![0; 30_000]]))
        .expect("a large one is let in alone")
        .end;
    let given_back = |result: Result<_, AppendError>| match result {
        Err(AppendError::QueueFull { records, .. }) => *records,
        other => panic!("{other:?}"),
    };
    let plain = records(1, &["a", "b"]);
    let plain = given_back(partition.append(plain).map(drop));
    let plain = given_back(partition.append_inline(plain).map(drop));
    let mut both = keyed("known", b"1");
    add_keyed(&mut both, "new", b"2");
    let both = given_back(partition.append_unique(both).map(drop));
    assert_eq!(partition.next_offset(), end, "nothing of them was queued");
    sim.let_go();
    await_durable(partition, end);
    let placed = partition.append_unique(both).expect("there is room");
    assert_eq!((placed[0].offset, placed[0].duplicate), (known, true));
    assert_eq!((placed[1].offset, placed[1].duplicate), (end, false));
    let range = partition.append(plain).expect("there is room");
    await_durable(partition, range.end);
    let found = read_all(partition);
    let payloads: Vec<_> = found.iter().rev().take(3).map(|(_, p)| &p[..]).collect();
    assert_eq!(payloads, [b"b", b"a", b"2"]);
}

/// A caller that was refused because of a full queue waits only for the watcher.
#[test]
fn the_queue_has_room_again_when_the_watcher_is_called() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        queue_bytes: 20_000,
        ..config(dir.path())
    };
    let log = open_with(config, Seams::system());
    let partition = telemetry(&log).clone();
    let (send, heard) = std::sync::mpsc::channel();
    let seen = partition.clone();
    let watcher: Watcher = std::sync::Arc::new(move || {
        let _ = send.send((seen.high_watermark(), seen.queued_bytes()));
    });
    partition.watch(&watcher);
    for _ in 0..30 {
        let range = partition
            .append(records(1, &[vec![0; 15_000]]))
            .expect("the queue is empty");
        loop {
            let (moved_to, queued) = heard.recv_timeout(PATIENCE).expect("a call");
            if moved_to >= range.end {
                assert_eq!(queued, 0);
                break;
            }
        }
    }
}

#[test]
fn a_record_larger_than_a_batch_or_a_segment_is_kept_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(without_tail(dir.path()), Seams::system());
    let large: Vec<u8> = (0..5_000_000_u32).map(|n| (n * 7) as u8).collect();
    append(telemetry(&log), &[&b"before"[..], &large, b"after"]);
    let found = read_all(telemetry(&log));
    assert_eq!(found.len(), 3);
    assert!(found[1].1 == large);
}

#[test]
fn reads_outside_the_log_say_where_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["x"]);
    assert!(
        telemetry(&log)
            .read(Offset(1), 10)
            .expect("empty at the end")
            .is_empty()
    );
    let error = telemetry(&log)
        .read(Offset(2), 10)
        .expect_err("above the high watermark");
    assert!(
        matches!(
            error,
            ReadError::OutOfRange {
                high_watermark: Offset(1),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn with_an_interval_the_written_mark_runs_ahead_and_reads_wait_for_the_synced_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let sync = SyncMode::Interval(Duration::from_millis(300));
    let log = open_with(
        LogConfig {
            sync,
            ..config(dir.path())
        },
        Seams::system(),
    );
    let partition = telemetry(&log);
    append(partition, &["first"]);
    let range = partition.append(records(1, &["second"])).expect("taken");
    await_that("the write", || partition.written() == range.end);
    if partition.high_watermark() < range.end {
        assert!(
            partition
                .read(range.start, 100)
                .expect("nothing yet")
                .is_empty()
        );
    }
    await_durable(partition, range.end);
    assert_eq!(partition.read(range.start, 100).expect("a batch").len(), 1);
}

#[test]
fn watchers_hear_of_every_move_and_shutdown_refuses_what_comes_after() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let partition = telemetry(&log).clone();
    let (send, moves) = std::sync::mpsc::channel();
    let seen = partition.clone();
    let watcher: Watcher = std::sync::Arc::new(move || {
        let _ = send.send(seen.high_watermark());
    });
    partition.watch(&watcher);
    partition.append(records(1, &["a", "b"])).expect("taken");
    assert_eq!(moves.recv_timeout(PATIENCE), Ok(Offset(2)));
    partition
        .append(records(1, &["queued at the end"]))
        .expect("taken");
    log.shutdown();
    log.shutdown();
    assert_eq!(partition.high_watermark(), Offset(3));
    assert!(partition.append(records(1, &["late"])).is_err());
    assert_eq!(read_all(&partition).len(), 3);
}

#[test]
fn a_scan_by_reads_as_large_as_a_batch_reads_each_byte_about_once() {
    const BATCH_BYTES: usize = 300 << 10;
    let files = MemoryFiles::default();
    let config = || LogConfig {
        tail_bytes: 0,
        segment_bytes: 8 << 20,
        ..config(Path::new("/data"))
    };
    let log = open_with(config(), files.seams());
    for n in 0..20 {
        append(telemetry(&log), &[vec![n; BATCH_BYTES]]);
    }
    // Exactly one batch, slightly less, slightly more.
    for asked in [BATCH_BYTES, 280 << 10, 320 << 10] {
        let before = files.segment_bytes_read();
        let mut next = Offset(0);
        while next.0 < 20 {
            let batches = telemetry(&log).read(next, asked).expect("whole");
            next = batches.last().expect("one at least").next_offset();
        }
        let read = files.segment_bytes_read() - before;
        let most = 20 * (BATCH_BYTES as u64) * 3 / 2;
        assert!(read <= most, "{read} bytes by reads of {asked}");
    }
}
