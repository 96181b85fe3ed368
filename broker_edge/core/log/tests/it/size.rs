//! The cost of a large log depends on the queries, not on its size. Cost is counted in bytes read, never in time.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::watched::{Watcher, watched};
use crate::support::*;
use headwater_log::{
    Class, ClassConfig, Log, LogConfig, Offset, RecordMeta, Records, RetainedOffset, Seams,
    SyncMode,
};

const TOPICS: u64 = 2_000;
const RARE: &str = "devices/rare/telemetry";
const SEGMENT_BYTES: u64 = 1 << 20;

/// The system's files, with the bytes read from segments and from other files counted.
#[derive(Default)]
struct ReadBytes {
    segment_bytes: AtomicU64,
    other_bytes: AtomicU64,
    /// Position and length of announced reads.
    hints: Mutex<Vec<(u64, u64)>>,
}

impl ReadBytes {
    /// Bytes read from segments and from other files while `f` ran.
    fn during<T>(&self, f: impl FnOnce() -> T) -> (T, u64, u64) {
        let of = || {
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            (load(&self.segment_bytes), load(&self.other_bytes))
        };
        let before = of();
        let answer = f();
        let after = of();
        (answer, after.0 - before.0, after.1 - before.1)
    }
}

impl Watcher for ReadBytes {
    fn has_read(&self, path: &Path, bytes: usize) {
        let is_segment = path.extension().is_some_and(|suffix| suffix == "seg");
        let count = if is_segment {
            &self.segment_bytes
        } else {
            &self.other_bytes
        };
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    fn will_read(&self, _path: &Path, position: u64, bytes: u64) {
        self.hints.lock().expect("no panic").push((position, bytes));
    }
}

fn settings(dir: &Path) -> LogConfig {
    LogConfig {
        sync: SyncMode::Never,
        segment_bytes: SEGMENT_BYTES,
        tail_bytes: 0,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..LogConfig::new(dir)
    }
}

/// Appends batches of 100 records of 1,000 bytes; the rare topic is in every hundredth batch, with the retain flag.
fn fill(log: &Log, batches: u64) {
    let partition = telemetry(log);
    let payload = [7; 1000];
    for batch in 0..batches {
        let mut records = Records::new();
        let client = records.client("c").expect("room");
        let mut push = |topic: &str, retain: bool, payload: &[u8]| {
            let topic = records.topic(topic, 8..12).expect("room");
            let mut meta = RecordMeta::new(topic, client, 1);
            meta.retain = retain;
            records.push(meta, payload).expect("room");
        };
        if batch % 100 == 50 {
            push(RARE, true, b"rare");
        }
        for n in 0..100 {
            let number = (batch * 100 + n) * 7 % TOPICS;
            push(&format!("devices/{number:04}/telemetry"), false, &payload);
        }
        let range = partition.append(records).expect("taken");
        await_durable(partition, range.end);
    }
    // Indexes and the list of topics, which the maintenance thread saves each second.
    partition.topics().expect("topics");
    log.maintain();
}

fn append_on(log: &Log, topic: &str) {
    let mut records = Records::new();
    let topic = records.topic(topic, 0..1).expect("room");
    let client = records.client("c").expect("room");
    records
        .push(RecordMeta::new(topic, client, 1), b"x")
        .expect("room");
    let range = telemetry(log).append(records).expect("taken");
    await_durable(telemetry(log), range.end);
}

fn read_topic(log: &Log, wanted: &dyn Fn(&str) -> bool) -> Vec<Offset> {
    let partition = telemetry(log);
    let (mut next, end, mut found) = (
        partition.log_start(),
        partition.high_watermark(),
        Vec::new(),
    );
    while next < end {
        let (batches, scanned) = partition
            .read_matching(next, end, 1 << 20, wanted)
            .expect("a read");
        let records = batches.iter().flat_map(|batch| batch.records());
        found.extend(
            records
                .filter(|record| wanted(record.topic))
                .map(|record| record.offset),
        );
        next = scanned;
    }
    found
}

/// Bytes of segments and of other files that opening the log and listing topics and retained messages read.
fn bytes_to_start(dir: &Path, lost_indexes: usize) -> (u64, u64) {
    let files = Arc::new(ReadBytes::default());
    let ((), segments, others) = files.during(|| {
        let (log, report) = Log::open(settings(dir), watched(&files)).expect("it opens");
        assert_eq!(report.partitions[0].rebuilt_indexes, lost_indexes);
        let mut retained = Vec::new();
        let mut keep =
            |topic: &str, place: RetainedOffset| retained.push((topic.to_owned(), place));
        let partition = telemetry(&log);
        partition
            .for_each_retained_offset(&mut keep)
            .expect("places");
        assert_eq!(retained.len(), 1);
        assert_eq!(retained[0].0, RARE);
        assert_eq!(partition.topics().expect("topics").len() as u64, TOPICS + 1);
    });
    (segments, others)
}

#[test]
fn a_start_reads_the_last_segment_and_a_little_of_each_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 120);
    drop(log);
    let (small, small_others) = bytes_to_start(dir.path(), 0);
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 360);
    let sealed = std::fs::read_dir(dir.path().join("telemetry-0"))
        .expect("a folder")
        .filter(|entry| {
            entry
                .as_ref()
                .is_ok_and(|e| e.path().extension().is_some_and(|s| s == "idx"))
        })
        .count() as u64;
    drop(log);
    assert!(sealed > 40);
    let (large, large_others) = bytes_to_start(dir.path(), 0);
    // The active segment is read at most twice; of each other segment only its header and the header of its last batch
    // are read.
    let bound = 2 * SEGMENT_BYTES + 8192 * sealed;
    assert!(large < bound, "{large} bytes of segments, bound {bound}");
    assert!(small < bound);
    // Four times the segments with the same topics: the list of topics is read once, not once per segment.
    let bound = small_others * 2 + 1024 * sealed;
    assert!(
        large_others < bound,
        "{large_others} bytes of indexes after {small_others}"
    );
}

/// Indexes are not synced, so after a power cut the file of an index that the list of topics was made from may be lost
/// or empty.
#[test]
fn an_index_that_is_lost_does_not_make_a_start_read_the_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 480);
    drop(log);
    let folder = dir.path().join("telemetry-0");
    let (_, whole) = bytes_to_start(dir.path(), 0);
    let mut indexes: Vec<_> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("a name").path())
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "idx"))
        .collect();
    indexes.sort();
    assert!(indexes.len() > 40);
    std::fs::remove_file(&indexes[7]).expect("it is there");
    std::fs::write(&indexes[30], b"").expect("room");
    let (_, after_loss) = bytes_to_start(dir.path(), 2);
    assert!(
        after_loss <= whole,
        "{after_loss} bytes of indexes after {whole}"
    );
    // Without the list, all indexes are read after the start, and the reader releases them at once.
    let list = folder.join("topics");
    std::fs::remove_file(&list).expect("it is there");
    let log = open_with(settings(dir.path()), Seams::system());
    telemetry(&log).topics().expect("topics");
    await_that("the list is written again", || {
        log.maintain();
        list.exists()
    });
}

#[test]
fn a_single_record_of_a_block_that_is_known_costs_its_batch() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = Arc::new(ReadBytes::default());
    let log = open_with(settings(dir.path()), watched(&files));
    let partition = telemetry(&log);
    for number in 0..200_u64 {
        let mut records = Records::new();
        let topic = records.topic("devices/1/telemetry", 8..9).expect("room");
        let client = records.client("c").expect("room");
        let payload = [number as u8; 1000];
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, &payload).expect("room");
        let end = partition.append(records).expect("taken").end;
        await_durable(partition, end);
    }
    let read = |number: u64| {
        let batches = partition.read(Offset(number), 1).expect("a read");
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].base_offset(), Offset(number));
        assert_eq!(batches[0].payload(0), [number as u8; 1000]);
    };
    let read_all = || (0..200).for_each(read);
    let ((), first, _) = files.during(read_all);
    let ((), again, _) = files.during(read_all);
    let bytes = 200 * 1200;
    assert!(again < bytes, "{again} bytes after {first}");
    // Stored positions are not trusted: a batch that is damaged by now is found to be damaged.
    let path = dir.path().join("telemetry-0/00000000000000000000.seg");
    let mut segment = std::fs::read(&path).expect("it is there");
    let at = segment
        .windows(8)
        .position(|window| window == [50; 8])
        .expect("record 50");
    segment[at] ^= 1;
    std::fs::write(&path, &segment).expect("room");
    read(49);
    assert!(partition.read(Offset(50), 1).is_err());
    read(51);
}

#[test]
fn what_is_said_to_be_read_soon_is_asked_of_the_disk_and_not_read() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let files = Arc::new(ReadBytes::default());
    let (log, _) = Log::open(settings(dir.path()), watched(&files)).expect("a new log");
    fill(&log, 30);
    let partition = telemetry(&log);
    let hints_of = |from: Offset, bytes: u64| {
        let ((), segments, _) = files.during(|| partition.will_read(from, bytes));
        assert_eq!(segments, 0, "{from}");
        std::mem::take(&mut *files.hints.lock().expect("no panic"))
    };
    let end = partition.high_watermark();
    let first = partition.read(Offset(0), 1).expect("a read");
    let begin = hints_of(Offset(0), 64 << 10);
    let [(position, bytes)] = begin[..] else {
        panic!("{begin:?}");
    };
    assert!(position <= 4096, "where the first batch lies");
    assert_eq!(bytes, 64 << 10);
    let second = hints_of(first[0].next_offset(), 64 << 10);
    assert_eq!(second.len(), 1);
    assert!(second[0].0 > position, "{second:?}");
    assert!(
        hints_of(Offset(0), 1 << 40)[0].1 <= SEGMENT_BYTES,
        "of one segment"
    );
    let last = hints_of(Offset(end.0 - 1), 1 << 40);
    assert!(last[0].1 <= SEGMENT_BYTES && last[0].1 > 0, "{last:?}");
    assert_eq!(hints_of(end, 1 << 20), [], "nothing is there");
    assert_eq!(hints_of(Offset(end.0 + 1), 1 << 20), []);
    log.shutdown();
}

#[test]
fn a_rare_topic_costs_the_blocks_that_hold_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 300);
    drop(log);
    let files = Arc::new(ReadBytes::default());
    let log = open_with(settings(dir.path()), watched(&files));
    telemetry(&log).topics().expect("topics");
    let (found, segments, _) = files.during(|| read_topic(&log, &|topic| topic == RARE));
    assert_eq!(
        found,
        [
            Offset(50 * 100),
            Offset(150 * 100 + 1),
            Offset(250 * 100 + 2)
        ]
    );
    // Three blocks and the active segment, which has no index yet.
    let bound = 3 * (256 << 10) + 2 * SEGMENT_BYTES;
    assert!(segments < bound, "{segments} bytes for three records");
    let (found, nothing, _) = files.during(|| read_topic(&log, &|topic| topic == "devices/none"));
    assert!(found.is_empty());
    assert!(nothing < 2 * SEGMENT_BYTES, "{nothing} bytes for no record");
    // The control: reading everything costs everything.
    let (found, all, _) = files.during(|| read_topic(&log, &|_| true));
    assert_eq!(found.len(), 30_003);
    assert!(all > 30_000_000, "{all} bytes for all records");
}

#[test]
fn reads_of_the_only_topic_do_not_look_for_it_in_the_indexes() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = Arc::new(ReadBytes::default());
    let settings = LogConfig {
        maintain_every: None,
        ..settings(dir.path())
    };
    let log = open_with(settings, watched(&files));
    for _ in 0..30 {
        append(telemetry(&log), &[vec![7; 100_000]]);
    }
    telemetry(&log).topics().expect("topics");
    log.maintain();
    assert!(files_of(dir.path(), ".idx").len() > 1);
    let read = || assert_eq!(read_topic(&log, &|_| true).len(), 30);
    read();
    let ((), segments, others) = files.during(read);
    assert!(segments > 3_000_000);
    assert_eq!(others, 0, "bytes of indexes that were open");
}

/// The indexes are larger than a single read, and a segment is read only if its index is damaged.
#[test]
fn the_topics_of_large_indexes_are_told_without_their_segments() {
    let dir = tempfile::tempdir().expect("a folder");
    let settings = || LogConfig {
        segment_bytes: 4 << 20,
        maintain_every: None,
        ..settings(dir.path())
    };
    let log = open_with(settings(), Seams::system());
    for n in 0..120 {
        let topic = format!("{n:03}/{}", "x".repeat(50_000));
        append_on(&log, &topic);
    }
    let topics = telemetry(&log).topics().expect("topics");
    assert_eq!(topics.len(), 120);
    log.maintain();
    drop(log);
    let list = dir.path().join("telemetry-0/topics");
    assert!(!list.exists(), "so few segments have no list of topics yet");
    let indexes = files_of(dir.path(), ".idx");
    let lengths = indexes
        .iter()
        .map(|path| std::fs::metadata(path).expect("there").len());
    let index_bytes: u64 = lengths.sum();
    assert!(index_bytes > 2 << 20, "{index_bytes} bytes of indexes");
    let files = Arc::new(ReadBytes::default());
    let log = open_with(settings(), watched(&files));
    let (again, segments, others) = files.during(|| telemetry(&log).topics().expect("topics"));
    assert_eq!(again, topics);
    assert!(segments < 1000, "{segments} bytes of segments");
    let bound = index_bytes + index_bytes / 10;
    assert!(others < bound, "{others} bytes of {index_bytes} of indexes");
}

#[test]
fn a_list_of_topics_that_is_missing_or_of_other_indexes_is_made_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = open_with(settings(dir.path()), Seams::system());
    fill(&log, 120);
    let topics = telemetry(&log).topics().expect("topics");
    drop(log);
    let list = dir.path().join("telemetry-0/topics");
    let whole = std::fs::read(&list).expect("it is there");
    for change in 0..4 {
        let mut bytes = whole.clone();
        match change {
            0 => bytes.clear(),
            1 => bytes.truncate(whole.len() / 2),
            // The checksum of an index from which the list was made.
            2 => bytes[52] ^= 1,
            _ => bytes[whole.len() - 5] ^= 1,
        }
        if change == 2 {
            let checksum = crc32c::crc32c(&bytes[16..]);
            bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        }
        std::fs::write(&list, &bytes).expect("written");
        let log = open_with(settings(dir.path()), Seams::system());
        assert_eq!(
            telemetry(&log).topics().expect("topics"),
            topics,
            "change {change}"
        );
        log.maintain();
        assert_eq!(
            std::fs::read(&list).expect("it is there").len(),
            whole.len()
        );
    }
}
