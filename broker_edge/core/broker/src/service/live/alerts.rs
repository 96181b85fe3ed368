//! What is wrong now and what to do about it: the conditions of docs/operating.md, "What to watch", that a broker sees by
//! itself.

use headwater_log::{DiskLevel, Partition, PartitionState};

use super::standing;
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

/// Looks at everything; may wait for the disk.
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
            remedy: "end it with DELETE /api/v1/drain when the maintenance is over",
        });
    }
    found.extend(of_groups(shared));
    found
}

fn of_state(partition: &Partition) -> Option<Alert> {
    let name = partition.name();
    let (summary, remedy) = match partition.state() {
        PartitionState::Running | PartitionState::Following => return None,
        PartitionState::Full => (
            format!("{name} has no space left: publishes to it are refused"),
            "free space on the disk or raise log.disk.budget: appends go on by themselves",
        ),
        PartitionState::Stopped(reason) => (
            format!("{name} accepts no records: {reason}"),
            "repair the cause, then restart the broker: what was acknowledged is kept",
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
        remedy: "the disk returns other bytes than were written: look at it with smartctl, and list what is lost with `headwater offsets`",
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
        remedy: "raise log.disk.budget, keep less (log.classes.*.retention), or remove groups that nobody reads with",
    })
}

fn of_loop(shared: &Shared) -> Vec<Alert> {
    let mean = |name: &str| shared.samples.mean(name, SECONDS).unwrap_or(0.0);
    let (busy, refused) = (mean("loop_busy"), mean("refused"));
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
            "it has no processor time left: spread the clients over more brokers",
        ));
    }
    if refused > 0.0 {
        let summary = format!("{refused:.1} publishes a second were refused in the last minute");
        found.push(warning(
            "refused",
            summary,
            "`headwater clients list` and the metric headwater_mqtt_refusals_total say which and why",
        ));
    }
    found
}

fn of_groups(shared: &Shared) -> Vec<Alert> {
    let Ok(office) = shared.office.get() else {
        return Vec::new();
    };
    let mut losing: Vec<(f64, Alert)> = Vec::new();
    for (name, place) in standing::behind(shared, &office) {
        let loss_s = if place.lost_records > 0 {
            Some(0.0)
        } else {
            place.loss_s
        };
        let Some(loss_s) = loss_s.filter(|loss_s| *loss_s < LOSS_SOON_S) else {
            continue;
        };
        let summary = if place.lost_records > 0 {
            format!(
                "group {name} has lost {} records of {}",
                place.lost_records, place.name
            )
        } else {
            format!(
                "group {name} loses records of {} in {:.1} hours",
                place.name,
                loss_s / 3_600.0
            )
        };
        let severity = if loss_s < LOSS_NOW_S {
            Severity::Critical
        } else {
            Severity::Warning
        };
        let alert = Alert {
            name: "group",
            severity,
            summary,
            remedy: "start or speed up its reader, or keep more (log.classes.*.retention); remove a group that nobody reads with",
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
