//! Candidate ranges: where wanted topics may lie, found from the indexes alone.

use std::path::Path;

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{Log, LogConfig, Offset, ReadError, Seams, TopicFilter, TopicSelection};

/// Segments of some blocks, read from the files.
fn some_blocks(dir: &Path) -> LogConfig {
    LogConfig {
        segment_bytes: 512 << 10,
        maintain_every: None,
        ..without_tail(dir)
    }
}

/// One record of 9 KB per offset, each with its own topic: a few per block, some blocks per segment.
fn one_topic_each(dir: &Path, count: u32) -> Log {
    let log = open_with(some_blocks(dir), Seams::system());
    append_one_topic_each(&log, 0..count);
    log.maintain();
    log
}

fn append_one_topic_each(log: &Log, numbers: std::ops::Range<u32>) {
    for n in numbers {
        let range = telemetry(log)
            .append(records(n, &[vec![7; 9000]]))
            .expect("taken");
        await_durable(telemetry(log), range.end);
    }
}

/// All candidate ranges between two offsets, requested `max` at a time.
fn stretches_between(
    log: &Log,
    (from, until): (u64, u64),
    max: usize,
    wanted: TopicFilter<'_>,
) -> Vec<std::ops::Range<Offset>> {
    let (mut at, mut ranges, mut selection) = (Offset(from), Vec::new(), TopicSelection::default());
    while at < Offset(until) {
        let found = telemetry(log)
            .candidate_ranges(at, Offset(until), max, &mut selection, wanted)
            .expect("an answer");
        assert!(found.scanned > at && found.scanned <= Offset(until));
        assert!(found.ranges.len() <= max);
        for range in found.ranges {
            assert!(at <= range.start && range.start < range.end && range.end <= found.scanned);
            ranges.push(range);
        }
        at = found.scanned;
    }
    ranges
}

#[test]
fn a_topic_is_found_at_its_offset_and_in_no_range_without_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = one_topic_each(dir.path(), 130);
    assert!(files_of(dir.path(), ".seg").len() >= 3);
    for n in 0..130 {
        let topic = format!("devices/{n}/telemetry");
        let (names, matching) = ([topic.as_str()], |name: &str| name == topic);
        let places = [
            (0, 130),
            (n, 130),
            (n + 1, 130),
            (0, n),
            (0, n + 1),
            (n, n + 1),
        ];
        for (from, until) in places {
            let is_there = (from..until).contains(&n);
            for wanted in [
                TopicFilter::Topics(&names),
                TopicFilter::Matching(&matching),
            ] {
                let ranges = stretches_between(&log, (from, until), 2, wanted);
                let found = ranges.iter().filter(|range| range.contains(&Offset(n)));
                let found = found.count();
                assert_eq!(found, usize::from(is_there), "{n} in {from}..{until}");
            }
            let (mut at, mut found) = (Offset(from), 0);
            while at < Offset(until) {
                let (batches, scanned) = telemetry(&log)
                    .read_matching(at, Offset(until), 1 << 20, &matching)
                    .expect("a read");
                let holds = |batch: &&headwater_log::Batch| batch.base_offset() == Offset(n);
                found += batches.iter().filter(holds).count();
                at = scanned;
            }
            assert_eq!(found, usize::from(is_there), "{n} in {from}..{until}");
        }
    }
}

#[test]
fn stretches_that_are_asked_for_one_by_one_are_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = one_topic_each(dir.path(), 130);
    let wanted: Vec<u64> = (3..130).step_by(20).collect();
    let topics: Vec<String> = wanted
        .iter()
        .map(|n| format!("devices/{n}/telemetry"))
        .collect();
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let at_once = stretches_between(&log, (0, 130), 1000, TopicFilter::Topics(&names));
    let one_by_one = stretches_between(&log, (0, 130), 1, TopicFilter::Topics(&names));
    assert_eq!(one_by_one, at_once);
    assert!(at_once.len() >= wanted.len() - 1, "{at_once:?}");
    for n in wanted {
        assert!(at_once.iter().any(|range| range.contains(&Offset(n))));
    }
}

#[test]
fn a_selection_that_is_kept_knows_what_was_sealed_since() {
    for by_name in [true, false] {
        let dir = tempfile::tempdir().expect("a folder");
        let log = one_topic_each(dir.path(), 200);
        let newest = files_of(dir.path(), ".seg").pop().expect("segments");
        let base = newest
            .file_stem()
            .map(|name| name.to_string_lossy().parse());
        let base = Offset(base.expect("a name").expect("a base offset"));
        let topic = "devices/200/telemetry";
        let (names, matching) = ([topic], |name: &str| name == topic);
        let wanted = if by_name {
            TopicFilter::Topics(&names)
        } else {
            TopicFilter::Matching(&matching)
        };
        let (mut selection, mut at, mut is_found) = (TopicSelection::default(), Offset(0), false);
        while at < telemetry(&log).high_watermark() {
            // Up to where the sealed segments end, and on once there are more of them.
            let until = if at < base { base } else { Offset(300) };
            if at == base {
                append_one_topic_each(&log, 200..300);
            }
            let found = telemetry(&log)
                .candidate_ranges(at, until, 8, &mut selection, wanted)
                .expect("an answer");
            is_found |= found
                .ranges
                .iter()
                .any(|range| range.contains(&Offset(200)));
            at = found.scanned;
        }
        assert!(is_found, "by name: {by_name}");
    }
}

#[test]
fn topics_too_many_to_be_kept_by_name_are_found_by_the_indexes() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = one_topic_each(dir.path(), 200);
    let wanted = 60..130;
    let topics: Vec<String> = wanted
        .clone()
        .map(|n| format!("devices/{n}/telemetry"))
        .collect();
    let matching = |name: &str| topics.iter().any(|topic| topic == name);
    let ranges = stretches_between(&log, (0, 200), 1000, TopicFilter::Matching(&matching));
    for n in wanted {
        let found = ranges.iter().filter(|range| range.contains(&Offset(n)));
        assert_eq!(found.count(), 1, "{n} in {ranges:?}");
    }
    let held: u64 = ranges.iter().map(|range| range.end.0 - range.start.0).sum();
    assert!(held < 150, "{ranges:?} for 70 records of 200");
}

#[test]
fn one_question_reads_few_indexes_and_none_of_a_segment_without_a_topic_that_is_kept_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = one_topic_each(dir.path(), 500);
    assert!(files_of(dir.path(), ".idx").len() >= 7);
    let ask = |selection: &mut TopicSelection, wanted: TopicFilter<'_>| {
        telemetry(&log)
            .candidate_ranges(Offset(0), Offset(500), 1000, selection, wanted)
            .expect("an answer")
    };
    let topics: Vec<String> = (350..440)
        .map(|n| format!("devices/{n}/telemetry"))
        .collect();
    let matching = |name: &str| topics.iter().any(|topic| topic == name);
    let mut selection = TopicSelection::default();
    let found = ask(&mut selection, TopicFilter::Matching(&matching));
    assert!(
        found.ranges.is_empty() && found.scanned < Offset(300),
        "{found:?}"
    );
    assert_eq!(selection.memory(), 0);
    let named = [topics[0].as_str()];
    let mut selection = TopicSelection::default();
    let found = ask(&mut selection, TopicFilter::Topics(&named));
    let [range] = found.ranges.as_slice() else {
        panic!("{found:?}")
    };
    assert!(range.contains(&Offset(350)), "{found:?}");
    assert!((20..200).contains(&selection.memory()), "one name");
}

/// Until the topics could be read, a selection covers nothing: noted as covered after an error, it would never learn
/// them, and every index of the range would be read in place of those of the wanted topic.
#[test]
fn a_selection_whose_topics_could_not_be_read_learns_them_with_the_next_question() {
    let files = SimFiles::new(1);
    let config = || some_blocks(Path::new("/data"));
    let log = open_with(config(), files.seams());
    append_one_topic_each(&log, 0..130);
    // Saves the indexes, so that the next start has none in memory.
    log.maintain();
    log.shutdown();
    drop(log);
    let log = open_with(config(), files.seams());
    let ask = |selection: &mut TopicSelection| {
        let wanted = TopicFilter::Topics(&["devices/3/telemetry"]);
        telemetry(&log).candidate_ranges(Offset(0), Offset(130), 8, selection, wanted)
    };
    let mut selection = TopicSelection::default();
    files.set_no_descriptors(true);
    let refused = ask(&mut selection).expect_err("no index can be opened");
    assert!(matches!(refused, ReadError::Io { .. }), "{refused}");
    assert_eq!(selection.memory(), 0, "nothing is known yet");
    files.set_no_descriptors(false);
    let found = ask(&mut selection).expect("an answer");
    let is_there = found.ranges.iter().any(|range| range.contains(&Offset(3)));
    assert!(is_there, "{found:?}");
    assert!(selection.memory() > 0, "the topic is kept by name");
}
