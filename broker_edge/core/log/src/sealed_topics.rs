//! Between which offsets the sealed segments of a partition hold each topic, and its newest retained record: what lists
//! topics and retained messages without reading indexes.
//!
//! Read when it is first asked for, from a file that covers most segments (`topics_file.rs`) and the indexes of the
//! others. Bounded: with more topics than fit it holds none, and the indexes are asked instead.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::core::Core;
use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::{Index, TopicPlaces};
use crate::segment::{IndexPlace, Segment};
use crate::topics_file::TopicsFile;

/// About 25 MB of names of usual length.
pub(crate) const TOPICS_MAX: usize = 200_000;
/// So many segments that the file does not cover are worth writing it again: it is about as large as one index.
const UNSAVED_SEGMENTS_MAX: usize = 8;

pub(crate) type TopicMap = FxHashMap<Box<str>, TopicPlaces>;

#[derive(Debug, Default)]
pub(crate) struct SealedTopics {
    state: State,
    /// Segments that the file does not cover.
    unsaved: usize,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has asked yet.
    #[default]
    Unread,
    /// Being read; with the segments that were sealed meanwhile.
    Reading(Vec<Arc<Index>>),
    Held(TopicMap),
    /// There were too many topics.
    Over,
}

impl SealedTopics {
    /// Takes in a segment that was just sealed.
    pub fn add(&mut self, index: &Arc<Index>) {
        match &mut self.state {
            State::Unread | State::Over => {}
            State::Reading(sealed) => sealed.push(Arc::clone(index)),
            State::Held(topics) => {
                self.unsaved += 1;
                merge(topics, index);
                if topics.len() > TOPICS_MAX {
                    self.state = State::Over;
                }
            }
        }
    }

    pub fn forget_below(&mut self, log_start: Offset) {
        if let State::Held(topics) = &mut self.state {
            topics.retain(|_, places| places.range.end > log_start);
        }
    }
}

/// Extends the places of each topic of an index.
pub(crate) fn merge(into: &mut TopicMap, index: &Index) {
    for topic in &index.topics {
        let places = TopicPlaces {
            range: topic.first..topic.next,
            retained: topic.retained,
        };
        extend(into, &topic.topic, places);
    }
}

pub(crate) fn extend(into: &mut TopicMap, topic: &str, places: TopicPlaces) {
    match into.get_mut(topic) {
        Some(known) => {
            known.range.start = known.range.start.min(places.range.start);
            known.range.end = known.range.end.max(places.range.end);
            known.retained = known.retained.max(places.retained);
        }
        None => {
            into.insert(topic.into(), places);
        }
    }
}

impl Core {
    /// Runs `f` on the topics of all sealed segments; None when there are too many to hold.
    pub(crate) fn with_sealed_topics<T>(
        &self,
        f: impl FnOnce(Option<&TopicMap>) -> T,
    ) -> Result<T, ReadError> {
        let mut sealed = self.sealed_topics.lock();
        if matches!(sealed.state, State::Unread | State::Reading(_)) {
            drop(sealed);
            self.read_sealed_topics()?;
            sealed = self.sealed_topics.lock();
        }
        Ok(match &sealed.state {
            State::Held(topics) => f(Some(topics)),
            State::Over | State::Unread | State::Reading(_) => f(None),
        })
    }

    fn read_sealed_topics(&self) -> Result<(), ReadError> {
        let _one_at_a_time = self.topics_reading.lock();
        let segments = {
            let mut sealed = self.sealed_topics.lock();
            if !matches!(sealed.state, State::Unread) {
                return Ok(());
            }
            // From here on the writer hands over what it seals: it never waits for this.
            sealed.state = State::Reading(Vec::new());
            self.sealed_segments()
        };
        let read = self.merge_segments(&segments);
        let mut sealed = self.sealed_topics.lock();
        let State::Reading(meanwhile) = std::mem::take(&mut sealed.state) else {
            return Ok(());
        };
        let (topics, unsaved) = read?;
        sealed.unsaved = unsaved;
        sealed.state = topics.map_or(State::Over, State::Held);
        for index in meanwhile {
            sealed.add(&index);
        }
        sealed.forget_below(self.log_start());
        drop(sealed);
        // At once: a start that is killed now would read the same indexes again the next time.
        self.save_topics();
        Ok(())
    }

    /// The topics of these segments, None when they are too many, and how many segments the file does not cover.
    fn merge_segments(
        &self,
        segments: &[Arc<Segment>],
    ) -> Result<(Option<TopicMap>, usize), ReadError> {
        let file = TopicsFile::load(&self.context, segments).unwrap_or_default();
        let mut topics = file.topics;
        let mut unsaved = 0;
        for segment in segments.iter().filter(|s| !file.covers.contains(&s.base)) {
            unsaved += 1;
            self.for_each_topic_of(segment, &mut |topic, places| {
                extend(&mut topics, topic, places);
            })?;
            if topics.len() > TOPICS_MAX {
                return Ok((None, unsaved));
            }
        }
        Ok((Some(topics), unsaved))
    }

    /// Writes the file again when many segments are not covered. It is never authoritative, so failing is no harm.
    pub(crate) fn save_topics(&self) {
        let is_due = |sealed: &SealedTopics| {
            sealed.unsaved >= UNSAVED_SEGMENTS_MAX && matches!(sealed.state, State::Held(_))
        };
        let _one_at_a_time = self.saving.lock();
        if !is_due(&self.sealed_topics.lock()) {
            return;
        }
        let segments = self.sealed_segments();
        let is_saved = |s: &Arc<Segment>| matches!(&*s.index.lock(), IndexPlace::Saved);
        if !segments.iter().all(is_saved) {
            return; // In a moment they are.
        }
        // Read before the lock is taken: the writer takes it when it seals a segment.
        let saved = TopicsFile::coverage(&self.context, &segments).and_then(|coverage| {
            let bytes = {
                let mut sealed = self.sealed_topics.lock();
                let State::Held(topics) = &sealed.state else {
                    return Ok(());
                };
                // Topics of a segment that was sealed meanwhile are in it too: it is covered the next time.
                let bytes = TopicsFile::bytes_of(&self.context, &coverage, topics);
                sealed.unsaved = self.sealed_segments().len().saturating_sub(segments.len());
                bytes
            };
            TopicsFile::save(&self.context, &bytes)
        });
        if let Err(error) = saved {
            tracing::warn!(partition = %self.context.name, %error, "the list of topics is not saved");
        }
    }

    pub(crate) fn sealed_segments(&self) -> Vec<Arc<Segment>> {
        let segments = self.segments.read();
        let sealed = segments.iter().filter(|s| s.sealed.get().is_some());
        sealed.cloned().collect()
    }
}

/// Whether a topic may have records in `range`.
pub(crate) fn reaches(places: &TopicPlaces, range: &Range<Offset>) -> bool {
    places.range.start < range.end && places.range.end > range.start
}
