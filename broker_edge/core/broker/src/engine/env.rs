//! What every part of the engine may read: the log, the settings, the metrics and the time of the turn.

use std::sync::Arc;

use headwater_log::{Log, Partition};

use crate::metrics::Metrics;

use super::Settings;

/// The time of a turn, read once.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds of a monotonic clock.
    pub mono_ms: u64,
    /// Unix microseconds, UTC.
    pub wall_us: i64,
}

pub struct Env {
    pub log: Log,
    /// The partitions of the log, by index.
    pub partitions: Vec<Partition>,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
    pub now: Now,
}
