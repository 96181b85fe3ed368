//! A batch is valid only when its epoch is not below that of the batch before it.

use std::path::Path;

use crate::support::memory::MemoryFiles;
use crate::support::segment::batches;
use crate::support::sim::SimFiles;
use crate::support::*;
use headwater_log::{Epoch, Log, LogConfig, Offset, OpenError};

const SEGMENT: &str = "/data/telemetry-0/00000000000000000000.seg";
/// The number of the telemetry partition in these tests.
const PARTITION: u32 = 1;

/// Records of two starts, followed by a batch that is correct except perhaps for its epoch.
fn followed_by(epoch: u64) -> SimFiles {
    let files = SimFiles::new(1);
    for text in ["of the first start", "of the second"] {
        let log = open_with(config(Path::new("/data")), files.seams());
        append(telemetry(&log), &[text]);
        files.kill();
        drop(log);
    }
    files.with_bytes(Path::new(SEGMENT), |bytes| {
        let found = batches(bytes);
        let (first, end) = (found[0].clone(), found[1].end);
        let mut batch = bytes[first].to_vec();
        batch[8..16].copy_from_slice(&2_u64.to_le_bytes());
        batch[16..24].copy_from_slice(&epoch.to_le_bytes());
        let checksum = crc32c::crc32c(&batch[8..]);
        let checksum = crc32c::crc32c_append(checksum, &bytes[16..32]);
        let checksum = crc32c::crc32c_append(checksum, &PARTITION.to_le_bytes());
        let checksum = crc32c::crc32c_append(checksum, &bytes[64..72]);
        batch[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes.resize(bytes.len().max(end + batch.len()), 0);
        bytes[end..end + batch.len()].copy_from_slice(&batch);
    });
    files
}

fn records_after(files: &SimFiles) -> usize {
    let log = open_with(config(Path::new("/data")), files.seams());
    read_all(telemetry(&log)).len()
}

#[test]
fn a_batch_of_an_earlier_epoch_does_not_follow_one_of_a_later() {
    assert_eq!(records_after(&followed_by(1)), 2);
}

/// Negative control: only the epoch keeps the batch out.
#[test]
fn the_same_batch_with_the_epoch_of_the_one_before_it_is_taken() {
    assert_eq!(records_after(&followed_by(2)), 3);
}

/// By it, the next epoch could be one that existing records already have.
#[test]
fn a_log_meta_that_is_older_than_the_records_is_refused() {
    for is_damaged in [false, true] {
        let files = SimFiles::new(2);
        let meta = Path::new("/data/log.meta");
        let mut older = Vec::new();
        for text in ["of the first start", "of the second"] {
            let log = open_with(config(Path::new("/data")), files.seams());
            append(telemetry(&log), &[text]);
            append(telemetry(&log), &[text]);
            files.kill();
            drop(log);
            if older.is_empty() {
                older = files.bytes(meta);
            }
        }
        files.put(meta, &older);
        if is_damaged {
            // The first record of the second start; the other one follows it.
            files.with_bytes(Path::new(SEGMENT), |bytes| {
                let end = batches(bytes)[2].end;
                bytes[end - 1] ^= 1;
            });
        }
        let refused = Log::open(config(Path::new("/data")), files.seams());
        let error = refused.err().expect("refused");
        assert!(
            matches!(&error, OpenError::Damaged { path, .. } if path == meta),
            "{error}"
        );
        assert!(error.to_string().contains("older"), "{error}");
    }
}

/// Each start makes the head of an index longer, until one read does not cover it.
#[test]
fn the_index_of_a_segment_of_many_starts_is_used_as_it_is() {
    let files = MemoryFiles::default();
    let config = || LogConfig {
        segment_bytes: 64 << 10,
        ..with_room()
    };
    let start = || Log::open(config(), files.seams()).expect("the log opens");
    let starts = 60;
    for n in 0..starts {
        let (log, _) = start();
        append(telemetry(&log), &[format!("of start {n}")]);
        log.shutdown();
    }
    let (log, _) = start();
    append(telemetry(&log), &[vec![1; 40 << 10]]);
    append(telemetry(&log), &[vec![2; 40 << 10]]);
    log.maintain();
    log.shutdown();
    let indexes = files.with_suffix(".idx");
    assert_eq!(indexes.len(), 1, "one segment is sealed");
    let (log, report) = start();
    for partition in &report.partitions {
        assert_eq!(partition.rebuilt_indexes, 0, "{partition:?}");
    }
    let before = |offset| telemetry(&log).epoch_before(offset).expect("known");
    assert_eq!(before(Offset(starts)), Some(Epoch(starts)));
    log.shutdown();

    // A truncated head is invalid.
    files.change(&indexes[0], |bytes| bytes.truncate(600));
    let (log, report) = start();
    assert_eq!(report.partitions[1].rebuilt_indexes, 1);
    assert_eq!(read_all(telemetry(&log)).len() as u64, starts + 2);
}
