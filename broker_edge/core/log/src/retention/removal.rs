//! Removes segments: first readers are refused, then the topics and gaps of the segment are dropped, then its files. Its
//! keys go with the next maintenance, if any are in memory; until then a look-up passes over them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use crate::failpoint;
use crate::ids::Offset;
use crate::index::segment::Segment;
use crate::retention::holds::HeldLoss;
use crate::retention::rules::Retention;
use crate::state::disk_budget::DiskLevel;
use crate::state::stats::Cause;

/// While it lives, nothing is removed from the partition and none of its files is rewritten.
pub(crate) struct RemovalPause<'a>(&'a Retention);

impl Drop for RemovalPause<'_> {
    fn drop(&mut self) {
        self.0.backups.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Retention {
    pub fn pause(&self) -> RemovalPause<'_> {
        let _removing = self.removing.lock();
        self.backups.fetch_add(1, Ordering::AcqRel);
        RemovalPause(self)
    }

    /// Removes whole segments below `to`.
    pub fn advance_log_start(&self, to: Offset) {
        let removing = self.removing.lock();
        while self.segments.oldest().is_some_and(|(_, end)| end <= to) {
            if !self.remove_oldest(&removing, Cause::Advance) {
                return;
            }
        }
    }

    /// The newest time in the oldest segment, if it can be removed at all.
    pub(super) fn oldest_removable_us(&self) -> Option<i64> {
        let (first, _) = self.segments.oldest()?;
        Some(first.sealed.get()?.max_time_us)
    }

    /// Removes the oldest segment for the disk budget, and returns how many bytes that freed.
    pub(super) fn trim_oldest(&self, may_override: bool) -> Option<u64> {
        let removing = self.removing.lock();
        let (first, end) = self.removable()?;
        if !may_override && !self.holds_below(end).is_empty() {
            return None;
        }
        let bytes = first.file_bytes(&self.context);
        drop(first);
        self.remove_oldest(&removing, Cause::Disk).then_some(bytes)
    }

    /// Removes the oldest segment, unless it is the active one or the hook postpones it.
    pub(super) fn remove_oldest(&self, _decided_under: &MutexGuard<'_, ()>, cause: Cause) -> bool {
        if self.backups.load(Ordering::Acquire) > 0 {
            return false;
        }
        let Some(range) = self.segments.oldest().map(|(first, end)| first.base..end) else {
            return false;
        };
        let hook = self.hook.read().clone();
        // A follower removes what its leader has removed, whose hook was asked. Its own ended with its last office.
        if !self.status.is_following() && hook.is_some_and(|hook| !hook(range.clone())) {
            return false;
        }
        let held_records = self.tell_holders(&range, cause);
        // Readers are refused before the bytes are removed.
        self.status.set_log_start(range.end);
        failpoint!("retention-start-moved");
        let segment = self.segments.remove_first();
        self.topics.forget_below(range.end);
        self.reader.forget_damage_below(range.end);
        self.delete_files(segment);
        let records = range.end.0 - range.start.0;
        let counters = &self.context.counters;
        counters.removed(cause, records, held_records);
        true
    }

    /// Tells the holders which records they lose. Returns how many held records there are.
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
                end = range.end.0, cause = cause.name(), "records are removed that a consumer group has not finished"
            );
        }
        if let Some(holders) = self.holders.read().clone() {
            holders.overridden(&HeldLoss {
                partition: self.context.identity.partition,
                range: range.clone(),
                holds: &holds,
                cause,
            });
        }
        range.end.0 - first_held.0
    }

    fn delete_files(&self, segment: Arc<Segment>) {
        let files = &*self.context.seams.files;
        let path = segment.path.clone();
        let may_recycle = self.budget.level() < DiskLevel::Acting;
        // May be missing. If it stays behind, it belongs to no segment and is never read.
        let _ = files.remove(&segment.index_path());
        failpoint!("retention-index-removed");
        if may_recycle {
            match self.writer.recycle(segment) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(partition = %self.context.name, %error, "a segment could not be recycled");
                }
            }
        }
        // Synced one by one: if a power cut brought this segment back but not a later one, there would be a gap.
        let removed = files
            .remove(&path)
            .and_then(|()| files.sync_dir(&self.context.dir));
        failpoint!("retention-segment-removed");
        if let Err(error) = removed {
            tracing::warn!(partition = %self.context.name, path = %path.display(), %error, "an old segment could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::read::gap::Gap;
    use crate::{Class, ClassConfig, Log, LogConfig, Partition, RecordMeta, Records, Seams};

    /// Appends a record on a topic of its own and waits until it is durable.
    fn append(partition: &Partition, number: u64) {
        let mut records = Records::new();
        let topic = records.topic(&number.to_string(), 0..1).expect("room");
        let client = records.client("client").expect("room");
        let meta = RecordMeta::new(topic, client, 1);
        records.push(meta, &[7; 3000]).expect("room");
        let range = partition.append(records).expect("taken");
        let deadline = Instant::now() + Duration::from_secs(60);
        while partition.high_watermark() < range.end {
            assert!(Instant::now() < deadline, "{:?}", partition.state());
            std::thread::yield_now();
        }
    }

    /// All are bounded: what is gone would take the place of what is there, and a file that is open keeps its space.
    #[test]
    fn topics_damage_and_files_below_the_log_start_are_forgotten_and_no_others() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = LogConfig {
            segment_bytes: 16 << 10,
            maintain_every: None,
            tail_bytes: 0,
            classes: vec![ClassConfig::new(Class::Telemetry)],
            ..LogConfig::new(dir.path())
        };
        let (log, _) = Log::open(config, Seams::system()).expect("it opens");
        let partition = &log.partitions()[0];
        let owners = partition.owners();
        let (segments, reader) = (&owners.shared.segments, &owners.reader);
        (0..40).for_each(|number| append(partition, number));
        let topics = || {
            let known = owners.shared.topics.with_topics(|topics| {
                let names = topics.expect("few").keys();
                let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
                numbers.sort_unstable();
                numbers
            });
            known.expect("they are read")
        };
        let bases: Vec<u64> = segments.all().iter().map(|s| s.base.0).collect();
        let (start, end) = (bases[2], *bases.last().expect("an active one"));
        assert!(topics().into_iter().eq(0..end));
        let gap = |from, to| Gap::damage(Offset(from)..Offset(to), "");
        let gaps = [
            gap(0, 1),
            gap(start - 1, start),
            gap(start - 1, start + 1),
            gap(start, start + 1),
        ];
        for offset in [0, start - 1, start] {
            assert_eq!(partition.read(Offset(offset), 1).expect("a read").len(), 1);
        }
        reader.with_found(|found| found.extend(gaps.clone()));
        let is_open = || [0, 1, 2].map(|at| segments.has_open(Offset(bases[at])));
        assert_eq!(is_open(), [true; 3]);
        partition.advance_log_start(Offset(start));
        let left = gaps[2..].iter().map(|gap| gap.range.clone());
        let found = reader.with_found(|found| found.clone());
        assert!(found.into_iter().map(|gap| gap.range).eq(left));
        assert!(topics().into_iter().eq(start..end));
        assert_eq!(is_open(), [false, false, true]);
    }
}
