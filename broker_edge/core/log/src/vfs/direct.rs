//! Writes past the page cache. Batches that are synced at once cost half as much this way as through the cache, and the
//! zeros ahead of them need no pages. The files here are switched to direct writes (`O_DIRECT`).

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice};
use std::iter;

use rustix::io::Errno;

use crate::vfs::files::{PAGE_BYTES, ZEROS};

/// Most slices in one call.
const SLICES: usize = 64;
/// Below this, zeros cost less in the cache: nothing waits for them.
pub(crate) const ZEROS_MIN: u64 = 64 << 10;
/// Bytes of parts in one call; more go in several. A thread keeps a buffer of at most this size.
const BUFFER_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 16 << 10;

/// Page-aligned, as direct writes require.
#[repr(align(4096))]
struct Piece([u8; PIECE_BYTES]);

/// Gathers parts in aligned memory.
#[derive(Default)]
struct Gather {
    pieces: Vec<Piece>,
    bytes: usize,
}

thread_local! {
    static GATHER: RefCell<Gather> = RefCell::default();
}

/// Writes `before` and `parts` one after the other, and zeros up to the end of the last page, so that `parts` begin at
/// `position`. False when the file system refuses: the caller then writes all parts through the cache.
pub(crate) fn write(
    file: &File,
    before: &[u8],
    parts: &[&[u8]],
    position: u64,
) -> io::Result<bool> {
    GATHER.with_borrow_mut(|gather| {
        gather.bytes = 0;
        let mut position = position - before.len() as u64;
        for mut part in iter::once(before).chain(parts.iter().copied()) {
            while !part.is_empty() {
                part = gather.take(part);
                if gather.bytes == BUFFER_BYTES && !gather.write(file, &mut position)? {
                    return Ok(false);
                }
            }
        }
        let pad = gather.bytes.next_multiple_of(PAGE_BYTES as usize) - gather.bytes;
        gather.take(&ZEROS.0[..pad]);
        gather.write(file, &mut position)
    })
}

impl Gather {
    /// Copies the front of `part`, up to the end of a piece; returns the rest.
    fn take<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        let (piece, start) = (self.bytes / PIECE_BYTES, self.bytes % PIECE_BYTES);
        if piece == self.pieces.len() {
            self.pieces.push(Piece([0; PIECE_BYTES]));
        }
        let (taken, rest) = part.split_at(part.len().min(PIECE_BYTES - start));
        self.pieces[piece].0[start..start + taken.len()].copy_from_slice(taken);
        self.bytes += taken.len();
        rest
    }

    /// False when the file system refuses.
    fn write(&mut self, file: &File, position: &mut u64) -> io::Result<bool> {
        let bytes = std::mem::take(&mut self.bytes);
        let pieces = self.pieces.iter().map(|piece| &piece.0[..]);
        let written = write_pieces(file, pieces, bytes, *position)?;
        *position += written as u64;
        Ok(written == bytes)
    }
}

/// Writes the first `bytes` of `pieces`; returns how many it wrote: 0 when the file system refuses such writes.
pub(crate) fn write_pieces<'a>(
    file: &File,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    bytes: usize,
    position: u64,
) -> io::Result<usize> {
    let (mut slices, mut used, mut left) = ([IoSlice::new(&[]); SLICES], 0, bytes);
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(&piece[..left.min(piece.len())]);
        left -= slice.len();
        used += usize::from(left > 0);
    }
    loop {
        match rustix::io::pwritev(file, &slices[..=used], position) {
            Err(Errno::INTR) => {}
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(0),
            written => return Ok(written?),
        }
    }
}

/// Writes zeros from `from` towards `to`, both page-aligned; returns how far it came. The caller writes the rest.
pub(crate) fn fill_zeros(file: &File, from: u64, to: u64) -> io::Result<u64> {
    let mut position = from;
    while position < to {
        let bytes = (to - position).min((SLICES * ZEROS.0.len()) as u64) as usize;
        match write_pieces(file, iter::repeat(&ZEROS.0[..]), bytes, position)? {
            0 => break,
            written => position += written as u64,
        }
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use crate::vfs::files::{File as _, Padded, read_full};
    use crate::vfs::system::SystemFile;

    /// On any file system, with or without direct writes.
    #[test]
    fn only_what_is_to_be_zeros_becomes_zeros() {
        for (from, to) in [
            (0, 300_000),
            (5000, 400_000),
            (4096, 4096 + (5 << 20)),
            (9, 9),
        ] {
            let mut plain = tempfile::tempfile().expect("a file");
            let file = SystemFile::from(plain.try_clone().expect("a clone"));
            file.write_all_at(&vec![7; 10_000], 0).expect("written");
            file.fill_zeros(from, to).expect("filled");
            // Not a direct write any more: it is not on a page.
            file.write_all_at(&[8; 10], from).expect("written");
            let mut bytes = Vec::new();
            plain.rewind().expect("rewound");
            plain.read_to_end(&mut bytes).expect("read");
            let length = (to as usize).max(10_000);
            assert_eq!(bytes.len(), length, "{from}..{to}");
            for (at, byte) in bytes.iter().enumerate() {
                let at = at as u64;
                let expected = match at {
                    _ if (from..from + 10).contains(&at) => 8,
                    _ if (from..to).contains(&at) => 0,
                    0..10_000 => 7,
                    _ => 0,
                };
                assert_eq!(*byte, expected, "byte {at} of {from}..{to}");
            }
        }
    }

    #[test]
    fn parts_are_written_between_what_was_before_and_zeros() {
        for (position, parts) in [
            (0, vec![10]),
            (0, vec![4096]),
            (1, vec![4095]),
            (3, vec![0]),
            (4095, vec![1]),
            (8292, vec![0, 3000, 2000]),
            // Around the bounds of the pieces of a write.
            (0, vec![16 << 10, 1]),
            (65_000, vec![535, 1]),
            (65_000, vec![537]),
            (1, vec![131_072]),
            (7, vec![600_000, 5, 600_000]),
            (0, vec![1 << 20]),
            (4000, vec![96, (1 << 20) - 4096, 1]),
        ] {
            let bytes = parts.iter().zip(10..).map(|(n, byte)| vec![byte; *n]);
            let bytes: Vec<Vec<u8>> = bytes.collect();
            let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            let end = position + bytes.concat().len();
            let to_page_end = end.next_multiple_of(4096) - end;
            let before = vec![7; position % 4096];
            for (before, pad) in [
                (None, 0),
                (None, to_page_end / 2),
                (None, to_page_end),
                (Some(&*before), to_page_end),
            ] {
                let file = SystemFile::from(tempfile::tempfile().expect("a file"));
                let mut expected = vec![7; 2 << 20];
                file.write_all_at(&expected, 0).expect("written");
                let parts = &slices;
                let padded = Padded { before, parts, pad };
                file.write_padded_at(&padded, position as u64)
                    .expect("written");
                let mut found = vec![0; 2 << 20];
                read_full(&file, &mut found, 0).expect("read");
                expected[position..end].copy_from_slice(&bytes.concat());
                expected[end..end + pad].fill(0);
                assert!(found == expected, "{position} {parts:?} {before:?} {pad}");
            }
        }
    }
}
