//! Refusals when a log is opened: one sentence that names the cause and says what to do.

use std::fs;

use crate::support::*;
use headwater_log::{Class, ClassConfig, Log, LogConfig, LogId, OpenError, Seams};

fn refused(config: LogConfig) -> OpenError {
    match Log::open(config, Seams::system()) {
        Ok(_) => panic!("the log opened"),
        Err(error) => error,
    }
}

fn made() -> (tempfile::TempDir, LogId) {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["x"]);
    let id = log.id();
    (dir, id)
}

#[test]
fn a_folder_of_another_log_is_refused() {
    let (dir, id) = made();
    let other = LogId::from_random([1; 16]);
    let error = refused(LogConfig {
        expected_id: Some(other),
        ..config(dir.path())
    });
    assert!(
        matches!(&error, OpenError::OtherLog { found, .. } if *found == id),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&id.to_string()) && text.contains(&other.to_string()),
        "{text}"
    );
    let log = open_with(
        LogConfig {
            expected_id: Some(id),
            ..config(dir.path())
        },
        Seams::system(),
    );
    assert_eq!(read_all(telemetry(&log)).len(), 1);
}

#[test]
fn a_new_folder_gets_the_id_that_is_expected() {
    let dir = tempfile::tempdir().expect("a folder");
    let id = LogId::from_random([5; 16]);
    let log = open_with(
        LogConfig {
            expected_id: Some(id),
            ..config(dir.path())
        },
        Seams::system(),
    );
    assert_eq!(log.id(), id);
}

#[test]
fn a_folder_in_use_is_refused_with_the_process_that_uses_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    let error = refused(config(dir.path()));
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
    drop(log);
    open(dir.path());
}

#[test]
fn a_folder_in_use_is_refused_also_when_somebody_has_removed_its_lock_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["acknowledged"]);
    fs::remove_file(dir.path().join("lock")).expect("removed");
    for _ in 0..2 {
        assert!(matches!(
            refused(config(dir.path())),
            OpenError::InUse { .. }
        ));
    }
    drop(log);
    assert_eq!(read_all(telemetry(&open(dir.path()))).len(), 1);
}

#[test]
fn a_link_in_the_place_of_the_lock_is_refused_and_what_it_leads_to_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, other) = (dir.path().join("log"), dir.path().join("other"));
    fs::create_dir(&folder).expect("a folder");
    fs::write(&other, "precious").expect("written");
    std::os::unix::fs::symlink(&other, folder.join("lock")).expect("a link");
    let error = refused(config(&folder)).to_string();
    assert!(
        error.contains("lock") && error.contains("symbolic link"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&other).expect("read"), "precious");
}

#[test]
fn changed_partition_counts_templates_and_classes_are_refused() {
    let (dir, _) = made();
    let with = |change: fn(&mut Vec<ClassConfig>)| {
        let mut config = config(dir.path());
        change(&mut config.classes);
        refused(config).to_string()
    };
    let text = with(|classes| classes[1].partitions = 2);
    assert!(
        text.contains("telemetry") && text.contains("is 1 in") && text.contains("and 2 in"),
        "{text}"
    );
    assert!(with(|classes| classes[0].template = None).contains("template"));
    assert!(with(|classes| classes.swap(0, 1)).contains("place"));
    assert!(with(|classes| classes.push(ClassConfig::new(Class::Artifacts))).contains("artifacts"));
    assert!(with(|classes| classes.truncate(1)).contains("missing"));
    let mut filters = config(dir.path());
    filters.classes[0].filters.push("orders/#".to_owned());
    assert!(
        Log::open(filters, Seams::system()).is_ok(),
        "filters may change"
    );
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let (dir, _) = made();
    let json = "{\"format\": 7, \"what\": \"nobody knows yet\"}";
    let text = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
    fs::write(dir.path().join("log.meta"), text).expect("written");
    let error = refused(config(dir.path()));
    assert!(
        matches!(
            error,
            OpenError::NewerFormat {
                found: 7,
                supported: 2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_segment_of_a_newer_format_is_refused_by_its_number_and_nothing_changes() {
    let (dir, _) = made();
    let path = dir.path().join("telemetry-0/00000000000000000000.seg");
    let mut bytes = fs::read(&path).expect("read");
    bytes[8] = 2;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[16..72]), &bytes[8..12]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&path, &bytes).expect("written");
    let meta = fs::read(dir.path().join("log.meta")).expect("read");
    let error = refused(config(dir.path()));
    let is_named = matches!(
        &error,
        OpenError::NewerFormat { path: named, found: 2, supported: 1 } if *named == path
    );
    assert!(is_named, "{error}");
    assert!(fs::read(&path).expect("read") == bytes);
    assert!(fs::read(dir.path().join("log.meta")).expect("read") == meta);
}

#[test]
fn a_damaged_or_missing_log_meta_is_refused() {
    let (dir, _) = made();
    let path = dir.path().join("log.meta");
    let text = fs::read_to_string(&path).expect("read");
    fs::write(&path, text.replace("telemetry", "telemetrx")).expect("written");
    assert!(matches!(
        refused(config(dir.path())),
        OpenError::Damaged { .. }
    ));
    fs::remove_file(&path).expect("removed");
    let error = refused(config(dir.path()));
    assert!(matches!(error, OpenError::MetaMissing { .. }), "{error}");
    fs::write(&path, text).expect("written");
    assert_eq!(read_all(telemetry(&open(dir.path()))).len(), 1);
}

#[test]
fn a_partition_folder_of_another_log_or_partition_is_refused() {
    let (dir, id) = made();
    let (other, other_id) = made();
    let name = "telemetry-0/00000000000000000000.seg";
    fs::copy(other.path().join(name), dir.path().join(name)).expect("copied");
    let error = refused(config(dir.path()));
    assert!(
        matches!(&error, OpenError::ForeignSegment { expected, found, .. } if *expected == id && *found == other_id),
        "{error}"
    );
    let control = "control-0/00000000000000000000.seg";
    fs::copy(dir.path().join(control), dir.path().join(name)).expect("copied");
    let error = refused(config(dir.path()));
    assert!(error.to_string().contains("partition 0"), "{error}");
}

#[test]
fn a_missing_or_emptied_partition_folder_is_refused() {
    let (dir, _) = made();
    for entry in fs::read_dir(dir.path().join("telemetry-0")).expect("a folder") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    assert!(matches!(
        refused(config(dir.path())),
        OpenError::PartitionMissing { .. }
    ));
    fs::remove_dir(dir.path().join("telemetry-0")).expect("removed");
    let error = refused(config(dir.path()));
    assert!(
        error.to_string().contains("telemetry-0 is missing"),
        "{error}"
    );
}

#[test]
fn senseless_settings_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let with = |change: fn(&mut LogConfig)| {
        let mut config = config(dir.path());
        change(&mut config);
        refused(config)
    };
    assert!(matches!(
        with(|config| config.classes.clear()),
        OpenError::Settings { .. }
    ));
    assert!(matches!(
        with(|config| config.classes[0].partitions = 0),
        OpenError::Settings { .. }
    ));
    assert!(matches!(
        with(|config| config.segment_bytes = 100),
        OpenError::Settings { .. }
    ));
    assert!(matches!(
        with(|config| config.classes[1].class = Class::Control),
        OpenError::Settings { .. }
    ));
}

#[test]
fn a_segment_with_another_secret_is_refused_without_showing_either() {
    let (dir, _) = made();
    let path = dir.path().join("telemetry-0/00000000000000000000.seg");
    let mut bytes = fs::read(&path).expect("read");
    let hex = |secret: &[u8]| -> String { secret.iter().map(|b| format!("{b:02x}")).collect() };
    let ours = hex(&bytes[64..72]);
    let meta = fs::read_to_string(dir.path().join("log.meta")).expect("read");
    assert!(meta.contains(&ours), "log.meta and the headers have one");
    bytes[64] ^= 1;
    let theirs = hex(&bytes[64..72]);
    let checksum = crc32c::crc32c(&bytes[16..72]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&path, &bytes).expect("written");
    let error = refused(config(dir.path()));
    let told = format!("{error} {error:?}");
    assert!(told.contains("another secret"), "{told}");
    assert!(!told.contains(&ours) && !told.contains(&theirs));
}

#[test]
fn a_first_start_that_was_interrupted_is_finished_by_the_next() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(dir.path()));
    let path = dir.path().join("log.meta");
    let text = fs::read_to_string(&path).expect("read");
    let json = text
        .lines()
        .next()
        .expect("a line")
        .replace("\"epoch\":1", "\"epoch\":0");
    fs::write(
        &path,
        format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes())),
    )
    .expect("written");
    fs::remove_dir_all(dir.path().join("telemetry-0")).expect("removed");
    append(telemetry(&open(dir.path())), &["x"]);
}

/// Its batches carry their offsets, so they would be a gap in this partition and missing in their own.
#[test]
fn a_segment_under_the_name_of_another_offset_is_refused() {
    let (dir, _) = made();
    let folder = dir.path().join("telemetry-0");
    let named = |base: u64| folder.join(format!("{base:020}.seg"));
    fs::copy(named(0), named(500)).expect("copied");
    let error = refused(config(dir.path()));
    assert!(
        matches!(&error, OpenError::Damaged { path, .. } if *path == named(500)),
        "{error}"
    );
    assert!(error.to_string().contains("moved or renamed"), "{error}");
    fs::remove_file(named(500)).expect("removed");
    assert_eq!(read_all(telemetry(&open(dir.path()))).len(), 1);
}

#[test]
fn only_the_owner_may_read_what_a_log_makes() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(&dir.path().join("log"));
    for n in 0..200 {
        append(telemetry(&log), &[format!("record {n} ").repeat(80)]);
    }
    log.maintain();
    log.shutdown();
    let (mut folders, mut files) = (vec![dir.path().join("log")], Vec::new());
    let mut seen = 0;
    while let Some(folder) = folders.get(seen).cloned() {
        seen += 1;
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    assert!(
        folders.len() > 2
            && files
                .iter()
                .any(|file| file.extension().is_some_and(|end| end == "idx"))
    );
    for (paths, mode) in [(folders, 0o700), (files, 0o600)] {
        for path in paths {
            let found = fs::metadata(&path)
                .expect("it is there")
                .permissions()
                .mode()
                & 0o777;
            assert_eq!(found, mode, "{}", path.display());
        }
    }
}
