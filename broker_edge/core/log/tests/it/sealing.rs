//! Segment roll: when it happens, what the files contain, and which file the next segment reuses.

use std::path::{Path, PathBuf};

use crate::support::memory::MemoryFiles;
use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::{
    Class, ClassConfig, LogConfig, Offset, PartitionState, RecordMeta, Records, SyncMode,
};

fn segment(partition: &str, base: u64) -> PathBuf {
    Path::new("/data").join(format!("{partition}/{base:020}.seg"))
}

/// Bytes of segments, their indexes and spares.
fn on_disk(files: &SimFiles) -> u64 {
    let names = files.names().into_iter();
    let counted = names.filter(|path| {
        let name = path.to_string_lossy();
        name.ends_with(".seg") || name.ends_with(".idx") || name.contains("/spare-")
    });
    counted.map(|path| files.bytes(&path).len() as u64).sum()
}

/// Whether the header says that stale batches may follow its own.
fn is_recycled(files: &SimFiles, path: &Path) -> bool {
    files.bytes(path)[37] != 0
}

#[test]
fn the_size_of_the_files_is_known_after_each_change_of_them() {
    let files = SimFiles::new(1);
    let log = open_with(
        with_class(ClassConfig::new(Class::Telemetry), 512 << 10),
        files.seams(),
    );
    let partition = telemetry(&log);
    for n in 1..=40 {
        append(partition, &[vec![1; 60 << 10]]);
        assert_eq!(partition.file_bytes(), on_disk(&files), "after {n}");
        if n % 11 == 0 {
            log.maintain();
            assert_eq!(partition.file_bytes(), on_disk(&files), "saved after {n}");
        }
    }
    partition.advance_log_start(Offset(30));
    assert!(partition.log_start() > Offset(20));
    assert_eq!(partition.file_bytes(), on_disk(&files));
}

/// Without syncs nothing is preallocated either, and the next segment still appears.
#[test]
fn without_syncs_the_size_of_the_files_is_never_told_too_small() {
    let files = SimFiles::new(2);
    let config = LogConfig {
        sync: SyncMode::Never,
        ..with_class(ClassConfig::new(Class::Telemetry), 512 << 10)
    };
    let log = open_with(config, files.seams());
    for _ in 0..20 {
        append(telemetry(&log), &[vec![1; 30 << 10]]);
    }
    log.maintain();
    for n in 21..=60 {
        append(telemetry(&log), &[vec![1; 30 << 10]]);
        let (told, is) = (telemetry(&log).file_bytes(), on_disk(&files));
        assert!(told >= is, "{told} of {is} bytes after {n}");
    }
}

#[test]
fn a_segment_that_ends_early_gives_back_what_was_prepared_for_it() {
    const MIB: usize = 1 << 20;
    let files = SimFiles::new(3);
    let log = open_with(
        with_class(ClassConfig::new(Class::Telemetry), 6 << 20),
        files.seams(),
    );
    let partition = telemetry(&log);
    append(partition, &[vec![1; 5 * MIB]]);
    append(partition, &[vec![1; 5 * MIB]]);
    partition.advance_log_start(Offset(1));
    // The next segment reuses the whole removed file.
    append(partition, &[vec![1; 2 * MIB]]);
    let early = segment("telemetry-0", 2);
    assert!(files.bytes(&early).len() > 5 * MIB);
    assert_eq!(partition.file_bytes(), on_disk(&files));
    append(partition, &[vec![1; 59 * MIB / 10]]);
    assert!(has(&files, "telemetry-0/00000000000000000003.seg"));
    assert!(files.bytes(&early).len() > 5 * MIB, "little is kept");
    assert_eq!(partition.file_bytes(), on_disk(&files));

    // The first of the two removed files is reused.
    partition.advance_log_start(Offset(3));
    append(partition, &[vec![1; MIB / 2]]);
    append(partition, &[vec![1; MIB / 4]]);
    let early = segment("telemetry-0", 4);
    assert!(files.bytes(&early).len() > 5 * MIB);
    assert_eq!(partition.file_bytes(), on_disk(&files));
    append(partition, &[vec![1; 59 * MIB / 10]]);
    assert!(files.bytes(&early).len() < MIB);
    assert_eq!(partition.file_bytes(), on_disk(&files));
    assert_eq!(read_all(partition).len(), 4);
}

/// Its index is in memory until then.
#[test]
fn a_segment_of_very_many_topics_ends_early() {
    const TOPICS: u32 = 200_000;
    let files = MemoryFiles::default();
    let log = open_with(
        with_class(ClassConfig::new(Class::Telemetry), 64 << 20),
        files.seams(),
    );
    let partition = telemetry(&log);
    let append_topics = |numbers: std::ops::Range<u32>| {
        let mut records = Records::new();
        let client = records.client("client").expect("room");
        for number in numbers {
            let topic = format!("devices/{number}/telemetry");
            let topic = records.topic(&topic, 8..9).expect("room");
            let meta = RecordMeta::new(topic, client, 1);
            records.push(meta, b"").expect("room");
        }
        let range = partition.append(records).expect("taken");
        await_durable(partition, range.end);
    };
    for from in (0..TOPICS).step_by(10_000) {
        append_topics(from..from + 10_000);
    }
    assert_eq!(files.with_suffix(".seg").len(), 1);
    append_topics(0..1);
    let second = segment("telemetry-0", u64::from(TOPICS));
    assert!(files.names().contains(&second));
    append_topics(1..2);
    assert_eq!(files.with_suffix(".seg").len(), 2, "it counts anew");
}

/// The batch would be written after the end of the file, and fail permanently.
#[test]
fn a_batch_that_the_spare_can_not_hold_waits_for_space() {
    let files = SimFiles::new(4);
    let log = open_with(
        with_class(ClassConfig::new(Class::Telemetry), 1 << 20),
        files.seams(),
    );
    let partition = telemetry(&log);
    let kib = |size: usize| [vec![7; size << 10]];
    // Segments 0 to 2, the second of them a smaller file.
    append(partition, &kib(900));
    append(partition, &kib(530));
    append(partition, &kib(600));
    partition.advance_log_start(Offset(1));
    append(partition, &kib(900));
    append(partition, &kib(300));
    partition.advance_log_start(Offset(2));
    let small = files.bytes(&spares(&files)[0]).len();
    assert!(small < 600 << 10, "{small}");
    files.set_free(Some(0));
    let waits = partition.append(records(1, &kib(600))).expect("queued");
    await_that("the disk to be full", || {
        partition.state() != PartitionState::Running
    });
    assert_eq!(partition.state(), PartitionState::Full);
    assert_eq!(spares(&files).len(), 1);
    files.set_free(None);
    await_durable(partition, waits.end);
    assert!(read_all(partition).iter().map(|(at, _)| *at).eq(2..6));
}

/// The next would have its name.
#[test]
fn an_empty_segment_does_not_give_way_to_the_spare() {
    let files = SimFiles::new(5);
    let config = || with_class(ClassConfig::new(Class::Internal), 32 << 10);
    let log = open_with(config(), files.seams());
    files.kill();
    drop(log);
    let log = open_with(config(), files.seams());
    log.maintain();
    let internal = &log.partitions()[0];
    assert_eq!(files.bytes(&segment("internal-0", 0)).len(), 4096);
    files.set_free(Some(0));
    let waits = internal
        .append(records(1, &[vec![1; 9000]]))
        .expect("queued");
    await_that("it to be written, or not", || {
        internal.state() != PartitionState::Running || internal.high_watermark() >= waits.end
    });
    assert_eq!(internal.state(), PartitionState::Full);
    files.set_free(None);
    await_durable(internal, waits.end);
    await_that("appends to resume", || {
        internal.state() == PartitionState::Running
    });
    append(internal, &[vec![2; 30 << 10]]);
    let found = read_all(internal);
    files.power_cut();
    drop(log);
    let log = open_with(config(), files.seams());
    assert!(read_all(&log.partitions()[0]) == found && found.len() == 2);
}

/// In such a file a start treats bytes after the batches as stale; in any other file it quarantines them.
#[test]
fn only_a_segment_that_is_made_of_a_removed_one_says_so() {
    let files = SimFiles::new(6);
    let log = open_with(
        with_class(ClassConfig::new(Class::Internal), 16 << 10),
        files.seams(),
    );
    let internal = &log.partitions()[0];
    for _ in 0..2 {
        append(internal, &[vec![1; 9000]]);
    }
    log.maintain();
    append(internal, &[vec![1; 9000]]);
    for base in 0..3 {
        assert!(!is_recycled(&files, &segment("internal-0", base)), "{base}");
    }
    internal.advance_log_start(Offset(1));
    append(internal, &[vec![1; 9000]]);
    assert!(is_recycled(&files, &segment("internal-0", 3)));
}

fn spares(files: &SimFiles) -> Vec<PathBuf> {
    let mut names = files.names();
    names.retain(|path| path.to_string_lossy().contains("/spare-"));
    names
}

#[test]
fn a_file_of_a_very_different_size_is_not_used_again() {
    let files = SimFiles::new(7);
    let log = open_with(
        with_class(ClassConfig::new(Class::Telemetry), 1 << 20),
        files.seams(),
    );
    let partition = telemetry(&log);
    append(partition, &[vec![1; 900 << 10]]);
    append(partition, &[vec![1; 6 << 20]]);
    append(partition, &[vec![1; 100 << 10]]);
    append(partition, &[vec![1; 1000 << 10]]);
    append(partition, &[vec![1; 900 << 10]]);
    for (to, is_kept) in [(1, true), (2, false), (3, false)] {
        partition.advance_log_start(Offset(to));
        assert_eq!(partition.log_start(), Offset(to));
        assert_eq!(spares(&files).len(), usize::from(is_kept), "{to}");
        // Takes the spare, if there is one.
        append(partition, &[vec![1; 900 << 10]]);
    }
}

/// It may hold the last free bytes.
#[test]
fn a_spare_that_finds_no_space_leaves_nothing() {
    let files = SimFiles::new(8);
    let log = open_with(
        with_class(ClassConfig::new(Class::Internal), 64 << 10),
        files.seams(),
    );
    files.set_free(Some(32 << 10));
    log.maintain();
    assert!(spares(&files).is_empty());
    files.set_free(None);
    log.maintain();
    assert_eq!(spares(&files).len(), 1);
}

#[test]
fn a_removed_segment_that_fails_to_become_a_spare_leaves_nothing() {
    for what in ["sync_dir", "write_all_at", "sync_data"] {
        let made = || {
            let files = SimFiles::new(9);
            let log = open_with(
                with_class(ClassConfig::new(Class::Telemetry), 64 << 10),
                files.seams(),
            );
            for _ in 0..3 {
                append(telemetry(&log), &[vec![1; 50 << 10]]);
            }
            (files, log)
        };
        let (files, log) = made();
        files.record();
        telemetry(&log).advance_log_start(Offset(1));
        let calls = files.recorded();
        assert_eq!(spares(&files).len(), 1, "the control");
        let nth = calls
            .iter()
            .position(|moment| moment.call.starts_with(what));
        let nth = nth.expect("it is called") as u64 + 1;

        let (files, log) = made();
        files.fail_call(nth, Fault::Error);
        telemetry(&log).advance_log_start(Offset(1));
        assert!(files.failed()[0].starts_with(what), "{:?}", files.failed());
        assert!(spares(&files).is_empty(), "{what}");
        assert!(!files.names().contains(&segment("telemetry-0", 0)));
        append(telemetry(&log), &[vec![1; 50 << 10]]);
        assert_eq!(read_all(telemetry(&log)).len(), 3);
    }
}

/// Only a lack of space resolves by itself.
#[test]
fn a_segment_that_fails_to_grow_stops_the_partition() {
    let files = SimFiles::new(10);
    let log = open_with(
        with_class(ClassConfig::new(Class::Telemetry), 16 << 20),
        files.seams(),
    );
    let partition = telemetry(&log);
    append(partition, &[vec![1; 3 << 20]]);
    files.fail_call(1, Fault::Error);
    partition
        .append(records(1, &[vec![1; 3 << 20]]))
        .expect("queued");
    await_that("it to stop", || {
        partition.state() != PartitionState::Running
    });
    assert!(matches!(partition.state(), PartitionState::Stopped(_)));
    assert_eq!(files.failed().len(), 1);
    assert_eq!(partition.high_watermark(), Offset(1));
}
