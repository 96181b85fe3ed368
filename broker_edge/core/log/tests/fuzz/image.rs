//! Damaged data folders that still follow the format: valid files with changed fields and recomputed checksums, so that
//! the code behind the checksums is reached too.
//!
//! `mutate.rs` changes the files, `probe.rs` opens the result and runs every query.

use std::path::{Path, PathBuf};

use headwater_log::{LogConfig, RecordMeta, Records};

use crate::support::machine::START_US;
use crate::support::sim::SimFiles;
use crate::support::{HandClock, await_durable, config, open_with};

/// The files of a data folder.
#[derive(Debug, Clone, Default)]
pub struct Image {
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

pub fn fuzz_config() -> LogConfig {
    LogConfig {
        segment_bytes: 16 << 10,
        tail_bytes: 0,
        maintain_every: None,
        ..config(Path::new("/data"))
    }
}

impl Image {
    pub fn of(files: &SimFiles) -> Self {
        let names = files.names().into_iter();
        Self {
            files: names
                .map(|name| (name.clone(), files.bytes(&name)))
                .collect(),
        }
    }

    /// A computer with these files.
    pub fn computer(&self) -> SimFiles {
        let files = SimFiles::new(1);
        for (path, bytes) in &self.files {
            files.put(path, bytes);
        }
        files
    }

    pub fn bytes(&self) -> usize {
        self.files.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// The files whose name has this suffix.
    pub fn with_suffix(&self, suffix: &str) -> Vec<usize> {
        let is_wanted = |at: &usize| self.files[*at].0.to_string_lossy().ends_with(suffix);
        (0..self.files.len()).filter(is_wanted).collect()
    }
}

/// Logs that stopped cleanly, logs that were killed, and new logs.
pub fn images() -> Vec<Image> {
    [(0, true), (7, true), (40, true), (40, false), (90, false)]
        .into_iter()
        .map(|(records, is_stopped)| image(records, is_stopped))
        .collect()
}

/// Small records of every kind and, occasionally, one that fills half a segment.
fn image(count: usize, is_stopped: bool) -> Image {
    let files = SimFiles::new(1);
    let clock = HandClock::at(START_US);
    let log = open_with(fuzz_config(), files.seams_with(clock.clone()));
    for n in 0..count {
        let partition = &log.partitions()[usize::from(n % 5 != 0)];
        let mut records = Records::new();
        let topic = format!("devices/{}/telemetry", n % 7);
        let topic = records.topic(&topic, 8..9).expect("room");
        let client = records.client("client").expect("room");
        let key = format!("key {}", n % 11);
        let meta = RecordMeta {
            retain: n % 4 == 0,
            key: (n % 3 == 0).then_some(b"own".as_slice()),
            idempotency_key: (n % 2 == 0).then_some(key.as_str()),
            properties: &[1, 1][..n % 3],
            headers: &[("unit", b"rpm".as_slice()), ("", b"")][..n % 3],
            ..RecordMeta::new(topic, client, (n % 3) as u8)
        };
        let bytes = if n % 9 == 8 { 7000 } else { n * 13 % 700 };
        records.push(meta, &vec![n as u8; bytes]).expect("room");
        records
            .push(RecordMeta::new(topic, client, 1), b"second")
            .expect("room");
        let range = partition.append(records).expect("taken");
        await_durable(partition, range.end);
        clock.jump(1000);
    }
    log.maintain();
    if is_stopped {
        log.shutdown();
    } else {
        files.kill();
    }
    drop(log);
    Image::of(&files)
}
