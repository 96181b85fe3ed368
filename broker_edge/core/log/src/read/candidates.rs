//! Where in a partition the topics lie that a reader wants, by the indexes alone: no batch is read.
//!
//! A reader that takes little at a time asks this once for many batches, so that it passes over what is not for it and
//! readers that wait for the same batch know that they do. Never authoritative: whoever reads a stretch looks at the
//! topics of its batches.

use std::ops::Range;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::model::BlockSet;
use crate::index::saved::IndexDamaged;
use crate::index::store::SealedIndex;
use crate::segment::header::Segment;
use crate::state::core::Core;

/// With more topics than this, they are not kept by name.
const NAMED_MAX: usize = 64;
/// So many topics tell whether most are wanted: being wrong costs reads, never records.
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

/// What of the topics of the sealed segments a reader wants, kept by it from one question to the next. Belongs to one
/// partition and one set of topics; the default knows nothing.
#[derive(Debug, Default)]
pub struct TopicSelection {
    topics: Topics,
    /// Holds for offsets below.
    until: Offset,
}

#[derive(Debug, Default)]
enum Topics {
    /// Most of them: looking for where they are not costs more than it saves.
    Most,
    /// With the offsets between which each has records.
    Named(Box<[(Box<str>, Range<Offset>)]>),
    /// Too many to be looked up one by one, or not known.
    #[default]
    Unknown,
}

impl TopicSelection {
    /// Memory that it keeps, for bounds.
    #[must_use]
    pub fn memory(&self) -> usize {
        match &self.topics {
            Topics::Named(topics) => topics.iter().map(|(name, _)| name.len() + 32).sum(),
            Topics::Most | Topics::Unknown => 0,
        }
    }
}

/// What was found of the topics that are wanted.
#[derive(Debug, Default)]
pub struct CandidateRanges {
    /// Ascending, apart from each other; each holds whole blocks of batches, from the asked offset on.
    pub ranges: Vec<Range<Offset>>,
    /// Up to here was looked; nothing outside the ranges is wanted.
    pub scanned: Offset,
}

impl Core {
    /// Looks from `from` on for at most `max` stretches of one segment.
    pub(crate) fn candidate_ranges(
        &self,
        (from, until): (Offset, Offset),
        max: usize,
        selection: &mut TopicSelection,
        wanted: TopicFilter<'_>,
    ) -> Result<CandidateRanges, ReadError> {
        let until = self.check_range(from)?.min(until);
        let mut found = CandidateRanges {
            ranges: Vec::new(),
            scanned: from,
        };
        let mut indexes = 0;
        while found.scanned < until && found.ranges.is_empty() && indexes < INDEXES_MAX {
            let (segment, next_base) = self.segment_for(found.scanned)?;
            let range = self.readable(&segment, next_base, found.scanned..until)?;
            let held = if segment.sealed.get().is_some() {
                if selection.until <= range.start {
                    *selection = self.select_topics(range.start, wanted)?;
                }
                self.held_of(&segment, &range, selection, wanted, &mut indexes)?
            } else {
                Self::held_growing(&segment, &range, wanted)
            };
            found.ranges = held;
            found.scanned = range.end;
        }
        if found.ranges.len() > max {
            found.ranges.truncate(max);
            found.scanned = found.ranges.last().map_or(from, |range| range.end);
        }
        Ok(found)
    }

    /// CandidateRanges of a sealed segment.
    fn held_of(
        &self,
        segment: &Segment,
        range: &Range<Offset>,
        selection: &TopicSelection,
        wanted: TopicFilter<'_>,
        indexes: &mut usize,
    ) -> Result<Vec<Range<Offset>>, ReadError> {
        let reaches = |of: &Range<Offset>| of.start < range.end && of.end > range.start;
        let names: Vec<&str> = match &selection.topics {
            Topics::Most => return Ok(vec![range.clone()]),
            Topics::Unknown => Vec::new(),
            Topics::Named(topics) => {
                let here = topics.iter().filter(|(_, of)| reaches(of));
                let here: Vec<&str> = here.map(|(name, _)| &**name).collect();
                if here.is_empty() {
                    return Ok(Vec::new());
                }
                here
            }
        };
        *indexes += 1;
        self.with_index(segment, &|index| {
            let mut held = BlockSet::none_of(index.blocks().blocks.len());
            mark(index, range, &names, wanted, &mut held)?;
            Ok(ranges_of(index.blocks().runs(range, &held), range))
        })
    }

    /// CandidateRanges of the active segment; everything when it was sealed in this moment.
    fn held_growing(
        segment: &Segment,
        range: &Range<Offset>,
        wanted: TopicFilter<'_>,
    ) -> Vec<Range<Offset>> {
        let found = segment.with_builder(|growing| {
            let mut held = BlockSet::none_of(growing.blocks().blocks.len());
            match wanted {
                TopicFilter::Topics(names) => {
                    names
                        .iter()
                        .for_each(|name| growing.mark_topic(name, &mut held));
                }
                TopicFilter::Matching(wanted) => growing.mark(wanted, &mut held),
            }
            ranges_of(growing.blocks().runs(range, &held), range)
        });
        found.unwrap_or_else(|| vec![range.clone()])
    }

    /// Which topics of the sealed segments are wanted.
    fn select_topics(
        &self,
        from: Offset,
        wanted: TopicFilter<'_>,
    ) -> Result<TopicSelection, ReadError> {
        let until = self.active_base();
        let range = from..Offset(u64::MAX);
        let topics = self.with_known_topics(|topics| match (topics, wanted) {
            (Some(topics), TopicFilter::Topics(names)) => {
                let held = names.iter().filter_map(|name| {
                    let (name, places) = topics.get_key_value(*name)?;
                    Some((name.clone(), places.range.clone()))
                });
                Topics::Named(held.collect())
            }
            (Some(topics), TopicFilter::Matching(wanted)) => {
                let mut found = Vec::new();
                for (seen, (topic, places)) in topics.iter().enumerate() {
                    if seen == SAMPLED && found.len() > SAMPLED / 2 {
                        return Topics::Most;
                    }
                    if places.range.end > range.start && wanted(topic) {
                        if found.len() == NAMED_MAX {
                            // TopicFilter by few readers, and most of these want nearly all.
                            return Topics::Unknown;
                        }
                        found.push((topic.clone(), places.range.clone()));
                    }
                }
                if found.len() > topics.len() / 2 && topics.len() > 1 {
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
        })?;
        Ok(TopicSelection { topics, until })
    }

    fn active_base(&self) -> Offset {
        self.segments
            .read()
            .last()
            .map_or(Offset(0), |active| active.base)
    }
}

fn mark(
    index: &SealedIndex,
    range: &Range<Offset>,
    names: &[&str],
    wanted: TopicFilter<'_>,
    held: &mut BlockSet,
) -> Result<(), IndexDamaged> {
    if names.is_empty() {
        return index.mark(range, &|topic| wanted.takes(topic), held);
    }
    names
        .iter()
        .try_for_each(|name| index.mark_topic(name, held))
}

fn ranges_of(
    runs: Vec<crate::index::model::BlockRange>,
    within: &Range<Offset>,
) -> Vec<Range<Offset>> {
    runs.into_iter()
        .map(|run| run.offset.max(within.start)..run.until.min(within.end))
        .filter(|range| range.start < range.end)
        .collect()
}
