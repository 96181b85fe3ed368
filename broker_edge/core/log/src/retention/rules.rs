//! What the maintenance thread does for a partition: removes old segments, saves indexes, marks idleness, prepares spares.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use crate::config::SyncMode;
use crate::failpoint;
use crate::ids::Offset;
use crate::partition::{HeldLoss, Hold};
use crate::recovery::checkpoint::CheckpointKind;
use crate::segment::header::{IndexState, Segment};
use crate::state::core::Core;
use crate::state::disk_budget::DiskLevel;
use crate::state::stats::Cause;
use crate::vfs::files::OpenMode;

/// A partition that wrote nothing for this long is marked as whole up to here.
const IDLE: Duration = Duration::from_secs(5);
/// Marks for idleness are at least so far apart: at a record now and then they would cost more than the records.
const IDLE_MARKS_APART: Duration = Duration::from_secs(60);

/// What is needed to judge the age of segments.
struct Ages {
    age: Duration,
    steady: Duration,
    /// None while the wall clock can not be believed.
    wall_us: Option<i64>,
}

impl Ages {
    /// What this process wrote is judged by the steady clock, which never jumps; what it found, by the times in it.
    fn is_first_old(&self, segments: &[Arc<Segment>]) -> bool {
        let Some(first) = segments.first() else {
            return false;
        };
        if let Some((_, last)) = first.written_between() {
            return self.steady.saturating_sub(last) > self.age;
        }
        match (self.wall_us, newest_time_of_first(segments)) {
            (Some(now), Some(newest)) => now.saturating_sub(newest) > micros(self.age),
            _ => false,
        }
    }
}

fn micros(age: Duration) -> i64 {
    i64::try_from(age.as_micros()).unwrap_or(i64::MAX)
}

impl Core {
    pub(crate) fn maintain(&self) {
        self.save_indexes();
        self.save_topics();
        if self.quarantine_bytes.load(Ordering::Relaxed) > 0 {
            self.count_quarantine();
        }
        if self.is_stopped() {
            return;
        }
        if self.is_taken_away() {
            return;
        }
        self.prepare_spare();
        self.mark_idleness();
        self.expire();
    }

    /// Stops the partition when the file that it writes is no longer under its name: deleted, moved or hidden by a mount.
    /// The system goes on taking its writes and syncs, and with this process all of them would be gone.
    fn is_taken_away(&self) -> bool {
        let active_path = || self.segments.read().last().map(|s| s.path.clone());
        let Some(path) = active_path() else {
            return false;
        };
        let opened = self.context.open(&path, OpenMode::Read);
        let is_missing = opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // One that was sealed meanwhile may have been removed since.
        let is_taken = is_missing && active_path().is_some_and(|active| active == path);
        if is_taken {
            self.stop(&format!("{} is gone while it is written", path.display()));
        }
        is_taken
    }

    pub(crate) fn save_indexes(&self) {
        let _one_at_a_time = self.saving.lock();
        for segment in self.all_segments() {
            let index = match &*segment.index.lock() {
                IndexState::Memory(index) => Arc::clone(index),
                _ => continue,
            };
            match self.context.save_index(&segment, &index) {
                Ok(()) => {
                    *segment.index.lock() = IndexState::Saved;
                    segment.forget_file_bytes();
                }
                Err(error) => {
                    tracing::warn!(partition = %self.context.name, %error, "an index is not saved yet");
                    return;
                }
            }
        }
    }

    fn mark_idleness(&self) {
        // Whoever holds it is writing: then there is no idleness to mark.
        let Some(mut active) = self.active.try_lock() else {
            return;
        };
        let now = self.context.seams.clock.steady();
        let since = now.saturating_sub(active.wrote_at);
        let apart = match self.context.sync {
            SyncMode::Interval(interval) => IDLE_MARKS_APART.max(interval),
            SyncMode::Always | SyncMode::Never => IDLE_MARKS_APART,
        };
        let is_due = active
            .marked_at
            .is_none_or(|at| now.saturating_sub(at) >= apart);
        if !active.marked && since >= IDLE && is_due {
            self.write_mark(&mut active, CheckpointKind::Idle);
            active.marked_at = Some(now);
        }
    }

    fn expire(&self) {
        let ages = self.context.retention_age.map(|age| Ages {
            age,
            steady: self.context.seams.clock.steady(),
            wall_us: self.context.ages.now_us(&*self.context.seams.clock),
        });
        if let Some(ages) = &ages {
            self.seal_when_old(ages);
        }
        let removing = self.removing.lock();
        while let Some(cause) = self.cause_to_remove(ages.as_ref()) {
            if !self.remove_oldest(&removing, cause) {
                return;
            }
        }
    }

    /// Why the oldest segment is to go now, if it is.
    fn cause_to_remove(&self, ages: Option<&Ages>) -> Option<Cause> {
        let segments = self.all_segments();
        let [first, second, ..] = segments.as_slice() else {
            return None;
        };
        first.sealed.get()?;
        if !self.may_remove() {
            return None;
        }
        let size_bytes = self.size_bytes();
        let is_over = |limit: Option<u64>| limit.is_some_and(|limit| size_bytes > limit);
        if is_over(self.context.retention_hard_bytes) {
            return Some(Cause::HardBytes);
        }
        let cause = if ages.is_some_and(|ages| ages.is_first_old(&segments)) {
            Cause::Age
        } else if is_over(self.context.retention_bytes) {
            Cause::Bytes
        } else {
            return None;
        };
        self.holds_below(second.base).is_empty().then_some(cause)
    }

    /// False until whoever has to be asked can be, and once the log closes.
    fn may_remove(&self) -> bool {
        let needs_holders = self.context.honours_holds || !self.context.removes_at_once;
        !needs_holders || self.holders.read().is_some()
    }

    /// Who has not finished what lies below `end`, where the class heeds that.
    fn holds_below(&self, end: Offset) -> Vec<Hold> {
        if !self.context.honours_holds {
            return Vec::new();
        }
        let holders = self.holders.read().clone();
        holders.map_or_else(Vec::new, |holders| {
            let mut holds = holders.holding(self.id(), end);
            holds.retain(|hold| hold.next < end);
            holds
        })
    }

    /// Only sealed segments are removed, so one that is filled slowly is sealed by age.
    fn seal_when_old(&self, ages: &Ages) {
        let Some(active) = self.segments.read().last().cloned() else {
            return;
        };
        let quarter = ages.age / 4;
        let by_steady = active
            .written_between()
            .is_some_and(|(first, _)| ages.steady.saturating_sub(first) >= quarter);
        let by_wall = || {
            let first_us = active
                .with_builder(|growing| growing.first_time_us())
                .flatten();
            matches!((first_us, ages.wall_us), (Some(first), Some(now)) if now.saturating_sub(first) >= micros(quarter))
        };
        if by_steady || by_wall() {
            self.queue.lock().seal = true;
            self.queue_changed.notify_one();
        }
    }

    /// Removes the oldest segment, unless it is the active one or a hook postpones it.
    fn remove_oldest(&self, _decided_under: &MutexGuard<'_, ()>, cause: Cause) -> bool {
        if self.backups.load(Ordering::Acquire) > 0 {
            return false;
        }
        let range = {
            let segments = self.segments.read();
            let [first, second, ..] = segments.as_slice() else {
                return false;
            };
            first.base..second.base
        };
        let hooks = self.hooks.read().clone();
        if !hooks.iter().all(|hook| hook(range.clone())) {
            return false;
        }
        let held_records = self.tell_holders(&range, cause);
        // Refused to readers before the bytes go.
        self.set_log_start(range.end);
        failpoint!("retention-start-moved");
        let segment = self.segments.write().remove(0);
        self.forget_files(segment.base);
        self.keys.lock().forget_below(range.end);
        self.topic_catalog.lock().forget_below(range.end);
        self.found.lock().retain(|gap| gap.range.end > range.end);
        self.delete_files(segment);
        let records = range.end.0 - range.start.0;
        self.context.counters.removed(cause, records, held_records);
        true
    }

    /// Says who loses what. Returns how many records were held by anybody.
    fn tell_holders(&self, range: &Range<Offset>, cause: Cause) -> u64 {
        let holds = match cause {
            Cause::HardBytes | Cause::Disk => self.holds_below(range.end),
            Cause::Age | Cause::Bytes | Cause::Advance => Vec::new(),
        };
        let Some(first_held) = holds.iter().map(|hold| hold.next.max(range.start)).min() else {
            return 0;
        };
        for hold in &holds {
            tracing::warn!(
                partition = %self.context.name, group = hold.holder, start = hold.next.max(range.start).0,
                end = range.end.0, cause = cause.name(), "records go that a consumer group has not finished"
            );
        }
        if let Some(holders) = self.holders.read().clone() {
            holders.overridden(&HeldLoss {
                partition: self.id(),
                range: range.clone(),
                holds: &holds,
                cause,
            });
        }
        range.end.0 - first_held.0
    }

    /// Time up to which the oldest segment reaches, if it may be removed at all.
    pub(crate) fn oldest_removable_us(&self) -> Option<i64> {
        let segments = self.all_segments();
        let [first, _, ..] = segments.as_slice() else {
            return None;
        };
        Some(first.sealed.get()?.max_time_us)
    }

    /// Removes the oldest segment because the disk budget asks for it, and says how many bytes that gave back.
    pub(crate) fn trim_oldest(&self, may_override: bool) -> Option<u64> {
        let removing = self.removing.lock();
        let segments = self.all_segments();
        let [first, second, ..] = segments.as_slice() else {
            return None;
        };
        first.sealed.get()?;
        if !self.may_remove() {
            return None;
        }
        if !may_override && !self.holds_below(second.base).is_empty() {
            return None;
        }
        let bytes = first.file_bytes(&self.context);
        drop(segments);
        self.remove_oldest(&removing, Cause::Disk).then_some(bytes)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        let segments = self.all_segments();
        let spare_bytes = self.spare.lock().as_ref().map_or(0, |spare| spare.bytes);
        let files = segments
            .iter()
            .map(|segment| segment.file_bytes(&self.context));
        files.sum::<u64>() + spare_bytes + self.quarantine_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn oldest_time_us(&self) -> Option<i64> {
        let first = self.segments.read().first().cloned()?;
        let time_us = match first.sealed.get() {
            Some(summary) => Some(summary.first_time_us),
            None => first
                .with_builder(|growing| growing.first_time_us())
                .flatten(),
        };
        time_us.filter(|time_us| *time_us != i64::MIN)
    }

    fn delete_files(&self, segment: Arc<Segment>) {
        let files = &*self.context.seams.files;
        let path = segment.path.clone();
        let may_recycle = self.context.disk.level() < DiskLevel::Acting;
        // May be missing; should it stay behind, it belongs to no segment and is never read.
        let _ = files.remove(&segment.index_path());
        failpoint!("retention-index-removed");
        let recycled = if may_recycle {
            self.recycle(segment)
        } else {
            Ok(false)
        };
        match recycled {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(partition = %self.context.name, %error, "a segment is not recycled");
            }
        }
        // Synced one by one: were a later segment gone after a power cut and this one back, there would be a gap.
        let removed = files
            .remove(&path)
            .and_then(|()| files.sync_dir(&self.context.dir));
        failpoint!("retention-segment-removed");
        if let Err(error) = removed {
            tracing::warn!(partition = %self.context.name, path = %path.display(), %error, "an old segment is not removed");
        }
    }

    /// Removes whole segments below `to`.
    pub(crate) fn advance_log_start(&self, to: Offset) {
        let removing = self.removing.lock();
        loop {
            let is_below = {
                let segments = self.segments.read();
                matches!(segments.as_slice(), [_, second, ..] if second.base <= to)
            };
            if !is_below || !self.remove_oldest(&removing, Cause::Advance) {
                return;
            }
        }
    }
}

/// No record of the first segment is newer than this. One that is damaged or can not be read just now has no time of
/// its own, so the first record after it counts; None, so that it stays, while there is none.
fn newest_time_of_first(segments: &[Arc<Segment>]) -> Option<i64> {
    let (first, later) = segments.split_first()?;
    let own = first.sealed.get()?.max_time_us;
    if own != i64::MIN {
        return Some(own);
    }
    later.iter().find_map(|segment| match segment.sealed.get() {
        Some(summary) => Some(summary.first_time_us).filter(|time| *time != i64::MIN),
        None => segment
            .with_builder(|growing| growing.first_time_us())
            .flatten(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::partition::{Gap, GapKind};
    use crate::{Class, ClassConfig, Log, LogConfig, RecordMeta, Records, Seams};

    /// Appends a record on a topic of its own and waits until it is durable.
    fn append(core: &Core, number: u64) {
        let mut records = Records::new();
        let topic = records.topic(&number.to_string(), 0..1).expect("room");
        let client = records.client("client").expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, &[7; 3000]).expect("room");
        let range = core.append(records).expect("taken");
        let deadline = Instant::now() + Duration::from_secs(60);
        while core.high_watermark() < range.end {
            assert!(Instant::now() < deadline, "{:?}", core.state());
            std::thread::yield_now();
        }
    }

    /// All are bounded: what is gone would take the place of what is there, and a file that is open keeps its space.
    #[test]
    fn topics_damage_keys_and_files_below_the_log_start_are_forgotten_and_no_others() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = LogConfig {
            segment_bytes: 16 << 10,
            maintain_every: None,
            tail_bytes: 0,
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir.path())
        };
        let (log, _) = Log::open(config, Seams::system()).expect("it opens");
        let core = &*log.partitions()[0].0;
        (0..40).for_each(|number| append(core, number));
        let topics = || {
            let known = core.with_sealed_topics(|topics| {
                let names = topics.expect("few").keys();
                let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
                numbers.sort_unstable();
                numbers
            });
            known.expect("they are read")
        };
        let bases: Vec<u64> = core.segments.read().iter().map(|s| s.base.0).collect();
        let (start, end) = (bases[2], *bases.last().expect("an active one"));
        assert!(topics().into_iter().eq(0..end));
        let gap = |from, to| Gap {
            range: Offset(from)..Offset(to),
            kind: GapKind::Damage,
            reason: String::new(),
        };
        let gaps = [
            gap(0, 1),
            gap(start - 1, start),
            gap(start - 1, start + 1),
            gap(start, start + 1),
        ];
        for offset in [0, start - 1, start] {
            let offset = Offset(offset);
            core.keys.lock().add_queued("key", "topic\0key", offset);
            assert_eq!(
                log.partitions()[0].read(offset, 1).expect("a read").len(),
                1
            );
        }
        core.found.lock().extend(gaps.clone());
        let is_open = || [0, 1, 2].map(|at| core.cached_file(Offset(bases[at])).is_some());
        assert_eq!(is_open(), [true; 3]);
        core.advance_log_start(Offset(start));
        let left = gaps[2..].iter().map(|gap| gap.range.clone());
        assert!(core.found_damage().into_iter().eq(left));
        assert!(topics().into_iter().eq(start..end));
        assert_eq!(is_open(), [false, false, true]);
        let places = core.keys.lock().candidates("key", Offset(end));
        assert_eq!(places, [Offset(start)]);
    }
}
