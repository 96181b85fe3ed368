//! Questions about a partition that its indexes answer: times, epochs, topics, retained records, gaps.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::by_name::ByName;
use crate::batch::view::RecordView;
use crate::error::ReadError;
use crate::ids::{Epoch, Offset};
use crate::index::catalog::{TopicMap, extend};
use crate::index::model::{RetainedOffset, TopicExtent};
use crate::partition::{Gap, GapKind, TopicRange};
use crate::segment::header::{IndexState, Segment};
use crate::state::core::Core;

const SCAN_BYTES: usize = 256 << 10;

impl Core {
    pub(crate) fn offset_for_time(&self, time_us: i64) -> Result<Offset, ReadError> {
        let high_watermark = self.high_watermark();
        let mut from = None;
        for segment in self.all_segments() {
            let growing = segment.with_builder(|growing| {
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
                    let block = self.with_index(&segment, &|index| {
                        Ok(index.blocks().block_for_time(time_us))
                    })?;
                    block.map(|block| block.offset)
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
        Ok(match segment.with_builder(|growing| of(growing.epochs())) {
            Some(epoch) => epoch,
            None => segment.sealed.get().and_then(|summary| of(&summary.epochs)),
        })
    }

    pub(crate) fn topics(&self) -> Result<Vec<TopicRange>, ReadError> {
        let high_watermark = self.high_watermark();
        let log_start = self.log_start();
        // The active segment first: should it be sealed in between, its topics are in both and merge.
        let active = self.segments.read().last().cloned();
        let mut topics = active.map_or_else(TopicMap::default, |active| growing_topics(&active));
        let held = self.with_sealed_topics(|sealed| {
            let held = sealed?;
            for (topic, places) in held {
                extend(&mut topics, topic, places.clone());
            }
            Some(())
        })?;
        if held.is_none() {
            for segment in self.sealed_segments() {
                self.for_each_topic_of(&segment, &mut |topic, places| {
                    extend(&mut topics, topic, places);
                })?;
            }
        }
        let mut topics: Vec<TopicRange> = topics
            .into_iter()
            .map(|(topic, places)| TopicRange {
                topic: topic.into(),
                first: places.range.start.max(log_start),
                next: places.range.end.min(high_watermark),
            })
            // Purged records have the empty topic, which is none.
            .filter(|topic| topic.first < topic.next && !topic.topic.is_empty())
            .collect();
        topics.sort_unstable_by(|a, b| a.topic.cmp(&b.topic));
        Ok(topics)
    }

    /// Whether every topic of the partition is wanted; false where there are too many to be held, or not all are read yet.
    pub(crate) fn every_topic(&self, wanted: &dyn Fn(&str) -> bool) -> Result<bool, ReadError> {
        // The active segment first, as above.
        let active = self.segments.read().last().cloned();
        let in_active = active.and_then(|active| {
            active.with_builder(|growing| growing.topics().all(|(topic, _)| wanted(topic)))
        });
        if in_active == Some(false) {
            return Ok(false);
        }
        self.with_known_topics(|sealed| {
            sealed.is_some_and(|sealed| sealed.keys().all(|topic| wanted(topic)))
        })
    }

    /// Gives the topics of a sealed segment, in no order.
    pub(crate) fn for_each_topic_of(
        &self,
        segment: &Segment,
        f: &mut dyn FnMut(&str, TopicExtent),
    ) -> Result<(), ReadError> {
        let index = match &*segment.index.lock() {
            IndexState::Memory(index) | IndexState::Provisional(index) => Some(Arc::clone(index)),
            _ => None,
        };
        let index = match index {
            Some(index) => index,
            None => {
                let read = self.open_saved(segment).map(|reader| {
                    reader.for_each_topic(&mut |entry| {
                        let range = entry.first..entry.next;
                        let retained = entry.retained;
                        f(entry.topic, TopicExtent { range, retained });
                    })
                });
                match read {
                    Some(Ok(())) => return Ok(()),
                    // Those given so far come again below, which changes nothing.
                    Some(Err(_)) | None => self.rebuild(segment)?,
                }
            }
        };
        for topic in &index.topics {
            let range = topic.first..topic.next;
            let retained = topic.retained;
            f(&topic.topic, TopicExtent { range, retained });
        }
        Ok(())
    }

    pub(crate) fn for_each_retained_place(
        &self,
        f: &mut dyn FnMut(&str, RetainedOffset),
    ) -> Result<(), ReadError> {
        let kept = self.log_start()..self.high_watermark();
        let mut give = |topic: &str, places: &TopicExtent| {
            if let Some(place) = places.retained
                && kept.contains(&place.offset)
            {
                f(topic, place);
            }
        };
        // Looked at first, so that nothing is missed that is sealed in between; given last, because it is the newest.
        let active = self.active_retained(&kept)?;
        if self.is_reading_topics() {
            self.for_each_retained_of_sealed(&mut give)?;
            active
                .iter()
                .for_each(|(topic, places)| give(topic, places));
            return Ok(());
        }
        let is_held = self.with_sealed_topics(|sealed| {
            let Some(sealed) = sealed else { return false };
            sealed
                .iter()
                .for_each(|(topic, places)| give(topic, places));
            true
        })?;
        if !is_held {
            for segment in self.sealed_segments() {
                self.for_each_topic_of(&segment, &mut |topic, places| give(topic, &places))?;
            }
        }
        active
            .iter()
            .for_each(|(topic, places)| give(topic, places));
        Ok(())
    }

    /// The topics of the active segment, with retained records that are durable.
    fn active_retained(&self, kept: &Range<Offset>) -> Result<TopicMap, ReadError> {
        let Some(active) = self.segments.read().last().cloned() else {
            return Ok(TopicMap::default());
        };
        let topics = growing_topics(&active);
        let is_above = |places: &TopicExtent| places.retained.is_some_and(|p| p.offset >= kept.end);
        if topics.values().any(is_above) {
            // What is written but not durable hides the durable value of its topic.
            return self.retained_below(active.base, kept.end);
        }
        Ok(topics)
    }

    pub(crate) fn for_each_retained(
        &self,
        f: &mut dyn FnMut(&RecordView<'_>),
    ) -> Result<(), ReadError> {
        let mut newest: ByName<Offset> = ByName::default();
        self.for_each_retained_place(&mut |topic, place| {
            let offset = newest.entry(topic.into()).or_insert(place.offset);
            *offset = place.offset.max(*offset);
        })?;
        let mut offsets: Vec<Offset> = newest.into_values().collect();
        offsets.sort_unstable();
        let mut batch: Option<crate::batch::decode::Batch> = None;
        for offset in offsets {
            if batch
                .as_ref()
                .is_none_or(|batch| batch.next_offset() <= offset)
            {
                batch = match self.read(offset, 1) {
                    Ok(batches) => batches.into_iter().next(),
                    // LostOffsets, or removed meanwhile: reported elsewhere, and no longer retained.
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

    /// The newest retained record of each topic in `[from, until)`, by reading all of it.
    fn retained_below(&self, from: Offset, until: Offset) -> Result<TopicMap, ReadError> {
        let mut topics = TopicMap::default();
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
                        let place = RetainedOffset {
                            offset: record.offset,
                            is_cleared: record.payload.is_empty(),
                        };
                        let range = record.offset..record.offset.plus(1);
                        let retained = Some(place);
                        extend(&mut topics, record.topic, TopicExtent { range, retained });
                    }
                }
                next = batch.next_offset();
            }
        }
        Ok(topics)
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
                .with_builder(|growing| growing.data_end())
                .unwrap_or(0),
        };
        self.segments.read().iter().map(size).sum()
    }
}

fn growing_topics(segment: &Segment) -> TopicMap {
    let topics = segment.with_builder(|growing| {
        let entry = |(topic, places): (&str, TopicExtent)| (topic.into(), places);
        growing.topics().map(entry).collect()
    });
    topics.unwrap_or_default()
}
