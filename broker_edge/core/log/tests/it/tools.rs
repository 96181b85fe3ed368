//! The promises of the offline tools: `verify` finds every flaw, `repair` makes a folder start again and deletes
//! nothing, `dump` shows every record once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::memory::MemoryFiles;
use crate::support::*;
use headwater_log::tools::{
    Access, DumpWish, Dumped, RepairReport, ToolError, VerifyReport, Work, dump, repair, verify,
};
use headwater_log::{Log, Offset, Seams};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const DIR: &str = "/data";
const COUNT: u64 = 200;

/// A stopped log of two partitions with several sealed segments and indexes; and the written records.
fn made() -> (MemoryFiles, Vec<Found>) {
    let files = MemoryFiles::default();
    let log = open_with(config(Path::new(DIR)), files.seams());
    for n in 0..COUNT {
        append(telemetry(&log), &[format!("record {n} ").repeat(80)]);
    }
    log.maintain();
    let records = read_all(telemetry(&log));
    log.shutdown();
    drop(log);
    (files, records)
}

fn with<T>(files: &MemoryFiles, f: impl FnOnce(Work<'_>) -> T) -> T {
    let seams = files.seams();
    let stop = AtomicBool::new(false);
    f(Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    })
}

fn look(files: &MemoryFiles) -> VerifyReport {
    with(files, |work| verify(Path::new(DIR), Access::Alone, work)).expect("a report")
}

fn mend(files: &MemoryFiles, dry_run: bool) -> RepairReport {
    with(files, |work| {
        repair(Path::new(DIR), &BTreeMap::new(), dry_run, work)
    })
    .expect("a report")
}

fn dumped(
    files: &MemoryFiles,
    offsets: std::ops::Range<u64>,
    limit: Option<u64>,
) -> (Vec<Found>, Vec<(u64, u64)>) {
    let (mut records, mut lost) = (Vec::new(), Vec::new());
    let wish = DumpWish {
        partitions: vec!["telemetry-0".to_owned()],
        offsets: Offset(offsets.start)..Offset(offsets.end),
        wanted: &|topic| topic == "devices/1/telemetry",
        limit,
    };
    let count = with(files, |work| {
        dump(Path::new(DIR), Access::Alone, &wish, work, &mut |line| {
            match line {
                Dumped::Record { record, .. } => {
                    records.push((record.offset.0, record.payload.to_vec()))
                }
                Dumped::Lost { offsets, .. } => lost.push((offsets.start.0, offsets.end.0)),
            }
            Ok(())
        })
    });
    assert_eq!(count.expect("a dump"), records.len() as u64);
    (records, lost)
}

fn everything(files: &MemoryFiles) -> Vec<(PathBuf, Vec<u8>)> {
    let names = files.names();
    names
        .into_iter()
        .map(|name| (name.clone(), files.bytes(&name)))
        .collect()
}

fn segment(files: &MemoryFiles, at: usize) -> PathBuf {
    let mut segments = files.with_suffix(".seg");
    segments.retain(|path| path.to_string_lossy().contains("telemetry-0"));
    segments.swap_remove(at)
}

/// The log opens and serves all records except the lost ones.
fn serves(files: &MemoryFiles, records: &[Found], lost: std::ops::Range<u64>) {
    let (log, _) = Log::open(config(Path::new(DIR)), files.seams()).expect("it starts");
    let (served, _) = read_from(telemetry(&log), telemetry(&log).log_start());
    assert!(
        served
            .iter()
            .eq(records.iter().filter(|(n, _)| !lost.contains(n)))
    );
}

#[test]
fn a_whole_log_verifies_without_a_complaint_and_unchanged() {
    let (files, _) = made();
    let before = everything(&files);
    let report = look(&files);
    assert!(!report.is_damaged() && report.complete, "{report:?}");
    let check = &report.partitions[1];
    assert_eq!((check.name.as_str(), check.partition), ("telemetry-0", 1));
    assert_eq!(
        (check.records, check.log_start, check.next_offset),
        (COUNT, 0, COUNT)
    );
    assert_eq!(
        (&check.indexes, &check.gaps, check.torn_bytes),
        (&vec![], &vec![], 0)
    );
    assert!(before == everything(&files));
}

#[test]
fn verify_names_the_first_bad_offset_and_every_gap() {
    let (files, _) = made();
    files.change(&segment(&files, 1), |bytes| bytes[9000] ^= 1);
    files.change(&segment(&files, 2), |bytes| bytes[..64].fill(0));
    files.delete(&segment(&files, 0).with_extension("idx"));
    let report = look(&files);
    let check = &report.partitions[1];
    assert!(report.is_damaged());
    assert_eq!(check.gaps.len(), 1);
    assert_eq!(check.first_bad, Some(check.gaps[0].start));
    assert_eq!(
        check.records,
        COUNT - (check.gaps[0].end - check.gaps[0].start)
    );
    assert!(check.flaws[0].contains("header"), "{:?}", check.flaws);
    assert_eq!(
        check.indexes.len(),
        2,
        "missing, and without the hole: {:?}",
        check.indexes
    );
    let (records, lost) = dumped(&files, 0..COUNT, None);
    assert_eq!(lost, [(check.gaps[0].start, check.gaps[0].end)]);
    assert_eq!(records.len() as u64, check.records);
}

#[test]
fn verify_tells_damage_before_the_mark_from_an_unfinished_write() {
    let (files, _) = made();
    let last = segment(&files, files.with_suffix(".seg").len() - 2);
    let end = files
        .bytes(&last)
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("bytes");
    files.change(&last, |bytes| bytes[end] ^= 1);
    let torn = files.copy();
    let marked = look(&files);
    assert_eq!(marked.partitions[1].first_bad, Some(COUNT - 1));
    for mark in torn.with_suffix("/mark") {
        torn.delete(&mark);
    }
    let report = look(&torn);
    assert!(!report.is_damaged(), "{report:?}");
    assert!(report.partitions[1].torn_bytes > 900);
    assert_eq!(report.partitions[1].next_offset, COUNT - 1);
}

#[test]
fn a_dump_shows_the_records_that_are_wanted_once() {
    let (files, records) = made();
    assert_eq!(dumped(&files, 0..u64::MAX, None), (records.clone(), vec![]));
    assert_eq!(dumped(&files, 70..150, None).0, records[70..150]);
    assert_eq!(dumped(&files, 70..150, Some(3)).0, records[70..73]);
}

#[test]
fn repair_makes_log_meta_again_from_the_segments() {
    let (whole, records) = made();
    let meta = Path::new(DIR).join("log.meta");
    let text = String::from_utf8(whole.bytes(&meta)).expect("text");
    let older = text.replace("\"epoch\":1", "\"epoch\":0");
    let (json, _) = older.split_once('\n').expect("two lines");
    let older = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
    assert_ne!(older, text);
    let damages: [&dyn Fn(&MemoryFiles); 4] = [
        &|files| files.delete(&meta),
        &|files| files.change(&meta, |bytes| bytes[20] ^= 1),
        &|files| files.put(&meta, Vec::new()),
        &|files| files.put(&meta, vec![0; 300]),
    ];
    for damage in damages {
        let files = whole.copy();
        damage(&files);
        let refused = Log::open(config(Path::new(DIR)), files.seams())
            .err()
            .expect("refused");
        assert!(
            refused.to_string().contains("headwater log repair"),
            "{refused}"
        );
        let before = everything(&files);
        let planned = mend(&files, true);
        assert!(before == everything(&files), "a dry run changes nothing");
        let done = mend(&files, false);
        assert_eq!(planned.actions, done.actions);
        assert!(done.actions[0].contains("log.meta"), "{:?}", done.actions);
        assert!(!done.after.expect("looked at").is_damaged());
        serves(&files, &records, 0..0);
        assert_eq!(
            mend(&files, false).actions,
            Vec::<String>::new(),
            "there is nothing left to do"
        );
    }
    let files = whole.copy();
    let log = open_with(config(Path::new(DIR)), files.seams());
    append(telemetry(&log), &["with epoch 2"]);
    log.shutdown();
    drop(log);
    files.put(&meta, text.into_bytes());
    let refused = Log::open(config(Path::new(DIR)), files.seams())
        .err()
        .expect("refused");
    assert!(refused.to_string().contains("older"), "{refused}");
    mend(&files, false);
    let log = open_with(config(Path::new(DIR)), files.seams());
    assert_eq!(read_all(telemetry(&log)).len() as u64, COUNT + 1);
}

#[test]
fn repair_moves_a_stray_segment_aside_and_begins_an_emptied_partition_again() {
    let (files, records) = made();
    let stray = segment(&files, 1);
    let control = Path::new(DIR).join("control-0/00000000000000000000.seg");
    let bytes = files.bytes(&stray);
    files.put(&control, bytes.clone());
    Log::open(config(Path::new(DIR)), files.seams())
        .err()
        .expect("refused");
    let done = mend(&files, false);
    assert!(
        done.actions
            .iter()
            .any(|action| action.contains("belongs elsewhere"))
    );
    assert!(
        files.bytes(&control.with_extension("misplaced")) == bytes,
        "nothing is deleted"
    );
    serves(&files, &records, 0..0);
    let log = open_with(config(Path::new(DIR)), files.seams());
    let control = log.by_name("control-0").expect("a partition");
    assert!(
        control.log_start() >= Offset(1 << 40),
        "no offset is given twice"
    );
}

#[test]
fn repair_makes_indexes_keeps_damage_aside_and_loses_no_other_byte() {
    let (files, records) = made();
    let hurt = segment(&files, 1);
    files.change(&hurt, |bytes| bytes[9000] ^= 1);
    let before = files.bytes(&hurt);
    let done = mend(&files, false);
    let after = done.after.expect("looked at");
    let gap = &after.partitions[1].gaps[0];
    assert_eq!(after.partitions[1].indexes, Vec::<String>::new());
    assert!(files.bytes(&hurt) == before, "the segment stays as it is");
    serves(&files, &records, gap.start..gap.end);
}

#[test]
fn segments_of_two_logs_are_not_taken_for_one() {
    let (files, _) = made();
    let (other, _) = made();
    files.delete(&Path::new(DIR).join("log.meta"));
    files.put(&segment(&files, 1), other.bytes(&segment(&other, 1)));
    let error = with(&files, |work| {
        repair(Path::new(DIR), &BTreeMap::new(), false, work)
    });
    let error = error.expect_err("refused");
    assert!(matches!(error, ToolError::Refused(_)), "{error}");
}

#[test]
fn a_tool_that_is_stopped_changed_nothing_and_says_so() {
    let (files, _) = made();
    let before = everything(&files);
    let (seams, stop) = (files.seams(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| stop.store(true, Ordering::Relaxed),
        stop: &stop,
    };
    let error = verify(Path::new(DIR), Access::Alone, work).expect_err("stopped");
    assert!(matches!(error, ToolError::Interrupted));
    let error = repair(Path::new(DIR), &BTreeMap::new(), false, work).expect_err("stopped");
    assert!(matches!(error, ToolError::Interrupted));
    assert!(before == everything(&files));
}

#[test]
fn a_log_in_use_is_refused_unless_only_its_sealed_segments_are_wanted() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    for n in 0..COUNT {
        append(telemetry(&log), &[format!("record {n} ").repeat(80)]);
    }
    log.maintain();
    let (seams, stop) = (Seams::system(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    let error = verify(dir.path(), Access::Alone, work).expect_err("refused");
    assert!(matches!(error, ToolError::InUse { .. }), "{error}");
    repair(dir.path(), &BTreeMap::new(), true, work).expect_err("refused");
    let report = verify(dir.path(), Access::Online, work).expect("a report");
    assert!(!report.complete && !report.is_damaged());
    assert!(report.has_read() && report.read().1 > 0);
    let seen = report.partitions[1].next_offset;
    assert!((1..COUNT).contains(&seen), "{seen}");
}

#[test]
fn a_look_beside_a_broker_that_finds_nothing_to_read_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["one"]);
    let (seams, stop) = (Seams::system(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    let report = verify(dir.path(), Access::Online, work).expect("a report");
    assert!(!report.is_damaged() && !report.has_read());
    assert_eq!(report.read(), (0, 0));
}

/// What a tool says of a folder; a tool that waits for the other end of a pipe ends the test.
fn told(dir: &Path, tool: fn(&Path, Work<'_>) -> String) -> String {
    let (sender, answers) = std::sync::mpsc::channel();
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        let (seams, stop) = (Seams::system(), AtomicBool::new(false));
        let work = Work {
            seams: &seams,
            progress: &|_, _| {},
            stop: &stop,
        };
        sender.send(tool(&dir, work))
    });
    let answer = answers.recv_timeout(std::time::Duration::from_secs(120));
    answer.expect("nobody waits for a pipe")
}

#[test]
fn a_pipe_in_the_place_of_a_file_of_the_log_is_named_and_not_waited_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["one"]);
    log.shutdown();
    drop(log);
    let tools: [fn(&Path, Work<'_>) -> String; 3] = [
        |dir, work| format!("{:?}", verify(dir, Access::Alone, work)),
        |dir, work| format!("{:?}", repair(dir, &BTreeMap::new(), true, work)),
        |dir, work| {
            let log = Log::open(config(dir), work.seams.clone());
            log.err().map(|error| error.to_string()).unwrap_or_default()
        },
    ];
    for name in ["log.meta", "lock", "telemetry-0/00000000000000000000.seg"] {
        let file = dir.path().join(name);
        let aside = file.with_extension("aside");
        std::fs::rename(&file, &aside).expect("it is there");
        mknodat(CWD, &file, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        for tool in tools {
            let told = told(dir.path(), tool);
            assert!(told.contains("it is no regular file"), "{name}: {told}");
        }
        std::fs::rename(&aside, &file).expect("it is there again");
    }
}
