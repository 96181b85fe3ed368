//! Reading batches by offset: from the tail without I/O when it can, else from the segments with checked `pread`s.

use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::batch::Batch;
use crate::core::Core;
use crate::error::ReadError;
use crate::files::{File, OpenMode};
use crate::ids::Offset;
use crate::index::{Block, Blocks, Held, Index, Run, TopicPlaces};
use crate::rebuild::{build_index, open_index};
use crate::salvage::Salvage;
use crate::saved_index::{IndexReader, SavedIndex, Spoilt};
use crate::sealed_topics::reaches;
use crate::segment::{IndexPlace, SEGMENT_HEADER_BYTES, Segment};
use crate::walk::{Step, Walk};

const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Topics that are looked up one by one in an index; with more of them all its topics are looked at.
const LOOKED_UP_MAX: usize = 256;
/// So many topics tell whether most are wanted: being wrong costs reads, never records.
const SAMPLED: usize = 256;

/// What a read asks for. `until` is at or below the high watermark.
#[derive(Clone, Copy)]
struct Want<'a> {
    from: Offset,
    until: Offset,
    max_bytes: usize,
    topics: Option<&'a dyn Fn(&str) -> bool>,
}

impl Want<'_> {
    fn takes(&self, batch: &Batch) -> bool {
        self.topics
            .is_none_or(|wanted| batch.topics().any(|topic| wanted(topic.topic)))
    }
}

/// The batches found so far.
#[derive(Default)]
struct Taken {
    batches: Vec<Batch>,
    bytes: usize,
}

impl Taken {
    fn is_enough(&self, more: usize, want: &Want<'_>) -> bool {
        !self.batches.is_empty() && self.bytes + more > want.max_bytes
    }

    fn push(&mut self, batch: Batch) {
        self.bytes += batch.bytes_len();
        self.batches.push(batch);
    }
}

impl Core {
    pub(crate) fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Batch>, ReadError> {
        let until = self.check_range(from)?;
        if let Some(batches) = self.read_tail(from, max_bytes) {
            return Ok(batches);
        }
        self.read_segments(Want {
            from,
            until,
            max_bytes,
            topics: None,
        })
        .map(|(batches, _)| batches)
    }

    pub(crate) fn read_tail(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        let until = self.high_watermark();
        let mut batches = Vec::new();
        // What retention has removed may still be in memory, and is gone all the same.
        let is_there = from >= self.log_start();
        (from == until
            || is_there
                && self
                    .tail
                    .read(self.id(), from, until, max_bytes, &mut batches))
        .then_some(batches)
    }

    pub(crate) fn read_matching(
        &self,
        from: Offset,
        until: Offset,
        max_bytes: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<Batch>, Offset), ReadError> {
        let high_watermark = self.check_range(from)?;
        let until = until.min(high_watermark);
        if from >= until {
            return Ok((Vec::new(), from));
        }
        let want = Want {
            from,
            until,
            max_bytes,
            topics: Some(wanted),
        };
        let Some(batches) = self.read_tail(from, max_bytes) else {
            return self.read_segments(want);
        };
        let scanned = batches.last().map_or(from, Batch::next_offset).min(until);
        let batches = batches
            .into_iter()
            .filter(|batch| batch.base_offset() < until && want.takes(batch))
            .collect();
        Ok((batches, scanned))
    }

    /// The high watermark, when `from` is neither below the log start nor above it.
    fn check_range(&self, from: Offset) -> Result<Offset, ReadError> {
        let high_watermark = self.high_watermark();
        if from > high_watermark || from < self.log_start() {
            return Err(self.out_of_range(from));
        }
        Ok(high_watermark)
    }

    pub(crate) fn out_of_range(&self, wanted: Offset) -> ReadError {
        ReadError::OutOfRange {
            wanted,
            log_start: self.log_start(),
            high_watermark: self.high_watermark(),
        }
    }

    fn read_segments(&self, mut want: Want<'_>) -> Result<(Vec<Batch>, Offset), ReadError> {
        let mut taken = Taken::default();
        let selected = OnceCell::new();
        while want.from < want.until {
            let reached = self
                .segment_for(want.from)
                .and_then(|place| self.read_place(place, &want, &selected, &mut taken));
            let reached = match reached {
                Ok(reached) => reached,
                // What was found before is given first; the error comes again when the reader goes on.
                Err(_) if !taken.batches.is_empty() => break,
                Err(error) => return Err(error),
            };
            want.from = reached.offset;
            let goes_on = taken.batches.is_empty()
                || (want.topics.is_some() && !reached.is_full && taken.bytes < want.max_bytes);
            if !goes_on {
                break;
            }
        }
        Ok((taken.batches, want.from.min(want.until)))
    }

    fn read_place(
        &self,
        (segment, next_base): (Arc<Segment>, Option<Offset>),
        want: &Want<'_>,
        selected: &OnceCell<Selected>,
        taken: &mut Taken,
    ) -> Result<Reached, ReadError> {
        let end = segment
            .sealed
            .get()
            .map_or(want.until, |summary| summary.next);
        if want.from >= end {
            // Between the end of this segment and the next one: lost to damage.
            let end = next_base.unwrap_or(want.until);
            return Err(ReadError::Damaged {
                range: want.from..end,
            });
        }
        let within = Want {
            until: want.until.min(end),
            ..*want
        };
        self.read_segment(&segment, &within, selected, taken)
            .map_err(|error| match &error {
                // Retention has removed it since it was looked up.
                ReadError::Io { source, .. }
                    if source.kind() == io::ErrorKind::NotFound && want.from < self.log_start() =>
                {
                    self.out_of_range(want.from)
                }
                _ => error,
            })
    }

    /// The segment in which `offset` lies or would lie, and the base offset of the one after it.
    pub(crate) fn segment_for(
        &self,
        offset: Offset,
    ) -> Result<(Arc<Segment>, Option<Offset>), ReadError> {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= offset);
        let at = after
            .checked_sub(1)
            .ok_or_else(|| self.out_of_range(offset))?;
        Ok((
            Arc::clone(&segments[at]),
            segments.get(after).map(|segment| segment.base),
        ))
    }

    /// Takes batches of one segment.
    fn read_segment(
        &self,
        segment: &Segment,
        want: &Want<'_>,
        selected: &OnceCell<Selected>,
        taken: &mut Taken,
    ) -> Result<Reached, ReadError> {
        let mut want = *want;
        if let Some(summary) = segment.sealed.get() {
            // An index made since the damage was found has no blocks where it is, so it must be heeded before the index.
            let holes = summary.holes.iter().map(|hole| hole.first..hole.next);
            for hole in holes.chain(self.found_damage()) {
                if hole.contains(&want.from) {
                    return Err(ReadError::Damaged {
                        range: want.from..hole.end.min(summary.next),
                    });
                }
                if hole.start > want.from {
                    want.until = want.until.min(hole.start);
                }
            }
        }
        let mut file = None;
        for run in self.runs(segment, &want, selected)? {
            let file = match &file {
                Some(file) => file,
                // What the disk does not give is damage like any other.
                None => file.insert(Salvage::new(self.open_segment(segment)?)),
            };
            let reached = self.walk_run(segment, file, &run, &want, taken)?;
            if reached < run.until.min(want.until) {
                let is_full = true;
                return Ok(Reached {
                    offset: reached,
                    is_full,
                });
            }
        }
        Ok(Reached {
            offset: want.until,
            is_full: false,
        })
    }

    fn open_segment(&self, segment: &Segment) -> Result<Arc<dyn File>, ReadError> {
        if let Some(file) = self.cached_file(segment.base) {
            return Ok(file);
        }
        let file = self
            .context
            .open(&segment.path, OpenMode::Read)
            .map_err(|error| io_error(&segment.path, error))?;
        self.cache_file(segment.base, &file);
        Ok(file)
    }

    /// Where to read in a segment in order to see all that is wanted.
    fn runs(
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

    /// Takes batches of a run until there is enough; returns the offset up to which it looked.
    fn walk_run(
        &self,
        segment: &Segment,
        file: &dyn File,
        run: &Run,
        want: &Want<'_>,
        taken: &mut Taken,
    ) -> Result<Offset, ReadError> {
        let failed = |error| io_error(&segment.path, error);
        let (end, limit) = match segment.sealed.get() {
            Some(summary) => (summary.data_end, summary.next),
            None => (file.len().map_err(failed)?, self.high_watermark()),
        };
        let (mut walk, mut has_skipped) = self
            .walk_to(segment.base, file, end, run, want)
            .map_err(failed)?;
        while walk.expected < run.until.min(want.until) {
            if taken.is_enough(1, want) {
                return Ok(walk.expected);
            }
            match walk.next().map_err(failed)? {
                Step::Batch { batch, .. } => {
                    // Its offset is the one expected, so what was passed over was whole.
                    has_skipped = false;
                    if batch.next_offset() <= want.from || !want.takes(&batch) {
                        continue;
                    }
                    if taken.is_enough(batch.bytes_len(), want) {
                        return Ok(batch.base_offset());
                    }
                    taken.push(batch);
                }
                Step::Bad if has_skipped => {
                    // What was passed over may be what is bad.
                    has_skipped = false;
                    self.places.lock().forget((segment.base, run.position));
                    walk = Walk::new(file, self.context.identity, run.position, end, run.offset)
                        .with_buffers(&self.tail.buffers);
                }
                Step::Bad => {
                    let (first, from) = (walk.expected, walk.position);
                    let found = walk.resync(limit, self.context.epoch).map_err(failed)?;
                    let (next, to) = if found {
                        (walk.expected, walk.position)
                    } else {
                        (limit, end)
                    };
                    self.note_damage(segment, file, first..next, from..to);
                    if !taken.batches.is_empty() {
                        return Ok(first);
                    }
                    if want.from < next {
                        return Err(ReadError::Damaged {
                            range: first.max(want.from)..next,
                        });
                    }
                }
            }
        }
        Ok(walk.expected)
    }

    /// A walk of a run that stands where `want` begins, and whether it passed over batches that nobody has checked.
    fn walk_to<'a>(
        &'a self,
        base: Offset,
        file: &'a dyn File,
        end: u64,
        run: &Run,
        want: &Want<'_>,
    ) -> io::Result<(Walk<'a>, bool)> {
        let walk = |position, offset, chunk| {
            Walk::new(file, self.context.identity, position, end, offset)
                .with_chunk(chunk)
                .with_buffers(&self.tail.buffers)
        };
        let block = (base, run.position);
        let is_single = want.topics.is_none() && want.max_bytes < CHUNK_BYTES_MIN;
        if is_single {
            let place = self.places.lock().find(block, want.from);
            if let Some(place) = place.filter(|place| place.bytes > want.max_bytes) {
                let walk = walk(place.position, place.offset, place.bytes);
                return Ok((walk, place.offset > run.offset));
            }
        }
        // No more than the run: another topic's batches may follow.
        let run_bytes = usize::try_from(run.end.saturating_sub(run.position)).unwrap_or(usize::MAX);
        let chunk = want.max_bytes.saturating_add(CHUNK_BYTES_MIN);
        // At least a block when it is known where that ends: a batch of its own size is then one read.
        let chunk = chunk.max(run.block_bytes as usize);
        let chunk = chunk.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).min(run_bytes);
        let mut walk = walk(run.position, run.offset, chunk);
        walk.skip_before(want.from)?;
        if is_single {
            let batches = walk.headers_held((run.offset, run.position), want.until);
            self.places.lock().learn(block, &batches);
        }
        let has_skipped = walk.expected > run.offset;
        Ok((walk, has_skipped))
    }

    /// Asks the index of a sealed segment: in memory, in its file, or made again when that is not whole.
    pub(crate) fn with_index<T>(
        &self,
        segment: &Segment,
        f: &dyn Fn(&SealedIndex) -> Result<T, Spoilt>,
    ) -> Result<T, ReadError> {
        let index = match &*segment.index.lock() {
            IndexPlace::Memory(index) | IndexPlace::Provisional(index) => {
                Some(SealedIndex::Memory(Arc::clone(index)))
            }
            _ => None,
        };
        let index = match index {
            Some(index) => Some(index),
            None => self.saved_index(segment).map(SealedIndex::Saved),
        };
        if let Some(Ok(answer)) = index.map(|index| f(&index)) {
            return Ok(answer);
        }
        let index = SealedIndex::Memory(self.rebuild(segment)?);
        // An index in memory has no pieces that could be spoilt.
        f(&index).map_err(|error| {
            io_error(
                &segment.path,
                io::Error::new(io::ErrorKind::InvalidData, error),
            )
        })
    }

    fn saved_index(&self, segment: &Segment) -> Option<Arc<SavedIndex>> {
        if let Some(index) = self.cached_index(segment.base) {
            return Some(index);
        }
        let reader = self.open_saved(segment)?;
        let index = Arc::new(reader.load().ok()?);
        self.cache_index(segment.base, &index);
        Some(index)
    }

    /// The index file of a sealed segment, when it is of the segment as this start found it.
    pub(crate) fn open_saved(&self, segment: &Segment) -> Option<IndexReader> {
        let summary = segment.sealed.get()?;
        open_index(&self.context, segment.base, summary.next).filter(|reader| {
            let index = &reader.head.index;
            index.next == summary.next && index.data_end == summary.data_end
        })
    }

    /// Makes the index of a sealed segment again; the maintenance thread saves it.
    pub(crate) fn rebuild(&self, segment: &Segment) -> Result<Arc<Index>, ReadError> {
        let summary = segment
            .sealed
            .get()
            .expect("only the active segment is not sealed");
        let (limit, newest) = (summary.next, self.context.epoch);
        let index = build_index(&self.context, &segment.path, segment.base, limit, newest);
        let index = index
            .map(Arc::new)
            .map_err(|error| io_error(&segment.path, error))?;
        self.forget_files(segment.base);
        *segment.index.lock() = IndexPlace::Memory(Arc::clone(&index));
        Ok(index)
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

/// How far a segment was looked at.
struct Reached {
    offset: Offset,
    /// There is more, for which there was no room.
    is_full: bool,
}

/// The topics that a read wants, of those in sealed segments.
enum Selected {
    /// Most of them: looking for where they are not costs more than it saves.
    Most,
    Some(Vec<(Box<str>, TopicPlaces)>),
    /// Too many to be looked up one by one, or not known.
    Unknown,
}

/// The index of a sealed segment, wherever it is.
pub(crate) enum SealedIndex {
    Memory(Arc<Index>),
    Saved(Arc<SavedIndex>),
}

impl SealedIndex {
    pub fn blocks(&self) -> Blocks<'_> {
        match self {
            Self::Memory(index) => index.blocks(),
            Self::Saved(index) => index.blocks(),
        }
    }

    fn mark_topic(&self, topic: &str, held: &mut Held) -> Result<(), Spoilt> {
        match self {
            Self::Memory(index) => {
                index.mark_topic(topic, held);
                Ok(())
            }
            Self::Saved(index) => index.mark_topic(topic, held),
        }
    }

    fn mark(
        &self,
        range: &Range<Offset>,
        wanted: &dyn Fn(&str) -> bool,
        held: &mut Held,
    ) -> Result<(), Spoilt> {
        match self {
            Self::Memory(index) => {
                index.mark(range, wanted, held);
                Ok(())
            }
            Self::Saved(index) => index.mark(range, wanted, held),
        }
    }
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io {
        path: path.to_owned(),
        source,
    }
}
