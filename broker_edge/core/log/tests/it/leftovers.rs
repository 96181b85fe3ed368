//! A start recovers a log from whatever is left, reports lost offsets, and never reuses one.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::support::memory::MemoryFiles;
use crate::support::*;
use headwater_log::{
    Class, ClassConfig, GapKind, Log, LogConfig, Offset, OpenError, PartitionReport,
};

const DIR: &str = "/above/data";

fn settings() -> LogConfig {
    LogConfig {
        segment_bytes: 32 << 10,
        tail_bytes: 0,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..LogConfig::new(DIR)
    }
}

/// Records 0 to 119 in several sealed segments with indexes and an active one; stopped cleanly or not.
fn made(clean: bool) -> (MemoryFiles, Vec<Found>, Vec<PathBuf>) {
    let files = MemoryFiles::default();
    let log = open_with(settings(), files.seams());
    for n in 0..120_u64 {
        append(telemetry(&log), &[format!("record {n} ").repeat(100)]);
    }
    log.maintain();
    let records = read_all(telemetry(&log));
    let left = files.copy();
    log.shutdown();
    let files = if clean { files.copy() } else { left };
    assert_eq!(files.with_suffix("/mark").len(), usize::from(clean));
    let segments = files.with_suffix(".seg");
    assert!(segments.len() >= 4, "{segments:?}");
    (files, records, segments)
}

fn opened(files: &MemoryFiles) -> (Log, PartitionReport) {
    reopen_with(settings(), files.seams())
}

fn base_of(path: &Path) -> u64 {
    let name = path.file_stem().expect("a name").to_string_lossy();
    name.parse().expect("a base offset")
}

/// Opens twice and checks that each start serves everything except `lost`, reports exactly `lost` below the first high
/// watermark of `records`, and appends after all of them.
fn serves_all_but(files: &MemoryFiles, records: &[Found], lost: Range<u64>) {
    for start in 0..2 {
        let (log, report) = opened(files);
        let (served, damaged) = read_from(telemetry(&log), Offset(0));
        let expected = records.iter().filter(|(n, _)| !lost.contains(n));
        let mut old = served.iter().filter(|(n, _)| *n < 120);
        assert!(old.by_ref().eq(expected), "start {start}: {report:?}");
        let gaps = telemetry(&log).gaps();
        assert!(gaps.iter().all(|gap| gap.kind == GapKind::Damage));
        let reported: Vec<_> = gaps.iter().map(|gap| gap.range.clone()).collect();
        assert_eq!(reported, damaged, "start {start}");
        if lost.is_empty() {
            assert_eq!(reported, []);
        } else {
            assert_eq!(reported.len(), 1, "{reported:?}");
            assert_eq!(reported[0].start, Offset(lost.start));
            assert!(reported[0].end >= Offset(lost.end));
        }
        let next = append(telemetry(&log), &["new"]);
        assert!(next >= Offset(120), "{next} was given before");
        log.shutdown();
    }
}

#[test]
fn a_truncated_or_empty_segment_in_any_place_is_a_gap() {
    for clean in [true, false] {
        let (whole, records, segments) = made(clean);
        for (at, path) in segments.iter().enumerate() {
            for keep in [0, 40, 4096, 20_000] {
                let files = whole.copy();
                files.change(path, |bytes| bytes.truncate(keep));
                let next = segments.get(at + 1).map_or(120, |next| base_of(next));
                let base = base_of(path);
                let is_active = at + 1 == segments.len();
                if is_active && !clean {
                    // Its former contents are unknown; its remaining records are served.
                    let (log, _) = opened(&files);
                    let (served, _) = read_from(telemetry(&log), Offset(0));
                    assert!(records.starts_with(&served) && served.len() as u64 >= base);
                    continue;
                }
                let kept = if keep == 20_000 {
                    whole_before(&whole, path, keep)
                } else {
                    0
                };
                serves_all_but(&files, &records, base + kept..next);
            }
        }
    }
}

/// The number of records of a file that end before a position; each is a batch.
fn whole_before(files: &MemoryFiles, path: &Path, position: usize) -> u64 {
    let bytes = files.bytes(path);
    let (mut at, mut count) = (4096, 0);
    while at + 4 <= bytes.len() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
        at += length + 4;
        if length == 0 || at > position {
            break;
        }
        count += 1;
    }
    count
}

#[test]
fn a_missing_segment_in_any_place_is_a_gap_and_its_offsets_are_not_given_again() {
    for clean in [true, false] {
        let (whole, records, segments) = made(clean);
        for (at, path) in segments.iter().enumerate().skip(1) {
            let files = whole.copy();
            files.delete(path);
            let next = segments.get(at + 1).map_or(120, |next| base_of(next));
            serves_all_but(&files, &records, base_of(path)..next);
        }
    }
}

#[test]
fn a_segment_that_is_lost_and_was_begun_right_after_a_clean_stop_gives_no_offset_again() {
    let files = MemoryFiles::default();
    let log = open_with(settings(), files.seams());
    append(telemetry(&log), &["stopped after this"]);
    log.shutdown();
    drop(log);
    let (log, _) = opened(&files);
    // Too large for the rest of the segment, which is then sealed as the stop and its mark left it.
    let lost = append(telemetry(&log), &["x".repeat(30 << 10)]);
    log.maintain();
    let killed = files.copy();
    log.shutdown();
    killed.delete(&killed.with_suffix(".seg")[1]);
    let (log, _) = opened(&killed);
    assert!(append(telemetry(&log), &["new"]) > lost);
    let (_, damaged) = read_from(telemetry(&log), Offset(0));
    assert!(damaged[0].contains(&lost), "{damaged:?}");
}

#[test]
fn a_missing_newest_segment_that_only_the_mark_names_gives_no_offset_again() {
    let (files, ..) = made(true);
    let (log, _) = opened(&files);
    let last = append(telemetry(&log), &["behind the mark"]);
    let killed = files.copy();
    log.shutdown();
    let segments = killed.with_suffix(".seg");
    let [.., before, newest] = segments.as_slice() else {
        panic!("{segments:?}");
    };
    killed.delete(newest);
    killed.delete(&before.with_extension("idx"));
    let (log, _) = opened(&killed);
    assert!(append(telemetry(&log), &["new"]) > last);
}

#[test]
fn a_missing_first_segment_moves_the_log_start() {
    let (files, records, segments) = made(true);
    files.delete(&segments[0]);
    let (log, _) = opened(&files);
    let start = base_of(&segments[1]);
    assert_eq!(telemetry(&log).log_start(), Offset(start));
    assert_eq!(read_all(telemetry(&log)), records[start as usize..]);
}

#[test]
fn zeroed_headers_cost_no_record() {
    let (files, records, segments) = made(false);
    for path in &segments {
        files.change(path, |bytes| bytes[..4096].fill(0));
    }
    serves_all_but(&files, &records, 0..0);
}

#[test]
fn garbage_names_spares_and_unfinished_files_do_no_harm() {
    let (files, records, _) = made(true);
    let names = [
        "foo",
        ".seg",
        "12.seg",
        "18446744073709551615.seg",
        "00000000000000000099.torn",
        "00000000000000000007.idx",
        "spare-3.tmp",
        "00000000000000000050.seg.tmp",
        "mark.tmp",
        "0000000000000000000a.seg",
        "00000000000000000000.seg.bak",
    ];
    for name in names {
        files.put(
            &Path::new(DIR).join("telemetry-0").join(name),
            vec![0xa5; 9000],
        );
    }
    files.put(&Path::new(DIR).join("log.meta.tmp"), vec![1; 10]);
    serves_all_but(&files, &records, 0..0);
    assert_eq!(files.with_suffix(".seg.tmp"), Vec::<PathBuf>::new());
}

#[test]
fn a_mark_of_garbage_proves_nothing() {
    let (whole, records, _) = made(true);
    let path = &whole.with_suffix("/mark")[0];
    for bytes in [vec![], vec![0; 56], vec![0xff; 56], vec![7; 5000]] {
        let files = whole.copy();
        files.put(path, bytes);
        let (_, report) = opened(&files);
        assert!(
            report.notes.iter().any(|note| note.contains("mark")),
            "{report:?}"
        );
        serves_all_but(&files, &records, 0..0);
    }
}

#[test]
fn an_index_that_knows_less_than_its_segment_is_made_again() {
    let (files, records, segments) = made(true);
    // The index of the second segment as it would be had the segment been sealed earlier.
    let cut = files.copy();
    let index = segments[1].with_extension("idx");
    let keep = 4096 + (files.bytes(&segments[1]).len() - 4096) / 2;
    let keep = {
        let bytes = files.bytes(&segments[1]);
        let mut at = 4096;
        while at < keep {
            at += u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4")) as usize + 4;
        }
        at
    };
    cut.change(&segments[1], |bytes| bytes.truncate(keep));
    cut.delete(&index);
    opened(&cut).0.maintain();
    let stale = cut.bytes(&index);
    // If the next segment is gone too, only the bytes after the index show that it is stale.
    files.put(&index, stale);
    let (_, report) = opened(&files);
    assert_eq!(report.rebuilt_indexes, 1);
    serves_all_but(&files, &records, 0..0);
}

/// An index is trusted if the last batch that it names is at its position, so that batch is checked.
#[test]
fn an_index_whose_last_batch_is_another_by_now_is_made_again() {
    let (whole, records, segments) = made(true);
    let bytes = whole.bytes(&segments[1]);
    let (mut at, mut last) = (4096, 4096);
    while let Some(head) = bytes.get(at..at + 64).filter(|head| head[0] != 0) {
        last = at;
        at += u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize + 4;
    }
    let lost = base_of(&segments[2]) - 1;
    // Its length, its checksum, its first offset.
    for byte in [0, 4, 8] {
        let files = whole.copy();
        files.change(&segments[1], |bytes| bytes[last + byte] ^= 1);
        let (log, report) = opened(&files);
        assert_eq!(report.rebuilt_indexes, 1, "byte {byte}");
        assert_eq!(report.gaps[0].range, Offset(lost)..Offset(lost + 1));
        drop(log);
        serves_all_but(&files, &records, lost..lost + 1);
    }
}

#[test]
fn an_unreadable_place_is_a_gap_and_comes_back_when_the_disk_gives_it_again() {
    for clean in [true, false] {
        let (whole, records, segments) = made(clean);
        for (at, path) in segments.iter().enumerate() {
            let files = whole.copy();
            // With and without an index: found by a start, or by the reader.
            if at == 0 {
                files.delete(&path.with_extension("idx"));
            }
            files.make_unreadable(path, 9000..9100);
            let (log, _) = opened(&files);
            let (served, damaged) = read_from(telemetry(&log), Offset(0));
            assert_eq!(damaged.len(), 1, "segment {at}, clean {clean}");
            let is_lost = |n: u64| damaged[0].contains(&Offset(n));
            let count = records.iter().filter(|(n, _)| is_lost(*n)).count();
            assert!((1..=8).contains(&count), "{damaged:?}");
            assert!(
                served
                    .iter()
                    .eq(records.iter().filter(|(n, _)| !is_lost(*n)))
            );
            assert_eq!(telemetry(&log).gaps()[0].range, damaged[0]);
            log.shutdown();
            if at + 1 < segments.len() {
                files.mend();
                let (log, _) = opened(&files);
                assert_eq!(read_all(telemetry(&log))[..120], records);
            }
        }
    }
}

#[test]
fn an_unreadable_end_takes_its_offsets_with_it() {
    let (files, records, segments) = made(false);
    let path = segments.last().expect("one");
    files.make_unreadable(path, 4096..u64::MAX);
    let (log, report) = opened(&files);
    let base = base_of(path);
    let (served, damaged) = read_from(telemetry(&log), Offset(0));
    assert_eq!(served, records[..base as usize]);
    assert_eq!(damaged[0].start, Offset(base));
    assert!(
        append(telemetry(&log), &["new"]) >= Offset(120),
        "{report:?}"
    );
}

#[test]
fn a_file_that_does_not_open_is_a_gap_until_it_does() {
    let (whole, records, segments) = made(false);
    for path in &segments {
        let files = whole.copy();
        let _ = files.copy();
        if files.names().contains(&path.with_extension("idx")) {
            files.delete(&path.with_extension("idx"));
        }
        files.fail_open(path, libc::EIO);
        let (log, report) = opened(&files);
        assert_eq!(report.gaps.len(), 1, "{report:?}");
        assert_eq!(report.gaps[0].range.start, Offset(base_of(path)));
        let is_told = |note: &String| note.contains("can not be read");
        assert!(report.notes.iter().any(is_told), "{report:?}");
        let next = append(telemetry(&log), &["new"]);
        assert!(next >= Offset(120));
        log.shutdown();
        files.mend();
        let (log, _) = opened(&files);
        let (served, _) = read_from(telemetry(&log), Offset(0));
        assert_eq!(served[..120], records, "the file is where it was");
        assert_eq!(served.last(), Some(&(next.0, b"new".to_vec())));
    }
}

/// The mark is older than the file, so it does not show how far the file's offsets go.
#[test]
fn a_newest_file_that_does_not_open_may_be_full_although_the_mark_is_of_one_before_it() {
    let (files, ..) = made(true);
    let (log, _) = opened(&files);
    for n in 0..40 {
        append(
            telemetry(&log),
            &[format!("behind the mark {n} ").repeat(100)],
        );
    }
    let killed = files.copy();
    log.shutdown();
    let newest = killed.with_suffix(".seg").pop().expect("segments");
    assert!(base_of(&newest) > 120, "the mark is at 120");
    killed.fail_open(&newest, libc::EIO);
    let (log, _) = opened(&killed);
    let records_at_most = (64 << 20) / 20 + 1;
    let next = append(telemetry(&log), &["new"]);
    assert!(
        next >= Offset(base_of(&newest) + records_at_most),
        "{next} may have been given before"
    );
}

#[test]
fn without_descriptors_or_rights_a_start_is_refused_and_changes_nothing() {
    let (whole, records, segments) = made(true);
    // A start opens a segment for its header, and again for its batches.
    let again = segments.iter().map(|path| (path, 1));
    let meta = whole.with_suffix("log.meta");
    let first = segments.iter().chain(&meta).map(|path| (path, 0));
    for (path, times) in first.chain(again) {
        for code in [libc::EMFILE, libc::EACCES] {
            let files = whole.copy();
            let index = path.with_extension("idx");
            if files.names().contains(&index) {
                files.delete(&index);
            }
            let before: Vec<_> = files
                .names()
                .iter()
                .map(|n| (n.clone(), files.bytes(n)))
                .collect();
            files.fail_open_after(path, times, code);
            let error = Log::open(settings(), files.seams()).err().expect("refused");
            let name = path.file_name().expect("a name").to_string_lossy();
            assert!(error.to_string().contains(&*name), "{error}");
            assert!(matches!(error, OpenError::Io { .. }), "{error}");
            files.mend();
            let after: Vec<_> = files
                .names()
                .iter()
                .map(|n| (n.clone(), files.bytes(n)))
                .collect();
            assert!(before == after, "{code}: nothing changed");
            serves_all_but(&files, &records, 0..0);
        }
    }
}

#[test]
fn a_log_meta_that_the_disk_does_not_give_is_damaged() {
    let (files, ..) = made(true);
    files.fail_open(&files.with_suffix("log.meta")[0], libc::EIO);
    let refused = Log::open(settings(), files.seams()).map(drop);
    assert!(matches!(refused, Err(OpenError::Damaged { .. })));
}

#[test]
fn a_start_reads_the_last_segment_and_not_the_log() {
    let (files, _, segments) = made(true);
    let before = files.segment_bytes_read();
    let (log, report) = opened(&files);
    let active = files.bytes(segments.last().expect("one")).len() as u64;
    let each = 4096 + 64;
    let most = segments.len() as u64 * each + 3 * active;
    let read = files.segment_bytes_read() - before;
    assert!(
        read <= most,
        "{read} bytes of segments were read, {most} are enough"
    );
    assert_eq!(report.rebuilt_indexes, 0);
    drop(log);
    // The control: without its index a sealed segment must be read.
    files.delete(&segments[0].with_extension("idx"));
    let before = files.segment_bytes_read();
    opened(&files);
    assert!(files.segment_bytes_read() - before > 20_000);
}

#[test]
fn a_new_data_folder_is_made_durable_with_its_name() {
    let files = MemoryFiles::default();
    open_with(settings(), files.seams());
    let synced = files.synced_folders();
    for folder in ["/above", "/"] {
        assert!(synced.contains(&PathBuf::from(folder)), "{synced:?}");
    }
}

#[test]
fn damage_found_by_a_reader_is_reported_at_once_kept_aside_and_remembered() {
    let (files, records, segments) = made(true);
    files.change(&segments[1], |bytes| bytes[10_000] ^= 1);
    let (log, report) = opened(&files);
    assert_eq!(report.gaps, [], "nothing reads sealed segments at a start");
    assert_eq!(telemetry(&log).damaged_bytes(), 0);
    let (served, damaged) = read_from(telemetry(&log), Offset(0));
    assert_eq!((served.len(), damaged.len()), (records.len() - 1, 1));
    assert_eq!(telemetry(&log).gaps()[0].range, damaged[0]);
    let kept = files.with_suffix(".damaged");
    assert_eq!(kept.len(), 1);
    let bytes = files.bytes(&kept[0]);
    assert_eq!(telemetry(&log).damaged_bytes(), bytes.len() as u64);
    assert!(
        files
            .bytes(&segments[1])
            .windows(bytes.len())
            .any(|w| w == bytes)
    );
    log.shutdown();
    drop(log);
    let (log, report) = opened(&files);
    assert_eq!(report.gaps.len(), 1, "the next start knows without reading");
    assert_eq!(report.gaps[0].range, damaged[0]);
    assert_eq!(telemetry(&log).damaged_bytes(), bytes.len() as u64);
    assert_eq!(files.with_suffix(".damaged").len(), 1);
}

#[test]
fn a_data_folder_with_a_relative_name_is_made_durable_in_the_folder_it_is_in() {
    let files = MemoryFiles::default();
    let dir = PathBuf::from("data");
    open_with(LogConfig { dir, ..settings() }, files.seams());
    let synced = files.synced_folders();
    assert!(synced.contains(&PathBuf::from(".")), "{synced:?}");
}
