//! The disk budget of a log: the size of its files, its bound, and the level that follows.
//!
//! The writer asks before it takes space; the maintenance thread looks at the level. This file only measures and
//! judges; `retention/` removes segments.

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::config::{DiskAction, DiskConfig};
use crate::vfs::files::Files;

/// Percent of the budget by which use has to fall before a level is left again.
const HYSTERESIS_PERCENT: u64 = 2;
/// Less free space than this counts as zero.
const ROOM_BYTES_MIN: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskLevel {
    Normal,
    Warned,
    Acting,
    /// Everything but the internal partition is refused.
    Full,
}

impl DiskLevel {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Warned => "warned",
            Self::Acting => "acting",
            Self::Full => "full",
        }
    }
}

/// How the budget stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    pub used_bytes: u64,
    /// None where neither a budget nor the file system sets a bound.
    pub budget_bytes: Option<u64>,
    pub level: DiskLevel,
}

/// Wakes the maintenance thread before its time.
#[derive(Debug, Default)]
struct Alarm {
    call: Mutex<Call>,
    rung: Condvar,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    #[default]
    None,
    Look,
    End,
}

impl Alarm {
    fn ring(&self, call: Call) {
        let mut waiting = self.call.lock();
        *waiting = call.max(*waiting);
        self.rung.notify_all();
    }
}

/// One per log.
#[derive(Debug)]
pub(crate) struct DiskBudget {
    config: DiskConfig,
    dir: PathBuf,
    /// The last measurement, and in `used_bytes` also the bytes taken since.
    usage: Mutex<DiskUse>,
    alarm: Alarm,
}

impl DiskBudget {
    pub fn new(config: DiskConfig, dir: &Path) -> Self {
        let usage = DiskUse {
            used_bytes: 0,
            budget_bytes: config.budget_bytes,
            level: DiskLevel::Normal,
        };
        Self {
            config,
            dir: dir.to_owned(),
            usage: Mutex::new(usage),
            alarm: Alarm::default(),
        }
    }

    /// Waits until it is time to look at the disk: after `every`, or when the space taken since the last look has
    /// brought use to a bound. False: look no more.
    pub fn wait(&self, every: Duration) -> bool {
        let mut call = self.alarm.call.lock();
        if *call == Call::None {
            self.alarm.rung.wait_for(&mut call, every);
        }
        if *call == Call::Look {
            *call = Call::None;
        }
        *call != Call::End
    }

    /// Ends every `wait`.
    pub fn end_waits(&self) {
        self.alarm.ring(Call::End);
    }

    pub fn action(&self) -> DiskAction {
        self.config.action
    }

    pub fn level(&self) -> DiskLevel {
        self.usage().level
    }

    pub fn usage(&self) -> DiskUse {
        *self.usage.lock()
    }

    /// Notes that a file grows by `bytes`, and asks for a look at the disk when that reaches where the action begins:
    /// telemetry could take the space of commands until the next one. False, and nothing noted, when the budget has no
    /// room for them.
    pub fn take(&self, bytes: u64) -> bool {
        let mut usage = self.usage.lock();
        let after = usage.used_bytes.saturating_add(bytes);
        let has_room = self.config.budget_bytes.is_none_or(|most| after <= most);
        if has_room {
            let limit = usage.budget_bytes.unwrap_or(u64::MAX);
            let bound = share_of(limit, self.percent_of(DiskLevel::Acting));
            let is_reached = usage.used_bytes < bound && bound <= after;
            usage.used_bytes = after;
            if is_reached {
                self.alarm.ring(Call::Look);
            }
        }
        has_room
    }

    /// Notes growth that is never refused: the internal partition's.
    pub fn note(&self, bytes: u64) {
        self.usage.lock().used_bytes += bytes;
    }

    /// Notes a new measurement and returns the level that follows.
    pub fn measure(&self, used_bytes: u64, files: &dyn Files) -> DiskLevel {
        let available = files.available_bytes(&self.dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "the free space of the file system is unknown");
            None
        });
        let reachable = available.map_or(u64::MAX, |bytes| used_bytes.saturating_add(bytes));
        let limit = self.config.budget_bytes.unwrap_or(u64::MAX).min(reachable);
        let mut usage = self.usage.lock();
        usage.used_bytes = used_bytes;
        usage.budget_bytes = (limit != u64::MAX).then_some(limit);
        usage.level = self.judge(used_bytes, limit, usage.level);
        usage.level
    }

    /// The highest level whose bound is reached; a level is left again a little below its bound.
    fn judge(&self, used: u64, limit: u64, before: DiskLevel) -> DiskLevel {
        let reached = |level: DiskLevel| {
            let mut percent = self.percent_of(level);
            if before >= level {
                percent = percent.saturating_sub(HYSTERESIS_PERCENT);
            }
            let is_full = level == DiskLevel::Full && used.saturating_add(ROOM_BYTES_MIN) > limit;
            is_full || used >= share_of(limit, percent)
        };
        let levels = [DiskLevel::Full, DiskLevel::Acting, DiskLevel::Warned];
        let highest = levels.into_iter().find(|level| reached(*level));
        highest.unwrap_or(DiskLevel::Normal)
    }

    fn percent_of(&self, level: DiskLevel) -> u64 {
        match level {
            DiskLevel::Normal => 0,
            DiskLevel::Warned => u64::from(self.config.warn_percent),
            DiskLevel::Acting => u64::from(self.config.act_percent),
            DiskLevel::Full => 100,
        }
    }

    fn limit_bytes(&self) -> u64 {
        self.usage().budget_bytes.unwrap_or(u64::MAX)
    }

    /// Use at which trimming may stop.
    pub fn trim_to_bytes(&self) -> u64 {
        let percent = self.percent_of(DiskLevel::Acting);
        let percent = percent.saturating_sub(HYSTERESIS_PERCENT);
        share_of(self.limit_bytes(), percent).saturating_sub(1)
    }

    /// Use above which the log is full, or stays full.
    pub fn full_from_bytes(&self) -> u64 {
        let limit = self.limit_bytes();
        share_of(limit, 100 - HYSTERESIS_PERCENT)
            .min(limit.saturating_sub(ROOM_BYTES_MIN))
            .saturating_sub(1)
    }
}

fn share_of(limit: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(limit) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::system::SystemFiles;

    const MIB: u64 = 1 << 20;

    fn disk() -> DiskBudget {
        let config = DiskConfig {
            budget_bytes: Some(100 * MIB),
            ..DiskConfig::default()
        };
        DiskBudget::new(config, Path::new("/"))
    }

    #[test]
    fn a_level_is_entered_at_its_bound_and_left_a_little_below() {
        let disk = disk();
        let mut level = DiskLevel::Normal;
        for (used_mib, expected) in [
            (79, DiskLevel::Normal),
            (80, DiskLevel::Warned),
            (79, DiskLevel::Warned),
            (95, DiskLevel::Acting),
            (94, DiskLevel::Acting),
            (100, DiskLevel::Full),
            (99, DiskLevel::Full),
            (97, DiskLevel::Acting),
            (92, DiskLevel::Warned),
            (77, DiskLevel::Normal),
        ] {
            level = disk.judge(used_mib * MIB, 100 * MIB, level);
            assert_eq!(level, expected, "at {used_mib} MiB");
        }
    }

    #[test]
    fn the_budget_is_never_exceeded_by_what_asks_first() {
        let disk = disk();
        assert!(disk.take(99 * MIB));
        assert!(!disk.take(2 * MIB));
        assert!(disk.take(MIB));
        assert!(!disk.take(1));
        disk.note(MIB);
        let used = disk.usage().used_bytes;
        assert_eq!(used, 101 * MIB, "the internal partition goes on");
    }

    #[test]
    fn without_a_budget_the_bound_is_what_the_file_system_has_left() {
        let disk = DiskBudget::new(DiskConfig::default(), &std::env::temp_dir());
        let level = disk.measure(1, &SystemFiles);
        let bound = disk.usage().budget_bytes.expect("the system tells");
        assert!(bound > 1 && level == DiskLevel::Normal, "{bound} {level:?}");
    }
}
