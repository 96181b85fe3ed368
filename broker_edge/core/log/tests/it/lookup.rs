//! Queries answered by the indexes: topics, times, epochs, retained records, idempotency keys, reads of matching
//! batches.

use std::time::Duration;

use crate::support::memory::MemoryFiles;
use crate::support::*;
use headwater_log::{
    Batch, Log, LogConfig, Offset, RecordMeta, Records, Seams, TopicFilter, TopicSelection,
};

/// Ten devices in turn, one record per batch, every fifth retained. Several segments, nothing in memory.
fn fleet(dir: &std::path::Path, clock: &std::sync::Arc<HandClock>, rounds: usize) -> Log {
    let log = open_with(without_tail(dir), with_clock(clock));
    let partition = telemetry(&log);
    for round in 0..rounds {
        for device in 0..10 {
            let mut records = Records::new();
            let name = device.to_string();
            let topic = records
                .topic(&format!("devices/{device}/telemetry"), 8..9)
                .expect("room");
            let client = records.client(&name).expect("room");
            let meta = RecordMeta {
                retain: device % 5 == 0,
                ..RecordMeta::new(topic, client, 1)
            };
            records
                .push(meta, format!("{round} of {device} ").repeat(60).as_bytes())
                .expect("room");
            let range = partition.append(records).expect("taken");
            await_durable(partition, range.end);
            clock.advance(Duration::from_secs(1));
        }
    }
    log
}

const START_US: i64 = 1_800_000_000_000_000;

#[test]
fn reading_what_matches_gives_every_matching_record_and_skips_batches() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = fleet(dir.path(), &HandClock::at(START_US), 30);
    let partition = telemetry(&log);
    assert!(files_of(dir.path(), ".seg").len() > 2);
    let wanted = |topic: &str| topic == "devices/3/telemetry";
    let until = Offset(250);
    let (mut from, mut found) = (Offset(5), Vec::new());
    while from < until {
        let (batches, scanned) = partition
            .read_matching(from, until, 4096, &wanted)
            .expect("a read");
        assert!(scanned > from && scanned <= until);
        for batch in &batches {
            assert!(
                batch.topics().any(|topic| wanted(topic.topic)),
                "no other batches"
            );
            found.extend(
                batch
                    .records()
                    .filter(|record| wanted(record.topic))
                    .map(|record| record.offset.0),
            );
        }
        from = scanned;
    }
    let expected: Vec<u64> = (5..250).filter(|offset| offset % 10 == 3).collect();
    assert_eq!(found, expected);
    let nobody = partition
        .read_matching(Offset(0), Offset(300), 1 << 20, &|_| false)
        .expect("a read");
    assert!(nobody.0.is_empty());
    assert_eq!(nobody.1, Offset(300));
}

#[test]
fn few_wanted_batches_among_many_do_not_keep_the_others_in_memory() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = fleet(dir.path(), &HandClock::at(START_US), 100);
    let partition = telemetry(&log);
    let wanted = |topic: &str| topic == "devices/3/telemetry";
    let (batches, scanned) = partition
        .read_matching(Offset(0), Offset(1_000), 1 << 20, &wanted)
        .expect("a read");
    assert_eq!((batches.len(), scanned), (100, Offset(1_000)));
    let expected = (0..100).map(|round| format!("{round} of 3 ").repeat(60).into_bytes());
    let payloads = batches.iter().map(|batch| batch.payload(0).to_vec());
    assert!(payloads.eq(expected));
    let bytes: usize = batches.iter().map(Batch::bytes_len).sum();
    let kept = Batch::kept_bytes(&batches);
    // The newest buffer still exists, as large as a segment.
    let most = 2 * bytes + (64 << 10);
    assert!(kept <= most, "{kept} bytes for {bytes}");
}

#[test]
fn stretches_hold_every_wanted_record_and_reading_them_reads_little_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = fleet(dir.path(), &HandClock::at(START_US), 30);
    let partition = telemetry(&log);
    // One in a sealed segment only, one in the active segment only.
    for device in [70, 71] {
        let range = partition.append(records(device, &["rare"])).expect("taken");
        await_durable(partition, range.end);
        if device == 70 {
            for _ in 0..200 {
                let range = partition
                    .append(records(5, &["filler ".repeat(60).as_str()]))
                    .expect("taken");
                await_durable(partition, range.end);
            }
        }
    }
    let until = partition.high_watermark();
    let names = ["devices/70/telemetry", "devices/71/telemetry", "none"];
    let matching = |topic: &str| names.contains(&topic);
    for wanted in [
        TopicFilter::Topics(&names),
        TopicFilter::Matching(&matching),
    ] {
        let (mut from, mut found, mut looked_at) = (Offset(0), Vec::new(), 0);
        let mut selection = TopicSelection::default();
        while from < until {
            let stretches = partition
                .candidate_ranges(from, until, 2, &mut selection, wanted)
                .expect("an answer");
            assert!(stretches.scanned > from && stretches.scanned <= until);
            for range in stretches.ranges {
                assert!(range.start >= from && range.end <= stretches.scanned);
                let mut next = range.start;
                while next < range.end {
                    let batches = partition.read_range(next..range.end, 4096).expect("a read");
                    for batch in &batches {
                        looked_at += batch.len();
                        let records = batch.records();
                        let wanted = records.filter(|record| matching(record.topic));
                        found.extend(wanted.map(|record| record.offset));
                        next = batch.next_offset();
                    }
                }
            }
            from = stretches.scanned;
        }
        assert_eq!(found, [Offset(300), Offset(501)]);
        assert!(
            looked_at < 400,
            "{looked_at} of 502 records were read for two"
        );
    }
    let nobody = partition
        .candidate_ranges(
            Offset(0),
            until,
            2,
            &mut TopicSelection::default(),
            TopicFilter::Topics(&["none"]),
        )
        .expect("an answer");
    assert_eq!((nobody.ranges.len(), nobody.scanned), (0, until));
}

#[test]
fn a_topic_in_few_segments_is_found_by_the_index_without_reading_the_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let log = fleet(dir.path(), &clock, 10);
    let range = telemetry(&log)
        .append(records(77, &["rare"]))
        .expect("taken");
    await_durable(telemetry(&log), range.end);
    log.shutdown();
    drop(log);
    let log = fleet(dir.path(), &clock, 10);
    // If their batches were read, the damage would be found.
    let segments = files_of(dir.path(), ".seg");
    for segment in &segments[..segments.len() - 1] {
        let mut bytes = std::fs::read(segment).expect("read");
        let has_rare = bytes
            .windows(20)
            .any(|window| window == b"devices/77/telemetry");
        if !has_rare {
            bytes[5000..5100].fill(0xee);
            std::fs::write(segment, bytes).expect("written");
        }
    }
    let wanted = |topic: &str| topic == "devices/77/telemetry";
    let (batches, _) = telemetry(&log)
        .read_matching(Offset(0), Offset(150), 1 << 20, &wanted)
        .expect("no damage is met");
    assert_eq!(batches.len(), 1);
    assert_eq!(batches[0].base_offset(), range.start);
}

#[test]
fn topics_have_the_offsets_between_which_they_occur() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let check = |log: &Log| {
        let topics = telemetry(log).topics().expect("topics");
        assert_eq!(topics.len(), 10);
        for (device, topic) in topics.iter().enumerate() {
            assert_eq!(topic.topic, format!("devices/{device}/telemetry"));
            assert_eq!(
                (topic.first, topic.next),
                (Offset(device as u64), Offset(290 + device as u64 + 1))
            );
        }
    };
    let log = fleet(dir.path(), &clock, 30);
    check(&log);
    drop(log);
    check(&fleet(dir.path(), &clock, 0));
}

#[test]
fn a_time_leads_to_the_first_record_at_or_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let check = |log: &Log| {
        let at = |us: i64| {
            telemetry(log)
                .offset_for_time(START_US + us)
                .expect("an offset")
                .0
        };
        assert_eq!(at(-1), 0);
        assert_eq!(at(0), 0);
        assert_eq!(at(1), 1);
        assert_eq!(at(1_000_000), 1);
        assert_eq!(at(123_500_000), 124);
        assert_eq!(at(299_000_000), 299);
        assert_eq!(
            at(299_000_001),
            300,
            "the high watermark when there is none"
        );
    };
    let log = fleet(dir.path(), &clock, 30);
    check(&log);
    drop(log);
    check(&fleet(dir.path(), &clock, 0));
}

#[test]
fn the_newest_retained_record_of_each_topic_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let clock = HandClock::at(START_US);
    let check = |log: &Log| {
        let mut latest = std::collections::BTreeMap::new();
        let mut before = None;
        let mut keep = |record: &headwater_log::RecordView<'_>| {
            assert!(record.retain && before < Some(record.offset));
            before = Some(record.offset);
            latest.insert(record.topic.to_owned(), record.offset.0);
        };
        telemetry(log).for_each_retained(&mut keep).expect("a scan");
        let expected = [("devices/0/telemetry", 290), ("devices/5/telemetry", 295)];
        assert_eq!(
            latest,
            expected
                .map(|(topic, offset)| (topic.to_owned(), offset))
                .into()
        );
    };
    let log = fleet(dir.path(), &clock, 30);
    check(&log);
    drop(log);
    check(&fleet(dir.path(), &clock, 0));
}

#[test]
fn the_epoch_before_an_offset_is_that_of_the_start_that_wrote_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut epochs = Vec::new();
    for _ in 0..4 {
        let log = open(dir.path());
        append(telemetry(&log), &["a", "b"]);
        epochs.push(telemetry(&log).epoch());
    }
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]));
    let log = open(dir.path());
    let before = |offset: u64| {
        telemetry(&log)
            .epoch_before(Offset(offset))
            .expect("an answer")
    };
    assert_eq!(before(0), None);
    for offset in 1..=8 {
        assert_eq!(
            before(offset),
            Some(epochs[(offset as usize - 1) / 2]),
            "before {offset}"
        );
    }
    assert!(telemetry(&log).epoch_before(Offset(9)).is_err());
}

#[test]
fn a_key_is_appended_once_whether_its_record_is_queued_stored_or_of_an_earlier_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = without_tail(dir.path());
    {
        let log = open_with(config.clone(), Seams::system());
        let partition = telemetry(&log);
        let first = partition.append_unique(keyed("a", b"1")).expect("taken")[0];
        assert!(!first.duplicate);
        let queued = partition.append_unique(keyed("a", b"2")).expect("taken")[0];
        assert_eq!((queued.offset, queued.duplicate), (first.offset, true));
        partition
            .append_inline(keyed("plain", b"3"))
            .expect("taken");
        let after = partition
            .append_unique(keyed("plain", b"4"))
            .expect("taken")[0];
        assert_eq!(
            (after.offset, after.duplicate),
            (Offset(1), true),
            "plain appends count too"
        );
        await_durable(partition, Offset(2));
        assert!(partition.append_unique(keyed("a", b"5")).expect("taken")[0].duplicate);
        for n in 0..150 {
            append(partition, &[format!("{n}").repeat(300)]);
        }
        assert!(
            files_of(dir.path(), ".seg").len() > 1,
            "the keys are in a sealed segment"
        );
    }
    let log = open_with(config, Seams::system());
    let partition = telemetry(&log);
    let known = partition.append_unique(keyed("a", b"6")).expect("taken")[0];
    assert_eq!((known.offset, known.duplicate), (Offset(0), true));
    let fresh = partition.append_unique(keyed("b", b"7")).expect("taken")[0];
    assert_eq!((fresh.offset, fresh.duplicate), (Offset(152), false));
}

#[test]
fn one_append_may_mix_fresh_known_repeated_and_keyless_records() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let partition = telemetry(&log);
    await_durable(
        partition,
        partition.append(keyed("known", b"0")).expect("taken").end,
    );
    let mut records = Records::new();
    let topic = records.topic("devices/1/telemetry", 8..9).expect("room");
    let client = records.client("c").expect("room");
    for key in [Some("x"), None, Some("known"), Some("x"), None, Some("y")] {
        let meta = RecordMeta {
            idempotency_key: key,
            ..RecordMeta::new(topic, client, 1)
        };
        records
            .push(meta, key.unwrap_or("none").as_bytes())
            .expect("room");
    }
    let placed = partition.append_unique(records).expect("taken");
    let places: Vec<_> = placed
        .iter()
        .map(|place| (place.offset.0, place.duplicate))
        .collect();
    assert_eq!(
        places,
        [
            (1, false),
            (2, false),
            (0, true),
            (1, true),
            (3, false),
            (4, false)
        ]
    );
    await_durable(partition, Offset(5));
    let payloads: Vec<_> = read_all(partition)
        .into_iter()
        .map(|(_, payload)| payload)
        .collect();
    assert_eq!(
        payloads[1..],
        [&b"x"[..], b"none", b"none", b"y"].map(<[u8]>::to_vec)
    );
}

#[test]
fn callers_that_race_with_one_key_append_it_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let partition = telemetry(&log);
    for key in 0..20 {
        let placed: Vec<_> = std::thread::scope(|scope| {
            let race = || {
                partition
                    .append_unique(keyed(&key.to_string(), b"x"))
                    .expect("taken")[0]
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a place"))
                .collect()
        });
        assert_eq!(placed.iter().filter(|place| !place.duplicate).count(), 1);
        assert!(placed.iter().all(|place| place.offset == Offset(key)));
    }
}

/// A log of several segments with a key in each record, as a crash leaves it.
fn keys_everywhere() -> (MemoryFiles, LogConfig) {
    let files = MemoryFiles::default();
    let config = LogConfig {
        tail_bytes: 0,
        maintain_every: None,
        ..config(std::path::Path::new("/data"))
    };
    let log = open_with(config.clone(), files.seams());
    let partition = telemetry(&log);
    for n in 0..100_u64 {
        let keyed = keyed(&n.to_string(), &[7; 1500]);
        let placed = partition.append_unique(keyed).expect("taken")[0];
        assert_eq!(placed.offset, Offset(n));
        await_durable(partition, Offset(n + 1));
    }
    log.maintain();
    let left = files.copy();
    log.shutdown();
    (left, config)
}

/// Appends every key again and returns those that are taken for new ones.
fn fresh_keys(files: &MemoryFiles, config: &LogConfig) -> Vec<u64> {
    let log = open_with(config.clone(), files.seams());
    let is_fresh = |n: &u64| {
        let again = telemetry(&log).append_unique(keyed(&n.to_string(), b"again"));
        // Beside a place that can not be read nobody may be able to tell.
        again.is_ok_and(|placed| !placed[0].duplicate)
    };
    (0..100).filter(is_fresh).collect()
}

#[test]
fn keys_are_known_also_where_an_index_is_made_again_or_damage_splits_the_segment() {
    let (whole, config) = keys_everywhere();
    let segments: Vec<_> = whole
        .with_suffix(".seg")
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("telemetry"))
        .collect();
    let (first, last) = (&segments[0], segments.last().expect("one"));
    assert_eq!(fresh_keys(&whole.copy(), &config), Vec::<u64>::new());
    let without_index = whole.copy();
    without_index.delete(&first.with_extension("idx"));
    assert_eq!(fresh_keys(&without_index, &config), Vec::<u64>::new());
    // Only what is gone is new again.
    let unreadable = whole.copy();
    unreadable.delete(&first.with_extension("idx"));
    unreadable.make_unreadable(first, 9000..9100);
    let fresh = fresh_keys(&unreadable, &config);
    assert!((1..=4).contains(&fresh.len()), "{fresh:?}");
    let split = whole.copy();
    split.change(last, |bytes| bytes[4096 + 2000] ^= 1);
    let base: u64 = last
        .file_stem()
        .and_then(|name| name.to_string_lossy().parse().ok())
        .expect("a base offset");
    assert_eq!(fresh_keys(&split, &config), [base + 1]);
}
