//! Reading the batches of a run: checked one by one, with what is damaged reported and passed over.

use std::io;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::model::BlockRange;
use crate::read::batch_positions::BatchPosition;
use crate::read::range::{Taken, Want, io_error};
use crate::segment::header::Segment;
use crate::segment::scan::{SegmentScan, Step};
use crate::state::core::Core;
use crate::vfs::files::File;

const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 4 << 20;

impl Core {
    /// Takes batches of a run until there is enough; returns the offset up to which it looked.
    pub(crate) fn scan_blocks(
        &self,
        segment: &Segment,
        file: &dyn File,
        run: &BlockRange,
        want: &Want<'_>,
        taken: &mut Taken,
    ) -> Result<Offset, ReadError> {
        let failed = |error| io_error(&segment.path, error);
        let (end, limit) = match segment.sealed.get() {
            Some(summary) => (summary.data_end, summary.next),
            None => {
                // No further than the batches: what is secured behind them was never in the cache.
                let end = segment.with_builder(|growing| growing.data_end());
                let end = end.map_or_else(|| file.len(), Ok).map_err(failed)?;
                (end, self.high_watermark())
            }
        };
        let (mut walk, mut has_skipped) = self
            .walk_to(segment.base, file, end, run, want)
            .map_err(failed)?;
        while walk.expected < run.until.min(want.until) {
            if taken.is_enough(1, want) || taken.leaves(walk.held_claim(), want) {
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
                    self.places.lock().forget(run.offset);
                    walk = SegmentScan::new(
                        file,
                        self.context.identity,
                        run.position,
                        end,
                        run.offset,
                    )
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
        run: &BlockRange,
        want: &Want<'_>,
    ) -> io::Result<(SegmentScan<'a>, bool)> {
        let walk = |position, offset, chunk| {
            SegmentScan::new(file, self.context.identity, position, end, offset)
                .with_chunk(chunk)
                .with_buffers(&self.tail.buffers)
        };
        let block = (base, run.position);
        let is_single = want.topics.is_none() && want.max_bytes < CHUNK_BYTES_MIN;
        if is_single {
            let place = self.places.lock().find(want.from);
            let is_it =
                |place: &BatchPosition| place.block == block && place.bytes > want.max_bytes;
            if let Some(place) = place.filter(is_it) {
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
}
