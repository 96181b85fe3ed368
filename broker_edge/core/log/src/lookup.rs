//! Questions about a partition that its indexes answer: times, epochs, topics, retained records, gaps.

use std::sync::Arc;

use crate::core::Core;
use crate::error::ReadError;
use crate::ids::{Epoch, Offset};
use crate::partition::{Gap, GapKind, TopicRange};
use crate::sealed_topics::{TopicRanges, extend, merge};
use crate::segment::Segment;
use crate::view::RecordView;

const SCAN_BYTES: usize = 256 << 10;

impl Core {
    pub(crate) fn offset_for_time(&self, time_us: i64) -> Result<Offset, ReadError> {
        let high_watermark = self.high_watermark();
        let mut from = None;
        for segment in self.all_segments() {
            let growing = segment.with_growing(|growing| {
                // Batches above the high watermark are in there too; the scan below stops at it.
                growing.block_for_time(time_us).map(|block| block.offset)
            });
            from = match growing {
                Some(offset) => offset,
                None if segment
                    .sealed
                    .get()
                    .is_some_and(|s| s.max_time_us >= time_us) =>
                {
                    let index = self.index_of(&segment)?;
                    let at = index
                        .blocks
                        .partition_point(|block| block.max_time_us < time_us);
                    index.blocks.get(at).map(|block| block.offset)
                }
                None => None,
            };
            if from.is_some() {
                break;
            }
        }
        let Some(mut from) = from else {
            return Ok(high_watermark);
        };
        while from < high_watermark {
            let batches = match self.read(from, SCAN_BYTES) {
                Ok(batches) => batches,
                Err(ReadError::Damaged { range }) => {
                    from = range.end;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for batch in &batches {
                let found = batch.records().find(|record| record.time_us >= time_us);
                if let Some(record) = found {
                    return Ok(record.offset);
                }
                from = batch.next_offset();
            }
        }
        Ok(high_watermark)
    }

    pub(crate) fn epoch_before(&self, offset: Offset) -> Result<Option<Epoch>, ReadError> {
        if offset > self.high_watermark() {
            return Err(self.out_of_range(offset));
        }
        if offset <= self.log_start() {
            return Ok(None);
        }
        let last = Offset(offset.0 - 1);
        if self.gaps().iter().any(|gap| gap.range.contains(&last)) {
            return Ok(None);
        }
        let (segment, _) = self.segment_for(last)?;
        let of = |epochs: &[(Offset, Epoch)]| {
            let after = epochs.partition_point(|(first, _)| *first <= last);
            after.checked_sub(1).map(|at| epochs[at].1)
        };
        Ok(match segment.with_growing(|growing| of(growing.epochs())) {
            Some(epoch) => epoch,
            None => segment.sealed.get().and_then(|summary| of(&summary.epochs)),
        })
    }

    pub(crate) fn topics(&self) -> Result<Vec<TopicRange>, ReadError> {
        let high_watermark = self.high_watermark();
        let log_start = self.log_start();
        // The active segment first: should it be sealed in between, its topics are in both and merge.
        let active = self.segments.read().last().cloned();
        let mut ranges = TopicRanges::default();
        if let Some(active) = active {
            active.with_growing(|growing| {
                for (topic, first, next) in growing.topics() {
                    ranges.insert(topic.into(), first..next);
                }
            });
        }
        let is_complete = match self.sealed_topics.lock().ranges() {
            Some(sealed) => {
                sealed
                    .iter()
                    .for_each(|(topic, range)| extend(&mut ranges, topic, range));
                true
            }
            None => false,
        };
        if !is_complete {
            for segment in self
                .all_segments()
                .iter()
                .filter(|s| s.sealed.get().is_some())
            {
                merge(&mut ranges, &*self.index_of(segment)?);
            }
        }
        let mut topics: Vec<TopicRange> = ranges
            .into_iter()
            .map(|(topic, range)| TopicRange {
                topic: topic.into(),
                first: range.start.max(log_start),
                next: range.end.min(high_watermark),
            })
            .filter(|topic| topic.first < topic.next)
            .collect();
        topics.sort_unstable_by(|a, b| a.topic.cmp(&b.topic));
        Ok(topics)
    }

    pub(crate) fn for_each_retained(
        &self,
        f: &mut dyn FnMut(&RecordView<'_>),
    ) -> Result<(), ReadError> {
        let high_watermark = self.high_watermark();
        for segment in self.all_segments() {
            let retained = match segment.with_growing(|growing| growing.retained()) {
                // What is written but not durable hides the durable value of its topic.
                Some(retained) if retained.iter().any(|offset| *offset >= high_watermark) => {
                    self.retained_below(segment.base, high_watermark)?
                }
                Some(retained) => retained,
                None => self.index_of(&segment)?.retained.clone(),
            };
            let mut batch: Option<crate::batch::Batch> = None;
            for offset in retained
                .into_iter()
                .filter(|offset| *offset < high_watermark)
            {
                if batch
                    .as_ref()
                    .is_none_or(|batch| batch.next_offset() <= offset)
                {
                    batch = match self.read(offset, 1) {
                        Ok(batches) => batches.into_iter().next(),
                        // Lost, or removed meanwhile: reported elsewhere, and no longer retained.
                        Err(ReadError::Damaged { .. } | ReadError::OutOfRange { .. }) => None,
                        Err(error) => return Err(error),
                    };
                }
                if let Some(batch) = &batch {
                    f(&batch.record((offset.0 - batch.base_offset().0) as usize));
                }
            }
        }
        Ok(())
    }

    /// Offsets of the newest retained record of each topic in `[from, until)`, ascending, by reading all of it.
    fn retained_below(&self, from: Offset, until: Offset) -> Result<Vec<Offset>, ReadError> {
        let mut newest = rustc_hash::FxHashMap::<Box<str>, Offset>::default();
        let mut next = from.max(self.log_start());
        while next < until {
            let batches = match self.read(next, SCAN_BYTES) {
                Ok(batches) => batches,
                Err(ReadError::Damaged { range }) => {
                    next = range.end;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for batch in &batches {
                if batch.has_retained() {
                    for record in batch.records().filter(|record| record.retain) {
                        newest.insert(record.topic.into(), record.offset);
                    }
                }
                next = batch.next_offset();
            }
        }
        let mut offsets: Vec<Offset> = newest.into_values().collect();
        offsets.sort_unstable();
        Ok(offsets)
    }

    /// Damage from the log start on, ascending.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        let mut gaps = self.found.lock().clone();
        let segments = self.all_segments();
        for (at, segment) in segments.iter().enumerate() {
            let Some(summary) = segment.sealed.get() else {
                continue;
            };
            for hole in &summary.holes {
                let reason = "the checksum of a batch does not match".to_owned();
                gaps.push(Gap {
                    range: hole.first..hole.next,
                    kind: GapKind::Damage,
                    reason,
                });
            }
            let after = segments.get(at + 1).map(|after| after.base);
            if let Some(base) = after.filter(|base| *base > summary.next) {
                let reason = "a segment ends before the next one begins".to_owned();
                gaps.push(Gap {
                    range: summary.next..base,
                    kind: GapKind::Damage,
                    reason,
                });
            }
        }
        let log_start = self.log_start();
        gaps.retain(|gap| gap.range.end > log_start);
        gaps.sort_by_key(|gap| (gap.range.start, gap.range.end));
        gaps.dedup_by(|later, earlier| {
            // A range found by a reader and again by a scan is one gap.
            let overlaps = later.range.start < earlier.range.end;
            if overlaps {
                earlier.range.end = earlier.range.end.max(later.range.end);
            }
            overlaps
        });
        gaps
    }

    pub(crate) fn all_segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    /// Bytes of all segments up to their last batch.
    pub(crate) fn size_bytes(&self) -> u64 {
        let size = |segment: &Arc<Segment>| match segment.sealed.get() {
            Some(summary) => summary.data_end,
            None => segment
                .with_growing(|growing| growing.data_end())
                .unwrap_or(0),
        };
        self.segments.read().iter().map(size).sum()
    }
}
