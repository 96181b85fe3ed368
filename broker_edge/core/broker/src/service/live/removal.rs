//! Which segment of a partition retention removes next, by which rule, and when if it goes on to grow as it does.
//!
//! The log decides (`retention/rules.rs` there); this follows its rules to tell people.

use headwater_log::{
    Class, ClassConfig, DiskLevel, Offset, Partition, PartitionState, SegmentInfo,
};
use serde::Serialize;

use crate::clock::now_us;
use crate::config::DiskAction;
use crate::service::shared::Shared;

/// The most groups that are named.
const HELD_BY_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Removal {
    pub base: u64,
    pub next: u64,
    /// The names of the log's causes, or `leader` at a follower. None where no rule would remove it.
    pub rule: Option<&'static str>,
    /// None where a rule waits for the partition to grow and it does not, or its growth is not known yet.
    pub in_s: Option<f64>,
    /// Groups that have not finished it and keep it from all rules but `hard_bytes`, the furthest behind first.
    pub held_by: Vec<String>,
}

/// The oldest segment, unless it is the active one, which is never removed.
pub fn next_of(shared: &Shared, partition: &Partition) -> Option<Removal> {
    let oldest = partition.segments(Offset(0), 2);
    let [first, second] = oldest.as_slice() else {
        return None;
    };
    let class = partition.class();
    let class = shared.classes.iter().find(|one| one.class == class)?;
    let holds = if class.honours_holds && partition.state() != PartitionState::Following {
        let mut holds = shared.office.get().map_or_else(
            |_| Vec::new(),
            |office| office.holds.below(partition.id(), second.base),
        );
        holds.sort_by_key(|hold| hold.next);
        holds.into_iter().map(|hold| hold.holder).collect()
    } else {
        Vec::new()
    };
    let trims = shared.config.log.disk.action == DiskAction::Trim;
    let now = Now {
        bytes: partition.size_bytes(),
        bytes_per_s: shared.samples.bytes_per_s(partition),
        time_us: now_us(),
        is_trimmed: trims && shared.log.disk_use().level >= DiskLevel::Acting,
        is_following: partition.state() == PartitionState::Following,
    };
    Some(removal((first, second), class, &now, holds))
}

/// A partition as retention sees it.
struct Now {
    bytes: u64,
    /// None while it is not known.
    bytes_per_s: Option<f64>,
    time_us: i64,
    /// The disk budget has telemetry removed.
    is_trimmed: bool,
    is_following: bool,
}

impl Now {
    /// Seconds until there are more than `limit` bytes.
    fn over(&self, limit: u64) -> Option<f64> {
        let left = limit as f64 - self.bytes as f64;
        if left < 0.0 {
            return Some(0.0);
        }
        let growth = self.bytes_per_s.filter(|growth| *growth > 0.0)?;
        Some(left / growth)
    }
}

fn removal(
    (first, second): (&SegmentInfo, &SegmentInfo),
    class: &ClassConfig,
    now: &Now,
    mut held_by: Vec<String>,
) -> Removal {
    let mut rules: Vec<(&'static str, Option<f64>)> = Vec::new();
    if held_by.is_empty() {
        // A segment that cannot be read has no time of its own, so the one after it counts.
        let newest_us = first.last_time_us.or(second.first_time_us);
        if let Some((age, newest_us)) = class.retention_age.zip(newest_us) {
            let age_s = now.time_us.saturating_sub(newest_us) as f64 / 1e6;
            rules.push(("age", Some((age.as_secs_f64() - age_s).max(0.0))));
        }
        if let Some(limit) = class.retention_bytes {
            rules.push(("bytes", now.over(limit)));
        }
        if now.is_trimmed && class.class == Class::Telemetry {
            rules.push(("disk", Some(0.0)));
        }
    }
    if let Some(limit) = class.retention_hard_bytes {
        // The log asks for it first. While nothing is over a limit, and growth is not known, the lower limit counts.
        let place = if now.bytes > limit { 0 } else { rules.len() };
        rules.insert(place, ("hard_bytes", now.over(limit)));
    }
    if class.class == Class::Internal {
        // Compaction removes it once it has copied what still counts.
        rules.push(("advance", None));
    }
    if now.is_following {
        rules = vec![("leader", None)];
    }
    let soonest = rules.into_iter().min_by(|(_, one), (_, other)| {
        let or_never = |seconds: &Option<f64>| seconds.unwrap_or(f64::INFINITY);
        or_never(one).total_cmp(&or_never(other))
    });
    held_by.truncate(HELD_BY_MAX);
    Removal {
        base: first.base.0,
        next: first.next.0,
        rule: soonest.map(|(rule, _)| rule),
        in_s: soonest.and_then(|(_, in_s)| in_s),
        held_by,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headwater_log::IndexPlace;

    use super::*;

    const NOW: Now = Now {
        bytes: 900,
        bytes_per_s: Some(10.0),
        time_us: 1_000_000_000,
        is_trimmed: false,
        is_following: false,
    };

    fn class() -> ClassConfig {
        ClassConfig {
            honours_holds: true,
            retention_bytes: Some(1_000),
            retention_hard_bytes: Some(5_000),
            retention_age: Some(Duration::from_secs(500)),
            ..ClassConfig::new(Class::Telemetry)
        }
    }

    fn segment(base: u64, last_time_us: Option<i64>) -> SegmentInfo {
        SegmentInfo {
            base: Offset(base),
            next: Offset(base + 10),
            bytes: 450,
            first_time_us: last_time_us,
            last_time_us,
            is_sealed: true,
            index: IndexPlace::Saved,
        }
    }

    fn told(class: &ClassConfig, now: &Now, last_us: Option<i64>, held: &[&str]) -> Removal {
        let held = held.iter().map(|name| (*name).to_owned()).collect();
        let (first, second) = (segment(0, last_us), segment(10, Some(900_000_000)));
        removal((&first, &second), class, now, held)
    }

    #[test]
    fn the_rule_that_comes_first_is_told_with_its_time() {
        let rule = |class: &ClassConfig, now: &Now, last_us| {
            let told = told(class, now, last_us, &[]);
            (told.rule, told.in_s)
        };
        assert_eq!(
            rule(&class(), &NOW, Some(900_000_000)),
            (Some("bytes"), Some(10.0))
        );
        assert_eq!(
            rule(&class(), &NOW, Some(505_000_000)),
            (Some("age"), Some(5.0))
        );
        // A segment without a time is as old as the next one.
        for bytes_per_s in [Some(0.0), None] {
            let still = Now { bytes_per_s, ..NOW };
            assert_eq!(rule(&class(), &still, None), (Some("age"), Some(400.0)));
        }
        let over = Now {
            bytes: 5_001,
            ..NOW
        };
        assert_eq!(rule(&class(), &over, None), (Some("hard_bytes"), Some(0.0)));
        let trimmed = Now {
            is_trimmed: true,
            ..NOW
        };
        assert_eq!(rule(&class(), &trimmed, None), (Some("disk"), Some(0.0)));
        let following = Now {
            is_following: true,
            ..NOW
        };
        assert_eq!(rule(&class(), &following, None), (Some("leader"), None));
    }

    #[test]
    fn a_held_segment_goes_by_the_hard_limit_only_and_without_limits_by_none() {
        let held = told(&class(), &NOW, Some(0), &["slow", "slower"]);
        assert_eq!((held.rule, held.in_s), (Some("hard_bytes"), Some(410.0)));
        assert_eq!(held.held_by, ["slow", "slower"]);
        let endless = ClassConfig::new(Class::Telemetry);
        let kept = told(&endless, &NOW, Some(0), &[]);
        assert_eq!((kept.rule, kept.in_s), (None, None));
        let internal = ClassConfig::new(Class::Internal);
        assert_eq!(
            told(&internal, &NOW, None, &[]).rule,
            Some("advance"),
            "compaction"
        );
    }
}
