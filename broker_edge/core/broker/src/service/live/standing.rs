//! Where a consumer group stands in a partition: how far behind in records and in seconds, and when retention will have
//! removed the record that it reads next.
//!
//! Everything here may wait for the disk.

use std::sync::Arc;

use headwater_log::{ClassConfig, Offset, Partition};
use serde::Serialize;

use crate::clock::now_us;
use crate::service::groups::group::{Group, GroupOffsets};
use crate::service::office::Office;
use crate::service::records::shown::batch_at;
use crate::service::shared::Shared;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    pub partition: u32,
    pub name: String,
    /// Where the group reads next.
    pub next: u64,
    pub log_start: u64,
    pub high_watermark: u64,
    pub lag_records: u64,
    /// Age of the next record.
    pub lag_s: Option<f64>,
    /// Seconds until the next record is removed, at the present rate.
    pub loss_s: Option<f64>,
    /// Records that were removed before the group had read them.
    pub lost_records: u64,
}

/// All places of groups that are behind, with the names of the groups.
pub fn behind(shared: &Shared, office: &Arc<Office>) -> Vec<(String, Standing)> {
    let of_partition = |partition: &Partition| {
        let holds = office
            .holds
            .below(partition.id(), partition.high_watermark());
        let stand = move |hold: headwater_log::Hold| {
            let standing = stand(shared, partition, hold.next, false);
            (hold.holder, standing)
        };
        holds.into_iter().map(stand).collect::<Vec<_>>()
    };
    shared
        .log
        .partitions()
        .iter()
        .flat_map(of_partition)
        .collect()
}

/// The places of a group, in the order of the partitions. `is_idle`: retention no longer respects it.
pub fn places(shared: &Shared, group: &Group, is_idle: bool) -> Vec<Standing> {
    let place = |(number, offsets): (&u32, &GroupOffsets)| {
        let partition = shared.partition(*number).ok()?;
        let next = offsets.committed.or(offsets.initial)?;
        Some(stand(shared, partition, Offset(next), is_idle))
    };
    group.partitions.iter().filter_map(place).collect()
}

fn stand(shared: &Shared, partition: &Partition, next: Offset, is_idle: bool) -> Standing {
    let (log_start, high_watermark) = (partition.log_start(), partition.high_watermark());
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
    let lag_records = high_watermark.0.saturating_sub(at.0);
    Standing {
        partition: partition.id().0,
        name: partition.name().to_owned(),
        next: next.0,
        log_start: log_start.0,
        high_watermark: high_watermark.0,
        lag_records,
        lag_s,
        loss_s: class.and_then(|class| loss_s(class, is_idle, &size, lag_records, lag_s)),
        lost_records: log_start.0.saturating_sub(next.0),
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
    bytes_per_s: f64,
}

/// When retention removes the record that `lag_records` end with. By size: when the records behind it alone are more
/// than the limit. By age: when it is too old. A group that is held for is only removed by the hard limit.
fn loss_s(
    class: &ClassConfig,
    is_idle: bool,
    size: &Size,
    lag_records: u64,
    lag_s: Option<f64>,
) -> Option<f64> {
    if lag_records == 0 {
        return None;
    }
    let is_held = class.honours_holds && !is_idle;
    let limits = if is_held {
        [class.retention_hard_bytes, None]
    } else {
        [class.retention_hard_bytes, class.retention_bytes]
    };
    let behind_bytes = size.bytes as f64 * lag_records as f64 / size.records.max(1) as f64;
    let by_size = limits
        .into_iter()
        .flatten()
        .min()
        .filter(|_| size.bytes_per_s > 0.0);
    let by_size = by_size.map(|limit| (limit as f64 - behind_bytes).max(0.0) / size.bytes_per_s);
    let age = class.retention_age.filter(|_| !is_held);
    let by_age = age
        .zip(lag_s)
        .map(|(age, lag_s)| (age.as_secs_f64() - lag_s).max(0.0));
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
            retention_age: Some(Duration::from_secs(100)),
            ..ClassConfig::new(Class::Telemetry)
        }
    }

    const SIZE: Size = Size {
        bytes: 900,
        records: 90,
        bytes_per_s: 10.0,
    };

    #[test]
    fn a_group_that_is_held_for_loses_by_the_hard_limit_only() {
        // 50 records of 10 bytes: 4,500 bytes are left.
        assert_eq!(
            loss_s(&class(true), false, &SIZE, 50, Some(99.0)),
            Some(450.0)
        );
    }

    #[test]
    fn without_holds_the_first_of_size_and_age_counts() {
        assert_eq!(
            loss_s(&class(false), false, &SIZE, 50, Some(10.0)),
            Some(50.0)
        );
        assert_eq!(
            loss_s(&class(false), false, &SIZE, 50, Some(90.0)),
            Some(10.0)
        );
        // Nobody holds for an idle group.
        assert_eq!(
            loss_s(&class(true), true, &SIZE, 50, Some(90.0)),
            Some(10.0)
        );
    }

    #[test]
    fn nothing_is_lost_without_a_limit_without_growth_or_without_a_record_to_read() {
        assert_eq!(loss_s(&class(true), false, &SIZE, 0, None), None);
        let still = Size {
            bytes_per_s: 0.0,
            ..SIZE
        };
        assert_eq!(loss_s(&class(true), false, &still, 50, Some(1.0)), None);
        let endless = ClassConfig::new(Class::Telemetry);
        assert_eq!(loss_s(&endless, false, &SIZE, 50, Some(1.0)), None);
    }
}
