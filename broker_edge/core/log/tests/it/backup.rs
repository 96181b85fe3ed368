//! A backup contains every record below its high watermarks once, at the same offset, however and whenever it is taken.
//! Unfinished, damaged and foreign backups are refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use std::collections::BTreeMap;

use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::tools::{self, BackupReport, RestoreReport, ToolError, Work, backup, restore};
use headwater_log::{Log, LogConfig, Offset, Seams};

fn with<T>(seams: &Seams, f: impl FnOnce(Work<'_>) -> T) -> T {
    let stop = AtomicBool::new(false);
    f(Work {
        seams,
        progress: &|_, _| {},
        stop: &stop,
    })
}

fn online(log: &Log, dest: &Path) -> Result<BackupReport, ToolError> {
    with(&Seams::system(), |work| log.backup(dest, work))
}

fn restored(source: &Path, dir: &Path, same_id: bool) -> Result<RestoreReport, ToolError> {
    with(&Seams::system(), |work| restore(source, dir, same_id, work))
}

fn secret_of(dir: &Path) -> String {
    let meta = fs::read_to_string(dir.join("log.meta")).expect("log.meta");
    let (_, rest) = meta.split_once("\"secret\":\"").expect("a secret");
    rest[..16].to_owned()
}

fn fill(log: &Log, range: std::ops::Range<u64>) {
    for n in range {
        append(telemetry(log), &[format!("record {n} ").repeat(80)]);
    }
}

#[test]
fn a_backup_under_load_restores_every_record_below_its_high_watermark_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(&dir.path().join("data"));
    fill(&log, 0..150);
    let is_done = Arc::new(AtomicBool::new(false));
    let load = {
        let (log, is_done) = (log.clone(), Arc::clone(&is_done));
        std::thread::spawn(move || {
            let mut n = 150;
            while !is_done.load(Ordering::SeqCst) || n < 400 {
                fill(&log, n..n + 1);
                n += 1;
            }
        })
    };
    await_that("load", || telemetry(&log).high_watermark() > Offset(200));
    let dest = dir.path().join("backup");
    let report = online(&log, &dest).expect("a backup");
    is_done.store(true, Ordering::SeqCst);
    load.join().expect("the load ends");
    let end = report.partitions[1].high_watermark;
    assert!(end > 200, "{report:?}");
    let all = read_all(telemetry(&log));

    let target = dir.path().join("restored");
    let made = restored(&dest, &target, false).expect("a restore");
    assert_eq!(made.records, end);
    assert_ne!(made.log_id, log.id().to_string());
    let copy = open(&target);
    assert_eq!(copy.id().to_string(), made.log_id);
    assert_eq!(read_all(telemetry(&copy)), all[..end as usize]);
    assert_ne!(secret_of(&target), secret_of(&dir.path().join("data")));
    assert!(
        telemetry(&copy).epoch() > telemetry(&log).epoch(),
        "epochs go on"
    );
    assert_eq!(append(telemetry(&copy), &["next"]), Offset(end));
    let topics = telemetry(&copy).topics().expect("topics");
    assert_eq!(
        (topics[0].first, topics[0].next),
        (Offset(0), Offset(end + 1))
    );
}

#[test]
fn a_second_backup_copies_only_what_is_new_and_drops_what_is_gone() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(&dir.path().join("data"));
    fill(&log, 0..300);
    let dest = dir.path().join("backup");
    let first = online(&log, &dest).expect("a backup");
    assert_eq!(first.reused, 0);
    fill(&log, 300..310);
    telemetry(&log).advance_log_start(Offset(100));
    let second = online(&log, &dest).expect("a backup");
    assert!(second.reused >= 2 && second.copied <= 2, "{second:?}");
    assert!(second.copied_bytes < first.copied_bytes / 2);
    let start = telemetry(&log).log_start();
    assert!(start > Offset(0));
    let stored = fs::read_dir(dest.join("telemetry-0"))
        .expect("a folder")
        .count();
    assert_eq!(stored, second.reused + second.copied);

    let target = dir.path().join("restored");
    restored(&dest, &target, false).expect("a restore");
    let copy = open(&target);
    assert_eq!(telemetry(&copy).log_start(), start);
    assert_eq!(read_all(telemetry(&copy)), read_all(telemetry(&log)));
}

#[test]
fn nothing_is_removed_while_a_backup_is_taken() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(&dir.path().join("data"));
    fill(&log, 0..300);
    let seams = Seams::system();
    let stop = AtomicBool::new(false);
    let partition = telemetry(&log);
    let work = Work {
        seams: &seams,
        progress: &|_, _| {
            partition.advance_log_start(Offset(200));
            assert_eq!(partition.log_start(), Offset(0));
        },
        stop: &stop,
    };
    log.backup(&dir.path().join("backup"), work)
        .expect("a backup");
    partition.advance_log_start(Offset(200));
    assert!(partition.log_start() > Offset(0), "afterwards it is");
}

#[test]
fn the_same_id_is_kept_when_asked_and_no_epoch_is_used_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let log = open(&data);
    fill(&log, 0..20);
    let dest = dir.path().join("backup");
    online(&log, &dest).expect("a backup");
    let (id, records) = (log.id(), read_all(telemetry(&log)));
    log.shutdown();
    drop(log);
    let mut epochs = Vec::new();
    for _ in 0..3 {
        epochs.push(telemetry(&open(&data)).epoch());
    }
    let target = dir.path().join("restored");
    restored(&dest, &target, true).expect("a restore");
    assert_eq!(secret_of(&target), secret_of(&dir.path().join("data")));
    let config = LogConfig {
        expected_id: Some(id),
        ..config(&target)
    };
    let copy = open_with(config, Seams::system());
    assert_eq!(read_all(telemetry(&copy)), records);
    assert!(epochs.iter().all(|epoch| telemetry(&copy).epoch() > *epoch));
}

#[test]
fn damage_at_the_source_is_told_and_stays_a_gap() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let log = open_with(without_tail(&data), Seams::system());
    fill(&log, 0..200);
    let segment = data.join("telemetry-0/00000000000000000000.seg");
    for at in [4200, 20_000] {
        let mut bytes = fs::read(&segment).expect("read");
        bytes[at] ^= 1;
        fs::write(&segment, bytes).expect("written");
    }
    let dest = dir.path().join("backup");
    let report = online(&log, &dest).expect("a backup");
    let damaged = &report.partitions[1].damaged;
    assert_eq!((damaged.len(), damaged[0]), (2, (0, 1)), "{damaged:?}");
    let (records, lost) = read_from(telemetry(&log), Offset(0));
    let target = dir.path().join("restored");
    restored(&dest, &target, false).expect("a restore");
    let copy = open(&target);
    assert_eq!(read_from(telemetry(&copy), Offset(0)), (records, lost));
}

#[test]
fn a_backup_that_changed_or_is_not_one_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(&dir.path().join("data"));
    fill(&log, 0..200);
    let dest = dir.path().join("backup");
    online(&log, &dest).expect("a backup");
    let stored: Vec<PathBuf> = fs::read_dir(dest.join("telemetry-0"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    let target = dir.path().join("restored");
    for path in stored.iter().chain([&dest.join("backup.json")]) {
        let whole = fs::read(path).expect("read");
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(path, bytes).expect("written");
            let error = restored(&dest, &target, false).expect_err("refused");
            assert!(
                error.to_string().contains(&*path.to_string_lossy()),
                "{error}"
            );
            let refused = Log::open(config(&target), Seams::system());
            if target.exists() {
                assert!(refused.is_err(), "half a log does not open");
                with(&Seams::system(), |work| {
                    tools::repair(&target, &BTreeMap::new(), false, work).expect_err("refused")
                });
            }
        }
        fs::write(path, whole).expect("written");
    }
    restored(&dest, &target, false).expect("a restore");
    fs::remove_file(target.join("log.meta")).expect("removed");
    fs::write(target.join("restoring"), b"").expect("written");
    // Leftovers of these neither block the restore nor get into the log.
    let leftover = dir
        .path()
        .join("restored/telemetry-0/00000000000000000999.seg");
    fs::write(&leftover, b"x").expect("written");
    restored(&dest, &target, false).expect("a restore");
    assert_eq!(read_all(telemetry(&open(&target))).len(), 200);
    let again = restored(&dest, &target, false).expect_err("refused");
    assert!(again.to_string().contains("not empty"), "{again}");
    fs::remove_file(dest.join("backup.json")).expect("removed");
    let unfinished = restored(&dest, &dir.path().join("other"), false).expect_err("refused");
    assert!(
        unfinished.to_string().contains("no finished backup"),
        "{unfinished}"
    );
}

#[test]
fn a_folder_of_something_else_is_not_written_to() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let log = open(&data);
    fill(&log, 0..5);
    let other = open(&dir.path().join("other"));
    let used = dir.path().join("used");
    fs::create_dir(&used).expect("made");
    fs::write(used.join("letter"), b"dear").expect("written");
    let theirs = dir.path().join("theirs");
    online(&other, &theirs).expect("a backup");
    for dest in [&used, &theirs, &data.join("within"), &data] {
        let error = online(&log, dest).expect_err("refused");
        assert!(matches!(error, ToolError::Refused(_)), "{error}");
    }
    assert_eq!(fs::read_dir(&used).expect("a folder").count(), 1);
    assert!(!data.join("within").exists());
}

/// A backup fails at each of its calls, then the power fails: a restore gives the previous backup or nothing.
#[test]
fn an_interrupted_backup_leaves_the_one_before_or_none() {
    let (data, dest) = (Path::new("/data"), Path::new("/backup"));
    let mut nth = 1;
    loop {
        let files = SimFiles::new(nth);
        let settings = LogConfig {
            maintain_every: None,
            ..config(data)
        };
        let log = open_with(settings.clone(), files.seams());
        fill(&log, 0..60);
        let first = nth % 2 == 0;
        if first {
            with(&files.seams(), |work| log.backup(dest, work)).expect("a backup");
            fill(&log, 60..120);
        }
        let records = read_all(telemetry(&log));
        files.fail_call(nth, Fault::Error);
        let taken = with(&files.seams(), |work| log.backup(dest, work));
        let is_over = files.failed().is_empty();
        drop(log);
        files.power_cut();
        let target = Path::new("/restored");
        match with(&files.seams(), |work| restore(dest, target, false, work)) {
            Err(error) => {
                assert!(!first && taken.is_err(), "call {nth}: {error}");
                assert!(
                    matches!(error, ToolError::Refused(_) | ToolError::Io { .. }),
                    "{error}"
                );
            }
            Ok(made) => {
                let expected = if taken.is_ok() { records.len() } else { 60 };
                let held = made.records as usize;
                assert!(
                    held == expected || (held == records.len() && held > 0),
                    "call {nth}: {held}"
                );
                let copy = open_with(
                    LogConfig {
                        dir: target.to_owned(),
                        ..settings
                    },
                    files.seams(),
                );
                assert_eq!(read_all(telemetry(&copy)), records[..held]);
            }
        }
        if is_over {
            break;
        }
        nth += 1;
    }
    assert!(nth > 30, "{nth}");
}

#[test]
fn a_backup_of_a_stopped_log_is_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let log = open(&data);
    fill(&log, 0..150);
    let records = read_all(telemetry(&log));
    let dest = dir.path().join("backup");
    let take = || with(&Seams::system(), |work| backup(&data, &dest, work));
    assert!(matches!(take(), Err(ToolError::InUse { .. })));
    log.shutdown();
    drop(log);
    take().expect("a backup");
    let target = dir.path().join("restored");
    restored(&dest, &target, false).expect("a restore");
    assert_eq!(read_all(telemetry(&open(&target))), records);
}

/// Not a proper backup, but people make such copies: valid records are served, and nothing else.
#[test]
fn a_folder_copied_while_it_is_written_serves_only_what_is_valid() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let log = open(&data);
    fill(&log, 0..50);
    let is_done = Arc::new(AtomicBool::new(false));
    let load = {
        let (log, is_done) = (log.clone(), Arc::clone(&is_done));
        std::thread::spawn(move || {
            let mut n = 50;
            while !is_done.load(Ordering::SeqCst) {
                fill(&log, n..n + 1);
                n += 1;
            }
        })
    };
    for round in 0..5 {
        let copy = dir.path().join(format!("copy-{round}"));
        let done = std::process::Command::new("cp")
            .arg("-r")
            .arg(&data)
            .arg(&copy)
            .status();
        assert!(done.is_ok(), "cp runs");
        let copied = open(&copy);
        let (served, _) = read_from(telemetry(&copied), Offset(0));
        assert!(served.len() >= 50);
        for (n, payload) in served {
            assert_eq!(payload, format!("record {n} ").repeat(80).into_bytes());
        }
    }
    is_done.store(true, Ordering::SeqCst);
    load.join().expect("the load ends");
}
