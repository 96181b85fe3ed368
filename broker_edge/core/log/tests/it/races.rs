//! Two threads are made to meet at the one point where they could interfere.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::{
    AppendError, Class, ClassConfig, Log, LogConfig, Offset, Partition, PartitionState,
};

const HOUR: Duration = Duration::from_secs(3600);

/// One partition with segments of two records of 9 kB.
fn small(class: Class) -> LogConfig {
    with_class(ClassConfig::new(class), 16 << 10)
}

/// The writer has taken the spare but not renamed it yet when the next spare is created. With the same name, the
/// writer's file would be emptied.
#[test]
fn a_spare_that_the_writer_is_about_to_use_is_not_made_anew() {
    let files = SimFiles::new(1);
    let config = || small(Class::Internal);
    let log = open_with(config(), files.seams());
    let internal = log.partitions()[0].clone();
    log.maintain();
    append(&internal, &[vec![1; 9000]]);
    files.hold("rename", "spare-");
    let range = internal
        .append(records(1, &[vec![2; 9000]]))
        .expect("queued");
    files.await_held();
    // The writer holds a spare that is complete except for its name.
    log.maintain();
    files.let_go();
    await_durable(&internal, range.end);
    append(&internal, &[vec![3; 6000]]);
    let before = read_all(&internal);
    assert_eq!(before.len(), 3);
    // The new spare is used next, and contains nothing of the one before.
    append(&internal, &[vec![4; 9000]]);
    files.power_cut();
    drop(log);
    let log = open_with(config(), files.seams());
    let found = read_all(&log.partitions()[0]);
    assert_eq!(found[..3], before);
    assert_eq!(found.len(), 4);
    assert_eq!(log.partitions()[0].gaps(), []);
}

/// Between the decision to remove a segment and its removal, no other thread decides about the same excess.
#[test]
fn two_that_look_for_old_segments_at_once_remove_no_more_than_one_would() {
    let files = SimFiles::new(2);
    let limit = 40 << 10;
    let mut config = small(Class::Telemetry);
    config.classes[0].retention_bytes = Some(limit);
    let log = open_with(config, files.seams());
    let partition = log.partitions()[0].clone();
    while partition.size_bytes() <= limit {
        append(&partition, &[vec![7; 3000]]);
    }
    let (entered, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (entered_by_hook, inside_by_hook) = (Arc::clone(&entered), Arc::clone(&inside));
    let _guard = partition.before_delete(Arc::new(move |_| {
        let others = inside_by_hook.fetch_add(1, Ordering::SeqCst);
        entered_by_hook.fetch_add(1, Ordering::SeqCst);
        // The other thread gets every chance to decide too.
        let until = Instant::now() + Duration::from_millis(150);
        while others == 0 && entered_by_hook.load(Ordering::SeqCst) < 2 && Instant::now() < until {
            std::thread::yield_now();
        }
        inside_by_hook.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two remove at once");
        true
    }));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| log.maintain());
        }
    });
    assert_eq!(entered.load(Ordering::SeqCst), 1, "one segment was enough");
    let start = partition.log_start();
    assert!(partition.size_bytes() <= limit && start > Offset(0));
    let found = read_all(&partition);
    assert_eq!(found[0].0, start.0);
    let segments = files.names();
    let is_segment = |path: &&std::path::PathBuf| path.to_string_lossy().ends_with(".seg");
    let oldest = segments.iter().find(is_segment).expect("a segment");
    assert_eq!(
        oldest.as_path(),
        Path::new(&format!("/data/telemetry-0/{:020}.seg", start.0))
    );
}

/// A reader that looks up a segment before retention removes it gets an error or the right bytes, never those of the
/// segment that reuses the file.
#[test]
fn a_reader_that_holds_a_segment_does_not_see_what_its_file_becomes() {
    let files = SimFiles::new(3);
    let config = LogConfig {
        tail_bytes: 0,
        ..small(Class::Telemetry)
    };
    let log = open_with(config, files.seams());
    let partition = log.partitions()[0].clone();
    for n in 0..8_u8 {
        append(&partition, &[vec![n; 6000]]);
    }
    // Held when it opens the first segment.
    files.hold("open", "telemetry-0/00000000000000000000.seg");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| partition.read(Offset(0), 100));
        files.await_held();
        let remover = scope.spawn(|| partition.advance_log_start(Offset(6)));
        await_that("the log start to move", || {
            partition.log_start() > Offset(0)
        });
        files.let_go();
        remover.join().expect("removed");
        match reader.join().expect("no panic") {
            Ok(batches) => assert_eq!(payloads(&batches[0])[0].1, vec![0; 6000]),
            Err(error) => assert!(
                matches!(error, headwater_log::ReadError::OutOfRange { .. }),
                "{error}"
            ),
        }
    });
    for n in 8..12_u8 {
        append(&partition, &[vec![n; 6000]]);
    }
    let found = read_all(&partition);
    assert!(
        found
            .iter()
            .all(|(offset, payload)| payload[0] == *offset as u8)
    );
}

/// Segments that hold all of a test and are sealed when they are an hour old.
fn with_age() -> LogConfig {
    let mut config = small(Class::Telemetry);
    config.segment_bytes = 16 << 20;
    config.classes[0].retention_age = Some(4 * HOUR);
    config
}

/// The writer is woken to seal the segment while a caller writes. It must not take queued records until the caller is
/// done, or they would get the same offsets as the caller's records.
#[test]
fn what_is_queued_behind_an_inline_append_that_finds_no_space_stays_behind_it() {
    let files = SimFiles::new(4);
    let clock = HandClock::at(1_800_000_000_000_000);
    let log = open_with(with_age(), files.seams_with(clock.clone()));
    let partition = &log.partitions()[0];
    append(partition, &["first"]);
    clock.pass(2 * HOUR);
    // More than the prepared space.
    let large = vec![1_u8; 5 << 20];
    files.hold("write_all_at", ".seg");
    std::thread::scope(|scope| {
        let inline = scope.spawn(|| partition.append_inline(records(1, &[&large])));
        files.await_held();
        partition
            .append(records(1, &["behind it"]))
            .expect("queued");
        // The writer gets every chance to take it.
        for _ in 0..200 {
            log.maintain();
            std::thread::yield_now();
        }
        files.set_free(Some(1 << 20));
        files.let_go();
        let range = inline.join().expect("no panic").expect("it waits now");
        assert_eq!(range, Offset(1)..Offset(2));
    });
    await_order_on_a_full_disk(&files, partition, large, "behind it");
}

/// Records that wait for space are written in offset order when there is space.
fn await_order_on_a_full_disk(files: &SimFiles, partition: &Partition, large: Vec<u8>, last: &str) {
    await_that("the disk to be full", || {
        partition.state() == PartitionState::Full
    });
    assert_eq!(partition.high_watermark(), Offset(1));
    files.set_free(None);
    await_durable(partition, Offset(3));
    let expected = [
        (0, b"first".to_vec()),
        (1, large),
        (2, last.as_bytes().to_vec()),
    ];
    assert!(read_all(partition) == expected);
}

/// The same with writer and caller exchanged.
#[test]
fn what_a_caller_appends_behind_records_that_find_no_space_stays_behind_them() {
    let files = SimFiles::new(9);
    let log = open_with(with_age(), files.seams());
    let partition = &log.partitions()[0];
    append(partition, &["first"]);
    let large = vec![1_u8; 5 << 20];
    files.hold("write_all_at", ".seg");
    partition.append(records(1, &[&large])).expect("queued");
    files.await_held();
    std::thread::scope(|scope| {
        let inline = scope.spawn(|| partition.append_inline(records(1, &["behind them"])));
        await_that("it to have its offset", || {
            partition.next_offset() == Offset(3)
        });
        // It gets every chance to write.
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        files.set_free(Some(1 << 20));
        files.let_go();
        let range = inline.join().expect("no panic").expect("it waits now");
        assert_eq!(range, Offset(2)..Offset(3));
    });
    await_order_on_a_full_disk(&files, partition, large, "behind them");
}

#[test]
fn what_is_queued_behind_an_inline_append_is_written_when_that_is_done() {
    let files = SimFiles::new(11);
    let log = open_with(small(Class::Telemetry), files.seams());
    let partition = &log.partitions()[0];
    files.hold("sync_data", ".seg");
    std::thread::scope(|scope| {
        let inline = scope.spawn(|| partition.append_inline(records(1, &["in flight"])));
        files.await_held();
        let queued = partition.append(records(1, &["behind it"]));
        files.let_go();
        inline.join().expect("no panic").expect("durable");
        await_durable(partition, queued.expect("queued").end);
    });
}

/// Shuts the log down on another thread, and returns when it takes no more appends.
fn begin_stop(log: &Log) -> std::thread::JoinHandle<()> {
    let stop = {
        let log = log.clone();
        std::thread::spawn(move || log.shutdown())
    };
    await_that("appends to be refused", || {
        let refused = log.partitions()[0].append(records(1, &[] as &[&str]));
        matches!(refused, Err(AppendError::ReadOnly { .. }))
    });
    stop
}

#[test]
fn a_stop_that_meets_an_inline_append_waits_for_it_and_ends() {
    let files = SimFiles::new(5);
    let log = open_with(small(Class::Telemetry), files.seams());
    let partition = log.partitions()[0].clone();
    files.hold("sync_data", ".seg");
    let inline = {
        let partition = partition.clone();
        std::thread::spawn(move || partition.append_inline(records(1, &["in flight"])))
    };
    files.await_held();
    let stop = begin_stop(&log);
    files.let_go();
    let range = inline.join().expect("no panic").expect("durable");
    assert_eq!(partition.high_watermark(), range.end);
    await_that("the stop", || stop.is_finished());
    let is_mark = |path: &std::path::PathBuf| path.ends_with("telemetry-0/mark");
    assert!(files.names().iter().any(is_mark));
}

#[test]
fn what_is_queued_when_the_log_is_shut_down_is_still_written() {
    let files = SimFiles::new(10);
    let log = open_with(small(Class::Telemetry), files.seams());
    let partition = log.partitions()[0].clone();
    files.hold("sync_data", ".seg");
    partition
        .append(records(1, &["in flight"]))
        .expect("queued");
    files.await_held();
    let queued = partition.append(records(1, &["behind it"]));
    let stop = begin_stop(&log);
    files.let_go();
    stop.join().expect("no panic");
    assert_eq!(partition.high_watermark(), queued.expect("queued").end);
    assert_eq!(read_all(&partition).len(), 2);
}

/// Two age checks find the same old segment while the writer is sealing it.
#[test]
fn a_segment_that_was_begun_while_its_predecessor_was_found_old_again_is_not_sealed_empty() {
    let files = SimFiles::new(6);
    let clock = HandClock::at(1_800_000_000_000_000);
    let log = open_with(with_age(), files.seams_with(clock.clone()));
    append(&log.partitions()[0], &["old"]);
    clock.pass(2 * HOUR);
    files.hold("rename", ".seg.tmp");
    log.maintain();
    files.await_held();
    log.maintain();
    files.record();
    files.let_go();
    log.shutdown();
    let calls = files.recorded();
    let is_begun = |call: &str| call.starts_with("rename of") && call.contains(".seg.tmp");
    let begun = calls.iter().filter(|moment| is_begun(&moment.call));
    assert_eq!(begun.count(), 1);
}

#[test]
fn an_old_segment_is_not_sealed_once_its_sync_has_failed() {
    let files = SimFiles::new(7);
    let clock = HandClock::at(1_800_000_000_000_000);
    let log = open_with(with_age(), files.seams_with(clock.clone()));
    let partition = &log.partitions()[0];
    append(partition, &["old"]);
    clock.pass(2 * HOUR);
    files.hold("sync_data", ".seg");
    let range = partition
        .append(records(1, &["never durable"]))
        .expect("queued");
    files.await_held();
    log.maintain();
    files.fail_call(1, Fault::LostSync);
    files.let_go();
    await_that("the partition to stop", || {
        matches!(partition.state(), PartitionState::Stopped(_))
    });
    log.shutdown();
    assert_eq!(files.retried_syncs(), Vec::<String>::new());
    assert_eq!(partition.high_watermark(), range.start);
    let is_segment = |path: &&std::path::PathBuf| path.to_string_lossy().contains(".seg");
    assert_eq!(files.names().iter().filter(is_segment).count(), 1);
}

/// The file was sealed and removed between finding the active file and checking that it exists.
#[test]
fn a_file_that_is_gone_because_it_is_no_longer_written_stops_nothing() {
    let files = SimFiles::new(8);
    let log = open_with(small(Class::Telemetry), files.seams());
    let partition = &log.partitions()[0];
    append(partition, &[vec![1; 9000]]);
    let first = "telemetry-0/00000000000000000000.seg";
    files.hold("open", first);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| log.maintain());
        files.await_held();
        append(partition, &[vec![2; 9000]]);
        files.take_away(&Path::new("/data").join(first));
        files.let_go();
        looking.join().expect("no panic");
    });
    assert_eq!(partition.state(), PartitionState::Running);
    append(partition, &["goes on"]);
}

/// Each spare is a whole segment, and an unknown one stays until the next start.
#[test]
fn a_spare_is_not_made_beside_one_that_a_removed_segment_became_meanwhile() {
    let files = SimFiles::new(21);
    let log = open_with(small(Class::Internal), files.seams());
    let internal = &log.partitions()[0];
    for _ in 0..4 {
        append(internal, &[vec![1; 9000]]);
    }
    files.hold("sync_data", "spare-");
    std::thread::scope(|scope| {
        let maintainer = scope.spawn(|| log.maintain());
        files.await_held();
        internal.advance_log_start(Offset(2));
        files.let_go();
        maintainer.join().expect("no panic");
    });
    let names = files.names();
    let is_spare = |path: &&std::path::PathBuf| path.to_string_lossy().contains("/spare-");
    assert_eq!(names.iter().filter(is_spare).count(), 1, "{names:?}");
    append(internal, &[vec![1; 9000]]);
    assert_eq!(read_all(internal).len(), 3);
}
