//! The logs that are compared, behind the few calls that the cases need, and the plain program.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::Thread;

use headwater_log::{
    AppendError, Class, ClassConfig, Log, LogConfig, Offset, Partition, RecordMeta, Records, Seams,
    SyncMode, Watcher,
};

pub const SEGMENT_BYTES: u64 = 64 << 20;
pub const RECORD_BYTES: usize = 1 << 10;
/// Records of a segment of the peers.
const PER_SEGMENT: u64 = SEGMENT_BYTES / RECORD_BYTES as u64;
const INDEX_BYTES: u64 = (PER_SEGMENT + 1) * 16;
const SEGMENTS_MAX: usize = 1024;

/// Payloads that do not repeat within a megabyte.
pub struct Payloads(Vec<u8>);

impl Payloads {
    pub fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = Vec::with_capacity(1 << 20);
        while bytes.len() < 1 << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        Self(bytes)
    }

    pub fn get(&self, number: u64) -> &[u8] {
        let at = number as usize * RECORD_BYTES % self.0.len();
        &self.0[at..at + RECORD_BYTES]
    }
}

/// A log that keeps records on disk.
pub trait Subject {
    /// Appends records `[first, first + count)`; they are in the page cache when this returns.
    fn append(&mut self, payloads: &Payloads, first: u64, count: u64);
    /// Reads one record and gives its first bytes.
    fn read_one(&mut self, offset: u64) -> u64;
    /// Reads all records in large reads and gives the payload bytes seen.
    fn read_all(&mut self, count: u64, read_bytes: usize) -> u64;
}

pub struct Headwater {
    // Before `partition`: closing waits for the writer.
    log: Log,
    partition: Partition,
    per_append: u64,
    is_inline: bool,
    /// The partition does not keep its watcher.
    wake: Option<Watcher>,
}

impl Headwater {
    pub fn new(dir: &Path, sync: SyncMode, per_append: u64) -> Self {
        let config = LogConfig {
            sync,
            segment_bytes: SEGMENT_BYTES,
            queue_bytes: QUEUE_BYTES,
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir)
        };
        let (log, _) = Log::open(config, Seams::system()).expect("the folder is new");
        let partition = log.partitions()[0].clone();
        Self {
            log,
            partition,
            per_append,
            is_inline: false,
            wake: None,
        }
    }

    /// Writes on the thread that appends, as the peers do; otherwise the log's own thread writes.
    pub fn inline(self) -> Self {
        Self {
            is_inline: true,
            ..self
        }
    }

    /// Appends without waiting for the last of it.
    pub fn queue(&mut self, payloads: &Payloads, first: u64, count: u64) {
        let mut next = first;
        while next < first + count {
            let mut records = self.partition.take_records();
            let topic = records
                .topic("devices/bench/telemetry", 8..13)
                .expect("fits");
            let client = records.client("bench").expect("fits");
            for number in next..(next + self.per_append).min(first + count) {
                let meta = RecordMeta::new(topic, client, 1);
                records.push(meta, payloads.get(number)).expect("fits");
            }
            next += records.len() as u64;
            self.append_when_room(records);
        }
    }

    fn append_when_room(&self, records: Records) {
        // `append` takes the records; a full queue is told before they are given.
        while self.partition.queued_bytes() + records.bytes() > QUEUE_BYTES {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        let appended = if self.is_inline {
            self.partition.append_inline(records)
        } else {
            self.partition.append(records)
        };
        match appended {
            Ok(_) => {}
            Err(AppendError::QueueFull { .. }) => unreachable!("only this thread appends"),
            Err(error) => panic!("{error}"),
        }
    }

    pub fn wait_until(&self, end: u64) {
        while self.partition.high_watermark().0 < end {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
    }

    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Wakes the thread that appends when there is room again.
    pub fn wakes(mut self, thread: Thread) -> Self {
        let wake: Watcher = Arc::new(move || thread.unpark());
        self.partition.watch(&wake);
        self.wake = Some(wake);
        self
    }

    pub fn close(self) {
        self.log.shutdown();
    }
}

const QUEUE_BYTES: usize = 8 << 20;

impl Subject for Headwater {
    fn append(&mut self, payloads: &Payloads, first: u64, count: u64) {
        self.queue(payloads, first, count);
        self.wait_until(first + count);
    }

    fn read_one(&mut self, offset: u64) -> u64 {
        let batches = self.partition.read(Offset(offset), 1);
        let batch = &batches.expect("it is there")[0];
        let payload = batch.payload((offset - batch.base_offset().0) as usize);
        assert_eq!(payload.len(), RECORD_BYTES);
        first_bytes(payload)
    }

    fn read_all(&mut self, count: u64, read_bytes: usize) -> u64 {
        let (mut next, mut bytes) = (Offset(0), 0);
        while next.0 < count {
            let batches = self.partition.read(next, read_bytes).expect("it is there");
            for batch in &batches {
                bytes += batch.payloads().len() as u64;
                next = batch.next_offset();
            }
        }
        bytes
    }
}

fn first_bytes(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("eight bytes"))
}

/// Both peers have one interface: theirs comes from one code base.
macro_rules! peer {
    ($name:ident, $log:ty) => {
        pub struct $name($log);

        impl $name {
            pub fn new(dir: &Path) -> Self {
                let log = <$log>::new(dir, INDEX_BYTES, SEGMENT_BYTES, SEGMENTS_MAX);
                Self(log.expect("the folder is new"))
            }
        }

        impl Subject for $name {
            fn append(&mut self, payloads: &Payloads, first: u64, count: u64) {
                for number in first..first + count {
                    self.0.append(payloads.get(number)).expect("there is space");
                }
                // Their buffer of 1 MiB goes to the page cache.
                let last = (first + count - 1) / PER_SEGMENT * PER_SEGMENT;
                self.0.read(last, 0).expect("it is there");
            }

            fn read_one(&mut self, offset: u64) -> u64 {
                let base = offset / PER_SEGMENT * PER_SEGMENT;
                let payload = self.0.read(base, offset - base).expect("it is there");
                assert_eq!(payload.len(), RECORD_BYTES);
                first_bytes(&payload)
            }

            fn read_all(&mut self, count: u64, read_bytes: usize) -> u64 {
                let (mut base, mut relative, mut seen, mut bytes) = (0, 0, 0, 0);
                while seen < count {
                    let (next_base, next_relative, records, data) = self
                        .0
                        .readv(base, relative, read_bytes as u64)
                        .expect("it is there");
                    base = next_base;
                    relative = next_relative + 1;
                    seen += records;
                    bytes += data.len() as u64;
                }
                bytes
            }
        }
    };
}

peer!(Segments, segments::DiskLog);
peer!(Rumqttlog, rumqttlog::Log);

/// A program without a log: one file, written in large pieces.
pub struct Plain {
    file: File,
    position: u64,
    write_bytes: usize,
}

impl Plain {
    pub fn new(path: &Path) -> Self {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).open(path);
        Self {
            file: file.expect("the folder is there"),
            position: 0,
            write_bytes: 1 << 20,
        }
    }

    /// Appends in writes of another size than 1 MiB.
    pub fn writing(self, write_bytes: usize) -> Self {
        Self {
            write_bytes,
            ..self
        }
    }

    /// Writes and syncs these bytes in one piece.
    pub fn write_synced(&mut self, bytes: &[u8]) {
        self.file
            .write_all_at(bytes, self.position)
            .expect("there is space");
        self.file.sync_data().expect("the disk works");
        self.position += bytes.len() as u64;
    }

    /// What a program does that wants overwriting to be cheap.
    pub fn fill(&mut self, bytes: u64) {
        self.write_unsynced(bytes);
        self.file.sync_data().expect("the disk works");
    }

    pub fn write_unsynced(&mut self, bytes: u64) {
        let zeros = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(zeros.len() as u64);
            self.file
                .write_all(&zeros[..piece as usize])
                .expect("there is space");
            left -= piece;
        }
    }
}

impl Subject for Plain {
    fn append(&mut self, payloads: &Payloads, first: u64, count: u64) {
        let mut buffer = Vec::with_capacity(self.write_bytes);
        for number in first..first + count {
            let payload = payloads.get(number);
            let (now, later) = payload.split_at(payload.len().min(self.write_bytes - buffer.len()));
            buffer.extend_from_slice(now);
            if buffer.len() == self.write_bytes {
                self.file.write_all(&buffer).expect("there is space");
                buffer.clear();
                buffer.extend_from_slice(later);
            }
        }
        self.file.write_all(&buffer).expect("there is space");
    }

    fn read_one(&mut self, offset: u64) -> u64 {
        let mut payload = [0; RECORD_BYTES];
        let position = offset * RECORD_BYTES as u64;
        self.file
            .read_exact_at(&mut payload, position)
            .expect("it is there");
        first_bytes(&payload)
    }

    fn read_all(&mut self, count: u64, read_bytes: usize) -> u64 {
        let mut buffer = vec![0; read_bytes];
        let (mut position, end) = (0, count * RECORD_BYTES as u64);
        while position < end {
            let read = self
                .file
                .read_at(&mut buffer, position)
                .expect("it is there");
            position += read as u64;
        }
        position
    }
}
