//! Space for batches: preallocated before it is needed, taken from a spare, missing on a full disk; and segment roll.

use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{Class, ClassConfig, Log, LogConfig, Offset, PartitionState, SyncMode};

#[test]
fn the_internal_partition_goes_on_when_the_disk_is_full() {
    let files = SimFiles::new(2);
    let config = LogConfig {
        segment_bytes: 32 << 10,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        sync: SyncMode::Always,
        ..LogConfig::new("/data")
    };
    let log = open_with(config, files.seams());
    log.maintain();
    let is_spare = |path: &std::path::PathBuf| {
        let name = path
            .strip_prefix("/data/internal-0")
            .ok()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("spare-") && name.ends_with(".tmp"))
    };
    assert!(files.names().iter().any(is_spare));
    files.set_free(Some(0));
    let internal = log.by_name("internal-0").expect("there");
    let state = "state ".repeat(200);
    // More than fits the active segment: the prepared one takes over without new space.
    for _ in 0..40 {
        append(internal, &[&state]);
    }
    assert_eq!(internal.state(), PartitionState::Running);
    assert_eq!(read_all(internal).len(), 40);
}

/// A spare is a whole segment: created once, and not if the file of a removed segment is available.
#[test]
fn the_internal_partition_alone_has_a_spare_and_only_one() {
    let files = SimFiles::new(8);
    let config = LogConfig {
        segment_bytes: 32 << 10,
        maintain_every: None,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new("/data")
    };
    let log = open_with(config, files.seams());
    let internal = &log.partitions()[0];
    let spares = || {
        let names = files.names();
        let is_spare = |path: &&std::path::PathBuf| path.to_string_lossy().contains("spare-");
        names.iter().filter(is_spare).count()
    };
    log.maintain();
    let written = internal.stats().fill_bytes;
    log.maintain();
    assert_eq!(internal.stats().fill_bytes, written);
    for _ in 0..12 {
        append(internal, &[vec![1; 9000]]);
        log.maintain();
        assert_eq!(spares(), 1);
    }
    internal.advance_log_start(internal.high_watermark());
    assert!(internal.log_start().0 > 6, "several segments are gone");
    assert_eq!(spares(), 1);
}

/// The writer takes two batches at once, and there is space for only one of them.
#[test]
fn what_was_written_is_acknowledged_although_the_next_batch_finds_no_space() {
    let files = SimFiles::new(3);
    let config = || LogConfig {
        segment_bytes: 16 << 20,
        tail_bytes: 0,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..LogConfig::new("/data")
    };
    let log = open_with(config(), files.seams());
    let partition = log.partitions()[0].clone();
    files.hold("sync_data", "telemetry-0");
    partition.append(records(1, &["first"])).expect("queued");
    files.await_held();
    // Together too large for one batch; the second needs more than the prepared space.
    let large = [vec![1; 3 << 20], vec![2; 3 << 20]];
    let fits = partition.append(records(1, &large[..1])).expect("queued");
    let waits = partition.append(records(1, &large[1..])).expect("queued");
    files.set_free(Some(1 << 20));
    files.let_go();
    await_that("the disk to be full", || {
        partition.state() == PartitionState::Full
    });
    assert_eq!(partition.high_watermark(), fits.end);
    assert_eq!(read_all(&partition).len(), 2);
    files.set_free(None);
    await_durable(&partition, waits.end);
    let expected = [
        (0, b"first".to_vec()),
        (1, large[0].clone()),
        (2, large[1].clone()),
    ];
    assert!(read_all(&partition) == expected);
    files.power_cut();
    drop((log, partition));
    let log = open_with(config(), files.seams());
    assert!(read_all(&log.partitions()[0]) == expected);
}

/// It may hold the last free bytes.
#[test]
fn a_segment_that_finds_no_space_leaves_no_unfinished_file() {
    let files = SimFiles::new(11);
    let config = LogConfig {
        segment_bytes: 16 << 10,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    append(telemetry(&log), &[vec![1; 9000]]);
    files.set_free(Some(8 << 10));
    let waits = telemetry(&log)
        .append(records(1, &[vec![2; 9000]]))
        .expect("queued");
    await_that("the disk to be full", || {
        telemetry(&log).state() == PartitionState::Full
    });
    let is_unfinished = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(".seg.tmp");
    await_that("it to be gone", || !files.names().iter().any(is_unfinished));
    files.set_free(None);
    await_durable(telemetry(&log), waits.end);
}

/// A segment is named by its first offset, so an empty sealed segment would have the same name as the next.
#[test]
fn a_record_larger_than_a_segment_goes_into_the_empty_one() {
    let files = SimFiles::new(12);
    let config = LogConfig {
        segment_bytes: 16 << 10,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    files.record();
    append(telemetry(&log), &[vec![1; 40 << 10]]);
    let calls = files.recorded();
    assert!(!calls.iter().any(|call| call.call.starts_with("rename")));
    append(telemetry(&log), &["in the next"]);
    assert_eq!(read_all(telemetry(&log)).len(), 2);
}

/// Both are written in one step, with the segment roll between them.
#[test]
fn a_batch_that_was_written_before_the_spare_takes_over_is_read_from_where_it_stands() {
    let files = SimFiles::new(13);
    let config = || LogConfig {
        segment_bytes: 16 << 20,
        tail_bytes: 0,
        maintain_every: None,
        classes: vec![
            ClassConfig::new(Class::Internal),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new("/data")
    };
    let log = open_with(config(), files.seams());
    log.maintain();
    let internal = log.by_name("internal-0").expect("there").clone();
    files.hold("sync_data", "internal-0");
    internal.append(records(1, &["first"])).expect("queued");
    files.await_held();
    let large = [vec![1; 3 << 20], vec![2; 3 << 20]];
    internal.append(records(1, &large[..1])).expect("queued");
    let last = internal.append(records(1, &large[1..])).expect("queued");
    files.set_free(Some(0));
    files.let_go();
    await_durable(&internal, last.end);
    assert!(has(&files, "internal-0/00000000000000000002.seg"));
    let [one, two] = large;
    let expected = [(0, b"first".to_vec()), (1, one), (2, two)];
    assert!(read_all(&internal) == expected);
    files.set_free(None);
    files.power_cut();
    drop((log, internal));
    let log = open_with(config(), files.seams());
    assert!(read_all(log.by_name("internal-0").expect("there")) == expected);
}

/// A write without preallocated space would fail, and stop the partition permanently.
#[test]
fn space_is_secured_for_each_segment_anew() {
    let files = SimFiles::new(14);
    let config = LogConfig {
        segment_bytes: 1 << 20,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    let partition = telemetry(&log);
    for _ in 0..9 {
        append(partition, &[vec![1; 120 << 10]]);
    }
    assert!(has(&files, "telemetry-0/00000000000000000008.seg"));
    files.set_free(Some(0));
    let mut waits = partition.next_offset();
    for _ in 0..4 {
        let queued = partition.append(records(1, &[vec![2; 120 << 10]]));
        let Ok(range) = queued else { break };
        waits = range.end;
        await_that("it to be written, or not", || {
            partition.high_watermark() >= waits || partition.state() != PartitionState::Running
        });
    }
    assert_eq!(partition.state(), PartitionState::Full);
    files.set_free(None);
    await_durable(partition, waits);
}

/// Each extension of a file is synced separately, before the batch that needs it.
#[test]
fn space_for_many_batches_is_secured_at_once_also_in_a_new_segment() {
    let files = SimFiles::new(15);
    let config = LogConfig {
        segment_bytes: 512 << 10,
        ..with_room()
    };
    let log = open_with(config, files.seams());
    let partition = telemetry(&log);
    let is_segment = |path: &std::path::Path| {
        path.starts_with("/data/telemetry-0") && path.extension().is_some_and(|is| is == "seg")
    };
    let syncs_of = |count: u64| {
        let before = partition.stats().syncs;
        for _ in 0..count {
            append(partition, &[vec![1; 3000]]);
        }
        partition.stats().syncs - before
    };
    let in_first = syncs_of(100);
    assert!((100..=106).contains(&in_first), "{in_first} syncs");
    while files.names().iter().filter(|path| is_segment(path)).count() == 1 {
        append(partition, &[vec![2; 3000]]);
    }
    assert_eq!(syncs_of(15), 15, "in the new segment");
}

/// Otherwise a start would treat it as damaged.
#[test]
fn a_segment_that_is_made_of_a_removed_one_has_its_header_before_its_name() {
    let config = || LogConfig {
        segment_bytes: 64 << 10,
        ..with_room()
    };
    let files = SimFiles::new(16);
    let log = open_with(config(), files.seams());
    for _ in 0..3 {
        append(telemetry(&log), &[vec![1; 50 << 10]]);
    }
    telemetry(&log).advance_log_start(Offset(1));
    files.record();
    append(telemetry(&log), &[vec![2; 50 << 10]]);
    let moments = files.recorded();
    let is_naming = |call: &str| call.starts_with("rename") && call.contains("spare-");
    assert!(moments.iter().any(|moment| is_naming(&moment.call)));
    for (moment, seed) in moments
        .iter()
        .flat_map(|moment| (0..8).map(move |seed| (moment, seed)))
    {
        let computer = moment.computer(seed);
        computer.power_cut();
        let (log, report) = Log::open(config(), computer.seams()).expect("the log opens");
        let is_damage = |note: &String| note.contains("header");
        for partition in &report.partitions {
            assert!(
                !partition.notes.iter().any(is_damage),
                "{} {partition:?}",
                moment.call
            );
            assert!(partition.gaps.is_empty(), "{} {partition:?}", moment.call);
        }
        assert!(read_all(telemetry(&log)).len() >= 2);
    }
}
