//! A publisher that knows the log id and the partition puts a forged batch into a payload. Recovery never accepts it as
//! a batch.

use std::fs;
use std::path::Path;

use crate::support::segment::batches;
use crate::support::*;
use headwater_log::{LogConfig, LogId, Offset, Seams};

/// The number of the telemetry partition in these tests.
const PARTITION: u32 = 1;
const SECTOR: usize = 512;
/// The offset of the forged batch: later than the record that contains it.
const LATER: u64 = 5;
const FORGED: &[u8] = b"never published";

/// Makes a batch for a payload, of the log id and the secret.
type Forge<'a> = &'a dyn Fn(LogId, &[u8]) -> Vec<u8>;

fn segment(dir: &Path) -> Vec<u8> {
    fs::read(&files_of(dir, ".seg")[0]).expect("a segment")
}

/// A batch at offset `LATER` as another log with the same id writes it.
fn batch_of_a_log_with_the_same_id(id: LogId) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let config = LogConfig {
        expected_id: Some(id),
        ..config(dir.path())
    };
    let log = open_with(config, Seams::system());
    for _ in 0..=LATER {
        append(telemetry(&log), &[FORGED]);
    }
    let bytes = segment(dir.path());
    let place = batches(&bytes)[LATER as usize].clone();
    bytes[place].to_vec()
}

fn sealed_with(mut batch: Vec<u8>, id: LogId, secret: &[u8]) -> Vec<u8> {
    let checksum = crc32c::crc32c(&batch[8..]);
    let checksum = crc32c::crc32c_append(checksum, id.as_bytes());
    let checksum = crc32c::crc32c_append(checksum, &PARTITION.to_le_bytes());
    let checksum = crc32c::crc32c_append(checksum, secret);
    batch[4..8].copy_from_slice(&checksum.to_le_bytes());
    batch
}

/// The records served after a power cut that tore the header of the batch at offset 2. Its payload is the result of
/// `forge` for the log id and the secret. `followed` says whether another record was written after it.
fn served(forge: Forge<'_>, followed: bool) -> Vec<Found> {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open(dir.path());
    append(telemetry(&log), &["first"]);
    append(telemetry(&log), &["second"]);
    let mut payload = vec![b'.'; 3 * SECTOR];
    payload.extend(forge(log.id(), &segment(dir.path())[64..72]));
    append(telemetry(&log), &[payload]);
    if followed {
        append(telemetry(&log), &["fourth"]);
    }
    log.shutdown();
    drop(log);
    fs::remove_file(dir.path().join("telemetry-0/mark")).expect("a mark");
    let mut bytes = segment(dir.path());
    let torn = batches(&bytes)[2].start;
    bytes[torn..torn + SECTOR].fill(0);
    fs::write(&files_of(dir.path(), ".seg")[0], bytes).expect("written");
    read_from(telemetry(&open(dir.path())), Offset(0)).0
}

fn offsets(found: &[Found]) -> Vec<u64> {
    found.iter().map(|(offset, _)| *offset).collect()
}

#[test]
fn a_batch_forged_with_the_public_log_id_is_never_served() {
    let forgeries: [Forge<'_>; 3] = [
        &|id, _| sealed_with(batch_of_a_log_with_the_same_id(id), id, &[]),
        &|id, _| sealed_with(batch_of_a_log_with_the_same_id(id), id, &[0; 8]),
        &|id, _| batch_of_a_log_with_the_same_id(id),
    ];
    for forge in forgeries {
        assert_eq!(offsets(&served(forge, false)), [0, 1]);
        assert_eq!(offsets(&served(forge, true)), [0, 1, 3]);
    }
}

/// Negative control: only the secret keeps the batch out.
#[test]
fn the_same_batch_made_with_the_secret_would_be_taken() {
    let forge =
        |id: LogId, secret: &[u8]| sealed_with(batch_of_a_log_with_the_same_id(id), id, secret);
    let found = served(&forge, false);
    assert_eq!(found.last(), Some(&(LATER, FORGED.to_vec())));
}
