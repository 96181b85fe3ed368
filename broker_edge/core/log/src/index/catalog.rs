//! Between which offsets the sealed segments of a partition hold each topic, and its newest retained record: what lists
//! topics and retained messages without reading indexes.
//!
//! Read when it is first asked for, from a file that covers most segments (`catalog_file.rs`) and the indexes of the
//! others. Where the file is lost that is every index of the log, so a thread of its own reads them while the log is
//! already open. Bounded: with more topics, or longer names, than fit it holds none, and the indexes are asked instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::catalog_file::{CatalogFile, TopicMap};
use crate::index::model::{Index, TopicExtent};
use crate::index::segment::Segment;
use crate::index::store::SegmentStore;
use crate::state::context::Context;
use crate::state::status::Status;

/// The file is written again when it does not cover this many segments: it is about as large as one index.
const UNSAVED_SEGMENTS_MAX: usize = 8;
/// A start does not wait for the indexes of more segments than this that the file does not cover.
const AWAITED_SEGMENTS_MAX: usize = 2 * UNSAVED_SEGMENTS_MAX;

pub(crate) struct TopicCatalog {
    context: Arc<Context>,
    status: Arc<Status>,
    segments: Arc<SegmentStore>,
    known: Mutex<Known>,
    /// Held while the topics of the sealed segments are read from disk.
    reading: Mutex<()>,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct Known {
    state: State,
    /// Segments that the file does not cover.
    unsaved: usize,
    /// The file as read by a start, until it is used.
    file: Option<CatalogFile>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has asked yet.
    #[default]
    Unread,
    /// Being read; with the segments that were sealed meanwhile.
    Reading(Vec<Arc<Index>>),
    /// Readers hold it without the lock. A change while they do makes a copy, so that the writer does not wait for them.
    Ready(Arc<TopicMap>),
    /// There were too many topics.
    Over,
}

impl Known {
    fn add(&mut self, index: &Arc<Index>) {
        match &mut self.state {
            State::Unread | State::Over => {}
            State::Reading(sealed) => sealed.push(Arc::clone(index)),
            State::Ready(topics) => {
                self.unsaved += 1;
                Arc::make_mut(topics).merge(index);
                if topics.is_over() {
                    self.state = State::Over;
                }
            }
        }
    }

    fn forget_below(&mut self, log_start: Offset) {
        if let State::Ready(topics) = &mut self.state {
            Arc::make_mut(topics).retain(|extent| extent.range.end > log_start);
        }
    }
}

impl TopicCatalog {
    pub fn new(context: &Arc<Context>, status: &Arc<Status>, segments: &Arc<SegmentStore>) -> Self {
        Self {
            context: Arc::clone(context),
            status: Arc::clone(status),
            segments: Arc::clone(segments),
            known: Mutex::default(),
            reading: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Seals a segment and takes its topics in, under one lock: a listing in between would miss them.
    pub fn seal(&self, segment: &Segment) {
        let mut known = self.known.lock();
        known.add(&segment.seal());
    }

    pub fn forget_below(&self, log_start: Offset) {
        self.known.lock().forget_below(log_start);
    }

    /// Stops reading indexes: nobody waits for them any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Runs `f` on the topics of all sealed segments, without the lock; None when there are too many to hold.
    pub fn with_topics<T>(&self, f: impl FnOnce(Option<&TopicMap>) -> T) -> Result<T, ReadError> {
        let mut known = self.known.lock();
        if matches!(known.state, State::Unread | State::Reading(_)) {
            drop(known);
            self.read()?;
            known = self.known.lock();
        }
        let topics = match &known.state {
            State::Ready(topics) => Some(Arc::clone(topics)),
            State::Over | State::Unread | State::Reading(_) => None,
        };
        drop(known);
        Ok(f(topics.as_deref()))
    }

    /// As [`with_topics`](Self::with_topics), for callers that can do without: None also while the topics are being
    /// read.
    pub fn with_known_topics<T>(
        &self,
        f: impl FnOnce(Option<&TopicMap>) -> T,
    ) -> Result<T, ReadError> {
        if self.is_reading() {
            return Ok(f(None));
        }
        self.with_topics(f)
    }

    pub fn is_reading(&self) -> bool {
        matches!(self.known.lock().state, State::Reading(_))
    }

    /// Reads the file when the log is opened. True when it covers so little that the caller must run
    /// [`read_behind`](Self::read_behind) on a thread of its own.
    pub fn begin(&self) -> bool {
        let segments = self.segments.sealed();
        if segments.len() <= AWAITED_SEGMENTS_MAX {
            return false;
        }
        let file = CatalogFile::load(&self.context, &segments).unwrap_or_default();
        let uncovered = segments.iter().filter(|s| !file.covers.contains(&s.base));
        let is_long = uncovered.count() > AWAITED_SEGMENTS_MAX;
        let mut known = self.known.lock();
        known.file = Some(file);
        if is_long {
            known.state = State::Reading(Vec::new());
        }
        is_long
    }

    /// Reads the indexes that [`begin`](Self::begin) left.
    pub fn read_behind(&self) {
        let _one_at_a_time = self.reading.lock();
        if let Err(error) = self.finish_reading(&self.segments.sealed()) {
            tracing::warn!(partition = %self.context.name, %error, "the topics could not be read yet");
        }
    }

    fn read(&self) -> Result<(), ReadError> {
        let _one_at_a_time = self.reading.lock();
        let segments = {
            let mut known = self.known.lock();
            if !matches!(known.state, State::Unread) {
                return Ok(());
            }
            // From here on the writer hands over the indexes that it seals: it never waits for this.
            known.state = State::Reading(Vec::new());
            self.segments.sealed()
        };
        self.finish_reading(&segments)
    }

    fn finish_reading(&self, segments: &[Arc<Segment>]) -> Result<(), ReadError> {
        let read = self.merge_segments(segments);
        let mut known = self.known.lock();
        let State::Reading(meanwhile) = std::mem::take(&mut known.state) else {
            return Ok(());
        };
        let (topics, unsaved) = read?;
        known.unsaved = unsaved;
        known.state = topics.map_or(State::Over, |topics| State::Ready(Arc::new(topics)));
        for index in meanwhile {
            known.add(&index);
        }
        known.forget_below(self.status.log_start());
        drop(known);
        // At once: after a crash, the next start would read the same indexes again.
        self.save();
        Ok(())
    }

    /// The topics of these segments, None when there are too many, and how many segments the file does not cover.
    fn merge_segments(
        &self,
        segments: &[Arc<Segment>],
    ) -> Result<(Option<TopicMap>, usize), ReadError> {
        let begun = self.known.lock().file.take();
        let file = begun.or_else(|| CatalogFile::load(&self.context, segments));
        let CatalogFile { mut topics, covers } = file.unwrap_or_default();
        let mut unsaved = 0;
        for segment in segments.iter().filter(|s| !covers.contains(&s.base)) {
            unsaved += 1;
            if self.is_closed.load(Ordering::Acquire) {
                return Ok((None, unsaved)); // Nobody asks a log that is shut down.
            }
            let add = &mut |topic: &str, extent| topics.extend(topic, extent);
            self.segments.for_each_topic(segment, add)?;
            if topics.is_over() {
                return Ok((None, unsaved));
            }
        }
        Ok((Some(topics), unsaved))
    }

    /// Gives the topics with a retained record, in no order and perhaps several times, the newest place last. While the
    /// topics are still being read, only those indexes are read that have retained records: a start waits for this.
    pub fn for_each_retained(
        &self,
        f: &mut dyn FnMut(&str, &TopicExtent),
    ) -> Result<(), ReadError> {
        if !self.is_reading() {
            return self.for_each(f);
        }
        let segments = self.segments.sealed();
        let file = CatalogFile::load(&self.context, &segments);
        let CatalogFile { mut topics, covers } = file.unwrap_or_default();
        topics.retain(|extent| extent.retained.is_some());
        let mut add = |topic: &str, extent: TopicExtent| {
            if extent.retained.is_some() {
                topics.extend(topic, extent);
            }
        };
        let others = segments.iter().filter(|s| !covers.contains(&s.base));
        for segment in others.filter(|segment| self.segments.may_retain(segment)) {
            self.segments.for_each_topic(segment, &mut add)?;
        }
        topics.iter().for_each(|(topic, extent)| f(topic, extent));
        Ok(())
    }

    /// Gives every topic of the sealed segments, in no order; when there are too many to hold, once for each segment.
    pub fn for_each(&self, f: &mut dyn FnMut(&str, &TopicExtent)) -> Result<(), ReadError> {
        let is_held = self.with_topics(|topics| {
            let Some(topics) = topics else { return false };
            topics.iter().for_each(|(topic, extent)| f(topic, extent));
            true
        })?;
        if !is_held {
            for segment in self.segments.sealed() {
                let give = &mut |topic: &str, extent| f(topic, &extent);
                self.segments.for_each_topic(&segment, give)?;
            }
        }
        Ok(())
    }

    /// Writes the file again when many segments are not covered. It is never authoritative, so failing is no harm.
    pub fn save(&self) {
        let is_due = |known: &Known| {
            known.unsaved >= UNSAVED_SEGMENTS_MAX && matches!(known.state, State::Ready(_))
        };
        let _one_at_a_time = self.segments.lock_saving();
        if !is_due(&self.known.lock()) {
            return;
        }
        let segments = self.segments.sealed();
        if !segments.iter().all(|segment| segment.is_saved()) {
            return; // The next upkeep saves their indexes first.
        }
        // Read before the lock is taken: the writer takes it when it seals a segment.
        let saved = CatalogFile::coverage(&self.context, &segments).and_then(|coverage| {
            let topics = {
                let mut known = self.known.lock();
                let State::Ready(topics) = &known.state else {
                    return Ok(());
                };
                // Topics of a segment that was sealed meanwhile are in it too: it is covered the next time.
                let topics = Arc::clone(topics);
                let sealed = self.segments.sealed().len();
                known.unsaved = sealed.saturating_sub(segments.len());
                topics
            };
            let bytes = CatalogFile::to_bytes(&self.context.identity, &coverage, &topics);
            CatalogFile::save(&*self.context.seams.files, &self.context.dir, &bytes)
        });
        if let Err(error) = saved {
            tracing::warn!(partition = %self.context.name, %error, "the list of topics could not be saved");
        }
    }
}
