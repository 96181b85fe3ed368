//! How a start recovers from crashes and bit rot.

use std::fs;
use std::path::Path;

use crate::support::segment::batches;
use crate::support::*;
use headwater_log::{Log, LogConfig, Offset, PartitionReport, Seams};

fn reopen(dir: &Path) -> (Log, PartitionReport) {
    reopen_with(config(dir), Seams::system())
}

/// Appends batches of some hundred bytes, enough for several segments.
fn fill(log: &Log, count: u32) {
    for n in 0..count {
        append(telemetry(log), &[format!("{n}").repeat(200)]);
    }
}

/// Position and length of a batch.
fn place(bytes: &[u8], number: usize) -> (usize, usize) {
    let batch = batches(bytes)[number].clone();
    (batch.start, batch.len())
}

/// A stopped log of `count` batches of one record; the mark is removed unless it is to be kept.
fn log_of(dir: &Path, count: usize, keep_mark: bool) {
    let log = open(dir);
    for n in 0..count {
        append(telemetry(&log), &[format!("record {n}")]);
    }
    log.shutdown();
    drop(log);
    if !keep_mark {
        fs::remove_file(dir.join("telemetry-0/mark")).expect("a mark");
    }
}

fn change(path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("a file");
    f(&mut bytes);
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_torn_tail_is_cut_and_kept_aside() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 5, false);
    let segment = files_of(dir.path(), ".seg").remove(0);
    let mut torn = Vec::new();
    change(&segment, |bytes| {
        let (at, length) = place(bytes, 4);
        bytes[at + length - 3..at + length].fill(0);
        torn = bytes[at..at + length].to_vec();
    });
    let (log, report) = reopen(dir.path());
    assert_eq!((report.high_watermark, report.gaps.len()), (Offset(4), 0));
    assert_eq!(report.torn_bytes, torn.len() as u64);
    assert_eq!(
        fs::read(&files_of(dir.path(), ".torn")[0]).expect("kept"),
        torn
    );
    let epoch = telemetry(&log).epoch();
    assert_eq!(
        append(telemetry(&log), &["again"]),
        Offset(4),
        "the offset was never shown, so it is given again"
    );
    assert_eq!(
        telemetry(&log).epoch_before(Offset(5)).expect("known"),
        Some(epoch)
    );
    assert!(telemetry(&log).epoch_before(Offset(4)).expect("known") < Some(epoch));
    assert_eq!(read_all(telemetry(&log)).len(), 5);
}

#[test]
fn a_batch_cut_anywhere_leaves_the_ones_before_it() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 3, false);
    let segment = files_of(dir.path(), ".seg").remove(0);
    let whole = fs::read(&segment).expect("a file");
    let (at, length) = place(&whole, 2);
    for cut in (0..length).step_by(7) {
        let copy = tempfile::tempdir().expect("a folder");
        log_of(copy.path(), 0, false);
        // The same log without its tail.
        for name in ["log.meta", "telemetry-0/00000000000000000000.seg"] {
            fs::copy(dir.path().join(name), copy.path().join(name)).expect("copied");
        }
        fs::remove_dir_all(copy.path().join("control-0")).expect("removed");
        fs::create_dir(copy.path().join("control-0")).expect("made");
        let control = "control-0/00000000000000000000.seg";
        fs::copy(dir.path().join(control), copy.path().join(control)).expect("copied");
        change(
            &copy.path().join("telemetry-0/00000000000000000000.seg"),
            |bytes| bytes[at + cut..].fill(0),
        );
        let (log, report) = reopen(copy.path());
        assert_eq!(report.high_watermark, Offset(2), "cut after {cut} bytes");
        assert_eq!(read_all(telemetry(&log)).len(), 2);
    }
}

#[test]
fn damage_in_the_middle_is_a_gap_and_is_never_served() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 6, false);
    let segment = files_of(dir.path(), ".seg").remove(0);
    change(&segment, |bytes| {
        let (at, length) = place(bytes, 2);
        bytes[at + length - 1] ^= 1;
    });
    for _ in 0..2 {
        let (log, report) = reopen(dir.path());
        assert_eq!(report.high_watermark, Offset(6));
        assert_eq!(report.gaps.len(), 1);
        assert_eq!(report.gaps[0].range, Offset(2)..Offset(3));
        let (found, damaged) = read_from(telemetry(&log), Offset(0));
        assert_eq!(damaged, vec![Offset(2)..Offset(3)]);
        assert_eq!(
            found.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(),
            [0, 1, 3, 4, 5]
        );
        assert!(
            found
                .iter()
                .all(|(offset, payload)| *payload == format!("record {offset}").into_bytes())
        );
        assert_eq!(
            telemetry(&log).epoch_before(Offset(3)).expect("answered"),
            None
        );
        log.shutdown();
    }
    assert_eq!(files_of(dir.path(), ".damaged").len(), 1);
    let (log, _) = reopen(dir.path());
    assert_eq!(append(telemetry(&log), &["next"]), Offset(6));
}

#[test]
fn damage_to_a_header_is_a_gap_too() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 6, false);
    let segment = files_of(dir.path(), ".seg").remove(0);
    change(&segment, |bytes| {
        let at = batches(bytes)[1].start;
        bytes[at..at + 40].fill(0xff);
    });
    let (log, report) = reopen(dir.path());
    assert_eq!(report.gaps[0].range, Offset(1)..Offset(2));
    let (found, _) = read_from(telemetry(&log), Offset(0));
    assert_eq!(found.len(), 5);
}

#[test]
fn a_bad_end_is_kept_aside_also_when_a_damaged_header_hides_whether_the_file_was_recycled() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 5, false);
    let segment = files_of(dir.path(), ".seg").remove(0);
    let mut torn = Vec::new();
    change(&segment, |bytes| {
        let (at, length) = place(bytes, 4);
        bytes[0] ^= 1;
        // The batch no longer even looks like one.
        bytes[at] ^= 1;
        torn = bytes[at..at + length].to_vec();
    });
    let (_log, report) = reopen(dir.path());
    assert_eq!((report.high_watermark, report.gaps.len()), (Offset(4), 0));
    let kept = fs::read(&files_of(dir.path(), ".torn")[0]).expect("kept");
    assert!(
        torn.starts_with(&kept),
        "up to the last byte that is not zero"
    );
    assert_eq!(report.torn_bytes, kept.len() as u64);
    assert!(kept.len() > torn.len() - 8);
}

#[test]
fn what_follows_damage_up_to_the_mark_is_kept_aside_although_its_own_header_is_bad() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 5, true);
    let mark = dir.path().join("telemetry-0/mark");
    let marked = fs::read(&mark).expect("a mark");
    log_of(dir.path(), 2, true);
    fs::write(&mark, marked).expect("as an idle moment before the last two left it");
    let segment = files_of(dir.path(), ".seg").remove(0);
    let mut behind = Vec::new();
    change(&segment, |bytes| {
        let found = batches(bytes);
        bytes[found[4].start + 60] ^= 1;
        bytes[found[5].start] ^= 1;
        bytes[found[6].start] ^= 1;
        behind = bytes[found[5].start..].to_vec();
    });
    // The bytes after the batches are zeros.
    let end = behind.iter().rposition(|byte| *byte != 0).expect("records");
    behind.truncate(end + 1);
    let (_log, report) = reopen(dir.path());
    assert_eq!(report.high_watermark, Offset(5));
    assert_eq!(report.gaps[0].range, Offset(4)..Offset(5));
    let torn = &files_of(dir.path(), ".torn")[0];
    assert!(fs::read(torn).expect("kept") == behind, "behind the mark");
    assert_eq!(report.torn_bytes, behind.len() as u64);
}

#[test]
fn a_bad_end_before_the_mark_is_damage_and_its_offsets_are_not_given_again() {
    let dir = tempfile::tempdir().expect("a folder");
    log_of(dir.path(), 5, true);
    let segment = files_of(dir.path(), ".seg").remove(0);
    change(&segment, |bytes| {
        let at = batches(bytes)[3].start;
        bytes[at..].fill(0);
    });
    for _ in 0..2 {
        let (log, report) = reopen(dir.path());
        assert_eq!((report.high_watermark, report.torn_bytes), (Offset(5), 0));
        assert_eq!(report.gaps.len(), 1);
        assert_eq!(report.gaps[0].range, Offset(3)..Offset(5));
        assert_eq!(files_of(dir.path(), ".damaged").len(), 1, "kept aside");
        assert_eq!(read_from(telemetry(&log), Offset(0)).0.len(), 3);
    }
    let (log, _) = reopen(dir.path());
    assert_eq!(append(telemetry(&log), &["next"]), Offset(5));
    let (found, damaged) = read_from(telemetry(&log), Offset(0));
    assert_eq!((found.len(), damaged), (4, vec![Offset(3)..Offset(5)]));
}

#[test]
fn damage_while_running_is_reported_and_the_rest_is_served() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(without_tail(dir.path()), Seams::system());
    fill(&log, 300);
    let segments = files_of(dir.path(), ".seg");
    assert!(segments.len() >= 3);
    change(&segments[1], |bytes| {
        let at = batches(bytes)[3].start;
        bytes[at + 100] ^= 4;
    });
    for _ in 0..2 {
        let (found, damaged) = read_from(telemetry(&log), Offset(0));
        assert_eq!(damaged.len(), 1);
        assert_eq!(found.len(), 299);
        assert!(
            !found
                .iter()
                .any(|(offset, _)| damaged[0].contains(&Offset(*offset)))
        );
        assert_eq!(telemetry(&log).gaps()[0].range, damaged[0]);
    }
}

/// The index is rebuilt without the damaged batches, so the damage itself must still be reported.
#[test]
fn damage_at_the_end_of_a_segment_is_told_to_each_reader_of_a_topic() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(without_tail(dir.path()), Seams::system());
    fill(&log, 300);
    log.maintain();
    let segments = files_of(dir.path(), ".seg");
    change(&segments[1], |bytes| {
        let at = batches(bytes).last().expect("a batch").start;
        bytes[at + 100] ^= 4;
    });
    for _ in 0..2 {
        let (mut at, end) = (Offset(0), telemetry(&log).high_watermark());
        let (mut found, mut damaged) = (0, 0);
        while at < end {
            match telemetry(&log).read_matching(at, end, 1 << 20, &|_| true) {
                Ok((batches, next)) => {
                    found += batches.iter().map(|batch| batch.len()).sum::<usize>();
                    at = next;
                }
                Err(headwater_log::ReadError::Damaged { range }) => {
                    damaged += range.end.0 - range.start.0;
                    at = range.end;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((found, damaged), (299, 1));
    }
}

#[test]
fn a_missing_segment_is_a_gap() {
    let dir = tempfile::tempdir().expect("a folder");
    fill(&open(dir.path()), 300);
    let segments = files_of(dir.path(), ".seg");
    fs::remove_file(&segments[1]).expect("removed");
    let (log, report) = reopen(dir.path());
    let gap = report.gaps[0].range.clone();
    let (found, damaged) = read_from(telemetry(&log), Offset(0));
    assert_eq!(damaged, vec![gap.clone()]);
    assert_eq!(found.len() as u64, 300 - (gap.end.0 - gap.start.0));
}

#[test]
fn a_damaged_segment_header_costs_no_record() {
    let dir = tempfile::tempdir().expect("a folder");
    fill(&open(dir.path()), 200);
    for segment in files_of(dir.path(), ".seg") {
        change(&segment, |bytes| bytes[..64].fill(0));
        let _ = fs::remove_file(segment.with_extension("idx"));
    }
    let (log, report) = reopen(dir.path());
    assert!(report.notes.iter().any(|note| note.contains("header")));
    assert_eq!(read_all(telemetry(&log)).len(), 200);
}

#[test]
fn an_index_that_is_missing_short_or_of_another_segment_is_made_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let expected = {
        let log = open(dir.path());
        fill(&log, 300);
        log.maintain();
        read_all(telemetry(&log))
    };
    let damage: [&dyn Fn(&Path); 4] = [
        &|path| fs::remove_file(path).expect("removed"),
        &|path| change(path, |bytes| bytes.truncate(bytes.len() / 2)),
        &|path| change(path, |bytes| bytes[60] ^= 1),
        &|path| {
            let other = files_of(dir.path(), ".idx")
                .into_iter()
                .find(|other| other != path)
                .expect("another");
            fs::copy(other, path).expect("copied");
        },
    ];
    for (at, damage) in damage.iter().enumerate() {
        let indexes = files_of(dir.path(), ".idx");
        assert!(indexes.len() >= 2);
        damage(&indexes[0]);
        let (log, report) = reopen_with(without_tail(dir.path()), Seams::system());
        assert_eq!(report.rebuilt_indexes, 1, "damage {at}");
        assert_eq!(read_all(telemetry(&log)), expected);
        assert_eq!(telemetry(&log).topics().expect("topics").len(), 1);
        log.maintain();
    }
    let (_, report) = reopen(dir.path());
    assert_eq!(report.rebuilt_indexes, 0, "what was made again is saved");
}

/// A log killed while its active segment is a recycled file with stale batches after the live ones; and its number of
/// records.
fn killed_in_a_recycled_segment(dir: &Path) -> (LogConfig, u64) {
    let mut config = config(dir);
    config.classes[1].retention_bytes = Some(200 << 10);
    let log = open_with(config.clone(), Seams::system());
    let mut count = 0;
    while active_bytes(dir)[37] != 1 {
        for _ in 0..60 {
            append(telemetry(&log), &[format!("{count:05}").repeat(80)]);
            count += 1;
        }
        log.maintain();
    }
    // To the end of a page: after a batch that ends within a page, there are zeros up to the next page.
    let ends_on_page = |count: u64| {
        let (bytes, is_last) = (active_bytes(dir), |base| base == count - 1);
        let mut batches = batches(&bytes).into_iter();
        batches.any(|batch| is_last(base_at(&bytes, batch.start)) && batch.end % 4096 == 0)
    };
    while !ends_on_page(count) {
        append(telemetry(&log), &[format!("{count:05}").repeat(80)]);
        count += 1;
    }
    log.shutdown();
    drop(log);
    let _ = fs::remove_file(dir.join("telemetry-0/mark"));
    (config, count)
}

fn active_bytes(dir: &Path) -> Vec<u8> {
    fs::read(files_of(dir, ".seg").last().expect("a segment")).expect("read")
}

fn base_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("8 bytes"))
}

/// Base offsets and positions of the batches of the active segment, including stale ones.
fn bases_of_active(dir: &Path) -> Vec<(u64, usize)> {
    let bytes = active_bytes(dir);
    let places = batches(&bytes).into_iter();
    places
        .map(|batch| (base_at(&bytes, batch.start), batch.start))
        .collect()
}

#[test]
fn stale_bytes_of_a_recycled_segment_never_pass() {
    let dir = tempfile::tempdir().expect("a folder");
    let (config, count) = killed_in_a_recycled_segment(dir.path());
    // All batches have the same size here, so the stale ones begin exactly where the next one is expected.
    let bases = bases_of_active(dir.path());
    assert!(
        bases.windows(2).any(|pair| pair[1].0 < pair[0].0),
        "whole stale batches follow: {bases:?}"
    );
    let (log, report) = reopen_with(config, Seams::system());
    assert_eq!(
        (report.high_watermark, report.torn_bytes, report.gaps.len()),
        (Offset(count), 0, 0)
    );
    let found = read_all(telemetry(&log));
    assert!(
        found
            .iter()
            .all(|(offset, payload)| *payload == format!("{offset:05}").repeat(80).into_bytes())
    );
    assert_eq!(found.last().map(|(offset, _)| *offset), Some(count - 1));
}

#[test]
fn a_flip_anywhere_in_the_last_header_of_a_recycled_segment_does_not_pass_for_stale_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (config, count) = killed_in_a_recycled_segment(dir.path());
    let segment = files_of(dir.path(), ".seg").pop().expect("a segment");
    let whole = fs::read(&segment).expect("read");
    let meta = fs::read(dir.path().join("log.meta")).expect("read");
    let bases = bases_of_active(dir.path());
    let (_, last) = bases
        .into_iter()
        .find(|(base, _)| *base == count - 1)
        .expect("the last batch");
    for byte in 0..64 {
        let mut bytes = whole.clone();
        bytes[last + byte] ^= 1 << (byte % 8);
        fs::write(&segment, bytes).expect("written");
        fs::write(dir.path().join("log.meta"), &meta).expect("written");
        let (log, report) = reopen_with(config.clone(), Seams::system());
        assert_eq!(report.high_watermark, Offset(count - 1), "byte {byte}");
        assert!(report.torn_bytes > 0, "byte {byte}");
        drop(log);
    }
}
