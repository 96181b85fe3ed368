//! What the maintenance thread does for a whole log: each partition's upkeep, then the disk budget.

use crate::ids::Class;
use crate::partition::Partition;
use crate::state::core::Core;
use crate::state::disk_budget::{Disk, DiskAction, DiskLevel};

pub(crate) fn maintain(partitions: &[Partition]) {
    for partition in partitions {
        partition.0.maintain();
    }
    keep_within_budget(partitions);
}

fn keep_within_budget(partitions: &[Partition]) {
    let Some(first) = partitions.first() else {
        return;
    };
    let (disk, files) = (&first.0.context.disk, &*first.0.context.seams.files);
    let before = disk.level();
    let mut level = disk.measure(used_bytes(partitions), files);
    if level >= DiskLevel::Acting {
        for partition in partitions {
            partition.0.drop_recycled_spare();
        }
        if disk.action() == DiskAction::Trim {
            trim(partitions, disk);
        }
        level = disk.measure(used_bytes(partitions), files);
    }
    if level != before {
        say(disk, before, level);
    }
    for partition in partitions {
        let class = partition.class();
        let is_refused = match level {
            DiskLevel::Normal | DiskLevel::Warned => false,
            DiskLevel::Acting => class == Class::Telemetry && disk.action() == DiskAction::Refuse,
            DiskLevel::Full => class != Class::Internal,
        };
        partition.0.set_refusing(is_refused);
    }
}

fn used_bytes(partitions: &[Partition]) -> u64 {
    partitions
        .iter()
        .map(|partition| partition.0.file_bytes())
        .sum()
}

/// Removes the oldest telemetry until use is below where the action begins. What is held goes last, and only as far as
/// the log would otherwise be full.
fn trim(partitions: &[Partition], disk: &Disk) {
    let telemetry: Vec<&Core> = partitions
        .iter()
        .map(|partition| &*partition.0)
        .filter(|core| core.context.class == Class::Telemetry && !core.is_stopped())
        .collect();
    let mut used = used_bytes(partitions);
    for (goal, may_override) in [
        (disk.trim_to_bytes(), false),
        (disk.full_from_bytes(), true),
    ] {
        let mut candidates = telemetry.clone();
        while used > goal {
            let oldest = candidates
                .iter()
                .enumerate()
                .filter_map(|(at, core)| Some((core.oldest_removable_us()?, at)))
                .min();
            let Some((_, at)) = oldest else {
                break;
            };
            match candidates[at].trim_oldest(may_override) {
                Some(freed) => used = used.saturating_sub(freed),
                None => {
                    candidates.swap_remove(at);
                }
            }
        }
    }
}

fn say(disk: &Disk, before: DiskLevel, level: DiskLevel) {
    let usage = disk.usage();
    let (used_bytes, budget_bytes) = (usage.used_bytes, usage.budget_bytes.unwrap_or(u64::MAX));
    if level < before {
        tracing::info!(
            used_bytes,
            budget_bytes,
            level = level.name(),
            "the log uses less of its disk budget"
        );
        return;
    }
    let what_follows = match (level, disk.action()) {
        (DiskLevel::Acting, DiskAction::Refuse) => "telemetry is refused until there is room",
        (DiskLevel::Acting, DiskAction::Trim) => "the oldest telemetry is removed",
        (DiskLevel::Full, _) => "everything is refused until there is room",
        _ => "give it more, or keep less",
    };
    tracing::warn!(
        used_bytes,
        budget_bytes,
        level = level.name(),
        "the log nears the end of its disk budget: {what_follows}"
    );
}
