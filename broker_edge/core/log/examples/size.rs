//! Makes a large log in little space and measures what its size costs: opening, the first append, seeking by time,
//! listing topics, reading a rare topic, scanning.
//!
//! `size make DIR GB` appends records of 1 KiB of zeros on 100,000 topics and ends without a clean stop; runs of zeros
//! become holes, so 50 GB take about 6. `size measure DIR` prints one figure a line.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headwater_log::{
    File, Files, LockError, LockGuard, Log, LogConfig, Offset, OpenMode, Partition, RecordMeta,
    Records, Seams, SyncMode, SystemClock, SystemFiles,
};

const TOPICS: u64 = 100_000;
const RECORD_BYTES: usize = 1 << 10;
/// Records of one append: about one batch.
const PER_APPEND: u64 = 3_900;
const RARE: &str = "devices/rare/telemetry";
const HOLE_BYTES: usize = 4 << 10;

static READ_BYTES: AtomicU64 = AtomicU64::new(0);
static READS: AtomicU64 = AtomicU64::new(0);

/// The system's files, but zeros are not written, and reads are counted.
struct SparseFiles;

struct SparseFile(Arc<dyn File>);

impl Files for SparseFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SystemFiles.list(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(SparseFile(SystemFiles.open(path, mode)?)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SystemFiles.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<LockGuard, LockError> {
        SystemFiles.lock(path)
    }
}

impl File for SparseFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let read = self.0.read_at(buffer, position)?;
        READ_BYTES.fetch_add(read as u64, Ordering::Relaxed);
        READS.fetch_add(1, Ordering::Relaxed);
        Ok(read)
    }

    /// Every place is written once, but for zeros before, so what is not written reads as zeros.
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let end = position + bytes.len() as u64;
        if self.0.len()? < end {
            self.0.set_len(end)?;
        }
        let mut at = 0;
        while at < bytes.len() {
            let aligned = HOLE_BYTES - (position as usize + at) % HOLE_BYTES;
            let piece = &bytes[at..(at + aligned).min(bytes.len())];
            if piece.iter().any(|byte| *byte != 0) {
                self.0.write_all_at(piece, position + at as u64)?;
            }
            at += piece.len();
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}

fn open(dir: &Path, sync: SyncMode) -> Log {
    let config = LogConfig {
        sync,
        ..LogConfig::new(dir)
    };
    let seams = Seams {
        files: Arc::new(SparseFiles),
        clock: Arc::new(SystemClock::new()),
    };
    let (log, report) = Log::open(config, seams).expect("the log opens");
    for partition in &report.partitions {
        if partition.rebuilt_indexes > 0 || !partition.gaps.is_empty() {
            say(
                "rebuilt indexes, gaps",
                &format!("{}, {}", partition.rebuilt_indexes, partition.gaps.len()),
            );
        }
    }
    log
}

fn telemetry(log: &Log) -> &Partition {
    log.by_name("telemetry-0").expect("a default partition")
}

fn push(records: &mut Records, topic: &str, payload: &[u8]) {
    let topic = records.topic(topic, 8..12).expect("fits");
    let client = if records.is_empty() {
        Some(records.client("size").expect("fits"))
    } else {
        None
    };
    let client = client.unwrap_or(headwater_log::ClientIndex(0));
    let mut meta = RecordMeta::new(topic, client, 1);
    // One device in a hundred keeps a retained status.
    meta.retain = topic.0.is_multiple_of(100);
    records.push(meta, payload).expect("fits");
}

fn make(dir: &Path, bytes: u64) {
    let log = open(dir, SyncMode::Never);
    let partition = telemetry(&log);
    let payload = vec![0; RECORD_BYTES];
    let (mut number, mut appended) = (0_u64, 0_u64);
    let total = bytes / RECORD_BYTES as u64;
    // The rare topic: at the beginning, in the middle and near the end.
    let mut rare: HashSet<u64> = [1, 5, 9]
        .iter()
        .map(|tenth| total / 10 * tenth / PER_APPEND)
        .collect();
    while number < total {
        let mut records = partition.take_records();
        if rare.remove(&(number / PER_APPEND)) {
            push(&mut records, RARE, &payload);
        }
        for _ in 0..PER_APPEND {
            // Jumps about, so that neighbours in a segment are not neighbours by name.
            push(
                &mut records,
                &format!("devices/{:06}/telemetry", number * 7919 % TOPICS),
                &payload,
            );
            number += 1;
        }
        while partition.queued_bytes() > 2 << 20 {
            std::thread::sleep(Duration::from_micros(200));
        }
        appended = partition.append(records).expect("there is space").end.0;
    }
    while partition.high_watermark() < Offset(appended) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Saves what the maintenance thread saves each second, then ends as if killed.
    partition.topics().expect("they are listed");
    log.maintain();
    std::process::abort();
}

fn measure(dir: &Path) {
    let start = Instant::now();
    let log = timed("open", || open(dir, SyncMode::Always));
    let partition = telemetry(&log);
    let mut records = Records::new();
    push(&mut records, "devices/000001/telemetry", b"first");
    let end = partition.append(records).expect("it runs").end;
    while partition.high_watermark() < end {
        std::thread::sleep(Duration::from_micros(100));
    }
    say(
        "open to first acknowledged append",
        &millis(start.elapsed()),
    );
    say("resident after that", &resident());
    let mut retained = 0_u64;
    timed("places of retained messages", || {
        for partition in log.partitions() {
            let mut count = |_: &str, _| retained += 1;
            partition
                .for_each_retained_offset(&mut count)
                .expect("they are listed");
        }
    });
    say("retained messages", &retained.to_string());
    let topics = timed("list of topics", || {
        partition.topics().expect("they are listed").len()
    });
    say("topics", &topics.to_string());
    say("resident with the list of topics", &resident());
    let (first, last) = (
        time_at(partition, partition.log_start()),
        time_at(partition, Offset(end.0 - 2)),
    );
    let middle = first + (last - first) / 2;
    let at = timed("seek by time", || {
        partition.offset_for_time(middle).expect("it is found")
    });
    say("offset found by time", &format!("{at} of {end}"));
    let seen = timed("read a rare topic in all of the log", || {
        read_topic(partition, end, &|topic| topic == RARE)
    });
    say("records of the rare topic", &seen.to_string());
    let seen = timed("read a topic that is not there", || {
        read_topic(partition, end, &|topic| topic == "devices/none/telemetry")
    });
    say("records of it", &seen.to_string());
    let bytes = timed("scan of 4 GB", || scan(partition, end, 4 << 30));
    say("bytes scanned", &bytes.to_string());
    say("resident at the end", &resident());
}

fn time_at(partition: &Partition, offset: Offset) -> i64 {
    partition.read(offset, 1).expect("it is there")[0].base_time_us()
}

fn read_topic(partition: &Partition, end: Offset, wanted: &dyn Fn(&str) -> bool) -> usize {
    let (mut next, mut seen) = (partition.log_start(), 0);
    while next < end {
        let (batches, scanned) = partition
            .read_matching(next, end, 4 << 20, wanted)
            .expect("it is read");
        seen += batches
            .iter()
            .flat_map(|batch| batch.records())
            .filter(|r| wanted(r.topic))
            .count();
        next = scanned;
    }
    seen
}

fn scan(partition: &Partition, end: Offset, bytes_max: u64) -> u64 {
    let (mut next, mut bytes) = (partition.log_start(), 0);
    while next < end && bytes < bytes_max {
        for batch in partition.read(next, 4 << 20).expect("it is read") {
            bytes += batch.bytes_len() as u64;
            next = batch.next_offset();
        }
    }
    bytes
}

fn timed<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let (bytes, reads) = (
        READ_BYTES.load(Ordering::Relaxed),
        READS.load(Ordering::Relaxed),
    );
    let start = Instant::now();
    let answer = f();
    let took = start.elapsed();
    let bytes = READ_BYTES.load(Ordering::Relaxed) - bytes;
    let reads = READS.load(Ordering::Relaxed) - reads;
    say(
        what,
        &format!(
            "{}, {:.1} MB in {reads} reads",
            millis(took),
            bytes as f64 / 1e6
        ),
    );
    answer
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.map_or("unknown", |line| line[6..].trim()).to_owned()
}

#[allow(clippy::print_stdout)]
fn say(what: &str, figure: &str) {
    println!("{what:<40} {figure}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["make", dir, gigabytes] => {
            let gigabytes: u64 = gigabytes.parse().expect("a number of gigabytes");
            make(Path::new(dir), gigabytes * 1_000_000_000);
        }
        ["measure", dir] => measure(Path::new(dir)),
        _ => {
            say("usage", "size make DIR GB | size measure DIR");
            std::process::exit(2);
        }
    }
}
