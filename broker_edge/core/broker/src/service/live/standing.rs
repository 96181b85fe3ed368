//! Where a consumer group stands in a partition: how far behind in records and in seconds, and when retention will have
//! removed the record that it reads next.
//!
//! Retention's front, the log start, moves as fast as the partition grows (by size) or as time passes (by age). The
//! group moves too. So the time until a loss is what it would be if the group stood still, divided by how much faster
//! the front is than the group: `1 - pace`, where the pace is the share that the group reads of what is appended
//! (`samples::pace`). There is no such time for a group
//! - that keeps up: its pace is 1 or more;
//! - that has used up only a small part of what retention leaves it, and moves or has come to the end within the last
//!   minute: with a pace of a little under 1, as measured between two commits, it is healthy too.
//!
//! While the pace is not known, the group is taken to stand still. While the growth is not known, no size limit has a
//! time.
//!
//! Everything here may wait for the disk.

use std::sync::Arc;

use headwater_log::{ClassConfig, Offset, Partition};
use serde::Serialize;

use crate::clock::now_us;
use crate::service::groups::group::{Group, GroupOffsets};
use crate::service::office::Office;
use crate::service::records::shown::batch_at;
use crate::service::samples::pace::{Place, Places};
use crate::service::shared::Shared;

/// A group that has used up less of what retention leaves it is not in danger while it moves.
const SMALL: f64 = 0.1;
/// A group whose next record is younger has been at the end of the partition within this time.
const YOUNG_S: f64 = 60.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    pub partition: u32,
    pub name: String,
    /// Where the group reads next: of what lies below, nothing that matches its filter waits.
    pub next: u64,
    pub log_start: u64,
    pub high_watermark: u64,
    pub lag_records: u64,
    /// Age of the next record.
    pub lag_s: Option<f64>,
    /// Seconds until the next record is removed, at the present rates of the partition and of the group.
    pub loss_s: Option<f64>,
    /// Records that were removed before the group had looked at them.
    pub lost_records: u64,
    /// Whether the speed of the group is known; else `loss_s` takes it to stand still.
    #[serde(skip)]
    pub has_pace: bool,
}

/// All places of groups that are behind, with the names of the groups.
pub fn behind(shared: &Shared, office: &Arc<Office>) -> Vec<(String, Standing)> {
    let is_behind = |(number, offsets): &(&u32, &GroupOffsets)| {
        let end = shared.partition(**number).map(Partition::high_watermark);
        end.is_ok_and(|end| offsets.next().is_some_and(|at| at < end.0))
    };
    let behind = office.holds.active(|name, group| {
        let places = group.partitions.iter().filter(is_behind);
        let partitions = places.map(|(number, offsets)| (*number, offsets.clone()));
        let group = Group {
            partitions: partitions.collect(),
            ..Group::default()
        };
        (!group.partitions.is_empty()).then(|| (name.to_owned(), group))
    });
    let stand = |(name, group): (String, Group)| {
        let places = places(shared, &name, &group, false).into_iter();
        places.map(move |place| (name.clone(), place))
    };
    behind.into_iter().flat_map(stand).collect()
}

/// The places of a group, in the order of the partitions. `is_idle`: retention no longer respects it.
pub fn places(shared: &Shared, name: &str, group: &Group, is_idle: bool) -> Vec<Standing> {
    let place = |(number, place): (u32, Place)| {
        let partition = shared.partition(number).ok()?;
        let pace = shared.samples.pace(name, number, place);
        Some(stand(shared, partition, place, pace, is_idle))
    };
    let places = places_of(shared, group).into_iter();
    places.filter_map(place).collect()
}

/// The places of all groups that retention respects.
pub fn all_places(shared: &Shared) -> Vec<(String, Places)> {
    let Ok(office) = shared.office.get() else {
        return Vec::new();
    };
    let place = |name: &str, group: &Group| Some((name.to_owned(), places_of(shared, group)));
    office.holds.active(place)
}

fn places_of(shared: &Shared, group: &Group) -> Places {
    let place = |(number, offsets): (&u32, &GroupOffsets)| {
        let end = shared.partition(*number).ok()?.high_watermark().0;
        let place = Place {
            initial: offsets.initial,
            reached: offsets.next()?,
            end,
        };
        Some((*number, place))
    };
    group.partitions.iter().filter_map(place).collect()
}

fn stand(
    shared: &Shared,
    partition: &Partition,
    place: Place,
    pace: Option<f64>,
    is_idle: bool,
) -> Standing {
    let (log_start, high_watermark) = (partition.log_start(), partition.high_watermark());
    let next = Offset(place.reached);
    let at = next.max(log_start);
    let lag_s = time_us_of(partition, at)
        .map(|time_us| now_us().saturating_sub(time_us).max(0) as f64 / 1e6);
    let class = shared
        .classes
        .iter()
        .find(|class| class.class == partition.class());
    let size = Size {
        bytes: partition.size_bytes(),
        records: high_watermark.0.saturating_sub(log_start.0),
        bytes_per_s: shared.samples.bytes_per_s(partition),
    };
    let reader = Reader {
        lag_records: high_watermark.0.saturating_sub(at.0),
        lag_s,
        pace,
    };
    Standing {
        partition: partition.id().0,
        name: partition.name().to_owned(),
        next: next.0,
        log_start: log_start.0,
        high_watermark: high_watermark.0,
        lag_records: reader.lag_records,
        lag_s,
        loss_s: class.and_then(|class| loss_s(class, is_idle, &size, &reader)),
        lost_records: log_start.0.saturating_sub(next.0),
        has_pace: pace.is_some(),
    }
}

/// The time of the record at `offset`, or of the next one that can be read; None at the end.
pub fn time_us_of(partition: &Partition, offset: Offset) -> Option<i64> {
    if offset >= partition.high_watermark() {
        return None;
    }
    let (batch, place) = batch_at(partition, offset).ok()??;
    Some(batch.record(place).time_us)
}

/// A partition as retention sees it.
struct Size {
    bytes: u64,
    records: u64,
    bytes_per_s: Option<f64>,
}

/// A group as it stands and moves.
struct Reader {
    lag_records: u64,
    lag_s: Option<f64>,
    pace: Option<f64>,
}

impl Reader {
    /// In how many seconds retention reaches it, `left_s` if it stands still. `used`: the part of the limit that it is
    /// behind the end.
    fn reached_in(&self, left_s: f64, used: f64) -> Option<f64> {
        let pace = self.pace.unwrap_or(0.0);
        let moves = pace > 0.0 || self.lag_s.is_some_and(|age_s| age_s < YOUNG_S);
        let is_safe = pace >= 1.0 || (moves && used < SMALL);
        (!is_safe).then(|| left_s.max(0.0) / (1.0 - pace))
    }
}

/// When retention removes the record that the group reads next. By size: when the records behind it alone are more than
/// the limit. By age: when it is too old. A group that is held for is only removed by the hard limit.
fn loss_s(class: &ClassConfig, is_idle: bool, size: &Size, reader: &Reader) -> Option<f64> {
    if reader.lag_records == 0 {
        return None;
    }
    let is_held = class.honours_holds && !is_idle;
    let limits = if is_held {
        [class.retention_hard_bytes, None]
    } else {
        [class.retention_hard_bytes, class.retention_bytes]
    };
    let behind_bytes = size.bytes as f64 * reader.lag_records as f64 / size.records.max(1) as f64;
    let limit = limits.into_iter().flatten().min();
    let growth = size.bytes_per_s.filter(|growth| *growth > 0.0);
    let by_size = limit.zip(growth).and_then(|(limit, growth)| {
        let limit = limit as f64;
        reader.reached_in((limit - behind_bytes) / growth, behind_bytes / limit)
    });
    let age = class.retention_age.filter(|_| !is_held);
    let by_age = age.zip(reader.lag_s).and_then(|(age, lag_s)| {
        let age = age.as_secs_f64();
        reader.reached_in(age - lag_s, lag_s / age)
    });
    [by_size, by_age]
        .into_iter()
        .flatten()
        .min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headwater_log::Class;

    use super::*;

    fn class(honours_holds: bool) -> ClassConfig {
        ClassConfig {
            honours_holds,
            retention_bytes: Some(1_000),
            retention_hard_bytes: Some(5_000),
            retention_age: Some(Duration::from_secs(1_000)),
            ..ClassConfig::new(Class::Telemetry)
        }
    }

    const SIZE: Size = Size {
        bytes: 900,
        records: 90,
        bytes_per_s: Some(10.0),
    };

    fn reader(lag_records: u64, lag_s: f64, pace: Option<f64>) -> Reader {
        Reader {
            lag_records,
            lag_s: Some(lag_s),
            pace,
        }
    }

    #[test]
    fn a_group_that_is_held_for_loses_by_the_hard_limit_only() {
        // 50 records of 10 bytes: 4,500 bytes are left.
        let stuck = reader(50, 999.0, Some(0.0));
        assert_eq!(loss_s(&class(true), false, &SIZE, &stuck), Some(450.0));
    }

    #[test]
    fn without_holds_the_first_of_size_and_age_counts() {
        for (lag_s, expected) in [(900.0, 50.0), (990.0, 10.0)] {
            let stuck = reader(50, lag_s, Some(0.0));
            assert_eq!(loss_s(&class(false), false, &SIZE, &stuck), Some(expected));
            // Nobody holds for an idle group.
            assert_eq!(loss_s(&class(true), true, &SIZE, &stuck), Some(expected));
        }
    }

    #[test]
    fn nothing_is_lost_without_a_limit_without_growth_or_without_a_record_to_read() {
        let none = reader(0, 0.0, Some(0.0));
        assert_eq!(loss_s(&class(true), false, &SIZE, &none), None);
        let stuck = reader(50, 100.0, Some(0.0));
        for bytes_per_s in [Some(0.0), None] {
            let still = Size {
                bytes_per_s,
                ..SIZE
            };
            assert_eq!(loss_s(&class(true), false, &still, &stuck), None);
        }
        let endless = ClassConfig::new(Class::Telemetry);
        assert_eq!(loss_s(&endless, false, &SIZE, &stuck), None);
    }

    /// The time by size with 4,500 bytes left, and by age with 900 s left.
    fn by_size_and_age(pace: Option<f64>) -> [Option<f64>; 2] {
        let by_age = ClassConfig {
            retention_bytes: None,
            retention_hard_bytes: None,
            ..class(false)
        };
        let reader = reader(50, 100.0, pace);
        [class(true), by_age].map(|class| loss_s(&class, false, &SIZE, &reader))
    }

    #[test]
    fn the_time_is_that_of_a_group_that_stands_still_by_how_much_faster_the_front_is() {
        let both = |by_size, by_age| [Some(by_size), Some(by_age)];
        assert_eq!(by_size_and_age(Some(0.0)), both(450.0, 900.0), "stuck");
        assert_eq!(by_size_and_age(Some(0.5)), both(900.0, 1_800.0), "half");
        // Just started, or just moved: nothing is known of its speed.
        assert_eq!(by_size_and_age(None), both(450.0, 900.0));
        assert_eq!(by_size_and_age(Some(1.0)), [None; 2], "keeps up");
        assert_eq!(by_size_and_age(Some(1.5)), [None; 2], "catches up");
    }

    #[test]
    fn a_healthy_group_on_a_fast_log_loses_nothing() {
        // All of the hard limit is written anew in 5 seconds, so a group that stood still would lose soon.
        let fast = Size {
            bytes: 4_000,
            records: 4_000,
            bytes_per_s: Some(1_000.0),
        };
        let of = |lag_records, lag_s, pace| {
            let reader = reader(lag_records, lag_s, pace);
            loss_s(&class(true), false, &fast, &reader)
        };
        for pace in [None, Some(0.9), Some(1.0)] {
            assert_eq!(of(400, 0.4, pace), None, "{pace:?}");
        }
        // Records of just now have come between two commits, also in a log that grows slowly.
        assert_eq!(of(1, 2.0, Some(0.0)), None);
        // It was there five minutes ago already.
        assert_eq!(of(400, 300.0, Some(0.0)), Some(4.6));
        // It reads, but too slowly, and much of the limit is used up.
        assert_eq!(of(1_000, 1.0, Some(0.5)), Some(8.0));
    }
}
