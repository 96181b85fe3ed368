//! Shared helpers of the log's tests: settings for small logs, records, waiting for durability.

pub mod machine;
pub mod memory;
pub mod reference;
pub mod script;
pub mod segment;
pub mod settings;
pub mod sim;
pub mod watched;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_log::{
    Batch, Class, ClassConfig, Clock, Log, LogConfig, Offset, Partition, PartitionReport,
    PartitionState, ReadError, RecordMeta, Records, Seams, SystemClock,
};

/// Offset and payload of a record.
pub type Found = (u64, Vec<u8>);

pub const PATIENCE: Duration = Duration::from_secs(60);

/// One control and one telemetry partition with small segments.
pub fn config(dir: &Path) -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        classes: vec![
            ClassConfig::new(Class::Control),
            ClassConfig::new(Class::Telemetry),
        ],
        ..LogConfig::new(dir)
    }
}

/// The same, with reads that come from the files.
pub fn without_tail(dir: &Path) -> LogConfig {
    LogConfig {
        tail_bytes: 0,
        ..config(dir)
    }
}

/// One partition of this class on a simulated disk, without maintenance.
pub fn with_class(class: ClassConfig, segment_bytes: u64) -> LogConfig {
    LogConfig {
        segment_bytes,
        classes: vec![class],
        ..with_room()
    }
}

/// On a simulated disk, with segments large enough for a whole test and no maintenance.
pub fn with_room() -> LogConfig {
    LogConfig {
        segment_bytes: 16 << 20,
        maintain_every: None,
        ..config(Path::new("/data"))
    }
}

/// Whether there is a file whose path has this suffix.
pub fn has(files: &sim::SimFiles, name: &str) -> bool {
    files.names().iter().any(|path| path.ends_with(name))
}

pub fn open(dir: &Path) -> Log {
    open_with(config(dir), Seams::system())
}

pub fn open_with(config: LogConfig, seams: Seams) -> Log {
    Log::open(config, seams).expect("the log opens").0
}

/// Opens it, with what the start reports of the telemetry partition.
pub fn reopen_with(config: LogConfig, seams: Seams) -> (Log, PartitionReport) {
    let (log, report) = Log::open(config, seams).expect("the log opens");
    let mut partitions = report.partitions.into_iter();
    let telemetry = partitions.find(|partition| partition.name == "telemetry-0");
    (log, telemetry.expect("there is a telemetry partition"))
}

pub fn telemetry(log: &Log) -> &Partition {
    log.by_name("telemetry-0")
        .expect("there is a telemetry partition")
}

/// Records with these payloads on `devices/<n>/telemetry`.
pub fn records<P: AsRef<[u8]>>(device: u32, payloads: &[P]) -> Records {
    let mut records = Records::new();
    let topic = format!("devices/{device}/telemetry");
    let end = 8 + device.to_string().len() as u16;
    let topic = records.topic(&topic, 8..end).expect("room for a topic");
    let client = records
        .client(&device.to_string())
        .expect("room for a client");
    for payload in payloads {
        records
            .push(RecordMeta::new(topic, client, 1), payload.as_ref())
            .expect("room for a record");
    }
    records
}

pub fn keyed(key: &str, payload: &[u8]) -> Records {
    let mut records = Records::new();
    add_keyed(&mut records, key, payload);
    records
}

pub fn add_keyed(records: &mut Records, key: &str, payload: &[u8]) {
    let topic = records.topic("devices/1/telemetry", 8..9).expect("room");
    let client = records.client("flight").expect("room");
    let meta = RecordMeta {
        idempotency_key: Some(key),
        ..RecordMeta::new(topic, client, 1)
    };
    records.push(meta, payload).expect("room");
}

/// Waits until everything below `end` is durable; panics when the partition cannot get there.
pub fn await_durable(partition: &Partition, end: Offset) {
    let deadline = Instant::now() + PATIENCE;
    while partition.high_watermark() < end {
        assert!(
            Instant::now() < deadline,
            "no progress of {}: {:?}",
            partition.name(),
            partition.state()
        );
        assert!(
            !matches!(partition.state(), PartitionState::Stopped(_)),
            "{:?}",
            partition.state()
        );
        std::thread::yield_now();
    }
}

/// Waits for a condition that another thread brings about.
pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut tries = 0_u32;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        tries += 1;
        if tries < 1000 {
            std::thread::yield_now();
        } else {
            // A wait this long is a retry on a timer, so do not keep a core busy until then.
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// Appends and waits until it is durable.
pub fn append<P: AsRef<[u8]>>(partition: &Partition, payloads: &[P]) -> Offset {
    let range = partition
        .append(records(1, payloads))
        .expect("the append is taken");
    await_durable(partition, range.end);
    range.start
}

/// All payloads from `from` to the high watermark, and the ranges that were damaged.
pub fn read_from(
    partition: &Partition,
    from: Offset,
) -> (Vec<Found>, Vec<std::ops::Range<Offset>>) {
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    let mut next = from;
    while next < partition.high_watermark() {
        match partition.read(next, 32 << 10) {
            Ok(batches) => {
                for batch in &batches {
                    found.extend(
                        payloads(batch)
                            .into_iter()
                            .filter(|(offset, _)| *offset >= next.0),
                    );
                }
                next = batches
                    .last()
                    .map(Batch::next_offset)
                    .expect("a read below the high watermark gives a batch");
            }
            Err(ReadError::Damaged { range }) => {
                assert!(
                    range.start >= next && range.end > next,
                    "{range:?} does not lead on from {next}"
                );
                next = range.end;
                damaged.push(range);
            }
            Err(error) => panic!("reading from {next}: {error}"),
        }
    }
    (found, damaged)
}

pub fn read_all(partition: &Partition) -> Vec<Found> {
    let (found, damaged) = read_from(partition, partition.log_start());
    assert_eq!(damaged, [], "nothing is damaged");
    found
}

pub fn payloads(batch: &Batch) -> Vec<Found> {
    batch
        .records()
        .map(|record| (record.offset.0, record.payload.to_vec()))
        .collect()
}

/// A wall clock that stands still until it is moved.
pub struct HandClock {
    now_us: std::sync::atomic::AtomicI64,
    passed_us: std::sync::atomic::AtomicU64,
    steady: SystemClock,
}

impl HandClock {
    pub fn at(now_us: i64) -> Arc<Self> {
        Arc::new(Self {
            now_us: now_us.into(),
            passed_us: 0.into(),
            steady: SystemClock::new(),
        })
    }

    pub fn advance(&self, by: Duration) {
        self.now_us
            .fetch_add(by.as_micros() as i64, std::sync::atomic::Ordering::SeqCst);
    }

    pub fn jump(&self, by_us: i64) {
        self.now_us
            .fetch_add(by_us, std::sync::atomic::Ordering::SeqCst);
    }

    /// Advances the monotonic clock too.
    pub fn pass(&self, by: Duration) {
        self.advance(by);
        self.passed_us
            .fetch_add(by.as_micros() as u64, std::sync::atomic::Ordering::SeqCst);
    }

    pub fn set(&self, now_us: i64) {
        self.now_us
            .store(now_us, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now_us(&self) -> i64 {
        self.now_us.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn steady(&self) -> Duration {
        let passed = self.passed_us.load(std::sync::atomic::Ordering::SeqCst);
        self.steady.steady() + Duration::from_micros(passed)
    }
}

pub fn with_clock(clock: &Arc<HandClock>) -> Seams {
    Seams {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        ..Seams::system()
    }
}

/// Files of the telemetry partition with this suffix, by name.
pub fn files_of(dir: &Path, suffix: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir.join("telemetry-0")).expect("the folder is there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    files.sort();
    files
}

/// Base offset of the telemetry partition's second segment.
pub fn second_base(dir: &Path) -> u64 {
    let second = files_of(dir, ".seg").swap_remove(1);
    let base = second
        .file_stem()
        .map(|name| name.to_string_lossy().parse());
    base.expect("a name").expect("a base offset")
}
