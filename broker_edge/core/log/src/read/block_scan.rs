//! Reading the batches of some blocks: checked one by one, with damage reported and passed over.

use std::io;

use crate::error::ReadError;
use crate::ids::Offset;
use crate::index::segment::Segment;
use crate::index::store::io_error;
use crate::read::batch_positions::BatchPosition;
use crate::read::found::{Found, Want};
use crate::read::reader::Reader;
use crate::segment::scan::SegmentScan;
use crate::vfs::files::File;

const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// Blocks of a segment that follow one another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockRange {
    pub position: u64,
    pub offset: Offset,
    /// Position after the last block.
    pub end: u64,
    /// Size of the first block.
    pub block_bytes: u64,
}

impl Reader {
    /// Takes batches of the blocks until there are enough; returns the offset up to which it looked.
    pub(super) fn scan_blocks(
        &self,
        segment: &Segment,
        file: &dyn File,
        blocks: &BlockRange,
        want: &Want<'_>,
        found: &mut Found,
    ) -> Result<Offset, ReadError> {
        let failed = |error| io_error(&segment.path, error);
        let (end, limit) = match segment.sealed.get() {
            Some(summary) => (summary.data_end, summary.next),
            // No further than the batches: what is secured behind them was never in the cache.
            None => (segment.data_end(), self.status.high_watermark()),
        };
        let (mut scan, mut has_skipped) = self
            .scan_from(segment.base, file, end, blocks, want)
            .map_err(failed)?;
        while scan.expected < want.until {
            if found.is_enough(1, want) || found.leaves(scan.held_claim(), want) {
                return Ok(scan.expected);
            }
            match scan.next().map_err(failed)? {
                Some((batch, _)) => {
                    // Its offset is the one expected, so the batches that were skipped were whole.
                    has_skipped = false;
                    if batch.next_offset() <= want.from || !want.takes(&batch) {
                        continue;
                    }
                    if found.is_enough(batch.bytes_len(), want) {
                        return Ok(batch.base_offset());
                    }
                    found.push(batch);
                }
                None if has_skipped => {
                    // The skipped batches may be the bad ones.
                    has_skipped = false;
                    self.positions.forget(blocks.offset);
                    let identity = self.context.identity;
                    scan = SegmentScan::new(file, identity, blocks.position, end, blocks.offset)
                        .with_buffers(&self.tail.buffers);
                }
                None => {
                    let (first, from) = (scan.expected, scan.position);
                    let is_found = scan.resync(limit, self.context.epoch()).map_err(failed)?;
                    let (next, to) = if is_found {
                        (scan.expected, scan.position)
                    } else {
                        (limit, end)
                    };
                    self.note_damage(segment, file, first..next, from..to);
                    if !found.batches.is_empty() {
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
        Ok(scan.expected)
    }

    /// A scan of the blocks that stands where `want` begins, and whether it skipped batches that nobody has checked.
    fn scan_from<'a>(
        &'a self,
        base: Offset,
        file: &'a dyn File,
        end: u64,
        blocks: &BlockRange,
        want: &Want<'_>,
    ) -> io::Result<(SegmentScan<'a>, bool)> {
        let scan = |position, offset, chunk| {
            SegmentScan::new(file, self.context.identity, position, end, offset)
                .with_chunk(chunk)
                .with_buffers(&self.tail.buffers)
        };
        let block = (base, blocks.position);
        let is_single = want.topics.is_none() && want.max_bytes < CHUNK_BYTES_MIN;
        if is_single {
            let known = self.positions.find(blocks.offset, want.from);
            let is_it = |at: &BatchPosition| at.block == block && at.bytes > want.max_bytes;
            if let Some(at) = known.filter(is_it) {
                let scan = scan(at.position, at.offset, at.bytes);
                return Ok((scan, at.offset > blocks.offset));
            }
        }
        // No more than these blocks: another topic's batches may follow.
        let most =
            usize::try_from(blocks.end.saturating_sub(blocks.position)).unwrap_or(usize::MAX);
        let chunk = want.max_bytes.saturating_add(CHUNK_BYTES_MIN);
        // At least a block when it is known where that ends: a batch of its own size is then one read.
        let chunk = chunk.max(blocks.block_bytes as usize);
        let chunk = chunk.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).min(most);
        let mut scan = scan(blocks.position, blocks.offset, chunk);
        scan.skip_before(want.from)?;
        if is_single {
            let batches = scan.headers_held((blocks.offset, blocks.position), want.until);
            self.positions.learn(block, &batches);
        }
        let has_skipped = scan.expected > blocks.offset;
        Ok((scan, has_skipped))
    }
}
