//! Reading batches by offset: from the tail without I/O when it can, else from the segments with checked `pread`s.

use std::io;
use std::ops::Range;

use crate::batch::record_batch::Batch;
use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::model::Blocks;
use crate::index::segment::Segment;
use crate::read::block_scan::BlockRange;
use crate::read::candidates::{TopicFilter, TopicSelection};
use crate::read::found::{Found, Want};
use crate::read::reader::Reader;
use crate::segment::header::SEGMENT_HEADER_BYTES;
use crate::vfs::salvage::Salvage;

/// How far a segment was looked at.
struct Reached {
    offset: Offset,
    /// There is more, for which there was no room.
    is_full: bool,
}

impl Reader {
    pub fn read(&self, from: Offset, max_bytes: usize) -> Result<Vec<Batch>, ReadError> {
        let until = self.check_range(from)?;
        if let Some(batches) = self.read_tail(from, max_bytes) {
            return Ok(batches);
        }
        let read = self.read_segments(Want::all(from..until, max_bytes));
        read.map(|(batches, _)| batches)
    }

    pub fn read_tail(&self, from: Offset, max_bytes: usize) -> Option<Vec<Batch>> {
        let until = self.status.high_watermark();
        let mut batches = Vec::new();
        let (id, tail) = (self.id(), &self.tail);
        // Removed records may still be in memory, but they are gone for readers.
        let is_kept = from >= self.status.log_start();
        (from == until || is_kept && tail.read(id, from, until, max_bytes, &mut batches))
            .then_some(batches)
    }

    pub fn read_matching(
        &self,
        from: Offset,
        until: Offset,
        max_bytes: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<Batch>, Offset), ReadError> {
        let until = self.check_range(from)?.min(until);
        if from >= until {
            return Ok((Vec::new(), from));
        }
        let topics = Some(wanted);
        let want = Want {
            topics,
            ..Want::all(from..until, max_bytes)
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
    pub fn read_range(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
    ) -> Result<Vec<Batch>, ReadError> {
        let until = self.check_range(range.start)?.min(range.end);
        if range.start >= until {
            return Ok(Vec::new());
        }
        let read = self.read_segments(Want::all(range.start..until, max_bytes));
        read.map(|(batches, _)| batches)
    }

    /// Ignores errors: the read itself meets and reports them.
    pub fn will_read(&self, from: Offset, bytes: u64) {
        let Ok(until) = self.check_range(from) else {
            return;
        };
        let Some((segment, _)) = self.segments.find(from) else {
            return;
        };
        if let Ok(blocks) = self.block_range(&segment, &(from..until))
            && from < until
            && blocks.position < blocks.end
            && let Ok(file) = self.segments.open(&segment)
        {
            file.will_read(blocks.position, bytes.min(blocks.end - blocks.position));
        }
    }

    fn read_segments(&self, mut want: Want<'_>) -> Result<(Vec<Batch>, Offset), ReadError> {
        let mut found = Found::default();
        let mut selection = TopicSelection::for_one_read();
        while want.from < want.until {
            let reached = match self.read_segment(&want, &mut selection, &mut found) {
                Ok(reached) => reached,
                // The batches found before are given first; the error comes again when the reader goes on.
                Err(_) if !found.batches.is_empty() => break,
                Err(error) => return Err(error),
            };
            want.from = reached.offset;
            let goes_on = found.batches.is_empty()
                || (want.topics.is_some() && !reached.is_full && found.bytes < want.max_bytes);
            if !goes_on {
                break;
            }
        }
        Ok((found.batches, want.from.min(want.until)))
    }

    /// Takes batches of the segment in which the wanted range begins.
    fn read_segment(
        &self,
        want: &Want<'_>,
        selection: &mut TopicSelection,
        found: &mut Found,
    ) -> Result<Reached, ReadError> {
        let (segment, range) = self.readable(want.from..want.until)?;
        let read = self.read_part(&segment, range, want, selection, found);
        read.map_err(|error| match &error {
            // Retention has removed it since it was looked up.
            ReadError::Io { source, .. }
                if source.kind() == io::ErrorKind::NotFound
                    && want.from < self.status.log_start() =>
            {
                self.out_of_range(want.from)
            }
            _ => error,
        })
    }

    fn read_part(
        &self,
        segment: &Segment,
        range: Range<Offset>,
        want: &Want<'_>,
        selection: &mut TopicSelection,
        found: &mut Found,
    ) -> Result<Reached, ReadError> {
        let end = range.end;
        let ranges = match want.topics {
            Some(wanted) if segment.sealed.get().is_some() => {
                let filter = TopicFilter::Matching(wanted);
                self.sealed_candidates(segment, &range, selection, filter, &mut 0)?
            }
            _ => vec![range],
        };
        let mut file = None;
        for range in ranges {
            let blocks = self.block_range(segment, &range)?;
            let file = match &file {
                Some(file) => file,
                // Unreadable bytes are damage like any other.
                None => file.insert(Salvage::new(self.segments.open(segment)?)),
            };
            let within = Want {
                from: range.start,
                until: range.end,
                ..*want
            };
            let offset = self.scan_blocks(segment, file, &blocks, &within, found)?;
            if offset < range.end {
                let is_full = true;
                return Ok(Reached { offset, is_full });
            }
        }
        Ok(Reached {
            offset: end,
            is_full: false,
        })
    }

    /// The blocks in which a range of a segment lies.
    fn block_range(
        &self,
        segment: &Segment,
        range: &Range<Offset>,
    ) -> Result<BlockRange, ReadError> {
        let of = |blocks: Blocks<'_>| {
            let block = blocks.block_for(range.start);
            let begin = (SEGMENT_HEADER_BYTES, segment.base);
            let (position, offset) = block.map_or(begin, |block| (block.position, block.offset));
            let last = blocks.block_for(Offset(range.end.0.saturating_sub(1)));
            BlockRange {
                position,
                offset,
                end: blocks.end_of(last),
                block_bytes: blocks.end_of(block).saturating_sub(position),
            }
        };
        let segments = &self.segments;
        segments.with_index(segment, &|index| Ok(of(index.blocks())))
    }
}
