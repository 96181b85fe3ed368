//! The parts of random and scripted runs of the log: records, crashes, settings.

use std::time::Duration;

use headwater_log::{Class, ClassConfig, LogConfig, SyncMode};

pub const START_US: i64 = 1_800_000_000_000_000;
/// The partitions, in the order of their numbers.
pub const NAMES: [&str; 3] = ["internal-0", "telemetry-0", "telemetry-1"];
const HOUR: Duration = Duration::from_secs(3600);

/// A record to append.
#[derive(Debug, Clone)]
pub struct Spec {
    pub topic: u8,
    pub bytes: usize,
    pub retain: bool,
    pub key: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    Power,
    Kill,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub sync: SyncMode,
    pub tail_bytes: usize,
    pub retention_bytes: Option<u64>,
}

impl Settings {
    pub fn always() -> Self {
        Self {
            sync: SyncMode::Always,
            tail_bytes: 4000,
            retention_bytes: None,
        }
    }

    /// Syncs when the clock of the test has passed an hour, and whenever the log must.
    pub fn interval() -> Self {
        Self {
            sync: SyncMode::Interval(HOUR),
            ..Self::always()
        }
    }

    pub fn config(&self) -> LogConfig {
        let mut telemetry = ClassConfig::new(Class::Telemetry);
        telemetry.partitions = 2;
        telemetry.retention_bytes = self.retention_bytes;
        LogConfig {
            sync: self.sync,
            segment_bytes: 16 << 10,
            tail_bytes: self.tail_bytes,
            maintain_every: None,
            classes: vec![ClassConfig::new(Class::Internal), telemetry],
            ..LogConfig::new("/data")
        }
    }
}
