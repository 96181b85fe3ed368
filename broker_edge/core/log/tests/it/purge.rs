//! After a purge no file of the log contains a byte of the purged records, and every other record keeps its offset.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::support::memory::MemoryFiles;
use crate::support::sim::{Fault, SimFiles};
use crate::support::*;
use headwater_log::tools::{Access, PurgeReport, PurgeWhat, Work, purge, verify};
use headwater_log::{Log, LogConfig, Offset, Partition, RecordMeta, Records, Seams};

const DIR: &str = "/data";
const SECRET: &str = "device-7f3a";

fn settings() -> LogConfig {
    LogConfig {
        maintain_every: None,
        tail_bytes: 0,
        ..config(Path::new(DIR))
    }
}

/// Batches with alternating records of the device and of others; every part of a record names its device.
fn fill(log: &Log, count: u64) {
    for n in 0..count {
        let mut records = Records::new();
        for device in [SECRET, "device-b"] {
            let topic = format!("devices/{device}/telemetry");
            let topic = records
                .topic(&topic, 8..8 + device.len() as u16)
                .expect("room");
            let client = records.client(device).expect("room");
            let key = format!("{device}/{n}");
            let meta = RecordMeta {
                retain: n % 3 == 0,
                idempotency_key: Some(&key),
                headers: &[("by", device.as_bytes())],
                ..RecordMeta::new(topic, client, 1)
            };
            records
                .push(meta, format!("{device} says {n} ").repeat(40).as_bytes())
                .expect("room");
        }
        let range = telemetry(log).append(records).expect("taken");
        await_durable(telemetry(log), range.end);
    }
    log.maintain();
}

fn run(seams: &Seams) -> Result<PurgeReport, headwater_log::tools::ToolError> {
    let stop = AtomicBool::new(false);
    let work = Work {
        seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    purge(Path::new(DIR), PurgeWhat::Device(SECRET), work)
}

fn holding(files: &MemoryFiles) -> Vec<PathBuf> {
    let mut names = files.names();
    names.retain(|name| {
        let bytes = files.bytes(name);
        bytes
            .windows(SECRET.len())
            .any(|window| window == SECRET.as_bytes())
    });
    names
}

/// The remaining records, and the offsets of the purged ones.
fn contents(partition: &Partition) -> (Vec<Found>, Vec<u64>) {
    let (mut kept, mut purged) = (Vec::new(), Vec::new());
    let mut next = partition.log_start();
    while next < partition.high_watermark() {
        for batch in partition.read(next, 1 << 20).expect("a read") {
            for record in batch.records() {
                if record.purged {
                    assert!(batch.holds_purged());
                    let rest = (
                        record.topic,
                        record.client_id,
                        record.key,
                        record.payload,
                        record.retain,
                    );
                    assert_eq!(rest, ("", "", &b""[..], &b""[..], false));
                    assert_eq!(record.idempotency_key, None);
                    purged.push(record.offset.0);
                } else {
                    kept.push((record.offset.0, record.payload.to_vec()));
                }
            }
            next = batch.next_offset();
        }
    }
    (kept, purged)
}

#[test]
fn no_file_holds_a_byte_of_it_and_the_others_are_where_they_were() {
    let files = MemoryFiles::default();
    let log = open_with(settings(), files.seams());
    fill(&log, 100);
    let (before, _) = contents(telemetry(&log));
    log.shutdown();
    drop(log);
    let aside = Path::new(DIR).join("telemetry-0/00000000000000000009.1.damaged");
    files.put(&aside, SECRET.as_bytes().to_vec());
    files.put(
        &Path::new(DIR).join("telemetry-0/spare-1.tmp"),
        SECRET.as_bytes().to_vec(),
    );
    assert!(holding(&files).len() > 4, "the control: it is there before");

    let report = run(&files.seams()).expect("a purge");
    assert_eq!((report.records, report.removed_files), (100, 1));
    assert_eq!(holding(&files), Vec::<PathBuf>::new());

    let log = open_with(settings(), files.seams());
    let (kept, purged) = contents(telemetry(&log));
    assert!(kept.iter().eq(before.iter().filter(|(n, _)| n % 2 == 1)));
    assert_eq!(purged, (0..200).step_by(2).collect::<Vec<_>>());
    let topics = telemetry(&log).topics().expect("topics");
    let names: Vec<&str> = topics.iter().map(|topic| topic.topic.as_str()).collect();
    assert_eq!(names, ["devices/device-b/telemetry"]);
    assert_eq!(telemetry(&log).gaps(), []);
    assert_eq!(append(telemetry(&log), &["next"]), Offset(200));
    log.shutdown();
    drop(log);
    let (seams, stop) = (files.seams(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    let seen = verify(Path::new(DIR), Access::Alone, work).expect("a report");
    assert!(!seen.is_damaged());
    assert_eq!(seen.partitions[1].purged, 100);
    assert!(
        seen.partitions[1]
            .gaps
            .iter()
            .all(|gap| gap.reason == "purge")
    );
    assert_eq!(
        run(&files.seams()).expect("a purge").records,
        0,
        "again there is nothing to do"
    );
}

#[test]
fn stale_bytes_of_a_recycled_segment_go_as_well() {
    let files = MemoryFiles::default();
    let log = open_with(settings(), files.seams());
    fill(&log, 100);
    let range = telemetry(&log).high_watermark();
    telemetry(&log).advance_log_start(range);
    // The removed segment is reused for later records.
    for n in 0..60 {
        append(telemetry(&log), &[format!("other {n} ").repeat(150)]);
    }
    log.shutdown();
    drop(log);
    run(&files.seams()).expect("a purge");
    assert_eq!(holding(&files), Vec::<PathBuf>::new());
    let log = open_with(settings(), files.seams());
    let (kept, _) = contents(telemetry(&log));
    assert_eq!(
        kept.iter()
            .filter(|(_, payload)| payload.starts_with(b"other"))
            .count(),
        60
    );
}

#[test]
fn damaged_bytes_go_and_their_offsets_stay_a_gap() {
    let files = MemoryFiles::default();
    let log = open_with(settings(), files.seams());
    fill(&log, 60);
    log.shutdown();
    drop(log);
    let segment = Path::new(DIR).join("telemetry-0/00000000000000000000.seg");
    files.change(&segment, |bytes| bytes[9000] ^= 1);
    run(&files.seams()).expect("a purge");
    assert_eq!(holding(&files), Vec::<PathBuf>::new());
    let log = open_with(settings(), files.seams());
    let gaps = telemetry(&log).gaps();
    assert_eq!(
        (gaps.len(), gaps[0].range.end.0 - gaps[0].range.start.0),
        (1, 2),
        "{gaps:?}"
    );
}

#[test]
fn the_state_of_a_device_goes_and_that_of_others_stays() {
    let dir = tempfile::tempdir().expect("a folder");
    let settings = || LogConfig::new(dir.path());
    let log = open_with(settings(), Seams::system());
    let state = log.by_name("internal-0").expect("a partition").clone();
    let retained = format!("retained/devices/{SECRET}/telemetry");
    let session = format!("session/{SECRET}");
    let group = format!("group/{SECRET}");
    let keys = [
        &*session,
        &retained,
        "session/device-b",
        "retained/plant/speed",
        &group,
    ];
    for key in keys {
        let mut records = Records::new();
        let topic = format!("$state/{key}");
        let topic = records.topic(&topic, 0..topic.len() as u16).expect("room");
        let client = records.client("").expect("room");
        records
            .push(RecordMeta::new(topic, client, 1), b"{}")
            .expect("room");
        let range = state.append(records).expect("taken");
        await_durable(&state, range.end);
    }
    drop(state);
    log.shutdown();
    drop(log);
    let (seams, stop) = (Seams::system(), AtomicBool::new(false));
    let work = Work {
        seams: &seams,
        progress: &|_, _| {},
        stop: &stop,
    };
    let of_device = purge(dir.path(), PurgeWhat::Device(SECRET), work).expect("a purge");
    assert_eq!(of_device.records, 2);
    let wanted = |topic: &str| topic == "plant/speed";
    let of_topic = purge(dir.path(), PurgeWhat::Topics(&wanted), work).expect("a purge");
    assert_eq!(of_topic.records, 1);
    let log = open_with(settings(), Seams::system());
    let state = log.by_name("internal-0").expect("a partition");
    let left: Vec<String> = state
        .topics()
        .expect("topics")
        .into_iter()
        .map(|topic| topic.topic)
        .collect();
    assert_eq!(
        left,
        [
            format!("$state/{group}"),
            "$state/session/device-b".to_owned()
        ]
    );
}

/// A purge fails at each of its calls and the power fails: nothing else is lost, and the next purge completes it.
#[test]
fn an_interrupted_purge_loses_nothing_else_and_is_finished_by_the_next() {
    let mut nth = 1;
    loop {
        let files = SimFiles::new(nth);
        let log = open_with(settings(), files.seams());
        fill(&log, 30);
        log.shutdown();
        drop(log);
        files.fail_call(nth, Fault::Error);
        let first = run(&files.seams());
        let is_over = files.failed().is_empty();
        files.power_cut();
        drop(first);
        run(&files.seams()).expect("a purge");
        let log = open_with(settings(), files.seams());
        let (kept, purged) = contents(telemetry(&log));
        assert_eq!((kept.len(), purged.len()), (30, 30), "call {nth}");
        assert!(
            kept.iter()
                .all(|(n, payload)| n % 2 == 1 && payload.starts_with(b"device-b"))
        );
        drop(log);
        if is_over {
            break;
        }
        nth += if nth > 60 { 7 } else { 3 };
    }
    assert!(nth > 60, "{nth}");
}
