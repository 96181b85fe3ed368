//! Reads of single records give what reads of many give, also where the position of their batch is known from before.

use std::path::{Path, PathBuf};

use crate::support::memory::MemoryFiles;
use crate::support::*;
use headwater_log::{
    Batch, Log, LogConfig, Offset, Partition, ReadError, Records, Seams, UniqueAppend,
};

/// Nothing in memory but the positions of batches.
fn bare(dir: &Path) -> LogConfig {
    LogConfig {
        tail_bytes: 0,
        ..config(dir)
    }
}

/// The batch that holds a record, and the number of the record in it.
fn read_one(partition: &Partition, offset: u64) -> Result<(Batch, usize), ReadError> {
    let batches = partition.read(Offset(offset), 1)?;
    assert_eq!(batches.len(), 1, "of {offset}");
    let index = offset - batches[0].base_offset().0;
    Ok((batches[0].clone(), index as usize))
}

/// Batches of one record, of many small ones and of some large ones, over several segments.
fn fill(log: &Log) -> u64 {
    let partition = telemetry(log);
    let mut next = 0_u64;
    for round in 0..12_usize {
        for (count, bytes) in [(1, 300), (200, 60), (20, 1500), (3, 0)] {
            let payload = |n: usize| format!("{round}/{n} ").repeat(bytes).into_bytes();
            let payloads: Vec<Vec<u8>> = (0..count)
                .map(|n| payload(n).into_iter().take(bytes).collect())
                .collect();
            append(partition, &payloads);
            next += count as u64;
        }
    }
    next
}

fn assert_single_reads_are_right(log: &Log, count: u64) {
    let partition = telemetry(log);
    let all = read_all(partition);
    assert_eq!(all.len() as u64, count);
    // Twice, so that what the first read has kept is used; and backwards, so that batches are met in their middle.
    for (offset, payload) in all.iter().rev().chain(&all) {
        let (batch, index) = read_one(partition, *offset).expect("it is there");
        let view = batch.record(index);
        assert_eq!(view.offset.0, *offset);
        assert_eq!(view.payload, payload, "at {offset}");
        assert_eq!(batch.payload(index), payload, "at {offset}");
        assert_eq!((view.topic, view.key), ("devices/1/telemetry", &b"1"[..]));
        assert_eq!((view.client_id, view.qos), ("1", 1));
        assert_eq!(view.epoch, partition.epoch());
    }
    let at_the_end = partition.read(Offset(count), 1).expect("nothing yet");
    assert!(at_the_end.is_empty());
    let error = partition.read(Offset(count + 1), 1).err();
    assert!(matches!(error, Some(ReadError::OutOfRange { .. })));
}

#[test]
fn a_single_record_is_what_its_batch_says_whatever_is_kept_of_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(bare(dir.path()), Seams::system());
    let count = fill(&log);
    assert!(files_of(dir.path(), ".seg").len() > 3);
    assert_single_reads_are_right(&log, count);
    let log_in_memory = open_with(config(Path::new("/data")), MemoryFiles::default().seams());
    let count = fill(&log_in_memory);
    assert_single_reads_are_right(&log_in_memory, count);
}

/// A log with one large batch in a sealed segment, opened again; and the file of that segment.
fn with_a_large_batch(files: &MemoryFiles) -> (Log, PathBuf) {
    let config = || bare(Path::new("/data"));
    let log = open_with(config(), files.seams());
    let payloads: Vec<Vec<u8>> = (0..40).map(|n| vec![n; 1000]).collect();
    append(telemetry(&log), &payloads);
    append(telemetry(&log), &payloads);
    log.shutdown();
    drop(log);
    let path = PathBuf::from("/data/telemetry-0/00000000000000000000.seg");
    (open_with(config(), files.seams()), path)
}

#[test]
fn i4_a_batch_that_changed_since_it_was_checked_is_not_served() {
    let files = MemoryFiles::default();
    let (log, path) = with_a_large_batch(&files);
    let partition = telemetry(&log);
    read_one(partition, 3).expect("whole");
    files.change(&path, |bytes| {
        let is_payload = |window: &[u8]| window.iter().all(|byte| *byte == 7);
        let at = bytes.windows(1000).position(is_payload);
        bytes[at.expect("the payload of record 7") + 500] ^= 4;
    });
    let error = read_one(partition, 7).err();
    assert!(
        matches!(&error, Some(ReadError::Damaged { range }) if range.contains(&Offset(7))),
        "{error:?}"
    );
    // The whole batch is reported as lost, so no part of it is served any more.
    let lost = partition.gaps();
    assert_eq!(
        (lost[0].range.start, lost[0].range.end),
        (Offset(0), Offset(40))
    );
    let error = read_one(partition, 3).err();
    assert!(
        matches!(error, Some(ReadError::Damaged { .. })),
        "{error:?}"
    );
    assert!(read_one(partition, 40).is_ok());
}

#[test]
fn repeats_of_a_large_batch_read_it_once() {
    const RECORDS: usize = 40;
    let files = MemoryFiles::default();
    let config = || bare(Path::new("/data"));
    let repeated = || {
        let mut records = Records::new();
        for n in 0..RECORDS {
            add_keyed(&mut records, &n.to_string(), &[7; 1000]);
        }
        records
    };
    let log = open_with(config(), files.seams());
    let first = telemetry(&log).append_unique(repeated()).expect("taken");
    assert!(first.iter().all(|append| !append.duplicate));
    log.shutdown();
    drop(log);
    let log = open_with(config(), files.seams());
    let before = files.segment_bytes_read();
    let again = telemetry(&log).append_unique(repeated()).expect("taken");
    let read = files.segment_bytes_read() - before;
    assert!(again.iter().all(|append| append.duplicate));
    let offsets = |appends: &[UniqueAppend]| appends.iter().map(|of| of.offset).collect::<Vec<_>>();
    assert_eq!(offsets(&again), offsets(&first));
    assert!(
        read < 2 * 1000 * RECORDS as u64,
        "{read} bytes for one batch"
    );
}
