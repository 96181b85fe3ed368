//! Logs of every released format open, and the current code still writes the same bytes of its own format.
//!
//! `write` below wrote `tests/fixtures/format-1`. To rewrite it after a change that only adds to it:
//! `HEADWATER_FIXTURE_OUT=tests/fixtures/format-1 cargo test -p headwater-log --test it fixture`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::support::*;
use headwater_log::tools::{Access, Work, verify};
use headwater_log::{Log, LogConfig, LogId, Offset, RecordMeta, RecordView, Records};

const START_US: i64 = 1_800_000_000_000_000;
const COUNT: u64 = 60;

fn id() -> LogId {
    LogId::from_random([0x42; 16])
}

fn fixture_config(dir: &Path) -> LogConfig {
    LogConfig {
        segment_bytes: 16 << 10,
        expected_id: Some(id()),
        ..config(dir)
    }
}

fn payload(n: u64) -> Vec<u8> {
    format!("{{\"seq\": {n}}}")
        .repeat(1 + n as usize % 50)
        .into_bytes()
}

/// `log.meta` of an interrupted first start. Given, because a log creates its own secret, which would differ each time.
fn begin_with_a_known_secret(dir: &Path) {
    let class = |name: &str| {
        format!("{{\"class\":\"{name}\",\"partitions\":1,\"template\":\"devices/{{device}}/#\"}}")
    };
    let json = format!(
        "{{\"format\":1,\"log_id\":\"{}\",\"secret\":\"00112233ccddeeff\",\"created_us\":{START_US},\"epoch\":0,\
         \"hash\":\"xxh3-64\",\"classes\":[{},{}]}}",
        id(),
        class("control"),
        class("telemetry")
    );
    let text = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
    fs::write(dir.join("log.meta"), text).expect("written");
}

/// A log of three segments that contain every part of a batch.
fn write(dir: &Path) {
    begin_with_a_known_secret(dir);
    let clock = HandClock::at(START_US);
    let log = open_with(fixture_config(dir), with_clock(&clock));
    let partition = telemetry(&log);
    for n in 0..COUNT / 2 {
        let mut records = Records::new();
        let device = records.topic("devices/d1/telemetry", 8..10).expect("room");
        let plain = records.topic("plant/é/speed", 0..14).expect("room");
        let client = records.client("d1").expect("room");
        records
            .push(
                RecordMeta::new(device, client, (n % 3) as u8),
                &payload(2 * n),
            )
            .expect("room");
        let key = format!("key-{n}");
        let meta = RecordMeta {
            retain: n % 2 == 0,
            key: Some(b"own"),
            idempotency_key: Some(&key),
            properties: &[1, 1],
            headers: &[("unit", b"rpm"), ("empty", b"")],
            ..RecordMeta::new(plain, client, 1)
        };
        records.push(meta, &payload(2 * n + 1)).expect("room");
        let range = partition.append(records).expect("taken");
        await_durable(partition, range.end);
        clock.advance(Duration::from_millis(1500));
    }
    log.maintain();
}

fn check(record: &RecordView<'_>) {
    let n = record.offset.0;
    assert_eq!(record.payload, payload(n));
    assert_eq!(record.time_us, START_US + (n / 2) as i64 * 1_500_000);
    assert_eq!((record.client_id, record.epoch.0), ("d1", 1));
    if n.is_multiple_of(2) {
        assert_eq!(
            (record.topic, record.key),
            ("devices/d1/telemetry", &b"d1"[..])
        );
        assert_eq!(u64::from(record.qos), n / 2 % 3);
        assert_eq!((record.idempotency_key, record.properties), (None, &[][..]));
    } else {
        assert_eq!((record.topic, record.key), ("plant/é/speed", &b"own"[..]));
        assert_eq!(record.retain, (n / 2).is_multiple_of(2));
        assert_eq!(
            record.idempotency_key,
            Some(format!("key-{}", n / 2).as_str())
        );
        assert_eq!(record.properties, [1, 1]);
        assert_eq!(
            record.headers.collect::<Vec<_>>(),
            [("unit", &b"rpm"[..]), ("empty", b"")]
        );
    }
}

fn check_log(log: &Log) {
    let partition = telemetry(log);
    assert_eq!(
        (partition.log_start(), partition.high_watermark()),
        (Offset(0), Offset(COUNT))
    );
    let mut next = Offset(0);
    while next < partition.high_watermark() {
        for batch in partition.read(next, 8000).expect("a read") {
            batch.records().for_each(|record| check(&record));
            next = batch.next_offset();
        }
    }
    assert_eq!(partition.gaps(), []);
    let topics = partition.topics().expect("topics");
    assert_eq!(
        topics.iter().map(|topic| topic.first.0).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(
        partition
            .offset_for_time(START_US + 15_000_000)
            .expect("an offset"),
        Offset(20)
    );
    let mut repeat = Records::new();
    let topic = repeat.topic("plant/é/speed", 0..14).expect("room");
    let client = repeat.client("flight").expect("room");
    let meta = RecordMeta {
        idempotency_key: Some("key-3"),
        ..RecordMeta::new(topic, client, 1)
    };
    repeat.push(meta, b"x").expect("room");
    let known = partition.append_unique(repeat).expect("taken")[0];
    assert_eq!((known.offset, known.duplicate), (Offset(7), true));
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
}

/// The indexes of the telemetry partition in a later format of their own.
fn index_fixture(format: u32) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(format!("index-{format}"))
}

/// Every file of a log except its lock, by name relative to the folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["", "control-0", "telemetry-0"] {
        for entry in fs::read_dir(dir.join(folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_file() && entry.file_name() != "lock" {
                found.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for name in files(from) {
        let target = to.join(&name);
        fs::create_dir_all(target.parent().expect("a folder")).expect("made");
        fs::copy(from.join(&name), target).expect("copied");
    }
}

#[test]
fn a_log_of_format_1_opens_with_every_record() {
    let dir = tempfile::tempdir().expect("a folder");
    copy(&fixture(), dir.path());
    check_log(&open_with(
        fixture_config(dir.path()),
        headwater_log::Seams::system(),
    ));
}

#[test]
fn a_log_of_format_1_opens_without_its_mark_and_indexes() {
    let dir = tempfile::tempdir().expect("a folder");
    copy(&fixture(), dir.path());
    for name in files(dir.path()) {
        if name.ends_with("mark") || name.extension().is_some_and(|suffix| suffix == "idx") {
            fs::remove_file(dir.path().join(name)).expect("removed");
        }
    }
    check_log(&open_with(
        fixture_config(dir.path()),
        headwater_log::Seams::system(),
    ));
}

#[test]
fn what_is_written_today_has_the_bytes_of_format_1() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path());
    if let Some(out) = std::env::var_os("HEADWATER_FIXTURE_OUT") {
        copy(dir.path(), Path::new(&out));
    }
    assert_eq!(files(dir.path()), files(&fixture()));
    for name in files(dir.path()) {
        let (written, kept) = (
            fs::read(dir.path().join(&name)),
            fs::read(fixture().join(&name)),
        );
        // Indexes have their own format version; the fixture has the first.
        let is_index = name.extension().is_some_and(|suffix| suffix == "idx");
        let kept = if is_index {
            fs::read(index_fixture(3).join(name.file_name().expect("a name")))
        } else {
            kept
        };
        assert!(
            written.expect("read") == kept.expect("read"),
            "{} differs",
            name.display()
        );
    }
}

/// Opens the fixture with indexes of this format; none of them is built again.
fn check_indexes_of(format: u32, dir: &Path) {
    copy(&fixture(), dir);
    for entry in fs::read_dir(index_fixture(format)).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        fs::copy(&path, dir.join("telemetry-0").join(name)).expect("copied");
    }
    for _ in 0..2 {
        let opened = Log::open(fixture_config(dir), headwater_log::Seams::system());
        let (log, report) = opened.expect("it opens");
        let rebuilt = report.partitions.iter().map(|found| found.rebuilt_indexes);
        assert_eq!(rebuilt.sum::<usize>(), 0);
        log.maintain();
        check_log(&log);
    }
}

#[test]
fn an_index_of_format_3_is_used_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    check_indexes_of(3, dir.path());
    for entry in fs::read_dir(index_fixture(3)).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = Path::new("telemetry-0").join(path.file_name().expect("a name"));
        assert_eq!(
            fs::read(path).expect("read"),
            fs::read(dir.path().join(name)).expect("read")
        );
    }
}

/// Its keys are sorted and written anew, without a look at the segment; what the keys are hashed from stays.
#[test]
fn an_index_of_format_2_is_written_anew_and_not_built_again() {
    let dir = tempfile::tempdir().expect("a folder");
    check_indexes_of(2, dir.path());
    for entry in fs::read_dir(index_fixture(2)).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        let bytes = fs::read(dir.path().join("telemetry-0").join(name)).expect("read");
        assert_eq!((bytes[8], bytes[120]), (3, 0));
    }
    let (seams, stop) = (headwater_log::Seams::system(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    let report = verify(dir.path(), Access::Alone, work).expect("a report");
    for partition in report.partitions {
        assert_eq!(
            partition.indexes,
            [] as [String; 0],
            "none is to be built again"
        );
    }
}
