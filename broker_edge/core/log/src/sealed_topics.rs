//! Between which offsets the sealed segments of a partition hold each topic, for listing topics without reading indexes.
//!
//! Bounded: with more topics than fit it holds none, and the indexes are asked instead.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::ids::Offset;
use crate::index::Index;

/// About 20 MB of names of usual length.
const TOPICS_MAX: usize = 200_000;

pub(crate) type TopicRanges = FxHashMap<Box<str>, Range<Offset>>;

#[derive(Debug, Default)]
pub(crate) struct SealedTopics {
    ranges: TopicRanges,
    /// There were too many: `ranges` is empty for good.
    is_over: bool,
}

impl SealedTopics {
    pub fn add(&mut self, index: &Index) {
        if self.is_over {
            return;
        }
        merge(&mut self.ranges, index);
        if self.ranges.len() > TOPICS_MAX {
            *self = Self {
                ranges: FxHashMap::default(),
                is_over: true,
            };
        }
    }

    pub fn forget_below(&mut self, log_start: Offset) {
        self.ranges.retain(|_, range| range.end > log_start);
    }

    /// None when there are too many.
    pub fn ranges(&self) -> Option<&TopicRanges> {
        (!self.is_over).then_some(&self.ranges)
    }
}

/// Extends the range of each topic of an index.
pub(crate) fn merge(into: &mut TopicRanges, index: &Index) {
    for topic in &index.topics {
        extend(into, &topic.topic, &(topic.first..topic.next));
    }
}

pub(crate) fn extend(into: &mut TopicRanges, topic: &str, range: &Range<Offset>) {
    match into.get_mut(topic) {
        Some(known) => {
            known.start = known.start.min(range.start);
            known.end = known.end.max(range.end);
        }
        None => {
            into.insert(topic.into(), range.clone());
        }
    }
}
