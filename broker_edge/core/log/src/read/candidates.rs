//! Where in a partition the wanted topics may lie, by the indexes alone: no batch is read.
//!
//! A reader that takes little at a time asks this once for many batches, so that it skips batches of other topics, and
//! readers that wait for the same batch know that they do. Never authoritative: a reader of a candidate range looks at
//! the topics of its batches.

use std::ops::Range;
use std::sync::Arc;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::model::{BlockLookup, BlockSet, IndexDamaged};
use crate::index::segment::Segment;
use crate::read::reader::Reader;

/// With more topics than this, they are not kept by name from one question to the next.
const NAMED_MAX: usize = 64;
/// The same, for a selection that is used by one read.
const NAMED_IN_READ_MAX: usize = 256;
/// This many topics tell whether most are wanted: being wrong costs reads, never records.
const SAMPLED: usize = 256;
/// Indexes that one question may read.
const INDEXES_MAX: usize = 4;

/// The topics that a reader wants.
#[derive(Clone, Copy)]
pub enum TopicFilter<'a> {
    /// These, by name.
    Topics(&'a [&'a str]),
    Matching(&'a dyn Fn(&str) -> bool),
}

impl TopicFilter<'_> {
    fn takes(&self, topic: &str) -> bool {
        match self {
            Self::Topics(names) => names.contains(&topic),
            Self::Matching(wanted) => wanted(topic),
        }
    }
}

/// The topics of the sealed segments that a reader wants, kept by it from one question to the next. Belongs to one
/// partition and one filter; the default knows nothing.
#[derive(Debug)]
pub struct TopicSelection {
    topics: Topics,
    /// Holds for offsets below.
    until: Offset,
    named_max: usize,
}

#[derive(Debug)]
enum Topics {
    /// Most of them: finding where they are not costs more than it saves.
    Most,
    /// With the offsets between which each has records.
    Named(Box<[(Arc<str>, Range<Offset>)]>),
    /// Too many to be looked up one by one, or not known.
    Unknown,
}

impl Default for TopicSelection {
    fn default() -> Self {
        Self {
            topics: Topics::Unknown,
            until: Offset(0),
            named_max: NAMED_MAX,
        }
    }
}

impl TopicSelection {
    pub(crate) fn for_one_read() -> Self {
        Self {
            named_max: NAMED_IN_READ_MAX,
            ..Self::default()
        }
    }

    /// Memory that it keeps, for bounds.
    #[must_use]
    pub fn memory(&self) -> usize {
        match &self.topics {
            Topics::Named(topics) => topics.iter().map(|(name, _)| name.len() + 32).sum(),
            Topics::Most | Topics::Unknown => 0,
        }
    }
}

/// Where the wanted topics may lie.
#[derive(Debug, Default)]
pub struct CandidateRanges {
    /// Ascending, apart from each other; each holds whole blocks of batches, from the asked offset on.
    pub ranges: Vec<Range<Offset>>,
    /// The question is answered up to here; nothing outside the ranges is wanted.
    pub scanned: Offset,
}

impl Reader {
    /// Looks from `from` on for at most `max` candidate ranges of one segment.
    pub fn candidate_ranges(
        &self,
        (from, until): (Offset, Offset),
        max: usize,
        selection: &mut TopicSelection,
        filter: TopicFilter<'_>,
    ) -> Result<CandidateRanges, ReadError> {
        let until = self.check_range(from)?.min(until);
        let (mut ranges, mut scanned) = (Vec::new(), from);
        let mut indexes = 0;
        while scanned < until && ranges.is_empty() && indexes < INDEXES_MAX {
            let (segment, range) = self.readable(scanned..until)?;
            scanned = range.end;
            ranges = if segment.sealed.get().is_some() {
                self.sealed_candidates(&segment, &range, selection, filter, &mut indexes)?
            } else {
                self.active_candidates(&segment, &range, filter)?
            };
        }
        if ranges.len() > max {
            ranges.truncate(max);
            scanned = ranges.last().map_or(from, |range| range.end);
        }
        Ok(CandidateRanges { ranges, scanned })
    }

    /// The candidate ranges of the active segment. A filter runs without the lock of its index.
    pub(super) fn active_candidates(
        &self,
        segment: &Segment,
        range: &Range<Offset>,
        filter: TopicFilter<'_>,
    ) -> Result<Vec<Range<Offset>>, ReadError> {
        let mut names: &[&str] = &[];
        match filter {
            TopicFilter::Topics(topics) => names = topics,
            TopicFilter::Matching(wanted) => {
                if let Some(found) = matching_in_active(segment, range, wanted) {
                    return Ok(found);
                }
            }
        }
        let marked = |index: &dyn BlockLookup| marked_offsets(index, range, names, filter);
        self.segments.with_index(segment, &marked)
    }

    /// The candidate ranges of a sealed segment. Counts the indexes that it reads.
    pub(super) fn sealed_candidates(
        &self,
        segment: &Segment,
        range: &Range<Offset>,
        selection: &mut TopicSelection,
        filter: TopicFilter<'_>,
        indexes: &mut usize,
    ) -> Result<Vec<Range<Offset>>, ReadError> {
        if selection.until <= range.start {
            let until = self.segments.active().base;
            selection.topics = self.select(range.start, filter, selection.named_max)?;
            selection.until = until;
        }
        let mut names: Vec<&str> = Vec::new();
        match &selection.topics {
            Topics::Most => return Ok(vec![range.clone()]),
            Topics::Unknown => {}
            Topics::Named(topics) => {
                let here = topics
                    .iter()
                    .filter(|(_, of)| of.start < range.end && of.end > range.start);
                names.extend(here.map(|(name, _)| &**name));
                if names.is_empty() {
                    return Ok(Vec::new());
                }
            }
        }
        *indexes += 1;
        let marked = |index: &dyn BlockLookup| marked_offsets(index, range, &names, filter);
        self.segments.with_index(segment, &marked)
    }

    /// The wanted topics of the sealed segments, for all segments that follow.
    fn select(
        &self,
        from: Offset,
        filter: TopicFilter<'_>,
        named_max: usize,
    ) -> Result<Topics, ReadError> {
        self.topics
            .with_known_topics(|topics| match (topics, filter) {
                (Some(topics), TopicFilter::Topics(names)) => {
                    let known = names.iter().filter_map(|name| {
                        let (name, extent) = topics.get_key_value(*name)?;
                        Some((Arc::clone(name), extent.range.clone()))
                    });
                    Topics::Named(known.collect())
                }
                (Some(topics), TopicFilter::Matching(wanted)) => {
                    let mut found = Vec::new();
                    for (seen, (topic, extent)) in topics.iter().enumerate() {
                        if seen == SAMPLED && found.len() > SAMPLED / 2 {
                            return Topics::Most;
                        }
                        if extent.range.end > from && wanted(topic) {
                            if found.len() == named_max {
                                // Few readers want so many topics, and most of those want nearly all.
                                return Topics::Unknown;
                            }
                            found.push((Arc::clone(topic), extent.range.clone()));
                        }
                    }
                    // A read takes every block of a single topic, so it need not look for them.
                    let most_of = topics.len() > 1 || named_max == NAMED_IN_READ_MAX;
                    if most_of && found.len() > topics.len() / 2 {
                        Topics::Most
                    } else {
                        Topics::Named(found.into())
                    }
                }
                (None, TopicFilter::Topics(names)) => {
                    let all = |name: &&str| ((*name).into(), Offset(0)..Offset(u64::MAX));
                    Topics::Named(names.iter().map(all).collect())
                }
                (None, TopicFilter::Matching(_)) => Topics::Unknown,
            })
    }
}

/// The offsets of the blocks that hold a wanted topic; None when the segment is sealed. The range is below the high
/// watermark, so blocks that come meanwhile are behind it.
fn matching_in_active(
    segment: &Segment,
    range: &Range<Offset>,
    wanted: &dyn Fn(&str) -> bool,
) -> Option<Vec<Range<Offset>>> {
    let blocks = segment.with_builder(|builder| builder.blocks().blocks.len())?;
    let mut marked = BlockSet::none_of(blocks);
    segment.for_each_topic(&mut |topic, extent, blocks| {
        if extent.is_in(range) && wanted(topic) {
            marked.mark(blocks);
        }
        true
    });
    segment.with_builder(|builder| builder.blocks().offsets(range, &marked))
}

/// The offsets of the blocks that hold these topics, or, without names, any topic that the filter takes.
fn marked_offsets(
    index: &dyn BlockLookup,
    range: &Range<Offset>,
    names: &[&str],
    filter: TopicFilter<'_>,
) -> Result<Vec<Range<Offset>>, IndexDamaged> {
    let mut marked = BlockSet::none_of(index.blocks().blocks.len());
    if names.is_empty() {
        index.for_each_topic(&mut |topic, extent, blocks| {
            if extent.is_in(range) && filter.takes(topic) {
                marked.mark(blocks);
            }
        })?;
    }
    for name in names {
        index.mark_topic(name, &mut marked)?;
    }
    Ok(index.blocks().offsets(range, &marked))
}
