//! Every single-bit flip on a stopped node is detected, and nothing that it touched is served (I4).
//!
//! All bits of every header, index head, mark and `log.meta`; every third bit of longer parts.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::support::memory::MemoryFiles;
use crate::support::*;
use headwater_log::{
    Class, ClassConfig, Log, LogConfig, OpenError, PartitionReport, RecordMeta, Records,
};

const DIR: &str = "/data";
const COUNT: u64 = 24;
const HEADER: usize = 64;

fn settings() -> LogConfig {
    LogConfig {
        segment_bytes: 16 << 10,
        // Everything is read from the files.
        tail_bytes: 0,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..LogConfig::new(DIR)
    }
}

/// Batches of two records that contain every part of the format, in two sealed segments with indexes and an active one.
fn stopped_log() -> MemoryFiles {
    let files = MemoryFiles::default();
    let log = open_with(settings(), files.seams());
    for n in 0..COUNT / 2 {
        let mut records = Records::new();
        let topic = records.topic("devices/d1/telemetry", 8..10).expect("room");
        let other = records.topic("plant/speed", 0..11).expect("room");
        let client = records.client("d1").expect("room");
        let plain = RecordMeta::new(topic, client, 1);
        records.push(plain, &[n as u8; 2000]).expect("room");
        let key = format!("key-{n}");
        let full = RecordMeta {
            retain: true,
            key: Some(b"own"),
            idempotency_key: Some(&key),
            properties: &[1, 1],
            headers: &[("unit", b"rpm")],
            ..RecordMeta::new(other, client, 1)
        };
        records
            .push(full, format!("speed {n}").as_bytes())
            .expect("room");
        let range = telemetry(&log).append(records).expect("taken");
        await_durable(telemetry(&log), range.end);
    }
    log.maintain();
    log.shutdown();
    assert!(files.with_suffix(".idx").len() >= 2);
    files
}

/// The key of the first record that has one.
fn first_key() -> Records {
    let mut records = Records::new();
    let topic = records.topic("plant/speed", 0..11).expect("room");
    let client = records.client("d1").expect("room");
    let meta = RecordMeta {
        idempotency_key: Some("key-0"),
        ..RecordMeta::new(topic, client, 1)
    };
    records.push(meta, b"speed 0").expect("room");
    records
}

/// What a start with these files reports and serves.
struct Seen {
    report: PartitionReport,
    served: Vec<Found>,
    damaged: Vec<Range<u64>>,
    gaps: usize,
    /// The first index file afterwards.
    index: Vec<u8>,
}

fn look(files: &MemoryFiles) -> Result<Seen, OpenError> {
    let (log, report) = Log::open(settings(), files.seams())?;
    let (served, damaged) = read_from(telemetry(&log), telemetry(&log).log_start());
    // An index is read in pieces, so unrequested pieces are not checked.
    let topics = telemetry(&log).topics();
    assert!(topics.is_ok_and(|topics| topics.len() <= 2));
    let _ = telemetry(&log).append_unique(first_key());
    log.maintain();
    let index = files
        .with_suffix(".idx")
        .first()
        .map(|path| files.bytes(path));
    Ok(Seen {
        index: index.unwrap_or_default(),
        report: report.partitions.into_iter().next().expect("one partition"),
        served,
        damaged: damaged
            .iter()
            .map(|range| range.start.0..range.end.0)
            .collect(),
        gaps: telemetry(&log).gaps().len(),
    })
}

#[derive(Default)]
struct Counts {
    flips: u64,
    detected: u64,
    served: u64,
}

/// The batches of a segment file: position and offsets.
fn batches(bytes: &[u8]) -> Vec<(Range<usize>, Range<u64>)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let mut found = Vec::new();
    let mut at = 4096;
    while at + HEADER <= bytes.len() && word(at) != 0 {
        let end = at + word(at) as usize + 4;
        let base = long(at + 8);
        found.push((at..end, base..base + u64::from(word(at + 32))));
        at = end;
    }
    found
}

struct Case<'a> {
    whole: &'a MemoryFiles,
    records: &'a [Found],
    path: &'a Path,
}

impl Case<'_> {
    /// Flips each of the bits alone and passes the result of a start to `is_detected`.
    fn flip(
        &self,
        bits: impl Iterator<Item = usize>,
        lost: &Range<u64>,
        is_detected: impl Fn(&Result<Seen, OpenError>) -> bool,
    ) -> Counts {
        let mut counts = Counts::default();
        for bit in bits {
            let files = self.whole.copy();
            files.change(self.path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let seen = look(&files);
            counts.flips += 1;
            counts.detected += u64::from(is_detected(&seen));
            if let Ok(seen) = &seen {
                let expected = self.records.iter().filter(|(n, _)| !lost.contains(n));
                let is_right = seen.served.iter().eq(expected);
                counts.served += u64::from(!is_right);
                assert!(
                    is_right,
                    "bit {bit} of {}: {:?}",
                    self.path.display(),
                    seen.report
                );
            }
        }
        counts
    }
}

fn show(what: &str, counts: &Counts) {
    eprintln!(
        "{what}: {} flips, {} detected, {} served",
        counts.flips, counts.detected, counts.served
    );
    assert_eq!(
        (counts.detected, counts.served),
        (counts.flips, 0),
        "{what}"
    );
}

fn bits(range: Range<usize>, step: usize) -> impl Iterator<Item = usize> {
    (range.start * 8..range.end * 8).step_by(step)
}

fn all() -> (MemoryFiles, Vec<Found>, Vec<PathBuf>) {
    let files = stopped_log();
    let seen = look(&files.copy()).expect("it opens");
    assert_eq!((seen.served.len() as u64, seen.gaps), (COUNT, 0));
    let segments = files.with_suffix(".seg");
    assert!(segments.len() >= 3);
    (files, seen.served, segments)
}

#[test]
fn every_bit_flip_in_a_batch_is_detected_and_its_records_are_not_served() {
    let (files, records, segments) = all();
    for (what, path) in [
        ("sealed", &segments[0]),
        ("active", segments.last().expect("one")),
    ] {
        let case = Case {
            whole: &files,
            records: &records,
            path,
        };
        let bytes = files.bytes(path);
        let found = batches(&bytes);
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize;
        for (at, (place, offsets)) in found.iter().enumerate() {
            let is_found = |seen: &Result<Seen, OpenError>| {
                seen.as_ref()
                    .is_ok_and(|seen| seen.damaged == [offsets.clone()] && seen.gaps == 1)
            };
            let tables = place.start + HEADER;
            let clients = tables + word(place.start + 44);
            let entries = clients + word(place.start + 48);
            let extensions = entries + 40;
            let payloads = extensions + word(place.start + 52);
            let is_sample = at == 0 || at + 1 == found.len();
            let parts = [
                ("header", place.start..tables, 1),
                ("topics", tables..clients, 3),
                ("clients", clients..entries, 3),
                ("entries", entries..extensions, 3),
                ("extensions", extensions..payloads, 3),
                ("payloads", payloads..place.end, 211),
            ];
            for (part, range, step) in parts {
                let step = if is_sample { step } else { step * 29 };
                let counts = case.flip(bits(range, step), offsets, is_found);
                show(&format!("{what} segment, batch {at}, {part}"), &counts);
            }
        }
    }
}

#[test]
fn every_bit_flip_in_a_segment_header_is_detected_and_costs_no_record() {
    let (files, records, segments) = all();
    for path in [&segments[0], segments.last().expect("one")] {
        let case = Case {
            whole: &files,
            records: &records,
            path,
        };
        let is_noted = |seen: &Result<Seen, OpenError>| {
            let notes = |seen: &Seen| seen.report.notes.iter().any(|note| note.contains("header"));
            seen.as_ref().is_ok_and(notes)
        };
        let counts = case.flip(bits(0..72, 1).chain(bits(72..4096, 401)), &(0..0), is_noted);
        show("segment header", &counts);
    }
}

#[test]
fn every_bit_flip_in_an_index_is_detected_and_it_is_made_again() {
    let (files, records, _) = all();
    let path = &files.with_suffix(".idx")[0];
    let case = Case {
        whole: &files,
        records: &records,
        path,
    };
    let indexes = |seen: &Seen| seen.gaps == 0 && seen.index == files.bytes(path);
    let is_whole_again = |seen: &Result<Seen, OpenError>| seen.as_ref().is_ok_and(indexes);
    let length = files.bytes(path).len();
    let counts = case.flip(
        bits(0..128, 1).chain(bits(128..length, 3)),
        &(0..0),
        is_whole_again,
    );
    show("index", &counts);
}

#[test]
fn every_bit_flip_in_a_mark_is_detected_and_costs_no_record() {
    let (files, records, _) = all();
    let path = &files.with_suffix("/mark")[0];
    let case = Case {
        whole: &files,
        records: &records,
        path,
    };
    let is_noted = |seen: &Result<Seen, OpenError>| {
        let notes = |seen: &Seen| seen.report.notes.iter().any(|note| note.contains("mark"));
        seen.as_ref().is_ok_and(notes)
    };
    let length = files.bytes(path).len();
    show("mark", &case.flip(bits(0..length, 1), &(0..0), is_noted));
}

#[test]
fn every_bit_flip_in_log_meta_is_refused_by_name() {
    let (files, records, _) = all();
    let path = &files.with_suffix("log.meta")[0];
    let case = Case {
        whole: &files,
        records: &records,
        path,
    };
    let is_refused = |seen: &Result<Seen, OpenError>| {
        seen.as_ref()
            .err()
            .is_some_and(|error| error.to_string().contains("log.meta"))
    };
    let length = files.bytes(path).len();
    show(
        "log.meta",
        &case.flip(bits(0..length, 1), &(0..0), is_refused),
    );
}

/// The control: a flip that no checksum covers would be served, so the checks above can fail.
#[test]
fn a_change_that_a_checksum_covers_would_be_served_if_it_were_right() {
    let (files, records, segments) = all();
    let copy = files.copy();
    let (place, _) = batches(&files.bytes(&segments[0])).remove(0);
    let meta = String::from_utf8(files.bytes(&files.with_suffix("log.meta")[0])).expect("text");
    let id = meta.split("\"log_id\":\"").nth(1).expect("an id")[..36].replace('-', "");
    let id: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&id[at * 2..at * 2 + 2], 16).expect("hex"))
        .collect();
    copy.change(&segments[0], |bytes| {
        let secret = bytes[64..72].to_vec();
        bytes[place.end - 1] ^= 1;
        let crc = crc32c::crc32c(&bytes[place.start + 8..place.end]);
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &id), &0_u32.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &secret);
        bytes[place.start + 4..place.start + 8].copy_from_slice(&crc.to_le_bytes());
    });
    let seen = look(&copy).expect("it opens");
    assert_ne!(seen.served, records);
}
