//! The retention of a partition: which segments go, and why. Removing them is `removal.rs`, the rest of the upkeep
//! `maintenance.rs`.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::ids::Offset;
use crate::index::segment::Segment;
use crate::index::shared::Shared;
use crate::read::reader::Reader;
use crate::retention::age::AgeClock;
use crate::retention::holds::{DeleteHook, Hold, Holders};
use crate::state::disk_budget::DiskBudget;
use crate::state::stats::Cause;
use crate::write::writer::Writer;

pub(crate) struct Retention {
    shared: Shared,
    pub(super) reader: Arc<Reader>,
    pub(super) writer: Arc<Writer>,
    pub(super) budget: Arc<DiskBudget>,
    /// One for the whole log.
    pub(super) ages: Arc<AgeClock>,
    /// Held from the decision to remove a segment until it is gone: two decisions at once would remove two for one
    /// excess.
    pub(super) removing: Mutex<()>,
    /// Backups that are being taken: nothing is removed meanwhile. Raised under `removing`.
    pub(super) backups: AtomicUsize,
    /// None before the first one; one that refuses after the last. Set and ended under `removing`, so that no call of an
    /// earlier one is in progress afterwards.
    pub(super) hook: RwLock<Option<DeleteHook>>,
    pub(super) holders: RwLock<Option<Arc<dyn Holders>>>,
}

/// The times by which the age of segments is judged.
struct Ages {
    age: Duration,
    steady: Duration,
    /// None while the wall clock cannot be believed.
    wall_us: Option<i64>,
}

impl Ages {
    /// Segments that this process wrote are judged by the steady clock, which never jumps; older ones by the times in
    /// them.
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

impl Deref for Retention {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Retention {
    pub fn new(
        shared: Shared,
        (reader, writer): (&Arc<Reader>, &Arc<Writer>),
        (budget, ages): (&Arc<DiskBudget>, &Arc<AgeClock>),
    ) -> Self {
        Self {
            shared,
            reader: Arc::clone(reader),
            writer: Arc::clone(writer),
            budget: Arc::clone(budget),
            ages: Arc::clone(ages),
            removing: Mutex::default(),
            backups: AtomicUsize::new(0),
            hook: RwLock::default(),
            holders: RwLock::default(),
        }
    }

    /// Has retention ask `holders` before it removes records that its class would not keep.
    pub fn hold_with(&self, holders: &Arc<dyn Holders>) {
        *self.holders.write() = Some(Arc::clone(holders));
    }

    pub fn set_hook(&self, hook: DeleteHook) {
        let _removing = self.removing.lock();
        *self.hook.write() = Some(hook);
    }

    /// Has nothing removed until the next hook, unless that took its place already.
    pub fn end_hook(&self, ended: &DeleteHook) {
        let _removing = self.removing.lock();
        let is_current = |hook: &DeleteHook| Arc::ptr_eq(hook, ended);
        if self.hook.read().as_ref().is_some_and(is_current) {
            self.close();
        }
    }

    /// Holders may hold partitions; both would then keep each other alive.
    pub fn drop_holders(&self) {
        *self.holders.write() = None;
    }

    /// Drops the hook, which may hold partitions as well. Nothing is removed any more, because it could not be asked.
    pub fn close(&self) {
        *self.hook.write() = Some(Arc::new(|_| false));
    }

    /// Removes the segments that are too old or too many.
    pub(super) fn expire(&self) {
        let ages = self.context.kept.retention_age.map(|age| Ages {
            age,
            steady: self.context.steady(),
            wall_us: self.ages.now_us(&*self.context.seams.clock),
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

    /// Why the oldest segment must be removed now, if it must.
    fn cause_to_remove(&self, ages: Option<&Ages>) -> Option<Cause> {
        let (_, end) = self.removable()?;
        let size_bytes = self.segments.size_bytes();
        let is_over = |limit: Option<u64>| limit.is_some_and(|limit| size_bytes > limit);
        if is_over(self.context.kept.retention_hard_bytes) {
            return Some(Cause::HardBytes);
        }
        let cause = if ages.is_some_and(|ages| ages.is_first_old(&self.segments.all())) {
            Cause::Age
        } else if is_over(self.context.kept.retention_bytes) {
            Cause::Bytes
        } else {
            return None;
        };
        self.holds_below(end).is_empty().then_some(cause)
    }

    /// The oldest segment and its end, when it is sealed and may be removed. None before the holders are known, if they
    /// must be asked, and once the log closes.
    pub(super) fn removable(&self) -> Option<(Arc<Segment>, Offset)> {
        if self.status.is_following() {
            return None; // The leader decides, and tells.
        }
        let (first, end) = self.segments.oldest()?;
        first.sealed.get()?;
        let needs_holders = self.context.kept.honours_holds || !self.context.removes_at_once;
        let may_remove = !needs_holders || self.holders.read().is_some();
        may_remove.then_some((first, end))
    }

    /// The holders that have not finished the records below `end`, when the class respects holds.
    pub(super) fn holds_below(&self, end: Offset) -> Vec<Hold> {
        if !self.context.kept.honours_holds {
            return Vec::new();
        }
        let holders = self.holders.read().clone();
        holders.map_or_else(Vec::new, |holders| {
            let mut holds = holders.holding(self.context.identity.partition, end);
            holds.retain(|hold| hold.next < end);
            holds
        })
    }

    /// Only sealed segments are removed, so one that is filled slowly is sealed by age.
    fn seal_when_old(&self, ages: &Ages) {
        let active = self.segments.active();
        let quarter = ages.age / 4;
        let by_steady = active
            .written_between()
            .is_some_and(|(first, _)| ages.steady.saturating_sub(first) >= quarter);
        let by_wall = || matches!((active.first_time_us(), ages.wall_us), (Some(first), Some(now)) if now.saturating_sub(first) >= micros(quarter));
        if by_steady || by_wall() {
            self.writer.request_seal();
        }
    }
}

/// No record of the first segment is newer than this. A segment that cannot be read has no time of its own, so the
/// first record after it counts. None, so that the segment stays, while there is no such record.
fn newest_time_of_first(segments: &[Arc<Segment>]) -> Option<i64> {
    let (first, later) = segments.split_first()?;
    let own = first.sealed.get()?.max_time_us;
    if own != i64::MIN {
        return Some(own);
    }
    later.iter().find_map(|segment| segment.first_time_us())
}
