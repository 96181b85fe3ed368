//! Where in a segment a read has to look, so that it meets all that is wanted and little else.

use std::cell::OnceCell;

use crate::core::Core;
use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::{Block, Held, Run, TopicPlaces};
use crate::read::Want;
use crate::sealed_topics::reaches;
use crate::segment::{SEGMENT_HEADER_BYTES, Segment};

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
    ) -> Result<Vec<Run>, ReadError> {
        if let Some(block) = segment.with_growing(|growing| growing.block_for(want.from)) {
            return Ok(vec![whole(segment, block, want, u64::MAX)]);
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
                    let mut held = Held::none_of(index.blocks().blocks.len());
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
            let blocks = index.blocks();
            let block = blocks.block_for(want.from);
            let mut run = whole(segment, block, want, blocks.data_end);
            run.block_bytes = blocks.end_of(block).saturating_sub(run.position);
            Ok(vec![run])
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

/// Everything of a segment from a block on.
fn whole(segment: &Segment, block: Option<Block>, want: &Want<'_>, end: u64) -> Run {
    let (position, offset) = block.map_or((SEGMENT_HEADER_BYTES, segment.base), |block| {
        (block.position, block.offset)
    });
    Run {
        position,
        offset,
        until: want.until,
        end,
        block_bytes: 0,
    }
}

/// The topics that a read wants, of those in sealed segments.
pub(crate) enum Selected {
    /// Most of them: looking for where they are not costs more than it saves.
    Most,
    Some(Vec<(Box<str>, TopicPlaces)>),
    /// Too many to be looked up one by one, or not known.
    Unknown,
}
