//! What is wrong now and what to do about it: the conditions of docs/operating.md, "What to watch", that a broker sees by
//! itself.

use headwater_log::{DiskLevel, Partition, PartitionState};

use super::standing::{self, Standing};
use crate::service::samples::alert::{Alert, Severity};
use crate::service::shared::Shared;

/// The most alerts of groups; those that lose records first.
const GROUPS_MAX: usize = 10;
/// A group that loses records within this time is an alert.
const LOSS_SOON_S: f64 = 24.0 * 3_600.0;
const LOSS_NOW_S: f64 = 3_600.0;
/// Over how many seconds a rate must be seen.
const SECONDS: usize = 60;
const BUSY: f64 = 0.8;

/// Looks at everything, the worst first; may wait for the disk.
pub fn find(shared: &Shared) -> Vec<Alert> {
    let mut found = Vec::new();
    for partition in shared.log.partitions() {
        found.extend(of_state(partition));
        found.extend(of_damage(partition));
    }
    found.extend(of_disk(shared));
    found.extend(of_loop(shared));
    if shared.metrics.detail.draining.get() > 0 {
        found.push(Alert {
            name: "draining",
            severity: Severity::Warning,
            summary: "the broker is drained: it accepts no clients".to_owned(),
            remedy: "End it with `DELETE /api/v1/drain` when the maintenance is over.",
        });
    }
    found.extend(of_groups(shared));
    found.sort_by_key(|alert| alert.severity);
    found
}

fn of_state(partition: &Partition) -> Option<Alert> {
    let name = partition.name();
    let (summary, remedy) = match partition.state() {
        PartitionState::Running | PartitionState::Following => return None,
        PartitionState::Full => (
            format!("{name} has no space left: publishes to it are refused"),
            "Free space on the disk or raise `log.disk.budget`: appends go on by themselves.",
        ),
        PartitionState::Stopped(reason) => (
            format!("{name} accepts no records: {reason}"),
            "Repair the cause, then restart the broker: what was acknowledged is kept.",
        ),
    };
    Some(Alert {
        name: "partition",
        severity: Severity::Critical,
        summary,
        remedy,
    })
}

fn of_damage(partition: &Partition) -> Option<Alert> {
    let lost: u64 = partition
        .gaps()
        .iter()
        .map(|gap| gap.range.end.0 - gap.range.start.0)
        .sum();
    let damaged = partition.damaged_bytes();
    if lost == 0 && damaged == 0 {
        return None;
    }
    Some(Alert {
        name: "damage",
        severity: Severity::Critical,
        summary: format!(
            "{} has {lost} damaged offsets and {damaged} damaged bytes",
            partition.name()
        ),
        remedy: "The disk returns other bytes than were written: check it with `smartctl`, and let `headwater offsets` list what is lost.",
    })
}

fn of_disk(shared: &Shared) -> Option<Alert> {
    let disk = shared.log.disk_use();
    let (severity, what) = match disk.level {
        DiskLevel::Normal => return None,
        DiskLevel::Warned => (Severity::Warning, "nears its budget"),
        DiskLevel::Acting => (
            Severity::Critical,
            "is near the end of its budget: telemetry is refused or trimmed",
        ),
        DiskLevel::Full => (
            Severity::Critical,
            "has used its budget: publishes are refused",
        ),
    };
    let budget = disk
        .budget_bytes
        .map_or_else(String::new, |budget| format!(" of {budget}"));
    Some(Alert {
        name: "disk",
        severity,
        summary: format!("the log {what} ({}{budget} bytes)", disk.used_bytes),
        remedy: "Raise `log.disk.budget`, keep less (`log.classes.*.retention`), or remove groups without a reader.",
    })
}

fn of_loop(shared: &Shared) -> Vec<Alert> {
    let busy = shared.samples.mean("loop_busy", SECONDS).unwrap_or(0.0);
    let (refused, _) = shared.samples.sum("refused", SECONDS).unwrap_or_default();
    let warning = |name, summary, remedy| Alert {
        name,
        severity: Severity::Warning,
        summary,
        remedy,
    };
    let mut found = Vec::new();
    if busy > BUSY {
        let summary = format!(
            "the MQTT loop was busy for {:.0} % of the last minute",
            busy * 100.0
        );
        found.push(warning(
            "loop",
            summary,
            "It has no processor time left: spread the clients over more brokers.",
        ));
    }
    if refused > 0.0 {
        found.push(warning(
            "refused",
            refused_in_words(refused),
            "`headwater clients history` and the metric `headwater_mqtt_refusals_total` name the clients and the reasons.",
        ));
    }
    found
}

/// `refused`: the sum of a minute's rates, which are not whole.
fn refused_in_words(refused: f64) -> String {
    let (count, publishes) = match refused.round() as u64 {
        0 | 1 => (1, "publish was"),
        count => (count, "publishes were"),
    };
    format!("{count} {publishes} refused in the last minute")
}

fn of_groups(shared: &Shared) -> Vec<Alert> {
    let Ok(office) = shared.office.get() else {
        return Vec::new();
    };
    let mut losing: Vec<(f64, Alert)> = Vec::new();
    for (name, place) in standing::behind(shared, &office) {
        let Some((loss_s, severity)) = danger_of(&place) else {
            continue;
        };
        let summary = summary_of(&name, &place);
        let alert = Alert {
            name: "group",
            severity,
            summary,
            remedy: "Start or speed up its reader, or keep more (`log.classes.*.retention`). Remove a group without a reader.",
        };
        losing.push((loss_s, alert));
    }
    losing.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    losing
        .into_iter()
        .take(GROUPS_MAX)
        .map(|(_, alert)| alert)
        .collect()
}

/// In how many seconds a group loses records, and how bad that is. A loss that is only expected is critical only where
/// the speed of the group is known: in the first minute after a start, each group is taken to stand still.
fn danger_of(place: &Standing) -> Option<(f64, Severity)> {
    if place.lost_records > 0 {
        return Some((0.0, Severity::Critical));
    }
    let loss_s = place.loss_s.filter(|loss_s| *loss_s < LOSS_SOON_S)?;
    let is_critical = loss_s < LOSS_NOW_S && place.has_pace;
    let severity = if is_critical {
        Severity::Critical
    } else {
        Severity::Warning
    };
    Some((loss_s, severity))
}

fn summary_of(group: &str, place: &Standing) -> String {
    let loss = place.loss_s.map(in_words);
    let (lost, partition) = (place.lost_records, &place.name);
    match (lost, loss) {
        (0, None) => format!("group {group} loses records of {partition}"),
        (0, Some(loss)) => format!("group {group} loses records of {partition} in {loss}"),
        (_, None) => format!("group {group} has lost {lost} records of {partition}"),
        (_, Some(loss)) => {
            format!("group {group} has lost {lost} records of {partition} and loses more in {loss}")
        }
    }
}

/// A length of time in its one fitting unit, never longer than it is: "18 minutes", "5 hours".
fn in_words(seconds: f64) -> String {
    let minutes = (seconds / 60.0).max(0.0) as u64;
    match minutes {
        0 => "less than a minute".to_owned(),
        1 => "1 minute".to_owned(),
        2..120 => format!("{minutes} minutes"),
        120..2_880 => format!("{} hours", minutes / 60),
        _ => format!("{} days", minutes / 1_440),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_in_words() {
        let cases = [
            (-1.0, "less than a minute"),
            (59.0, "less than a minute"),
            (60.0, "1 minute"),
            (1_139.0, "18 minutes"),
            (7_199.0, "119 minutes"),
            (7_200.0, "2 hours"),
            (18_100.0, "5 hours"),
            (172_800.0, "2 days"),
        ];
        for (seconds, words) in cases {
            assert_eq!(in_words(seconds), words, "{seconds}");
        }
    }

    fn place(lost_records: u64, loss_s: Option<f64>) -> Standing {
        Standing {
            partition: 0,
            name: "telemetry-0".to_owned(),
            next: 0,
            log_start: 0,
            high_watermark: 9,
            lag_records: 9,
            lag_s: None,
            loss_s,
            lost_records,
            has_pace: true,
        }
    }

    #[test]
    fn a_loss_is_critical_where_it_is_near_and_the_speed_of_the_group_is_known() {
        let hour = 3_600.0;
        let of = |lost_records, loss_s, has_pace| {
            let place = Standing {
                has_pace,
                ..place(lost_records, loss_s)
            };
            danger_of(&place).map(|(_, severity)| severity)
        };
        assert_eq!(of(0, Some(hour / 2.0), true), Some(Severity::Critical));
        assert_eq!(of(0, Some(hour / 2.0), false), Some(Severity::Warning));
        assert_eq!(of(0, Some(2.0 * hour), true), Some(Severity::Warning));
        assert_eq!(of(0, Some(25.0 * hour), true), None);
        assert_eq!(of(0, None, true), None);
        assert_eq!(of(1, None, false), Some(Severity::Critical), "has lost");
    }

    #[test]
    fn refused_publishes_are_counted() {
        for (refused, words) in [
            (0.3, "1 publish was refused in the last minute"),
            (0.998, "1 publish was refused in the last minute"),
            (2.997, "3 publishes were refused in the last minute"),
        ] {
            assert_eq!(refused_in_words(refused), words);
        }
        assert!(Severity::Critical < Severity::Warning, "it is sorted by");
    }

    #[test]
    fn a_group_that_has_lost_records_is_told_of_the_next_loss_too() {
        let cases = [
            (
                0,
                Some(1_080.0),
                "group g loses records of telemetry-0 in 18 minutes",
            ),
            (7, None, "group g has lost 7 records of telemetry-0"),
            (
                7,
                Some(18_000.0),
                "group g has lost 7 records of telemetry-0 and loses more in 5 hours",
            ),
        ];
        for (lost, loss_s, summary) in cases {
            assert_eq!(summary_of("g", &place(lost, loss_s)), summary);
        }
    }
}
