//! Where in a segment a read has to look, so that it meets all that is wanted and little else.

use std::cell::OnceCell;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::catalog::reaches;
use crate::index::model::{BlockRange, BlockSet, Blocks, TopicExtent};
use crate::read::range::Want;
use crate::segment::header::{SEGMENT_HEADER_BYTES, Segment};
use crate::state::core::Core;

/// Topics that are looked up one by one in an index; with more of them all its topics are looked at.
const LOOKED_UP_MAX: usize = 256;
/// So many topics tell whether most are wanted: being wrong costs reads, never records.
const SAMPLED: usize = 256;

impl Core {
    /// Where to read in a segment in order to see all that is wanted.
    pub(crate) fn runs(
        &self,
        segment: &Segment,
        want: &Want<'_>,
        selected: &OnceCell<Selected>,
    ) -> Result<Vec<BlockRange>, ReadError> {
        if let Some(run) = segment.with_builder(|growing| whole(segment, growing.blocks(), want)) {
            return Ok(vec![run]);
        }
        if let Some(wanted) = want.topics {
            let selected = match selected.get() {
                Some(selected) => selected,
                None => {
                    let found = self.select(want, wanted)?;
                    selected.get_or_init(|| found)
                }
            };
            let range = want.from..want.until;
            let held = match selected {
                Selected::Most => None,
                Selected::Some(topics) => {
                    let here = topics.iter().filter(|(_, places)| reaches(places, &range));
                    let here: Vec<&str> = here.map(|(topic, _)| &**topic).collect();
                    if here.is_empty() {
                        return Ok(Vec::new());
                    }
                    Some(here)
                }
                Selected::Unknown => Some(Vec::new()),
            };
            if let Some(names) = held {
                return self.with_index(segment, &|index| {
                    let mut held = BlockSet::none_of(index.blocks().blocks.len());
                    if names.is_empty() {
                        index.mark(&range, wanted, &mut held)?;
                    } else {
                        for name in &names {
                            index.mark_topic(name, &mut held)?;
                        }
                    }
                    Ok(index.blocks().runs(&range, &held))
                });
            }
        }
        self.with_index(segment, &|index| {
            Ok(vec![whole(segment, index.blocks(), want)])
        })
    }

    /// Which topics of the sealed segments are wanted.
    fn select(
        &self,
        want: &Want<'_>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Selected, ReadError> {
        // Chosen once for all segments that follow.
        let range = want.from..Offset(u64::MAX);
        self.with_known_topics(|topics| {
            let Some(topics) = topics else {
                return Selected::Unknown;
            };
            let mut found = Vec::new();
            for (seen, (topic, places)) in topics.iter().enumerate() {
                if seen == SAMPLED && found.len() > SAMPLED / 2 {
                    return Selected::Most;
                }
                if reaches(places, &range) && wanted(topic) {
                    found.push((topic.clone(), places.clone()));
                }
            }
            if found.len() > topics.len() / 2 {
                Selected::Most
            } else if found.len() > LOOKED_UP_MAX {
                Selected::Unknown
            } else {
                Selected::Some(found)
            }
        })
    }
}

/// Everything that is wanted of a segment, whatever its topics.
fn whole(segment: &Segment, blocks: Blocks<'_>, want: &Want<'_>) -> BlockRange {
    let block = blocks.block_for(want.from);
    let (position, offset) = block.map_or((SEGMENT_HEADER_BYTES, segment.base), |block| {
        (block.position, block.offset)
    });
    let last = blocks.block_for(Offset(want.until.0.saturating_sub(1)));
    BlockRange {
        position,
        offset,
        until: want.until,
        end: blocks.end_of(last),
        block_bytes: blocks.end_of(block).saturating_sub(position),
    }
}

/// The topics that a read wants, of those in sealed segments.
pub(crate) enum Selected {
    /// Most of them: looking for where they are not costs more than it saves.
    Most,
    Some(Vec<(Box<str>, TopicExtent)>),
    /// Too many to be looked up one by one, or not known.
    Unknown,
}
