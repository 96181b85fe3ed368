//! Reading batches by offset: from the tail without I/O when it can, else from the segments with checked `pread`s.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::batch::Batch;
use crate::core::Core;
use crate::error::ReadError;
use crate::files::{File, OpenMode};
use crate::ids::Offset;
use crate::index::{Index, Run};
use crate::rebuild::{build_index, load_index};
use crate::salvage::Salvage;
use crate::segment::{IndexPlace, SEGMENT_HEADER_BYTES, Segment};
use crate::walk::{Step, Walk};

const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 4 << 20;

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
        (from == until
            || self
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
        while want.from < want.until {
            let (segment, next_base) = self.segment_for(want.from)?;
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
                ..want
            };
            let scanned = self.read_segment(&segment, &within, &mut taken)?;
            if !taken.batches.is_empty() {
                return Ok((taken.batches, scanned.min(want.until)));
            }
            want.from = scanned;
        }
        Ok((taken.batches, want.from.min(want.until)))
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

    /// Takes batches of one segment; returns the offset up to which it looked.
    fn read_segment(
        &self,
        segment: &Segment,
        want: &Want<'_>,
        taken: &mut Taken,
    ) -> Result<Offset, ReadError> {
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
        // What the disk does not give is damage like any other.
        let file = Salvage::new(self.open_segment(segment, want.from)?);
        for run in self.runs(segment, &want)? {
            let reached = self.walk_run(segment, &file, &run, &want, taken)?;
            if reached < run.until.min(want.until) {
                return Ok(reached);
            }
        }
        Ok(want.until)
    }

    fn open_segment(&self, segment: &Segment, wanted: Offset) -> Result<Arc<dyn File>, ReadError> {
        self.context
            .open(&segment.path, OpenMode::Read)
            .map_err(|error| {
                // Retention has removed it since it was looked up.
                if error.kind() == io::ErrorKind::NotFound && wanted < self.log_start() {
                    self.out_of_range(wanted)
                } else {
                    io_error(&segment.path, error)
                }
            })
    }

    /// Where to read in a segment in order to see all that is wanted.
    fn runs(&self, segment: &Segment, want: &Want<'_>) -> Result<Vec<Run>, ReadError> {
        let block = match segment.with_growing(|growing| growing.block_for(want.from)) {
            Some(block) => block,
            None => {
                let index = self.index_of(segment)?;
                match want.topics {
                    Some(wanted) => return Ok(index.runs(&(want.from..want.until), wanted)),
                    None => index.block_for(want.from),
                }
            }
        };
        let (position, offset) = block.map_or((SEGMENT_HEADER_BYTES, segment.base), |block| {
            (block.position, block.offset)
        });
        Ok(vec![Run {
            position,
            offset,
            until: want.until,
        }])
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
        let chunk = want.max_bytes.saturating_add(CHUNK_BYTES_MIN);
        let mut walk = Walk::new(file, self.context.identity, run.position, end, run.offset)
            .with_chunk(chunk.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX));
        while walk.expected < run.until.min(want.until) {
            match walk.next().map_err(failed)? {
                Step::Batch { batch, .. } => {
                    if batch.next_offset() <= want.from || !want.takes(&batch) {
                        continue;
                    }
                    if taken.is_enough(batch.bytes_len(), want) {
                        return Ok(batch.base_offset());
                    }
                    taken.push(batch);
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

    /// The index of a sealed segment: from memory, from its file, or made again.
    pub(crate) fn index_of(&self, segment: &Segment) -> Result<Arc<Index>, ReadError> {
        if let Some(index) = self.cached_index(segment.base) {
            return Ok(index);
        }
        if let IndexPlace::Memory(index) | IndexPlace::Provisional(index) = &*segment.index.lock() {
            return Ok(Arc::clone(index));
        }
        let summary = segment
            .sealed
            .get()
            .expect("only the active segment is not sealed");
        let loaded = load_index(&self.context, segment.base, summary.next)
            .filter(|index| index.next == summary.next && index.data_end == summary.data_end);
        let index = match loaded {
            Some(index) => Arc::new(index),
            None => {
                let epoch = self.context.epoch;
                build_index(
                    &self.context,
                    &segment.path,
                    segment.base,
                    summary.next,
                    epoch,
                )
                .map(Arc::new)
                .map_err(|error| io_error(&segment.path, error))?
            }
        };
        self.cache_index(&index);
        Ok(index)
    }
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io {
        path: path.to_owned(),
        source,
    }
}
