//! Reading batches by offset: from the tail without I/O when it can, else from the segments with checked `pread`s.

use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::batch::decode::Batch;
use crate::error::ReadError;
use crate::ids::Offset;
use crate::read::block_select::Selected;
use crate::segment::header::Segment;
use crate::state::core::Core;
use crate::vfs::files::{File, OpenMode};
use crate::vfs::salvage::Salvage;

/// What a read asks for. `until` is at or below the high watermark.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    pub from: Offset,
    pub until: Offset,
    pub max_bytes: usize,
    pub topics: Option<&'a dyn Fn(&str) -> bool>,
}

impl Want<'_> {
    pub fn takes(&self, batch: &Batch) -> bool {
        self.topics
            .is_none_or(|wanted| batch.topics().any(|topic| wanted(topic.topic)))
    }
}

/// The batches found so far.
#[derive(Default)]
pub(crate) struct Taken {
    pub batches: Vec<Batch>,
    bytes: usize,
    /// Number of the first batch in the newest buffer.
    newest: usize,
}

impl Taken {
    pub fn is_enough(&self, more: usize, want: &Want<'_>) -> bool {
        !self.batches.is_empty() && self.bytes + more > want.max_bytes
    }

    /// Whether the next batch is not worth reading now: it is known not to fit, or it is not at hand and most of what is
    /// wanted is there. Read and found too large, it would be read again by the next call.
    pub fn leaves(&self, claimed: Option<usize>, want: &Want<'_>) -> bool {
        let is_most = self.bytes > want.max_bytes / 2;
        !self.batches.is_empty() && claimed.map_or(is_most, |bytes| self.is_enough(bytes, want))
    }

    /// Where few batches of a buffer are wanted they must not keep all of it: there may be thousands of such buffers.
    pub fn push(&mut self, batch: Batch) {
        let last = self.batches.last();
        if last.is_some_and(|last| !last.shares_buffer_with(&batch)) {
            Batch::leave_large_buffer(&mut self.batches[self.newest..]);
            self.newest = self.batches.len();
        }
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

    /// As `read`, up to `until` and from the segments alone: no more of them is read than the blocks of that range.
    pub(crate) fn read_range(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
    ) -> Result<Vec<Batch>, ReadError> {
        let until = self.check_range(range.start)?.min(range.end);
        if range.start >= until {
            return Ok(Vec::new());
        }
        let read = self.read_segments(Want {
            from: range.start,
            until,
            max_bytes,
            topics: None,
        });
        read.map(|(batches, _)| batches)
    }

    /// What goes wrong here goes wrong again for the read itself, which reports it.
    pub(crate) fn will_read(&self, from: Offset, bytes: u64) {
        let Ok(until) = self.check_range(from) else {
            return;
        };
        let Ok((segment, _)) = self.segment_for(from) else {
            return;
        };
        let want = Want {
            from,
            until,
            max_bytes: 0,
            topics: None,
        };
        let runs = self.runs(&segment, &want, &OnceCell::new());
        let run = runs.ok().and_then(|runs| runs.into_iter().next());
        if let Some(run) = run.filter(|run| from < until && run.position < run.end)
            && let Ok(file) = self.open_segment(&segment)
        {
            file.will_read(run.position, bytes.min(run.end - run.position));
        }
    }

    /// The high watermark, when `from` is neither below the log start nor above it.
    pub(crate) fn check_range(&self, from: Offset) -> Result<Offset, ReadError> {
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
        let end = self.end_of(&segment, next_base, &(want.from..want.until))?;
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
        want.until = self.before_damage(segment, want.from..want.until)?;
        let mut file = None;
        for run in self.runs(segment, &want, selected)? {
            let file = match &file {
                Some(file) => file,
                // What the disk does not give is damage like any other.
                None => file.insert(Salvage::new(self.open_segment(segment)?)),
            };
            let reached = self.scan_blocks(segment, file, &run, &want, taken)?;
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

    /// Where a range of a segment has to end so that no damage that is known lies in it; an error when it begins there.
    fn before_damage(&self, segment: &Segment, range: Range<Offset>) -> Result<Offset, ReadError> {
        let mut until = range.end;
        if let Some(summary) = segment.sealed.get() {
            // An index made since the damage was found has no blocks where it is, so it must be heeded before the index.
            let holes = summary.holes.iter().map(|hole| hole.first..hole.next);
            for hole in holes.chain(self.found_damage()) {
                if hole.contains(&range.start) {
                    return Err(ReadError::Damaged {
                        range: range.start..hole.end.min(summary.next),
                    });
                }
                if hole.start > range.start {
                    until = until.min(hole.start);
                }
            }
        }
        Ok(until)
    }

    /// What of a range lies in a segment in front of damage; an error when nothing does.
    pub(crate) fn readable(
        &self,
        segment: &Segment,
        next_base: Option<Offset>,
        range: Range<Offset>,
    ) -> Result<Range<Offset>, ReadError> {
        let end = self.end_of(segment, next_base, &range)?;
        let until = self.before_damage(segment, range.start..range.end.min(end))?;
        Ok(range.start..until)
    }

    /// Where a segment ends; an error when a range begins behind that, in what was lost before the next segment.
    fn end_of(
        &self,
        segment: &Segment,
        next_base: Option<Offset>,
        range: &Range<Offset>,
    ) -> Result<Offset, ReadError> {
        let sealed = segment.sealed.get();
        let end = sealed.map_or(range.end, |summary| summary.next);
        if range.start < end {
            return Ok(end);
        }
        Err(ReadError::Damaged {
            range: range.start..next_base.unwrap_or(range.end),
        })
    }

    pub(crate) fn open_segment(&self, segment: &Segment) -> Result<Arc<dyn File>, ReadError> {
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
}

/// How far a segment was looked at.
struct Reached {
    offset: Offset,
    /// There is more, for which there was no room.
    is_full: bool,
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> ReadError {
    ReadError::Io {
        path: path.to_owned(),
        source,
    }
}
