//! What the maintenance thread does for a partition: removes old segments, saves indexes, marks idleness, prepares spares.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use crate::core::Core;
use crate::ids::Offset;
use crate::mark::MarkKind;
use crate::segment::{IndexPlace, Segment};

/// A partition that wrote nothing for this long is marked as whole up to here.
const IDLE: Duration = Duration::from_secs(5);
/// 2024-01-01: a wall clock before this has not been set.
const PLAUSIBLE_US: i64 = 1_704_067_200_000_000;

impl Core {
    pub(crate) fn maintain(&self) {
        self.save_indexes();
        if self.is_stopped() {
            return;
        }
        self.prepare_spare();
        self.mark_idleness();
        self.expire();
    }

    fn save_indexes(&self) {
        for segment in self.all_segments() {
            let index = match &*segment.index.lock() {
                IndexPlace::Memory(index) => Arc::clone(index),
                _ => continue,
            };
            match self.context.save_index(&segment, &index) {
                Ok(()) => *segment.index.lock() = IndexPlace::Saved,
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
        let since = self
            .context
            .seams
            .clock
            .steady()
            .saturating_sub(active.wrote_at);
        if !active.marked && since >= IDLE {
            self.write_mark(&mut active, MarkKind::Idle);
        }
    }

    fn expire(&self) {
        let oldest_time = self
            .context
            .retention_age
            .and_then(|age| self.oldest_time_us(age));
        if let (Some(oldest), Some(age)) = (oldest_time, self.context.retention_age) {
            self.seal_when_old(oldest, age);
        }
        let removing = self.removing.lock();
        loop {
            let segments = self.all_segments();
            let [first, _, ..] = segments.as_slice() else {
                return;
            };
            if first.sealed.get().is_none() {
                return;
            }
            let is_old = match (oldest_time, newest_time_of_first(&segments)) {
                (Some(oldest), Some(newest)) => newest < oldest,
                _ => false,
            };
            let is_over = self
                .context
                .retention_bytes
                .is_some_and(|limit| self.size_bytes() > limit);
            drop(segments);
            if !(is_old || is_over) || !self.remove_oldest(&removing) {
                return;
            }
        }
    }

    /// Records before this time are too old; None while the clock can not be believed.
    fn oldest_time_us(&self, age: Duration) -> Option<i64> {
        let now = self.context.seams.clock.now_us();
        let newest = self
            .all_segments()
            .iter()
            .map(|segment| match segment.sealed.get() {
                Some(summary) => summary.max_time_us,
                None => segment
                    .with_growing(|growing| growing.max_time_us())
                    .unwrap_or(i64::MIN),
            })
            .max()
            .unwrap_or(i64::MIN);
        let age_us = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        (now >= PLAUSIBLE_US && now >= newest).then(|| now.saturating_sub(age_us))
    }

    /// Only sealed segments are removed, so one that is filled slowly is sealed by age.
    fn seal_when_old(&self, oldest: i64, age: Duration) {
        let three_quarters = i64::try_from(age.as_micros() / 4 * 3).unwrap_or(i64::MAX);
        let active = self.segments.read().last().cloned();
        let first = active
            .and_then(|segment| segment.with_growing(|growing| growing.first_time_us()))
            .flatten();
        if first.is_some_and(|first| first <= oldest.saturating_add(three_quarters)) {
            self.queue.lock().seal = true;
            self.queue_changed.notify_one();
        }
    }

    /// Removes the oldest segment, unless it is the active one or a hook postpones it.
    fn remove_oldest(&self, _decided_under: &MutexGuard<'_, ()>) -> bool {
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
        // Refused to readers before the bytes go.
        self.set_log_start(range.end);
        let segment = self.segments.write().remove(0);
        self.indexes
            .lock()
            .retain(|(base, _)| *base != segment.base);
        self.keys.lock().forget_below(range.end);
        self.sealed_topics.lock().forget_below(range.end);
        self.found.lock().retain(|gap| gap.range.end > range.end);
        self.delete_files(segment);
        true
    }

    fn delete_files(&self, segment: Arc<Segment>) {
        let files = &*self.context.seams.files;
        let path = segment.path.clone();
        // May be missing; should it stay behind, it belongs to no segment and is never read.
        let _ = files.remove(&segment.index_path());
        let is_recycled = self.recycle(segment).unwrap_or_else(|error| {
            tracing::warn!(partition = %self.context.name, %error, "a segment is not recycled");
            false
        });
        if is_recycled {
            return;
        }
        // Synced one by one: were a later segment gone after a power cut and this one back, there would be a gap.
        let removed = files
            .remove(&path)
            .and_then(|()| files.sync_dir(&self.context.dir));
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
            if !is_below || !self.remove_oldest(&removing) {
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
            .with_growing(|growing| growing.first_time_us())
            .flatten(),
    })
}
