//! Questions that the indexes of a partition answer: times, epochs, topics, retained records.

use std::ops::Range;

use crate::batch::by_name::ByName;
use crate::batch::record_batch::Batch;
use crate::batch::view::RecordView;
use crate::error::ReadError;
use crate::ids::{Epoch, Offset};
use crate::index::catalog_file::TopicMap;
use crate::index::model::{BlockLookup, RetainedOffset, TopicExtent};
use crate::index::segment::Segment;
use crate::read::reader::Reader;

const SCAN_BYTES: usize = 256 << 10;

/// Offsets between which a topic has records; others may lie between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRange {
    pub topic: String,
    pub first: Offset,
    pub next: Offset,
}

impl Reader {
    pub fn offset_for_time(&self, time_us: i64) -> Result<Offset, ReadError> {
        let high_watermark = self.status.high_watermark();
        let mut from = high_watermark;
        for segment in self.segments.all() {
            if segment.with_head(|head| head.max_time_us < time_us) {
                continue;
            }
            // Batches above the high watermark are in there too; the scan below stops at it.
            let block = |index: &dyn BlockLookup| Ok(index.blocks().block_for_time(time_us));
            if let Some(block) = self.segments.with_index(&segment, &block)? {
                from = block.offset;
                break;
            }
        }
        let mut found = high_watermark;
        self.scan(from..high_watermark, &mut |batch| {
            let record = batch.records().find(|record| record.time_us >= time_us);
            found = record.map_or(found, |record| record.offset);
            record.is_none()
        })?;
        Ok(found)
    }

    /// Gives every batch of a range until `f` returns false; damage is passed over.
    fn scan(
        &self,
        mut range: Range<Offset>,
        f: &mut dyn FnMut(&Batch) -> bool,
    ) -> Result<(), ReadError> {
        while range.start < range.end {
            let batches = match self.read(range.start, SCAN_BYTES) {
                Ok(batches) => batches,
                Err(ReadError::Damaged { range: damaged }) => {
                    range.start = damaged.end;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for batch in &batches {
                if !f(batch) {
                    return Ok(());
                }
                range.start = batch.next_offset();
            }
        }
        Ok(())
    }

    pub fn epoch_before(&self, offset: Offset) -> Result<Option<Epoch>, ReadError> {
        if offset > self.status.high_watermark() {
            return Err(self.out_of_range(offset));
        }
        if offset <= self.status.log_start() {
            return Ok(None);
        }
        let last = Offset(offset.0 - 1);
        if self.gaps().iter().any(|gap| gap.range.contains(&last)) {
            return Ok(None);
        }
        let segment = self.segments.find(last);
        let (segment, _) = segment.ok_or_else(|| self.out_of_range(last))?;
        let of = |epochs: &[(Offset, Epoch)]| {
            let after = epochs.partition_point(|(first, _)| *first <= last);
            after.checked_sub(1).map(|at| epochs[at].1)
        };
        Ok(segment.with_head(|head| of(&head.epochs)))
    }

    pub fn topics_within(
        &self,
        wanted: &dyn Fn(&str) -> bool,
        bytes_max: usize,
    ) -> Result<Option<Vec<TopicRange>>, ReadError> {
        let high_watermark = self.status.high_watermark();
        let log_start = self.status.log_start();
        let mut topics = TopicMap::default();
        let mut add = |topic: &str, extent: TopicExtent| {
            if topics.memory_bytes() <= bytes_max && wanted(topic) {
                topics.extend(topic, extent);
            }
        };
        // The active segment first: if it is sealed in between, its topics are in both and merge.
        self.segments
            .active()
            .for_each_topic(&mut |topic, extent, _| {
                add(topic, extent);
                true
            });
        self.topics
            .for_each(&mut |topic, extent| add(topic, extent.clone()))?;
        if topics.memory_bytes() > bytes_max {
            return Ok(None);
        }
        let mut topics: Vec<TopicRange> = topics
            .into_iter()
            .map(|(topic, extent)| TopicRange {
                topic: (*topic).into(),
                first: extent.range.start.max(log_start),
                next: extent.range.end.min(high_watermark),
            })
            // Purged records have the empty topic, which does not count.
            .filter(|topic| topic.first < topic.next && !topic.topic.is_empty())
            .collect();
        topics.sort_unstable_by(|a, b| a.topic.cmp(&b.topic));
        Ok(Some(topics))
    }

    /// Whether every topic of the partition is wanted. False when there are too many to hold, or not all are read yet.
    pub fn every_topic(&self, wanted: &dyn Fn(&str) -> bool) -> Result<bool, ReadError> {
        // The active segment first, as above.
        let mut is_every = true;
        self.segments.active().for_each_topic(&mut |topic, _, _| {
            is_every = wanted(topic);
            is_every
        });
        if !is_every {
            return Ok(false);
        }
        self.topics.with_known_topics(|sealed| {
            sealed.is_some_and(|sealed| sealed.keys().all(|topic| wanted(topic)))
        })
    }

    pub fn for_each_retained_offset(
        &self,
        f: &mut dyn FnMut(&str, RetainedOffset),
    ) -> Result<(), ReadError> {
        let kept = self.status.log_start()..self.status.high_watermark();
        let mut give = |topic: &str, extent: &TopicExtent| {
            if let Some(retained) = extent.retained
                && kept.contains(&retained.offset)
            {
                f(topic, retained);
            }
        };
        // Read first, so that a segment that is sealed in between is not missed; given last, because it is the newest.
        let active = self.active_retained(&kept)?;
        self.topics.for_each_retained(&mut give)?;
        for (topic, extent) in active.iter() {
            give(topic, extent);
        }
        Ok(())
    }

    /// The topics of the active segment, with retained records that are durable.
    fn active_retained(&self, kept: &Range<Offset>) -> Result<TopicMap, ReadError> {
        let active = self.segments.active();
        let topics = topics_in_memory(&active);
        let is_above = |extent: &TopicExtent| extent.retained.is_some_and(|r| r.offset >= kept.end);
        if !topics.values().any(is_above) {
            return Ok(topics);
        }
        // A record that is written but not durable hides the durable one of its topic: all of them are read.
        let mut topics = TopicMap::default();
        let from = active.base.max(self.status.log_start());
        self.scan(from..kept.end, &mut |batch| {
            if !batch.has_retained() {
                return true;
            }
            for record in batch.records().filter(|record| record.retain) {
                let retained = Some(RetainedOffset {
                    offset: record.offset,
                    is_cleared: record.payload.is_empty(),
                });
                let range = record.offset..record.offset.plus(1);
                topics.extend(record.topic, TopicExtent { range, retained });
            }
            true
        })?;
        Ok(topics)
    }

    pub fn for_each_retained(&self, f: &mut dyn FnMut(&RecordView<'_>)) -> Result<(), ReadError> {
        let mut newest: ByName<Offset> = ByName::default();
        self.for_each_retained_offset(&mut |topic, retained| {
            let offset = newest.entry(topic.into()).or_insert(retained.offset);
            *offset = retained.offset.max(*offset);
        })?;
        let mut offsets: Vec<Offset> = newest.into_values().collect();
        offsets.sort_unstable();
        let mut batch: Option<Batch> = None;
        for offset in offsets {
            let is_past = |batch: &Batch| batch.next_offset() <= offset;
            if batch.as_ref().is_none_or(is_past) {
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
        Ok(())
    }
}

/// The topics of the active segment; perhaps not all when it was sealed just now.
fn topics_in_memory(segment: &Segment) -> TopicMap {
    let mut topics = TopicMap::default();
    segment.for_each_topic(&mut |topic, extent, _| {
        topics.extend(topic, extent);
        true
    });
    topics
}
