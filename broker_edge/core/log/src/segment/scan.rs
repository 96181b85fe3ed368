//! Reads the batches of a segment file one after the other, and finds the next one behind bytes that are not a batch.
//!
//! Every batch that it returns has a matching checksum, belongs to the given log and partition, and has the offset that
//! was expected there.

use std::io;
use std::sync::Arc;

use crate::batch::buffers::{Buffers, Chunk};
use crate::batch::layout::{BASE_OFFSET_AT, HEADER_BYTES, Header, Identity};
use crate::batch::record_batch::Batch;
use crate::ids::{Epoch, Offset};
use crate::segment::header::{HeaderFound, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::vfs::files::{File, read_full};
use crate::vfs::salvage::says_nothing_of_bytes;

/// How much is read at once when everything is read.
pub(crate) const SCAN_CHUNK_BYTES: usize = 1 << 20;

/// How far behind the batches leftovers without a header are looked for.
const LEFTOVER_BYTES_MAX: u64 = 4 << 20;

pub(crate) struct SegmentScan<'a> {
    file: &'a dyn File,
    identity: Identity,
    /// Where the next batch is expected.
    pub position: u64,
    /// Nothing is read from here on.
    end: u64,
    pub expected: Offset,
    pub epoch: Epoch,
    chunk: Arc<Chunk>,
    buffers: Option<&'a Arc<Buffers>>,
    chunk_start: u64,
    chunk_bytes: usize,
}

impl<'a> SegmentScan<'a> {
    pub fn new(
        file: &'a dyn File,
        identity: Identity,
        position: u64,
        end: u64,
        expected: Offset,
    ) -> Self {
        Self {
            file,
            identity,
            // A damaged index may name any position.
            position: position.min(end),
            end,
            expected,
            epoch: Epoch(0),
            chunk: Arc::new(Chunk::from(Vec::new())),
            buffers: None,
            chunk_start: 0,
            chunk_bytes: SCAN_CHUNK_BYTES,
        }
    }

    /// Reads this much at once; a larger batch is still read whole.
    pub fn with_chunk(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes.max(HEADER_BYTES);
        self
    }

    /// Takes its buffers from this pool.
    pub fn with_buffers(mut self, buffers: &'a Arc<Buffers>) -> Self {
        self.buffers = Some(buffers);
        self
    }

    /// The header at the scan's position, if it has the expected offset and no earlier epoch than the batch before.
    fn claim(&mut self) -> io::Result<Option<Header>> {
        let Some(at) = self.load(self.position, HEADER_BYTES)? else {
            return Ok(None);
        };
        let header = Header::parse(&self.chunk[at..]).ok();
        Ok(header.filter(|it| it.base_offset == self.expected && it.epoch >= self.epoch))
    }

    /// Skips batches that end at or before `from` by their headers alone. Their checksums are not checked, so a bad
    /// batch found after this must be looked at again from a position that was not reached by skipping.
    pub fn skip_before(&mut self, from: Offset) -> io::Result<()> {
        while self.expected < from
            && let Some(header) = self.claim()?
            && header.next_offset() <= from
        {
            self.position += header.total() as u64;
            self.expected = header.next_offset();
            self.epoch = header.epoch;
        }
        Ok(())
    }

    /// Offsets and positions of the batches from a position on, below `until`, whose headers are in the current chunk,
    /// and of the end of the last one. Their checksums are not checked.
    pub fn headers_held(
        &self,
        (mut offset, mut position): (Offset, u64),
        until: Offset,
    ) -> Vec<(Offset, u64)> {
        let mut found = Vec::new();
        while offset < until
            && let Some(at) = position.checked_sub(self.chunk_start)
            && let Some(bytes) = self.chunk.get(at as usize..)
            && let Ok(header) = Header::parse(bytes)
            && header.base_offset == offset
        {
            found.push((offset, position));
            position += header.total() as u64;
            offset = header.next_offset();
        }
        if !found.is_empty() {
            found.push((offset, position));
        }
        found
    }

    /// The batch at the scan's position, and the position; None when the bytes there are not the batch that is expected.
    pub fn next(&mut self) -> io::Result<Option<(Batch, u64)>> {
        let Some(header) = self.claim()? else {
            return Ok(None);
        };
        let position = self.position;
        let batch = self.decode_at(position, &header)?;
        Ok(batch.map(|batch| {
            self.position += batch.bytes_len() as u64;
            self.expected = batch.next_offset();
            self.epoch = batch.epoch();
            (batch, position)
        }))
    }

    /// The next batch that ends at or before `limit`, and its position. Behind bad bytes that is the first that
    /// [`resync`](Self::resync) finds.
    pub fn next_below(&mut self, limit: Offset, newest: Epoch) -> io::Result<Option<(Batch, u64)>> {
        let mut found = self.next()?;
        if found.is_none() && self.resync(limit, newest)? {
            found = self.next()?;
        }
        Ok(found.filter(|(batch, _)| batch.next_offset() <= limit))
    }

    /// The size that the next batch claims, when its header is in the current chunk.
    pub fn held_claim(&self) -> Option<usize> {
        let at = self.position.checked_sub(self.chunk_start)?;
        let bytes = self.chunk.get(usize::try_from(at).ok()?..)?;
        Some(Header::parse(bytes).ok()?.total())
    }

    /// Skips the batches that headers claim from the scan's position on, whatever is in them.
    pub fn skip_claimed(&mut self) -> io::Result<()> {
        while let Some(header) = self.claim()? {
            self.position = self.end.min(self.position + header.total() as u64);
            self.expected = header.next_offset();
        }
        Ok(())
    }

    /// Whether the bytes at the scan's position are the expected batch with a damaged header, and not a leftover of an
    /// earlier life of a recycled file: its base offset is there, or the base offset is all that is wrong.
    pub fn is_spoiled_batch(&mut self) -> io::Result<bool> {
        let Some(at) = self.load(self.position, HEADER_BYTES)? else {
            return Ok(false);
        };
        let expected = self.expected.0.to_le_bytes();
        let base_at = |at: usize| at + BASE_OFFSET_AT..at + BASE_OFFSET_AT + expected.len();
        if self.chunk[base_at(at)] == expected {
            return Ok(true);
        }
        let Ok(header) = Header::parse(&self.chunk[at..]) else {
            return Ok(false);
        };
        let Some(at) = self.load(self.position, header.total())? else {
            return Ok(false);
        };
        let mut mended = self.chunk[at..at + header.total()].to_vec();
        mended[base_at(0)].copy_from_slice(&expected);
        let mended = Arc::new(Chunk::from(mended));
        Ok(Batch::decode(&mended, 0, &self.identity).is_ok())
    }

    /// Moves to the next valid batch behind bad bytes: one with a later offset that ends at or before `limit`, and with
    /// an epoch between the scan's and `newest`. Returns false, without moving, when there is none.
    pub fn resync(&mut self, limit: Offset, newest: Epoch) -> io::Result<bool> {
        // Bytes inside a batch whose header is whole are payloads, even where they look like a batch.
        let skip = self.claim()?.map_or(1, |header| header.total());
        let mut at = self.position + skip as u64;
        while at + HEADER_BYTES as u64 <= self.end {
            let Some(start) = self.load(at, HEADER_BYTES)? else {
                break;
            };
            let chunk = Arc::clone(&self.chunk);
            let window = &chunk[start..];
            for shift in 0..=window.len() - HEADER_BYTES {
                let candidate = &window[shift..];
                if candidate[..4] == [0; 4] {
                    continue;
                }
                let Ok(header) = Header::parse(candidate) else {
                    continue;
                };
                let fits = header.base_offset > self.expected
                    && header.next_offset() <= limit
                    && (self.epoch..=newest).contains(&header.epoch);
                let position = at + shift as u64;
                if fits && self.decode_at(position, &header)?.is_some() {
                    self.position = position;
                    self.expected = header.base_offset;
                    return Ok(true);
                }
            }
            at += (window.len() - HEADER_BYTES) as u64 + 1;
        }
        Ok(false)
    }

    /// The batch with this header at a position, when it is whole.
    fn decode_at(&mut self, position: u64, header: &Header) -> io::Result<Option<Batch>> {
        let at = self.load(position, header.total())?;
        Ok(at.and_then(|at| Batch::decode(&self.chunk, at, &self.identity).ok()))
    }

    /// Makes sure that `bytes` from `position` on are in the chunk and returns where; None when the file ends before.
    fn load(&mut self, position: u64, bytes: usize) -> io::Result<Option<usize>> {
        let held_end = self.chunk_start + self.chunk.len() as u64;
        if position >= self.chunk_start && position + bytes as u64 <= held_end {
            return Ok(Some((position - self.chunk_start) as usize));
        }
        let room = self.end.saturating_sub(position);
        if room < bytes as u64 {
            return Ok(None);
        }
        // Never more than the file holds, so that a wrong length allocates nothing.
        let wanted = (bytes.max(self.chunk_bytes) as u64).min(room) as usize;
        let mut chunk = match self.buffers {
            Some(buffers) => buffers.take_filled(wanted),
            None => vec![0; wanted],
        };
        // The beginning of a batch that the last chunk cut off is kept.
        let cut_off = position
            .checked_sub(self.chunk_start)
            .and_then(|at| self.chunk.get(usize::try_from(at).ok()?..))
            .unwrap_or_default();
        let held = cut_off.len().min(wanted);
        chunk[..held].copy_from_slice(&cut_off[..held]);
        let read = held + read_full(self.file, &mut chunk[held..], position + held as u64)?;
        chunk.truncate(read);
        self.chunk = match self.buffers {
            Some(buffers) => Chunk::new(chunk, buffers),
            None => Arc::new(Chunk::from(chunk)),
        };
        self.chunk_start = position;
        Ok((read >= bytes).then_some(0))
    }
}

/// The header of a segment file; unreadable bytes count as a bad header.
pub(crate) fn read_header(file: &dyn File) -> io::Result<HeaderFound> {
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
    match read_full(file, &mut bytes, 0) {
        Ok(read) => Ok(SegmentHeader::parse(&bytes[..read])),
        Err(error) if says_nothing_of_bytes(&error) => Err(error),
        Err(_) => Ok(HeaderFound::Bad),
    }
}

/// How many bytes from `position` on are not the zeros that were written ahead.
pub(crate) fn leftover_bytes(file: &dyn File, position: u64) -> io::Result<u64> {
    let room = file.len()?.saturating_sub(position).min(LEFTOVER_BYTES_MAX);
    let mut bytes = vec![0; room as usize];
    let read = read_full(file, &mut bytes, position)?;
    let last = bytes[..read].iter().rposition(|byte| *byte != 0);
    Ok(last.map_or(0, |at| at as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::record_batch::tests::{batch_of, identity};
    use crate::vfs::system::SystemFile;

    /// Whether a scan that expects an offset, after a batch of an epoch, takes a batch of epoch 7 that begins at 10.
    fn is_taken(expected: u64, epoch: u64) -> bool {
        let file = SystemFile::from(tempfile::tempfile().expect("a file"));
        let batch = batch_of(Offset(10), &[b"one", b"two"]);
        File::write_all_at(&file, batch.bytes(), 0).expect("written");
        let end = batch.bytes_len() as u64;
        let mut scan = SegmentScan::new(&file, identity(), 0, end, Offset(expected));
        scan.epoch = Epoch(epoch);
        scan.next().expect("it can be read").is_some()
    }

    #[test]
    fn a_whole_batch_is_taken_only_at_the_offset_expected_and_in_the_order_of_epochs() {
        assert!(is_taken(10, 0) && is_taken(10, 7));
        assert!(!is_taken(9, 7), "offsets before it are missing");
        assert!(!is_taken(11, 7) && !is_taken(12, 7), "it was there before");
        assert!(!is_taken(10, 8), "of an earlier life");
    }

    /// Whether a search behind bad bytes, from an offset and an epoch on, finds a batch of epoch 7 with offsets 10 and
    /// 11.
    fn is_found(expected: u64, limit: u64, epochs: std::ops::RangeInclusive<u64>) -> bool {
        let file = SystemFile::from(tempfile::tempfile().expect("a file"));
        let mut bytes = vec![0xee; 200];
        bytes.extend_from_slice(batch_of(Offset(10), &[b"one", b"two"]).bytes());
        File::write_all_at(&file, &bytes, 0).expect("written");
        let end = bytes.len() as u64;
        let mut scan = SegmentScan::new(&file, identity(), 0, end, Offset(expected));
        scan.epoch = Epoch(*epochs.start());
        let is_found = scan
            .resync(Offset(limit), Epoch(*epochs.end()))
            .expect("it can be read");
        let place = if is_found { (200, 10) } else { (0, expected) };
        assert_eq!((scan.position, scan.expected.0), place);
        is_found
    }

    #[test]
    fn behind_bad_bytes_only_a_later_batch_is_found_that_can_have_been_written_there() {
        assert!(is_found(5, 12, 0..=7) && is_found(9, 20, 7..=7));
        assert!(!is_found(10, 12, 0..=7), "it would leave no gap");
        assert!(!is_found(11, 20, 0..=7) && !is_found(20, 30, 0..=7));
        assert!(
            !is_found(5, 11, 0..=7),
            "it ends where the next segment has begun"
        );
        assert!(!is_found(5, 12, 8..=9), "of an earlier life");
        assert!(!is_found(5, 12, 0..=6), "of no start yet");
    }
}
