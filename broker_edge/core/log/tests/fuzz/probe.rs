//! Opens a damaged data folder and runs every query. Nothing may panic or loop forever, and two starts must give the
//! same results.

use headwater_log::{Batch, Log, Offset, OpenError, Partition, ReadError};

use crate::image::{Image, fuzz_config};
use crate::support::sim::SimFiles;
use crate::support::{append, records};

/// More than any of these folders needs, to detect endless loops.
const CALLS_MAX: u64 = 40_000;
const READS_MAX: usize = 4_000;

/// What can be read of a partition: offset, epoch, length and checksum of each payload.
type Shown = Vec<(u64, u64, usize, u32)>;

/// Whether the log opened.
pub fn probe(image: &Image) -> bool {
    let files = image.computer();
    files.limit_calls(CALLS_MAX);
    let Ok(shown) = open(&files, None) else {
        return false;
    };
    files.power_cut();
    files.limit_calls(CALLS_MAX);
    match open(&files, Some(&shown)) {
        Ok(_) => {}
        // An epoch from the future that only an index had hidden: then `log.meta` must be wrong.
        Err(OpenError::Damaged { reason, .. }) if reason.contains("it is older than") => {}
        Err(error) => panic!("it opened once and does not open again: {error}"),
    }
    true
}

/// Everything that a start shows, after comparing it with an earlier start. `None` when the folder is refused.
fn open(files: &SimFiles, earlier: Option<&[Shown]>) -> Result<Vec<Shown>, OpenError> {
    let (log, report) = Log::open(fuzz_config(), files.seams())?;
    assert_eq!(report.partitions.len(), log.partitions().len());
    let mut shown: Vec<Shown> = log.partitions().iter().map(read).collect();
    if let Some(earlier) = earlier {
        for (now, before) in shown.iter().zip(earlier) {
            // A wrong index may have hidden records or shown too few, but no record may change.
            for record in before {
                if let Ok(at) = now.binary_search_by_key(&record.0, |record| record.0) {
                    assert_eq!(now[at], *record, "a later start shows something else");
                }
            }
        }
    }
    for (partition, shown) in log.partitions().iter().zip(&mut shown) {
        ask(partition);
        // Close to the largest offset, there is no room for appends.
        if partition.high_watermark().0 < 1 << 60 {
            append(partition, &[b"goes on"]);
            *shown = read(partition);
            assert!(!shown.is_empty());
        }
    }
    log.maintain();
    drop(log);
    Ok(shown)
}

/// Reads from the log start to the high watermark, across all damage.
fn read(partition: &Partition) -> Shown {
    let (mut next, mut shown) = (partition.log_start(), Vec::new());
    for _ in 0..READS_MAX {
        if next >= partition.high_watermark() {
            return shown;
        }
        next = match partition.read(next, 64 << 10) {
            Ok(batches) => {
                for record in batches.iter().flat_map(Batch::records) {
                    let _ = (record.key, record.properties, record.client_id);
                    record.headers.for_each(drop);
                    if record.offset >= next {
                        let checksum = crc32c::crc32c(record.payload);
                        shown.push((
                            record.offset.0,
                            record.epoch.0,
                            record.payload.len(),
                            checksum,
                        ));
                    }
                }
                batches.last().expect("progress").next_offset()
            }
            Err(ReadError::Damaged { range }) => {
                assert!(range.end > next, "{range:?} does not lead on from {next}");
                range.end
            }
            Err(error) => panic!("{error}"),
        };
    }
    panic!("{READS_MAX} reads and no end at {next}");
}

/// All other queries; their answers only have to be consistent.
fn ask(partition: &Partition) {
    let (start, end) = (partition.log_start(), partition.high_watermark());
    for topic in ["devices/3/telemetry", "none"] {
        let mut next = start;
        for _ in 0..READS_MAX {
            if next >= end {
                break;
            }
            let wanted = &|name: &str| name == topic;
            next = match partition.read_matching(next, end, 4096, wanted) {
                Ok((_, scanned)) => {
                    assert!(scanned > next);
                    scanned
                }
                Err(ReadError::Damaged { range }) => range.end,
                Err(error) => panic!("{error}"),
            };
        }
        assert!(next >= end, "no end");
    }
    for time in [
        i64::MIN,
        -1,
        0,
        crate::support::machine::START_US + 20_000,
        i64::MAX,
    ] {
        let offset = partition.offset_for_time(time).expect("an offset");
        assert!(offset >= start && offset <= end);
    }
    for at in [start, Offset(start.0 / 2 + end.0 / 2), end] {
        let _ = partition.epoch_before(at);
    }
    for topic in partition.topics().expect("topics") {
        assert!(topic.first < topic.next && topic.first >= start && topic.next <= end);
    }
    partition
        .for_each_retained(&mut |record| assert!(record.offset < end))
        .expect("retained records");
    let _ = (partition.gaps(), partition.size_bytes());
    for key in ["key 0", "key 4", "none"] {
        if partition.high_watermark().0 < 1 << 60 {
            let mut keyed = records::<&[u8]>(1, &[]);
            let topic = keyed.topic("devices/1/telemetry", 8..9).expect("room");
            let client = keyed.client("c").expect("room");
            let meta = headwater_log::RecordMeta {
                idempotency_key: Some(key),
                ..headwater_log::RecordMeta::new(topic, client, 1)
            };
            keyed.push(meta, b"unique").expect("room");
            let placed = partition.append_unique(keyed).expect("placed");
            assert_eq!(placed.len(), 1);
        }
    }
}
