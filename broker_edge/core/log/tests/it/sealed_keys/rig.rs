//! A log with idempotency keys in several sealed segments, and its files under watch.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::support::memory::MemoryFiles;
use crate::support::watched::Watcher;
use crate::support::*;
use headwater_log::{
    AppendError, Class, ClassConfig, File, Log, LogConfig, Offset, Partition, RecordMeta, Records,
    UniqueAppend,
};

/// Keys of one append.
pub(super) const ROWS: u64 = 50;

/// Segments of some 400 keys, on a simulated disk, and maintenance by hand.
pub(super) fn settings(dir: &Path) -> LogConfig {
    LogConfig {
        tail_bytes: 0,
        maintain_every: None,
        classes: vec![ClassConfig::new(Class::Telemetry)],
        ..config(dir)
    }
}

pub(super) fn rows(topic: &str, numbers: std::ops::Range<u64>) -> Records {
    let mut records = Records::new();
    let topic = records.topic(topic, 8..9).expect("room");
    let client = records.client("flight").expect("room");
    for number in numbers {
        let key = format!("key {number}");
        let meta = RecordMeta {
            idempotency_key: Some(&key),
            ..RecordMeta::new(topic, client, 1)
        };
        records.push(meta, &[7; 80]).expect("room");
    }
    records
}

pub(super) const TOPIC: &str = "devices/1/telemetry";

/// Appends keys `0..count`, each at the offset of its number.
pub(super) fn fill(partition: &Partition, count: u64) {
    for first in (0..count).step_by(ROWS as usize) {
        let placed = partition.append_unique(rows(TOPIC, first..first + ROWS));
        let placed = placed.expect("taken");
        assert_eq!(
            (placed[0].offset, placed[0].duplicate),
            (Offset(first), false)
        );
        await_durable(partition, Offset(first + ROWS));
    }
}

/// A log whose keys lie in several sealed segments, with their indexes saved.
pub(super) fn filled(files: &MemoryFiles, count: u64) -> Log {
    let log = open_with(settings(Path::new("/data")), files.seams());
    fill(telemetry(&log), count);
    log.maintain();
    log
}

pub(super) fn again(partition: &Partition, number: u64) -> Result<UniqueAppend, AppendError> {
    let placed = partition.append_unique(rows(TOPIC, number..number + 1))?;
    Ok(placed[0])
}

pub(super) fn assert_all_known(partition: &Partition, count: u64) {
    for number in 0..count {
        let placed = again(partition, number).expect("an answer");
        assert_eq!(
            placed,
            UniqueAppend {
                offset: Offset(number),
                duplicate: true
            }
        );
    }
}

pub(super) fn segments(files: &MemoryFiles) -> Vec<PathBuf> {
    files.with_suffix(".seg")
}

/// The watched system's files: how often index files are read, and what happens at the next such read.
#[derive(Default)]
pub(super) struct Indexes {
    pub(super) reads: AtomicU64,
    pub(super) at_read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub(super) fails: AtomicBool,
}

impl Watcher for Indexes {
    fn before_read(&self, path: &Path, _: &dyn File, _: u64) -> io::Result<()> {
        if path.extension().is_none_or(|suffix| suffix != "idx") {
            return Ok(());
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let at_read = self.at_read.lock().take();
        if let Some(at_read) = at_read {
            at_read();
        }
        match self.fails.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

impl Indexes {
    pub(super) fn reads_of<T>(&self, f: impl FnOnce() -> T) -> (T, u64) {
        let before = self.reads.load(Ordering::Relaxed);
        let answer = f();
        (answer, self.reads.load(Ordering::Relaxed) - before)
    }
}
