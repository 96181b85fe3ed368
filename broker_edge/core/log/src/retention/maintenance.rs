//! What the maintenance thread does: the upkeep of each partition, then the disk budget of the log.

use std::io;

use crate::config::DiskAction;
use crate::ids::Class;
use crate::index::key_lookup::keep_key_filters;
use crate::retention::rules::Retention;
use crate::state::disk_budget::{DiskBudget, DiskLevel};
use crate::vfs::files::{Files, OpenMode};

impl Retention {
    /// Saves indexes, checks that the files are still there, prepares spares, notes idleness, removes old segments.
    pub fn maintain(&self) {
        self.segments.save_indexes();
        self.writer.forget_keys_below(self.segments.saved_below());
        self.topics.save();
        if self.reader.quarantine_bytes() > 0 {
            self.reader.count_quarantine();
        }
        if self.status.is_stopped() || self.is_taken_away() {
            return;
        }
        self.writer.prepare_spare();
        self.writer.note_idleness();
        self.expire();
    }

    /// Stops the partition when the file that it writes is no longer under its name: deleted, moved or hidden by a
    /// mount. The system still accepts writes and syncs, but they would all be lost with this process.
    fn is_taken_away(&self) -> bool {
        let path = self.segments.active().path.clone();
        let opened = self.context.open(&path, OpenMode::Read);
        let is_missing = opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // A segment that was sealed meanwhile may have been removed since.
        let is_taken = is_missing && self.segments.active().path == path;
        if is_taken {
            let reason = format!("{} is gone while it is written", path.display());
            self.writer.stop(&reason);
        }
        is_taken
    }

    /// Length of all files of the partition, except very small ones, including prepared space.
    pub fn file_bytes(&self) -> u64 {
        let (spare, aside) = (self.writer.spare_bytes(), self.reader.quarantine_bytes());
        self.segments.file_bytes() + spare + aside
    }
}

pub(crate) fn maintain(
    partitions: &[&Retention],
    budget: &DiskBudget,
    files: &dyn Files,
    key_filter_bytes: usize,
) {
    for partition in partitions {
        partition.maintain();
    }
    let stores: Vec<_> = partitions.iter().map(|one| &*one.segments).collect();
    keep_key_filters(&stores, key_filter_bytes);
    let before = budget.level();
    let mut level = budget.measure(used_bytes(partitions), files);
    if level >= DiskLevel::Acting {
        for partition in partitions {
            partition.writer.drop_recycled_spare();
        }
        if budget.action() == DiskAction::Trim {
            trim(partitions, budget);
        }
        level = budget.measure(used_bytes(partitions), files);
    }
    if level != before {
        tell_level(budget, before, level);
    }
    for partition in partitions {
        let class = partition.context.class;
        partition.status.set_over_budget(match level {
            DiskLevel::Normal | DiskLevel::Warned => false,
            DiskLevel::Acting => class == Class::Telemetry && budget.action() == DiskAction::Refuse,
            DiskLevel::Full => class != Class::Internal,
        });
    }
}

fn used_bytes(partitions: &[&Retention]) -> u64 {
    partitions.iter().copied().map(Retention::file_bytes).sum()
}

/// Removes the oldest telemetry until use is below where the action begins. Held records go last, and only as far as
/// the log would otherwise be full.
fn trim(partitions: &[&Retention], budget: &DiskBudget) {
    let is_trimmed = |partition: &&&Retention| {
        partition.context.class == Class::Telemetry && !partition.status.is_stopped()
    };
    let mut used = used_bytes(partitions);
    for (goal, may_override) in [
        (budget.trim_to_bytes(), false),
        (budget.full_from_bytes(), true),
    ] {
        let mut candidates: Vec<_> = partitions.iter().filter(is_trimmed).collect();
        while used > goal {
            let oldest = candidates
                .iter()
                .enumerate()
                .filter_map(|(at, partition)| Some((partition.oldest_removable_us()?, at)))
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

fn tell_level(budget: &DiskBudget, before: DiskLevel, level: DiskLevel) {
    let usage = budget.usage();
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
    let what_follows = match (level, budget.action()) {
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
