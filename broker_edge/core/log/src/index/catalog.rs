//! Between which offsets the sealed segments of a partition hold each topic, and its newest retained record: what lists
//! topics and retained messages without reading indexes.
//!
//! Read when it is first asked for, from a file that covers most segments (`topics_file.rs`) and the indexes of the
//! others. Where the file is lost that is every index of the log, so a thread of its own reads them while the log is open
//! already. Bounded: with more topics than fit it holds none, and the indexes are asked instead.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::by_name::ByName;
use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::catalog_file::TopicsFile;
use crate::index::model::{Index, TopicExtent};
use crate::segment::header::{IndexState, Segment};
use crate::state::core::Core;

/// About 25 MB of names of usual length.
pub(crate) const TOPICS_MAX: usize = 200_000;
/// So many segments that the file does not cover are worth writing it again: it is about as large as one index.
const UNSAVED_SEGMENTS_MAX: usize = 8;
/// With more that it does not cover, reading them is nothing that a start may wait for.
const AWAITED_SEGMENTS_MAX: usize = 2 * UNSAVED_SEGMENTS_MAX;

pub(crate) type TopicMap = ByName<TopicExtent>;

#[derive(Default)]
pub(crate) struct TopicCatalog {
    state: State,
    /// Segments that the file does not cover.
    unsaved: usize,
    /// What a start has read of the file, until it is used.
    file: Option<TopicsFile>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has asked yet.
    #[default]
    Unread,
    /// Being read; with the segments that were sealed meanwhile.
    Reading(Vec<Arc<Index>>),
    BlockSet(TopicMap),
    /// There were too many topics.
    Over,
}

impl TopicCatalog {
    /// Takes in a segment that was just sealed.
    pub fn add(&mut self, index: &Arc<Index>) {
        match &mut self.state {
            State::Unread | State::Over => {}
            State::Reading(sealed) => sealed.push(Arc::clone(index)),
            State::BlockSet(topics) => {
                self.unsaved += 1;
                merge(topics, index);
                if topics.len() > TOPICS_MAX {
                    self.state = State::Over;
                }
            }
        }
    }

    pub fn forget_below(&mut self, log_start: Offset) {
        if let State::BlockSet(topics) = &mut self.state {
            topics.retain(|_, places| places.range.end > log_start);
        }
    }
}

/// Extends the places of each topic of an index.
pub(crate) fn merge(into: &mut TopicMap, index: &Index) {
    for topic in &index.topics {
        let places = TopicExtent {
            range: topic.first..topic.next,
            retained: topic.retained,
        };
        extend(into, &topic.topic, places);
    }
}

pub(crate) fn extend(into: &mut TopicMap, topic: &str, places: TopicExtent) {
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
        let mut sealed = self.topic_catalog.lock();
        if matches!(sealed.state, State::Unread | State::Reading(_)) {
            drop(sealed);
            self.read_sealed_topics()?;
            sealed = self.topic_catalog.lock();
        }
        Ok(match &sealed.state {
            State::BlockSet(topics) => f(Some(topics)),
            State::Over | State::Unread | State::Reading(_) => f(None),
        })
    }

    /// As [`with_sealed_topics`](Self::with_sealed_topics), for those who can do without: None also while the topics are
    /// being read.
    pub(crate) fn with_known_topics<T>(
        &self,
        f: impl FnOnce(Option<&TopicMap>) -> T,
    ) -> Result<T, ReadError> {
        if self.is_reading_topics() {
            return Ok(f(None));
        }
        self.with_sealed_topics(f)
    }

    pub(crate) fn is_reading_topics(&self) -> bool {
        matches!(self.topic_catalog.lock().state, State::Reading(_))
    }

    /// Looks at the file when the log is opened. True when so little is in it that the caller must have
    /// [`read_topics_behind`](Self::read_topics_behind) run on a thread of its own.
    pub(crate) fn begin_topics(&self) -> bool {
        let segments = self.sealed_segments();
        if segments.len() <= AWAITED_SEGMENTS_MAX {
            return false;
        }
        let file = TopicsFile::load(&self.context, &segments).unwrap_or_default();
        let is_covered = |segment: &&Arc<Segment>| file.covers.contains(&segment.base);
        let uncovered = segments.len() - segments.iter().filter(is_covered).count();
        let mut sealed = self.topic_catalog.lock();
        sealed.file = Some(file);
        let is_long = uncovered > AWAITED_SEGMENTS_MAX;
        if is_long {
            sealed.state = State::Reading(Vec::new());
        }
        is_long
    }

    /// Reads what [`begin_topics`](Self::begin_topics) left.
    pub(crate) fn read_topics_behind(&self) {
        let _one_at_a_time = self.topics_reading.lock();
        if let Err(error) = self.finish_reading(&self.sealed_segments()) {
            tracing::warn!(partition = %self.context.name, %error, "the topics are not read yet");
        }
    }

    fn read_sealed_topics(&self) -> Result<(), ReadError> {
        let _one_at_a_time = self.topics_reading.lock();
        let segments = {
            let mut sealed = self.topic_catalog.lock();
            if !matches!(sealed.state, State::Unread) {
                return Ok(());
            }
            // From here on the writer hands over what it seals: it never waits for this.
            sealed.state = State::Reading(Vec::new());
            self.sealed_segments()
        };
        self.finish_reading(&segments)
    }

    fn finish_reading(&self, segments: &[Arc<Segment>]) -> Result<(), ReadError> {
        let read = self.merge_segments(segments);
        let mut sealed = self.topic_catalog.lock();
        let State::Reading(meanwhile) = std::mem::take(&mut sealed.state) else {
            return Ok(());
        };
        let (topics, unsaved) = read?;
        sealed.unsaved = unsaved;
        sealed.state = topics.map_or(State::Over, State::BlockSet);
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
        let begun = self.topic_catalog.lock().file.take();
        let file = begun.or_else(|| TopicsFile::load(&self.context, segments));
        let TopicsFile { mut topics, covers } = file.unwrap_or_default();
        let mut unsaved = 0;
        for segment in segments.iter().filter(|s| !covers.contains(&s.base)) {
            unsaved += 1;
            if self.queue.lock().closing {
                return Ok((None, unsaved)); // Nobody asks a log that is shut down.
            }
            self.for_each_topic_of(segment, &mut |topic, places| {
                extend(&mut topics, topic, places);
            })?;
            if topics.len() > TOPICS_MAX {
                return Ok((None, unsaved));
            }
        }
        Ok((Some(topics), unsaved))
    }

    /// Gives the newest retained place of each topic of the sealed segments, and of their indexes reads only those that
    /// have any: for a start that comes while all of them are still being read.
    pub(crate) fn for_each_retained_of_sealed(
        &self,
        f: &mut dyn FnMut(&str, &TopicExtent),
    ) -> Result<(), ReadError> {
        let segments = self.sealed_segments();
        let file = TopicsFile::load(&self.context, &segments);
        let TopicsFile { mut topics, covers } = file.unwrap_or_default();
        topics.retain(|_, places| places.retained.is_some());
        let others = segments.iter().filter(|s| !covers.contains(&s.base));
        for segment in others.filter(|segment| self.may_retain(segment)) {
            self.for_each_topic_of(segment, &mut |topic, places| {
                if places.retained.is_some() {
                    extend(&mut topics, topic, places);
                }
            })?;
        }
        topics.iter().for_each(|(topic, places)| f(topic, places));
        Ok(())
    }

    /// Whether a topic of a sealed segment has a retained record, by the head of its index.
    fn may_retain(&self, segment: &Segment) -> bool {
        let made = match &*segment.index.lock() {
            IndexState::Memory(index) | IndexState::Provisional(index) => Some(Arc::clone(index)),
            IndexState::IndexBuilder(_) | IndexState::Saved => None,
        };
        match made {
            Some(index) => index.topics.iter().any(|topic| topic.retained.is_some()),
            None => self
                .open_saved(segment)
                .is_none_or(|reader| reader.head.retained > 0),
        }
    }

    /// Writes the file again when many segments are not covered. It is never authoritative, so failing is no harm.
    pub(crate) fn save_topics(&self) {
        let is_due = |sealed: &TopicCatalog| {
            sealed.unsaved >= UNSAVED_SEGMENTS_MAX && matches!(sealed.state, State::BlockSet(_))
        };
        let _one_at_a_time = self.saving.lock();
        if !is_due(&self.topic_catalog.lock()) {
            return;
        }
        let segments = self.sealed_segments();
        let is_saved = |s: &Arc<Segment>| matches!(&*s.index.lock(), IndexState::Saved);
        if !segments.iter().all(is_saved) {
            return; // In a moment they are.
        }
        // Read before the lock is taken: the writer takes it when it seals a segment.
        let saved = TopicsFile::coverage(&self.context, &segments).and_then(|coverage| {
            let bytes = {
                let mut sealed = self.topic_catalog.lock();
                let State::BlockSet(topics) = &sealed.state else {
                    return Ok(());
                };
                // Topics of a segment that was sealed meanwhile are in it too: it is covered the next time.
                let bytes = TopicsFile::bytes_of(&self.context.identity, &coverage, topics);
                sealed.unsaved = self.sealed_segments().len().saturating_sub(segments.len());
                bytes
            };
            TopicsFile::save(&*self.context.seams.files, &self.context.dir, &bytes)
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
pub(crate) fn reaches(places: &TopicExtent, range: &Range<Offset>) -> bool {
    places.range.start < range.end && places.range.end > range.start
}
